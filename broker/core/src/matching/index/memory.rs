//! The index of a cell: kept up record by record, and asked by the planner.

use std::collections::{BTreeMap, BTreeSet};

use sublet_protocol::capacity::{Capacity, Origin, Part, SliceId};
use sublet_protocol::events::Event;
use sublet_protocol::ids::{ClusterId, LeaseId, NodeId, RequestId, TenantId};
use sublet_protocol::leases::LeaseTerms;
use sublet_protocol::offers::{HostRoom, OfferTerms};
use sublet_protocol::quotas::Basis;
use sublet_protocol::records::Record;
#[cfg(test)]
use sublet_protocol::requests::Tier;
#[cfg(test)]
use sublet_protocol::units::Millis;
use sublet_protocol::units::Timestamp;

use super::LotNo;
use super::known::{Known, Sleepers};
use super::lots::{Kind, window};
use super::queue::{ClassKey, Queue};
use super::running::{PoolKey, is_preempted};
#[cfg(test)]
use super::shelves::ShelfContents;

use crate::fit;
use crate::matching::reserve::{CONSERVATIVE_MAX, RESTING_MAX};
use crate::matching::{Limits, Preemption};
use crate::preemption;
use crate::quota::Month;
use crate::state::{Request, RequestStage, State, StateView};

/// Scatters ids over tables. It changes no answer; a shell may choose another.
const SEED: u64 = 0x5ca1_ab1e_0dd5_eed5;

/// What the planner remembers of a cell between plans.
///
/// It follows one state: [`Index::of`] reads it once, [`Index::on_record`] hears of each record that
/// was folded into it. Classes of requests that found no room sleep until a record, the clock or the
/// limits open something for them; a plan looks at the others only.
#[derive(Debug, Clone)]
pub struct Index {
    seed: u64,
    /// The next record it has not heard of.
    next_record: u64,
    pub(super) queue: Queue,
    pub(super) known: Known,
    pub(super) sleepers: Sleepers,
    /// By pledge: where its slices lie.
    pledges: BTreeMap<RequestId, Vec<SliceId>>,
    /// Requests of the last plan that no record has confirmed yet.
    pub(super) proposed: BTreeSet<RequestId>,
    /// By lease: the parts that it carves out of GPUs.
    carved: BTreeMap<LeaseId, Vec<SliceId>>,
    /// Whether any offer ever named the host room of a whole node.
    is_host_shared: bool,
    /// Requests that were preempted and pause, or that wait for better hours: they are in no class
    /// until then.
    paused: BTreeSet<(Timestamp, RequestId)>,
    /// Requests that may start only until then, for now.
    closing: BTreeSet<(Timestamp, RequestId)>,
    /// Nodes that are left out because they refused starts, until then.
    paused_nodes: BTreeSet<(Timestamp, ClusterId, NodeId)>,
    limits: Limits,
    /// The month of the last plan: a new one has new budgets.
    month: Month,
    /// The latest of the state's and the last plan's time.
    now: Timestamp,
}

impl Index {
    /// The index of a state as it is.
    #[must_use]
    pub fn of(state: &State) -> Index {
        Index::seeded(state, SEED)
    }

    /// As [`Index::of`], with a seed of the caller's for its tables: whoever chooses ids must not
    /// know it.
    #[must_use]
    pub fn seeded(state: &State, seed: u64) -> Index {
        let mut index = Index {
            seed,
            next_record: state.next_index,
            queue: Queue::new(seed),
            known: Known::new(seed, state.now),
            sleepers: Sleepers::default(),
            pledges: BTreeMap::new(),
            proposed: BTreeSet::new(),
            carved: BTreeMap::new(),
            is_host_shared: false,
            paused: BTreeSet::new(),
            closing: BTreeSet::new(),
            paused_nodes: BTreeSet::new(),
            limits: Limits::NONE,
            month: Month::of(state.now),
            now: state.now,
        };
        for slice in state.offers.keys() {
            index.slice(state, *slice);
        }
        for id in &state.waiting {
            index.request(state, *id);
        }
        // The oldest first: each finds its place at the front of its pool.
        let mut leases: Vec<_> = state.leases.iter().collect();
        leases.sort_by_key(|(id, lease)| (lease.granted_at, std::cmp::Reverse(**id)));
        for (id, lease) in leases {
            index.lease(state, *id);
            index.carved(&lease.terms);
        }
        for ((cluster, node), entry) in &state.nodes {
            if let Some(until) = entry.paused_until {
                index.paused_nodes.insert((until, *cluster, *node));
                index.known.paused_nodes.insert((*cluster, *node));
            }
        }
        for (slice, request) in &state.pledged {
            index.pledges.entry(*request).or_default().push(*slice);
        }
        for (request, promise) in &state.promises {
            let slices: Vec<SliceId> = promise.slices.keys().copied().collect();
            index.known.promises.add(state, *request, &slices);
        }
        index
    }

    /// A record was folded into the state that it follows.
    ///
    /// `state` may be further on than the record: what the record names is read as it is now. After
    /// the state's last record the index is that of the state.
    pub fn on_record(&mut self, state: &State, record: &Record) {
        if record.index != self.next_record {
            // A record was missed: what is not in step is built anew by the next plan.
            self.next_record = u64::MAX;
            return;
        }
        self.next_record += 1;
        match &record.event {
            Event::CapacityOffered { offer, .. } => {
                self.offered(state, offer.slice);
                if counts_for_quotas(state, offer) {
                    self.wake_short_of_quota();
                    self.wake_lenders_of(state, owner_of(state, offer.slice.cluster));
                }
            }
            Event::OfferRescinded { slice, .. } => {
                // A search for a start takes another way without it, and may find one.
                let lot = self.lot_of(*slice);
                self.wake_barren_of(lot);
                self.slice(state, *slice);
                self.wake_lenders_of(state, owner_of(state, slice.cluster));
            }
            Event::RequestSubmitted { request, .. } | Event::RequestRequeued { request, .. } => {
                self.request(state, *request);
            }
            Event::RequestCancelled { request, .. } | Event::RequestClosed { request, .. } => {
                self.request(state, *request);
                self.promise_over(state, *request);
            }
            Event::StartPromised { request, slices, .. } => {
                self.proposed.remove(request);
                if let Some((_, before)) = self.known.promises.remove(*request) {
                    self.unpromised(state, before);
                }
                self.known.promises.add(state, *request, slices);
                self.claimed(state, *request, slices);
                self.come_later(state, slices);
                // It may rest now, or rest no longer.
                self.request(state, *request);
            }
            Event::PromiseWithdrawn { request, .. } => {
                self.proposed.remove(request);
                self.promise_over(state, *request);
                self.request(state, *request);
            }
            Event::CapacityPledged { request, slices, .. } => {
                self.proposed.remove(request);
                self.promise_over(state, *request);
                self.claimed(state, *request, slices);
                self.come_later(state, slices);
                self.pledges.insert(*request, slices.clone());
                self.request(state, *request);
                self.wake_lenders_of(state, tenant_of(state, *request));
            }
            // What its owner wants back comes free for nobody.
            Event::LeaseRecalled { lease, .. } => self.lease(state, *lease),
            Event::PledgeEnded { request } => {
                for slice in self.pledges.remove(request).unwrap_or_default() {
                    self.offered(state, slice);
                    self.part_freed(state, slice);
                }
                // So is the quota that was kept with them.
                self.wake_short_of_quota();
                self.request(state, *request);
                self.wake_lenders_of(state, tenant_of(state, *request));
            }
            Event::LeaseGranted { terms, .. } => {
                self.proposed.remove(&terms.request);
                for member in &terms.members {
                    self.slice(state, member.slice);
                }
                self.carved(terms);
                self.request(state, terms.request);
                self.lease(state, terms.lease);
                self.promise_over(state, terms.request);
                let slices: Vec<SliceId> =
                    terms.members.iter().map(|member| member.slice).collect();
                self.claimed(state, terms.request, &slices);
                self.wake_lenders_of(state, Some(terms.tenant));
                for member in &terms.members {
                    self.comes_later(&member.slice, Some(&member.capacity));
                }
            }
            Event::LeaseActivated { lease, .. } | Event::CheckpointReported { lease, .. } => {
                self.lease(state, *lease);
            }
            Event::LeaseEnding { lease, .. } => {
                self.lease(state, *lease);
                let lease = state.leases.get(lease);
                self.wake_lenders_of(state, lease.map(|lease| lease.terms.tenant));
                // More quota than it was ended for may come back with it.
                if lease.is_some_and(is_preempted) {
                    self.wake_short_of_quota();
                }
            }
            Event::LeaseEnded { lease, tenant, .. } => {
                self.lease(state, *lease);
                self.wake_lenders_of(state, Some(*tenant));
                for slice in self.carved.remove(lease).unwrap_or_default() {
                    self.part_freed(state, slice);
                }
                if self.is_host_shared {
                    // What a lease held of its node's host is free for all others there.
                    self.wake_all();
                }
                self.wake_short_of_quota();
            }
            Event::LeaseCapped { .. } | Event::ChargeTurned { .. } => self.wake_short_of_quota(),
            Event::MemberRefused { slice, .. } => {
                let node = state.nodes.get(&(slice.cluster, slice.node));
                if let Some(until) = node.and_then(|node| node.paused_until) {
                    self.paused_nodes.insert((until, slice.cluster, slice.node));
                    self.known.paused_nodes.insert((slice.cluster, slice.node));
                }
            }
            // What concerns neither room nor order.
            Event::RequestRefused { .. }
            | Event::MemberConfirmed { .. }
            | Event::MemberStopped { .. }
            | Event::UsageRecorded { .. }
            | Event::TailSealed { .. }
            | Event::CellRestored { .. }
            | Event::BrokerEnlisted { .. }
            | Event::FeatureLevelRaised { .. }
            | Event::KeyUsed { .. }
            | Event::KeysForgotten { .. }
            | Event::NodeRegistered { .. }
            | Event::NodeSilenced { .. }
            | Event::LeaseEndAnnounced { .. }
            | Event::NodeFenced { .. }
            | Event::NodeRemoved { .. }
            | Event::PeriodClosed { .. }
            | Event::RollbackProposed { .. }
            | Event::RollbackApproved { .. }
            | Event::RollbackDropped { .. }
            | Event::LeaseRolledBack { .. }
            | Event::RollbackAdvanced { .. }
            | Event::RollbackFinished { .. }
            | Event::TenantOverAdmitted { .. }
            | Event::TenantNamed { .. }
            | Event::TenantCreated { .. }
            | Event::CalendarSet { .. }
            | Event::ClusterCreated { .. } => {}
            // What changes the terms for many at once is rare.
            Event::QuotaSet { .. } | Event::PriceSet { .. } => self.wake_all(),
            // A budget decides, too, which requests are alike.
            Event::CellCreated { .. }
            | Event::PolicySet { .. }
            | Event::TermsSet { .. }
            | Event::TenantMoved { .. } => self.next_record = u64::MAX,
        }
    }

    /// Whether it has heard of every record of the state.
    #[must_use]
    pub fn is_of(&self, state: &State) -> bool {
        self.next_record == state.next_index && !self.known.families.are_stale()
    }

    /// As built anew from the state.
    pub(super) fn rebuilt(&self, state: &State) -> Index {
        Index::seeded(state, self.seed)
    }

    /// The next record that it must hear of.
    #[must_use]
    pub const fn next_record(&self) -> u64 {
        self.next_record
    }

    /// Everything that sleeps is looked at again.
    pub(super) fn wake_all(&mut self) {
        self.sleepers.wake_all(&mut self.queue);
    }

    fn wake_short_of_quota(&mut self) {
        self.sleepers.wake_short_of_quota(&mut self.queue);
    }

    /// What the tenant holds has changed: who may take back what was lent among its likes looks again.
    fn wake_lenders_of(&mut self, state: &State, tenant: Option<TenantId>) {
        // Of who is not there any more it is not known whom it concerns.
        let top = tenant.map(|tenant| state.tree.top(tenant));
        self.sleepers.wake_lenders_of(&mut self.queue, top);
    }

    /// What was promised of slices is not kept any more: others may take them, and their tenant's other
    /// requests have their quota back.
    fn unpromised(&mut self, state: &State, slices: Vec<SliceId>) {
        for slice in slices {
            self.offered(state, slice);
        }
        self.wake_short_of_quota();
    }

    /// A request holds no promise any more: another may hold one now.
    fn promise_over(&mut self, state: &State, request: RequestId) {
        let Some((whose, slices)) = self.known.promises.remove(request) else { return };
        self.unpromised(state, slices);
        // Fewer may rest than may hold a promise.
        let is_full = self.known.promises.len() + 1 >= RESTING_MAX;
        let Some((tenant, tier)) = whose.filter(|_| !is_full) else {
            return self.sleepers.wake_refused(&mut self.queue, |_| true);
        };
        let is_crowded = self.known.promises.count_of(tier) >= CONSERVATIVE_MAX;
        let tenant = self.known.tenant_number(tenant);
        self.sleepers.wake_refused(&mut self.queue, |key| {
            key.tier == tier && (!is_crowded || Some(key.tenant) == tenant)
        });
    }

    /// Slices are taken over the heads of those they were promised to: what else those were promised
    /// is needed later than before.
    fn claimed(&mut self, state: &State, by: RequestId, slices: &[SliceId]) {
        for slice in slices {
            for other in state.promised_on(*slice).filter(|other| *other != by) {
                for slice in self.known.promises.slices(other).to_vec() {
                    self.offered(state, slice);
                }
            }
        }
    }

    /// Before a plan: wakes what time, the limits or a plan that was not taken open.
    pub(super) fn begin(&mut self, state: &State, now: Timestamp, limits: &Limits) {
        for pool in self.known.running.advance(now) {
            self.wake_watchers_of(state, pool);
        }
        let mut has_gained = false;
        // Budgets are told by the minute.
        let minute = |at: Timestamp| at.get() / 60_000;
        has_gained |=
            self.sleepers.short_of_budget.take_if(|at| minute(*at) < minute(now)).is_some();
        self.now = self.now.max(now);
        let due = |times: &BTreeSet<(Timestamp, RequestId)>| {
            times.first().copied().filter(|(at, _)| *at <= now)
        };
        while let Some(first) = due(&self.paused) {
            self.paused.remove(&first);
            self.request(state, first.1);
        }
        while let Some(first) = due(&self.closing) {
            self.closing.remove(&first);
            self.request(state, first.1);
        }
        while let Some((until, cluster, node)) = self.paused_nodes.first().copied()
            && until <= now
        {
            self.paused_nodes.pop_first();
            if !state.nodes.get(&(cluster, node)).is_some_and(|node| node.is_paused(now)) {
                self.known.paused_nodes.remove(&(cluster, node));
            }
            self.wake_node(cluster, node);
            has_gained = true;
        }
        let month = Month::of(now);
        if std::mem::replace(&mut self.month, month) != month {
            self.wake_short_of_quota();
        }
        let is_resumed = self.limits.preemption == Preemption::Suspended
            && limits.preemption == Preemption::Allowed;
        if is_resumed || !self.proposed.is_empty() {
            self.proposed.clear();
            self.wake_all();
        }
        let opened: Vec<_> = self.limits.closed.difference(&limits.closed).copied().collect();
        // What leases hold on such a node may be freed for others again.
        if has_gained || !opened.is_empty() {
            self.wake_watchers();
        }
        for (cluster, node) in opened {
            self.wake_node(cluster, node);
        }
        self.limits = limits.clone();
        self.known.refresh(StateView { state, now });
    }

    fn wake_watchers(&mut self) {
        for class in std::mem::take(&mut self.sleepers.watchers) {
            self.queue.wake(class);
        }
    }

    /// A lease of the pool may be ended now: whoever is high enough above it, or may take back what was
    /// lent, looks again.
    fn wake_watchers_of(&mut self, state: &State, (model, _, tier): PoolKey) {
        let (queue, known) = (&mut self.queue, &self.known);
        self.sleepers.watchers.retain(|class| {
            let key = *queue.key(*class);
            let models = &known.families.spec(key.family).models;
            let is_below = preemption::gives_way_to(state, tier, key.tier)
                || state.tree.may_take_back(known.tenant_name(key.tenant));
            let could = is_below && (models.is_empty() || models.contains(&model));
            if could {
                queue.wake(*class);
            }
            !could
        });
    }

    fn wake_node(&mut self, cluster: ClusterId, node: NodeId) {
        let Some(node) = self.known.shelves.find_node(cluster, node) else { return };
        let lots: Vec<LotNo> = self.known.shelves.lots_on(node).collect();
        for lot in lots {
            self.wake_lot(lot);
        }
    }

    fn wake_lot(&mut self, lot: LotNo) {
        for class in self.known.families.classes_of_lot(lot) {
            self.queue.wake(class);
        }
    }

    /// A slice may serve someone whom it did not serve before.
    fn offered(&mut self, state: &State, slice: SliceId) {
        if let Some(lot) = self.slice(state, slice) {
            self.wake_lot(lot);
        }
    }

    /// A part of a GPU is free again: whom the rest of the GPU may serve, looks again.
    fn part_freed(&mut self, state: &State, slice: SliceId) {
        let whole = SliceId { part: Part::Whole, ..slice };
        if slice != whole && state.offers.contains_key(&whole) {
            self.offered(state, whole);
        }
    }

    /// A slice is leased, or kept for someone: how long it stays idle after that is not known, so
    /// whoever takes its like can count on it again.
    fn comes_later(&mut self, slice: &SliceId, capacity: Option<&Capacity>) {
        let lot =
            capacity.and_then(|capacity| self.known.shelves.find_lot(&Kind::of(slice, capacity)));
        self.wake_barren_of(lot);
    }

    /// Whoever takes slices of the lot and knows no start looks again; everybody who knows none, if
    /// the lot is not known.
    fn wake_barren_of(&mut self, lot: Option<LotNo>) {
        let Some(lot) = lot else { return self.sleepers.wake_barren(&mut self.queue) };
        for class in self.known.families.classes_of_lot(lot) {
            if self.sleepers.barren.remove(&class) {
                self.queue.wake(class);
            }
        }
    }

    /// The lot of an offered slice.
    fn lot_of(&self, slice: SliceId) -> Option<LotNo> {
        let shelves = &self.known.shelves;
        let node = shelves.find_node(slice.cluster, slice.node)?;
        Some(shelves.lot_of(shelves.find_slot(node, slice.device, slice.part)?))
    }

    /// As [`Index::comes_later`], for slices that are promised or pledged.
    fn come_later(&mut self, state: &State, slices: &[SliceId]) {
        for slice in slices {
            let there = fit::there(state, *slice);
            self.comes_later(slice, there.as_ref().map(|there| &there.capacity));
        }
    }

    /// Remembers the parts that a lease carves out of GPUs: its end frees them without an offer.
    fn carved(&mut self, terms: &LeaseTerms) {
        let carved = terms.members.iter().filter(|member| member.origin == Origin::Carved);
        let slices: Vec<SliceId> = carved.map(|member| member.slice).collect();
        if !slices.is_empty() {
            self.carved.insert(terms.lease, slices);
        }
    }

    /// Brings a slice up to date; its lot, if it is on offer.
    fn slice(&mut self, state: &State, slice: SliceId) -> Option<LotNo> {
        self.known.supply.touched(&slice);
        let known = self.known.shelves.find_node(slice.cluster, slice.node);
        let known =
            known.and_then(|node| self.known.shelves.find_slot(node, slice.device, slice.part));
        if let Some(slot) = known {
            self.known.shelves.take(slot);
        }
        let offer = state.offers.get(&slice)?;
        self.is_host_shared |= offer.terms().host == HostRoom::Node;
        let kind = Kind::of(&slice, offer.capacity());
        let (lot, is_new) = self.known.shelves.lot(&kind);
        if is_new {
            self.known.families.add_lot(state, lot, &kind);
        }
        let node = self.known.shelves.node(slice.cluster, slice.node);
        let span = fit::longest_promise(offer.terms().idle_for);
        self.known.shelves.put((node, lot), (slice.device, slice.part), window(span));
        Some(lot)
    }

    /// Brings a request up to date.
    fn request(&mut self, state: &State, id: RequestId) {
        // Whatever becomes of it, what is kept for it may be free earlier or later.
        for slice in self.pledges.get(&id).into_iter().flatten() {
            self.known.supply.touched(slice);
        }
        let entry = state.requests.get(&id).filter(|request| request.is_waiting());
        let opens_at = entry.map(|request| state.opens_at(id, request, self.now));
        let entry = match opens_at.filter(|at| *at > self.now) {
            Some(until) => {
                self.paused.insert((until, id));
                None
            }
            None => entry,
        };
        let closes_at = entry.and_then(|request| state.closes_at(id, request, self.now));
        if let Some(closes_at) = closes_at {
            self.closing.insert((closes_at, id));
        }
        let known = self.queue.find(id);
        let is_same = match (known, entry) {
            (Some(class), Some(request)) => self.queue.is_lone(class) == is_lone(request),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        if is_same {
            return;
        }
        if let Some((class, key)) = known.map(|class| (class, *self.queue.key(class)))
            && let Some((_, true)) = self.queue.leave(id)
        {
            self.known.families.remove_class(key.family, class);
            self.sleepers.forget(class, state.tree.top(self.known.tenant_name(key.tenant)));
        }
        if let Some(request) = entry {
            self.arrived(state, id, request);
        }
    }

    fn arrived(&mut self, state: &State, id: RequestId, request: &Request) {
        let (tenant, spec) = (request.tenant, &request.spec);
        let family = self.known.families.of(state, &self.known.shelves, (tenant, spec));
        let key = ClassKey {
            tenant: self.known.tenant(tenant),
            family,
            tier: spec.class.tier(),
            priority: spec.priority,
            needed: fit::needed(spec),
            bought: spec.duration,
            gpu: spec.gpu_total(),
        };
        let (class, is_new) = match is_lone(request) {
            true => (self.queue.lone_class(key), true),
            false => self.queue.class(key),
        };
        if is_new {
            self.known.families.add_class(family, class);
        }
        self.queue.arrive(id, class, request.submitted_at);
    }

    /// Brings a lease up to date.
    fn lease(&mut self, state: &State, id: LeaseId) {
        self.known.supply.lease(StateView { state, now: self.now }, id);
        if let Some(pool) = self.known.running.note(state, id) {
            self.wake_watchers_of(state, pool);
        }
    }

    /// All that it knows, by names: two indexes of one state know the same, whatever their past.
    #[cfg(test)]
    pub(crate) fn contents(&self) -> Contents {
        let requests = self.queue.classes().flat_map(|class| {
            let key = *self.queue.key(class);
            let rest = (self.known.tenant_name(key.tenant), key.tier, key.priority, key.needed);
            let is_lone = self.queue.is_lone(class);
            let requests: Vec<RequestId> = self.queue.requests(class).collect();
            [(requests, rest, is_lone)]
        });
        let mut lots: Vec<_> = self
            .known
            .shelves
            .lots()
            .flat_map(|lot| {
                let kind = *self.known.shelves.kind(lot).expect("a lot that holds slices");
                let shelves = self.known.shelves.contents(lot).into_iter();
                shelves.map(move |shelf| (format!("{kind:?}"), shelf))
            })
            .collect();
        lots.sort();
        let mut requests: Vec<_> = requests.collect();
        requests.sort();
        let pools = self.known.running.pools();
        let leases =
            pools.map(|(key, pool)| (key, self.known.running.leases(pool).collect())).collect();
        let running = &self.known.running;
        let told = [
            running.reported().collect(),
            running.preempted().collect(),
            running.ending().collect(),
        ];
        let pledges = self.pledges.iter();
        let pledges = pledges.map(|(id, slices)| (*id, slices.iter().copied().collect())).collect();
        Contents { requests, lots, leases, told, pledges, supply: self.known.supply.contents() }
    }
}

fn tenant_of(state: &State, request: RequestId) -> Option<TenantId> {
    state.requests.get(&request).map(|request| request.tenant)
}

fn owner_of(state: &State, cluster: ClusterId) -> Option<TenantId> {
    state.clusters.get(&cluster).map(|cluster| cluster.owner)
}

/// Whether more on offer is more quota for the owner, and so for its group.
fn counts_for_quotas(state: &State, offer: &OfferTerms) -> bool {
    let owner = state.clusters.get(&offer.slice.cluster).map(|cluster| cluster.owner);
    let node = owner.and_then(|owner| state.tree.node(owner));
    let quota = node.and_then(|node| node.quota(offer.capacity.model));
    quota.is_some_and(|quota| quota.basis == Basis::Hardware)
}

/// Whether a request is like no other: slices are kept for it.
fn is_lone(request: &Request) -> bool {
    matches!(request.stage, RequestStage::Pledged { .. })
}

/// See [`Index::contents`].
#[cfg(test)]
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Contents {
    requests: Vec<ClassContents>,
    lots: Vec<(String, ShelfContents)>,
    leases: BTreeMap<PoolKey, BTreeSet<LeaseId>>,
    told: [BTreeSet<LeaseId>; 3],
    pledges: BTreeMap<RequestId, BTreeSet<SliceId>>,
    supply: crate::matching::supply::Contents,
}

/// The requests of a class in order, their tenant, tier, priority and need, and whether it is lone.
#[cfg(test)]
type ClassContents = (Vec<RequestId>, (TenantId, Tier, u8, Millis), bool);
