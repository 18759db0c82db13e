//! The command line: one file per noun, flags and exit codes here.

mod amounts;
mod backup;
mod cell;
mod cluster;
mod dev;
mod events;
mod find;
mod global;
mod lease;
mod ledger;
mod offers;
mod policy;
mod price;
mod quota;
mod rollback;
mod server;
mod status;
mod tenant;
mod token;
mod why;
mod witness;

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Parser, Subcommand};

use crate::failure::{Exit, Outcome};
use crate::output;
use global::{Context, Global};

pub(crate) use backup::failure as restore_failure;

/// Lends idle GPUs across tenants.
///
/// Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 no valid token or not the rights,
/// 5 refused by the rules, 6 no capacity, 7 the lease failed, 75 no server or a busy one, 124 out of
/// time, 130 interrupted. `lease run` ends with the exit code of what it ran.
#[derive(Debug, Parser)]
#[command(name = "sublet", version, max_term_width = 100, arg_required_else_help = true)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant, reason = "there is one of it, for as long as the program runs")]
enum Command {
    /// Run everything on this machine with simulated GPUs: broker, clusters, tenants, load.
    Dev(dev::Dev),
    /// Run one broker of a cell.
    Server(server::Server),
    /// Found a cell; show, add, replace and remove its brokers.
    #[command(subcommand)]
    Cell(cell::Cell),
    /// Keep a copy of the ledger from which the cell can be made anew.
    Backup(backup::Backup),
    /// Make a cell of one broker from a backup.
    Restore(backup::Restore),
    /// Show idle GPUs that can be leased now.
    Offers(offers::Offers),
    /// Plan, ask for, use and end leases.
    #[command(subcommand)]
    Lease(lease::Lease),
    /// Say why a request or lease is in its state.
    Why(why::Why),
    /// Print what happens in the cell, record by record.
    Events(events::Events),
    /// Check and read the ledger.
    #[command(subcommand)]
    Ledger(ledger::Ledger),
    /// Watch that ledgers only grow, and sign that they did.
    #[command(subcommand)]
    Witness(witness::Witness),
    /// Show and add tenants.
    #[command(subcommand)]
    Tenant(tenant::Tenant),
    /// Show and add clusters.
    #[command(subcommand)]
    Cluster(cluster::Cluster),
    /// Show and post prices.
    #[command(subcommand)]
    Price(price::Price),
    /// Show and set quotas.
    #[command(subcommand)]
    Quota(quota::Quota),
    /// Show and set the policy of the cell.
    #[command(subcommand)]
    Policy(policy::Policy),
    /// Print a token for the API, made with the profile's key.
    Token(token::Token),
    /// Undo a batch of leases, with a dry run before.
    #[command(subcommand, visible_alias = "undo")]
    Rollback(rollback::Rollback),
    /// Say how the cell is.
    Status(status::Status),
}

/// Reads the command line, does what it says and turns the result into an exit code.
pub(crate) fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version go to standard output; nobody reading them is no error.
            let _ = error.print();
            if let Some(tip) = tip(&error) {
                output::note(&format!("\n  tip: {tip}"));
            }
            return if error.use_stderr() { Exit::Usage.into() } else { Exit::Done.into() };
        }
    };
    match run(cli) {
        Ok(exit) => exit.into(),
        Err(failure) => {
            if failure.exit() != Exit::NobodyReads {
                output::note(&format!("error: {failure}"));
            }
            failure.exit().into()
        }
    }
}

/// What clap does not know of this command line.
fn tip(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let usage = error.get(ContextKind::Usage)?.to_string();
    let is_word = error.kind() == ErrorKind::UnknownArgument && !argument.starts_with('-');
    (is_word && usage.contains("-- <COMMAND>"))
        .then(|| format!("the command to run goes behind `--`, as: -- {argument} …"))
}

fn run(cli: Cli) -> Outcome<Exit> {
    let context = Context::new(cli.global);
    match cli.command {
        Command::Dev(dev) => return dev.run(&context),
        Command::Server(server) => return server.run(),
        Command::Cell(cell) => return cell.run(&context),
        Command::Backup(backup) => backup.run(&context)?,
        Command::Restore(restore) => return restore.run(),
        Command::Lease(lease) => return lease.run(&context),
        Command::Ledger(ledger) => return ledger.run(&context),
        Command::Witness(witness) => return witness.run(&context),
        Command::Offers(offers) => offers.run(&context)?,
        Command::Why(why) => why.run(&context)?,
        Command::Events(events) => return events.run(&context),
        Command::Tenant(tenant) => tenant.run(&context)?,
        Command::Cluster(cluster) => cluster.run(&context)?,
        Command::Price(price) => price.run(&context)?,
        Command::Quota(quota) => quota.run(&context)?,
        Command::Policy(policy) => policy.run(&context)?,
        Command::Rollback(rollback) => rollback.run(&context)?,
        Command::Token(token) => token.run(&context)?,
        Command::Status(status) => status.run(&context)?,
    }
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_command_to_run_without_its_dashes_gets_a_tip() {
        let tip = |line: &[&str]| tip(&Cli::try_parse_from(line).unwrap_err());
        let found = tip(&["sublet", "lease", "run", "echo", "hi"]).unwrap();
        assert!(found.contains("-- echo"), "{found}");
        assert_eq!(tip(&["sublet", "lease", "run", "--gpu", "1"]), None);
        assert_eq!(tip(&["sublet", "offers", "echo"]), None);
    }

    #[test]
    fn an_amount_below_zero_is_told_from_an_unknown_flag() {
        for flag in ["--memory=-1GiB", "--duration=-1h"] {
            let (name, value) = flag.split_once('=').unwrap();
            let error = Cli::try_parse_from(["sublet", "lease", "plan", name, value]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ValueValidation, "{error}");
        }
    }

    #[test]
    fn what_only_a_trace_heeds_needs_a_trace() {
        for rest in [&["--rho", "0.5"][..], &["--no-load", "--trace", "philly", "--data", "x"]] {
            let line = [&["sublet", "dev"][..], rest].concat();
            assert!(Cli::try_parse_from(line).is_err(), "{rest:?}");
        }
    }
}
