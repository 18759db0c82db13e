//! Runs every policy over every seed.

use std::num::NonZeroUsize;
use std::sync::Mutex;

use super::report::{Policy, Report, Summary};
use super::{Error, LoadError, Workload, baseline, cell};

/// What to run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Seeds 0 to this.
    pub seeds: u64,
    /// Policies, each once.
    pub policies: Vec<Policy>,
    /// Shows the planner every node for each pod, also those that cannot hold it or are like another:
    /// slower, and the same figures.
    pub shows_all: bool,
    /// Runs at the same time. They do not influence each other's figures.
    pub threads: NonZeroUsize,
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum FillError {
    /// The arrivals cannot be made.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A run stopped.
    #[error("seed {seed}")]
    Run {
        /// Which.
        seed: u64,
        /// Why.
        #[source]
        source: Error,
    },
}

/// One run: millionths of the fleet's GPU, and commands applied.
type Outcome = Result<(Policy, u64, u64, u128), FillError>;

/// Fills the fleet by each policy and seed. `progress` is told of each finished run.
///
/// # Errors
/// When the arrivals are too many, or the rules refuse what they must allow.
pub fn fill(
    workload: &Workload,
    options: &Options,
    progress: &(dyn Fn() + Sync),
) -> Result<Report, FillError> {
    let seeds = 0..options.seeds;
    let mut jobs: Vec<(Policy, u64)> = options
        .policies
        .iter()
        .flat_map(|policy| seeds.clone().map(|seed| (*policy, seed)))
        .collect();
    // The long ones first.
    jobs.sort_unstable();
    let jobs = Mutex::new(jobs);
    let next = || jobs.lock().ok().and_then(|mut jobs| jobs.pop());
    let outcomes: Mutex<Vec<Outcome>> = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..options.threads.get() {
            scope.spawn(|| {
                while let Some((policy, seed)) = next() {
                    let outcome = run(workload, policy, seed, options.shows_all);
                    if let Ok(mut outcomes) = outcomes.lock() {
                        outcomes.push(outcome);
                    }
                    progress();
                }
            });
        }
    });
    let outcomes = outcomes.into_inner().unwrap_or_default();
    let mut runs = outcomes.into_iter().collect::<Result<Vec<_>, FillError>>()?;
    runs.sort_unstable();
    let of = |policy: Policy| -> Vec<u64> {
        runs.iter().filter(|run| run.0 == policy).map(|run| run.2).collect()
    };
    Ok(Report {
        workload: workload.name.clone(),
        seeds: options.seeds,
        allocated: options.policies.iter().map(|p| (*p, Summary::of(&of(*p)))).collect(),
        sublet_runs: of(Policy::Sublet),
        commands: runs.iter().map(|run| run.3).sum(),
    })
}

fn run(workload: &Workload, policy: Policy, seed: u64, shows_all: bool) -> Outcome {
    let arrivals = workload.arrivals(seed)?;
    let (gpu, commands) = match policy.baseline() {
        Some(baseline) => (baseline::place_all(workload, &arrivals, baseline, seed), 0),
        None => cell::place_all(workload, &arrivals, shows_all)
            .map_err(|source| FillError::Run { seed, source })?,
    };
    let millionths = gpu.get() * 1_000_000 / workload.fleet.gpu().get().max(1);
    Ok((policy, seed, millionths, commands))
}
