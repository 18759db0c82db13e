//! `sublet-sim fill`: how full a fleet gets before requests no longer fit.

use std::io::{IsTerminal, stderr};
use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use sublet_simulations::fill::{FillError, Options, Policy, Workload, fill};

use super::{Failure, print};

/// Fill a fleet with arrivals that ask for 130 % of its GPU, one by one, and say how much of it each
/// policy allocates.
///
/// The protocol of FGD (Weng et al., ATC'23): a list of pods topped up by sampling and shuffled by each
/// seed; none departs; one that finds no place is dropped. Prints per cent of the fleet's GPU.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Which trace.
    #[arg(long)]
    trace: Trace,
    /// The folder that holds its files (openb_node_list_gpu_node.csv and openb_pod_list_*.csv.xz).
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Which list of pods, such as default or multigpu20; several by commas.
    #[arg(long, value_name = "NAME", default_value = "default", value_delimiter = ',')]
    workload: Vec<String>,
    /// How many orders of arrival.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    seeds: u64,
    /// Which policies, by commas; all if left out.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    policy: Vec<PolicyName>,
    /// Runs at the same time; as many as there are processors if left out.
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// Show the planner every node for each pod, also those that cannot hold it or are like another:
    /// much slower, and the same figures.
    #[arg(long)]
    every_node: bool,
    /// Print one JSON object per list, in millionths, instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Trace {
    Openb,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum PolicyName {
    /// Any node and GPU with room
    Random,
    /// The tightest node and GPU
    BestFit,
    /// Fragmentation gradient descent by itself
    Fgd,
    /// Sublet's planner and rules
    Sublet,
}

impl From<PolicyName> for Policy {
    fn from(name: PolicyName) -> Policy {
        match name {
            PolicyName::Random => Policy::Random,
            PolicyName::BestFit => Policy::BestFit,
            PolicyName::Fgd => Policy::Fgd,
            PolicyName::Sublet => Policy::Sublet,
        }
    }
}

fn options(arguments: &Arguments) -> Options {
    let mut policies: Vec<Policy> = arguments.policy.iter().map(|name| (*name).into()).collect();
    if policies.is_empty() {
        policies = Policy::ALL.to_vec();
    }
    policies.sort_unstable();
    policies.dedup();
    let processors = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let threads = arguments.threads.unwrap_or(processors);
    Options { seeds: arguments.seeds, policies, shows_all: arguments.every_node, threads }
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Trace::Openb = arguments.trace;
    let options = options(arguments);
    if !arguments.json {
        print("workload     policy        mean     std      min      max   (% of all GPU)\n")?;
    }
    for name in &arguments.workload {
        let workload = Workload::openb(&arguments.data, name)
            .map_err(|error| Failure::Input(anyhow::Error::new(error)))?;
        let bar = bar(name, &options);
        let report = fill(&workload, &options, &|| bar.inc(1)).map_err(|error| match error {
            FillError::Load(_) => Failure::Input(anyhow::Error::new(error)),
            FillError::Run { .. } => Failure::Work(anyhow::Error::new(error)),
        })?;
        bar.finish_and_clear();
        let text = match arguments.json {
            true => {
                let json = serde_json::to_string(&report);
                json.map_err(|error| Failure::Work(anyhow::Error::new(error)))? + "\n"
            }
            false => report.to_string(),
        };
        print(&text)?;
    }
    Ok(())
}

/// Counts runs on standard error, if someone watches.
fn bar(name: &str, options: &Options) -> ProgressBar {
    if !stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let policies = u64::try_from(options.policies.len()).unwrap_or(u64::MAX);
    let bar = ProgressBar::new(options.seeds.saturating_mul(policies));
    let style = ProgressStyle::with_template("{prefix} {bar:40} {pos}/{len} runs, {eta} left");
    if let Ok(style) = style {
        bar.set_style(style);
    }
    bar.with_prefix(name.to_owned())
}
