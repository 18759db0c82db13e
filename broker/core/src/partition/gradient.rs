//! Fragmentation: how much of a node a typical load could not use.
//!
//! After Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation
//! Gradient Descent" (USENIX ATC'23). For each kind of request that is typical, the free GPU of a node
//! that the kind could not use is fragmented: all of it if the kind cannot run there at all, else what
//! is left on the GPUs that are too full for it. A placement is the better the less it makes that grow.
//! Sums are integers: weights times thousandths of a GPU.

use sublet_protocol::capacity::Isolation;
use sublet_protocol::ids::GpuModel;
use sublet_protocol::requests::{Class, Placement, RequestSpec};
use sublet_protocol::units::{CpuMilli, GpuMilli, MiB};

use super::mig::{Geometry, Layout};
use crate::fit::is_isolation_allowed;

/// Most kinds in a typical load; the heaviest are kept.
const KINDS_MAX: usize = 128;

/// A kind of request.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kind {
    /// Share of a GPU for each slice; zero for work that needs none.
    pub gpu: GpuMilli,
    /// Device memory for each.
    pub memory: MiB,
    /// Slices that must stand on one node.
    pub together: u32,
    /// CPU for each.
    pub cpu: CpuMilli,
    /// Host memory for each.
    pub host_memory: MiB,
    /// What it is for: decides which isolation it may have.
    pub class: Class,
    /// Allowed models; empty means any.
    pub models: Vec<GpuModel>,
}

impl Kind {
    /// The kind that a request is of.
    #[must_use]
    pub fn of(spec: &RequestSpec) -> Kind {
        let together = match spec.placement {
            Placement::Cluster => 1,
            Placement::Node | Placement::Island => spec.count,
        };
        Kind {
            gpu: spec.gpu,
            memory: spec.memory,
            together,
            cpu: spec.cpu,
            host_memory: spec.host_memory,
            class: spec.class,
            models: spec.models.clone(),
        }
    }

    /// What is supposed of a load that nothing is known of: whole GPUs by one, two, four and eight on a
    /// node, halves and quarters.
    fn unknown() -> impl Iterator<Item = Kind> {
        let whole = [1_u32, 2, 4, 8].map(|together| (1_000, together));
        let parts = [500_u64, 250].map(|gpu| (gpu, 1));
        whole.into_iter().chain(parts).map(|(gpu, together)| Kind {
            gpu: GpuMilli::new(gpu),
            memory: MiB::ZERO,
            together,
            cpu: CpuMilli::ZERO,
            host_memory: MiB::ZERO,
            class: Class::Batch,
            models: Vec::new(),
        })
    }
}

/// What is free of one GPU, or of a slice that was offered as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Free {
    /// A whole GPU that nothing is on.
    Whole {
        /// Its memory.
        memory: MiB,
    },
    /// A GPU with shares on it, or a share that was offered as it is.
    Shared {
        /// What is left of it.
        gpu: GpuMilli,
        /// What is left of its memory.
        memory: MiB,
    },
    /// A GPU with MIG instances on it.
    Partitioned {
        /// Where they are.
        layout: Layout,
        /// What instances of it hold.
        geometry: Geometry,
    },
    /// A MIG instance that was offered as it is.
    Instance {
        /// Its part of the GPU.
        gpu: GpuMilli,
        /// Its memory.
        memory: MiB,
    },
}

impl Free {
    /// How much is free.
    #[must_use]
    pub fn gpu(&self) -> GpuMilli {
        match self {
            Free::Whole { .. } => GpuMilli::DEVICE,
            Free::Shared { gpu, .. } | Free::Instance { gpu, .. } => *gpu,
            Free::Partitioned { layout, .. } => layout.free_gpu(),
        }
    }

    fn serves(&self, kind: &Kind) -> bool {
        let allows = |isolation| is_isolation_allowed(kind.class, isolation);
        match self {
            Free::Whole { memory } => *memory >= kind.memory,
            Free::Shared { gpu, memory } => {
                *gpu >= kind.gpu && *memory >= kind.memory && allows(Isolation::Mps)
            }
            Free::Instance { gpu, memory } => *gpu >= kind.gpu && *memory >= kind.memory,
            Free::Partitioned { layout, geometry } => geometry
                .smallest(kind.gpu, kind.memory)
                .is_some_and(|profile| layout.best_start(profile).is_some()),
        }
    }
}

/// What is free of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRoom {
    /// The model of its GPUs, if it has any.
    pub model: Option<GpuModel>,
    /// What is free of each GPU.
    pub free: Vec<Free>,
    /// Free CPU.
    pub cpu: CpuMilli,
    /// Free host memory.
    pub host_memory: MiB,
}

/// Kinds of requests with how often each comes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Typical(Vec<(Kind, u64)>);

impl Typical {
    /// A load of these kinds and weights. At most 128 kinds are kept, the heaviest.
    #[must_use]
    pub fn new(kinds: impl IntoIterator<Item = (Kind, u64)>) -> Typical {
        let mut kinds: Vec<(Kind, u64)> = kinds.into_iter().collect();
        kinds.sort_by(|(a, weight), (b, other)| other.cmp(weight).then_with(|| a.cmp(b)));
        kinds.truncate(KINDS_MAX);
        Typical(kinds)
    }

    /// The load of those that wait, and as much again of what is supposed of an unknown one.
    #[must_use]
    pub fn waiting<'a>(specs: impl IntoIterator<Item = &'a RequestSpec>) -> Typical {
        let mut counts: std::collections::BTreeMap<Kind, u64> = std::collections::BTreeMap::new();
        for spec in specs {
            *counts.entry(Kind::of(spec)).or_default() += 1;
        }
        let total = counts.values().sum::<u64>().max(1);
        let unknown: Vec<Kind> = Kind::unknown().collect();
        let each = u64::try_from(unknown.len()).unwrap_or(1);
        let waiting = counts.into_iter().map(|(kind, count)| (kind, count.saturating_mul(each)));
        Typical::new(unknown.into_iter().map(|kind| (kind, total)).chain(waiting))
    }

    /// The sum of the weights.
    #[must_use]
    pub fn weight(&self) -> u128 {
        self.0.iter().map(|(_, weight)| u128::from(*weight)).sum()
    }

    /// The free GPU of the node that the load could not use: thousandths times weights, summed.
    #[must_use]
    pub fn unusable(&self, node: &NodeRoom) -> u128 {
        let total: u64 = node.free.iter().map(|free| free.gpu().get()).sum();
        let of = |kind: &Kind| {
            let usable = if kind.runs_on(node) { kind.usable(node) } else { 0 };
            total - usable
        };
        self.0.iter().map(|(kind, weight)| u128::from(of(kind)) * u128::from(*weight)).sum()
    }
}

impl Kind {
    fn runs_on(&self, node: &NodeRoom) -> bool {
        let together = u64::from(self.together);
        let count = node.free.iter().filter(|free| free.serves(self)).count();
        self.gpu > GpuMilli::ZERO
            && (self.models.is_empty()
                || node.model.is_some_and(|model| self.models.contains(&model)))
            && self.cpu.checked_mul(together).is_some_and(|cpu| cpu <= node.cpu)
            && self
                .host_memory
                .checked_mul(together)
                .is_some_and(|memory| memory <= node.host_memory)
            && u64::try_from(count).is_ok_and(|count| count >= together)
    }

    fn usable(&self, node: &NodeRoom) -> u64 {
        node.free.iter().filter(|free| free.serves(self)).map(|free| free.gpu().get()).sum()
    }
}
