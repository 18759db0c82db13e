//! `evolve`: records a fact in the state. Nothing else changes it.
//!
//! It cannot fail: an event was decided on the very state it is folded into. An event that does not
//! fit is a bug (or another cell's journal), and stops the process.

mod promises;
mod rollbacks;

use std::collections::BTreeSet;

use sublet_protocol::capacity::{Origin, SliceId};
use sublet_protocol::commands::NackReason;
use sublet_protocol::events::{Event, Settlement};
use sublet_protocol::ids::{CommandId, GpuModel, LeaseId, RequestId, TenantId};
use sublet_protocol::leases::{EndReason, LeaseTerms};
use sublet_protocol::money::MicroCredits;
use sublet_protocol::offers::OfferTerms;
use sublet_protocol::records::Record;
use sublet_protocol::requests::PromiseCause;
use sublet_protocol::units::{GpuMilli, Millis, Timestamp};

use crate::quota::Spend;
use crate::state::{
    Cluster, Due, EndNotice, KeyEntry, LastHour, Lease, LeaseStage, Node, Offer, Request,
    RequestStage, State, Tenant, Whereabouts,
};

pub(crate) use promises::taken_away;

const LIVE_LEASE: &str = "INV-12: an event names a lease that is live";
const LIVE_REQUEST: &str = "INV-12: an event names a request that is open";
const KNOWN_TENANT: &str = "INV-12: an event names a tenant that exists";
const KNOWN_CLUSTER: &str = "INV-12: an event names a cluster that exists";

/// Folds a record into the state.
///
/// # Panics
/// When the record is not the next one, or names what does not exist.
pub fn fold(state: &mut State, record: &Record) {
    assert_eq!(record.index, state.next_index, "INV-12: records are folded in order, each once");
    evolve(state, record.time, &record.event);
    originate(state, record.cause, &record.event);
}

/// Notes by which command the cell came to be what it is.
pub(crate) fn originate(state: &mut State, cause: CommandId, event: &Event) {
    if matches!(event, Event::CellCreated { .. } | Event::CellRestored { .. }) {
        state.origin = Some(cause);
    }
}

/// Records a fact that happened `at` this ledger time.
///
/// # Panics
/// When time goes back, or the event names what does not exist.
pub fn evolve(state: &mut State, at: Timestamp, event: &Event) {
    assert!(at >= state.now, "INV-6: ledger time never goes back");
    state.now = at;
    match event {
        Event::CellCreated { cell, epoch, policy } => {
            state.cell = Some((*cell, *epoch));
            state.policy = policy.clone();
            state.sealed_at = at;
        }
        Event::CellRestored { epoch } => {
            if let Some((_, now)) = &mut state.cell {
                *now = *epoch;
            }
        }
        Event::FeatureLevelRaised { level } => state.feature_level = *level,
        Event::BrokerEnlisted { broker } => {
            state.brokers.insert(*broker);
        }
        Event::PolicySet { policy } => state.policy = policy.clone(),
        Event::TenantCreated { tenant, parent } => tenant_created(state, *tenant, *parent),
        Event::QuotaSet { tenant, model, quota } => {
            let moment = state.moment();
            state.tree.set_quota(*tenant, *model, *quota, &moment);
        }
        Event::TermsSet { tenant, terms } => {
            let moment = state.moment();
            state.tree.set_terms(*tenant, *terms, &moment);
        }
        Event::TenantMoved { tenant, parent } => {
            let moment = state.moment();
            state.tree.set_parent(*tenant, *parent, &moment);
        }
        Event::CalendarSet { tenant, calendar } => {
            if let Some(entry) = state.tenants.get_mut(tenant) {
                entry.calendar.clone_from(calendar);
            }
        }
        Event::TenantOverAdmitted { .. } | Event::TenantNamed { .. } => {}
        Event::ClusterCreated { cluster, owner, region, devices_max } => {
            let fresh = Cluster {
                owner: *owner,
                region: *region,
                devices_max: *devices_max,
                devices: std::collections::BTreeMap::new(),
                open_offers: 0,
                created_at: at,
                preempted: LastHour::default(),
            };
            state.clusters.insert(*cluster, fresh);
        }
        Event::PriceSet { owner, model, tier, price } => {
            state.prices.insert((*owner, *model, *tier), *price);
        }
        Event::NodeRegistered { cluster, node, boot, host } => {
            let fresh = Node {
                boot: *boot,
                host: *host,
                is_silent: false,
                is_fenced: false,
                generations: std::collections::BTreeMap::new(),
                registered_at: at,
                refusals: 0,
                paused_until: None,
            };
            state.nodes.insert((*cluster, *node), fresh);
        }
        Event::NodeSilenced { cluster, node, .. } => {
            if let Some(node) = state.nodes.get_mut(&(*cluster, *node)) {
                node.is_silent = true;
            }
        }
        Event::CapacityOffered { offer, expires_at } => offered(state, offer, *expires_at),
        Event::OfferRescinded { slice, generation, reason } => {
            remember_generation(state, *slice, *generation);
            remove_offer(state, *slice);
            promises::stands(state, *slice, promises::after_offer(*reason));
        }
        Event::RequestSubmitted { request, tenant, spec } => {
            let fresh = Request {
                tenant: *tenant,
                spec: spec.clone(),
                submitted_at: at,
                since: at,
                stage: RequestStage::Waiting,
                attempts: 0,
                failed_starts: 0,
                recalls: 0,
                preemptions: 0,
                paused_until: None,
            };
            state.requests.insert(*request, fresh);
            state.waiting.insert(*request);
            tenant_mut(state, *tenant).open_requests += 1;
        }
        Event::RequestRefused { .. } => {}
        Event::RequestCancelled { request, tenant }
        | Event::RequestClosed { request, tenant, .. } => {
            state.requests.remove(request);
            state.waiting.remove(request);
            promises::ended(state, *request);
            tenant_mut(state, *tenant).open_requests -= 1;
        }
        Event::RequestRequeued { request, reason, .. } => requeued(state, *request, *reason),
        Event::CapacityPledged { request, slices, until } => {
            pledged(state, *request, slices, *until);
        }
        Event::PledgeEnded { request } => pledge_ended(state, *request),
        Event::LeaseGranted { terms, .. } => granted(state, terms),
        Event::MemberConfirmed { lease, slice } => {
            if let LeaseStage::Granted { confirmed, .. } = &mut lease_mut(state, *lease).stage {
                confirmed.insert(*slice);
            }
        }
        Event::MemberRefused { lease, slice, reason } => {
            lease_mut(state, *lease).stopped.insert(*slice);
            refused(state, *slice, *reason);
        }
        Event::LeaseCapped { lease, billed_max } => capped(state, *lease, *billed_max),
        Event::LeaseActivated { lease, ends_at } => activated(state, *lease, *ends_at),
        Event::UsageRecorded { lease, used } => {
            let lease = lease_mut(state, *lease);
            lease.used = lease.used.max(*used);
        }
        Event::LeaseEnding { lease, cause, deadline } => ending(state, *lease, *cause, *deadline),
        Event::MemberStopped { lease, slice, used, .. } => {
            let lease = lease_mut(state, *lease);
            lease.used = lease.used.max(*used);
            lease.stopped.insert(*slice);
        }
        Event::LeaseEnded { lease, reason, settlement, .. } => {
            ended(state, *lease, *reason, settlement);
        }
        Event::TailSealed { .. } => {
            state.unsealed_from = state.next_index;
            state.sealed_at = at;
        }
        Event::KeyUsed { tenant, key, first } => {
            let entry = KeyEntry { body: key.body, first: *first, used_at: at };
            state.keys.insert((*tenant, key.key), entry);
            state.keys_by_time.insert((at, *tenant, key.key));
            *key_count(state, *tenant) += 1;
        }
        Event::KeysForgotten { before } => keys_forgotten(state, *before),
        Event::LeaseEndAnnounced { lease, cause, at: ends } => {
            remove_lease_due(state, *lease);
            let entry = lease_mut(state, *lease);
            entry.notice = Some(EndNotice { cause: *cause, at: *ends, given_at: at });
            if *cause == EndReason::Expired {
                entry.notice_at = None;
            }
            insert_lease_due(state, *lease);
        }
        Event::NodeFenced { cluster, node, .. } => {
            if let Some(node) = state.nodes.get_mut(&(*cluster, *node)) {
                node.is_fenced = true;
            }
        }
        Event::NodeRemoved { cluster, node } => {
            state.nodes.remove(&(*cluster, *node));
            if let Some(cluster) = state.clusters.get_mut(cluster) {
                cluster.devices.retain(|_, of| of != node);
            }
        }
        Event::PeriodClosed { until, .. } => state.closed_until = *until,
        Event::RollbackProposed { .. }
        | Event::RollbackApproved { .. }
        | Event::RollbackDropped { .. }
        | Event::LeaseRolledBack { .. }
        | Event::ChargeTurned { .. }
        | Event::RollbackAdvanced { .. }
        | Event::RollbackFinished { .. } => rollbacks::happened(state, event),
        Event::CheckpointReported { lease } => {
            lease_mut(state, *lease).checkpoint_at = Some(at);
        }
        Event::LeaseRecalled { lease, by } => recalled(state, *lease, *by),
        Event::StartPromised { request, start, not_before, slices, cause, .. } => {
            promises::made(state, *request, (*start, *not_before), slices, *cause);
        }
        Event::PromiseWithdrawn { request, .. } => promises::ended(state, *request),
    }
    state.next_index += 1;
}

fn tenant_mut(state: &mut State, tenant: TenantId) -> &mut Tenant {
    state.tenants.get_mut(&tenant).expect(KNOWN_TENANT)
}

fn lease_mut(state: &mut State, lease: LeaseId) -> &mut Lease {
    state.leases.get_mut(&lease).expect(LIVE_LEASE)
}

fn key_count(state: &mut State, scope: Option<TenantId>) -> &mut u32 {
    match scope {
        Some(tenant) => &mut tenant_mut(state, tenant).keys,
        None => &mut state.operator_keys,
    }
}

fn tenant_created(state: &mut State, tenant: TenantId, parent: Option<TenantId>) {
    state.tree.insert(tenant, parent);
    let fresh = Tenant {
        held: std::collections::BTreeMap::new(),
        open_requests: 0,
        keys: 0,
        hold: MicroCredits::ZERO,
        created_at: state.now,
        calendar: None,
    };
    state.tenants.insert(tenant, fresh);
}

fn remember_generation(state: &mut State, slice: SliceId, generation: u64) {
    let node = state.nodes.get_mut(&(slice.cluster, slice.node));
    let node = node.expect("INV-12: an event names a node that has registered");
    let known = node.generations.entry((slice.device, slice.part)).or_default();
    *known = generation.max(*known);
}

fn offered(state: &mut State, offer: &OfferTerms, expires_at: Timestamp) {
    let slice = offer.slice;
    remove_offer(state, slice);
    remember_generation(state, slice, offer.generation);
    if let Some(node) = state.nodes.get_mut(&(slice.cluster, slice.node)) {
        node.is_silent = false;
    }
    let cluster = state.clusters.get_mut(&slice.cluster).expect(KNOWN_CLUSTER);
    cluster.open_offers += 1;
    cluster.devices.insert(slice.device, slice.node);
    let owner = cluster.owner;
    let (model, gpu) = (offer.capacity.model, offer.capacity.gpu);
    let moment = state.moment();
    state.tree.change_hardware(owner, model, (gpu, GpuMilli::ZERO), &moment);
    state.offers.insert(slice, Offer { terms: *offer, offered_at: state.now, expires_at });
    promises::stands(state, slice, Whereabouts::There);
    state.due.insert((expires_at, Due::Offer(slice)));
}

fn remove_offer(state: &mut State, slice: SliceId) {
    let Some(offer) = state.offers.remove(&slice) else { return };
    state.due.remove(&(offer.expires_at, Due::Offer(slice)));
    let cluster = state.clusters.get_mut(&slice.cluster).expect(KNOWN_CLUSTER);
    cluster.open_offers -= 1;
    let owner = cluster.owner;
    let (model, gpu) = (offer.terms.capacity.model, offer.terms.capacity.gpu);
    let moment = state.moment();
    state.tree.change_hardware(owner, model, (GpuMilli::ZERO, gpu), &moment);
}

fn requeued(state: &mut State, request: RequestId, reason: EndReason) {
    let now = state.now;
    let entry = state.requests.get_mut(&request).expect(LIVE_REQUEST);
    entry.stage = RequestStage::Waiting;
    entry.since = now;
    match reason {
        EndReason::StartFailed => entry.failed_starts += 1,
        EndReason::Preempted => {
            entry.recalls += 1;
            entry.preemptions = entry.preemptions.saturating_add(1);
            let pause = state.policy.preemption.pause(entry.preemptions);
            entry.paused_until = Some(now.after(pause));
        }
        _recall => entry.recalls += 1,
    }
    state.waiting.insert(request);
}

fn pledged(state: &mut State, request: RequestId, slices: &[SliceId], until: Timestamp) {
    let entry = state.requests.get_mut(&request).expect(LIVE_REQUEST);
    let (slices_kept, by) = (slices.iter().copied().collect(), state.next_index);
    entry.stage = RequestStage::Pledged { slices: slices_kept, until, by };
    promises::ended(state, request);
    state.pledged.extend(slices.iter().map(|slice| (*slice, request)));
    state.due.insert((until, Due::Pledge(request)));
}

fn pledge_ended(state: &mut State, request: RequestId) {
    let entry = state.requests.get_mut(&request).expect(LIVE_REQUEST);
    if let RequestStage::Pledged { slices, until, .. } = &entry.stage {
        for slice in slices {
            state.pledged.remove(slice);
        }
        state.due.remove(&(*until, Due::Pledge(request)));
        entry.stage = RequestStage::Waiting;
    }
}

fn granted(state: &mut State, terms: &LeaseTerms) {
    let lease = terms.lease;
    let now = state.now;
    let leased = leased_hardware(terms);
    let moment = state.moment();
    state.tree.change_hardware(terms.owner, terms.model, (leased, GpuMilli::ZERO), &moment);
    for member in &terms.members {
        match member.origin {
            Origin::Offered => remove_offer(state, member.slice),
            // The offer of the whole GPU stands for what is left of it.
            Origin::Carved => {}
        }
        state.leased.insert(member.slice, lease);
    }
    let request = state.requests.get_mut(&terms.request).expect(LIVE_REQUEST);
    request.stage = RequestStage::Granted { lease };
    request.since = now;
    request.attempts = terms.attempt;
    state.waiting.remove(&terms.request);
    promises::ended(state, terms.request);
    let tenant = tenant_mut(state, terms.tenant);
    let held = tenant.held.entry(terms.model).or_default();
    *held = held.saturating_add(terms.gpu_total());
    tenant.hold = tenant.hold.checked_add(terms.hold).expect("the hold was checked when decided");
    state.tokens = terms.token.counter;
    let start_by = now.after(state.policy.start_timeout);
    let stage = LeaseStage::Granted { start_by, confirmed: BTreeSet::new() };
    let fresh = Lease {
        terms: terms.clone(),
        granted_at: now,
        granted_by: state.next_index,
        stage,
        stopped: BTreeSet::new(),
        used: Millis::ZERO,
        billed_max: None,
        checkpoint_at: None,
        recalled_by: None,
        notice_at: None,
        notice: None,
        rolled_back: None,
    };
    let moment = state.moment();
    state.tree.take(terms.tenant, terms.model, terms.gpu_total(), &moment);
    state.tree.hold(terms.tenant, fresh.worst(), &moment);
    state.leases.insert(lease, fresh);
    insert_lease_due(state, lease);
}

/// When the tenant is told of the bought end: not at all if it comes sooner than the notice.
fn notice_at(since: Timestamp, ends_at: Timestamp, notice: Millis) -> Option<Timestamp> {
    let bought = ends_at.since(since);
    let is_told = notice > Millis::ZERO && bought > notice;
    is_told.then(|| since.after_millis(bought.saturating_sub(notice)))
}

/// What of the owner's hardware a lease stands on besides what is on offer: its slices as they were
/// offered. What is carved out of a GPU is part of the offer of the whole.
fn leased_hardware(terms: &LeaseTerms) -> GpuMilli {
    let offered = terms.members.iter().filter(|member| member.origin == Origin::Offered);
    let amounts = offered.map(|member| member.capacity.gpu);
    amounts.fold(GpuMilli::ZERO, GpuMilli::saturating_add)
}

fn insert_lease_due(state: &mut State, lease: LeaseId) {
    let due = state.leases.get(&lease).expect(LIVE_LEASE).due(lease);
    state.due.extend(due);
}

fn remove_lease_due(state: &mut State, lease: LeaseId) {
    if let Some(due) = state.leases.get(&lease).expect(LIVE_LEASE).due(lease) {
        state.due.remove(&due);
    }
}

fn capped(state: &mut State, id: LeaseId, billed_max: Millis) {
    remove_lease_due(state, id);
    let lease = lease_mut(state, id);
    let before = lease.worst();
    lease.billed_max = Some(billed_max);
    let (tenant, granted_at, after) = (lease.terms.tenant, lease.granted_at, lease.worst());
    state.tree.settle(tenant, granted_at, (before.minus(after), Spend::default()));
    insert_lease_due(state, id);
}

fn activated(state: &mut State, id: LeaseId, ends_at: Timestamp) {
    remove_lease_due(state, id);
    let since = state.now;
    let notice_at = notice_at(since, ends_at, state.policy.end_notice.as_millis());
    let lease = lease_mut(state, id);
    lease.stage = LeaseStage::Active { since, ends_at };
    lease.notice_at = notice_at;
    let members: Vec<SliceId> = lease.terms.members.iter().map(|member| member.slice).collect();
    insert_lease_due(state, id);
    for SliceId { cluster, node, .. } in members {
        if let Some(node) = state.nodes.get_mut(&(cluster, node)) {
            node.refusals = 0;
        }
    }
}

/// A start was refused. After several in a row, whose cause is the node, it is left out for a while.
fn refused(state: &mut State, slice: SliceId, reason: NackReason) {
    let (most, pause) = (state.policy.node_refusals, state.policy.node_pause);
    let until = state.now.after(pause);
    let Some(node) = state.nodes.get_mut(&(slice.cluster, slice.node)) else { return };
    match reason {
        NackReason::NotEmpty | NackReason::DeviceFault | NackReason::StartFailed => {}
        // The broker's view was old, or the owner came, or the tenant sent nothing.
        NackReason::StaleToken
        | NackReason::OtherBoot
        | NackReason::OwnerBusy
        | NackReason::Draining
        | NackReason::Workload => return,
    }
    node.refusals = node.refusals.saturating_add(1);
    if node.refusals >= most {
        node.refusals = 0;
        node.paused_until = Some(until);
    }
}

fn ending(state: &mut State, id: LeaseId, cause: EndReason, deadline: Timestamp) {
    remove_lease_due(state, id);
    forget_recall(state, id);
    let now = state.now;
    let lease = lease_mut(state, id);
    let active_since = lease.active_since();
    lease.stage = LeaseStage::Ending { cause, deadline, active_since };
    if cause == EndReason::Preempted {
        let cluster = lease.terms.cluster;
        state.preempted.add(now);
        if let Some(cluster) = state.clusters.get_mut(&cluster) {
            cluster.preempted.add(now);
        }
    }
}

fn recalled(state: &mut State, id: LeaseId, by: Timestamp) {
    forget_recall(state, id);
    lease_mut(state, id).recalled_by = Some(by);
    let members = state.leases[&id].terms.members.clone();
    for member in members {
        let lost = Whereabouts::Lost(PromiseCause::OwnerReturned);
        promises::stands(state, member.slice, lost);
    }
    state.due.insert((by, Due::Recall(id)));
}

/// A recall is no longer due: the lease ends anyway, or another instant was named.
fn forget_recall(state: &mut State, id: LeaseId) {
    if let Some(by) = lease_mut(state, id).recalled_by {
        state.due.remove(&(by, Due::Recall(id)));
    }
}

fn ended(state: &mut State, lease: LeaseId, reason: EndReason, settlement: &Settlement) {
    remove_lease_due(state, lease);
    forget_recall(state, lease);
    let over = state.leases.remove(&lease).expect(LIVE_LEASE);
    for member in &over.terms.members {
        state.leased.remove(&member.slice);
        promises::stands(state, member.slice, promises::after_lease(reason, state.now));
    }
    let terms = &over.terms;
    let tenant = tenant_mut(state, terms.tenant);
    release_quota(tenant, terms.model, terms.gpu_total());
    tenant.hold = tenant.hold.checked_sub(terms.hold).expect("INV-13: the hold was open");
    let moment = state.moment();
    state.tree.give_back(terms.tenant, terms.model, terms.gpu_total(), &moment);
    let leased = leased_hardware(terms);
    state.tree.change_hardware(terms.owner, terms.model, (GpuMilli::ZERO, leased), &moment);
    let real = Spend::of(terms.price, terms.gpu_total(), settlement.billed).unwrap_or_default();
    state.tree.settle(terms.tenant, over.granted_at, (over.worst(), real));
}

fn release_quota(tenant: &mut Tenant, model: GpuModel, amount: GpuMilli) {
    let held = tenant.held.get_mut(&model).expect("INV-2: what is released was held");
    *held = held.checked_sub(amount).expect("INV-2: what is released was held");
    if *held == GpuMilli::ZERO {
        tenant.held.remove(&model);
    }
}

fn keys_forgotten(state: &mut State, before: Timestamp) {
    while let Some((used_at, scope, key)) = state.keys_by_time.first().copied() {
        if used_at >= before {
            return;
        }
        state.keys_by_time.remove(&(used_at, scope, key));
        state.keys.remove(&(scope, key));
        *key_count(state, scope) -= 1;
    }
}
