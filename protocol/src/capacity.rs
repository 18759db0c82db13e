//! What can be leased: slices of GPUs and the room that goes with them.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::{ClusterId, DeviceId, GpuModel, NodeId};
use crate::units::{CpuMilli, GpuMilli, MiB};

/// Which part of a physical GPU a slice is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Part {
    /// All of it.
    Whole,
    /// A MIG instance: the driver's profile id and the memory slice it starts at (0 to 7).
    Mig {
        /// The driver's GPU instance profile id.
        profile: u8,
        /// The first memory slice.
        start: u8,
    },
    /// A share of a GPU in a shared mode, numbered on its device.
    Share {
        /// The number of the share.
        index: u8,
    },
}

impl Part {
    /// Whether two parts of one device use the same hardware.
    ///
    /// Shares are disjoint by their number. MIG parts overlap when their memory slices do; their
    /// sizes are known to the agent only, so equal starts count here and the agent, the only gate,
    /// refuses the rest.
    #[must_use]
    pub fn overlaps(self, other: Part) -> bool {
        match (self, other) {
            (Part::Share { index: a }, Part::Share { index: b }) => a == b,
            (Part::Mig { start: a, .. }, Part::Mig { start: b, .. }) => a == b,
            (Part::Whole | Part::Mig { .. } | Part::Share { .. }, _) => true,
        }
    }
}

/// One leasable part of one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SliceId {
    /// The cluster the GPU stands in.
    pub cluster: ClusterId,
    /// The machine it is in.
    pub node: NodeId,
    /// The physical GPU.
    pub device: DeviceId,
    /// Which part of it.
    pub part: Part,
}

impl fmt::Display for SliceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.cluster, self.node, self.device)?;
        match self.part {
            Part::Whole => Ok(()),
            Part::Mig { profile, start } => write!(f, "/mig-{profile}@{start}"),
            Part::Share { index } => write!(f, "/share-{index}"),
        }
    }
}

/// How the users of one physical GPU are kept apart. One kind per GPU at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Isolation {
    /// One user has the whole GPU.
    Exclusive,
    /// Hardware partitions.
    Mig,
    /// One scheduler, memory limits by MPS. One fault domain.
    Mps,
    /// Turns on the whole GPU.
    TimeSlice,
}

/// The PCI device id of a GPU, as its vendor lists it: 0x2330 is an H100 SXM5 of 80 GB. It decides how
/// the GPU can be partitioned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PciDevice(u16);

impl PciDevice {
    /// The device with this id.
    #[must_use]
    pub const fn new(id: u16) -> PciDevice {
        PciDevice(id)
    }

    /// The id.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }
}

/// The version of a GPU driver, major and minor: 535.104.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DriverVersion {
    /// The branch.
    pub major: u16,
    /// The release on it.
    pub minor: u16,
}

/// A CUDA compute capability: 9.0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ComputeCapability {
    /// The generation.
    pub major: u8,
    /// Its revision.
    pub minor: u8,
}

/// What is known of the physical GPU and its driver; what is not is absent and meets no demand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Hardware {
    /// Its PCI device id.
    pub pci: Option<PciDevice>,
    /// The driver that runs it.
    pub driver: Option<DriverVersion>,
    /// What its code may use.
    pub compute: Option<ComputeCapability>,
    /// All of its memory, the driver's own part included.
    pub memory_total: Option<MiB>,
}

impl Hardware {
    /// Nothing is known.
    pub const UNKNOWN: Hardware =
        Hardware { pci: None, driver: None, compute: None, memory_total: None };
}

/// How a leased slice came to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// It was offered as it is.
    Offered,
    /// The grant carves it out of a GPU that was offered whole.
    Carved,
}

/// How much a slice holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Capacity {
    /// The model of the GPU.
    pub model: GpuModel,
    /// Share of the GPU's compute, 1 to 1,000.
    pub gpu: GpuMilli,
    /// Device memory a guest can use: the driver's own part is already taken off.
    pub memory: MiB,
    /// CPU that goes with it, or of the whole node if its offer says so.
    pub cpu: CpuMilli,
    /// Host memory that goes with it, or of the whole node if its offer says so.
    pub host_memory: MiB,
    /// How its users are kept apart.
    pub isolation: Isolation,
    /// Devices of one node with the same number reach each other over NVLink.
    pub island: u16,
    /// What is known of the GPU.
    #[serde(default)]
    pub hardware: Hardware,
}
