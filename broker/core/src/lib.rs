//! The rules of Sublet.
//!
//! [`apply`] judges a stamped command with [`decide`](decide::decide) and folds the facts that come
//! of it with [`evolve()`]. All of it is a function of its arguments: no clock, randomness, float,
//! hash order, I/O, logging or async is here, and the lints of this folder see to it. [`matching`]
//! proposes plans from a view of the state, outside the log; [`leader`] is the logic that only a
//! leader runs, as messages in and effects out; [`invariants`] are checked in tests, simulations
//! and production by the same code.
#![forbid(unsafe_code)]
#![deny(clippy::float_arithmetic, clippy::disallowed_types, clippy::disallowed_methods)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::as_conversions, reason = "tests may stop on a surprise")
)]

mod apply;
pub mod decide;
mod evolve;
mod fit;
pub mod mutation;
pub mod partition;
pub mod past;
mod pledges;
mod preemption;
pub mod quota;
mod reclaim;
mod state;

pub mod invariants;
pub mod leader;
pub mod matching;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use apply::{Applied, apply, apply_knowing};
pub use evolve::{evolve, fold};
pub use state::{
    Cluster, EndNotice, FEATURE_LEVEL, Lease, LeaseStage, Node, Offer, Promise, Request,
    RequestStage, Rollback, RollbackStage, State, StateView, Tenant, Whereabouts,
};
