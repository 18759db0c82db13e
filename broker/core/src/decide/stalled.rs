//! Leases whose guests use nothing: announced, then ended.
//!
//! The leader counts what agents report and says that every member of a lease has used nothing for so
//! long; that is not in the state and is believed as the silence of an agent is. Judged here is what
//! follows from it: the tenant is told first, and the lease ends only if its guests have used nothing
//! from before it was told until the announced moment.

use sublet_protocol::commands::Actor;
use sublet_protocol::events::Event;
use sublet_protocol::ids::LeaseId;
use sublet_protocol::leases::EndReason;
use sublet_protocol::refusals::Rejection;
use sublet_protocol::units::{Millis, Timestamp};

use super::{Decision, ending, only_leader};
use crate::state::{Lease, LeaseStage, State};

pub(super) fn declare(
    state: &State,
    actor: &Actor,
    id: LeaseId,
    unused: Millis,
    now: Timestamp,
) -> Decision {
    only_leader(actor)?;
    let lease = state.leases.get(&id).ok_or(Rejection::LeaseMissing)?;
    if matches!(lease.stage, LeaseStage::Ending { .. }) {
        return Ok(Vec::new());
    }
    let limit = limit(state, lease, now).ok_or(Rejection::LeaseNotStalled)?;
    if unused < limit {
        return Err(Rejection::LeaseNotStalled);
    }
    let cause = EndReason::Stalled;
    // One that was told longer ago than the limit may have worked since: it is told again.
    let told = lease
        .notice
        .filter(|notice| notice.cause == cause && now.since(notice.given_at) < limit)
        .map(|notice| notice.at);
    Ok(match told {
        Some(at) if at > now => Vec::new(),
        Some(_) => ending::begin(id, lease, cause, now).into_iter().collect(),
        None => {
            let at = now.after(state.policy.end_notice);
            vec![Event::LeaseEndAnnounced { lease: id, cause, at }]
        }
    })
}

/// How long the lease's guests must have used nothing; nothing if they may idle or the lease is not
/// active for that long.
pub(crate) fn limit(state: &State, lease: &Lease, now: Timestamp) -> Option<Millis> {
    let limit = state.policy.stalled_after(lease.terms.class)?.as_millis();
    match lease.stage {
        LeaseStage::Active { since, .. } => (now.since(since) >= limit).then_some(limit),
        LeaseStage::Granted { .. } | LeaseStage::Ending { .. } => None,
    }
}
