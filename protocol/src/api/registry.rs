//! Tenants, quotas, clusters and prices.

use serde::{Deserialize, Serialize};

use super::{Money, Time, Whole};
use crate::ids::{ClusterId, GpuModel, Region, TenantId};
use crate::requests::Tier;

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
    /// Its quotas, by model.
    pub quotas: Vec<QuotaView>,
    /// Its requests that wait or are granted.
    pub open_requests: u32,
    /// What is set aside for its leases that have not ended.
    pub hold: Money,
}

/// A quota to be set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct QuotaSet {
    /// The most the tenant may hold of the model at once, in thousandths of a GPU.
    pub nominal: Whole<0, 1_000_000_000_000>,
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
    /// The most it may hold, in thousandths of a GPU.
    pub nominal: u64,
    /// What it holds now, in thousandths of a GPU; not in the answer to a change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<u64>,
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
    /// Its open offers.
    pub offers: u32,
    /// Its slices that are leased.
    pub leased: u32,
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
