//! What a scenario file says. Memory in MiB, temperature in °C, power in mW, energy in mJ, time in ms.
//! A reading that is left out is not supported by its device.

use std::collections::BTreeMap;

use serde::Deserialize;

/// A whole file: what holds at first, and what replaces it later.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// What holds from the moment the file is read.
    pub now: Scenario,
    /// What holds later, in the order of time.
    #[serde(default)]
    pub later: Vec<Step>,
}

/// What holds from a moment on.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// So long after the file was read.
    pub after_ms: u64,
    /// What holds from then on.
    pub scenario: Scenario,
}

/// A machine with its driver.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Scenario {
    /// The driver's version.
    pub driver: Option<String>,
    /// A driver that was loaded anew has another number: who did not open the library since then is
    /// told that it is not initialised.
    pub load: u64,
    /// The GPUs, in the order of their indices.
    pub gpus: Vec<Gpu>,
    /// Symbol and the code that it returns whatever it is asked.
    pub errors: BTreeMap<String, u32>,
    /// A call that does not come back.
    pub hang: Option<Hang>,
}

/// A call that does not come back in time.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hang {
    /// Which.
    pub symbol: String,
    /// For so long; until the file changes if it is not said.
    pub ms: Option<u64>,
}

/// A GPU.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Gpu {
    /// The driver's UUID, `GPU-…`.
    pub uuid: String,
    /// The driver's name of the model.
    pub name: Option<String>,
    /// Domain, bus and device, as `00000000:07:00.0`.
    pub pci: Option<String>,
    /// It fell off the bus: it still has an index, and every call says that it is lost.
    pub lost: bool,
    /// Symbol and the code that it returns for this GPU.
    pub errors: BTreeMap<String, u32>,
    /// Its memory.
    pub memory: Option<Memory>,
    /// Share of time with a kernel at work, percent.
    pub utilisation: Option<u32>,
    /// Processes with a compute context.
    pub compute: Option<Vec<Process>>,
    /// Processes with a graphics context.
    pub graphics: Option<Vec<Process>>,
    /// Its MIG instances; left out, MIG is not supported, and an empty list with `mig_enabled` off
    /// means that it is switched off.
    pub instances: Option<Vec<Instance>>,
    /// Whether MIG mode is on.
    pub mig_enabled: bool,
    /// The driver's virtualisation mode: 0 none, 1 passed through, 2 a guest's vGPU, 3 and 4 a host.
    pub virtualisation: Option<u32>,
    /// Temperature of the chip.
    pub temperature: Option<u32>,
    /// From which temperature it slows down.
    pub slowdown: Option<u32>,
    /// Power draw.
    pub power: Option<u32>,
    /// Energy since the driver was loaded.
    pub energy: Option<u64>,
    /// ECC errors since the driver was loaded.
    pub ecc: Option<Ecc>,
    /// Memory rows replaced.
    pub rows: Option<Rows>,
    /// Whether memory pages wait to be retired.
    pub retirement_pending: Option<bool>,
    /// Errors the driver has seen, each once.
    pub xids: Vec<Xid>,
    /// UUIDs of the GPUs it has an NVLink to.
    pub links: Option<Vec<String>>,
}

/// Memory of a device.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// All of it.
    pub total: u64,
    /// What the driver takes.
    #[serde(default)]
    pub reserved: u64,
    /// What processes take.
    #[serde(default)]
    pub used: u64,
}

/// A process.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// Its memory.
    #[serde(default)]
    pub memory: u64,
    /// The GPU instance it is on.
    pub gi: Option<u32>,
}

/// A MIG instance.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Instance {
    /// The driver's UUID: `MIG-…`, or the older `MIG-GPU-…/3/0`.
    pub uuid: String,
    /// GPU instance.
    pub gi: u32,
    /// Compute instance on it.
    #[serde(default)]
    pub ci: u32,
    /// Profile id of the GPU instance.
    #[serde(default)]
    pub profile: u32,
    /// First memory slice.
    #[serde(default)]
    pub start: u32,
    /// Memory slices.
    #[serde(default)]
    pub size: u32,
    /// Its memory.
    pub memory: Option<Memory>,
    /// Share of its time at work, 0 to 100, where the card measures it.
    pub activity: Option<f64>,
}

/// Counted ECC errors.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ecc {
    /// Corrected.
    #[serde(default)]
    pub corrected: u64,
    /// Not corrected.
    #[serde(default)]
    pub uncorrected: u64,
}

/// Memory rows replaced.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rows {
    /// After correctable errors.
    pub correctable: u32,
    /// After uncorrectable errors.
    pub uncorrectable: u32,
    /// Whether a replacement waits for a reset.
    pub pending: bool,
    /// Whether one failed.
    pub failed: bool,
}

/// An Xid event. It is delivered once for its number.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Xid {
    /// Tells it from others.
    pub number: u64,
    /// Its code.
    pub code: u64,
}
