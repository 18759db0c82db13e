//! The lease ledger: journal, proofs, accounts, verifier.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::as_conversions, reason = "tests"))]

pub mod merkle;
