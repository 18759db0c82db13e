//! Statements: what a borrower owes, or a lender is owed, for a period.

use serde::{Deserialize, Serialize};

use super::{Money, Time};
use crate::ids::{GpuModel, LeaseId, Project, RequestId, TenantId};
use crate::leases::EndReason;
use crate::rollbacks::ChargeStanding;

/// From which side a statement looks at leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum StatementSide {
    /// What the tenant's leases cost.
    Borrower,
    /// What the tenant earned with GPUs that it lent: the cost of their leases without the fee.
    Lender,
}

impl StatementSide {
    /// The stable code, as in the API.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            StatementSide::Borrower => "borrower",
            StatementSide::Lender => "lender",
        }
    }
}

/// What a tenant owes or is owed for a period.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StatementView {
    /// Whose.
    pub tenant: TenantId,
    /// Who pays whom.
    pub side: StatementSide,
    /// The first instant of the period.
    pub from: Time,
    /// The first instant behind it.
    pub until: Time,
    /// The time zone of its days.
    pub zone: String,
    /// Whether the period is closed: nothing is added to this statement any more.
    pub closed: bool,
    /// How many records of the ledger it was made from.
    pub records: u64,
    /// The sum, rounded once, half to even, to the currency's smallest unit.
    pub total: Money,
    /// The sum before it was rounded.
    pub exact: Money,
    /// What the platform kept of the borrowers' cost, not rounded; none for a borrower.
    pub fee: Option<Money>,
    /// SHA-256 of the statement's CSV form, as 64 hex digits.
    pub sha256: String,
    /// A line for each lease, in the order of their begin. Their amounts add up to the total.
    pub lines: Vec<StatementLineView>,
    /// The same by days of the zone. Their amounts add up to the total, too.
    pub days: Vec<StatementDayView>,
}

/// What one lease adds to a statement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StatementLineView {
    /// Which lease.
    pub lease: LeaseId,
    /// Which request it served.
    pub request: RequestId,
    /// What it was for; a lender is not told.
    pub project: Option<Project>,
    /// The model of its GPUs.
    pub model: GpuModel,
    /// Thousandths of a GPU, all members together.
    pub gpu: u64,
    /// The first instant of the billed time in this period.
    pub begin: Time,
    /// The first instant behind it.
    pub end: Time,
    /// How much time is billed, in milliseconds.
    pub billed_ms: u64,
    /// How much of its whole time is not billed, since its owner took the GPU back too early, in
    /// milliseconds.
    pub excused_ms: u64,
    /// The price of a GPU-hour, frozen when the lease was granted.
    pub price: Money,
    /// The version of that price.
    pub price_version: u32,
    /// Why the lease ended.
    pub reason: EndReason,
    /// Whether its time lies in a period that was closed when the charge became known.
    pub correction: bool,
    /// If a rollback turned the charge: `reversed` takes it back, `charged` charges it again.
    #[serde(default)]
    pub turn: Option<ChargeStanding>,
    /// The record of the ledger that settled it.
    pub record: u64,
    /// The amount before rounding.
    pub exact: Money,
    /// The amount, in whole smallest units of the currency.
    pub amount: Money,
}

/// What one day of the zone adds to a statement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StatementDayView {
    /// The day, as `2026-03-29`.
    pub day: String,
    /// Billed time of all leases, in milliseconds.
    pub billed_ms: u64,
    /// The amount before rounding.
    pub exact: Money,
    /// The amount, in whole smallest units of the currency.
    pub amount: Money,
}

/// What closes the books up to an instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PeriodClose {
    /// The first instant that stays open; not later than now, and later than the last close.
    pub until: Time,
}

/// Up to when the books are closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PeriodsView {
    /// The first instant that is open; none if nothing was closed yet.
    pub closed_until: Option<Time>,
}
