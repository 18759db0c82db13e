//! The order in which requests are served: tiers from the top, within a tier the tenant with the
//! lowest share first, within a tenant priority, then first submit time, then id.
//!
//! Shares move while a plan is made, so the order of tenants is not fixed here: the walk asks for
//! [`share`] whenever it has given a tenant something.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use sublet_protocol::ids::{RequestId, TenantId};
use sublet_protocol::requests::Tier;
use sublet_protocol::units::{GpuMilli, Timestamp};

use crate::state::{Request, State};

/// One tenant's waiting requests of one tier, best first.
#[derive(Debug)]
pub(super) struct Line<'a> {
    pub(super) tier: Tier,
    pub(super) tenant: TenantId,
    pub(super) requests: Vec<(RequestId, &'a Request)>,
}

/// The waiting requests as lines: tiers from the top, tenants in the order of their ids.
pub(super) fn lines(state: &State) -> Vec<Line<'_>> {
    type Lines<'a> = BTreeMap<(Reverse<Tier>, TenantId), Vec<(RequestId, &'a Request)>>;
    let mut lines = Lines::new();
    for id in &state.waiting {
        let request = &state.requests[id];
        let tier = request.spec.class.tier();
        lines.entry((Reverse(tier), request.tenant)).or_default().push((*id, request));
    }
    let ordered = lines.into_iter().map(|((Reverse(tier), tenant), mut requests)| {
        requests.sort_by_key(|(id, request)| queue_key(*id, request));
        Line { tier, tenant, requests }
    });
    ordered.collect()
}

/// Within a tenant and tier: priority, then first submit time, then id.
pub(super) fn queue_key(id: RequestId, request: &Request) -> (Reverse<u8>, Timestamp, RequestId) {
    (Reverse(request.spec.priority), request.submitted_at, id)
}

/// What a tenant holds of its quotas, in thousandths: the lowest share is served first.
pub(super) fn share(state: &State, tenant: TenantId, granted: GpuMilli) -> u64 {
    let Some(entry) = state.tenants.get(&tenant) else { return u64::MAX };
    let sum = |amounts: &mut dyn Iterator<Item = GpuMilli>| {
        amounts.fold(0_u64, |sum, amount| sum.saturating_add(amount.get()))
    };
    let quota = sum(&mut entry.quotas().map(|(_, nominal)| nominal));
    let held = sum(&mut entry.holdings().values().copied()).saturating_add(granted.get());
    held.saturating_mul(1_000).checked_div(quota).unwrap_or(u64::MAX)
}
