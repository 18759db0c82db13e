//! The `sublet` command.
fn main() {}
