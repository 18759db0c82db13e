//! The invariants of the lease protocol that can be seen in one committed state.
//!
//! The same functions run after every command in tests, simulations and `sublet dev`, and on a
//! sample of commands in production, where they feed a counter. Those that compare replicas or look
//! at time (3, 7 to 11) are checked by the simulator; money per event (4) and `State = fold(journal)`
//! (12) also where the journal is at hand.

use std::collections::{BTreeMap, BTreeSet};

use sublet_protocol::capacity::{Origin, Part, SliceId};
use sublet_protocol::ids::{GpuModel, LeaseId, RequestId, TenantId};
use sublet_protocol::leases::Member;
use sublet_protocol::money::MicroCredits;
use sublet_protocol::rollbacks::is_list;
use sublet_protocol::units::GpuMilli;

use crate::state::{
    Due, LeaseStage, OPEN_MAX, OVER_MAX, Offer, RequestStage, Rollback, RollbackStage, State,
    Whereabouts,
};
use crate::{partition, quota};

/// A rule that a state breaks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Which invariant, as numbered in the protocol.
    pub invariant: u8,
    /// What was found.
    pub what: String,
}

type Check = fn(&State) -> Vec<Violation>;

/// Every check of a single state, in ascending order of its number.
pub const CHECKS: [(u8, Check); 8] = [
    (1, no_overlapping_leases),
    (2, within_quota),
    (4, holds_are_priced),
    (5, one_answer_per_key),
    (6, tokens_increase),
    (13, holds_match_leases),
    (14, bounded),
    (15, grants_are_sound),
];

/// Runs every check; empty if all hold.
#[must_use]
pub fn check(state: &State) -> Vec<Violation> {
    CHECKS.iter().flat_map(|(_, check)| check(state)).collect()
}

fn violation(invariant: u8, what: String) -> Violation {
    Violation { invariant, what }
}

/// INV-1: no two overlapping live slices, one isolation class on a GPU and no more than it holds; what
/// is leased is not offered, unless the offer stands for the rest of a GPU that may be divided so.
fn no_overlapping_leases(state: &State) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut live: BTreeMap<SliceId, LeaseId> = BTreeMap::new();
    let mut devices: BTreeMap<SliceId, Vec<(LeaseId, &Member)>> = BTreeMap::new();
    for (id, lease) in &state.leases {
        for member in &lease.terms.members {
            let device = SliceId { part: Part::Whole, ..member.slice };
            devices.entry(device).or_default().push((*id, member));
            if let Some(other) = live.insert(member.slice, *id) {
                found.push(violation(1, format!("{other} and {id} both hold {}", member.slice)));
            }
        }
    }
    for (device, parts) in &devices {
        found.extend(device_holds(*device, parts));
        let offer = state.offers.get(device);
        found.extend(
            parts
                .iter()
                .filter(|(_, m)| !may_be_offered(offer, m))
                .map(|(id, member)| violation(1, format!("{} of {id} is offered", member.slice))),
        );
    }
    let both = live
        .iter()
        .filter(|(slice, _)| slice.part != Part::Whole && state.offers.contains_key(slice));
    found.extend(both.map(|(slice, id)| violation(1, format!("{slice} of {id} is offered"))));
    if live != state.leased {
        found.push(violation(1, "the index of leased slices is not that of the leases".into()));
    }
    found
}

/// Whether the offer of the whole GPU may stand while this part of it is leased.
fn may_be_offered(offer: Option<&Offer>, member: &Member) -> bool {
    offer.is_none_or(|offer| match member.origin {
        Origin::Carved => offer.terms.division.allows(member.capacity.isolation),
        Origin::Offered => false,
    })
}

/// The parts of one GPU are disjoint, of one isolation, and together no more than the GPU.
fn device_holds(device: SliceId, parts: &[(LeaseId, &Member)]) -> Vec<Violation> {
    let mut found = Vec::new();
    for (at, (first, a)) in parts.iter().enumerate() {
        for (second, b) in &parts[at + 1..] {
            if partition::overlap(&a.capacity.hardware, a.slice.part, b.slice.part) {
                let (a, b) = (a.slice, b.slice);
                found.push(violation(1, format!("{first} and {second} overlap on {a} and {b}")));
            }
            if a.capacity.isolation != b.capacity.isolation {
                found.push(violation(1, format!("{first} and {second} mix on {device}")));
            }
        }
    }
    let carved = || parts.iter().filter(|(_, member)| member.origin == Origin::Carved);
    let gpu: u64 = carved().map(|(_, member)| member.capacity.gpu.get()).sum();
    let memory: u64 = carved().map(|(_, member)| member.capacity.memory.get()).sum();
    let shares = carved().filter(|(_, member)| matches!(member.slice.part, Part::Share { .. }));
    let total = shares.filter_map(|(_, member)| member.capacity.hardware.memory_total).min();
    let room = total.map(|total| total.saturating_sub(partition::memory_margin(total)));
    if gpu > GpuMilli::DEVICE.get() || room.is_some_and(|room| memory > room.get()) {
        found.push(violation(1, format!("{device} is carved into more than it holds")));
    }
    found
}

/// INV-2: per tenant and model, what is held is the sum of its leases; the sums of the tree are those
/// of its leases, quotas and offers; what is held is at most the quota, and what is borrowed at most
/// the limit, of the tenant and of each group it is in.
///
/// A quota that is cut below what is held leaves older leases over it until they end. Whoever has
/// more than it may have was therefore granted nothing since.
fn within_quota(state: &State) -> Vec<Violation> {
    let mut sums: BTreeMap<(TenantId, GpuModel), GpuMilli> = BTreeMap::new();
    for lease in state.leases.values() {
        let terms = &lease.terms;
        let sum = sums.entry((terms.tenant, terms.model)).or_default();
        *sum = sum.saturating_add(terms.gpu_total());
    }
    let mut found = Vec::new();
    for ((id, model), sum) in &sums {
        let Some(tenant) = state.tenants.get(id) else {
            found.push(violation(2, format!("{id} holds {model} and does not exist")));
            continue;
        };
        let held = tenant.held(*model);
        if held != *sum {
            found.push(violation(2, format!("{id} holds {sum} of {model}, not {held}")));
        }
    }
    for (id, tenant) in &state.tenants {
        let idle = tenant.held.keys().filter(|model| !sums.contains_key(&(*id, **model)));
        found.extend(idle.map(|model| violation(2, format!("{id} holds {model} by no lease"))));
    }
    found.extend(quota::check::sums(state).into_iter().map(|what| violation(2, what)));
    found
}

/// INV-4, the part seen in the state: each hold is the whole duration at the frozen price.
fn holds_are_priced(state: &State) -> Vec<Violation> {
    let priced = state.leases.iter().filter(|(_, lease)| {
        let terms = &lease.terms;
        let span = terms.duration.as_millis();
        let cost = sublet_protocol::money::cost_half_even(terms.price, terms.gpu_total(), span);
        cost != Some(terms.hold)
    });
    priced.map(|(id, _)| violation(4, format!("the hold of {id} is not its worst case"))).collect()
}

/// INV-5: at most one record per tenant and key, and the indexes agree.
fn one_answer_per_key(state: &State) -> Vec<Violation> {
    let mut found = Vec::new();
    if state.keys.len() != state.keys_by_time.len() {
        found.push(violation(5, "keys and keys by time differ in number".into()));
    }
    let lost = state.keys_by_time.iter().filter(|(at, scope, key)| {
        state.keys.get(&(*scope, *key)).is_none_or(|entry| entry.used_at != *at)
    });
    found.extend(lost.map(|(at, _, _)| violation(5, format!("a key used at {at} is lost"))));
    let ahead = state.keys.values().filter(|entry| entry.first >= state.next_index);
    found.extend(ahead.map(|entry| {
        violation(5, format!("a key points at record {}, which does not exist", entry.first))
    }));
    found
}

/// INV-6, the part seen in the state: no two leases share a token, none is ahead of the counter.
fn tokens_increase(state: &State) -> Vec<Violation> {
    let mut seen = BTreeMap::new();
    let mut found = Vec::new();
    for (id, lease) in &state.leases {
        let token = lease.terms.token;
        if token.counter > state.tokens {
            found.push(violation(6, format!("{id} has token {token}, ahead of the counter")));
        }
        if let Some(other) = seen.insert(token, *id) {
            found.push(violation(6, format!("{id} and {other} share token {token}")));
        }
    }
    found
}

/// INV-13: holds are never negative; what a tenant has on hold is the sum of its leases' holds, and
/// what its budget holds is the worst case of those that were granted this month.
fn holds_match_leases(state: &State) -> Vec<Violation> {
    let mut sums: BTreeMap<TenantId, i128> = BTreeMap::new();
    let mut found = Vec::new();
    for (id, lease) in &state.leases {
        if lease.terms.hold < MicroCredits::ZERO {
            found.push(violation(13, format!("the hold of {id} is negative")));
        }
        *sums.entry(lease.terms.tenant).or_default() += i128::from(lease.terms.hold.get());
    }
    for (id, tenant) in &state.tenants {
        let sum = sums.get(id).copied().unwrap_or(0);
        if sum != i128::from(tenant.hold.get()) {
            found.push(violation(13, format!("{id} has {} on hold, not {sum}", tenant.hold)));
        }
    }
    found.extend(quota::check::spending(state).into_iter().map(|what| violation(13, what)));
    found
}

/// INV-14: what the state keeps is below its caps, and the counts that enforce them are right.
fn bounded(state: &State) -> Vec<Violation> {
    let policy = &state.policy;
    let mut found = Vec::new();
    let mut open: BTreeMap<TenantId, u32> = BTreeMap::new();
    for request in state.requests.values() {
        *open.entry(request.tenant).or_default() += 1;
    }
    for (id, tenant) in &state.tenants {
        if tenant.open_requests != open.get(id).copied().unwrap_or(0) {
            found.push(violation(14, format!("{id} has a wrong count of open requests")));
        }
        if tenant.keys > policy.keys_per_tenant {
            found.push(violation(14, format!("{id} has {} keys", tenant.keys)));
        }
    }
    let mut offers: BTreeMap<_, u32> = BTreeMap::new();
    for slice in state.offers.keys() {
        *offers.entry(slice.cluster).or_default() += 1;
    }
    for (id, cluster) in &state.clusters {
        if cluster.open_offers != offers.get(id).copied().unwrap_or(0) {
            found.push(violation(14, format!("{id} has a wrong count of open offers")));
        }
    }
    let (open, over): (Vec<_>, Vec<_>) = state.rollbacks.values().partition(|r| r.is_open());
    if open.len() > OPEN_MAX || over.len() > OVER_MAX {
        found.push(violation(14, "more rollbacks are known than may be".into()));
    }
    let is_listed = |r: &&Rollback| r.is_open() == is_list(&r.leases) && r.done <= r.total;
    let wrong = state.rollbacks.iter().filter(|(_, rollback)| !is_listed(rollback));
    found.extend(wrong.map(|(id, _)| violation(14, format!("{id} has a wrong list of leases"))));
    // Of a lease its end and its recall.
    let most =
        state.offers.len() + state.requests.len() + 2 * state.leases.len() + state.rollbacks.len();
    if state.due.len() > most {
        found.push(violation(14, "more is due than can be".into()));
    }
    found
}

/// INV-15: requests and leases point at each other, a lease starts before it ends, what waits is
/// indexed, and what is due exists.
fn grants_are_sound(state: &State) -> Vec<Violation> {
    let mut found = Vec::new();
    for (id, lease) in &state.leases {
        let request = state.requests.get(&lease.terms.request);
        let is_served = request.is_some_and(|r| r.stage == RequestStage::Granted { lease: *id });
        if !is_served {
            found.push(violation(15, format!("{id} serves a request that was not granted it")));
        }
        if let LeaseStage::Active { since, ends_at } = lease.stage
            && since >= ends_at
        {
            found.push(violation(15, format!("{id} ends before it starts")));
        }
    }
    for (id, request) in &state.requests {
        if request.is_waiting() != state.waiting.contains(id) {
            found.push(violation(15, format!("{id} is not indexed as it waits")));
        }
        if let RequestStage::Granted { lease } = &request.stage
            && !state.leases.contains_key(lease)
        {
            found.push(violation(15, format!("{id} is granted {lease}, which does not live")));
        }
    }
    let kept = state.pledged.iter().filter(|(slice, request)| {
        let stage = state.requests.get(request).map(|request| &request.stage);
        !matches!(stage, Some(RequestStage::Pledged { slices, .. }) if slices.contains(slice))
    });
    found
        .extend(kept.map(|(slice, id)| violation(15, format!("{slice} is kept for {id} in vain"))));
    promises_are_sound(state, &mut found);
    let stale = state.due.iter().filter(|(at, thing)| !is_live(state, *at, *thing));
    found.extend(
        stale.map(|(at, thing)| violation(15, format!("{thing:?} is due at {at} in vain"))),
    );
    found
}

/// A promise is made to a request that waits without a pledge, for as many slices as it asks; each is
/// offered or leased unless it is known to be gone, and the index agrees.
fn promises_are_sound(state: &State, found: &mut Vec<Violation>) {
    let mut index: BTreeMap<SliceId, BTreeSet<RequestId>> = BTreeMap::new();
    for (id, promise) in &state.promises {
        let request = state.requests.get(id).filter(|r| r.stage == RequestStage::Waiting);
        let asked = request.and_then(|request| usize::try_from(request.spec.count).ok());
        if asked != Some(promise.slices.len()) {
            found.push(violation(15, format!("what is promised to {id} is not what it waits for")));
        }
        for (slice, standing) in &promise.slices {
            index.entry(*slice).or_default().insert(*id);
            let is_there = state.offers.contains_key(slice) || state.leased.contains_key(slice);
            if *standing == Whereabouts::There && !is_there {
                found.push(violation(15, format!("{slice} is promised to {id} and not there")));
            }
        }
    }
    if index != state.promised {
        found
            .push(violation(15, "the index of promised slices is not that of the promises".into()));
    }
}

fn is_live(state: &State, at: sublet_protocol::units::Timestamp, thing: Due) -> bool {
    match thing {
        Due::Offer(slice) => state.offers.get(&slice).is_some_and(|o| o.expires_at == at),
        Due::Pledge(request) => state.requests.get(&request).is_some_and(
            |r| matches!(&r.stage, RequestStage::Pledged { until, .. } if *until == at),
        ),
        Due::Start(lease) | Due::End(lease) | Due::Budget(lease) | Due::Notice(lease) => {
            state.leases.get(&lease).is_some_and(|entry| entry.due(lease) == Some((at, thing)))
        }
        Due::Approval(rollback) => {
            let rollback = state.rollbacks.get(&rollback);
            rollback.is_some_and(|r| r.stage == RollbackStage::Proposed { approve_by: at })
        }
        Due::Recall(lease) => {
            let lease = state.leases.get(&lease);
            lease.is_some_and(|l| l.is_running() && l.recalled_by == Some(at))
        }
    }
}
