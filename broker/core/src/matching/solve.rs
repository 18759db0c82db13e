//! Walks the queue and proposes grants: tiers from the top, within a tier the tenant with the lowest
//! weighted share, within a tenant its own order. For a request that finds no room grants of the same
//! plan are moved aside (`shift`), then leases end if it may end some; else it is passed over.

use std::collections::BTreeSet;

use sublet_protocol::commands::{PLAN_GROUPS_MAX, PlanGroup};
use sublet_protocol::ids::{GpuModel, LeaseId, RequestId, TenantId};
use sublet_protocol::money::Price;
use sublet_protocol::requests::Tier;
use sublet_protocol::units::GpuMilli;

use super::index::{Key, Tournament, at};
use super::place::{Pick, pick};
use super::problem::{Hopeless, Needs, Problem, Shape};
use super::reserve::{Fate, Reservations};
use super::shift::{Granted, Moves, Shifts};
use super::{Preemption, preempt};
use crate::quota::{Among, Charges, Obstacle, Standing, Want, standing_with};
use crate::state::{Request, RequestStage, State, StateView};
use crate::{fit, pledges};

/// Most requests that one plan looks for room for; the rest wait for the next plan.
const TRIES_MAX: usize = 4_096;
/// Most requests for which one plan ends other leases.
const PREEMPTIONS_MAX: usize = 16;

/// What a plan has given away so far.
#[derive(Debug, Default)]
pub(super) struct Spent {
    /// What quotas and budgets it takes, and what quotas keep for requests with a pledge.
    pub(super) charges: Charges,
    /// The steps that led there.
    steps: Vec<Step>,
    /// Leases that this plan ends.
    pub(super) doomed: BTreeSet<LeaseId>,
    /// Whether more would end if there were budget for it.
    pub(super) is_over_budget: bool,
    /// Whether the last request would be served if more of what was lent could be taken back.
    pub(super) is_over_lent: bool,
    /// Whether more might end if this plan looked at more leases.
    pub(super) is_unsure: bool,
}

impl Spent {
    /// So much.
    pub(super) fn of(charges: Charges) -> Spent {
        Spent { charges, ..Spent::default() }
    }

    /// What keeps the request from so much of a model at this price, of quotas and budgets.
    pub(super) fn obstacle(&self, view: StateView<'_>, want: &Want) -> Option<Obstacle> {
        self.charges.obstacle(&view.state.tree, want, view.now)
    }

    /// What the tenant may still get of a model.
    pub(super) fn room(&self, state: &State, tenant: TenantId, model: GpuModel) -> GpuMilli {
        state.tree.room(tenant, model, &self.charges)
    }

    pub(super) fn give(&mut self, state: &State, want: &Want) {
        self.step(state, Step::Give(*want));
    }

    fn step(&mut self, state: &State, step: Step) {
        step.take(&mut self.charges, state);
        self.steps.push(step);
    }

    /// How many steps have been taken: the place of the next one.
    pub(super) const fn len(&self) -> usize {
        self.steps.len()
    }

    /// Puts another gift in the place of one. Gives the charges as they were.
    pub(super) fn replace(&mut self, state: &State, place: usize, want: Want) -> Charges {
        if let Some(step) = self.steps.get_mut(place) {
            *step = Step::Give(want);
        }
        let before = std::mem::take(&mut self.charges);
        for step in &self.steps {
            step.take(&mut self.charges, state);
        }
        before
    }

    /// Undoes [`Spent::replace`].
    pub(super) fn put_back(&mut self, place: usize, want: Want, charges: Charges) {
        if let Some(step) = self.steps.get_mut(place) {
            *step = Step::Give(want);
        }
        self.charges = charges;
    }

    fn standing(&self, view: StateView<'_>, whose: (TenantId, Among)) -> Standing {
        let at = (view.now, view.state.policy.half_life);
        standing_with(&view.state.tree, &self.charges, whose, at)
    }
}

/// A step of what is given away.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// Given to a request.
    Give(Want),
    /// Kept for a request with a pledge.
    Keep(Want),
    /// Kept no longer.
    GiveBack(Want),
}

impl Step {
    fn take(&self, charges: &mut Charges, state: &State) {
        match self {
            Step::Give(want) => charges.give(&state.tree, want),
            Step::Keep(want) => charges.keep(&state.tree, want),
            Step::GiveBack(want) => {
                charges.give_back(&state.tree, (want.tenant, want.model), want.gpu);
            }
        }
    }
}

/// What a grant of `gpu` to the request would take of quotas and budgets.
pub(super) const fn want(request: &Request, model: GpuModel, gpu: GpuMilli, price: Price) -> Want {
    Want { tenant: request.tenant, model, gpu, price, duration: request.spec.duration }
}

/// Where a walk takes the requests from, and who hears what became of them.
pub(super) trait Source {
    /// Tenants with a request of the tier to look at, in ascending order.
    fn tenants(&mut self, tier: Tier) -> Vec<TenantId>;

    /// The tenant's best request of the tier that this plan has not tried.
    fn next(&mut self, tier: Tier, tenant: TenantId) -> Option<RequestId>;

    /// Puts all slots that could serve the request into the problem.
    fn bring(&mut self, problem: &mut Problem<'_>, id: RequestId);

    /// Grants were moved aside: what found no room in this plan may find some in the next.
    fn shifted(&mut self);

    /// The request that was next has been tried.
    fn tried(&mut self, state: &State, id: RequestId, trial: &Trial<'_>);
}

/// Where a tenant stands, and its number: of those that stand alike the lower name is first.
impl Key for (Standing, u32) {
    fn short(&self) -> (u64, u32) {
        self.0.short(self.1)
    }
}

/// What came of trying a request.
pub(super) struct Trial<'a> {
    /// Whether it was granted slices, or leases end for it.
    pub(super) is_served: bool,
    /// Whether what it lacked is lacking in the state, too, once this plan is committed.
    pub(super) is_lasting: bool,
    /// What it holds in the future, or why nothing.
    pub(super) fate: Fate,
    /// What the plan has given away.
    pub(super) spent: &'a Spent,
    /// What is reserved.
    pub(super) reservations: &'a Reservations<'a>,
}

/// Makes a plan for the requests of the source.
pub(super) fn solve(
    problem: &mut Problem<'_>,
    source: &mut dyn Source,
    preemption: Preemption,
) -> Vec<PlanGroup> {
    let left = match preemption {
        Preemption::Allowed => PREEMPTIONS_MAX,
        Preemption::Suspended => 0,
    };
    let mut walk = Walk { preemptions_left: left, ..Walk::default() };
    // Who gets what others free needs the quota for it, too: nobody else may take that meanwhile.
    for want in pledges::kept(problem.view.state).into_values() {
        walk.spent.step(problem.view.state, Step::Keep(want));
    }
    walk.groups.extend(problem.reservations.mend(&walk.spent));
    for tier in [Tier::Reserved, Tier::Standard, Tier::Opportunistic] {
        walk.tier(problem, source, tier);
    }
    if walk.shifts.has_moved() {
        source.shifted();
    }
    if !walk.is_full() {
        walk.groups.extend(problem.reservations.improve(&walk.spent));
    }
    walk.groups
}

#[derive(Default)]
pub(super) struct Walk {
    pub(super) groups: Vec<PlanGroup>,
    pub(super) spent: Spent,
    pub(super) shifts: Shifts,
    hopeless: Hopeless,
    /// Requests that were tried and found no room.
    pub(super) failed: Vec<RequestId>,
    tries: usize,
    preemptions_left: usize,
}

impl Walk {
    fn is_full(&self) -> bool {
        self.groups.len() >= PLAN_GROUPS_MAX || self.tries >= TRIES_MAX
    }

    fn tier(&mut self, problem: &mut Problem<'_>, source: &mut dyn Source, tier: Tier) {
        let view = problem.view;
        let tenants = source.tenants(tier);
        let among = view.state.tree.among(&tenants);
        let stands = |walk: &Walk, tenant| walk.spent.standing(view, (tenant, among));
        let standings = tenants.iter().map(|tenant| stands(self, *tenant));
        // Of those that stand alike the lower name is first.
        let mut order = Tournament::of(standings.zip(0..).collect(), (Standing::LAST, u32::MAX));
        while let Some((standing, first)) = order.best().copied() {
            let Some(tenant) = tenants.get(at(first)).copied() else { return };
            // What was given to others of its group moved it back. Standings only grow in a plan.
            let moved = stands(self, tenant);
            if moved > standing {
                order.set(first, (moved, first));
                continue;
            }
            order.leave(first);
            while let Some(id) = source.next(tier, tenant) {
                if self.is_full() {
                    return;
                }
                let Some(request) = view.state.requests.get(&id) else { return };
                // Another lease that was to end, or a slot that waits for it, may be there again.
                let is_lasting = !self.has_preempted();
                source.bring(problem, id);
                let moves = self.shifts.moves();
                let (is_served, fate) = self.serve(problem, tier, id, request);
                let is_lasting = is_lasting && !self.spent.is_unsure;
                let (spent, reservations) = (&self.spent, &problem.reservations);
                let trial = Trial { is_served, is_lasting, fate, spent, reservations };
                source.tried(view.state, id, &trial);
                if self.shifts.moves() > moves {
                    // Who was moved may hold less of what counts for its standing.
                    for (other, no) in tenants.iter().zip(0..) {
                        if order.key(no).is_some() {
                            order.set(no, (stands(self, *other), no));
                        }
                    }
                }
                if is_served {
                    order.set(first, (stands(self, tenant), first));
                    break;
                }
            }
        }
    }

    fn has_preempted(&self) -> bool {
        self.groups.iter().any(|group| matches!(group, PlanGroup::Preempt { .. }))
    }

    /// Grants the request, or frees room for it, and whether either was possible; else reserves room
    /// in the future.
    fn serve(
        &mut self,
        problem: &mut Problem<'_>,
        tier: Tier,
        id: RequestId,
        request: &Request,
    ) -> (bool, Fate) {
        let is_pledged = matches!(request.stage, RequestStage::Pledged { .. });
        let shape = Shape::of(problem.view.state, request.tenant, &request.spec);
        // Whoever asked to wait rests, if it is promised a start in time; else it is like any other.
        if let Some(rest) = problem.reservations.rest(&self.spent, id, request) {
            self.groups.push(rest);
            return (false, Fate::Holds);
        }
        let needs = Needs { predicted: fit::needed(&request.spec), bought: request.spec.duration };
        // A request with a pledge or a reservation sees slots that its likes do not.
        let is_special = is_pledged || problem.reservations.concern(id);
        if !is_special && self.hopeless.has(&shape, needs) {
            return (false, self.reserve(problem, id, request));
        }
        self.tries += 1;
        let (state, kept) = (problem.view.state, is_pledged.then_some(id));
        let kept = kept.and_then(|id| pledges::kept(problem.view.state).remove(&id));
        if let Some(kept) = &kept {
            self.spent.step(state, Step::GiveBack(*kept));
        }
        let found = pick(problem, &self.spent, id, request).map(|pick| (pick, Moves::default()));
        let found = match found {
            None if !is_pledged => self.make_room(problem, id, request),
            found => found,
        };
        if let Some((pick, moves)) = found {
            self.grant(problem, (id, request), pick);
            self.settle(problem, moves);
            return (true, Fate::Refused);
        }
        self.spent.is_over_lent = false;
        let may_end_some = tier > Tier::Opportunistic || state.tree.may_take_back(request.tenant);
        let may_preempt = may_end_some && self.preemptions_left > 0;
        let preemption = match may_preempt && !is_pledged {
            true => preempt::preempt(problem, &mut self.spent, id, request),
            false => None,
        };
        if let Some(group) = preemption {
            self.preemptions_left -= 1;
            problem.reservations.pledged(id);
            self.groups.push(group);
            return (true, Fate::Refused);
        }
        if let Some(kept) = &kept {
            self.spent.step(state, Step::Keep(*kept));
        }
        if is_pledged {
            return (false, Fate::Refused);
        }
        self.failed.push(id);
        if !is_special {
            self.hopeless.add(shape, needs);
        }
        (false, self.reserve(problem, id, request))
    }

    fn grant(
        &mut self,
        problem: &mut Problem<'_>,
        (id, request): (RequestId, &Request),
        pick: Pick,
    ) {
        let want = want(request, pick.model, pick.total, pick.price);
        let (group, step) = (self.groups.len(), self.spent.len());
        self.shifts.add(Granted::of((id, request), &pick, want, (group, step)));
        self.spent.give(problem.view.state, &want);
        let members = pick.take(&mut problem.nodes);
        problem.reservations.granted(id, &request.spec, &members);
        self.groups.push(PlanGroup::Grant { request: id, members });
    }

    fn reserve(&mut self, problem: &mut Problem<'_>, id: RequestId, request: &Request) -> Fate {
        let (group, fate) = problem.reservations.reserve(&self.spent, id, request);
        self.groups.extend(group);
        fate
    }
}
