//! The lowest layer: the declared values with the policy's buffers. It always has an answer.
//!
//! Exactly: `q50 = ⌈declared × part⌉`, `bound = ⌈q50 × stretch⌉`, held down to the declared value
//! where the cap says so; a bound is never below its q50. `q10` is 0 and the confidence 0 ‰, for
//! nothing is known about how early such jobs end: `[0, bound]` is the one interval that can be
//! stood by. The number of GPUs is the declared one.

use sublet_protocol::requests::PredictionLayer;
use sublet_protocol::units::{MiB, Permille, Seconds};

use crate::{Answer, Buffers, Cap, Declared, DurationNeed, Error, MemoryNeed, Provenance};

/// Version of this layer's rules; a change of the arithmetic raises it.
pub const VERSION: u32 = 1;

/// The declared values with `buffers`, said to come from `layer`.
///
/// # Errors
/// When a declared value or a buffer is out of its range.
pub fn answer(
    declared: &Declared,
    buffers: &Buffers,
    layer: PredictionLayer,
) -> Result<Answer, Error> {
    declared.validate()?;
    buffers.validate()?;
    let (memory_q50, memory_bound) =
        need(declared.memory.get(), buffers.memory_part, buffers.memory_stretch, buffers.cap);
    let (duration_q50, duration_q90) =
        need(declared.duration.get(), buffers.duration_part, buffers.duration_stretch, buffers.cap);
    Ok(Answer {
        gpus: declared.gpus,
        memory: MemoryNeed { q50: MiB::new(memory_q50), bound: MiB::new(memory_bound) },
        duration: DurationNeed {
            q10: Seconds::ZERO,
            q50: Seconds::new(duration_q50),
            q90: Seconds::new(duration_q90),
        },
        confidence: Permille::ZERO,
        provenance: Provenance { layer, version: VERSION },
    })
}

/// Median and bound of one declared value.
fn need(declared: u64, part: Permille, stretch: Permille, cap: Cap) -> (u64, u64) {
    let q50 = scaled_up(declared, part);
    let stretched = scaled_up(q50, stretch);
    match cap {
        Cap::AtDeclared => (q50, stretched.min(declared)),
        Cap::Open => (q50, stretched),
    }
}

/// `⌈value × factor⌉`. Validated values are below 2⁴¹ and factors below 2¹⁶: the product fits.
fn scaled_up(value: u64, factor: Permille) -> u64 {
    let product = value.checked_mul(u64::from(factor.get()));
    product.expect("a validated value times a factor fits 64 bits").div_ceil(1_000)
}

#[cfg(test)]
#[path = "declared_tests.rs"]
mod tests;
