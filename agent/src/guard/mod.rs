//! The dead-man's switch (rule LA5): one small process per guest that outlives nothing and trusts
//! nobody.
//!
//! The guard is the agent's own binary, started again with `__guard` as first argument. It reads
//! what to run, then deadlines and signals, from its standard input (one end of a socket pair, so
//! it can also answer), starts the guest in a process group of its own, and kills the guest *and
//! everything that came from it* at the deadline, or when the other end closes because the agent is
//! gone. Descendants that leave the group or fork twice stay its children, for the guard is their
//! subreaper (`PR_SET_CHILD_SUBREAPER`). It needs no other process alive, and counts on
//! `CLOCK_BOOTTIME`, which goes on in suspend (rule LR5).
//!
//! It does not decide anything: the session moves the deadline, the guard obeys the last one. A
//! guard that is itself killed leaves its guest to the driver, which kills what carries the lease's
//! mark.

mod boottime;
mod processes;
mod run;
mod wire;

pub use boottime::boottime_now;
pub use wire::{Ended, GuestStatus, LAUNCH_MAX, Launch, Order, Why};

pub(crate) use processes::{cpu_below, descends_from, kill_group, kill_marked};

use std::ffi::OsStr;

/// The first argument that makes a binary the guard.
pub const ARGUMENT: &str = "__guard";

/// Becomes the guard and never returns, if this process was started as one; else does nothing.
///
/// Call it first thing in `main` of every binary that starts guests: before threads, logging and
/// argument parsing.
pub fn run_if_asked() {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().as_deref() != Some(OsStr::new(ARGUMENT)) {
        return;
    }
    std::process::exit(run::run());
}
