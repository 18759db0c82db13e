//! INV-14, what is beside the replicated state: what an agent keeps and what waits to be said stays
//! below its caps however long the broker is away; a leader keeps no more than there are leases.

use sublet_core::State;
use sublet_core::leader::Backlog;

use super::Checker;

/// Settled entries of use that are kept, and as many as a node can have under way.
const USAGE_MAX: usize = 256 + 16;
/// Messages that wait at an agent: the ends of all of these, as many refusals and pieces of output as
/// its outbox keeps, and the newest word on each slice and each member that is held.
const OUTBOX_MAX: usize = USAGE_MAX + 256 + 256 + 64;

impl Checker {
    pub(super) fn bounds_of_agent(&mut self, usage: usize) {
        self.check(14, usage <= USAGE_MAX, || format!("an agent keeps {usage} entries of use"));
    }

    /// How many messages wait at an agent.
    pub(crate) fn bounds_of_outbox(&mut self, waiting: usize) {
        self.check(14, waiting <= OUTBOX_MAX, || format!("{waiting} messages wait at an agent"));
    }

    /// What a leader keeps: nothing of leases that have ended, or of agents that are not there.
    pub(crate) fn bounds_of_leader(&mut self, backlog: Backlog, state: &State) {
        let (leases, slices) = (state.leases().len(), state.leased().len());
        let caps = [
            ("leases to look at", backlog.attention, leases),
            ("leases to tell the end of", backlog.told, leases),
            ("entries of use", backlog.usage, leases),
            ("nonces", backlog.nonces, slices),
            ("agents", backlog.agents, state.nodes().len()),
        ];
        for (what, kept, most) in caps {
            self.check(14, kept <= most, || format!("a leader keeps {kept} {what} of {most}"));
        }
    }
}
