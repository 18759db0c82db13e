//! Whether a slice meets a request: the hard rules, one place for the judge and for the matcher.

use sublet_protocol::capacity::{Capacity, Isolation, Origin, Part, SliceId};
use sublet_protocol::ids::{ClusterId, GpuModel, LeaseId, TenantId};
use sublet_protocol::leases::Member;
use sublet_protocol::money::Price;
use sublet_protocol::offers::{IdleFor, OfferTerms};
use sublet_protocol::requests::{Class, Placement, RequestSpec, Tier, WaitReason};
use sublet_protocol::units::{GpuMilli, Millis, Seconds, Timestamp};

use crate::matching::index::Kind;
use crate::quota::Charges;
use crate::state::{Offer, Request, State};

/// A slice that might serve a request: offered now, or freed by a victim.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate {
    pub(crate) slice: SliceId,
    /// What the lease would get of it.
    pub(crate) capacity: Capacity,
    pub(crate) origin: Origin,
    /// How long it will stay idle and since when that was said; unknown for what a victim frees.
    pub(crate) idle: Option<(IdleFor, Timestamp)>,
}

impl Candidate {
    /// All that is offered.
    pub(crate) fn of(offer: &Offer) -> Candidate {
        let OfferTerms { slice, capacity, idle_for, .. } = *offer.terms();
        let idle = Some((idle_for, offer.offered_at()));
        Candidate { slice, capacity, origin: Origin::Offered, idle }
    }
}

/// The slice as it is offered or leased now. Of a leased one nobody has said how long it stays idle.
pub(crate) fn there(state: &State, slice: SliceId) -> Option<Candidate> {
    if let Some(offer) = state.offers.get(&slice) {
        return Some(Candidate::of(offer));
    }
    let lease = state.leases.get(state.leased.get(&slice)?)?;
    let member = lease.terms.members.iter().find(|member| member.slice == slice)?;
    Some(Candidate { slice, capacity: member.capacity, origin: member.origin, idle: None })
}

/// The first hard rule that keeps the slice from serving the request; none if it fits.
///
/// Prices, quotas and placement concern a group of slices and are judged there.
pub(crate) fn misfit(
    state: &State,
    spec: &RequestSpec,
    candidate: &Candidate,
    now: Timestamp,
) -> Option<WaitReason> {
    let misfit = kind_misfit(state, spec, candidate.slice.cluster, &candidate.capacity);
    if misfit.is_some() {
        return misfit;
    }
    let node = state.nodes.get(&(candidate.slice.cluster, candidate.slice.node));
    if node.is_some_and(|node| node.is_paused(now)) {
        return Some(WaitReason::Breaker);
    }
    let lasts = candidate.idle.is_none_or(|(idle, said_at)| {
        let left = promised(idle, spec.class.tier())
            .map(|whole| whole.as_millis().saturating_sub(now.since(said_at)));
        left.is_none_or(|left| left >= needed(spec))
    });
    if lasts { None } else { Some(WaitReason::Duration) }
}

/// As [`misfit`], as far as it holds for every slice of a kind at any time.
fn kind_misfit(
    state: &State,
    spec: &RequestSpec,
    cluster: ClusterId,
    capacity: &Capacity,
) -> Option<WaitReason> {
    if !spec.models.is_empty() && !spec.models.contains(&capacity.model) {
        return Some(WaitReason::Model);
    }
    let region = state.clusters.get(&cluster).map(|cluster| cluster.region);
    if !spec.regions.is_empty() && region.is_none_or(|region| !spec.regions.contains(&region)) {
        return Some(WaitReason::Region);
    }
    if !is_isolation_allowed(spec.class, capacity.isolation) {
        return Some(WaitReason::Isolation);
    }
    if !spec.capability.is_met_by(&capacity.hardware) {
        return Some(WaitReason::Capability);
    }
    if capacity.gpu < spec.gpu || capacity.memory < spec.memory {
        return Some(WaitReason::Memory);
    }
    if capacity.cpu < spec.cpu || capacity.host_memory < spec.host_memory {
        return Some(WaitReason::Host);
    }
    None
}

/// Whether what a slice holds serves the request in this cluster, however long it lasts.
pub(crate) fn fits_kind(
    state: &State,
    spec: &RequestSpec,
    cluster: ClusterId,
    capacity: &Capacity,
) -> bool {
    kind_misfit(state, spec, cluster, capacity).is_none()
}

/// Whether slices of a kind could serve the request if they last long enough. What this refuses,
/// [`misfit`] refuses for as long as the cluster's terms stand.
pub(crate) fn could_serve(state: &State, spec: &RequestSpec, kind: &Kind) -> bool {
    kind_misfit(state, spec, kind.cluster, &kind.capacity).is_none()
}

/// The longest idle time that any tier may rely on.
pub(crate) fn longest_promise(idle: IdleFor) -> Millis {
    let tiers = [Tier::Opportunistic, Tier::Standard, Tier::Reserved];
    let promises = tiers.into_iter().filter_map(|tier| promised(idle, tier));
    promises.max().unwrap_or(Seconds::ZERO).as_millis()
}

/// How long a slice must be promised to last for the request; nothing if it takes any.
pub(crate) fn wanted_promise(spec: &RequestSpec, needed: Millis) -> Option<Millis> {
    let any = IdleFor { p10: Seconds::ZERO, p50: Seconds::ZERO, p90: Seconds::ZERO };
    promised(any, spec.class.tier()).map(|_| needed)
}

/// Latency-critical work and training get hardware of their own; the rest takes any kind.
pub(crate) const fn is_isolation_allowed(class: Class, isolation: Isolation) -> bool {
    match (class, isolation) {
        (_, Isolation::Exclusive | Isolation::Mig) | (Class::Batch | Class::Experiment, _) => true,
        (Class::Latency | Class::Training, Isolation::Mps | Isolation::TimeSlice) => false,
    }
}

/// How much idle time a tier may rely on. The lowest takes any: it is the first to go.
pub(crate) const fn promised(idle: IdleFor, tier: Tier) -> Option<Seconds> {
    match tier {
        Tier::Reserved => Some(idle.p10),
        Tier::Standard => Some(idle.p50),
        Tier::Opportunistic => None,
    }
}

/// How long the request will really run: predicted if it was asked, else as declared.
pub(crate) fn needed(spec: &RequestSpec) -> Millis {
    let declared = spec.duration;
    let predicted = spec.prediction.map_or(declared, |prediction| prediction.duration_q50);
    predicted.min(declared).as_millis()
}

/// Whether the slices are in one cluster, and on one node or island if that was asked.
pub(crate) fn stand_as_asked(placement: Placement, slices: &[Candidate]) -> bool {
    let Some(first) = slices.first() else { return false };
    slices.iter().all(|other| {
        let (a, b) = (&first.slice, &other.slice);
        let same_node = a.cluster == b.cluster && a.node == b.node;
        match placement {
            Placement::Cluster => a.cluster == b.cluster,
            Placement::Node => same_node,
            Placement::Island => same_node && first.capacity.island == other.capacity.island,
        }
    })
}

/// How much more of `model` may be granted to the tenant: by its own quota, by what its groups can
/// lend it and by how much it may borrow.
pub(crate) fn quota_left(state: &State, tenant: TenantId, model: GpuModel) -> GpuMilli {
    state.tree.room(tenant, model, Charges::EMPTY)
}

/// The posted price of a cluster's model for the request, if it is allowed.
pub(crate) fn price(
    state: &State,
    request: &Request,
    cluster: ClusterId,
    model: GpuModel,
) -> Option<Price> {
    let owner = state.clusters.get(&cluster)?.owner;
    let price = state.prices.get(&(owner, model, request.spec.class.tier())).copied()?;
    let is_allowed = request.spec.max_price.is_none_or(|cap| price.per_gpu_hour <= cap);
    is_allowed.then_some(price)
}

/// What a request would get of a victim's slice: a share is carved anew to what is asked.
pub(crate) fn recarved(member: &Member, spec: &RequestSpec) -> Capacity {
    let given = member.capacity;
    match (member.origin, member.slice.part) {
        (Origin::Carved, Part::Share { .. }) => Capacity { gpu: given.gpu.min(spec.gpu), ..given },
        (Origin::Carved | Origin::Offered, _) => given,
    }
}

/// The slices of a lease that would serve the request once it is gone, and are kept for nobody.
pub(crate) fn freed_by(
    state: &State,
    lease: LeaseId,
    spec: &RequestSpec,
    now: Timestamp,
) -> Vec<Candidate> {
    let members = state.leases.get(&lease).map_or(&[][..], |lease| &lease.terms.members);
    members
        .iter()
        .map(|member| Candidate {
            slice: member.slice,
            capacity: recarved(member, spec),
            origin: member.origin,
            idle: None,
        })
        .filter(|candidate| !state.pledged.contains_key(&candidate.slice))
        .filter(|candidate| misfit(state, spec, candidate, now).is_none())
        .collect()
}
