//! The command line of `sublet-agent`.

pub mod inventory;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Looks at a node's GPUs.
#[derive(Debug, Parser)]
#[command(name = "sublet-agent", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Says what captures of GPUs show, and what would be offered of them.
    Inventory(inventory::Arguments),
}

/// Runs the program: 0 if all was read, 1 if a file was not, 2 for a wrong command line.
#[must_use]
pub fn run() -> ExitCode {
    match Arguments::parse().command {
        Command::Inventory(arguments) => inventory::run(&arguments),
    }
}
