//! What is asked.

use sublet_protocol::requests::{COUNT_MAX, DURATION_MAX, MEMORY_MAX, RequestSpec};
use sublet_protocol::units::{GpuMilli, MiB, Millis, Seconds};

use crate::Error;

/// What the tenant declares for the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Declared {
    /// How many slices, 1 to [`COUNT_MAX`].
    pub gpus: u32,
    /// Share of a GPU for each, 1 to 1,000.
    pub gpu: GpuMilli,
    /// Device memory for each, at most [`MEMORY_MAX`]. Zero means any will do.
    pub memory: MiB,
    /// How long at most, 1 s to [`DURATION_MAX`].
    pub duration: Seconds,
}

impl Declared {
    /// The declared part of a request.
    #[must_use]
    pub const fn of(spec: &RequestSpec) -> Self {
        Self { gpus: spec.count, gpu: spec.gpu, memory: spec.memory, duration: spec.duration }
    }

    /// Checks every amount; the first that is out of its range is named.
    ///
    /// # Errors
    /// [`Error::DeclaredOutOfRange`].
    pub fn validate(&self) -> Result<(), Error> {
        let within = |is_within: bool, field, range| {
            if is_within { Ok(()) } else { Err(Error::DeclaredOutOfRange { field, range }) }
        };
        within((1..=COUNT_MAX).contains(&self.gpus), "gpus", "1 to 1024")?;
        within((1..=1_000).contains(&self.gpu.get()), "gpu", "1 to 1000 thousandths of a GPU")?;
        within(self.memory <= MEMORY_MAX, "memory", "at most 1048576 MiB")?;
        let some_time = self.duration > Seconds::ZERO && self.duration <= DURATION_MAX;
        within(some_time, "duration", "1 to 2592000 seconds")
    }
}

/// How long an answer may take. Past it the conservative fallback is given, and said to be one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Millis);

impl Deadline {
    /// The longest that a caller may be kept waiting: 500 ms, which is the default, too.
    pub const LONGEST: Self = Self(Millis::new(500));

    /// A deadline `limit` after the question was asked.
    ///
    /// # Errors
    /// [`Error::DeadlineOutOfRange`] for zero and for more than [`Self::LONGEST`].
    pub fn new(limit: Millis) -> Result<Self, Error> {
        if limit == Millis::ZERO || limit > Self::LONGEST.0 {
            return Err(Error::DeadlineOutOfRange { max_millis: Self::LONGEST.0.get() });
        }
        Ok(Self(limit))
    }

    /// Whether `spent` since the question was asked uses up the deadline.
    #[must_use]
    pub fn has_passed(self, spent: Millis) -> bool {
        spent >= self.0
    }
}

impl Default for Deadline {
    fn default() -> Self {
        Self::LONGEST
    }
}

/// One question. Time is passed in: the predictor has no clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question {
    /// What the tenant declares.
    pub declared: Declared,
    /// How long the answer may take.
    pub deadline: Deadline,
    /// How much of that is spent already.
    pub spent: Millis,
}

impl Question {
    /// A question that was asked just now and may take as long as any.
    #[must_use]
    pub fn new(declared: Declared) -> Self {
        Self { declared, deadline: Deadline::default(), spent: Millis::ZERO }
    }
}
