//! `sublet-sim shape`: peaks and deadlines when part of a trace's jobs may wait.

use clap::value_parser;
use sublet_protocol::units::Seconds;
use sublet_simulations::replay::{Options, Shaping, shape};

use super::replay::{TraceArguments, broken, progress_bar};
use super::{Failure, print};

/// Replay a public trace twice by Sublet's planner: every job at once, and with part of them waiting for
/// off-peak hours.
///
/// Which hours are off-peak is read off the first half of the days; jobs of the second half wait, and the
/// second halves are compared. Prints what is in use and how many deadlines are missed.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    trace: TraceArguments,
    /// Of a hundred jobs so many may wait.
    #[arg(long, value_name = "PERCENT", default_value_t = 30, value_parser = value_parser!(u8).range(1..=100))]
    waiting: u8,
    /// Hours by which they may start later than at once, 1 to 168.
    #[arg(long, value_name = "HOURS", default_value_t = 24, value_parser = value_parser!(u64).range(1..=168))]
    patience: u64,
    /// So many hours of each day are off-peak.
    #[arg(long, value_name = "HOURS", default_value_t = 8, value_parser = value_parser!(u8).range(1..=23))]
    off_peak: u8,
    /// Check the invariants at every so many commands (1 = after each; slow).
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = value_parser!(u64).range(1..))]
    check_every: u64,
}

/// Prints what waiting does; a broken rule is a failure even if there is something to print.
pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let (workload, _, _) = arguments.trace.workload()?;
    let shaping = Shaping {
        percent: arguments.waiting,
        patience: Seconds::new(arguments.patience * 3_600),
        hours: usize::from(arguments.off_peak),
    };
    let options = Options { check_every: arguments.check_every };
    let bar = progress_bar(workload.jobs.len() * 2, "jobs");
    let shaped = shape(&workload, shaping, options, &mut |jobs| {
        bar.set_position(u64::try_from(jobs).unwrap_or(u64::MAX));
    });
    bar.finish_and_clear();
    let shaped = shaped.map_err(|error| Failure::Work(error.into()))?;
    print(&shaped.to_string())?;
    match shaped.violations {
        0 => Ok(()),
        some => Err(broken(some)),
    }
}
