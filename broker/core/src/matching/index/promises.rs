//! What waiting requests were promised, and when all of it is there: reckoned anew when something has
//! happened on one of the nodes it lies on.

use std::collections::{BTreeMap, BTreeSet};

use sublet_protocol::capacity::{Part, SliceId};
use sublet_protocol::ids::{ClusterId, NodeId, RequestId, TenantId};
use sublet_protocol::requests::Tier;
use sublet_protocol::units::Timestamp;

use crate::matching::reserve::{Devices, all_there_at, device};
use crate::state::State;

#[derive(Debug, Clone)]
struct Promised {
    /// Its tenant and tier, if it is still known.
    whose: Option<(TenantId, Tier)>,
    /// Whether the request rests until then.
    rests: bool,
    slices: Vec<SliceId>,
    /// The numbers of their GPUs.
    places: Vec<(u32, Part)>,
    /// When all slices are free, if they are there and nothing else keeps the request from them.
    there_at: Option<Timestamp>,
}

/// See the module.
#[derive(Debug, Clone, Default)]
pub(crate) struct Promises {
    entries: BTreeMap<RequestId, Promised>,
    by_node: BTreeMap<(ClusterId, NodeId), BTreeSet<RequestId>>,
    devices: Devices,
    stale: BTreeSet<RequestId>,
}

impl Promises {
    /// The request was promised these slices. It must have no promise.
    pub(super) fn add(&mut self, state: &State, request: RequestId, slices: &[SliceId]) {
        let entry = state.requests.get(&request);
        let whose = entry.map(|request| (request.tenant, request.spec.class.tier()));
        let mut places = Vec::with_capacity(slices.len());
        for slice in slices {
            places.push((self.devices.take(device(slice)), slice.part));
            self.by_node.entry((slice.cluster, slice.node)).or_default().insert(request);
        }
        let rests = entry.is_some_and(|entry| state.rests(request, entry));
        let slices = slices.to_vec();
        self.stale.insert(request);
        self.entries.insert(request, Promised { whose, rests, slices, places, there_at: None });
    }

    /// What the request was promised is not kept any more: whose it was, and the slices.
    #[allow(clippy::type_complexity, reason = "a tenant with its tier, if known, and slices")]
    pub(super) fn remove(
        &mut self,
        request: RequestId,
    ) -> Option<(Option<(TenantId, Tier)>, Vec<SliceId>)> {
        let Promised { whose, slices, .. } = self.entries.remove(&request)?;
        self.stale.remove(&request);
        for slice in &slices {
            self.devices.give_back(&device(slice));
            let node = (slice.cluster, slice.node);
            if let Some(here) = self.by_node.get_mut(&node) {
                here.remove(&request);
                if here.is_empty() {
                    self.by_node.remove(&node);
                }
            }
        }
        Some((whose, slices))
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// How many there are in a tier, of requests that do not rest.
    pub(super) fn count_of(&self, tier: Tier) -> usize {
        let restless = self.entries.values().filter(|promised| !promised.rests);
        let whose = restless.filter_map(|promised| promised.whose);
        whose.filter(|(_, of)| *of == tier).count()
    }

    /// What the request was promised.
    pub(super) fn slices(&self, request: RequestId) -> &[SliceId] {
        self.entries.get(&request).map_or(&[], |promised| &promised.slices)
    }

    /// Something has happened on a node.
    pub(super) fn touched(&mut self, node: &(ClusterId, NodeId)) {
        self.stale.extend(self.by_node.get(node).into_iter().flatten());
    }

    /// Reckons anew what was touched since the last time.
    pub(super) fn refresh(&mut self, state: &State) {
        for id in std::mem::take(&mut self.stale) {
            let Some(entry) = self.entries.get_mut(&id) else { continue };
            let known = state.requests.get(&id).zip(state.promises.get(&id));
            entry.there_at =
                known.and_then(|(request, promise)| all_there_at(state, request, promise));
        }
    }

    /// When all that the request was promised is free, if that is known whatever the time, and where
    /// that is.
    pub(crate) fn there_at(&self, request: RequestId) -> Option<(Timestamp, &[(u32, Part)])> {
        let entry = self.entries.get(&request)?;
        Some((entry.there_at?, &entry.places))
    }

    /// The numbers of GPUs that are promised.
    pub(crate) const fn devices(&self) -> &Devices {
        &self.devices
    }
}
