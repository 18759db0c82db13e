//! The `sublet-sim` command.
fn main() {}
