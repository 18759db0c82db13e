//! Makes jobs and owners' behaviour that look like the public traces, from a seed.
//!
//! The shapes are small tables beside this file, fitted by `sublet-sim fit` to the traces and kept in
//! the repository, so nothing here reads a trace. Everything is an integer and one seed always gives
//! one sequence, on every machine. What is made: per tenant, when jobs arrive (hour, weekday, bursts),
//! how many GPUs they take, how long they run ([`Generator`]); and per node, when its owner's work is
//! there ([`Owners`]). Dependencies between tenants and trends over weeks are not.

pub mod fit;
mod jobs;
mod owners;
mod profile;
mod random;
mod shape;
mod table;

pub use jobs::{Generator, Job};
pub use owners::{OwnerProfile, OwnerState, Owners, Turn};
pub use profile::{Burst, Durations, Profile, TenantProfile};
pub(crate) use random::Random;
pub use shape::{Quantiles, ShapeError, Weights};
pub use table::{Entry, Table, TableError};
