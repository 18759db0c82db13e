//! The cell as a whole: rules, log, journal and agent link in one process, without a network.
#![allow(
    clippy::unwrap_used,
    clippy::as_conversions,
    clippy::print_stdout,
    reason = "tests may stop on a surprise; a child process speaks through its output"
)]

mod agent;
mod backup;
mod brokers;
mod failover;
mod full_disk;
mod kill;
mod levels;
mod life;
mod restart;
mod rollback;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod storage;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod traced;
mod world;
