//! Tenants, quotas, clusters and prices, from the state or from the record of a change.

use sublet_core::leader::{AgentClock, ClockState};
use sublet_core::quota;
use sublet_core::{Cluster, Node, State, Tenant};
use sublet_protocol::api::{
    ClusterView, Money, NodeClock, NodeRemoved, NodeView, PriceView, QuotaFigures, QuotaView,
    TenantView, Time,
};
use sublet_protocol::capacity::SliceId;
use sublet_protocol::events::Event;
use sublet_protocol::ids::{ClusterId, GpuModel, NodeId, TenantId};
use sublet_protocol::money::{Currency, MicroCredits, Price};
use sublet_protocol::quotas::{Quota, Reclaim, Weight};
use sublet_protocol::records::Record;
use sublet_protocol::requests::Tier;
use sublet_protocol::units::GpuMilli;

use super::terms;

/// A tenant as it is now.
pub(crate) fn tenant(id: TenantId, tenant: &Tenant, state: &State) -> TenantView {
    let currency = state.policy().currency;
    TenantView {
        id,
        parent: state.tree().node(id).and_then(quota::Node::parent),
        created_at: Time(tenant.created_at()),
        weight: state.tree().node(id).map_or(0, |node| node.terms().weight.get()),
        share: terms::share(id, state),
        budget: terms::budget(id, state),
        reclaim: state.tree().reclaim(id),
        quotas: quotas(id, tenant, state).collect(),
        open_requests: tenant.open_requests(),
        hold: Money::new(tenant.hold(), currency),
        calendar: tenant.calendar().cloned(),
        name: None,
    }
}

/// A tenant's quotas as they are now.
pub(crate) fn quotas<'a>(
    id: TenantId,
    tenant: &'a Tenant,
    state: &'a State,
) -> impl Iterator<Item = QuotaView> + 'a {
    let node = state.tree().node(id).into_iter();
    node.flat_map(quota::Node::quotas).map(move |(model, quota)| QuotaView {
        held: Some(tenant.held(model).get()),
        figures: state.tree().figures(id, model).map(|figures| QuotaFigures {
            counts: figures.counts.get(),
            used: figures.used.get(),
            borrowed: figures.borrowed.get(),
            lendable: figures.lendable.get(),
            left: figures.left.get(),
            excess: figures.excess.get(),
        }),
        ..quota_of(id, model, &quota)
    })
}

/// A quota as it was set, without what becomes of it.
pub(crate) fn quota_of(tenant: TenantId, model: GpuModel, quota: &Quota) -> QuotaView {
    QuotaView {
        tenant,
        model,
        nominal: quota.nominal.get(),
        borrow_limit: quota.borrow_limit.map(GpuMilli::get),
        lend_limit: quota.lend_limit.map(GpuMilli::get),
        basis: quota.basis,
        held: None,
        figures: None,
        warning: None,
    }
}

/// A tenant as it was when it was added.
pub(crate) fn tenant_created(record: &Record, currency: Currency) -> Option<TenantView> {
    let Event::TenantCreated { tenant, parent } = &record.event else { return None };
    Some(TenantView {
        id: *tenant,
        parent: *parent,
        created_at: Time(record.time),
        weight: Weight::ONE.get(),
        share: Some(0),
        budget: terms::budget_of_none(record.time, currency),
        reclaim: Reclaim::Never,
        quotas: Vec::new(),
        open_requests: 0,
        hold: Money::new(MicroCredits::ZERO, currency),
        calendar: None,
        name: None,
    })
}

/// A quota as it was set.
pub(crate) fn quota_set(record: &Record) -> Option<QuotaView> {
    let Event::QuotaSet { tenant, model, quota } = &record.event else { return None };
    Some(quota_of(*tenant, *model, quota))
}

/// A cluster as it is now; `clock_of` knows the clocks of nodes.
pub(crate) fn cluster(
    id: ClusterId,
    cluster: &Cluster,
    state: &State,
    clock_of: impl Fn(NodeId) -> Option<AgentClock>,
) -> ClusterView {
    let is_off = |node| clock_of(node).is_some_and(|clock| clock.state != ClockState::Right);
    let nodes = || state.nodes().iter().filter(|((of, _), _)| *of == id);
    let silent = nodes().filter(|(_, node)| node.is_silent()).count();
    let offers = state.offers().keys().filter(|slice| slice.cluster == id).count();
    let leased = state.leased().keys().filter(|slice| slice.cluster == id).count();
    ClusterView {
        id,
        owner: cluster.owner(),
        region: cluster.region(),
        created_at: Time(cluster.created_at()),
        devices_max: cluster.devices_max(),
        devices: count(cluster.devices().len()),
        nodes: count(nodes().count()),
        nodes_silent: count(silent),
        nodes_clock_off: count(nodes().filter(|((_, node), _)| is_off(*node)).count()),
        offers: count(offers),
        leased: count(leased),
    }
}

/// A cluster as it was when it was added.
pub(crate) fn cluster_created(record: &Record) -> Option<ClusterView> {
    let Event::ClusterCreated { cluster, owner, region, devices_max } = &record.event else {
        return None;
    };
    Some(ClusterView {
        id: *cluster,
        owner: *owner,
        region: *region,
        created_at: Time(record.time),
        devices_max: *devices_max,
        devices: 0,
        nodes: 0,
        nodes_silent: 0,
        nodes_clock_off: 0,
        offers: 0,
        leased: 0,
    })
}

/// A node as it is now.
pub(crate) fn node(
    (cluster, id): (ClusterId, NodeId),
    node: &Node,
    state: &State,
    clock: Option<AgentClock>,
) -> NodeView {
    let is_its = |slice: &&SliceId| (slice.cluster, slice.node) == (cluster, id);
    NodeView {
        id,
        cluster,
        boot: node.boot().get(),
        registered_at: Time(node.registered_at()),
        silent: node.is_silent(),
        fenced: node.is_fenced(),
        clock: match clock.map(|clock| clock.state) {
            None => NodeClock::Unknown,
            Some(ClockState::Right) => NodeClock::Right,
            Some(ClockState::Off) => NodeClock::Off,
            Some(ClockState::Far) => NodeClock::Far,
        },
        clock_offset_ms: clock.map(|clock| clock.offset.get()),
        offers: count(state.offers().keys().filter(is_its).count()),
        leased: count(state.leased().keys().filter(is_its).count()),
    }
}

/// A node as it was removed.
pub(crate) fn node_removed(record: &Record) -> Option<NodeRemoved> {
    let Event::NodeRemoved { cluster, node } = record.event else { return None };
    Some(NodeRemoved { id: node, cluster, removed_at: Time(record.time) })
}

/// A posted price.
pub(crate) fn price(
    (owner, model, tier): (TenantId, GpuModel, Tier),
    price: Price,
    currency: Currency,
) -> PriceView {
    let per_gpu_hour = Money::new(price.per_gpu_hour, currency);
    PriceView { owner, model, tier, per_gpu_hour, version: price.version }
}

/// A price as it was posted.
pub(crate) fn price_set(record: &Record, currency: Currency) -> Option<PriceView> {
    let Event::PriceSet { owner, model, tier, price: posted } = &record.event else { return None };
    Some(price((*owner, *model, *tier), *posted, currency))
}

/// A count as the API shows it.
fn count(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
