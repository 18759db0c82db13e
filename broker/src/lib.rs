//! The shell round the rules: raft, agent link, HTTP, planner.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::as_conversions, reason = "tests"))]

pub mod auth;
pub mod backup;
mod behind;
pub mod calendar;
pub mod cell;
pub mod clock;
mod clocks;
pub mod config;
pub mod counters;
mod divergence;
mod driver;
pub mod error;
mod feed;
mod folders;
mod forward;
pub mod http;
mod ledger_key;
mod link;
pub mod lookback;
mod machine;
pub mod members;
pub mod metrics;
mod proofs;
pub mod raft;
pub mod reconciliation;
mod records;
pub mod relay;
pub mod rollback;
mod roots;
mod scrub;
mod segments;
mod snapshot;
pub mod space;
mod stuck;

pub use cell::Cell;
pub use config::{Checks, Config};
pub use error::Error;
