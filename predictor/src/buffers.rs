//! The policy's buffers, as data.

use sublet_protocol::units::Permille;

use crate::Error;

/// Whether a bound may be above what was declared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cap {
    /// Never: the declared values are limits, the guest gets no more anyway.
    AtDeclared,
    /// It may: to see what the buffers alone would reserve (reports, shadow runs).
    Open,
}

/// How the declared values are taken: the median is a part of the declared value, the bound is the
/// median stretched. Both are rounded up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffers {
    /// Part of the declared memory that is taken as the median, 1 to 1,000.
    pub memory_part: Permille,
    /// Part of the declared duration that is taken as the median, 1 to 1,000.
    pub duration_part: Permille,
    /// Memory bound over the median, at least 1,000.
    pub memory_stretch: Permille,
    /// Duration's q90 over the median, at least 1,000.
    pub duration_stretch: Permille,
    /// What holds the bounds down.
    pub cap: Cap,
}

impl Buffers {
    /// The default: declared values as they are (on ThetaGPU 29 % of jobs and 57 % of GPU-hours
    /// exceed 90 % of the declared time, and no history is known here that would prove slack in
    /// memory), with the field's +15 % memory and +20 % duration held down to what was declared.
    pub const CALIBRATED: Self = Self {
        memory_part: Permille::new(1_000),
        duration_part: Permille::new(1_000),
        memory_stretch: Permille::new(1_150),
        duration_stretch: Permille::new(1_200),
        cap: Cap::AtDeclared,
    };

    /// The field's rule of thumb taken literally, a switch of the policy: 90 % of what was
    /// declared, +15 % memory, +20 % duration, held down to what was declared.
    pub const PLAIN: Self = Self {
        memory_part: Permille::new(900),
        duration_part: Permille::new(900),
        memory_stretch: Permille::new(1_150),
        duration_stretch: Permille::new(1_200),
        cap: Cap::AtDeclared,
    };

    /// Checks every buffer; the first that is out of its range is named.
    ///
    /// # Errors
    /// [`Error::BufferOutOfRange`].
    pub fn validate(&self) -> Result<(), Error> {
        let parts = [("memory_part", self.memory_part), ("duration_part", self.duration_part)];
        if let Some((field, _)) = parts.iter().find(|(_, p)| !(1..=1_000).contains(&p.get())) {
            return Err(Error::BufferOutOfRange { field, range: "1 to 1000" });
        }
        let stretches =
            [("memory_stretch", self.memory_stretch), ("duration_stretch", self.duration_stretch)];
        match stretches.iter().find(|(_, stretch)| stretch.get() < 1_000) {
            Some((field, _)) => Err(Error::BufferOutOfRange { field, range: "1000 to 65535" }),
            None => Ok(()),
        }
    }
}

impl Default for Buffers {
    fn default() -> Self {
        Self::CALIBRATED
    }
}
