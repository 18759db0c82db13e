//! Leases whose guests use nothing, as their agents say.

use std::collections::BTreeMap;

use sublet_protocol::agent::Held;
use sublet_protocol::capacity::SliceId;
use sublet_protocol::commands::Command;
use sublet_protocol::ids::LeaseId;
use sublet_protocol::leases::EndReason;
use sublet_protocol::units::{Millis, Seconds, Timestamp};

use super::{Effect, Leader};
use crate::decide::stalled::limit;
use crate::state::{Lease, State};

/// A word on use counts for this many renewals: of an agent that has said nothing for longer it is
/// not known what its guest does.
const FRESH_RENEWALS: u64 = 3;

/// For how long members of leases have used nothing, with when that was said. Members that use
/// something, or of which it is not known, are not here.
#[derive(Debug, Default)]
pub(super) struct Unused(BTreeMap<LeaseId, BTreeMap<SliceId, (Millis, Timestamp)>>);

impl Unused {
    /// What an agent says of a member of an active lease.
    pub(super) fn hear(&mut self, held: &Held, now: Timestamp) {
        if held.unused > Millis::ZERO {
            self.0.entry(held.lease).or_default().insert(held.slice, (held.unused, now));
        } else if let Some(members) = self.0.get_mut(&held.lease) {
            members.remove(&held.slice);
        }
    }

    pub(super) fn forget(&mut self, lease: LeaseId) {
        self.0.remove(&lease);
    }

    /// For how long every member of the lease has used nothing.
    fn least(&self, lease: (LeaseId, &Lease), fresh: Millis, now: Timestamp) -> Option<Millis> {
        let members = self.0.get(&lease.0)?;
        let unused = lease.1.terms().members.iter().map(|member| {
            let (unused, said_at) = members.get(&member.slice)?;
            (now.since(*said_at) <= fresh).then_some(*unused)
        });
        unused.collect::<Option<Vec<Millis>>>()?.into_iter().min()
    }
}

impl Leader {
    /// Leases whose guests have all used nothing for as long as the policy lets them.
    pub(super) fn declare_stalled(&self, state: &State, now: Timestamp) -> Vec<Effect> {
        let renewals = state.policy().renew.get().saturating_mul(FRESH_RENEWALS);
        let fresh = Seconds::new(renewals).as_millis();
        let stalled = self.unused.0.keys().filter_map(|id| {
            let lease = state.leases().get(id)?;
            let limit = limit(state, lease, now)?;
            let unused = self.unused.least((*id, lease), fresh, now)?;
            let is_told = lease.notice().is_some_and(|notice| {
                let is_counted = now.since(notice.given_at) < limit && notice.at > now;
                notice.cause == EndReason::Stalled && is_counted
            });
            let is_due = unused >= limit && !is_told;
            is_due.then_some(Command::DeclareStalled { lease: *id, unused })
        });
        stalled.map(Effect::Propose).collect()
    }
}
