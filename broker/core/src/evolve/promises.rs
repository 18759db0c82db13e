//! What `evolve` does with promised starts: a promise lasts while its request waits, and each of its
//! slices is followed as it comes and goes.

use sublet_protocol::capacity::SliceId;
use sublet_protocol::ids::RequestId;
use sublet_protocol::leases::EndReason;
use sublet_protocol::offers::RescindReason;
use sublet_protocol::requests::PromiseCause;
use sublet_protocol::units::Timestamp;

use crate::fit;
use crate::state::{Promise, State, Whereabouts};

/// A start was promised, in place of what was promised before.
pub(crate) fn made(
    state: &mut State,
    request: RequestId,
    (start, not_before): (Timestamp, Timestamp),
    slices: &[SliceId],
    cause: PromiseCause,
) {
    ended(state, request);
    for slice in slices {
        state.promised.entry(*slice).or_default().insert(request);
    }
    let first = slices.first().and_then(|slice| fit::there(state, *slice));
    let first = first.expect("INV-15: what is promised is offered or leased").capacity;
    let kind = (first.model, first.gpu);
    let slices = slices.iter().map(|slice| (*slice, Whereabouts::There)).collect();
    let (made_at, made_by) = (state.now, state.next_index);
    let promise = Promise { start, not_before, made_at, made_by, cause, kind, slices };
    state.promises.insert(request, promise);
}

/// The request no longer waits for what it was promised.
pub(crate) fn ended(state: &mut State, request: RequestId) {
    let Some(promise) = state.promises.remove(&request) else { return };
    for slice in promise.slices.keys() {
        if let Some(requests) = state.promised.get_mut(slice) {
            requests.remove(&request);
            if requests.is_empty() {
                state.promised.remove(slice);
            }
        }
    }
}

/// Something has happened to a slice that may be promised.
pub(crate) fn stands(state: &mut State, slice: SliceId, standing: Whereabouts) {
    for request in state.promised.get(&slice).into_iter().flatten() {
        let promise = state.promises.get_mut(request);
        if let Some(known) = promise.and_then(|promise| promise.slices.get_mut(&slice)) {
            *known = standing;
        }
    }
}

/// Where a slice stands when the lease that held it is over.
pub(crate) const fn after_lease(reason: EndReason, at: Timestamp) -> Whereabouts {
    match taken_away(reason) {
        Some(cause) => Whereabouts::Lost(cause),
        None => Whereabouts::Missing { since: at },
    }
}

/// Whether a lease that ends for this reason leaves nothing to the next one.
pub(crate) const fn taken_away(reason: EndReason) -> Option<PromiseCause> {
    match reason {
        EndReason::Reclaimed => Some(PromiseCause::OwnerReturned),
        EndReason::AgentLost | EndReason::DeviceFault | EndReason::ForeignUse => {
            Some(PromiseCause::CapacityLost)
        }
        EndReason::Completed
        | EndReason::Released
        | EndReason::Expired
        | EndReason::Preempted
        | EndReason::Revoked
        | EndReason::Budget
        | EndReason::StartFailed
        | EndReason::GuestFailed
        | EndReason::Stalled
        | EndReason::Moved
        | EndReason::RolledBack => None,
    }
}

/// Why a slice does not come when its offer has ended.
pub(crate) const fn after_offer(reason: RescindReason) -> Whereabouts {
    Whereabouts::Lost(match reason {
        RescindReason::Owner | RescindReason::NotIdle => PromiseCause::OwnerReturned,
        RescindReason::ForeignUse
        | RescindReason::DeviceFault
        | RescindReason::Expired
        | RescindReason::AgentLost
        | RescindReason::NewBoot
        | RescindReason::Drain
        | RescindReason::HostConflict
        | RescindReason::PartRefused => PromiseCause::CapacityLost,
    })
}
