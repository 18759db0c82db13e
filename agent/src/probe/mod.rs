//! What the agent sees of its node's devices.
//!
//! A [`Probe`] only reads. What it cannot read it reports as unknown (`None`), never as zero:
//! whether unknown may be lent is judged in [`crate::idle`], and the answer there is no. Devices
//! are known by UUID, never by index.

mod judged;
pub mod nvml;
pub mod sim;
mod vitals;

use sublet_protocol::ids::{DeviceId, GpuModel};
use sublet_protocol::units::{MiB, Millis};

pub use vitals::{Cause, Ecc, Rows, Unread, Vitals};

/// A share of a device's time, 0 to 100.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Percent(u8);

impl Percent {
    /// Zero percent.
    pub const ZERO: Self = Self(0);

    /// `value` percent, capped at 100.
    #[must_use]
    pub const fn saturating(value: u8) -> Self {
        Self(if value > 100 { 100 } else { value })
    }

    /// The number, 0 to 100.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }
}

/// A process that holds a device, by its number in the probe's process namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProcessId(pub u32);

/// What the owner's own scheduler has on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnerQueue {
    /// No job of the owner runs or is about to start there.
    Nothing,
    /// A job of the owner runs or is about to start there.
    Something,
}

/// How well a device is, as far as the driver says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// Nothing is wrong.
    Healthy,
    /// It works, with a fault on record.
    Degraded,
    /// It must not be used.
    Unhealthy,
    /// The driver does not say.
    Unknown,
}

/// One look at one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// Which device.
    pub device: DeviceId,
    /// Its model.
    pub model: GpuModel,
    /// What of a GPU it is.
    pub layout: Layout,
    /// All its memory.
    pub memory_total: Option<MiB>,
    /// Memory in use, the driver's own share included.
    pub memory_used: Option<MiB>,
    /// What the driver itself takes with nothing running.
    pub memory_driver: Option<MiB>,
    /// Share of the last period in which a kernel ran.
    pub utilisation: Option<Percent>,
    /// Processes that hold the device.
    pub processes: Option<Vec<ProcessId>>,
    /// What the owner's scheduler has there.
    pub owner_queue: Option<OwnerQueue>,
    /// Its health.
    pub health: Health,
    /// What else was read, for health and for the record.
    pub vitals: Vitals,
}

/// What of a GPU a device is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// All of a GPU that is not divided.
    Whole,
    /// A GPU in MIG mode, or one that serves virtual GPUs. Its parts may be lent, never the whole.
    Divided,
    /// A MIG instance.
    Instance(Instance),
    /// The driver does not say. Such a GPU may be divided.
    Unknown,
}

/// Where a MIG instance is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instance {
    /// The GPU it is a part of.
    pub gpu: DeviceId,
    /// The driver's number of its GPU instance.
    pub gpu_instance: u32,
    /// The driver's profile id and first memory slice, where they can be read.
    pub placement: Option<(u32, u32)>,
}

/// Why a look at the devices failed.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// The driver's library does not answer.
    #[error("the GPU driver does not answer (code {code})")]
    DriverSilent {
        /// The driver's own error number.
        code: u32,
    },
    /// There is no library of the driver, or it cannot be loaded.
    #[error("the GPU driver's library cannot be loaded")]
    NoLibrary,
    /// The driver is not loaded, or is another version than its library.
    #[error("the GPU driver is not loaded, or not the one its library is for")]
    NoDriver,
    /// The agent may not talk to the driver.
    #[error("no permission to talk to the GPU driver")]
    NoPermission,
    /// A call into the driver does not come back.
    #[error("the GPU driver has not come back from a call for {} ms", waited.get())]
    Hung {
        /// Since the call began.
        waited: Millis,
    },
    /// The thread that talks to the driver has ended.
    #[error("the thread that reads the GPU driver has stopped")]
    Stopped,
}

/// Reads a node's devices. Time is passed in; a probe has no clock.
pub trait Probe: Send {
    /// One sample per device that is there at `now`; one that is absent was lost.
    ///
    /// # Errors
    /// When no device can be read at all.
    fn sample(&mut self, now: Millis) -> Result<Vec<Sample>, Error>;

    /// When the probe knows that something will have changed after `now`, if it can know: a
    /// simulated node's next step. The caller looks then, besides its usual period.
    fn next_change(&mut self, now: Millis) -> Option<Millis>;
}
