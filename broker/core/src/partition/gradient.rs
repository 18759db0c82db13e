//! Fragmentation: how much of a node a typical load could not use.
//!
//! After Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation
//! Gradient Descent" (USENIX ATC'23). For each kind of request that is typical, the free GPU of a node
//! that the kind could not use is fragmented: all of it if the kind cannot run there at all, else what
//! is left on the GPUs that are too full for it. A placement is the better the less it makes that grow.
//! Sums are integers: weights times thousandths of a GPU.

use std::collections::BTreeMap;

use sublet_protocol::capacity::Isolation;
use sublet_protocol::ids::GpuModel;
use sublet_protocol::requests::{Class, Placement, RequestSpec};
use sublet_protocol::units::{CpuMilli, GpuMilli, MiB};

use super::mig::{Geometry, Layout};
use crate::fit::is_isolation_allowed;

/// Most kinds in a typical load; the heaviest are kept.
const KINDS_MAX: usize = 256;

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
pub struct Typical {
    groups: Vec<Group>,
    weight: u128,
}

/// Kinds that differ in what they need of the host only: the same GPUs serve them.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Group {
    /// One of them.
    kind: Kind,
    /// What each needs of the node's host, all its slices together, and its weight.
    hosts: Vec<(CpuMilli, MiB, u64)>,
}

impl Typical {
    /// A load of these kinds and weights. At most 256 kinds are kept, the heaviest.
    #[must_use]
    pub fn new(kinds: impl IntoIterator<Item = (Kind, u64)>) -> Typical {
        let mut kinds: Vec<(Kind, u64)> = kinds.into_iter().collect();
        kinds.sort_by(|(a, weight), (b, other)| other.cmp(weight).then_with(|| a.cmp(b)));
        kinds.truncate(KINDS_MAX);
        let weight = kinds.iter().map(|(_, weight)| u128::from(*weight)).sum();
        let mut groups: Vec<Group> = Vec::new();
        for (kind, weight) in kinds {
            let times = u64::from(kind.together);
            let cpu = CpuMilli::new(kind.cpu.get().saturating_mul(times));
            let host = (cpu, MiB::new(kind.host_memory.get().saturating_mul(times)), weight);
            match groups.iter_mut().find(|group| group.kind.needs_the_same_gpus(&kind)) {
                Some(group) => group.hosts.push(host),
                None => groups.push(Group { kind, hosts: vec![host] }),
            }
        }
        Typical { groups, weight }
    }

    /// The load of those that wait, and as much again of what is supposed of an unknown one.
    #[must_use]
    pub fn waiting<'a>(specs: impl IntoIterator<Item = &'a RequestSpec>) -> Typical {
        let mut counts: BTreeMap<Kind, u64> = BTreeMap::new();
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
    pub const fn weight(&self) -> u128 {
        self.weight
    }

    /// The free GPU of the node that the load could not use: thousandths times weights, summed.
    #[must_use]
    pub fn unusable(&self, node: &NodeRoom) -> u128 {
        let total: u64 = node.free.iter().map(|free| free.gpu().get()).sum();
        let usable: u128 = self.groups.iter().map(|group| group.usable(node)).sum();
        u128::from(total) * self.weight - usable
    }
}

/// What counts as much as one thousandth of a GPU that becomes unusable: so much GPU or CPU, in
/// thousandths, that is left free on the nodes which a placement opens.
///
/// The gradient alone leaves too many equals. By `sublet-sim fill` (2026-11-30) an openb fleet takes
/// about a point more with these than by the gradient and the first of equals, and 0.3 more where much
/// is shared than by the gradient in steps and then the fullest node.
const GPU_PER_LOSS: i128 = 200;
const CPU_PER_LOSS: i128 = 6_667;

impl Typical {
    /// How bad a placement is: by how much it makes [`Typical::unusable`] grow, and a little for what
    /// it leaves free on its nodes, so that full nodes are filled first. The lower the better.
    #[must_use]
    pub fn loss(&self, growth: i128, gpu_left: GpuMilli, cpu_left: CpuMilli) -> i128 {
        let weight = i128::try_from(self.weight).unwrap_or(i128::MAX);
        let left =
            i128::from(gpu_left.get()) * CPU_PER_LOSS + i128::from(cpu_left.get()) * GPU_PER_LOSS;
        growth
            .saturating_mul(GPU_PER_LOSS * CPU_PER_LOSS)
            .saturating_add(weight.saturating_mul(left))
    }
}

impl Group {
    /// The free GPU of the node that its kinds could use, times their weights.
    fn usable(&self, node: &NodeRoom) -> u128 {
        let kind = &self.kind;
        let is_allowed =
            kind.models.is_empty() || node.model.is_some_and(|model| kind.models.contains(&model));
        if kind.gpu == GpuMilli::ZERO || !is_allowed {
            return 0;
        }
        let serving = node.free.iter().filter(|free| free.serves(kind));
        let (count, usable) =
            serving.fold((0_u32, 0_u64), |(n, sum), free| (n + 1, sum + free.gpu().get()));
        if count < kind.together || usable == 0 {
            return 0;
        }
        let fits = |host: &&(CpuMilli, MiB, u64)| host.0 <= node.cpu && host.1 <= node.host_memory;
        let weight: u64 = self.hosts.iter().filter(fits).map(|(_, _, weight)| weight).sum();
        u128::from(usable) * u128::from(weight)
    }
}

impl Kind {
    fn needs_the_same_gpus(&self, other: &Kind) -> bool {
        let gpus = |kind: &Kind| (kind.gpu, kind.memory, kind.together, kind.class);
        gpus(self) == gpus(other) && self.models == other.models
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(gpu: u64, together: u32, cores: u64) -> Kind {
        Kind {
            gpu: GpuMilli::new(gpu),
            memory: MiB::ZERO,
            together,
            cpu: CpuMilli::new(cores * 1_000),
            host_memory: MiB::ZERO,
            class: Class::Batch,
            models: Vec::new(),
        }
    }

    fn node(free: &[u64], cores: u64) -> NodeRoom {
        let memory = MiB::new(10_000);
        let piece = |gpu: &u64| match *gpu {
            1_000 => Free::Whole { memory },
            gpu => Free::Shared { gpu: GpuMilli::new(gpu), memory },
        };
        NodeRoom {
            model: None,
            free: free.iter().map(piece).collect(),
            cpu: CpuMilli::new(cores * 1_000),
            host_memory: MiB::ZERO,
        }
    }

    #[test]
    fn what_a_kind_cannot_use_is_counted_as_the_paper_does() {
        // (kind, free, cores, unusable thousandths)
        let rows: [(Kind, &[u64], u64, u128); 8] = [
            (kind(500, 1, 0), &[1_000, 600, 400], 0, 400),
            (kind(1_000, 1, 0), &[1_000, 600, 400], 0, 1_000),
            (kind(1_000, 2, 0), &[1_000, 600, 400], 0, 2_000),
            (kind(1_000, 2, 0), &[1_000, 1_000, 400], 0, 400),
            (kind(500, 1, 8), &[1_000, 600], 8, 0),
            (kind(500, 1, 8), &[1_000, 600], 7, 1_600),
            (kind(0, 1, 1), &[1_000, 600], 8, 1_600),
            (kind(700, 1, 0), &[600, 600], 0, 1_200),
        ];
        for (kind, free, cores, unusable) in rows {
            let typical = Typical::new([(kind.clone(), 1)]);
            assert_eq!(typical.unusable(&node(free, cores)), unusable, "{kind:?} on {free:?}");
        }
    }

    #[test]
    fn kinds_count_by_their_weights_also_when_they_need_the_same_gpus() {
        let kinds = [(kind(500, 1, 1), 3), (kind(500, 1, 9), 2), (kind(1_000, 1, 1), 5)];
        let typical = Typical::new(kinds);
        assert_eq!(typical.weight(), 10);
        // 400 free: none can use it. 600: the first can, the second has too few cores.
        assert_eq!(typical.unusable(&node(&[400], 4)), 4_000);
        assert_eq!(typical.unusable(&node(&[600], 4)), 600 * 7);
    }
}
