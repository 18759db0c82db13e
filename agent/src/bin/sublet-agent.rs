//! The agent's binary. So far it only serves as the guard of one guest.

use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    sublet_agent::guard::run_if_asked();
    let _ = writeln!(
        std::io::stderr(),
        "sublet-agent: this build only guards guests that `sublet dev` starts; run `sublet dev`"
    );
    ExitCode::from(2)
}
