//! What a driver tells of a device beside its use: for its health, and for the record.

/// Readings of one look. `None` is unknown: not supported, not allowed, or failed; never zero.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Vitals {
    /// Memory nobody has, MiB. Less than what is not used: the driver reserves some.
    pub memory_free: Option<u64>,
    /// Power draw, milliwatts.
    pub power: Option<u32>,
    /// Energy since the driver was loaded or the device reset, millijoules.
    pub energy: Option<u64>,
    /// Temperature of the chip, °C.
    pub temperature: Option<u32>,
    /// From which temperature the device slows itself down, °C.
    pub slowdown: Option<u32>,
    /// ECC errors since the driver was loaded or the device reset.
    pub ecc: Option<Ecc>,
    /// Memory rows replaced (Ampere and later).
    pub rows: Option<Rows>,
    /// Whether memory pages wait for a reset to be retired (before Ampere).
    pub retirement_pending: Option<bool>,
    /// Whether Xid events of this device can be heard.
    pub hears_xids: bool,
    /// Xid codes heard since the last look, in order.
    pub xids: Vec<u32>,
    /// What could not be read, and why. What a device does not support is not listed.
    pub unread: Vec<Unread>,
}

/// ECC errors, counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ecc {
    /// Corrected by the hardware; no harm done.
    pub corrected: u64,
    /// Not corrected; what was read was wrong.
    pub uncorrected: u64,
}

/// Memory rows that were replaced by spare ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rows {
    /// After correctable errors.
    pub correctable: u32,
    /// After uncorrectable errors.
    pub uncorrectable: u32,
    /// Whether a replacement waits for a reset.
    pub is_pending: bool,
    /// Whether a replacement failed.
    pub has_failed: bool,
}

/// A reading that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unread {
    /// Which, in words for people.
    pub reading: &'static str,
    /// Why.
    pub cause: Cause,
}

/// Why a reading failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The agent may not read it. Says nothing about the device.
    Permission,
    /// The device or its driver failed.
    Device,
}
