//! Founding the cell; its policy, tenants, clusters, quotas and prices; closing its books.

use sublet_protocol::commands::Actor;
use sublet_protocol::events::Event;
use sublet_protocol::ids::{CellId, ClusterId, GpuModel, Region, TenantId};
use sublet_protocol::money::{MicroCredits, Price};
use sublet_protocol::policy::Policy;
use sublet_protocol::refusals::Rejection;
use sublet_protocol::requests::Tier;
use sublet_protocol::units::Timestamp;

use super::{Decision, only_leader, only_operator, only_owner_of};
use crate::quota::LEVELS_MAX;
use crate::state::State;

/// Highest price: one million currency units per GPU-hour.
const PRICE_MAX: MicroCredits = MicroCredits::new(1_000_000 * MicroCredits::PER_UNIT);

pub(super) fn create_cell(state: &State, actor: &Actor, cell: CellId, policy: &Policy) -> Decision {
    match actor {
        Actor::Operator { .. } | Actor::Leader => {}
        Actor::Tenant { .. } | Actor::Agent { .. } => return Err(Rejection::NotAllowed),
    }
    if state.cell.is_some() {
        return Err(Rejection::CellExists);
    }
    policy.validate().map_err(|_| Rejection::PolicyInvalid)?;
    Ok(vec![Event::CellCreated { cell, epoch: 0, policy: policy.clone() }])
}

/// A cell's level never goes back: what was decided on it stays decided.
pub(super) fn raise_level(state: &State, actor: &Actor, level: u16) -> Decision {
    only_operator(actor)?;
    if level <= state.feature_level() {
        return Ok(Vec::new());
    }
    Ok(vec![Event::FeatureLevelRaised { level }])
}

/// The leader says it before it gives a vote, or takes one.
pub(super) fn enlist_broker(state: &State, actor: &Actor, broker: u64) -> Decision {
    only_leader(actor)?;
    match state.brokers.contains(&broker) {
        true => Ok(Vec::new()),
        false => Ok(vec![Event::BrokerEnlisted { broker }]),
    }
}

pub(super) fn set_policy(state: &State, actor: &Actor, policy: &Policy) -> Decision {
    only_operator(actor)?;
    policy.validate().map_err(|_| Rejection::PolicyInvalid)?;
    // Amounts already in the books are of the old currency.
    if policy.currency != state.policy.currency {
        return Err(Rejection::PolicyInvalid);
    }
    if *policy == state.policy {
        return Ok(Vec::new());
    }
    Ok(vec![Event::PolicySet { policy: policy.clone() }])
}

pub(super) fn create_tenant(
    state: &State,
    actor: &Actor,
    tenant: TenantId,
    parent: Option<TenantId>,
) -> Decision {
    only_operator(actor)?;
    if state.tenants.contains_key(&tenant) {
        return Err(Rejection::TenantExists);
    }
    // A parent must exist before its child, so the tree has no cycle.
    if parent.is_some_and(|parent| !state.tenants.contains_key(&parent)) {
        return Err(Rejection::TenantMissing);
    }
    if parent.is_some_and(|parent| state.tree.level(parent) >= LEVELS_MAX) {
        return Err(Rejection::TenantTooDeep);
    }
    Ok(vec![Event::TenantCreated { tenant, parent }])
}

pub(super) fn create_cluster(
    state: &State,
    actor: &Actor,
    cluster: ClusterId,
    (owner, region, devices_max): (TenantId, Region, u32),
) -> Decision {
    only_operator(actor)?;
    if state.clusters.contains_key(&cluster) {
        return Err(Rejection::ClusterExists);
    }
    if !state.tenants.contains_key(&owner) {
        return Err(Rejection::TenantMissing);
    }
    Ok(vec![Event::ClusterCreated { cluster, owner, region, devices_max }])
}

/// Up to the latest close nothing changes any more. Only what is over can be closed.
pub(super) fn close_period(
    state: &State,
    actor: &Actor,
    until: Timestamp,
    now: Timestamp,
) -> Decision {
    only_operator(actor)?;
    let from = state.closed_until;
    if until < from {
        return Err(Rejection::PeriodClosed);
    }
    if until > now {
        return Err(Rejection::PeriodNotOver);
    }
    if until == from {
        return Ok(Vec::new());
    }
    Ok(vec![Event::PeriodClosed { from, until }])
}

pub(super) fn set_price(
    state: &State,
    actor: &Actor,
    (owner, model, tier): (TenantId, GpuModel, Tier),
    per_gpu_hour: MicroCredits,
) -> Decision {
    only_owner_of(actor, owner, Rejection::TenantMissing)?;
    if !state.tenants.contains_key(&owner) {
        return Err(Rejection::TenantMissing);
    }
    if per_gpu_hour < MicroCredits::ZERO || per_gpu_hour > PRICE_MAX {
        return Err(Rejection::PriceInvalid);
    }
    let known = state.prices.get(&(owner, model, tier));
    if known.is_some_and(|price| price.per_gpu_hour == per_gpu_hour) {
        return Ok(Vec::new());
    }
    let version = known.map_or(Some(1), |price| price.version.checked_add(1));
    let version = version.ok_or(Rejection::CounterExhausted)?;
    Ok(vec![Event::PriceSet { owner, model, tier, price: Price { per_gpu_hour, version } }])
}
