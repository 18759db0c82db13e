//! The `sublet` command: everything on one machine for a try, and the command line of a cell.
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::as_conversions, reason = "tests may stop on a surprise")
)]

mod cli;
mod client;
mod config;
mod dev;
mod failure;
mod keys;
mod logging;
mod output;
mod random;
mod server;
mod signals;
mod suggest;
mod units;
mod witness;

use std::process::ExitCode;

fn main() -> ExitCode {
    // A guest's guard is this same program, started with a word of its own: it must not read the
    // command line as a person's.
    sublet_agent::guard::run_if_asked();
    cli::main()
}
