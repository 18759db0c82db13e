//! Replays a trace with what lending really costs.
//!
//! Each tenant runs its own jobs on its own GPUs by its own scheduler: first come, first served, the
//! head blocks, as in the static baseline. What stays idle long enough is offered through the real
//! rules; jobs that wait at home also ask there. An owner whose next job fits on its own GPUs takes
//! back what is lent of them, at once: the guest loses what it did since its last checkpoint and waits
//! again. Nothing is free: idleness must be seen, guests must be stopped, started and fed.

mod cost;
mod forecast;
mod guest;
mod home;
mod owner;
mod report;
mod run;

pub use cost::Friction;
pub(crate) use forecast::Forecast;
pub use report::Report;
pub use run::{Hour, Lent, Options, replay};
