//! The made-up world of `sublet dev`: tenants, clusters, machines, prices and quotas.

use sha2::{Digest, Sha256};
use sublet_protocol::capacity::{Capacity, Hardware, Isolation, Part, SliceId};
use sublet_protocol::ids::{ClusterId, DeviceId, GpuModel, NodeId, Region, TenantId};
use sublet_protocol::money::MicroCredits;
use sublet_protocol::requests::Tier;
use sublet_protocol::units::{CpuMilli, GpuMilli, MiB};

/// The tenant that only borrows, and the one a person acts for unless they say otherwise.
pub(super) const BORROWER: &str = "initech";
/// The tenants that own clusters and borrow, too.
const OWNERS: [&str; 2] = ["acme", "globex"];

/// One cluster of like machines.
#[derive(Debug, Clone)]
pub(super) struct Site {
    /// Its id.
    pub(super) cluster: ClusterId,
    /// Who owns it.
    pub(super) owner: TenantId,
    /// Where it stands.
    pub(super) region: Region,
    /// How many machines it has.
    pub(super) nodes: u32,
    /// GPUs of each machine.
    pub(super) gpus_per_node: u32,
    /// Their model.
    pub(super) model: GpuModel,
    /// Their memory, the driver's part included.
    pub(super) memory: MiB,
    /// What the driver takes of it.
    pub(super) driver: MiB,
    /// CPU of each machine.
    cpu_per_node: u64,
    /// Host memory of each machine, MiB.
    host_memory_per_node: u64,
    /// What a GPU-hour costs in the standard tier.
    price: MicroCredits,
    /// The GPUs of this machine, if it is no made-up cluster.
    real: Vec<RealGpu>,
}

/// A GPU of this machine.
#[derive(Debug, Clone, Copy)]
pub(super) struct RealGpu {
    /// Its id.
    pub(super) id: DeviceId,
    /// Memory a guest can have.
    pub(super) lendable: MiB,
}

/// One machine of a cluster.
#[derive(Debug, Clone)]
pub(super) struct Machine {
    /// Its id.
    pub(super) node: NodeId,
    /// Its slices: every GPU whole.
    pub(super) slices: Vec<(SliceId, Capacity)>,
}

/// What kind of cluster stands where. Memory as the driver reports it for these cards.
const KINDS: [(&str, &str, &str, u32, &str, u64, i64); 3] = [
    ("north", "acme", "eu-north", 8, "a100-80gb", 81_920, 1_200_000),
    ("west", "globex", "eu-west", 8, "h200", 143_771, 2_900_000),
    ("south", "globex", "eu-south", 4, "l40s", 46_068, 650_000),
];
/// What a GPU-hour of this machine costs, in millionths of a credit, and the host memory its guests
/// are promised together, MiB. Nobody measures either: they are there to be tried.
const REAL_PRICE: i64 = 1_000_000;
const HOST_MEMORY: u64 = 8 * 1_024;
/// Machines of each cluster for a demonstration: 48 GPUs together.
const DEMO_NODES: [u32; 3] = [3, 2, 2];

fn tenant(name: &str) -> TenantId {
    TenantId::new(name).expect("the made-up tenants have good names: checked by a test")
}

/// All tenants: the owners, then the borrower.
pub(super) fn tenants() -> Vec<TenantId> {
    OWNERS.iter().chain([&BORROWER]).map(|name| tenant(name)).collect()
}

/// The clusters of a demonstration.
pub(super) fn demo() -> Vec<Site> {
    sites(DEMO_NODES)
}

/// The clusters with this many machines each.
pub(super) fn sites(nodes: [u32; 3]) -> Vec<Site> {
    let good = "the made-up clusters have good names: checked by a test";
    let sites = KINDS.iter().zip(nodes).map(|(kind, nodes)| {
        let &(cluster, owner, region, gpus, model, memory, price) = kind;
        Site {
            cluster: ClusterId::new(cluster).expect(good),
            owner: tenant(owner),
            region: Region::new(region).expect(good),
            nodes,
            gpus_per_node: gpus,
            model: GpuModel::new(model).expect(good),
            memory: MiB::new(memory),
            driver: MiB::new(600),
            cpu_per_node: u64::from(gpus) * 16_000,
            host_memory_per_node: u64::from(gpus) * 128 * 1_024,
            price: MicroCredits::new(price),
            real: Vec::new(),
        }
    });
    sites.collect()
}

impl Site {
    /// This machine, as a cluster of its own for the GPUs of one model.
    pub(super) fn of_this_machine(number: u32, model: GpuModel, real: Vec<RealGpu>) -> Site {
        let good = "a short word and a number make an id";
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Site {
            cluster: ClusterId::new(&format!("here-{number}")).expect(good),
            owner: tenant(OWNERS[0]),
            region: Region::new("here").expect(good),
            nodes: 1,
            gpus_per_node: u32::try_from(real.len()).unwrap_or(u32::MAX),
            model,
            memory: MiB::new(0),
            driver: MiB::new(0),
            cpu_per_node: u64::try_from(cores).unwrap_or(1).saturating_mul(1_000),
            host_memory_per_node: HOST_MEMORY,
            price: MicroCredits::new(REAL_PRICE),
            real,
        }
    }

    /// Whether its GPUs are those of this machine.
    pub(super) fn is_real(&self) -> bool {
        !self.real.is_empty()
    }

    /// GPUs of the whole cluster.
    pub(super) fn gpus(&self) -> u32 {
        self.nodes.saturating_mul(self.gpus_per_node)
    }

    /// What it asks for a GPU-hour in each tier: half for what may be taken away at any time, half
    /// more for what is hardly ever.
    pub(super) fn prices(&self) -> [(Tier, MicroCredits); 3] {
        let standard = self.price.get();
        [
            (Tier::Opportunistic, MicroCredits::new(standard / 2)),
            (Tier::Standard, MicroCredits::new(standard)),
            (Tier::Reserved, MicroCredits::new(standard + standard / 2)),
        ]
    }

    /// Its machines with their GPUs.
    pub(super) fn machines(&self) -> Vec<Machine> {
        (1..=self.nodes).map(|number| self.machine(number)).collect()
    }

    fn machine(&self, number: u32) -> Machine {
        let node = NodeId::new(&format!("{}-{number:02}", self.cluster));
        let node = node.expect("a short cluster name and a number make a node id");
        let gpus = u64::from(self.gpus_per_node);
        let capacity = Capacity {
            model: self.model,
            gpu: GpuMilli::DEVICE,
            memory: self.memory.saturating_sub(self.driver),
            cpu: CpuMilli::new(self.cpu_per_node / gpus),
            host_memory: MiB::new(self.host_memory_per_node / gpus),
            isolation: Isolation::Exclusive,
            island: 0,
            hardware: Hardware::UNKNOWN,
        };
        let slices = (0..self.gpus_per_node).map(|place| {
            let made_up = || DeviceId::new(named(&format!("{}/{node}/{place}", self.cluster)));
            let real = usize::try_from(place).ok().and_then(|place| self.real.get(place));
            let device = real.map_or_else(made_up, |gpu| gpu.id);
            let memory = real.map_or(capacity.memory, |gpu| gpu.lendable);
            let slice = SliceId { cluster: self.cluster, node, device, part: Part::Whole };
            (slice, Capacity { memory, ..capacity })
        });
        Machine { node, slices: slices.collect() }
    }
}

/// A number that stands for a name, the same in every run.
pub(super) fn named(name: &str) -> u128 {
    let digest = Sha256::digest(name.as_bytes());
    digest.iter().take(16).fold(0, |number, byte| (number << 8) | u128::from(*byte))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_gpu_of_the_made_up_world_has_an_id_of_its_own() {
        let sites = demo();
        let machines = sites.iter().flat_map(Site::machines);
        let devices: Vec<DeviceId> =
            machines.flat_map(|m| m.slices.into_iter().map(|(slice, _)| slice.device)).collect();
        assert_eq!(devices.len(), 48);
        assert_eq!(devices.iter().collect::<BTreeSet<_>>().len(), 48);
        assert_eq!(tenants().len(), 3);
    }
}
