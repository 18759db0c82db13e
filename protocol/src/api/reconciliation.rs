//! Ledger, broker and agents held against each other, as the API shows it.

use serde::{Deserialize, Serialize};

use super::{Money, Time};
use crate::ids::{ClusterId, DeviceId, LeaseId, NodeId, TenantId};

/// What does not agree of a member of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum LeakKindView {
    /// Leased, and its agent has confirmed it, but does not hold it (any more).
    NotHeld,
    /// Held by an agent, but no lease stands for it.
    NotLeased,
    /// Leased and held, but its guest demonstrably uses neither GPU nor CPU.
    NotUsed,
}

impl LeakKindView {
    /// The stable code.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            LeakKindView::NotHeld => "not_held",
            LeakKindView::NotLeased => "not_leased",
            LeakKindView::NotUsed => "not_used",
        }
    }
}

/// One member of a lease of which broker, agent and GPU do not say the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LeakView {
    /// What does not agree.
    pub kind: LeakKindView,
    /// Which lease.
    pub lease: LeaseId,
    /// The cluster of the GPU.
    pub cluster: ClusterId,
    /// Its node.
    pub node: NodeId,
    /// The GPU.
    pub device: DeviceId,
    /// Who pays; none if the lease has ended for the broker.
    pub tenant: Option<TenantId>,
    /// Whose GPU it is.
    pub owner: Option<TenantId>,
    /// Since when, in ledger time, as far as is known.
    pub since: Time,
    /// For how long, in whole seconds.
    pub age_seconds: u64,
    /// What the GPU costs for that time at the lease's price; none if the lease has ended for the
    /// broker.
    pub cost: Option<Money>,
}

/// A lease whose hold in the books is not what its terms set aside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BookGapView {
    /// Which lease.
    pub lease: LeaseId,
    /// What the ledger holds for it; none if it holds nothing.
    pub ledger: Option<Money>,
    /// What the broker set aside for it; none if it knows of no such lease.
    pub broker: Option<Money>,
}

/// Ledger, broker and agents held against each other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReconciliationView {
    /// When, in ledger time.
    pub at: Time,
    /// How often agents report everything they hold. What two reports in a row show is a leak.
    pub cycle_seconds: u64,
    /// Leases that live.
    pub leases: u64,
    /// Nodes whose agents have reported within the last two cycles.
    pub nodes_reported: u32,
    /// Nodes of which it is not known what they hold, as CLUSTER/NODE.
    pub nodes_unknown: Vec<String>,
    /// What leaks, in the order of nodes.
    pub leaks: Vec<LeakView>,
    /// How many leases have another hold in the books than in the broker.
    pub books_differ: u64,
    /// The first thousand of them.
    pub books: Vec<BookGapView>,
}
