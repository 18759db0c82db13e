//! How the cell is.

use serde::{Deserialize, Serialize};

use super::{LedgerState, Time};
use crate::ids::CellId;

/// Leases that have not ended, by state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LeaseCounts {
    /// Agents prepare them.
    pub granted: u32,
    /// Guests may run.
    pub active: u32,
    /// Guests must go.
    pub ending: u32,
}

/// How the cell is: sums over all tenants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StatusView {
    /// The cell; none before it was founded.
    pub cell: Option<CellId>,
    /// The version of the broker.
    pub version: String,
    /// Ledger time now.
    pub now: Time,
    /// Open offers: slices that can be leased now.
    pub offers: u32,
    /// Requests that wait.
    pub waiting: u32,
    /// Leases that have not ended.
    pub leases: LeaseCounts,
    /// Tenants.
    pub tenants: u32,
    /// Clusters.
    pub clusters: u32,
    /// Nodes whose agent has registered.
    pub nodes: u32,
    /// Those of them that were declared silent and have not offered since.
    pub nodes_silent: u32,
    /// GPU-seconds that were lent since the broker started: measured use × share of a GPU.
    pub gpu_seconds_lent: u64,
    /// How far the ledger is.
    pub ledger: LedgerState,
}
