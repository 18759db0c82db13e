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
use sublet_simulations::minutes::Series;
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
    /// Charge what lending costs (policy sublet; helios is always charged): owners run their own queues, idleness must be seen,
    /// guests are stopped when an owner comes back, and start, stage and lose work.
    #[arg(long)]
    charged: bool,
    /// Seconds a guest fetches data before it works, where lending is charged [default: 60].
    #[arg(long, value_name = "SECONDS")]
    staging: Option<u64>,
    /// Seconds between two checkpoints of a guest, where lending is charged; 0 = never [default: 1800].
    #[arg(long, value_name = "SECONDS")]
    checkpoint: Option<u64>,
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
    /// The folder that holds its files (philly_jobs.csv.xz and philly_vc_nodes.csv, or
    /// earth_vc_minute.csv.xz; or plain .csv).
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Mean load of each tenant's pool, 0.001 to 1 (Philly) [default: 0.85].
    #[arg(long, value_name = "RHO", value_parser = load, allow_negative_numbers = true)]
    rho: Option<Permille>,
    /// The first day, local to the trace (Philly) [default: 2017-10-01].
    #[arg(long, value_name = "DATE")]
    from: Option<Date>,
    /// How many days (Philly) [default: 38].
    #[arg(long)]
    days: Option<u16>,
}

/// The load of the design's own table.
const RHO: Permille = Permille::new(850);

impl TraceArguments {
    /// Reads the trace.
    pub(super) fn workload(&self) -> Result<(Workload, Window, Permille), Failure> {
        let window = Window {
            first: self.from.unwrap_or(Window::PHILLY.first),
            days: self.days.unwrap_or(Window::PHILLY.days),
        };
        let load = self.rho.unwrap_or(RHO);
        if matches!(self.trace, Trace::Helios) {
            let what =
                "the trace helios has no jobs: it is replayed by `replay --policy sublet` only";
            return Err(Failure::Input(anyhow!(what)));
        }
        let workload = Workload::philly(&self.data, window, load)
            .map_err(|error| Failure::Input(error.into()))?;
        Ok((workload, window, load))
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Trace {
    /// Jobs of 11 tenants
    Philly,
    /// What 16 tenants left idle and had waiting, minute by minute
    Helios,
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
    let policy = Policy::from(arguments.policy);
    if matches!(arguments.trace.trace, Trace::Helios) {
        return minutes(arguments, policy);
    }
    let (workload, window, load) = arguments.trace.workload()?;
    if arguments.charged {
        return charged(arguments, policy, &workload, (window, load));
    }
    if arguments.staging.is_some() || arguments.checkpoint.is_some() {
        let what = "--staging and --checkpoint are what lending costs: they go with --charged";
        return Err(Failure::Input(anyhow!(what)));
    }
    let bar = progress_bar(workload.jobs.len(), "jobs");
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
    let friction = friction(arguments);
    let options = lending::Options {
        friction,
        check_every: arguments.check_every,
        ..lending::Options::default()
    };
    let bar = progress_bar(workload.jobs.len(), "jobs");
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

fn friction(arguments: &Arguments) -> lending::Friction {
    let usual = lending::Friction::default();
    lending::Friction {
        staging: arguments.staging.map_or(usual.staging, Seconds::new),
        checkpoint: arguments
            .checkpoint
            .map_or(usual.checkpoint, |every| Some(Seconds::new(every)))
            .filter(|every| *every > Seconds::ZERO),
        ..usual
    }
}

/// Prints the report of a replay of minutes.
fn minutes(arguments: &Arguments, policy: Policy) -> Result<(), Failure> {
    let TraceArguments { data, rho, from, days, .. } = &arguments.trace;
    if policy != Policy::Sublet || rho.is_some() || from.is_some() || days.is_some() {
        let what = "helios is replayed whole and on its own GPUs: give --policy sublet, and no --rho, --from, --days";
        return Err(Failure::Input(anyhow!(what)));
    }
    let series = Series::helios(data).map_err(|error| Failure::Input(error.into()))?;
    let bar = progress_bar(series.minutes(), "minutes");
    let began = Instant::now();
    let every = arguments.check_every;
    let sums =
        sublet_simulations::minutes::replay(&series, friction(arguments), every, &mut |done| {
            bar.set_position(u64::try_from(done).unwrap_or(u64::MAX));
        });
    bar.finish_and_clear();
    let sums = sums.map_err(|error| Failure::Work(error.into()))?;
    let report = sublet_simulations::minutes::Report::new(&series, &sums, began.elapsed());
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
pub(super) fn progress_bar(count: usize, what: &str) -> ProgressBar {
    if !stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let template =
        format!("{{bar:40}} {{pos}}/{{len}} {what}, {{elapsed}}, about {{eta}} left {{msg}}");
    let style = ProgressStyle::with_template(&template);
    let bar = ProgressBar::new(u64::try_from(count).unwrap_or(u64::MAX));
    bar.with_style(style.expect("a literal template"))
}
