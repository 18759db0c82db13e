//! The agent's tests that start real processes. All in one binary.
#![allow(
    clippy::unwrap_used,
    clippy::as_conversions,
    missing_docs,
    reason = "tests may stop on a surprise"
)]

mod days;
mod driver;
mod fake;
mod guard;
mod node;
mod nvml;
mod process;
mod support;
