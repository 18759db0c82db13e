//! Requests: what a tenant asks for.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::capacity::{ComputeCapability, DriverVersion, Hardware};
use crate::deferral::Deferral;
use crate::ids::{GpuModel, Project, Region};
use crate::money::MicroCredits;
use crate::units::{CpuMilli, GpuMilli, MiB, Permille, Seconds, Timestamp};

/// Rank of a request. A higher tier may preempt a lower one, never an equal one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Tier {
    /// Lowest: uses what is left, 30 s grace.
    Opportunistic,
    /// The usual one.
    Standard,
    /// Highest.
    Reserved,
}

impl Tier {
    /// Its place from the bottom: 0, 1 or 2.
    #[must_use]
    pub const fn rank(self) -> u8 {
        match self {
            Tier::Opportunistic => 0,
            Tier::Standard => 1,
            Tier::Reserved => 2,
        }
    }
}

/// What kind of work a request is; it decides tier, isolation and protection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Class {
    /// Latency-critical: reserved tier, exclusive or MIG.
    Latency,
    /// Training: standard tier, exclusive or MIG.
    Training,
    /// Batch: standard tier, any isolation.
    Batch,
    /// Experiment: opportunistic tier, shares first.
    Experiment,
}

impl Class {
    /// The tier that the class table gives this class.
    #[must_use]
    pub const fn tier(self) -> Tier {
        match self {
            Class::Latency => Tier::Reserved,
            Class::Training | Class::Batch => Tier::Standard,
            Class::Experiment => Tier::Opportunistic,
        }
    }
}

/// Where the members of a gang may stand. All are in one cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Placement {
    /// Anywhere in one cluster.
    Cluster,
    /// On one node.
    Node,
    /// On one NVLink island of one node.
    Island,
}

/// What happens to the request when its lease is taken away by owner or rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum OnRecall {
    /// It waits again, with its first submit time.
    Requeue,
    /// It is closed.
    Close,
}

/// The workload a tenant will send after the grant: the broker sees a hash and a size only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkloadRef {
    /// SHA-256 of the bytes that will be handed over.
    pub sha256: [u8; 32],
    /// Their number.
    pub size: u32,
}

/// Largest workload in bytes: it must fit a message with its envelope.
pub const WORKLOAD_MAX: u32 = 32 * 1_024;

/// Which layer of the predictor answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum PredictionLayer {
    /// The declared values with the policy's buffers.
    Declared,
    /// The conservative answer when a layer failed or was late.
    Fallback,
    /// Finished runs of the same kind.
    History,
    /// A trained model.
    Model,
}

/// What the predictor thinks a request really needs. Advisory: holds and limits use the declared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prediction {
    /// Which layer answered.
    pub layer: PredictionLayer,
    /// The version of its model.
    pub version: u32,
    /// How sure it is that the need is within the bounds.
    pub confidence: Permille,
    /// One run in ten is shorter.
    pub duration_q10: Seconds,
    /// The median run.
    pub duration_q50: Seconds,
    /// Nine runs in ten are shorter.
    pub duration_q90: Seconds,
    /// Device memory that suffices.
    pub memory_bound: MiB,
}

/// The least that a GPU and its driver must be able to do.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(default, deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Capability {
    /// The oldest driver; none means any.
    pub driver: Option<DriverVersion>,
    /// The lowest compute capability; none means any.
    pub compute: Option<ComputeCapability>,
}

impl Capability {
    /// Anything will do.
    pub const ANY: Capability = Capability { driver: None, compute: None };

    /// Whether the hardware is known to be able to do that.
    #[must_use]
    pub fn is_met_by(self, hardware: &Hardware) -> bool {
        self.driver.is_none_or(|least| hardware.driver.is_some_and(|driver| driver >= least))
            && self.compute.is_none_or(|least| hardware.compute.is_some_and(|has| has >= least))
    }
}

/// What a tenant asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequestSpec {
    /// What it is for.
    pub project: Project,
    /// What kind of work it is.
    pub class: Class,
    /// Priority among the tenant's own requests of one tier, higher first.
    pub priority: u8,
    /// Allowed GPU models; empty means any.
    pub models: Vec<GpuModel>,
    /// How many slices, all or none.
    pub count: u32,
    /// Share of a GPU for each, 1 to 1,000.
    pub gpu: GpuMilli,
    /// Device memory for each.
    pub memory: MiB,
    /// CPU for each.
    pub cpu: CpuMilli,
    /// Host memory for each.
    pub host_memory: MiB,
    /// Where they may stand.
    pub placement: Placement,
    /// How long at most; the hold is for this long.
    pub duration: Seconds,
    /// Most it may cost per GPU-hour; none means any posted price.
    pub max_price: Option<MicroCredits>,
    /// Allowed regions; empty means any.
    pub regions: Vec<Region>,
    /// What happens when owner or rank takes the lease away.
    pub on_recall: OnRecall,
    /// The workload that will be sent, if Sublet runs it.
    pub workload: Option<WorkloadRef>,
    /// What the predictor says, if asked.
    pub prediction: Option<Prediction>,
    /// What the GPU must be able to do.
    #[serde(default)]
    pub capability: Capability,
    /// When it may start; none means at any time.
    #[serde(default)]
    pub deferral: Option<Box<Deferral>>,
}

/// Most members of a gang.
pub const COUNT_MAX: u32 = 1_024;
/// Longest lease: 30 days.
pub const DURATION_MAX: Seconds = Seconds::new(30 * 24 * 3_600);
/// Most device memory of one slice that can be asked for: 1 TiB.
pub const MEMORY_MAX: MiB = MiB::new(1_024 * 1_024);
/// Most host memory of one slice that can be asked for: 64 TiB.
pub const HOST_MEMORY_MAX: MiB = MiB::new(64 * 1_024 * 1_024);
/// Most CPU of one slice that can be asked for: 4,096 cores.
pub const CPU_MAX: CpuMilli = CpuMilli::new(4_096_000);
/// Most models or regions that can be listed.
pub const CHOICES_MAX: usize = 16;

/// Which field of a request is out of its range. The text names the field and its range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpecError {
    /// `count`.
    #[error("count must be 1 to 1024")]
    Count,
    /// `gpu`.
    #[error("gpu must be 1 to 1000 thousandths of a GPU")]
    Gpu,
    /// `memory`.
    #[error("memory must be at most 1048576 MiB")]
    Memory,
    /// `cpu`.
    #[error("cpu must be at most 4096000 thousandths of a core")]
    Cpu,
    /// `host_memory`.
    #[error("host_memory must be at most 67108864 MiB")]
    HostMemory,
    /// `duration`.
    #[error("duration must be 1 to 2592000 seconds (30 days)")]
    Duration,
    /// `max_price`.
    #[error("max_price must not be negative")]
    MaxPrice,
    /// `models` or `regions`.
    #[error("models and regions may list at most 16 each")]
    Choices,
    /// `workload`.
    #[error("workload must be 1 to 32768 bytes")]
    Workload,
    /// `defer`.
    #[error("defer must have at most 64 windows, in order and apart, none behind its last start")]
    Deferral,
}

impl RequestSpec {
    /// Checks that every amount is in its range; the first that is not is named.
    pub fn validate(&self) -> Result<(), SpecError> {
        let within = |ok: bool, error: SpecError| if ok { Ok(()) } else { Err(error) };
        within((1..=COUNT_MAX).contains(&self.count), SpecError::Count)?;
        within((1..=1_000).contains(&self.gpu.get()), SpecError::Gpu)?;
        within(self.memory <= MEMORY_MAX, SpecError::Memory)?;
        within(self.cpu <= CPU_MAX, SpecError::Cpu)?;
        within(self.host_memory <= HOST_MEMORY_MAX, SpecError::HostMemory)?;
        let some_time = self.duration > Seconds::ZERO && self.duration <= DURATION_MAX;
        within(some_time, SpecError::Duration)?;
        within(self.max_price.is_none_or(|p| p >= MicroCredits::ZERO), SpecError::MaxPrice)?;
        let few = self.models.len() <= CHOICES_MAX && self.regions.len() <= CHOICES_MAX;
        within(few, SpecError::Choices)?;
        let fits = self.workload.is_none_or(|w| (1..=WORKLOAD_MAX).contains(&w.size));
        within(fits, SpecError::Workload)?;
        within(self.deferral.as_deref().is_none_or(Deferral::is_sound), SpecError::Deferral)
    }

    /// It does not start before this.
    #[must_use]
    pub fn not_before(&self) -> Timestamp {
        let asked = self.deferral.as_ref().and_then(|deferral| deferral.not_before);
        asked.unwrap_or(Timestamp::ZERO)
    }

    /// The share of GPUs of all members together.
    #[must_use]
    pub fn gpu_total(&self) -> GpuMilli {
        GpuMilli::new(self.gpu.get().saturating_mul(u64::from(self.count)))
    }
}

/// Why a request waits: one primary reason of a closed list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum WaitReason {
    /// Everything that would fit is taken.
    NoCapacity,
    /// The tenant's quota for the model is used up.
    Quota,
    /// The limit on borrowed capacity is reached.
    BorrowLimit,
    /// The budget of the period would not cover the worst case.
    Budget,
    /// Every posted price is above the request's cap, or none is posted.
    Price,
    /// No offer of an allowed model.
    Model,
    /// No offer with that much device memory.
    Memory,
    /// No offer with that much CPU or host memory.
    Host,
    /// No offer lasts that long.
    Duration,
    /// No offer in an allowed region.
    Region,
    /// Driver or compute capability does not fit.
    Capability,
    /// Enough slices, but not on one node, island or cluster.
    Topology,
    /// The class does not allow the isolation on offer.
    Isolation,
    /// The lender does not want this tenant or use.
    LenderPolicy,
    /// A breaker is open.
    Breaker,
    /// A person must look first.
    Review,
    /// Would delay an earlier, larger request.
    Reservation,
    /// Not before an instant: by its own wish, or after it was preempted.
    Deferred,
    /// Too many preemptions lately.
    PreemptionBudget,
}

/// Why a waiting request is told a start, or another one than before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum PromiseCause {
    /// It found no room; nothing was promised before.
    Queued,
    /// An earlier start has become possible.
    Earlier,
    /// The owner took back what it was promised.
    OwnerReturned,
    /// A device, an agent or an offer that it was promised is gone.
    CapacityLost,
    /// A request of a higher tier took what it was promised.
    Outranked,
    /// A lease before it lasts longer than was bought.
    Overrun,
    /// A quota, a price or the policy has changed.
    TermsChanged,
}

impl PromiseCause {
    /// The stable code, as in the API.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            PromiseCause::Queued => "queued",
            PromiseCause::Earlier => "earlier",
            PromiseCause::OwnerReturned => "owner_returned",
            PromiseCause::CapacityLost => "capacity_lost",
            PromiseCause::Outranked => "outranked",
            PromiseCause::Overrun => "overrun",
            PromiseCause::TermsChanged => "terms_changed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> RequestSpec {
        RequestSpec {
            project: Project::new("p").unwrap(),
            class: Class::Batch,
            priority: 0,
            models: vec![],
            count: 1,
            gpu: GpuMilli::DEVICE,
            memory: MiB::new(1),
            cpu: CpuMilli::ZERO,
            host_memory: MiB::ZERO,
            placement: Placement::Cluster,
            duration: Seconds::new(1),
            max_price: None,
            regions: vec![],
            on_recall: OnRecall::Requeue,
            workload: None,
            prediction: None,
            capability: Capability::ANY,
            deferral: None,
        }
    }

    type Change = fn(&mut RequestSpec);

    #[test]
    fn each_amount_is_refused_just_outside_its_range_and_accepted_just_inside() {
        let deferral = |until| Deferral {
            not_before: Some(Timestamp::new(until)),
            deadline: None,
            windows: vec![],
            start_by: Timestamp::new(1),
        };
        let rows: [(SpecError, Change, Change); 9] = [
            (SpecError::Count, |s| s.count = 0, |s| s.count = 1_024),
            (SpecError::Count, |s| s.count = 1_025, |s| s.count = 1),
            (SpecError::Gpu, |s| s.gpu = GpuMilli::new(0), |s| s.gpu = GpuMilli::new(1)),
            (SpecError::Gpu, |s| s.gpu = GpuMilli::new(1_001), |s| s.gpu = GpuMilli::new(1_000)),
            (SpecError::Memory, |s| s.memory = MiB::new(1_048_577), |s| s.memory = MEMORY_MAX),
            (SpecError::Duration, |s| s.duration = Seconds::ZERO, |s| s.duration = DURATION_MAX),
            (
                SpecError::Duration,
                |s| s.duration = Seconds::new(2_592_001),
                |s| s.duration = Seconds::new(1),
            ),
            (
                SpecError::MaxPrice,
                |s| s.max_price = Some(MicroCredits::new(-1)),
                |s| s.max_price = Some(MicroCredits::ZERO),
            ),
            (
                SpecError::Workload,
                |s| s.workload = Some(WorkloadRef { sha256: [0; 32], size: WORKLOAD_MAX + 1 }),
                |s| s.workload = Some(WorkloadRef { sha256: [0; 32], size: WORKLOAD_MAX }),
            ),
        ];
        for (error, bad, good) in rows {
            let (mut refused, mut accepted) = (spec(), spec());
            bad(&mut refused);
            good(&mut accepted);
            assert_eq!(refused.validate(), Err(error));
            assert_eq!(accepted.validate(), Ok(()), "neighbour of {error:?}");
        }
        let with =
            |until| RequestSpec { deferral: Some(Box::new(deferral(until))), ..spec() }.validate();
        assert_eq!((with(2), with(1)), (Err(SpecError::Deferral), Ok(())));
    }
}
