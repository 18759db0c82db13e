//! The agent's binary: guards one guest, or says what captures show.

use std::process::ExitCode;

fn main() -> ExitCode {
    sublet_agent::guard::run_if_asked();
    sublet_agent::cli::run()
}
