//! The lease ledger: journal, proofs, accounts, verifier.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::as_conversions, reason = "tests"))]

pub mod accounts;
mod archive;
pub mod error;
mod index;
pub mod journal;
pub mod merkle;
mod page;
mod segment;
mod store;
pub mod verify;

#[cfg(test)]
#[path = "../tests/support/mod.rs"]
#[allow(dead_code, reason = "shared with the integration tests and the measurement")]
mod support;

pub use self::error::Error;
pub use self::journal::Journal;
pub use self::segment::Seal;
