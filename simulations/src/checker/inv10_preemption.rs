//! INV-10: no lease is preempted while one of a lower tier in the same candidate set runs; a victim's
//! tier is always below the preemptor's.
//!
//! Looked at where candidates are plainly alike: victims of one member, and others of one member
//! with the same capacity in the same cluster.

use std::collections::BTreeSet;

use sublet_core::{Applied, State};
use sublet_protocol::events::Event;
use sublet_protocol::ids::LeaseId;
use sublet_protocol::leases::EndReason;
use sublet_protocol::units::Timestamp;

use super::Checker;
use super::live::LiveLease;

impl Checker {
    pub(super) fn preempts_lowest(&mut self, applied: &Applied, state: &State) {
        let preempted = applied.records.iter().filter_map(|record| match &record.event {
            Event::LeaseEnding { lease, cause: EndReason::Preempted, .. } => {
                Some((*lease, record.time))
            }
            _other => None,
        });
        let victims: Vec<(LeaseId, Timestamp)> = preempted.collect();
        if victims.is_empty() {
            return;
        }
        // A pledge is of one request; what is kept for it tells whose the victims are.
        let kept: BTreeSet<_> = state.pledged().keys().copied().collect();
        let doomed: BTreeSet<LeaseId> = victims.iter().map(|(lease, _)| *lease).collect();
        for (victim, now) in victims {
            let Some(one) = self.live.leases.get(&victim) else {
                self.fail(10, format!("{victim} is preempted and was not live"));
                continue;
            };
            let min_run = state.policy().min_run.as_millis();
            let is_lower = |other: &&LiveLease| {
                let has_run = other.active_at.is_none_or(|since| now.since(since) >= min_run);
                let is_free = other.terms.members.iter().all(|m| !kept.contains(&m.slice));
                has_run && is_free && is_alike(one, other) && !doomed.contains(&other.terms.lease)
            };
            if let Some(other) = self.live.leases.values().find(is_lower) {
                let other = other.terms.lease;
                self.fail(10, format!("{victim} is preempted, {other} of a lower tier is not"));
            }
        }
    }
}

fn is_alike(victim: &LiveLease, other: &LiveLease) -> bool {
    let ([ours], [theirs]) = (victim.terms.members.as_slice(), other.terms.members.as_slice())
    else {
        return false;
    };
    !other.is_ending
        && other.terms.tier() < victim.terms.tier()
        && other.terms.cluster == victim.terms.cluster
        && ours.capacity == theirs.capacity
}
