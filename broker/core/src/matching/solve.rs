//! Walks the queue and proposes grants: tiers from the top, within a tier the tenant with the lowest
//! share of its quota, within a tenant its own order. A request that finds no room is passed over.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use sublet_protocol::commands::{PLAN_GROUPS_MAX, PlanGroup};
use sublet_protocol::ids::{GpuModel, LeaseId, RequestId, TenantId};
use sublet_protocol::requests::Tier;
use sublet_protocol::units::GpuMilli;

use super::order::share;
use super::place::pick;
use super::problem::{Hopeless, Problem, Shape};
use super::{Preemption, preempt};
use crate::fit;
use crate::state::{Request, RequestStage, State};

/// Most requests that one plan looks for room for; the rest wait for the next plan.
const TRIES_MAX: usize = 4_096;
/// Most requests for which one plan ends other leases.
const PREEMPTIONS_MAX: usize = 16;

/// What a plan has given away so far.
#[derive(Debug, Default)]
pub(super) struct Spent {
    /// GPU given to a tenant by this plan, by model.
    pub(super) given: BTreeMap<(TenantId, GpuModel), GpuMilli>,
    /// Leases that this plan ends.
    pub(super) doomed: BTreeSet<LeaseId>,
}

impl Spent {
    fn total(&self, tenant: TenantId) -> GpuMilli {
        let own = self.given.iter().filter(|((id, _), _)| *id == tenant);
        own.fold(GpuMilli::ZERO, |sum, (_, amount)| sum.saturating_add(*amount))
    }

    /// What the tenant may still get of a model.
    pub(super) fn quota_left(&self, state: &State, tenant: TenantId, model: GpuModel) -> GpuMilli {
        let given = self.given.get(&(tenant, model)).copied().unwrap_or_default();
        fit::quota_left(state, tenant, model).saturating_sub(given)
    }

    pub(super) fn give(&mut self, tenant: TenantId, model: GpuModel, amount: GpuMilli) {
        let given = self.given.entry((tenant, model)).or_default();
        *given = given.saturating_add(amount);
    }
}

pub(super) fn solve(problem: &mut Problem<'_>, preemption: Preemption) -> Vec<PlanGroup> {
    let left = match preemption {
        Preemption::Allowed => PREEMPTIONS_MAX,
        Preemption::Suspended => 0,
    };
    let mut walk = Walk { preemptions_left: left, ..Walk::default() };
    let lines = std::mem::take(&mut problem.lines);
    let mut from = 0;
    while let Some(tier) = lines.get(from).map(|line| line.tier) {
        let count = lines[from..].iter().take_while(|line| line.tier == tier).count();
        let queues = lines[from..from + count].iter();
        let queues: Vec<Queue<'_>> = queues.map(|line| (line.tenant, &line.requests[..])).collect();
        walk.tier(problem, tier, &queues);
        from += count;
    }
    walk.groups
}

/// One tenant's requests of one tier.
type Queue<'a> = (TenantId, &'a [(RequestId, &'a Request)]);

#[derive(Default)]
struct Walk {
    groups: Vec<PlanGroup>,
    spent: Spent,
    hopeless: Hopeless,
    tries: usize,
    preemptions_left: usize,
}

impl Walk {
    fn is_full(&self) -> bool {
        self.groups.len() >= PLAN_GROUPS_MAX || self.tries >= TRIES_MAX
    }

    fn tier(&mut self, problem: &mut Problem<'_>, tier: Tier, queues: &[Queue<'_>]) {
        let state = problem.view.state;
        let shares = queues.iter().enumerate().map(|(ordinal, (tenant, _))| {
            Reverse((share(state, *tenant, self.spent.total(*tenant)), ordinal, 0_usize))
        });
        let mut heap: BinaryHeap<Reverse<(u64, usize, usize)>> = shares.collect();
        while let Some(Reverse((_, ordinal, mut place))) = heap.pop() {
            let (tenant, requests) = queues[ordinal];
            while let Some((id, request)) = requests.get(place) {
                if self.is_full() {
                    return;
                }
                place += 1;
                if self.serve(problem, tier, *id, request) {
                    let share = share(state, tenant, self.spent.total(tenant));
                    heap.push(Reverse((share, ordinal, place)));
                    break;
                }
            }
        }
    }

    /// Grants the request, or frees room for it; whether either was possible.
    fn serve(
        &mut self,
        problem: &mut Problem<'_>,
        tier: Tier,
        id: RequestId,
        request: &Request,
    ) -> bool {
        // A request with a pledge sees slots that its likes do not.
        let is_pledged = matches!(request.stage, RequestStage::Pledged { .. });
        let shape = Shape::of(request.tenant, &request.spec);
        let needed = fit::needed(&request.spec);
        if !is_pledged && self.hopeless.has(&shape, needed) {
            return false;
        }
        self.tries += 1;
        if let Some(pick) = pick(problem, &self.spent, id, request) {
            self.spent.give(request.tenant, pick.model, pick.total);
            let members = pick.take(&mut problem.nodes);
            self.groups.push(PlanGroup::Grant { request: id, members });
            return true;
        }
        let may_preempt = tier > Tier::Opportunistic && self.preemptions_left > 0;
        let preemption = match may_preempt && !is_pledged {
            true => preempt::preempt(problem, &mut self.spent, id, request),
            false => None,
        };
        if let Some(group) = preemption {
            self.preemptions_left -= 1;
            self.groups.push(group);
            return true;
        }
        if !is_pledged {
            self.hopeless.add(shape, needed);
        }
        false
    }
}
