//! End-to-end tests: the real `sublet`, real processes, a real server on a free port of this
//! machine, each test with folders of its own.
#![allow(
    clippy::unwrap_used,
    clippy::as_conversions,
    unreachable_pub,
    reason = "tests may stop on a surprise"
)]

mod audit;
mod bad_input;
mod brokers;
mod cell;
mod crash;
mod dev;
mod histories;
mod money;
mod nvml;
mod shell;
mod support;
mod walk;
