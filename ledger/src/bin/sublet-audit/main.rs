//! `sublet-audit`: checks a ledger offline, without trusting whoever runs it.
//!
//! It has no network and changes nothing in the folders that it reads. Exit codes: 0 all is well,
//! 1 it could not be used or the system failed, 2 damaged, 3 fork, 4 the books do not balance,
//! 5 written by a version that it does not know.

mod books;
mod check_proof;
mod check_statement;
mod diff;
mod export;
mod focus_check;
mod leaf;
mod node;
mod output;
mod prove;
mod replay;
mod statement;
mod trust;
mod verify;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use self::output::Output;

/// Check a Sublet ledger offline. Reads the folder of a broker, or a copy of it; no network.
///
/// Exit codes: 0 all is well, 1 wrong usage or a failure of the system, 2 damaged, 3 fork,
/// 4 the books do not balance, 5 written by a version that this program does not know.
#[derive(Debug, Parser)]
#[command(name = "sublet-audit", version, max_term_width = 100)]
struct Arguments {
    /// Print JSON: one object; `check-proof` prints a list.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Verify(Box<verify::Verify>),
    Prove(Box<prove::Prove>),
    CheckProof(check_proof::CheckProof),
    Diff(diff::Diff),
    Leaf(leaf::Leaf),
    Replay(replay::Replay),
    Statement(statement::Statement),
    Export(export::Export),
    FocusCheck(focus_check::FocusCheck),
    Node(node::NodeCost),
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and version are what was asked for; anything else is wrong usage.
            let code = if error.use_stderr() { 1 } else { 0 };
            return if error.print().is_ok() { ExitCode::from(code) } else { ExitCode::FAILURE };
        }
    };
    let output = Output::new(arguments.json);
    let done = match arguments.command {
        Command::Verify(verify) => verify.run(&output),
        Command::Prove(prove) => prove.run(&output),
        Command::CheckProof(check) => check.run(&output),
        Command::Diff(diff) => diff.run(&output),
        Command::Leaf(leaf) => leaf.run(&output),
        Command::Replay(replay) => replay.run(&output),
        Command::Statement(statement) => statement.run(&output),
        Command::Export(export) => export.run(&output),
        Command::FocusCheck(check) => check.run(&output),
        Command::Node(node) => node.run(&output),
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(error) if output::nobody_reads(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::complain(&error);
            ExitCode::FAILURE
        }
    }
}
