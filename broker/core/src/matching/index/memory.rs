//! The index of a cell: kept up record by record, and asked by the planner.

use std::collections::{BTreeMap, BTreeSet};

use sublet_protocol::capacity::{Origin, Part, SliceId};
use sublet_protocol::events::Event;
use sublet_protocol::ids::{ClusterId, GpuModel, LeaseId, NodeId, RequestId, TenantId};
use sublet_protocol::leases::LeaseTerms;
use sublet_protocol::offers::{HostRoom, OfferTerms};
use sublet_protocol::quotas::Basis;
use sublet_protocol::records::Record;
use sublet_protocol::requests::Tier;
#[cfg(test)]
use sublet_protocol::units::Millis;
use sublet_protocol::units::Timestamp;

use super::families::Families;
use super::leases::{Leases, Standing};
use super::queue::{ClassKey, Queue};
#[cfg(test)]
use super::shelves::ShelfContents;
use super::shelves::{Kind, Shelves, window};
use super::{ClassNo, LotNo, NONE, NodeNo, PoolNo, TenantNo};
use crate::fit;
use crate::matching::reserve::CONSERVATIVE_MAX;
use crate::matching::{Limits, Preemption};
use crate::preemption;
use crate::quota::Month;
use crate::state::{Request, RequestStage, State};

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
    pub(super) shelves: Shelves,
    pub(super) families: Families,
    pub(super) leases: Leases,
    tenants: Vec<TenantId>,
    tenant_numbers: BTreeMap<TenantId, TenantNo>,
    pools: BTreeMap<(GpuModel, Tier), PoolNo>,
    /// By pledge: where its slices lie.
    pledges: BTreeMap<RequestId, Vec<SliceId>>,
    /// What waiting requests were promised.
    promises: BTreeMap<RequestId, Vec<SliceId>>,
    /// Classes that sleep because no start is known for them.
    pub(super) barren: BTreeSet<ClassNo>,
    /// Requests of the last plan that no record has confirmed yet.
    pub(super) proposed: BTreeSet<RequestId>,
    /// Classes that sleep for want of quota or budget.
    pub(super) short_of_quota: BTreeSet<ClassNo>,
    /// Classes that sleep and could end other leases, if there were some to end.
    pub(super) watchers: BTreeSet<ClassNo>,
    /// By the topmost group: classes that sleep and could take back what was lent, if more was lent or
    /// they held less.
    pub(super) lenders: BTreeMap<TenantId, BTreeSet<ClassNo>>,
    /// By lease: the parts that it carves out of GPUs.
    carved: BTreeMap<LeaseId, Vec<SliceId>>,
    /// Whether any offer ever named the host room of a whole node.
    is_host_shared: bool,
    /// Requests that were preempted and pause: they are in no class until then.
    paused: BTreeSet<(Timestamp, RequestId)>,
    /// Nodes that are left out because they refused starts, until then.
    paused_nodes: BTreeSet<(Timestamp, ClusterId, NodeId)>,
    /// Whether the last plan would have ended leases if there were budget for it, and when it was.
    pub(super) short_of_budget: Option<Timestamp>,
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
            shelves: Shelves::new(seed),
            families: Families::default(),
            leases: Leases::new(seed, state.now),
            tenants: Vec::new(),
            tenant_numbers: BTreeMap::new(),
            pools: BTreeMap::new(),
            pledges: BTreeMap::new(),
            promises: BTreeMap::new(),
            barren: BTreeSet::new(),
            proposed: BTreeSet::new(),
            short_of_quota: BTreeSet::new(),
            watchers: BTreeSet::new(),
            lenders: BTreeMap::new(),
            carved: BTreeMap::new(),
            is_host_shared: false,
            paused: BTreeSet::new(),
            paused_nodes: BTreeSet::new(),
            short_of_budget: None,
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
            }
        }
        for (slice, request) in &state.pledged {
            index.pledges.entry(*request).or_default().push(*slice);
        }
        for (request, promise) in &state.promises {
            index.promises.insert(*request, promise.slices.keys().copied().collect());
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
                self.promise_over(state, *request);
                self.promises.insert(*request, slices.clone());
                self.claimed(state, *request, slices);
            }
            Event::PromiseWithdrawn { request, .. } => {
                self.proposed.remove(request);
                self.promise_over(state, *request);
            }
            Event::CapacityPledged { request, slices, .. } => {
                self.proposed.remove(request);
                self.promise_over(state, *request);
                self.claimed(state, *request, slices);
                self.pledges.insert(*request, slices.clone());
                self.request(state, *request);
                self.wake_lenders_of(state, tenant_of(state, *request));
            }
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
                // How long a leased slice stays idle is not known: it can be counted on again.
                for class in std::mem::take(&mut self.barren) {
                    self.queue.wake(class);
                }
            }
            Event::LeaseActivated { lease, .. } => self.lease(state, *lease),
            Event::LeaseEnding { lease, .. } => {
                self.lease(state, *lease);
                let lease = state.leases.get(lease);
                self.wake_lenders_of(state, lease.map(|lease| lease.terms.tenant));
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
            Event::LeaseCapped { .. } => self.wake_short_of_quota(),
            Event::MemberRefused { slice, .. } => {
                let node = state.nodes.get(&(slice.cluster, slice.node));
                if let Some(until) = node.and_then(|node| node.paused_until) {
                    self.paused_nodes.insert((until, slice.cluster, slice.node));
                }
            }
            // What concerns neither room nor order.
            Event::RequestRefused { .. }
            | Event::MemberConfirmed { .. }
            | Event::CheckpointReported { .. }
            | Event::LeaseRecalled { .. }
            | Event::MemberStopped { .. }
            | Event::UsageRecorded { .. }
            | Event::TailSealed { .. }
            | Event::KeyUsed { .. }
            | Event::KeysForgotten { .. }
            | Event::NodeRegistered { .. }
            | Event::NodeSilenced { .. }
            | Event::LeaseEndAnnounced { .. }
            | Event::NodeFenced { .. }
            | Event::TenantOverAdmitted { .. }
            | Event::TenantCreated { .. }
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
        self.next_record == state.next_index && !self.families.are_stale()
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
        self.short_of_quota.clear();
        self.watchers.clear();
        self.lenders.clear();
        self.barren.clear();
        self.queue.wake_all();
    }

    fn wake_short_of_quota(&mut self) {
        for class in std::mem::take(&mut self.short_of_quota) {
            self.queue.wake(class);
        }
    }

    /// What the tenant holds has changed: who may take back what was lent among its likes looks again.
    fn wake_lenders_of(&mut self, state: &State, tenant: Option<TenantId>) {
        if self.lenders.is_empty() {
            return;
        }
        // Of who is not there any more it is not known whom it concerns.
        let woken = match tenant {
            Some(tenant) => self.lenders.remove(&state.tree.top(tenant)).into_iter().collect(),
            None => std::mem::take(&mut self.lenders).into_values().collect::<Vec<_>>(),
        };
        for class in woken.into_iter().flatten() {
            self.queue.wake(class);
        }
    }

    /// What a request was promised is not kept for it any more: others may take it, and its tenant's
    /// other requests have their quota back.
    fn promise_over(&mut self, state: &State, request: RequestId) {
        let Some(slices) = self.promises.remove(&request) else { return };
        if self.promises.len() + 1 >= CONSERVATIVE_MAX {
            // Somebody else may hold one now.
            self.wake_all();
        }
        for slice in slices {
            self.offered(state, slice);
        }
        self.wake_short_of_quota();
    }

    /// Slices are taken over the heads of those they were promised to: what else those were promised
    /// is needed later than before.
    fn claimed(&mut self, state: &State, by: RequestId, slices: &[SliceId]) {
        for slice in slices {
            for other in state.promised_on(*slice).filter(|other| *other != by) {
                for slice in self.promises.get(&other).cloned().unwrap_or_default() {
                    self.offered(state, slice);
                }
            }
        }
    }

    /// Before a plan: wakes what time, the limits or a plan that was not taken open.
    pub(super) fn begin(&mut self, state: &State, now: Timestamp, limits: &Limits) {
        let mut has_gained = false;
        self.leases.advance(now, |_| has_gained = true);
        // Budgets are told by the minute.
        let minute = |at: Timestamp| at.get() / 60_000;
        has_gained |= self.short_of_budget.take_if(|at| minute(*at) < minute(now)).is_some();
        self.now = self.now.max(now);
        while let Some((until, request)) = self.paused.first().copied()
            && until <= now
        {
            self.paused.pop_first();
            self.request(state, request);
        }
        while let Some((until, cluster, node)) = self.paused_nodes.first().copied()
            && until <= now
        {
            self.paused_nodes.pop_first();
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
    }

    fn wake_watchers(&mut self) {
        for class in std::mem::take(&mut self.watchers) {
            self.queue.wake(class);
        }
    }

    fn wake_node(&mut self, cluster: ClusterId, node: NodeId) {
        let Some(node) = self.shelves.find_node(cluster, node) else { return };
        let lots: Vec<LotNo> = self.shelves.lots_on(node).collect();
        for lot in lots {
            self.wake_lot(lot);
        }
    }

    fn wake_lot(&mut self, lot: LotNo) {
        for class in self.families.classes_of_lot(lot) {
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
        let known = self.shelves.find_node(slice.cluster, slice.node);
        let known = known.and_then(|node| self.shelves.find_slot(node, slice.device, slice.part));
        if let Some(slot) = known {
            self.shelves.take(slot);
        }
        let offer = state.offers.get(&slice)?;
        self.is_host_shared |= offer.terms().host == HostRoom::Node;
        let kind = Kind::of(&slice, offer.capacity());
        let (lot, is_new) = self.shelves.lot(&kind);
        if is_new {
            self.families.add_lot(state, lot, &kind);
        }
        let node = self.shelves.node(slice.cluster, slice.node);
        let span = fit::longest_promise(offer.terms().idle_for);
        self.shelves.put((node, lot), (slice.device, slice.part), window(span));
        Some(lot)
    }

    fn tenant(&mut self, tenant: TenantId) -> TenantNo {
        let tenants = &mut self.tenants;
        *self.tenant_numbers.entry(tenant).or_insert_with(|| {
            tenants.push(tenant);
            TenantNo(u32::try_from(tenants.len() - 1).unwrap_or(NONE))
        })
    }

    /// Brings a request up to date.
    fn request(&mut self, state: &State, id: RequestId) {
        let entry = state.requests.get(&id).filter(|request| request.is_waiting());
        let paused_until = entry.and_then(|request| request.paused_until);
        let entry = match paused_until.filter(|until| *until > self.now) {
            Some(until) => {
                self.paused.insert((until, id));
                None
            }
            None => entry,
        };
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
            self.families.remove_class(key.family, class);
            self.short_of_quota.remove(&class);
            self.watchers.remove(&class);
            if let Some(lenders) =
                self.lenders.get_mut(&state.tree.top(self.tenant_name(key.tenant)))
            {
                lenders.remove(&class);
            }
            self.barren.remove(&class);
        }
        if let Some(request) = entry {
            self.arrived(state, id, request);
        }
    }

    fn arrived(&mut self, state: &State, id: RequestId, request: &Request) {
        let (tenant, spec) = (request.tenant, &request.spec);
        let family = self.families.of(state, &self.shelves, (tenant, spec));
        let key = ClassKey {
            tenant: self.tenant(tenant),
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
            self.families.add_class(family, class);
        }
        self.queue.arrive(id, class, request.submitted_at);
    }

    /// Brings a lease up to date.
    fn lease(&mut self, state: &State, id: LeaseId) {
        let running = state.leases.get(&id).filter(|lease| lease.is_running());
        let guarded_until = running.and_then(|lease| preemption::spared_until(state, lease));
        let Some((lease, guarded_until)) = running.zip(guarded_until) else {
            return self.leases.remove(id);
        };
        let pools = u32::try_from(self.pools.len()).unwrap_or(NONE);
        let terms = &lease.terms;
        let pool = *self.pools.entry((terms.model, terms.tier())).or_insert(PoolNo(pools));
        let standing = Standing {
            pool,
            // The newest gives way first.
            rank: u64::MAX - lease.granted_at.get(),
            gpu: u32::try_from(terms.gpu_total().get()).unwrap_or(u32::MAX),
            guarded_until,
        };
        if self.leases.put(id, standing) {
            self.wake_watchers();
        }
    }

    /// The name of a tenant's ordinal.
    pub(super) fn tenant_name(&self, tenant: TenantNo) -> TenantId {
        self.tenants[tenant.at()]
    }

    /// The tenant's ordinal, if it ever had a request that waited.
    pub(super) fn tenant_number(&self, tenant: TenantId) -> Option<TenantNo> {
        self.tenant_numbers.get(&tenant).copied()
    }

    /// All that it knows, by names: two indexes of one state know the same, whatever their past.
    #[cfg(test)]
    pub(crate) fn contents(&self) -> Contents {
        let requests = self.queue.classes().flat_map(|class| {
            let key = *self.queue.key(class);
            let rest = (self.tenant_name(key.tenant), key.tier, key.priority, key.needed);
            let is_lone = self.queue.is_lone(class);
            let requests: Vec<RequestId> = self.queue.requests(class).collect();
            [(requests, rest, is_lone)]
        });
        let mut lots: Vec<_> = self
            .shelves
            .lots()
            .flat_map(|lot| {
                let kind = *self.shelves.kind(lot).expect("a lot that holds slices");
                let shelves = self.shelves.contents(lot).into_iter();
                shelves.map(move |shelf| (format!("{kind:?}"), shelf))
            })
            .collect();
        lots.sort();
        let mut requests: Vec<_> = requests.collect();
        requests.sort();
        let leases = self.pools.iter().map(|((model, tier), pool)| {
            let leases: BTreeSet<_> = self.leases.giving_way(*pool).map(|(id, _)| id).collect();
            ((*model, *tier), leases)
        });
        let leases = leases.filter(|(_, leases)| !leases.is_empty()).collect();
        let pledges = self.pledges.iter();
        let pledges = pledges.map(|(id, slices)| (*id, slices.iter().copied().collect())).collect();
        Contents { requests, lots, leases, pledges }
    }

    /// The nodes that may hold a slice for the class, in no order; some more than once.
    pub(super) fn nodes_for(&self, class: ClassNo) -> impl Iterator<Item = NodeNo> + '_ {
        let key = self.queue.key(class);
        let spec = self.families.spec(key.family);
        let wanted = fit::wanted_promise(spec, key.needed).map_or(0, window);
        let lots = self.families.lots(key.family).iter();
        lots.flat_map(move |lot| self.shelves.nodes(*lot, wanted))
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
    let quota = node.map(|node| node.quota(offer.capacity.model));
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
    leases: BTreeMap<(GpuModel, Tier), BTreeSet<LeaseId>>,
    pledges: BTreeMap<RequestId, BTreeSet<SliceId>>,
}

/// The requests of a class in order, their tenant, tier, priority and need, and whether it is lone.
#[cfg(test)]
type ClassContents = (Vec<RequestId>, (TenantId, Tier, u8, Millis), bool);
