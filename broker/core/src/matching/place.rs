//! Where a request is placed: which free slots fit it, what they cost, and which of them it takes.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use sublet_protocol::commands::PlanMember;
use sublet_protocol::ids::{ClusterId, GpuModel, RequestId};
use sublet_protocol::money::Price;
use sublet_protocol::requests::Placement;
use sublet_protocol::units::GpuMilli;

use super::problem::{NodeSlots, Problem};
use super::solve::Spent;
use crate::fit;
use crate::state::{Request, State};

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
    pub(super) fn take(self, nodes: &mut [NodeSlots]) -> Vec<PlanMember> {
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
