//! What a job really needs: a declared request in, integers with their provenance out.
//!
//! Pure: no clock, no I/O, no floats. It runs in the agent and in the CLI, inside the tenant's
//! cluster, never in the broker; what it says is advice, for holds and limits use the declared
//! values. One layer answers so far: the declared values with the policy's buffers ([`declared`]).
//! The layers above it (history, trained models) answer the same [`Question`] with the same
//! [`Answer`].
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::as_conversions, reason = "tests may stop on a surprise")
)]

mod answer;
mod buffers;
pub mod declared;
mod question;

pub use answer::{Answer, DurationNeed, MemoryNeed, Provenance};
pub use buffers::{Buffers, Cap};
pub use question::{Deadline, Declared, Question};

use sublet_protocol::requests::PredictionLayer;

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A declared amount is zero or beyond its range.
    #[error("declared {field} must be {range}")]
    DeclaredOutOfRange {
        /// Which amount.
        field: &'static str,
        /// What it may be.
        range: &'static str,
    },
    /// A buffer that would shrink what it is to stretch, or stretch what it is to shrink.
    #[error("buffer {field} must be {range} thousandths")]
    BufferOutOfRange {
        /// Which buffer.
        field: &'static str,
        /// What it may be.
        range: &'static str,
    },
    /// A caller that would wait for longer than an answer may take.
    #[error("the deadline must be 1 to {max_millis} ms")]
    DeadlineOutOfRange {
        /// The longest allowed.
        max_millis: u64,
    },
}

/// Answers `question` with the best layer there is, in time.
///
/// A caller whose deadline has passed gets the same conservative values, said to be a
/// [`PredictionLayer::Fallback`].
///
/// # Errors
/// When the declared values or the buffers are out of range. Never for lack of time.
pub fn predict(question: &Question, buffers: &Buffers) -> Result<Answer, Error> {
    let layer = if question.deadline.has_passed(question.spent) {
        PredictionLayer::Fallback
    } else {
        PredictionLayer::Declared
    };
    declared::answer(&question.declared, buffers, layer)
}
