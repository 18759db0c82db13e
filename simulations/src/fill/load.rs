//! The fleet and the pods that arrive at it.

use std::path::{Path, PathBuf};

use sublet_core::partition::{Kind, Typical};
use sublet_protocol::ids::GpuModel;
use sublet_protocol::requests::Class;
use sublet_protocol::units::{CpuMilli, GpuMilli, MiB};
use thiserror::Error;

use super::TARGET_PERMILLE;
use crate::generator::Random;
use crate::traces::{self, openb};

/// Most nodes of a fleet.
const NODES_MAX: usize = 100_000;
/// Most arrivals.
const ARRIVALS_MAX: usize = 1_000_000;

/// Why a load cannot be used.
#[derive(Debug, Error)]
pub enum LoadError {
    /// A file cannot be read.
    #[error(transparent)]
    Trace(#[from] traces::Error),
    /// There is no such file.
    #[error("{0} has neither {1}.csv.xz nor {1}.csv")]
    Missing(PathBuf, String),
    /// A model's name cannot be an id.
    #[error("{0:?} is no name of a GPU model")]
    Model(String),
    /// There is nothing to fill, or nothing to fill it with.
    #[error("no node has a GPU, or no pod asks for one")]
    Empty,
    /// More than a run can hold.
    #[error("more than {NODES_MAX} nodes or {ARRIVALS_MAX} arrivals")]
    TooMany,
}

/// A node with GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// CPU.
    pub cpu: CpuMilli,
    /// Memory.
    pub memory: MiB,
    /// How many GPUs.
    pub gpus: u32,
    /// Their model.
    pub model: GpuModel,
}

/// The nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fleet {
    /// In the order of the list; those without GPUs are left out.
    pub nodes: Vec<Node>,
}

impl Fleet {
    /// All GPU of the fleet.
    #[must_use]
    pub fn gpu(&self) -> GpuMilli {
        GpuMilli::new(self.nodes.iter().map(|node| u64::from(node.gpus) * 1_000).sum())
    }
}

/// What a pod asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// CPU, of the pod as a whole.
    pub cpu: CpuMilli,
    /// Memory, of the pod as a whole.
    pub memory: MiB,
    /// How many GPUs; none for work without.
    pub gpus: u32,
    /// Of each of them.
    pub gpu: GpuMilli,
    /// Allowed models; empty means any.
    pub models: Vec<GpuModel>,
}

impl Pod {
    /// The GPU of all of it.
    #[must_use]
    pub fn gpu_total(&self) -> GpuMilli {
        GpuMilli::new(self.gpu.get() * u64::from(self.gpus))
    }

    /// CPU and memory that go with each of its GPUs, rounded up: together no less than it asks for.
    #[must_use]
    pub fn host_each(&self) -> (CpuMilli, MiB) {
        let count = u64::from(self.gpus.max(1));
        let each = |amount: u64| amount.div_ceil(count);
        (CpuMilli::new(each(self.cpu.get())), MiB::new(each(self.memory.get())))
    }

    /// What kind of request it is. The paper's kinds know no memory.
    #[must_use]
    pub fn kind(&self) -> Kind {
        Kind {
            gpu: self.gpu,
            memory: MiB::ZERO,
            together: self.gpus.max(1),
            cpu: self.host_each().0,
            host_memory: MiB::ZERO,
            class: Class::Batch,
            models: self.models.clone(),
        }
    }
}

/// A list of pods and the fleet they arrive at.
#[derive(Debug, Clone)]
pub struct Workload {
    /// The list's name.
    pub name: String,
    /// Where they arrive.
    pub fleet: Fleet,
    /// The list.
    pub pods: Vec<Pod>,
}

fn model(name: &str) -> Result<GpuModel, LoadError> {
    GpuModel::new(&name.to_ascii_lowercase()).map_err(|_| LoadError::Model(name.to_owned()))
}

fn find(folder: &Path, stem: &str) -> Result<PathBuf, LoadError> {
    let paths = [".csv.xz", ".csv"].map(|ending| folder.join(format!("{stem}{ending}")));
    let found = paths.into_iter().find(|path| path.exists());
    found.ok_or_else(|| LoadError::Missing(folder.to_owned(), stem.to_owned()))
}

impl Workload {
    /// The openb fleet of nodes with GPUs and one of its lists, such as `default` or `multigpu20`.
    pub fn openb(folder: &Path, name: &str) -> Result<Workload, LoadError> {
        let mut nodes = Vec::new();
        for node in openb::nodes(&find(folder, "openb_node_list_gpu_node")?)? {
            let node = node?;
            let Some(name) = &node.model else { continue };
            nodes.push(Node {
                cpu: CpuMilli::new(node.cpu_milli.into()),
                memory: MiB::new(node.memory_mib.into()),
                gpus: node.gpus,
                model: model(name)?,
            });
        }
        let mut pods = Vec::new();
        for pod in openb::pods(&find(folder, &format!("openb_pod_list_{name}"))?)? {
            let pod = pod?;
            let models = pod.life.iter().flat_map(|life| &life.models);
            pods.push(Pod {
                cpu: CpuMilli::new(pod.cpu_milli.into()),
                memory: MiB::new(pod.memory_mib.into()),
                gpus: pod.gpus,
                gpu: GpuMilli::new(pod.gpu_milli.into()),
                models: models.map(|name| model(name)).collect::<Result<_, _>>()?,
            });
        }
        if nodes.is_empty() || pods.iter().all(|pod| pod.gpus == 0) {
            return Err(LoadError::Empty);
        }
        if nodes.len() > NODES_MAX || pods.len() > ARRIVALS_MAX {
            return Err(LoadError::TooMany);
        }
        Ok(Workload { name: name.to_owned(), fleet: Fleet { nodes }, pods })
    }

    /// What is typical of the list: every kind, as often as it comes.
    #[must_use]
    pub fn typical(&self) -> Typical {
        let mut counts = std::collections::BTreeMap::new();
        for pod in &self.pods {
            *counts.entry(pod.kind()).or_insert(0_u64) += 1;
        }
        Typical::new(counts)
    }

    /// The list, topped up by sampling or cut to 130 % of the fleet's GPU, shuffled by the seed.
    pub fn arrivals(&self, seed: u64) -> Result<Arrivals, LoadError> {
        let target = self.fleet.gpu().get() * TARGET_PERMILLE / 1_000;
        let mut random = Random::new(seed, 0);
        let count = u64::try_from(self.pods.len()).unwrap_or(u64::MAX);
        let mut order: Vec<usize> = (0..self.pods.len()).collect();
        let of = |pod: usize| self.pods[pod].gpu_total().get();
        let mut asked: u64 = order.iter().map(|pod| of(*pod)).sum();
        while asked < target {
            if order.len() >= ARRIVALS_MAX {
                return Err(LoadError::TooMany);
            }
            let pod = usize::try_from(random.below(count)).unwrap_or(0);
            order.push(pod);
            asked += of(pod);
        }
        // Fisher and Yates, from the end.
        for at in (1..order.len()).rev() {
            let bound = u64::try_from(at + 1).unwrap_or(u64::MAX);
            order.swap(at, usize::try_from(random.below(bound)).unwrap_or(0));
        }
        while order.last().is_some_and(|pod| asked - of(*pod) >= target) {
            asked -= order.pop().map_or(0, of);
        }
        Ok(Arrivals { order })
    }
}

/// The pods of a workload by number, in the order in which they arrive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrivals {
    /// Indexes of the workload's pods.
    pub order: Vec<usize>,
}
