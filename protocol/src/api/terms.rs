//! A tenant's weight, budgets and place in the tree.

use serde::{Deserialize, Deserializer, Serialize};

use super::amounts::word;
use super::{Money, Whole};
use crate::ids::{GpuModel, TenantId};
use crate::quotas::Reclaim;

/// Weight, budgets and reclaim to be set; what is left out is at its usual value, not as it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TermsSet {
    /// How much the tenant counts when capacity is shared, in thousandths: 1,000 is usual, 0 borrows
    /// only what nobody else wants.
    #[serde(default = "usual_weight")]
    pub weight: Whole<0, 1_000_000>,
    /// What it may spend in a calendar month (UTC), with all tenants below it.
    #[serde(default)]
    pub budget: BudgetSet,
    /// What those that belong to it may take back of what they have lent to each other.
    #[serde(default, deserialize_with = "word")]
    pub reclaim: Reclaim,
}

const fn usual_weight() -> Whole<0, 1_000_000> {
    Whole::clamped(1_000)
}

/// Budgets to be set; without one there is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BudgetSet {
    /// GPU time, in seconds of one whole GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_seconds: Option<Whole<0, 10_000_000_000_000>>,
    /// Money.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub money: Option<Money>,
}

/// Weight, budgets and reclaim as they were set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TermsView {
    /// Whose.
    pub tenant: TenantId,
    /// In thousandths.
    pub weight: u32,
    /// The budgets of a month.
    pub budget: BudgetSet,
    /// What those that belong to it may take back of what they have lent to each other.
    pub reclaim: Reclaim,
}

/// What a tenant spends this month, with all tenants below it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BudgetView {
    /// Which month, in UTC, as `2026-11`.
    pub month: String,
    /// Seconds of one whole GPU.
    pub gpu_seconds: GpuSecondsSpent,
    /// Money.
    pub money: MoneySpent,
}

/// GPU time of a month, in seconds of one whole GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GpuSecondsSpent {
    /// The budget; none means no limit.
    pub limit: Option<u64>,
    /// What leases of this month that have ended took, rounded up.
    pub used: u64,
    /// What those that have not ended may take at most, rounded up.
    pub held: u64,
    /// What may still be granted, rounded down.
    pub left: Option<u64>,
}

/// Money of a month.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MoneySpent {
    /// The budget; none means no limit.
    pub limit: Option<Money>,
    /// What leases of this month that have ended cost.
    pub used: Money,
    /// What those that have not ended may cost at most.
    pub held: Money,
    /// What may still be granted.
    pub left: Option<Money>,
}

/// A new place in the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ParentSet {
    /// The group it goes to; null puts it beside the groups. It must be said.
    #[serde(deserialize_with = "said")]
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub parent: Option<TenantId>,
}

/// A field that may be null but not left out.
fn said<'de, D: Deserializer<'de>>(from: D) -> Result<Option<TenantId>, D::Error> {
    Option::deserialize(from)
}

/// A tenant's place after a move.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ParentView {
    /// Who moved.
    pub tenant: TenantId,
    /// The group it is in now.
    pub parent: Option<TenantId>,
    /// Who has more than it may have since: it is granted nothing more until leases have ended.
    pub over_admitted: Vec<OverAdmitted>,
}

/// Someone who has more than it may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OverAdmitted {
    /// Who.
    pub tenant: TenantId,
    /// Of which model.
    pub model: GpuModel,
    /// By how much, in thousandths of a GPU.
    pub excess: u64,
}
