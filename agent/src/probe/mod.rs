//! What the agent sees of its node's devices.
//!
//! A [`Probe`] only reads. What it cannot read it reports as unknown (`None`), never as zero:
//! whether unknown may be lent is judged in [`crate::idle`], and the answer there is no. Devices
//! are known by UUID, never by index.

pub mod sim;

use sublet_protocol::ids::{DeviceId, GpuModel};
use sublet_protocol::units::{MiB, Millis};

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
    /// All its memory.
    pub memory_total: MiB,
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
}

/// Why a look at the devices failed.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// The driver's library does not answer.
    #[error("the GPU driver does not answer (code {code})")]
    DriverSilent {
        /// The driver's own error number.
        code: u32,
    },
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
