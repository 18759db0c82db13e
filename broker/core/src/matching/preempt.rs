//! Victims for a request that finds no room: only leases that the rules let it end, in their order,
//! as few as that order allows. Whom the plan picks, it needs.
//!
//! One request's victims are all at one site, so it ends leases in one cluster only.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};

use sublet_protocol::capacity::SliceId;
use sublet_protocol::commands::{PlanGroup, PlanMember};
use sublet_protocol::ids::{ClusterId, LeaseId, RequestId};
use sublet_protocol::units::GpuMilli;

use super::endable::{Site, Sites, Victim, site};
use super::place::{self, fitting, price};
use super::problem::Problem;
use super::reserve::Claim;
use super::solve::{Spent, want};
use crate::mutation::Mutation;
use crate::preemption;
use crate::quota::{Charges, Want};
use crate::reclaim::{self, After, Claimant};
use crate::state::{Lease, Request, RequestStage, State, StateView};

/// What is free of a site.
#[derive(Debug, Clone, Default)]
struct Room {
    free: Vec<PlanMember>,
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
    /// This plan has looked at enough leases.
    Unsure,
}

/// Frees room for the request in the plan; nothing if that cannot be done now.
pub(super) fn preempt(
    problem: &mut Problem<'_>,
    spent: &mut Spent,
    id: RequestId,
    request: &Request,
) -> Option<PlanGroup> {
    if !problem.endable.has_any(&Claimant::of(request)) {
        return None;
    }
    let doomed = u32::try_from(spent.doomed.len()).unwrap_or(u32::MAX);
    if doomed >= preemption::budget_left(problem.view.state, problem.view.now) {
        spent.is_over_budget = true;
        return None;
    }
    let chosen = choose(problem, spent, id, request);
    spent.is_over_budget |= matches!(chosen, Err(Hindrance::Budget));
    spent.is_over_lent = matches!(chosen, Err(Hindrance::Lent));
    spent.is_unsure |= matches!(chosen, Err(Hindrance::Unsure));
    let (want, Choice { victims, freed, members }) = chosen.ok()?;
    let victims: Vec<LeaseId> = victims.into_iter().map(|victim| victim.place.lease).collect();
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
    let sites = problem.endable.sites(&problem.closed, request).ok_or(Hindrance::Unsure)?;
    let mut rooms = Rooms::of(problem, &sites, id, request);
    let after_ends = OnceCell::new();
    let after_ends = || after_ends.get_or_init(|| after_ends_of(problem, spent));
    let lent = Lent::of(problem, request, spent, after_ends);
    let mut best: Option<(Want, Choice)> = None;
    for (site, victims) in sites.iter() {
        let (cluster, model, gpu, _, _) = *site;
        let total = gpu.checked_mul(u64::from(request.spec.count)).ok_or(Hindrance::Victims)?;
        let room = rooms.free.remove(site).unwrap_or_default();
        if room.free.len() >= count || room.free.len().saturating_add(victims.slices) < count {
            continue;
        }
        let Some(price) = price(state, request, cluster, model) else { continue };
        let willing = victims.in_order.iter().filter(|victim| rooms.may_go(problem, spent, victim));
        let is_fair = |victims: &[Victim]| lent.is_fair(victims, total);
        let (choice, is_over_lent) = fewest(room, willing, count, &is_fair);
        let Some(choice) = choice else {
            if is_over_lent && hindrance == Hindrance::Victims {
                hindrance = Hindrance::Lent;
            }
            continue;
        };
        if best.as_ref().is_some_and(|(_, known)| choice.harm(is_blind) >= known.harm(is_blind)) {
            continue;
        }
        let want = want(request, model, total, price);
        let mut charges = after_ends().clone();
        for victim in &choice.victims {
            give_back(&mut charges, state, victim.place.lease);
        }
        if charges.obstacle(&state.tree, &want, now).is_some() {
            continue;
        }
        if !is_within_budget(problem, spent, cluster, choice.victims.len()) {
            hindrance = Hindrance::Budget;
            continue;
        }
        best = Some((want, choice));
    }
    best.ok_or(hindrance)
}

/// Whether so many more leases may be ended in the cluster, and in the cell, in this hour.
fn is_within_budget(
    problem: &Problem<'_>,
    spent: &Spent,
    cluster: ClusterId,
    victims: usize,
) -> bool {
    let (state, now) = (problem.view.state, problem.view.now);
    let doomed = spent.doomed.iter().filter(|lease| {
        state.leases.get(lease).is_some_and(|lease| lease.terms.cluster == cluster)
    });
    let here = u32::try_from(doomed.count() + victims).unwrap_or(u32::MAX);
    let all = u32::try_from(spent.doomed.len() + victims).unwrap_or(u32::MAX);
    let (of_cluster, of_cell) = preemption::budgets_left(state, cluster, now);
    here <= of_cluster && all <= of_cell
}

/// Quotas as they will be once all that were preempted are gone.
fn after_ends_of(problem: &Problem<'_>, spent: &Spent) -> Charges {
    let mut charges = spent.charges.clone();
    for id in problem.endable.preempted().into_iter().chain(spent.doomed.iter().copied()) {
        give_back(&mut charges, problem.view.state, id);
    }
    charges
}

/// What may be taken back of what was lent.
struct Lent<'a> {
    state: &'a State,
    claimant: Claimant,
    /// Quotas once all that is ending is gone; none if nothing can be taken back.
    after: Option<After>,
}

impl<'a> Lent<'a> {
    fn of<'c>(
        problem: &Problem<'a>,
        request: &Request,
        spent: &Spent,
        after_ends: impl Fn() -> &'c Charges,
    ) -> Lent<'a> {
        let state = problem.view.state;
        let after = state.tree.may_take_back(request.tenant).then(|| {
            let mut victims = Charges::NONE;
            let preempted = problem.endable.preempted().into_iter();
            for id in preempted.chain(spent.doomed.iter().copied()) {
                give_back(&mut victims, state, id);
            }
            let mut after = After { claimant: after_ends().clone(), victims };
            for id in problem.endable.ending() {
                after.end(state, id);
            }
            after
        });
        Lent { state, claimant: Claimant::of(request), after }
    }

    /// Whether these may end together for a grant of `gpu`.
    fn is_fair(&self, victims: &[Victim], gpu: GpuMilli) -> bool {
        let Some(after) = &self.after else { return true };
        let leases = victims.iter().map(|victim| victim.place.lease);
        let is_bound = |lease: &LeaseId| reclaim::is_bound(self.state, *lease, &self.claimant);
        let bound: Vec<LeaseId> = leases.clone().filter(is_bound).collect();
        if bound.is_empty() {
            return true;
        }
        let mut after = after.clone();
        for lease in leases {
            after.end(self.state, lease);
        }
        let is_fair = |lease| reclaim::is_fair(self.state, &self.claimant, lease, (&after, gpu));
        bound.into_iter().all(is_fair)
    }
}

/// Counts what a lease holds as given back.
fn give_back(charges: &mut Charges, state: &State, lease: LeaseId) {
    if let Some(Lease { terms, .. }) = state.leases.get(&lease) {
        charges.give_back(&state.tree, (terms.tenant, terms.model), terms.gpu_total());
    }
}

/// What of the sites with victims is free already, and which victims may go.
struct Rooms {
    free: BTreeMap<Site, Room>,
    claim: Claim,
}

impl Rooms {
    fn of(problem: &Problem<'_>, sites: &Sites, id: RequestId, request: &Request) -> Rooms {
        let spec = &request.spec;
        let claim = Claim::of(problem.view, id, spec);
        let mut free: BTreeMap<Site, Room> = BTreeMap::new();
        if sites.is_empty() {
            return Rooms { free, claim };
        }
        for candidate in place::reserved(problem, id, spec) {
            let site = site(spec.placement, &candidate);
            if sites.contains_key(&site) {
                free.entry(site).or_default().reserved += 1;
            }
        }
        for (node, seats) in fitting(problem, id, request).into_values().flatten() {
            for seat in seats {
                let generation = problem.nodes[node].slots[seat.slot].generation;
                let member = PlanMember { slice: seat.candidate.slice, generation };
                let site = site(spec.placement, &seat.candidate);
                if sites.contains_key(&site) {
                    free.entry(site).or_default().free.push(member);
                }
            }
        }
        Rooms { free, claim }
    }

    /// Whether this plan does not end the victim yet: nobody is ended for what others have reserved.
    fn may_go(&self, problem: &Problem<'_>, spent: &Spent, victim: &Victim) -> bool {
        let mut freed = victim.slices.iter().chain(&victim.elsewhere);
        !spent.doomed.contains(&victim.place.lease)
            && freed.all(|slice| problem.reservations.allows(*slice, &self.claim))
    }
}

/// The first victims that suffice together with the free slots, less those that are not needed.
///
/// Whom `is_fair` does not let go together with those before it is left out; whether that happened is
/// the second answer.
fn fewest<'v>(
    room: Room,
    victims: impl Iterator<Item = &'v Victim>,
    count: usize,
    is_fair: &dyn Fn(&[Victim]) -> bool,
) -> (Option<Choice>, bool) {
    let mut members = room.free;
    members.truncate(count);
    let mut missing = count - members.len();
    if missing == 0 {
        return (None, false);
    }
    let (mut picked, mut is_over_lent): (Vec<Victim>, bool) = (Vec::new(), false);
    for victim in victims {
        picked.push(victim.clone());
        if !is_fair(&picked) {
            picked.pop();
            is_over_lent = true;
            continue;
        }
        missing = missing.saturating_sub(victim.slices.len());
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
pub(crate) mod tests;
