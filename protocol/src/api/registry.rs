//! Tenants, quotas, clusters and prices.

use serde::{Deserialize, Serialize};

use super::amounts::word;
use super::{BudgetView, Money, Time, Whole};
use crate::calendar::Calendar;
use crate::ids::{ClusterId, GpuModel, NodeId, Region, TenantId};
use crate::names::DisplayName;
use crate::quotas::{Basis, Quota, Reclaim};
use crate::requests::Tier;
use crate::units::GpuMilli;

/// A tenant to be added.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TenantCreate {
    /// Its id.
    pub id: TenantId,
    /// The group it belongs to.
    #[serde(default)]
    pub parent: Option<TenantId>,
}

/// A tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TenantView {
    /// Its id.
    pub id: TenantId,
    /// The group it belongs to.
    pub parent: Option<TenantId>,
    /// When it was added.
    pub created_at: Time,
    /// How much it counts when capacity is shared, in thousandths.
    pub weight: u32,
    /// What it borrows of what its group can lend, of the model where that is most, in thousandths by
    /// its weight; none if its weight is zero and it borrows.
    pub share: Option<u64>,
    /// What it spends this month, with all tenants below it.
    pub budget: BudgetView,
    /// What those that belong to it may take back of what they have lent to each other.
    pub reclaim: Reclaim,
    /// Its quotas, by model.
    pub quotas: Vec<QuotaView>,
    /// Its requests that wait or are granted.
    pub open_requests: u32,
    /// What is set aside for its leases that have not ended.
    pub hold: Money,
    /// When it is off-peak for it, if it has hours of its own; else those of its group count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calendar: Option<Calendar>,
    /// What it is called, if that was set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<DisplayName>,
}

/// What a tenant is to be called.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NameSet {
    /// The name: one line of at most 128 bytes.
    pub name: DisplayName,
}

/// What a tenant is called.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NameView {
    /// Which tenant.
    pub tenant: TenantId,
    /// Its name; none if it was erased.
    pub name: Option<DisplayName>,
}

/// A quota to be set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct QuotaSet {
    /// What the tenant is guaranteed of the model, in thousandths of a GPU.
    pub nominal: Whole<0, 1_000_000_000_000>,
    /// The most it may borrow from its group, in thousandths of a GPU; without one, all that there
    /// is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub borrow_limit: Option<Whole<0, 1_000_000_000_000>>,
    /// The most of its own that its group may lend to others, in thousandths of a GPU; without one,
    /// all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lend_limit: Option<Whole<0, 1_000_000_000_000>>,
    /// Whether `nominal` counts as it is set or as far as the tenant's own clusters have it on offer
    /// or on lease.
    #[serde(default, deserialize_with = "word")]
    pub basis: Basis,
}

impl QuotaSet {
    /// A quota of exactly this much.
    #[must_use]
    pub const fn of(nominal: Whole<0, 1_000_000_000_000>) -> QuotaSet {
        QuotaSet { nominal, borrow_limit: None, lend_limit: None, basis: Basis::Allowance }
    }

    /// It as the rules know it.
    #[must_use]
    pub fn quota(&self) -> Quota {
        let amount = |limit: Whole<0, 1_000_000_000_000>| GpuMilli::new(limit.get());
        Quota {
            nominal: amount(self.nominal),
            borrow_limit: self.borrow_limit.map(amount),
            lend_limit: self.lend_limit.map(amount),
            basis: self.basis,
        }
    }
}

/// How much of one GPU model a tenant may hold, and holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct QuotaView {
    /// Whose.
    pub tenant: TenantId,
    /// For which model.
    pub model: GpuModel,
    /// What it is guaranteed, in thousandths of a GPU.
    pub nominal: u64,
    /// The most it may borrow from its group; none means all that there is.
    pub borrow_limit: Option<u64>,
    /// The most of its own that its group may lend to others; none means all of it.
    pub lend_limit: Option<u64>,
    /// What `nominal` rests on.
    pub basis: Basis,
    /// What it holds now, in thousandths of a GPU; not in the answer to a change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<u64>,
    /// The figures of the moment; not in the answer to a change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub figures: Option<QuotaFigures>,
    /// What may be wrong with it; only in the answer to a change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
}

/// What becomes of a quota now, in thousandths of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct QuotaFigures {
    /// What of `nominal` counts.
    pub counts: u64,
    /// What it holds, and of those below it what they hold beyond what they keep for themselves.
    pub used: u64,
    /// What of that is borrowed from its group.
    pub borrowed: u64,
    /// The most its group could lend if nobody held anything.
    pub lendable: u64,
    /// What more may be granted to it now.
    pub left: u64,
    /// By how much it has more than it may have, after a cut or a move.
    pub excess: u64,
}

/// A cluster to be added.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClusterCreate {
    /// Its id.
    pub id: ClusterId,
    /// Who owns it and earns.
    pub owner: TenantId,
    /// Where it stands.
    pub region: Region,
    /// Most devices its agents may offer.
    pub devices_max: Whole<1, 1_000_000>,
}

/// A cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClusterView {
    /// Its id.
    pub id: ClusterId,
    /// Who owns it and earns.
    pub owner: TenantId,
    /// Where it stands.
    pub region: Region,
    /// When it was added.
    pub created_at: Time,
    /// Most devices its agents may offer.
    pub devices_max: u32,
    /// Devices it has ever offered.
    pub devices: u32,
    /// Nodes whose agent has registered.
    pub nodes: u32,
    /// Those of them that were declared silent and have not offered since.
    pub nodes_silent: u32,
    /// Those of them whose wall clock is off by more than the policy's warning.
    pub nodes_clock_off: u32,
    /// Its open offers.
    pub offers: u32,
    /// Its slices that are leased.
    pub leased: u32,
}

/// What the wall clock of a node shows beside the broker's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum NodeClock {
    /// It was not measured since this broker leads.
    Unknown,
    /// About the same.
    Right,
    /// It is off by more than the policy's warning.
    Off,
    /// It is off by more than the policy's limit: no new leases there.
    Far,
}

/// A node whose agent has registered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NodeView {
    /// Its id within the cluster.
    pub id: NodeId,
    /// The cluster it belongs to.
    pub cluster: ClusterId,
    /// How often its agent has started.
    pub boot: u64,
    /// When its agent registered with that start.
    pub registered_at: Time,
    /// Whether it was declared silent and has not offered since.
    pub silent: bool,
    /// Whether two machines claim its id, so that nothing is taken from it.
    pub fenced: bool,
    /// What its wall clock shows.
    pub clock: NodeClock,
    /// By how much its wall clock is ahead, in milliseconds, below zero if it is behind: an estimate,
    /// wrong by the time of the quickest message. None if it was not measured.
    pub clock_offset_ms: Option<i64>,
    /// Its open offers.
    pub offers: u32,
    /// Its slices that are leased.
    pub leased: u32,
}

/// A node that was removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NodeRemoved {
    /// The id that is free again.
    pub id: NodeId,
    /// The cluster it belonged to.
    pub cluster: ClusterId,
    /// When it was removed.
    pub removed_at: Time,
}

/// A price to be posted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PriceSet {
    /// Who posts it.
    pub owner: TenantId,
    /// For which model.
    pub model: GpuModel,
    /// For requests of this tier.
    #[serde(deserialize_with = "word")]
    pub tier: Tier,
    /// For one whole GPU and one hour, zero or more.
    pub per_gpu_hour: Money,
}

/// A posted price.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PriceView {
    /// Who posted it.
    pub owner: TenantId,
    /// For which model.
    pub model: GpuModel,
    /// For requests of this tier.
    pub tier: Tier,
    /// For one whole GPU and one hour.
    pub per_gpu_hour: Money,
    /// How often it was set.
    pub version: u32,
}
