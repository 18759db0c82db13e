//! Leases as they are shown.

use serde::{Deserialize, Serialize};

use super::{Money, StateReason, Time, WorkloadDeclared};
use crate::agent::Stream;
use crate::capacity::{Isolation, Part};
use crate::ids::{ClusterId, DeviceId, GpuModel, LeaseId, NodeId, Project, RequestId, TenantId};
use crate::leases::EndReason;
use crate::requests::{Class, Tier};
use crate::units::Seconds;

/// Where a lease is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum LeaseState {
    /// Its agents prepare it.
    Granted,
    /// Its guests may run.
    Active,
    /// Its guests must go.
    Ending,
    /// It is over.
    Ended,
}

impl LeaseState {
    /// The state as the API writes it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            LeaseState::Granted => "granted",
            LeaseState::Active => "active",
            LeaseState::Ending => "ending",
            LeaseState::Ended => "ended",
        }
    }
}

/// One slice of a lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LeaseSlice {
    /// The cluster the GPU stands in.
    pub cluster: ClusterId,
    /// The machine it is in.
    pub node: NodeId,
    /// The physical GPU, by its UUID.
    pub device: DeviceId,
    /// Which part of it.
    pub part: Part,
    /// Share of the GPU, in thousandths.
    pub gpu: u64,
    /// Device memory, in MiB.
    pub memory: u64,
    /// CPU that goes with it, in thousandths of a core.
    pub cpu: u64,
    /// Host memory that goes with it, in MiB.
    pub host_memory: u64,
    /// How users of the GPU are kept apart.
    pub isolation: Isolation,
    /// Whether no guest is left on it.
    pub stopped: bool,
}

/// The price of a lease, frozen when it was granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PriceFrozen {
    /// For one whole GPU and one hour.
    pub per_gpu_hour: Money,
    /// Which version of the posted price.
    pub version: u32,
}

/// An end that its tenant was told of beforehand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AnnouncedEnd {
    /// Why the lease would end.
    pub reason: EndReason,
    /// When its guest is told to go, unless something changes.
    pub at: Time,
}

/// A lease as its tenant sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LeaseView {
    /// Which lease.
    pub id: LeaseId,
    /// Which request it serves.
    pub request: RequestId,
    /// Who pays.
    pub tenant: TenantId,
    /// Who earns.
    pub owner: TenantId,
    /// What it is for.
    pub project: Project,
    /// Where it is in its life.
    pub state: LeaseState,
    /// Why. Of an ending or ended lease the code is its [`EndReason`].
    pub state_reason: StateReason,
    /// When it was granted.
    pub created_at: Time,
    /// When its last record was written.
    pub updated_at: Time,
    /// How many records it has: grows with every change.
    pub version: u64,
    /// How many grants its request has had, this one included.
    pub attempt: u32,
    /// What kind of work it is.
    pub class: Class,
    /// Its rank.
    pub tier: Tier,
    /// Where it is.
    pub cluster: ClusterId,
    /// The GPU model of all its slices.
    pub model: GpuModel,
    /// What each slice counts for quota and money, in thousandths of a GPU.
    pub gpu: u64,
    /// Its slices; never empty.
    pub slices: Vec<LeaseSlice>,
    /// Its price.
    pub price: PriceFrozen,
    /// How long at most, in seconds.
    pub duration: u64,
    /// What is set aside: the cost of the whole duration. Given back when it ends.
    pub hold: Money,
    /// Guest time so far, in seconds, as measured.
    pub used: u64,
    /// What the use so far costs; final once the lease has ended.
    pub cost: Money,
    /// Grace of the guest when it must go, in seconds.
    pub grace: u64,
    /// Since when it is or was active.
    pub active_since: Option<Time>,
    /// The bought end, once it is active.
    pub ends_at: Option<Time>,
    /// The end that was announced last, while the lease is active.
    pub announced_end: Option<AnnouncedEnd>,
    /// When its guests must go because the owner recalled it by plan; none if it did not.
    pub recalled_by: Option<Time>,
    /// When its program last said that its work is saved.
    pub checkpoint_at: Option<Time>,
    /// GPU-seconds of work that were not saved when it was taken away by rank or owner: since the
    /// last checkpoint, or since it was active. None while it runs and after any other end.
    pub lost_gpu_seconds: Option<u64>,
    /// When its guests are gone at the latest, once it is ending.
    pub stop_by: Option<Time>,
    /// When it ended.
    pub ended_at: Option<Time>,
    /// Why it is ending or ended.
    pub end_reason: Option<EndReason>,
    /// The exit code of its guest, once it finished by itself. With several, the first that is not
    /// zero in the order of its slices.
    pub exit_code: Option<i32>,
    /// The workload that was declared, if any.
    pub workload: Option<WorkloadDeclared>,
}

/// How the owner of its GPUs recalls a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum RecallCreate {
    /// By plan: not before the notice that was offered and the minimum run time are over.
    Planned {
        /// In how many seconds its guests must go.
        notice: Seconds,
    },
    /// At once, with the guest's grace only. What ran for less than the minimum run time costs the
    /// borrower nothing.
    Emergency {},
}

/// A recall as the owner sees it: nothing of whose lease it is, or what it is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RecallView {
    /// Which lease.
    pub lease: LeaseId,
    /// When its guests must go; of an emergency, when they are gone.
    pub by: Time,
}

/// One line of a lease's log stream (`application/x-ndjson`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum LogLine {
    /// What the guest printed.
    Output {
        /// On which stream.
        stream: Stream,
        /// Counts the bytes of both streams before these, lost ones included. Where it and the
        /// bytes end is where `?from=` reads on.
        offset: u64,
        /// How many bytes were lost just before these.
        missed: u64,
        /// The bytes, in base 64 (RFC 4648, padded).
        base64: String,
    },
    /// Nothing follows: the lease has ended.
    End {
        /// The exit code of its guest, if it finished by itself.
        exit_code: Option<i32>,
        /// Why the lease ended.
        reason: EndReason,
    },
}
