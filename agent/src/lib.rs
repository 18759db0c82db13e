//! The agent on each node: what is idle, and the only gate to it.
//!
//! Everything that decides is sans-I/O with time passed in. No module but the process driver and
//! the guard starts a process.
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::as_conversions, reason = "tests may stop on a surprise")
)]

pub mod probe;

pub mod health;
pub mod idle;
pub mod usage;
pub mod watch;
pub mod xid;

pub mod capture;
pub mod cli;

pub mod durable;
pub mod session;

pub mod driver;
pub mod guard;

pub mod clock;
pub mod node;
