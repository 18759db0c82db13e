//! `sublet-sim replay`: a trace through the real rules.

use std::io::{IsTerminal, stderr};
use std::path::PathBuf;
use std::time::Instant;

use anyhow::anyhow;
use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use jiff::civil::Date;
use sublet_protocol::units::{Permille, Seconds};
use sublet_simulations::lending;
use sublet_simulations::replay::{Options, Policy, Report, Window, Workload, replay};

use super::{Failure, print};

/// Replay a public trace through Sublet's real rules under one policy.
///
/// Each tenant's pool is sized so that its mean load is RHO of it. Prints a table, or one JSON object.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    trace: TraceArguments,
    /// Who decides what starts where.
    #[arg(long)]
    policy: PolicyName,
    /// Check the invariants at every so many commands (1 = after each; slow).
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..))]
    check_every: u64,
    /// Charge what lending costs (policy sublet): owners run their own queues, idleness must be seen,
    /// guests are stopped when an owner comes back, and start, stage and lose work.
    #[arg(long)]
    charged: bool,
    /// Seconds a guest fetches data before it works.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, requires = "charged")]
    staging: u64,
    /// Seconds between two checkpoints of a guest; 0 = never.
    #[arg(long, value_name = "SECONDS", default_value_t = 1_800, requires = "charged")]
    checkpoint: u64,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

/// Which jobs on which pools.
#[derive(Debug, clap::Args)]
pub(super) struct TraceArguments {
    /// Which trace.
    #[arg(long)]
    trace: Trace,
    /// The folder that holds its files (philly_jobs.csv.xz and philly_vc_nodes.csv, or plain .csv).
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Mean load of each tenant's pool, 0.001 to 1.
    #[arg(long, value_name = "RHO", default_value = "0.85", value_parser = load, allow_negative_numbers = true)]
    rho: Permille,
    /// The first day, local to the trace.
    #[arg(long, value_name = "DATE", default_value_t = Window::PHILLY.first)]
    from: Date,
    /// How many days.
    #[arg(long, default_value_t = Window::PHILLY.days)]
    days: u16,
}

impl TraceArguments {
    /// Reads the trace.
    pub(super) fn workload(&self) -> Result<(Workload, Window, Permille), Failure> {
        let window = Window { first: self.from, days: self.days };
        let Trace::Philly = self.trace;
        let workload = Workload::philly(&self.data, window, self.rho)
            .map_err(|error| Failure::Input(error.into()))?;
        Ok((workload, window, self.rho))
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Trace {
    Philly,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum PolicyName {
    /// Own pools, first come first served
    StaticFifo,
    /// Own pools, shortest true duration first
    StaticSjf,
    /// Own pools, and those of tenants that wait for nothing
    Borrow,
    /// One pool and one queue for all
    Pool,
    /// Sublet's own planner
    Sublet,
}

impl From<PolicyName> for Policy {
    fn from(name: PolicyName) -> Policy {
        match name {
            PolicyName::StaticFifo => Policy::StaticFifo,
            PolicyName::StaticSjf => Policy::StaticSjf,
            PolicyName::Borrow => Policy::Borrow,
            PolicyName::Pool => Policy::Pool,
            PolicyName::Sublet => Policy::Sublet,
        }
    }
}

/// A load as thousandths, read without a float: at most three decimals.
fn load(text: &str) -> Result<Permille, String> {
    let expected =
        || format!("{text:?} is not a load: expected 0.001 to 1, at most three decimals");
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_plain = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty()
        || whole.len() > 1
        || fraction.len() > 3
        || !is_plain(whole)
        || !is_plain(fraction)
    {
        return Err(expected());
    }
    let thousandths: u16 = format!("{whole}{fraction:0<3}").parse().map_err(|_| expected())?;
    match thousandths {
        1..=1_000 => Ok(Permille::new(thousandths)),
        _ => Err(expected()),
    }
}

/// Prints the report; a broken rule is a failure even if there is a report.
pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let (workload, window, load) = arguments.trace.workload()?;
    let policy = Policy::from(arguments.policy);
    if arguments.charged {
        return charged(arguments, policy, &workload, (window, load));
    }
    let bar = progress_bar(workload.jobs.len());
    let began = Instant::now();
    let options = Options { check_every: arguments.check_every };
    let replayed = replay(&workload, policy, options, &mut |jobs| {
        bar.set_position(u64::try_from(jobs).unwrap_or(u64::MAX));
    });
    bar.finish_and_clear();
    let replayed = replayed.map_err(|error| Failure::Work(error.into()))?;
    let run = (policy, window, load);
    let report = Report::new(&workload, run, &replayed, began.elapsed());
    let text = match arguments.json {
        true => serde_json::to_string(&report).map_err(|error| Failure::Work(error.into()))? + "\n",
        false => report.to_string(),
    };
    print(&text)?;
    match report.is_sound() {
        true => Ok(()),
        false => Err(broken(report.invariants.violations)),
    }
}

/// Prints the report of a charged replay.
fn charged(
    arguments: &Arguments,
    policy: Policy,
    workload: &Workload,
    (window, load): (Window, Permille),
) -> Result<(), Failure> {
    if policy != Policy::Sublet {
        let what =
            format!("--charged is about lending: it goes with --policy sublet, not {policy}");
        return Err(Failure::Input(anyhow!(what)));
    }
    let friction = lending::Friction {
        staging: Seconds::new(arguments.staging),
        checkpoint: Some(Seconds::new(arguments.checkpoint)).filter(|every| *every > Seconds::ZERO),
        ..lending::Friction::default()
    };
    let options = lending::Options {
        friction,
        check_every: arguments.check_every,
        ..lending::Options::default()
    };
    let bar = progress_bar(workload.jobs.len());
    let began = Instant::now();
    let lent = lending::replay(workload, options, &mut |jobs| {
        bar.set_position(u64::try_from(jobs).unwrap_or(u64::MAX));
    });
    bar.finish_and_clear();
    let lent = lent.map_err(|error| Failure::Work(error.into()))?;
    let run = (options, window, load);
    let report = lending::Report::new(workload, run, &lent, began.elapsed());
    let text = match arguments.json {
        true => serde_json::to_string(&report).map_err(|error| Failure::Work(error.into()))? + "\n",
        false => report.to_string(),
    };
    print(&text)?;
    match report.is_sound() {
        true => Ok(()),
        false => Err(broken(report.invariants.violations)),
    }
}

pub(super) fn broken(violations: u64) -> Failure {
    Failure::Work(anyhow!("the rules were broken: {violations} violations"))
}

/// A bar on standard error if that is a terminal, else nothing.
pub(super) fn progress_bar(jobs: usize) -> ProgressBar {
    if !stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template(
        "{bar:40} {pos}/{len} jobs, {elapsed}, about {eta} left {msg}",
    );
    let bar = ProgressBar::new(u64::try_from(jobs).unwrap_or(u64::MAX));
    bar.with_style(style.expect("a literal template"))
}
