//! Victims for a request that finds no room: only leases that the rules let it end, in their order,
//! as few as that order allows. Whom the plan picks, it needs.
//!
//! One request's victims are all at one site, so it ends leases in one cluster only.

use std::collections::{BTreeMap, BTreeSet};

use sublet_protocol::capacity::SliceId;
use sublet_protocol::commands::{PlanGroup, PlanMember};
use sublet_protocol::ids::{ClusterId, GpuModel, LeaseId, NodeId, RequestId};
use sublet_protocol::leases::EndReason;
use sublet_protocol::requests::Placement;
use sublet_protocol::units::GpuMilli;

use super::place::{self, fitting, price};
use super::problem::Problem;
use super::reserve::Claim;
use super::solve::{Spent, want};
use crate::fit::{self, Candidate};
use crate::mutation::Mutation;
use crate::preemption::{self, Order, Place};
use crate::quota::{Charges, Want};
use crate::reclaim::{self, After, Claimant};
use crate::state::{Lease, LeaseStage, Request, RequestStage, State, StateView};

/// Slices that can serve one request together: alike, and as close as asked.
type Site = (ClusterId, GpuModel, GpuMilli, Option<NodeId>, Option<u16>);

fn site(placement: Placement, candidate: &Candidate) -> Site {
    let (slice, capacity) = (&candidate.slice, &candidate.capacity);
    let node = match placement {
        Placement::Cluster => None,
        Placement::Node | Placement::Island => Some(slice.node),
    };
    let island = match placement {
        Placement::Cluster | Placement::Node => None,
        Placement::Island => Some(capacity.island),
    };
    (slice.cluster, capacity.model, capacity.gpu, node, island)
}

/// A lease that may be ended, and what of it the request could use.
#[derive(Debug, Clone)]
struct Victim {
    lease: LeaseId,
    place: Place,
    slices: Vec<SliceId>,
}

/// What a site could give: free slots, and victims in the order in which they go.
#[derive(Debug, Default)]
struct Room {
    free: Vec<PlanMember>,
    victims: Vec<Victim>,
    /// Free slots that others have reserved.
    reserved: usize,
}

/// Who ends, what of theirs is used, and which free slots are used besides.
#[derive(Debug)]
struct Choice {
    victims: Vec<Victim>,
    freed: Vec<SliceId>,
    members: Vec<PlanMember>,
}

impl Choice {
    /// How much it hurts: the dearest kind of victim first, then how many go, then what is lost.
    fn harm(
        &self,
        is_blind: bool,
    ) -> (Option<(bool, sublet_protocol::requests::Tier)>, usize, u64) {
        let seen = self.victims.iter().filter(|_| !is_blind);
        let dearest = seen.map(|victim| victim.place.kind).max();
        let lost = self.victims.iter().fold(0, |sum: u64, one| sum.saturating_add(one.place.loss));
        (dearest, self.victims.len(), lost)
    }
}

/// Why no lease is ended for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hindrance {
    /// There is nobody to end, or not enough.
    Victims,
    /// There are enough, but together they would give back more than was lent.
    Lent,
    /// There is, but too many were preempted in the last hour.
    Budget,
}

/// Frees room for the request in the plan; nothing if that cannot be done now.
pub(super) fn preempt(
    problem: &mut Problem<'_>,
    spent: &mut Spent,
    id: RequestId,
    request: &Request,
) -> Option<PlanGroup> {
    let chosen = choose(problem, spent, id, request);
    spent.is_over_budget |= matches!(chosen, Err(Hindrance::Budget));
    spent.is_over_lent = matches!(chosen, Err(Hindrance::Lent));
    let (want, Choice { victims, freed, members }) = chosen.ok()?;
    let victims: Vec<LeaseId> = victims.into_iter().map(|victim| victim.lease).collect();
    spent.doomed.extend(victims.iter().copied());
    // What is freed is not held yet, but two pledges must not count on the same quota.
    spent.give(problem.view.state, &want);
    for slot in problem.nodes.iter_mut().flat_map(|node| &mut node.slots) {
        slot.is_taken |= members.iter().any(|member| member.slice == slot.candidate.slice);
    }
    Some(PlanGroup::Preempt { request: id, victims, freed, members })
}

/// Whether only the budget keeps leases from being ended for the request.
pub(super) fn is_over_budget(
    problem: &Problem<'_>,
    spent: &Spent,
    id: RequestId,
    request: &Request,
) -> bool {
    let is_pledged = !matches!(request.stage, RequestStage::Waiting);
    let chosen = choose(problem, spent, id, request);
    !is_pledged && matches!(chosen, Err(Hindrance::Budget))
}

/// What requests with a pledge will take of quotas once what they wait for is free.
pub(super) fn kept(view: StateView<'_>) -> BTreeMap<RequestId, Want> {
    let state = view.state;
    let holders: BTreeSet<RequestId> = state.pledged.values().copied().collect();
    let wants = holders.into_iter().filter_map(|id| {
        let request = state.requests.get(&id)?;
        let RequestStage::Pledged { slices, .. } = &request.stage else { return None };
        let first = slices.first()?;
        let cluster = first.cluster;
        let capacity = match state.leased.get(first) {
            Some(lease) => {
                let members = &state.leases.get(lease)?.terms.members;
                members.iter().find(|member| member.slice == *first)?.capacity
            }
            None => *state.offers.get(first)?.capacity(),
        };
        let total = capacity.gpu.checked_mul(u64::from(request.spec.count))?;
        let price = price(state, request, cluster, capacity.model)?;
        Some((id, want(request, capacity.model, total, price)))
    });
    wants.collect()
}

/// The site that gives room with the least harm.
fn choose(
    problem: &Problem<'_>,
    spent: &Spent,
    id: RequestId,
    request: &Request,
) -> Result<(Want, Choice), Hindrance> {
    let (state, now) = (problem.view.state, problem.view.now);
    let count = usize::try_from(request.spec.count).map_err(|_| Hindrance::Victims)?;
    let is_blind = state.leaves_out(Mutation::FirstVictims);
    let mut hindrance = Hindrance::Victims;
    // Quotas as they will be once all that were preempted are gone.
    let mut after_ends = spent.charges.clone();
    for id in preempted(state).chain(spent.doomed.iter().copied()) {
        give_back(&mut after_ends, state, id);
    }
    let lent = Lent::of(state, request, spent, &after_ends);
    let mut best: Option<(Want, Choice)> = None;
    for (site, room) in rooms(problem, spent, id, request) {
        let (cluster, model, gpu, _, _) = site;
        let total = gpu.checked_mul(u64::from(request.spec.count)).ok_or(Hindrance::Victims)?;
        let Some(price) = price(state, request, cluster, model) else { continue };
        let want = want(request, model, total, price);
        let (choice, is_over_lent) = fewest(room, count, &|victims| lent.is_fair(victims, total));
        let Some(choice) = choice else {
            if is_over_lent && hindrance == Hindrance::Victims {
                hindrance = Hindrance::Lent;
            }
            continue;
        };
        let mut charges = after_ends.clone();
        for victim in &choice.victims {
            give_back(&mut charges, state, victim.lease);
        }
        if charges.obstacle(&state.tree, &want, now).is_some() {
            continue;
        }
        let doomed = spent.doomed.iter().filter(|lease| {
            state.leases.get(lease).is_some_and(|lease| lease.terms.cluster == cluster)
        });
        let here = u32::try_from(doomed.count() + choice.victims.len()).unwrap_or(u32::MAX);
        let all = spent.doomed.len() + choice.victims.len();
        let all = u32::try_from(all).unwrap_or(u32::MAX);
        let (of_cluster, of_cell) = preemption::budgets_left(state, cluster, now);
        if here > of_cluster || all > of_cell {
            hindrance = Hindrance::Budget;
            continue;
        }
        if best.as_ref().is_none_or(|(_, known)| choice.harm(is_blind) < known.harm(is_blind)) {
            best = Some((want, choice));
        }
    }
    best.ok_or(hindrance)
}

/// What may be taken back of what was lent.
struct Lent<'a> {
    state: &'a State,
    claimant: Claimant,
    /// Quotas once all that is ending is gone; none if nothing can be taken back.
    after: Option<After>,
}

impl<'a> Lent<'a> {
    fn of(state: &'a State, request: &Request, spent: &Spent, after_ends: &Charges) -> Lent<'a> {
        let after = state.tree.may_take_back(request.tenant).then(|| {
            let mut victims = Charges::NONE;
            for id in preempted(state).chain(spent.doomed.iter().copied()) {
                give_back(&mut victims, state, id);
            }
            let mut after = After { claimant: after_ends.clone(), victims };
            after.end_what_ends(state);
            after
        });
        Lent { state, claimant: Claimant::of(request), after }
    }

    /// Whether these may end together for a grant of `gpu`.
    fn is_fair(&self, victims: &[Victim], gpu: GpuMilli) -> bool {
        let Some(after) = &self.after else { return true };
        let bound =
            victims.iter().filter(|one| reclaim::is_bound(self.state, one.lease, &self.claimant));
        let bound: Vec<LeaseId> = bound.map(|victim| victim.lease).collect();
        if bound.is_empty() {
            return true;
        }
        let mut after = after.clone();
        for victim in victims {
            after.end(self.state, victim.lease);
        }
        let is_fair = |lease| reclaim::is_fair(self.state, &self.claimant, lease, (&after, gpu));
        bound.into_iter().all(is_fair)
    }
}

/// Leases that were preempted and have not ended.
fn preempted(state: &State) -> impl Iterator<Item = LeaseId> + '_ {
    let ending = state.leases.iter().filter(|(_, lease)| {
        matches!(lease.stage, LeaseStage::Ending { cause: EndReason::Preempted, .. })
    });
    ending.map(|(id, _)| *id)
}

/// Counts what a lease holds as given back.
fn give_back(charges: &mut Charges, state: &State, lease: LeaseId) {
    if let Some(Lease { terms, .. }) = state.leases.get(&lease) {
        charges.give_back(&state.tree, (terms.tenant, terms.model), terms.gpu_total());
    }
}

/// What each site could give, sites in order.
fn rooms(
    problem: &Problem<'_>,
    spent: &Spent,
    id: RequestId,
    request: &Request,
) -> BTreeMap<Site, Room> {
    let (state, now) = (problem.view.state, problem.view.now);
    let (spec, claimant) = (&request.spec, Claimant::of(request));
    let claim = Claim::of(problem.view, id, spec);
    let mut rooms: BTreeMap<Site, Room> = BTreeMap::new();
    let order = Order::of(state, now);
    let running = state.leases.iter().filter(|(lease, _)| !spent.doomed.contains(lease));
    let mut victims: Vec<(Place, LeaseId)> = running
        .filter(|(lease, _)| reclaim::may_end(state, **lease, &claimant, now))
        .map(|(lease, entry)| (order.place(entry), *lease))
        .collect();
    victims.sort();
    for (place, lease) in victims {
        let mut freed: BTreeMap<Site, Vec<SliceId>> = BTreeMap::new();
        let freed_by = fit::freed_by(state, lease, spec, now);
        // Nobody is ended for what others have reserved.
        if !freed_by.iter().all(|one| problem.reservations.allows(one.slice, &claim)) {
            continue;
        }
        let is_open = |slice: SliceId| !problem.closed.contains(&(slice.cluster, slice.node));
        for candidate in freed_by.into_iter().filter(|candidate| is_open(candidate.slice)) {
            freed.entry(site(spec.placement, &candidate)).or_default().push(candidate.slice);
        }
        for (site, slices) in freed {
            rooms.entry(site).or_default().victims.push(Victim { lease, place, slices });
        }
    }
    if rooms.is_empty() {
        return rooms;
    }
    for candidate in place::reserved(problem, id, spec) {
        if let Some(room) = rooms.get_mut(&site(spec.placement, &candidate)) {
            room.reserved += 1;
        }
    }
    for (node, seats) in fitting(problem, id, request).into_values().flatten() {
        for seat in seats {
            let generation = problem.nodes[node].slots[seat.slot].generation;
            let member = PlanMember { slice: seat.candidate.slice, generation };
            if let Some(room) = rooms.get_mut(&site(spec.placement, &seat.candidate)) {
                room.free.push(member);
            }
        }
    }
    rooms
}

/// The first victims that suffice together with the free slots, less those that are not needed.
///
/// Whom `is_fair` does not let go together with those before it is left out; whether that happened is
/// the second answer.
fn fewest(room: Room, count: usize, is_fair: &dyn Fn(&[Victim]) -> bool) -> (Option<Choice>, bool) {
    let mut members = room.free;
    members.truncate(count);
    let mut missing = count - members.len();
    if missing == 0 {
        return (None, false);
    }
    let (mut picked, mut is_over_lent): (Vec<Victim>, bool) = (Vec::new(), false);
    for victim in room.victims {
        let freed = victim.slices.len();
        picked.push(victim);
        if !is_fair(&picked) {
            picked.pop();
            is_over_lent = true;
            continue;
        }
        missing = missing.saturating_sub(freed);
        if missing == 0 {
            break;
        }
    }
    if missing > 0 {
        return (None, is_over_lent);
    }
    let mut sum = members.len() + picked.iter().map(|victim| victim.slices.len()).sum::<usize>();
    // Give back in reverse: the last one completed the set, earlier ones may be superfluous.
    for at in (0..picked.len()).rev() {
        let without = sum - picked[at].slices.len();
        if without >= count {
            picked.remove(at);
            sum = without;
        }
    }
    // Nobody is ended while as much is free, even if others have reserved it.
    if picked.iter().any(|victim| sum + room.reserved - victim.slices.len() >= count) {
        return (None, is_over_lent);
    }
    // One that was spared may have made the others fair.
    if !is_fair(&picked) {
        return (None, true);
    }
    // A victim goes whole, so all it frees is used before free slots are.
    let mut freed: Vec<SliceId> =
        picked.iter().flat_map(|victim| &victim.slices).copied().collect();
    freed.truncate(count);
    members.truncate(count - freed.len());
    (Some(Choice { victims: picked, freed, members }), is_over_lent)
}

#[cfg(test)]
#[path = "preempt_tests.rs"]
mod tests;
