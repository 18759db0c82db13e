//! Idle capacity as a borrower sees it.

use serde::{Deserialize, Serialize};

use super::Money;
use crate::capacity::Isolation;
use crate::ids::{ClusterId, GpuModel, Region};
use crate::offers::IdleFor;
use crate::requests::Tier;

/// Slices of one cluster that are alike, counted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OfferView {
    /// Names the group: cluster, model, share, memory, isolation, CPU and host memory.
    pub id: String,
    /// Where the slices are.
    pub cluster: ClusterId,
    /// Where the cluster stands.
    pub region: Region,
    /// The GPU model.
    pub model: GpuModel,
    /// Share of the GPU of each slice, in thousandths.
    pub gpu: u64,
    /// Device memory of each slice, in MiB.
    pub memory: u64,
    /// CPU of each slice, in thousandths of a core.
    pub cpu: u64,
    /// Host memory of each slice, in MiB.
    pub host_memory: u64,
    /// How users of one GPU are kept apart.
    pub isolation: Isolation,
    /// Slices that can be leased now.
    pub free: u32,
    /// Slices that are free but kept for a request that others made room for.
    pub kept: u32,
    /// Slices on offer where nothing new is put now: the wall clock of their node is too far off, or it
    /// refused too many starts.
    pub closed: u32,
    /// Slices that are leased.
    pub leased: u32,
    /// How long the free slices stay idle from now, in seconds: for each quantile the least of them.
    pub idle_for: IdleFor,
    /// Least notice of a planned recall among the free slices, in seconds.
    pub recall_notice: u64,
    /// Posted prices, by tier. Without one for its tier a request is not served here.
    pub prices: Vec<OfferPrice>,
}

/// A posted price as a borrower sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OfferPrice {
    /// For requests of this tier.
    pub tier: Tier,
    /// For one whole GPU and one hour.
    pub per_gpu_hour: Money,
    /// How often it was set.
    pub version: u32,
}

/// One page of offers, with what the filters left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OfferPage {
    /// The groups, in the order of their ids.
    pub items: Vec<OfferView>,
    /// Give this as `cursor` to read on; none on the last page.
    pub next_cursor: Option<String>,
    /// Free slices that passed all filters, on all pages.
    pub shown: u32,
    /// Free slices of the whole cell.
    pub total: u32,
    /// What each filter left out, in the order they were applied.
    pub filtered: Vec<FilterCount>,
}

/// How many free slices a filter left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FilterCount {
    /// The query parameter.
    pub filter: String,
    /// Free slices that it, and no filter before it, left out.
    pub removed: u32,
}
