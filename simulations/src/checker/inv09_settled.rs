//! INV-9: after healing nothing is stuck, what is free can be granted, and everything settles.

use std::collections::BTreeSet;

use sublet_protocol::ids::{LeaseId, RequestId};

use super::Checker;

/// Requests that ask for every free slice after healing.
#[derive(Debug, Default)]
pub(super) struct Probes {
    before: BTreeSet<RequestId>,
    pub(super) served: BTreeSet<LeaseId>,
    is_begun: bool,
}

impl Checker {
    /// A lease that has been granted or ending since before `since`.
    pub(crate) fn stuck_since(&self, since: u64) -> Option<String> {
        let is_passing = |one: &&super::live::LiveLease| one.is_ending || one.active_at.is_none();
        let stuck = self.live.leases.values().filter(is_passing).find(|one| one.since < since);
        stuck.map(|one| {
            let stage = if one.is_ending { "ending" } else { "granted" };
            format!("{} is stuck: it is {stage} for longer than W", one.terms.lease)
        })
    }

    /// Something that has not settled.
    pub(crate) fn anything_live(&self) -> Option<String> {
        let lease = self.live.leases.keys().next().map(ToString::to_string);
        lease.or_else(|| self.live.requests.keys().next().map(ToString::to_string))
    }

    pub(crate) fn begin_probes(&mut self) {
        self.probes.before = self.live.requests.keys().copied().collect();
        self.probes.is_begun = true;
    }

    /// How many of the requests since then had an active lease.
    pub(crate) fn probes_served(&self) -> usize {
        self.probes.served.len()
    }

    /// A lease is active.
    pub(super) fn probe_is_served(&mut self, lease: LeaseId) {
        if self.probes.is_begun {
            self.probes.served.insert(lease);
        }
    }
}
