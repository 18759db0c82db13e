//! Who came first: a group of a plan that finds taken what it counted on is told by which record.

use sublet_protocol::capacity::{Part, SliceId};
use sublet_protocol::commands::PlanGroup;
use sublet_protocol::ids::{LeaseId, RequestId};
use sublet_protocol::refusals::Rejection;

use crate::state::{RequestStage, State};

/// The journal index of the record that overtook the group: the grant or pledge that its request has
/// already, or the latest by which another has a slice, or a victim, that it names.
///
/// Nothing if it was refused for another reason, or if what overtook it is over already: the state keeps
/// what is live. It is a function of the state, so every replica and every replay says the same.
pub(crate) fn overtaken(state: &State, group: &PlanGroup, rejection: Rejection) -> Option<u64> {
    let id = group.request();
    match rejection {
        Rejection::RequestNotWaiting => served_by(state, id),
        Rejection::OfferMissing
        | Rejection::OfferOld
        | Rejection::SlicePledged
        | Rejection::DeviceTaken
        | Rejection::VictimProtected => {
            let (named, victims) = named(state, group);
            named.into_iter().filter_map(|slice| taken_by(state, (id, victims), slice)).max()
        }
        _other => None,
    }
}

/// By which record the request has what it waited for, or is having it freed.
fn served_by(state: &State, id: RequestId) -> Option<u64> {
    match &state.requests.get(&id)?.stage {
        RequestStage::Waiting => None,
        RequestStage::Pledged { by, .. } => Some(*by),
        RequestStage::Granted { lease } => state.leases.get(lease).map(|lease| lease.granted_by),
    }
}

/// By which record the slice, or a part of the same hardware, is another's; that it is a victim's was known.
fn taken_by(state: &State, (id, victims): (RequestId, &[LeaseId]), slice: SliceId) -> Option<u64> {
    let device = SliceId { part: Part::Whole, ..slice };
    let on_device = |other: &SliceId| SliceId { part: Part::Whole, ..*other } == device;
    let leased = state.leased.range(device..).take_while(|(other, _)| on_device(other));
    let leased = leased.filter(|(other, _)| other.part.overlaps(slice.part));
    let granted = leased.filter_map(|(_, lease)| {
        let entry = state.leases.get(lease).filter(|_| !victims.contains(lease))?;
        (entry.terms.request != id).then_some(entry.granted_by)
    });
    let pledged = state.pledged.range(device..).take_while(|(other, _)| on_device(other));
    let pledged = pledged.filter(|(other, _)| other.part.overlaps(slice.part));
    let pledged = pledged.filter(|(_, holder)| **holder != id);
    granted.chain(pledged.filter_map(|(_, holder)| served_by(state, *holder))).max()
}

/// What the group names of the hardware, and whose leases it means to end.
fn named<'g>(state: &State, group: &'g PlanGroup) -> (Vec<SliceId>, &'g [LeaseId]) {
    match group {
        PlanGroup::Grant { members, .. } => {
            (members.iter().map(|member| member.slice).collect(), &[])
        }
        PlanGroup::Preempt { victims, freed, members, .. } => {
            let leases = victims.iter().filter_map(|victim| state.leases.get(victim));
            let theirs = leases.flat_map(|lease| &lease.terms.members).map(|member| member.slice);
            let given = members.iter().map(|member| member.slice);
            (theirs.chain(given).chain(freed.iter().copied()).collect(), victims)
        }
        PlanGroup::Promise { slices, .. } => (slices.clone(), &[]),
        PlanGroup::Withdraw { .. } => (Vec::new(), &[]),
    }
}
