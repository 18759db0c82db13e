//! Every slice that is offered or leased, by kind and node, with the instant from which it is free; and
//! when tenants give back what they hold.
//!
//! An index keeps one up to date: a record says which leases and slices it touched, and what stands on
//! their nodes is read anew. Nothing in it depends on the time of day but what is said so: an instant
//! that has passed means now.

use std::collections::BTreeMap;

use sublet_protocol::capacity::{Capacity, Origin, Part, SliceId};
use sublet_protocol::ids::{ClusterId, DeviceId, GpuModel, LeaseId, NodeId, TenantId};
use sublet_protocol::units::{GpuMilli, Millis, Timestamp};

use super::openings::{Ends, after_pledge, free_at, over_parts};
use crate::fit::Candidate;
use crate::state::{State, StateView};

/// Slices that one grant can take together but for where they stand.
pub(crate) type Kind = (ClusterId, GpuModel, GpuMilli);

/// A slice that a reservation may count on, if what is offered of it still stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spot {
    device: DeviceId,
    part: Part,
    /// What it holds: its place in [`Supply::capacity_of`].
    pub(super) capacity: u32,
    /// Whether it is on offer; else it is leased.
    pub(super) is_offered: bool,
    /// When its lease and the parts of it are over.
    over_at: Timestamp,
    /// For how long it is kept for another then.
    pledged_for: Millis,
}

impl Spot {
    pub(super) fn slice(&self, cluster: ClusterId, node: NodeId) -> SliceId {
        SliceId { cluster, node, device: self.device, part: self.part }
    }

    /// When its lease is over, at the earliest now.
    pub(super) fn over_by(&self, now: Timestamp) -> Timestamp {
        self.over_at.max(now)
    }

    /// When it is free for whom it is not pledged to.
    pub(super) fn free_at(&self, now: Timestamp) -> Timestamp {
        self.over_at.max(now).after_millis(self.pledged_for)
    }
}

/// The slices of a kind.
#[derive(Debug, Clone, Default)]
pub(crate) struct Places {
    /// By node, those that are over first before the others.
    pub(super) nodes: BTreeMap<NodeId, Vec<Spot>>,
    /// What they hold, and how many slices hold that.
    pub(super) capacities: BTreeMap<u32, usize>,
}

#[derive(Debug, Clone)]
struct Node {
    name: (ClusterId, NodeId),
    kinds: Vec<Kind>,
    is_stale: bool,
}

/// What a lease holds of its tenant's quota until when, and where.
#[derive(Debug, Clone)]
struct Holding {
    account: u32,
    back: Timestamp,
    nodes: Vec<u32>,
}

/// See the module.
#[derive(Debug, Clone)]
pub(crate) struct Supply {
    ends: Ends,
    kinds: BTreeMap<Kind, Places>,
    capacities: Vec<Capacity>,
    nodes: Vec<Node>,
    numbers: BTreeMap<(ClusterId, NodeId), u32>,
    stale: Vec<u32>,
    holdings: BTreeMap<LeaseId, Holding>,
    accounts: BTreeMap<(TenantId, GpuModel), u32>,
    /// By account: what leases give back, in the order of their ends.
    returns: Vec<BTreeMap<(Timestamp, LeaseId), GpuMilli>>,
}

impl Supply {
    /// Nothing.
    pub(crate) const fn new(ends: Ends) -> Supply {
        Supply {
            ends,
            kinds: BTreeMap::new(),
            capacities: Vec::new(),
            nodes: Vec::new(),
            numbers: BTreeMap::new(),
            stale: Vec::new(),
            holdings: BTreeMap::new(),
            accounts: BTreeMap::new(),
            returns: Vec::new(),
        }
    }

    /// All of a state, by the given ends.
    pub(crate) fn of(view: StateView<'_>, ends: Ends) -> Supply {
        let mut supply = Supply::new(ends);
        for slice in view.state.offers.keys() {
            supply.touched(slice);
        }
        for id in view.state.leases.keys() {
            supply.lease(view, *id);
        }
        supply.refresh(view, |_| ());
        supply
    }

    /// Something has happened to a slice, or to what is kept of it for whom.
    pub(crate) fn touched(&mut self, slice: &SliceId) {
        let number = self.number((slice.cluster, slice.node));
        self.spoil(number);
    }

    /// Something has happened to a lease: it may be new, or gone.
    pub(crate) fn lease(&mut self, view: StateView<'_>, id: LeaseId) {
        if let Some(Holding { account, back, nodes }) = self.holdings.remove(&id) {
            self.returns[at(account)].remove(&(back, id));
            nodes.into_iter().for_each(|number| self.spoil(number));
        }
        let Some(lease) = view.state.leases.get(&id) else { return };
        let terms = &lease.terms;
        let mut nodes: Vec<u32> = Vec::new();
        for member in &terms.members {
            let number = self.number((member.slice.cluster, member.slice.node));
            if nodes.last() != Some(&number) {
                self.spoil(number);
                nodes.push(number);
            }
        }
        let returns = &mut self.returns;
        let account = *self.accounts.entry((terms.tenant, terms.model)).or_insert_with(|| {
            returns.push(BTreeMap::new());
            number_of(returns.len() - 1)
        });
        // What its owner takes is given back as far as quotas go.
        let back = over_at(view, id, self.ends).unwrap_or(Timestamp::ZERO);
        self.returns[at(account)].insert((back, id), terms.gpu_total());
        self.holdings.insert(id, Holding { account, back, nodes });
    }

    fn number(&mut self, name: (ClusterId, NodeId)) -> u32 {
        let nodes = &mut self.nodes;
        *self.numbers.entry(name).or_insert_with(|| {
            nodes.push(Node { name, kinds: Vec::new(), is_stale: false });
            number_of(nodes.len() - 1)
        })
    }

    fn spoil(&mut self, number: u32) {
        let node = &mut self.nodes[at(number)];
        if !std::mem::replace(&mut node.is_stale, true) {
            self.stale.push(number);
        }
    }

    /// Reads anew what was touched since the last time, and tells on which nodes that was.
    pub(crate) fn refresh(
        &mut self,
        view: StateView<'_>,
        mut on_node: impl FnMut(&(ClusterId, NodeId)),
    ) {
        for number in std::mem::take(&mut self.stale) {
            self.read(view, number);
            on_node(&self.nodes[at(number)].name);
        }
    }

    fn read(&mut self, view: StateView<'_>, number: u32) {
        let node = &mut self.nodes[at(number)];
        node.is_stale = false;
        let (cluster, name) = node.name;
        for kind in std::mem::take(&mut node.kinds) {
            let Some(places) = self.kinds.get_mut(&kind) else { continue };
            for spot in places.nodes.remove(&name).unwrap_or_default() {
                drop_one(&mut places.capacities, spot.capacity);
            }
            if places.nodes.is_empty() {
                self.kinds.remove(&kind);
            }
        }
        for (candidate, over_at) in standing(view, (cluster, name), self.ends) {
            let Some(free) = after_pledge(view.state, candidate.slice, over_at) else { continue };
            let SliceId { device, part, .. } = candidate.slice;
            let capacity = self.capacity(&candidate.capacity);
            // A pledge may begin later than the slice is over: that is when it counts from.
            let (over_at, pledged_for) = match free == over_at {
                true => (over_at, Millis::ZERO),
                false => pledge(view.state, candidate.slice, over_at, free),
            };
            let is_offered = candidate.idle.is_some();
            let spot = Spot { device, part, capacity, is_offered, over_at, pledged_for };
            let kind = (cluster, candidate.capacity.model, candidate.capacity.gpu);
            let places = self.kinds.entry(kind).or_default();
            *places.capacities.entry(capacity).or_default() += 1;
            places.nodes.entry(name).or_default().push(spot);
            let kinds = &mut self.nodes[at(number)].kinds;
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        for kind in &self.nodes[at(number)].kinds {
            let places = self.kinds.get_mut(kind).and_then(|places| places.nodes.get_mut(&name));
            if let Some(spots) = places {
                spots.sort_by_key(|spot| spot.over_at);
            }
        }
    }

    fn capacity(&mut self, capacity: &Capacity) -> u32 {
        let known = self.capacities.iter().position(|known| known == capacity);
        number_of(known.unwrap_or_else(|| {
            self.capacities.push(*capacity);
            self.capacities.len() - 1
        }))
    }

    /// The slices by kind.
    pub(super) const fn kinds(&self) -> &BTreeMap<Kind, Places> {
        &self.kinds
    }

    /// What spots with this number hold.
    pub(super) fn capacity_of(&self, number: u32) -> Option<&Capacity> {
        self.capacities.get(at(number))
    }

    /// What the tenant will have given back of a model at `at`, which is not before now.
    pub(super) fn returned(&self, tenant: TenantId, model: GpuModel, at: Timestamp) -> GpuMilli {
        let returns = self.returns_of(tenant, model);
        let until = returns.take_while(|((back, _), _)| *back <= at);
        until.fold(GpuMilli::ZERO, |sum, (_, amount)| sum.saturating_add(*amount))
    }

    /// When the tenant will have given back `amount` of a model; never, if it holds less.
    pub(super) fn returns_by(
        &self,
        tenant: TenantId,
        model: GpuModel,
        amount: GpuMilli,
    ) -> Option<Timestamp> {
        let mut sum = GpuMilli::ZERO;
        for ((back, _), part) in self.returns_of(tenant, model) {
            sum = sum.saturating_add(*part);
            if sum >= amount {
                return Some(*back);
            }
        }
        None
    }

    fn returns_of(
        &self,
        tenant: TenantId,
        model: GpuModel,
    ) -> impl Iterator<Item = (&(Timestamp, LeaseId), &GpuMilli)> {
        let account = self.accounts.get(&(tenant, model));
        account.into_iter().flat_map(|account| &self.returns[at(*account)])
    }

    /// All that it knows, in order: two of one state know the same, whatever their past.
    #[cfg(test)]
    pub(crate) fn contents(&self) -> Contents {
        assert!(self.stale.is_empty(), "it was not refreshed");
        let places = self.kinds.iter().flat_map(|(kind, places)| {
            let counted: usize = places.capacities.values().sum();
            assert_eq!(counted, places.nodes.values().map(Vec::len).sum::<usize>());
            places.nodes.iter().flat_map(move |(node, spots)| {
                assert!(spots.is_sorted_by_key(|spot| spot.over_at) && !spots.is_empty());
                let told = |spot: &Spot| {
                    let capacity = self.capacities[at(spot.capacity)];
                    let slice = spot.slice(kind.0, *node);
                    let times = (spot.is_offered, spot.over_at, spot.pledged_for);
                    (slice, format!("{kind:?} {capacity:?} {times:?}"))
                };
                spots.iter().map(told).collect::<Vec<_>>()
            })
        });
        let mut places: Vec<_> = places.collect();
        places.sort();
        let accounts = self.accounts.iter().map(|(whose, account)| {
            let returns = self.returns[at(*account)].clone();
            (*whose, returns.into_iter().collect::<Vec<_>>())
        });
        (places, accounts.filter(|(_, returns)| !returns.is_empty()).collect())
    }
}

/// See [`Supply::contents`].
#[cfg(test)]
pub(crate) type Contents =
    (Vec<(SliceId, String)>, Vec<((TenantId, GpuModel), Vec<((Timestamp, LeaseId), GpuMilli)>)>);

/// What stands on a node, offered or leased, and when it is over.
fn standing(
    view: StateView<'_>,
    (cluster, node): (ClusterId, NodeId),
    ends: Ends,
) -> Vec<(Candidate, Timestamp)> {
    let state = view.state;
    let first = SliceId { cluster, node, device: DeviceId::new(0), part: Part::Whole };
    let is_here = |slice: &SliceId| (slice.cluster, slice.node) == (cluster, node);
    let mut found = Vec::new();
    for (slice, offer) in state.offers.range(first..).take_while(|(slice, _)| is_here(slice)) {
        // Nothing is carved out of it: it is free now.
        if let Some(over) = over_parts(state, *slice, ends, idle_since(view, ends)) {
            found.push((Candidate::of(offer), over));
        }
    }
    for (slice, id) in state.leased.range(first..).take_while(|(slice, _)| is_here(slice)) {
        let Some(lease) = state.leases.get(id) else { continue };
        let member = lease.terms.members.iter().find(|member| member.slice == *slice);
        // What was carved out of a GPU goes back into it: the GPU itself is on offer.
        let whole = member.filter(|member| member.origin == Origin::Offered);
        if let Some((member, over)) = whole.zip(over_at(view, *id, ends)) {
            let (capacity, origin) = (member.capacity, member.origin);
            found.push((Candidate { slice: *slice, capacity, origin, idle: None }, over));
        }
    }
    found
}

/// When a lease is over; never, if its owner or a fault takes it.
fn over_at(view: StateView<'_>, lease: LeaseId, ends: Ends) -> Option<Timestamp> {
    let lease = view.state.leases.get(&lease)?;
    free_at(view.state, lease, ends, idle_since(view, ends))
}

/// From when on a lease is taken to run that does not yet: bought ends do not depend on it, so what is
/// remembered of them holds at any time.
const fn idle_since(view: StateView<'_>, ends: Ends) -> Timestamp {
    match ends {
        Ends::Bought => Timestamp::ZERO,
        Ends::Predicted => view.now,
    }
}

/// When a pledge begins to keep a slice, at the earliest, and for how long then.
fn pledge(
    state: &State,
    slice: SliceId,
    over_at: Timestamp,
    free_at: Timestamp,
) -> (Timestamp, Millis) {
    let begins = super::openings::pledged_until(state, slice).map_or(over_at, |u| u.max(over_at));
    (begins, free_at.since(begins))
}

fn drop_one(counts: &mut BTreeMap<u32, usize>, key: u32) {
    if let Some(count) = counts.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&key);
        }
    }
}

fn at(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

fn number_of(place: usize) -> u32 {
    u32::try_from(place).unwrap_or(u32::MAX)
}
