//! Victims for a request that finds no room, or no quota: only leases that the rules let it end, in
//! their order, as few as that order allows. Whom the plan picks, it needs.
//!
//! Slices are missing at a site, so those whose slices it gets are all there. Quota is missing in the
//! tree, wherever what holds it runs. Either way a request ends leases in one cluster only, unless no
//! single cluster gives back enough.

mod fewest;
mod lent;
mod search;

use std::collections::BTreeMap;

use sublet_protocol::capacity::{Part, SliceId};
use sublet_protocol::commands::{PlanGroup, PlanMember};
use sublet_protocol::ids::{LeaseId, RequestId};
use sublet_protocol::requests::Tier;

use super::endable::Victim;
use super::place::Pick;
use super::problem::Problem;
use super::solve::Spent;
use crate::preemption;
use crate::quota::Charges;
use crate::reclaim::Claimant;
use crate::state::{Lease, Request, RequestStage, State};

use search::choose;

/// What is free of a site.
#[derive(Debug, Clone, Default)]
struct Room {
    free: Vec<PlanMember>,
    /// Free slots that others have reserved.
    reserved: usize,
    /// How many slices the end of a lease would free here that others have reserved.
    barred: BTreeMap<LeaseId, usize>,
}

/// How much it hurts, the least first.
type Harm = (Option<(bool, Tier)>, usize, u64);

/// Who ends, what of theirs is used, and which free slots are used besides.
#[derive(Debug, Clone)]
struct Choice {
    victims: Vec<Victim>,
    freed: Vec<SliceId>,
    members: Vec<PlanMember>,
    /// Where the members were picked from, if all slices are free already.
    pick: Option<Pick>,
}

impl Choice {
    /// How much it hurts: the dearest kind of victim first, then how many go, then what is lost.
    fn harm(&self, is_blind: bool) -> Harm {
        let seen = self.victims.iter().filter(|_| !is_blind);
        let dearest = seen.map(|victim| victim.place.kind).max();
        let lost = self.victims.iter().fold(0, |sum: u64, one| sum.saturating_add(one.place.loss));
        (dearest, self.victims.len(), lost)
    }
}

/// Why no lease is ended for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
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
    let (want, Choice { victims, freed, members, pick }) = chosen.ok()?;
    let victims: Vec<LeaseId> = victims.into_iter().map(|victim| victim.place.lease).collect();
    spent.doomed.extend(victims.iter().copied());
    // What is freed is not held yet, but two pledges must not count on the same quota.
    spent.give(problem.view.state, &want);
    let members = match pick {
        Some(pick) => pick.take(&mut problem.nodes),
        None => members,
    };
    for slot in problem.nodes.iter_mut().flat_map(|node| &mut node.slots) {
        // Of a GPU that may be divided nobody else gets a part in this plan.
        let whole = |slice: SliceId| SliceId { part: Part::Whole, ..slice };
        let of_slot = whole(slot.candidate.slice);
        let is_its = |member: &PlanMember| match slot.divided {
            Some(_) => whole(member.slice) == of_slot,
            None => member.slice == slot.candidate.slice,
        };
        slot.is_taken |= members.iter().any(is_its);
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

/// Counts what a lease holds as given back.
fn give_back(charges: &mut Charges, state: &State, lease: LeaseId) {
    if let Some(Lease { terms, .. }) = state.leases.get(&lease) {
        charges.give_back(&state.tree, (terms.tenant, terms.model), terms.gpu_total());
    }
}

#[cfg(test)]
#[path = "preempt_tests.rs"]
pub(crate) mod tests;
