//! Leases as they are stored and told: terms, why they end, what they cost.

use serde::{Deserialize, Serialize};

use crate::capacity::{Capacity, Origin, SliceId};
use crate::ids::{Boot, ClusterId, GpuModel, LeaseId, Project, RequestId, TenantId, Token};
use crate::money::{MicroCredits, Price};
use crate::requests::{Class, Tier, WorkloadRef};
use crate::units::{GpuMilli, Seconds};

/// Why a lease ended. A closed list; also why it is ending.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum EndReason {
    /// The guest finished by itself.
    Completed,
    /// The tenant gave it back.
    Released,
    /// The bought time is over.
    Expired,
    /// The owner wants the GPU.
    Reclaimed,
    /// Someone of higher rank needs it.
    Preempted,
    /// An operator or a breaker ended it.
    Revoked,
    /// The budget is used up.
    Budget,
    /// Its agent has been silent too long.
    AgentLost,
    /// It never started.
    StartFailed,
    /// The guest finished with an error.
    GuestFailed,
    /// The device is gone or sick.
    DeviceFault,
    /// A process that neither owner nor guest accounts for.
    ForeignUse,
    /// It held the GPU and did nothing.
    Stalled,
    /// It was moved to another place.
    Moved,
    /// An operator undid it.
    RolledBack,
}

impl EndReason {
    /// Every reason, in the order of the list.
    pub const ALL: [EndReason; 15] = [
        EndReason::Completed,
        EndReason::Released,
        EndReason::Expired,
        EndReason::Reclaimed,
        EndReason::Preempted,
        EndReason::Revoked,
        EndReason::Budget,
        EndReason::AgentLost,
        EndReason::StartFailed,
        EndReason::GuestFailed,
        EndReason::DeviceFault,
        EndReason::ForeignUse,
        EndReason::Stalled,
        EndReason::Moved,
        EndReason::RolledBack,
    ];

    /// The stable code, as in the API and in metrics.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            EndReason::Completed => "completed",
            EndReason::Released => "released",
            EndReason::Expired => "expired",
            EndReason::Reclaimed => "reclaimed",
            EndReason::Preempted => "preempted",
            EndReason::Revoked => "revoked",
            EndReason::Budget => "budget",
            EndReason::AgentLost => "agent_lost",
            EndReason::StartFailed => "start_failed",
            EndReason::GuestFailed => "guest_failed",
            EndReason::DeviceFault => "device_fault",
            EndReason::ForeignUse => "foreign_use",
            EndReason::Stalled => "stalled",
            EndReason::Moved => "moved",
            EndReason::RolledBack => "rolled_back",
        }
    }

    /// Whether the tenant neither asked for this end nor caused it, so that its request may wait
    /// again.
    #[must_use]
    pub const fn is_recall(self) -> bool {
        match self {
            EndReason::Reclaimed
            | EndReason::Preempted
            | EndReason::AgentLost
            | EndReason::DeviceFault
            | EndReason::ForeignUse
            | EndReason::Moved
            | EndReason::RolledBack => true,
            EndReason::Completed
            | EndReason::Released
            | EndReason::Expired
            | EndReason::Revoked
            | EndReason::Budget
            | EndReason::StartFailed
            | EndReason::GuestFailed
            | EndReason::Stalled => false,
        }
    }
}

/// One slice of a lease, as granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Member {
    /// Which slice.
    pub slice: SliceId,
    /// The generation of the offer that the grant consumed.
    pub generation: u64,
    /// The agent's start that offered it.
    pub boot: Boot,
    /// How much it holds: of a carved part exactly what the lease may use.
    pub capacity: Capacity,
    /// Whether the grant carves it out of a GPU that was offered whole.
    pub origin: Origin,
}

/// What was granted: frozen for the life of the lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeaseTerms {
    /// Which lease.
    pub lease: LeaseId,
    /// Which request it serves.
    pub request: RequestId,
    /// How many grants the request has had, this one included.
    pub attempt: u32,
    /// Who pays.
    pub tenant: TenantId,
    /// Who earns.
    pub owner: TenantId,
    /// What it is for.
    pub project: Project,
    /// Where it is.
    pub cluster: ClusterId,
    /// What kind of work.
    pub class: Class,
    /// Fencing token of all its members.
    pub token: Token,
    /// The model of all its members.
    pub model: GpuModel,
    /// What each member counts for quota and money.
    pub gpu: GpuMilli,
    /// Its slices; never empty, in ascending order.
    pub members: Vec<Member>,
    /// The posted price, frozen.
    pub price: Price,
    /// How long at most.
    pub duration: Seconds,
    /// What is set aside: the cost of the whole duration.
    pub hold: MicroCredits,
    /// Grace of the guest when it must go.
    pub grace: Seconds,
    /// The workload the tenant will send, if any.
    pub workload: Option<WorkloadRef>,
    /// How long before its owner recalls it by plan it is told: the longest that was offered with
    /// any of its slices.
    pub recall_notice: Seconds,
}

impl LeaseTerms {
    /// The rank of the lease.
    #[must_use]
    pub const fn tier(&self) -> Tier {
        self.class.tier()
    }

    /// The share of GPUs of all members together.
    #[must_use]
    pub fn gpu_total(&self) -> GpuMilli {
        let count = u64::try_from(self.members.len()).unwrap_or(u64::MAX);
        GpuMilli::new(self.gpu.get().saturating_mul(count))
    }
}
