//! The order in which requests are served: tiers from the top, within a tier the tenant with the
//! lowest share first, within a tenant priority, then first submit time, then size, then id.
//!
//! Shares move while a plan is made, so the order of tenants is not fixed here: the walk asks where
//! a tenant [stands](crate::quota::Standing) whenever something was given.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use sublet_protocol::ids::{RequestId, TenantId};
use sublet_protocol::requests::Tier;
use sublet_protocol::units::{GpuMilli, Timestamp};

use super::problem::Problem;
use super::solve::{Source, Trial};
use crate::state::{Request, State};

/// One tenant's waiting requests of one tier, best first.
#[derive(Debug)]
pub(super) struct Line<'a> {
    pub(super) tier: Tier,
    pub(super) tenant: TenantId,
    pub(super) requests: Vec<(RequestId, &'a Request)>,
}

/// The waiting requests as lines: tiers from the top, tenants in the order of their ids.
pub(super) fn lines(state: &State, now: Timestamp) -> Vec<Line<'_>> {
    type Lines<'a> = BTreeMap<(Reverse<Tier>, TenantId), Vec<(RequestId, &'a Request)>>;
    let mut lines = Lines::new();
    for id in &state.waiting {
        let request = &state.requests[id];
        if state.is_paused(*id, request, now) {
            continue;
        }
        let tier = request.spec.class.tier();
        lines.entry((Reverse(tier), request.tenant)).or_default().push((*id, request));
    }
    let ordered = lines.into_iter().map(|((Reverse(tier), tenant), mut requests)| {
        requests.sort_by_key(|(id, request)| queue_key(*id, request));
        Line { tier, tenant, requests }
    });
    ordered.collect()
}

/// Within a tenant and tier: priority, then first submit time; of those that were submitted at the same
/// instant the largest first, as the small ones fit into what is left; then id.
pub(super) fn queue_key(id: RequestId, request: &Request) -> QueueKey {
    let spec = &request.spec;
    (Reverse(spec.priority), request.submitted_at, Reverse(spec.gpu_total()), id)
}

type QueueKey = (Reverse<u8>, Timestamp, Reverse<GpuMilli>, RequestId);

/// The queue as it stands in the problem, all of it.
pub(super) struct Lines<'a> {
    lines: Vec<Line<'a>>,
    /// The next place in each line.
    places: Vec<usize>,
}

impl<'a> Lines<'a> {
    pub(super) fn new(lines: Vec<Line<'a>>) -> Lines<'a> {
        let places = vec![0; lines.len()];
        Lines { lines, places }
    }
}

impl Source for Lines<'_> {
    fn tenants(&mut self, tier: Tier) -> Vec<TenantId> {
        self.lines.iter().filter(|line| line.tier == tier).map(|line| line.tenant).collect()
    }

    fn next(&mut self, tier: Tier, tenant: TenantId) -> Option<RequestId> {
        let of_line = |line: &Line<'_>| (Reverse(line.tier), line.tenant);
        let line = self.lines.binary_search_by_key(&(Reverse(tier), tenant), of_line).ok()?;
        self.lines[line].requests.get(self.places[line]).map(|(id, _)| *id)
    }

    fn bring(&mut self, _problem: &mut Problem<'_>, _id: RequestId) {}

    fn shifted(&mut self) {}

    fn tried(&mut self, state: &State, id: RequestId, _trial: &Trial<'_>) {
        let Some(request) = state.requests.get(&id) else { return };
        let key = (Reverse(request.spec.class.tier()), request.tenant);
        let of_line = |line: &Line<'_>| (Reverse(line.tier), line.tenant);
        if let Ok(line) = self.lines.binary_search_by_key(&key, of_line) {
            self.places[line] += 1;
        }
    }
}
