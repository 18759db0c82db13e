//! Where a request is placed: what the free slots could give it, what that costs, and which it takes.
//!
//! Of all ways to serve it the one is taken that, in this order: shares a GPU if the request is an
//! experiment; fragments the nodes least (`score`); rests on the longest promise of idleness; is the
//! cheapest; has the smallest slice id.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use sublet_protocol::capacity::{Isolation, Origin, Part, SliceId};
use sublet_protocol::commands::PlanMember;
use sublet_protocol::ids::{ClusterId, GpuModel, NodeId, RequestId};
use sublet_protocol::money::Price;
use sublet_protocol::offers::HostRoom;
use sublet_protocol::requests::{Class, Placement, RequestSpec, WaitReason};
use sublet_protocol::units::GpuMilli;

use super::problem::{NodeSlots, Problem, Slot};
use super::reserve::Claim;
use super::score::{self, Rank};
use super::solve::{Spent, want};
use crate::fit::{self, Candidate};
use crate::partition;
use crate::quota::Want;
use crate::state::Request;

/// What one slot would give a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seat {
    /// Its place on the node.
    pub(super) slot: usize,
    /// All of the slot, or a part carved out of it.
    pub(super) candidate: Candidate,
}

/// Seats of one node, by the node's place in the problem.
pub(super) type Group = (usize, Vec<Seat>);

/// The seats chosen for a request.
#[derive(Debug, Clone)]
pub(super) struct Pick {
    pub(super) cluster: ClusterId,
    pub(super) model: GpuModel,
    pub(super) price: Price,
    pub(super) total: GpuMilli,
    seats: Vec<(usize, Seat)>,
}

/// A place in the fleet: a cluster's GPUs of a model, all of them or those of one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Site {
    pub(super) cluster: ClusterId,
    pub(super) model: GpuModel,
    pub(super) node: Option<NodeId>,
}

impl Site {
    /// Whether slots of this model on the node belong to it.
    pub(super) fn holds(&self, (cluster, node): (ClusterId, NodeId), model: GpuModel) -> bool {
        self.cluster == cluster && self.model == model && self.node.is_none_or(|only| only == node)
    }
}

/// Where a placement is looked for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Within<'a> {
    /// Everywhere.
    All,
    /// In a part of the fleet, while grants of this plan are moved aside.
    Site {
        /// There only.
        only: Site,
        /// But not there.
        off: &'a [Site],
        /// What the request holds already, if it is moved: it pays no more than that, and gets in
        /// the way of nobody's reservation.
        given: Option<&'a Want>,
    },
}

impl Within<'_> {
    /// The nodes that may be looked at.
    pub(super) fn nodes(&self, nodes: &[NodeSlots]) -> Range<usize> {
        let Within::Site { only: Site { cluster, node, .. }, .. } = *self else {
            return 0..nodes.len();
        };
        let is_before = |at: &NodeSlots| match node {
            Some(node) => (at.cluster, at.node) < (cluster, node),
            None => at.cluster < cluster,
        };
        let is_in = |at: &NodeSlots| at.cluster == cluster && node.is_none_or(|n| n == at.node);
        let first = nodes.partition_point(is_before);
        let count = nodes[first..].iter().take_while(|at| is_in(at)).count();
        first..first + count
    }

    fn allows(&self, node: &NodeSlots, model: GpuModel) -> bool {
        match self {
            Within::All => true,
            Within::Site { only, off, .. } => {
                let name = (node.cluster, node.node);
                only.model == model && !off.iter().any(|site| site.holds(name, model))
            }
        }
    }

    const fn given(&self) -> Option<&Want> {
        match self {
            Within::All => None,
            Within::Site { given, .. } => *given,
        }
    }
}

impl Pick {
    /// Whether all seats are whole offers, which can be given back.
    pub(super) fn is_whole(&self) -> bool {
        self.seats.iter().all(|(_, seat)| seat.candidate.origin == Origin::Offered)
    }

    /// What each seat gives, and on which node.
    pub(super) fn seats(&self) -> impl Iterator<Item = &Candidate> + '_ {
        self.seats.iter().map(|(_, seat)| &seat.candidate)
    }

    /// The slices, as a plan names them.
    pub(super) fn members(&self, nodes: &[NodeSlots]) -> Vec<PlanMember> {
        let members = self.seats.iter().map(|(node, seat)| {
            let generation = nodes[*node].slots[seat.slot].generation;
            PlanMember { slice: seat.candidate.slice, generation }
        });
        members.collect()
    }

    /// Takes the seats out of the problem.
    pub(super) fn take(self, nodes: &mut [NodeSlots]) -> Vec<PlanMember> {
        let members = self.seats.iter().map(|(node, seat)| {
            let node = &mut nodes[*node];
            let capacity = &seat.candidate.capacity;
            node.host.add(capacity.cpu, capacity.host_memory);
            let slot = &mut node.slots[seat.slot];
            match (seat.candidate.origin, &mut slot.divided) {
                (Origin::Carved, Some(divided)) => {
                    divided.room.take(seat.candidate.slice.part, capacity);
                }
                (Origin::Carved | Origin::Offered, _) => slot.is_taken = true,
            }
            PlanMember { slice: seat.candidate.slice, generation: slot.generation }
        });
        members.collect()
    }
}

/// Fitting seats that are alike: one cluster, model and size; by node. A slot has at most one seat in
/// each.
pub(super) type Alike = BTreeMap<(ClusterId, GpuModel, GpuMilli), Vec<Group>>;

/// What a slot could give the request, whether or not it fits: all of it, or parts of a GPU that may be
/// divided. Nothing if it is taken or kept for another.
pub(super) fn candidates(
    problem: &Problem<'_>,
    (node, slot): (&NodeSlots, &Slot),
    id: RequestId,
    spec: &RequestSpec,
) -> Vec<Candidate> {
    let offered = slot.candidate;
    if slot.is_taken {
        return Vec::new();
    }
    let Some(divided) = &slot.divided else {
        let is_kept = slot.kept_for.is_some_and(|other| other != id);
        let given = offered.hosted(slot.host, node.host, spec);
        return if is_kept { Vec::new() } else { vec![given] };
    };
    let Some(offer) = problem.view.state.offers.get(&offered.slice) else { return Vec::new() };
    let terms = offer.terms();
    let room = divided.room.with_kept(&divided.kept, id);
    let own = divided.kept.iter().find(|kept| kept.request == id).map(|kept| kept.part);
    let parts = own.map_or_else(|| room.parts(terms, spec), |own| vec![own]);
    let carved = parts.into_iter().filter_map(|part| {
        let capacity = partition::carve(terms, &room, part, spec).ok()?;
        let origin = if part == Part::Whole { Origin::Offered } else { Origin::Carved };
        let slice = SliceId { part, ..offered.slice };
        Some(Candidate { slice, capacity, origin, ..offered }.hosted(slot.host, node.host, spec))
    });
    carved.collect()
}

/// Whether nobody before the claim has reserved what it would keep; what is pledged to it is its own.
fn allows(problem: &Problem<'_>, slot: &Slot, slice: SliceId, claim: &Claim) -> bool {
    let state = problem.view.state;
    let is_pledged = state.pledged.get(&slice).is_some_and(|owner| claim.is_of(*owner));
    is_pledged
        || slot.kept_for.is_some_and(|owner| claim.is_of(owner))
        || problem.reservations.allows(slice, claim)
}

/// Why a slot does not serve the request; nothing if it does.
pub(super) fn obstacle(
    problem: &Problem<'_>,
    place: (&NodeSlots, &Slot),
    id: RequestId,
    spec: &RequestSpec,
) -> Option<WaitReason> {
    let (state, now) = (problem.view.state, problem.view.now);
    let (_, slot) = place;
    if slot.divided.is_none() && slot.kept_for.is_some_and(|other| other != id) {
        return fit::misfit(state, spec, &slot.candidate, now).or(Some(WaitReason::Reservation));
    }
    let parts = candidates(problem, place, id, spec);
    let claim = Claim::of(problem.view, id, spec);
    let mut reasons = parts.iter().map(|part| {
        let reserved =
            || (!allows(problem, slot, part.slice, &claim)).then_some(WaitReason::Reservation);
        fit::misfit(state, spec, part, now).or_else(reserved)
    });
    match reasons.next() {
        Some(first) if reasons.all(|reason| reason.is_some()) => first,
        Some(_) => None,
        // No part can be carved: if even the whole would not fit, that is why.
        None => fit::misfit(state, spec, &slot.candidate, now).or(Some(WaitReason::NoCapacity)),
    }
}

/// Slices that would fit the request and are free, but reserved for others.
pub(super) fn reserved(problem: &Problem<'_>, id: RequestId, spec: &RequestSpec) -> Vec<Candidate> {
    let (state, now) = (problem.view.state, problem.view.now);
    let claim = Claim::of(problem.view, id, spec);
    let slots = problem.nodes.iter().flat_map(|node| node.slots.iter().map(move |s| (node, s)));
    let mut found = Vec::new();
    for (node, slot) in slots {
        let given = candidates(problem, (node, slot), id, spec).into_iter();
        let fits = |one: &Candidate| fit::misfit(state, spec, one, now).is_none();
        found.extend(given.filter(fits).find(|one| !allows(problem, slot, one.slice, &claim)));
    }
    found
}

/// The request's fitting seats, grouped as a grant must be.
pub(super) fn fitting(problem: &Problem<'_>, id: RequestId, request: &Request) -> Alike {
    fitting_within(problem, (id, request), Within::All, 1)
}

/// As [`fitting`], of a part of the fleet, and without nodes of fewer than `least` slots.
fn fitting_within(
    problem: &Problem<'_>,
    (id, request): (RequestId, &Request),
    within: Within<'_>,
    least: usize,
) -> Alike {
    let (state, now) = (problem.view.state, problem.view.now);
    let spec = &request.spec;
    let mut alike = Alike::new();
    let claim = Claim::of(problem.view, id, &request.spec);
    let claim = if within.given().is_some() { claim.behind_all() } else { claim };
    let nodes = within.nodes(&problem.nodes).map(|ordinal| (ordinal, &problem.nodes[ordinal]));
    let is_open = |node: &NodeSlots| !problem.closed.contains(&(node.cluster, node.node));
    let nodes = nodes.filter(|(_, node)| node.slots.len() >= least && is_open(node));
    for (ordinal, node) in nodes {
        for (place, slot) in node.slots.iter().enumerate() {
            let model = slot.candidate.capacity.model;
            let is_wanted = spec.models.is_empty() || spec.models.contains(&model);
            if !is_wanted || !within.allows(node, model) {
                continue;
            }
            for candidate in candidates(problem, (node, slot), id, spec) {
                if fit::misfit(state, spec, &candidate, now).is_some() {
                    continue;
                }
                // What others have reserved it must give back in time.
                if !allows(problem, slot, candidate.slice, &claim) {
                    continue;
                }
                let capacity = candidate.capacity;
                let groups = alike.entry((node.cluster, capacity.model, capacity.gpu)).or_default();
                add(groups, ordinal, Seat { slot: place, candidate }, spec.class);
            }
        }
    }
    for groups in alike.values_mut() {
        for (node, seats) in groups.iter_mut() {
            limit_to_host(&problem.nodes[*node], seats, spec);
        }
        groups.retain(|(_, seats)| !seats.is_empty());
    }
    alike
}

/// Adds a seat to its node; of two seats of one slot the one is kept that the class prefers.
fn add(groups: &mut Vec<Group>, node: usize, seat: Seat, class: Class) {
    if groups.last().is_none_or(|(last, _)| *last != node) {
        groups.push((node, Vec::new()));
    }
    let Some((_, seats)) = groups.last_mut() else { return };
    let isolation = |seat: &Seat| seat.candidate.capacity.isolation;
    match seats.last_mut() {
        Some(last) if last.slot == seat.slot => {
            if preference(class, isolation(&seat)) < preference(class, isolation(last)) {
                *last = seat;
            }
        }
        Some(_) | None => seats.push(seat),
    }
}

/// No more seats than the node's host has room for, where they share it.
fn limit_to_host(node: &NodeSlots, seats: &mut Vec<Seat>, spec: &RequestSpec) {
    let shared = seats.iter().filter(|seat| node.slots[seat.slot].host == HostRoom::Node);
    let room = shared
        .map(|seat| {
            let whole = &node.slots[seat.slot].candidate.capacity;
            partition::host_seats(whole, node.host, spec)
        })
        .min();
    seats.truncate(room.unwrap_or(usize::MAX));
}

/// Experiments share a GPU first; nobody else minds.
const fn preference(class: Class, isolation: Isolation) -> u8 {
    match (class, isolation) {
        (Class::Experiment, Isolation::Mps | Isolation::TimeSlice) => 0,
        (Class::Experiment, Isolation::Mig) => 1,
        (Class::Experiment, Isolation::Exclusive) => 2,
        (Class::Latency | Class::Training | Class::Batch, _) => 0,
    }
}

/// The best way to serve the request now, as the module says; nothing if there is none.
pub(super) fn pick(
    problem: &Problem<'_>,
    spent: &Spent,
    id: RequestId,
    request: &Request,
) -> Option<Pick> {
    pick_within(problem, spent, (id, request), Within::All).map(|(_, pick)| pick)
}

/// As [`pick()`], of a part of the fleet, with its rank.
pub(super) fn pick_within(
    problem: &Problem<'_>,
    spent: &Spent,
    (id, request): (RequestId, &Request),
    within: Within<'_>,
) -> Option<(Rank, Pick)> {
    let state = problem.view.state;
    let count = usize::try_from(request.spec.count).ok()?;
    let mut best: Option<(Rank, Pick)> = None;
    let mut scores = score::Scores::new(problem, &request.spec);
    // Each slot gives at most one seat.
    let least = match request.spec.placement {
        Placement::Cluster => 1,
        Placement::Node | Placement::Island => count,
    };
    for ((cluster, model, gpu), groups) in fitting_within(problem, (id, request), within, least) {
        let Some(price) = fit::price(state, request, cluster, model) else { continue };
        let total = gpu.checked_mul(u64::from(request.spec.count))?;
        let given = within.given();
        if given.is_some_and(|given| price.per_gpu_hour > given.price.per_gpu_hour) {
            continue;
        }
        // Who is moved and gets as much of the same has its quota and its budget already.
        if given.is_none_or(|given| (given.model, given.gpu) != (model, total)) {
            let wanted = want(request, model, total, price);
            if spent.obstacle(problem.view, &wanted).is_some() {
                continue;
            }
            if !problem.reservations.leaves_quota(spent, (id, request), model, total) {
                continue;
            }
        }
        let cost = i128::from(price.per_gpu_hour.get()) * i128::from(total.get());
        for seats in choices(problem, request.spec.placement, groups, count) {
            let isolation = seats.first().map(|(_, seat)| seat.candidate.capacity.isolation);
            let preference = isolation.map_or(0, |kind| preference(request.spec.class, kind));
            let rank = scores.rank(preference, &seats, cost);
            if best.as_ref().is_none_or(|(known, _)| rank < *known) {
                best = Some((rank, Pick { cluster, model, price, total, seats }));
            }
        }
    }
    best
}

/// Every set of `count` seats worth a look: on each node (or island) with room one for a gang and each
/// seat for a single; over several nodes only if no node has room and that is allowed.
fn choices(
    problem: &Problem<'_>,
    placement: Placement,
    groups: Vec<Group>,
    count: usize,
) -> Vec<Vec<(usize, Seat)>> {
    let groups = match placement {
        Placement::Cluster | Placement::Node => groups,
        Placement::Island => by_island(&groups),
    };
    let mut choices = Vec::new();
    for (node, seats) in groups.iter().filter(|(_, seats)| seats.len() >= count) {
        if count == 1 {
            choices.extend(distinct(problem, *node, seats).map(|seat| vec![(*node, seat)]));
        } else {
            let chosen = arranged(seats, count);
            choices.push(chosen.into_iter().map(|seat| (*node, seat)).collect());
        }
    }
    if choices.is_empty() && placement == Placement::Cluster {
        choices.extend(spread(groups, count));
    }
    choices
}

/// One seat of each kind: those of whole GPUs of one node that promise the same are alike.
fn distinct<'a>(
    problem: &'a Problem<'_>,
    node: usize,
    seats: &'a [Seat],
) -> impl Iterator<Item = Seat> + 'a {
    let mut seen = BTreeSet::new();
    seats.iter().copied().filter(move |seat| {
        let slot = &problem.nodes[node].slots[seat.slot];
        let is_plain = slot.divided.as_ref().is_none_or(|divided| divided.is_untouched());
        let idle = score::promise(problem, &seat.candidate);
        let capacity = &seat.candidate.capacity;
        !is_plain || seen.insert((idle, capacity.isolation, capacity.memory, capacity.island))
    })
}

/// `count` seats that break up the fewest islands: all on the smallest that has room, else the largest
/// islands first.
fn arranged(seats: &[Seat], count: usize) -> Vec<Seat> {
    let mut islands: BTreeMap<u16, Vec<Seat>> = BTreeMap::new();
    for seat in seats {
        islands.entry(seat.candidate.capacity.island).or_default().push(*seat);
    }
    let roomy = islands.values().filter(|seats| seats.len() >= count).min_by_key(|s| s.len());
    if let Some(seats) = roomy {
        return seats[..count].to_vec();
    }
    let mut islands: Vec<Vec<Seat>> = islands.into_values().collect();
    islands.sort_by_key(|seats| Reverse(seats.len()));
    islands.into_iter().flatten().take(count).collect()
}

fn by_island(groups: &[Group]) -> Vec<Group> {
    let mut islands: BTreeMap<(usize, u16), Vec<Seat>> = BTreeMap::new();
    for (node, seats) in groups {
        for seat in seats {
            islands.entry((*node, seat.candidate.capacity.island)).or_default().push(*seat);
        }
    }
    islands.into_iter().map(|((node, _), seats)| (node, seats)).collect()
}

/// No single node has room: the fullest nodes whole, the rest where it fits best.
fn spread(mut groups: Vec<Group>, count: usize) -> Option<Vec<(usize, Seat)>> {
    groups.sort_by_key(|(node, seats)| (Reverse(seats.len()), *node));
    let mut chosen = Vec::with_capacity(count);
    let mut rest = groups.as_slice();
    while chosen.len() < count {
        let wanted = count - chosen.len();
        let best = rest.iter().rposition(|(_, seats)| seats.len() >= wanted);
        let (node, seats) = match best {
            Some(last) => &rest[last],
            None => rest.first()?,
        };
        chosen.extend(seats.iter().take(wanted).map(|seat| (*node, *seat)));
        if best.is_some() {
            return Some(chosen);
        }
        rest = &rest[1..];
    }
    Some(chosen)
}
