//! Replays the Helios trace: what each of its tenants left idle and had waiting, minute by minute.
//!
//! The trace knows no jobs, only sums. An owner's jobs are taken to stand on its first GPUs, so that what
//! is idle is gathered on few nodes. What waits in the trace asks Sublet for places elsewhere; when the
//! trace says that less waits, since a job has started at home or was withdrawn, as much is given back.
//! Everything is charged as in [`lending`](crate::lending).

mod report;
mod run;
mod series;
#[cfg(test)]
mod tests;

pub use report::Report;
pub use run::{Recovered, replay};
pub use series::{Need, Series, SeriesError};
