//! The `sublet-sim` command: replays, made-up traces and fits.
//!
//! Exit codes: 0 done, 1 a failure while at work, 2 wrong usage or input that cannot be read.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
