//! Offers, alike ones counted together.

use std::collections::{BTreeMap, BTreeSet};

use sublet_core::{State, StateView};
use sublet_protocol::api::{FilterCount, Money, OfferPage, OfferPrice, OfferView};
use sublet_protocol::capacity::{Capacity, Isolation, SliceId};
use sublet_protocol::ids::{ClusterId, GpuModel, NodeId};
use sublet_protocol::offers::IdleFor;
use sublet_protocol::requests::Tier;
use sublet_protocol::units::{MiB, Seconds};

/// Which offers a borrower wants to see.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct OfferFilter {
    pub(crate) model: Option<GpuModel>,
    pub(crate) cluster: Option<ClusterId>,
    /// At least this much device memory.
    pub(crate) memory: Option<MiB>,
    /// At least this many free slices that are alike.
    pub(crate) count: Option<u64>,
}

/// What alike slices have in common, in the order of the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Alike {
    cluster: ClusterId,
    model: GpuModel,
    gpu: u64,
    memory: u64,
    isolation: Isolation,
    cpu: u64,
    host_memory: u64,
}

impl Alike {
    fn new(slice: &SliceId, capacity: &Capacity) -> Alike {
        Alike {
            cluster: slice.cluster,
            model: capacity.model,
            gpu: capacity.gpu.get(),
            memory: capacity.memory.get(),
            isolation: capacity.isolation,
            cpu: capacity.cpu.get(),
            host_memory: capacity.host_memory.get(),
        }
    }

    fn id(&self) -> String {
        let Alike { cluster, model, gpu, memory, isolation, cpu, host_memory } = self;
        let isolation = name_of(*isolation);
        format!("{cluster}/{model}/{gpu}/{memory}/{isolation}/{cpu}/{host_memory}")
    }
}

const fn name_of(isolation: Isolation) -> &'static str {
    match isolation {
        Isolation::Exclusive => "exclusive",
        Isolation::Mig => "mig",
        Isolation::Mps => "mps",
        Isolation::TimeSlice => "time_slice",
    }
}

/// Whether a text has the form of a group's id.
pub(crate) fn is_offer_group(text: &str) -> bool {
    let parts: Vec<&str> = text.split('/').collect();
    let [cluster, model, gpu, memory, isolation, cpu, host_memory] = parts[..] else {
        return false;
    };
    let known =
        [Isolation::Exclusive, Isolation::Mig, Isolation::Mps, Isolation::TimeSlice].map(name_of);
    let amounts = [gpu, memory, cpu, host_memory];
    cluster.parse::<ClusterId>().is_ok()
        && model.parse::<GpuModel>().is_ok()
        && known.contains(&isolation)
        && amounts.iter().all(|amount| amount.parse::<u64>().is_ok())
}

/// What is counted of a group.
#[derive(Debug, Clone, Copy, Default)]
struct Group {
    free: u32,
    kept: u32,
    closed: u32,
    leased: u32,
    terms: Option<Terms>,
}

/// The least that all free slices of a group promise.
#[derive(Debug, Clone, Copy)]
struct Terms {
    idle_for: IdleFor,
    recall_notice: Seconds,
}

impl Terms {
    fn least(self, other: Terms) -> Terms {
        let (a, b) = (self.idle_for, other.idle_for);
        let idle_for =
            IdleFor { p10: a.p10.min(b.p10), p50: a.p50.min(b.p50), p90: a.p90.min(b.p90) };
        Terms { idle_for, recall_notice: self.recall_notice.min(other.recall_notice) }
    }
}

/// One page of the groups that pass the filter, after the group with the id `after`. On nodes that are
/// `closed` nothing is free.
pub(crate) fn offers(
    view: StateView<'_>,
    closed: &BTreeSet<(ClusterId, NodeId)>,
    filter: OfferFilter,
    (after, limit): (Option<&str>, usize),
) -> OfferPage {
    let state = view.state;
    let groups = groups(view, closed);
    let free = |groups: &[(Alike, Group)]| groups.iter().map(|(_, group)| group.free).sum();
    let total = free(&groups);
    let mut filtered = Vec::new();
    let mut left = groups;
    let mut apply = |name: &str, is_asked: bool, fits: &dyn Fn(&Alike, &Group) -> bool| {
        if !is_asked {
            return;
        }
        let before: u32 = free(&left);
        left.retain(|(alike, group)| fits(alike, group));
        filtered.push(FilterCount { filter: name.to_owned(), removed: before - free(&left) });
    };
    let OfferFilter { model, cluster, memory, count } = filter;
    apply("model", model.is_some(), &|alike, _| model == Some(alike.model));
    apply("cluster", cluster.is_some(), &|alike, _| cluster == Some(alike.cluster));
    apply("memory", memory.is_some(), &|alike, _| memory.is_none_or(|m| alike.memory >= m.get()));
    apply("count", count.is_some(), &|_, group| {
        count.is_none_or(|count| u64::from(group.free) >= count)
    });
    let shown = free(&left);
    let mut items: Vec<OfferView> = left
        .iter()
        .map(|(alike, group)| (alike.id(), alike, group))
        .filter(|(id, _, _)| after.is_none_or(|after| id.as_str() > after))
        .map(|(id, alike, group)| shown_as(state, id, alike, group))
        .collect();
    items.sort_by(|a, b| a.id.cmp(&b.id));
    let is_last = items.len() <= limit;
    items.truncate(limit);
    let next_cursor = items.last().filter(|_| !is_last).map(|item| item.id.clone());
    OfferPage { items, next_cursor, shown, total, filtered }
}

fn groups(
    StateView { state, now }: StateView<'_>,
    closed: &BTreeSet<(ClusterId, NodeId)>,
) -> Vec<(Alike, Group)> {
    let is_closed = |slice: &SliceId| {
        let node = (slice.cluster, slice.node);
        let is_paused = state.nodes().get(&node).is_some_and(|node| node.is_paused(now));
        is_paused || closed.contains(&node)
    };
    let mut groups: BTreeMap<Alike, Group> = BTreeMap::new();
    for (slice, offer) in state.offers().iter().filter(|(_, offer)| offer.expires_at() > now) {
        let group = groups.entry(Alike::new(slice, offer.capacity())).or_default();
        if state.pledged().contains_key(slice) {
            group.kept += 1;
            continue;
        }
        if is_closed(slice) {
            group.closed += 1;
            continue;
        }
        group.free += 1;
        let age = now.since(offer.offered_at()).as_seconds_floor();
        let IdleFor { p10, p50, p90 } = offer.terms().idle_for;
        let left = |span: Seconds| span.saturating_sub(age);
        let idle_for = IdleFor { p10: left(p10), p50: left(p50), p90: left(p90) };
        let terms = Terms { idle_for, recall_notice: offer.terms().recall_notice };
        group.terms = Some(group.terms.map_or(terms, |least| least.least(terms)));
    }
    for member in state.leases().values().flat_map(|lease| &lease.terms().members) {
        groups.entry(Alike::new(&member.slice, &member.capacity)).or_default().leased += 1;
    }
    groups.into_iter().collect()
}

fn shown_as(state: &State, id: String, alike: &Alike, group: &Group) -> OfferView {
    let cluster = state.clusters().get(&alike.cluster);
    let cluster = cluster.expect("INV-15: what is offered or leased stands in a known cluster");
    let none = IdleFor { p10: Seconds::ZERO, p50: Seconds::ZERO, p90: Seconds::ZERO };
    let terms = group.terms.unwrap_or(Terms { idle_for: none, recall_notice: Seconds::ZERO });
    let prices = [Tier::Opportunistic, Tier::Standard, Tier::Reserved].into_iter();
    let prices = prices.filter_map(|tier| {
        let price = state.prices().get(&(cluster.owner(), alike.model, tier))?;
        let per_gpu_hour = Money::new(price.per_gpu_hour, state.policy().currency);
        Some(OfferPrice { tier, per_gpu_hour, version: price.version })
    });
    OfferView {
        id,
        cluster: alike.cluster,
        region: cluster.region(),
        model: alike.model,
        gpu: alike.gpu,
        memory: alike.memory,
        cpu: alike.cpu,
        host_memory: alike.host_memory,
        isolation: alike.isolation,
        free: group.free,
        kept: group.kept,
        closed: group.closed,
        leased: group.leased,
        idle_for: terms.idle_for,
        recall_notice: terms.recall_notice.get(),
        prices: prices.collect(),
    }
}
