//! Walks the queue and proposes grants: tiers from the top, within a tier the tenant with the lowest
//! share of its quota, within a tenant its own order. A request that finds no room is passed over.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use sublet_protocol::commands::{PLAN_GROUPS_MAX, PlanGroup, PlanMember};
use sublet_protocol::ids::{ClusterId, GpuModel, LeaseId, RequestId, TenantId};
use sublet_protocol::money::Price;
use sublet_protocol::requests::{Placement, Tier};
use sublet_protocol::units::GpuMilli;

use super::problem::{Hopeless, NodeSlots, Problem, Shape, share};
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

/// Slots by their place in the problem: node and slot.
type Place = (usize, usize);

/// The slots chosen for a request.
pub(super) struct Pick {
    pub(super) cluster: ClusterId,
    pub(super) model: GpuModel,
    pub(super) price: Price,
    pub(super) total: GpuMilli,
    places: Vec<Place>,
}

impl Pick {
    /// Takes the slots out of the problem.
    pub(super) fn take(self, nodes: &mut [NodeSlots<'_>]) -> Vec<PlanMember> {
        let members = self.places.iter().map(|(node, slot)| {
            let slot = &mut nodes[*node].slots[*slot];
            slot.is_taken = true;
            PlanMember { slice: slot.candidate.slice, generation: slot.generation }
        });
        members.collect()
    }
}

/// Fitting slots that are alike: one cluster, model and size; by node.
pub(super) type Alike = BTreeMap<(ClusterId, GpuModel, GpuMilli), Vec<(usize, Vec<usize>)>>;

/// The request's fitting slots, grouped as a grant must be.
pub(super) fn fitting(problem: &Problem<'_>, id: RequestId, request: &Request) -> Alike {
    let (state, now) = (problem.view.state, problem.view.now);
    let mut alike = Alike::new();
    for (ordinal, node) in problem.nodes.iter().enumerate() {
        for (place, slot) in node.slots.iter().enumerate() {
            let is_free = !slot.is_taken && slot.kept_for.is_none_or(|other| other == id);
            if !is_free || fit::misfit(state, &request.spec, &slot.candidate, now).is_some() {
                continue;
            }
            let capacity = slot.candidate.capacity;
            let nodes = alike.entry((node.cluster, capacity.model, capacity.gpu)).or_default();
            match nodes.last_mut() {
                Some((last, slots)) if *last == ordinal => slots.push(place),
                Some(_) | None => nodes.push((ordinal, vec![place])),
            }
        }
    }
    alike
}

/// The posted price of a cluster's model for the request, if it is allowed.
pub(super) fn price(
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

/// The cheapest group of alike slots with room; the tightest among equals.
pub(super) fn pick(
    problem: &Problem<'_>,
    spent: &Spent,
    id: RequestId,
    request: &Request,
) -> Option<Pick> {
    let state = problem.view.state;
    let count = usize::try_from(request.spec.count).ok()?;
    let mut best: Option<((i128, usize), Pick)> = None;
    for ((cluster, model, gpu), nodes) in fitting(problem, id, request) {
        let Some(price) = price(state, request, cluster, model) else { continue };
        let total = gpu.checked_mul(u64::from(request.spec.count))?;
        if total > spent.quota_left(state, request.tenant, model) {
            continue;
        }
        let Some((places, left)) = place(problem, request.spec.placement, &nodes, count) else {
            continue;
        };
        let cost = i128::from(price.per_gpu_hour.get()) * i128::from(total.get());
        let rank = (cost, left);
        if best.as_ref().is_none_or(|(known, _)| rank < *known) {
            best = Some((rank, Pick { cluster, model, price, total, places }));
        }
    }
    best.map(|(_, pick)| pick)
}

/// `count` slots that stand as asked, and how many alike stay free on the nodes used.
fn place(
    problem: &Problem<'_>,
    placement: Placement,
    nodes: &[(usize, Vec<usize>)],
    count: usize,
) -> Option<(Vec<Place>, usize)> {
    let groups = match placement {
        Placement::Cluster | Placement::Node => nodes.to_vec(),
        Placement::Island => by_island(problem, nodes),
    };
    let fits = groups.iter().filter(|(_, slots)| slots.len() >= count);
    if let Some((node, slots)) = fits.min_by_key(|(_, slots)| slots.len()) {
        let places = slots[..count].iter().map(|slot| (*node, *slot)).collect();
        return Some((places, slots.len() - count));
    }
    match placement {
        Placement::Cluster => spread(groups, count),
        Placement::Node | Placement::Island => None,
    }
}

fn by_island(problem: &Problem<'_>, nodes: &[(usize, Vec<usize>)]) -> Vec<(usize, Vec<usize>)> {
    let mut islands: BTreeMap<(usize, u16), Vec<usize>> = BTreeMap::new();
    for (node, slots) in nodes {
        for slot in slots {
            let island = problem.nodes[*node].slots[*slot].candidate.capacity.island;
            islands.entry((*node, island)).or_default().push(*slot);
        }
    }
    islands.into_iter().map(|((node, _), slots)| (node, slots)).collect()
}

/// No single node has room: the fullest nodes whole, the rest where it fits best.
fn spread(mut groups: Vec<(usize, Vec<usize>)>, count: usize) -> Option<(Vec<Place>, usize)> {
    groups.sort_by_key(|(node, slots)| (Reverse(slots.len()), *node));
    let mut places = Vec::with_capacity(count);
    let mut rest = groups.as_slice();
    while places.len() < count {
        let wanted = count - places.len();
        let best = rest.iter().rposition(|(_, slots)| slots.len() >= wanted);
        let (node, slots) = match best {
            Some(last) => &rest[last],
            None => rest.first()?,
        };
        places.extend(slots.iter().take(wanted).map(|slot| (*node, *slot)));
        if best.is_some() {
            return Some((places, slots.len() - wanted));
        }
        rest = &rest[1..];
    }
    Some((places, 0))
}
