//! A request's place in the queue: how many would be served before it if there were room for all.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use sublet_protocol::ids::{GpuModel, RequestId, TenantId};
use sublet_protocol::money::{MicroCredits, Price};

use super::order::{Line, queue_key};
use super::problem::Problem;
use super::solve::want;
use crate::quota::{Among, Charges, Standing, standing_with};
use crate::state::Request;

/// So many requests of other tenants are put in order before it; beyond them only those of its own
/// tenant are counted, and the place is the first it can have.
const ORDERED_MAX: usize = 4_096;

/// One tenant's requests of a tier.
struct Queue<'a> {
    requests: &'a [(RequestId, &'a Request)],
    /// How many of them would have been served.
    served: usize,
    models: Vec<GpuModel>,
}

/// The place of the request, 1 for the first: behind all of higher tiers, and within its tier as a plan
/// would serve them, the tenant that stands lowest first, each grant moving its tenant back.
pub(super) fn position<'a>(problem: &'a Problem<'a>, id: RequestId, request: &Request) -> u32 {
    let (tier, own) = (request.spec.class.tier(), queue_key(id, request));
    let higher = problem.lines.iter().filter(|line| line.tier > tier);
    let count: usize = higher.clone().map(|line| line.requests.len()).sum();
    let each = |line: &'a Line<'a>| line.requests.iter().map(move |entry| (line, entry));
    let tree = &problem.view.state.tree;
    let queue = |tenant, requests| {
        let models = tree.models(tenant).into_iter().collect();
        (tenant, Queue { requests, served: 0, models })
    };
    let lines = problem.lines.iter().filter(|line| line.tier == tier);
    let mut queues: BTreeMap<TenantId, Queue<'_>> =
        lines.map(|line| queue(line.tenant, &line.requests[..])).collect();
    // A request that pauses, or that is only asked about, is in no line.
    queues.entry(request.tenant).or_insert_with(|| queue(request.tenant, &[][..]).1);
    let ahead = queues[&request.tenant].requests;
    let ahead = ahead.iter().take_while(|(other, entry)| queue_key(*other, entry) < own).count();
    let mut charges = Charges::NONE;
    let charge = |charges: &mut Charges, models: &[GpuModel], request: &Request| {
        let asked = &request.spec.models;
        let is_allowed = |model: &&GpuModel| asked.is_empty() || asked.contains(model);
        if let Some(model) = models.iter().find(is_allowed) {
            let free = Price { per_gpu_hour: MicroCredits::ZERO, version: 0 };
            charges.keep(tree, &want(request, *model, request.spec.gpu_total(), free));
        }
    };
    for (line, (_, request)) in higher.clone().flat_map(each).take(ORDERED_MAX) {
        let models: Vec<GpuModel> = tree.models(line.tenant).into_iter().collect();
        charge(&mut charges, &models, request);
    }
    let at = (problem.view.now, problem.view.state.policy.half_life);
    let standing = |charges: &Charges, tenant: TenantId| {
        standing_with(tree, charges, (tenant, Among::All), at)
    };
    let mut order: BinaryHeap<Reverse<(Standing, TenantId)>> =
        queues.keys().map(|tenant| Reverse((standing(&charges, *tenant), *tenant))).collect();
    let mut before = 0;
    while let Some(Reverse((known, tenant))) = order.pop() {
        let moved = standing(&charges, tenant);
        if moved > known {
            order.push(Reverse((moved, tenant)));
            continue;
        }
        let Some(queue) = queues.get_mut(&tenant) else { continue };
        let is_own = tenant == request.tenant;
        if is_own && (queue.served == ahead || before >= ORDERED_MAX) {
            before += ahead - queue.served;
            break;
        }
        if before >= ORDERED_MAX {
            continue;
        }
        let Some((_, next)) = queue.requests.get(queue.served) else { continue };
        charge(&mut charges, &queue.models, next);
        queue.served += 1;
        before += 1;
        order.push(Reverse((standing(&charges, tenant), tenant)));
    }
    u32::try_from(count + before).unwrap_or(u32::MAX).saturating_add(1)
}
