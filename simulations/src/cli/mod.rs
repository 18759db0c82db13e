//! Arguments, exit codes and what is printed. The work is done by the library.

mod chaos;
mod fill;
mod fit;
mod generate;
mod mutations;
mod replay;
mod report;
mod shape;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Wrong usage or input, as clap's own exit code.
const EXIT_INPUT: u8 = 2;

/// Replays public traces through Sublet's real rules, and makes traces where there are none.
#[derive(Debug, Parser)]
#[command(name = "sublet-sim", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Chaos(chaos::Arguments),
    Replay(replay::Arguments),
    Fill(fill::Arguments),
    Report(report::Arguments),
    Shape(shape::Arguments),
    Generate(generate::Arguments),
    Fit(fit::Arguments),
}

/// Why a command did not do its work.
#[derive(Debug)]
enum Failure {
    /// What the user gave cannot be used: exit code 2.
    Input(anyhow::Error),
    /// The world or the program failed: exit code 1.
    Work(anyhow::Error),
}

/// Parses the arguments, runs the command and says what went wrong.
pub(crate) fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Chaos(arguments) => chaos::run(&arguments),
        Command::Replay(arguments) => replay::run(&arguments),
        Command::Fill(arguments) => fill::run(&arguments),
        Command::Report(arguments) => report::run(&arguments),
        Command::Shape(arguments) => shape::run(&arguments),
        Command::Generate(arguments) => generate::run(&arguments),
        Command::Fit(arguments) => fit::run(&arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Input(error)) => complain(&error, ExitCode::from(EXIT_INPUT)),
        Err(Failure::Work(error)) => complain(&error, ExitCode::FAILURE),
    }
}

fn complain(error: &anyhow::Error, code: ExitCode) -> ExitCode {
    // If even the message cannot be written, the exit code is all that is left to say it.
    let _ = writeln!(io::stderr(), "error: {error:#}");
    code
}

/// Writes `text` to standard output. A reader that has gone away (`| head`) is no failure.
fn print(text: &str) -> Result<(), Failure> {
    match io::stdout().write_all(text.as_bytes()).and_then(|()| io::stdout().flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::Work(anyhow::Error::new(error).context("cannot write to standard output")))
        }
        _ => Ok(()),
    }
}
