//! What quotas keep for requests with a pledge: nobody else may have it until what they wait for is free,
//! and no two of them may count on the same.

use std::collections::{BTreeMap, BTreeSet};

use sublet_protocol::capacity::{Capacity, Part, SliceId};
use sublet_protocol::ids::RequestId;

use crate::fit;
use crate::partition::DeviceRoom;
use crate::quota::Want;
use crate::state::{Request, RequestStage, State};

/// What requests with a pledge will take of quotas once what they wait for is free.
pub(crate) fn kept(state: &State) -> BTreeMap<RequestId, Want> {
    let holders: BTreeSet<RequestId> = state.pledged.values().copied().collect();
    let wants = holders.into_iter().filter_map(|id| Some((id, want(state, id)?)));
    wants.collect()
}

fn want(state: &State, id: RequestId) -> Option<Want> {
    let request = state.requests.get(&id)?;
    let RequestStage::Pledged { slices, .. } = &request.stage else { return None };
    let first = *slices.first()?;
    let Capacity { model, gpu, .. } = capacity(state, id, request, first)?;
    let price = fit::price(state, request, first.cluster, model)?;
    let gpu = gpu.checked_mul(u64::from(request.spec.count))?;
    Some(Want { tenant: request.tenant, model, gpu, price, duration: request.spec.duration })
}

/// What the request would get of a slice that is kept for it: leased still, on offer, or a part of a GPU
/// that is.
fn capacity(state: &State, id: RequestId, request: &Request, slice: SliceId) -> Option<Capacity> {
    if let Some(lease) = state.leased.get(&slice) {
        let members = &state.leases.get(lease)?.terms.members;
        let member = members.iter().find(|member| member.slice == slice)?;
        return Some(fit::recarved(member, &request.spec));
    }
    if let Some(offer) = state.offers.get(&slice) {
        return Some(*offer.capacity());
    }
    let whole = state.offers.get(&SliceId { part: Part::Whole, ..slice })?;
    let kept = DeviceRoom::kept(state, whole.terms());
    let own = kept.iter().find(|kept| kept.request == id && kept.part == slice.part);
    own.map(|kept| kept.capacity)
}
