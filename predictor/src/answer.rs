//! What is answered: integers, and where they come from.

use sublet_protocol::requests::{Prediction, PredictionLayer};
use sublet_protocol::units::{MiB, Permille, Seconds};

/// How long the job runs. Never decreasing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DurationNeed {
    /// One run in ten is shorter.
    pub q10: Seconds,
    /// The median run.
    pub q50: Seconds,
    /// Nine runs in ten are shorter.
    pub q90: Seconds,
}

/// How much device memory the job needs on each GPU. The bound is not below the median.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryNeed {
    /// The median.
    pub q50: MiB,
    /// What suffices.
    pub bound: MiB,
}

/// Where an answer comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Provenance {
    /// Which layer answered.
    pub layer: PredictionLayer,
    /// The version of its model or rules.
    pub version: u32,
}

/// What the job needs, as far as the predictor knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// How many slices.
    pub gpus: u32,
    /// Device memory on each.
    pub memory: MemoryNeed,
    /// How long.
    pub duration: DurationNeed,
    /// How sure it is that the need is within the bounds; 0 = nothing is known that could tell.
    pub confidence: Permille,
    /// Where it comes from.
    pub provenance: Provenance,
}

impl Answer {
    /// The part of the answer that goes with a request.
    #[must_use]
    pub const fn prediction(&self) -> Prediction {
        Prediction {
            layer: self.provenance.layer,
            version: self.provenance.version,
            confidence: self.confidence,
            duration_q10: self.duration.q10,
            duration_q50: self.duration.q50,
            duration_q90: self.duration.q90,
            memory_bound: self.memory.bound,
        }
    }
}
