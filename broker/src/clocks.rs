//! The wall clocks of agents as the leader's logic judges them, for who asks: explanations, views and
//! metrics. Empty on a broker that does not lead.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sublet_core::leader::AgentClock;
use sublet_core::matching::Limits;
use sublet_protocol::ids::{ClusterId, NodeId};

use crate::metrics;
use sublet_core::leader::ClockState;

type Known = BTreeMap<(ClusterId, NodeId), AgentClock>;

/// What is known of the agents' clocks.
#[derive(Debug, Default)]
pub(crate) struct Clocks(Mutex<Known>);

impl Clocks {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An agent's clock was measured.
    pub(crate) fn note(&self, node: (ClusterId, NodeId), clock: AgentClock) {
        let mut known = self.known();
        let before = known.insert(node, clock);
        metrics::clock_measured(clock.offset);
        if before.is_none_or(|before| before.state != clock.state) {
            show(&known);
        }
    }

    /// This broker leads no longer: what it knew gets old.
    pub(crate) fn clear(&self) {
        let mut known = self.known();
        known.clear();
        show(&known);
    }

    pub(crate) fn of(&self, node: (ClusterId, NodeId)) -> Option<AgentClock> {
        self.known().get(&node).copied()
    }

    /// What explanations must reckon with.
    pub(crate) fn limits(&self) -> Limits {
        let known = self.known();
        let far = known.iter().filter(|(_, clock)| clock.state == ClockState::Far);
        Limits { closed: far.map(|(node, _)| *node).collect(), ..Limits::NONE }
    }
}

fn show(known: &Known) {
    for state in [ClockState::Right, ClockState::Off, ClockState::Far] {
        metrics::clocks_are(state, known.values().filter(|clock| clock.state == state).count());
    }
}
