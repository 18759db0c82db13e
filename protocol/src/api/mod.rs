//! API bodies: what the HTTP API reads and answers, as JSON.
//!
//! Conventions of every body: sizes are whole MiB, spans are whole seconds (rounded down), shares of
//! a GPU or a core are thousandths, instants are RFC 3339 in UTC with milliseconds ([`Time`]), money
//! is a decimal text with its currency ([`Money`]). A field that is not known is refused. What is
//! read (`…Create`, `…Set`) and what is answered (`…View`) are different types.
//!
//! The bodies hold no logic: the broker makes views from the journal, the CLI prints them. With
//! feature `openapi` each body also describes itself for the OpenAPI document.

mod amounts;
mod calendar;
mod cell;
mod leases;
mod ledger;
mod offers;
mod plan;
mod policy;
mod problem;
mod reconciliation;
mod registry;
mod requests;
mod rollbacks;
mod statements;
mod status;
mod terms;
mod time;

#[cfg(feature = "openapi")]
mod schemas;
#[cfg(test)]
mod tests;

pub use amounts::{Money, OutOfRange, Whole};
pub use calendar::{CalendarSet, CalendarView, DeferCreate};
pub use cell::{BrokerAdd, BrokerRole, BrokerView, CellView, DiskRoom, DiskView, LevelSet};
pub use leases::{
    AnnouncedEnd, LeaseSlice, LeaseState, LeaseView, LogLine, PriceFrozen, RecallCreate, RecallView,
};
pub use ledger::{
    AccountView, CheckpointView, ExtensionView, LedgerState, PastState, ProofView, Receipt,
    RecordView, StateChanges, StateDiff, VerifyView,
};
pub use offers::{FilterCount, OfferPage, OfferPrice, OfferView};
pub use plan::{
    EffectiveValue, NearMissView, Origin, PlanOutcome, PlanView, PreemptionTerms, WhyView,
};
pub use policy::PolicySet;
pub use problem::{FieldError, Problem};
pub use reconciliation::{BookGapView, LeakKindView, LeakView, ReconciliationView};
pub use registry::{
    ClusterCreate, ClusterView, NameSet, NameView, NodeClock, NodeRemoved, NodeView, PriceSet,
    PriceView, QuotaFigures, QuotaSet, QuotaView, TenantCreate, TenantView,
};
pub use requests::{
    PlanRequest, PredictionBody, RequestCreate, RequestState, RequestView, WorkloadDeclared,
};
pub use rollbacks::{
    RollbackApprove, RollbackCreate, RollbackPlan, RollbackSelect, RollbackState, RollbackTenant,
    RollbackView,
};
pub use statements::{
    PeriodClose, PeriodsView, StatementDayView, StatementLineView, StatementSide, StatementView,
};
pub use status::{LeaseCounts, StatusView};
pub use terms::{
    BudgetSet, BudgetView, GpuSecondsSpent, MoneySpent, OverAdmitted, ParentSet, ParentView,
    TermsSet, TermsView,
};
pub use time::{Time, TimeError};

use serde::{Deserialize, Serialize};

/// Longest idempotency key in bytes.
pub const IDEMPOTENCY_KEY_MAX: usize = 255;
/// Largest request body in bytes.
pub const BODY_MAX: usize = 64 * 1_024;
/// Deepest nesting of a request body.
pub const BODY_DEPTH_MAX: usize = 16;
/// Most items in one page.
pub const PAGE_MAX: u32 = 500;
/// Items in one page unless asked otherwise.
pub const PAGE_DEFAULT: u32 = 100;

/// One page of a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Page<T> {
    /// The items, in the order of the list.
    pub items: Vec<T>,
    /// Give this as `cursor` to read on; none on the last page.
    pub next_cursor: Option<String>,
}

/// Why an object is in its state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StateReason {
    /// A stable code, lower case.
    pub code: String,
    /// One sentence for a person.
    pub text: String,
    /// Since when.
    pub since: Time,
}
