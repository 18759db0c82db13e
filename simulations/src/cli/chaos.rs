//! `sublet-sim chaos`: many seeds, on as many threads as there are cores, and what came of them.

use std::fmt::Write as _;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde::Serialize;
use sublet_simulations::chaos::{self, Fault, Options, Outcome, Scenario};

use super::replay::progress_bar;
use super::{Failure, print};

/// Break everything round the real rules, ledger and agent session, and look whether a promise of
/// the lease protocol is broken.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Run this seed only.
    #[arg(long, conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Run so many seeds.
    #[arg(long, default_value_t = 8)]
    seeds: u64,
    /// The first of the seeds.
    #[arg(long, value_name = "SEED", default_value_t = 0, conflicts_with_all = ["seed", "mutations"])]
    from: u64,
    /// Steps with faults for each seed; the heal phase comes on top.
    #[arg(long, default_value_t = 20_000)]
    steps: u64,
    /// What goes wrong.
    #[arg(long, value_enum, default_value_t = Kind::Storm)]
    scenario: Kind,
    /// Print a SHA-256 over every event, message and effect.
    #[arg(long)]
    trace_hash: bool,
    /// Take out each rule in turn and show what notices.
    #[arg(long, conflicts_with = "trace_hash")]
    mutations: bool,
    /// Take out this rule, as `--mutations` names it.
    #[arg(long, value_name = "RULE", conflicts_with = "mutations")]
    without: Option<String>,
    /// Check every committed state as a whole, or one in so many.
    #[arg(long, value_name = "N")]
    check_every: Option<u64>,
    /// Print the last N things that happened, if a promise is broken.
    #[arg(long, value_name = "N", default_value_t = 0)]
    log: usize,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Kind {
    /// Everything.
    Storm,
    /// No faults but those of clients and guests.
    Quiet,
}

impl Kind {
    const fn scenario(self) -> Scenario {
        match self {
            Kind::Storm => Scenario::Storm,
            Kind::Quiet => Scenario::Quiet,
        }
    }
}

/// Runs.
pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let options = Options {
        steps: arguments.steps,
        scenario: arguments.scenario.scenario(),
        rule: arguments.without.as_deref().map(super::mutations::rule).transpose()?,
        is_traced: arguments.trace_hash,
        check_every: arguments.check_every,
        log: arguments.log,
    };
    if arguments.mutations {
        return super::mutations::run(&options, arguments.seeds, arguments.json);
    }
    let seeds: Vec<u64> = match arguments.seed {
        Some(seed) => vec![seed],
        None => (arguments.from..arguments.from.saturating_add(arguments.seeds)).collect(),
    };
    let began = Instant::now();
    let outcomes = run_all(&seeds, &options);
    let took = began.elapsed();
    let mut whole = Outcome::default();
    for (_, outcome) in &outcomes {
        whole.add(outcome);
    }
    let missing: Vec<Fault> = match arguments.scenario {
        // One seed breaks what it breaks; a set must break everything.
        Kind::Storm if seeds.len() > 1 => whole.faults.missing().collect(),
        Kind::Storm | Kind::Quiet => Vec::new(),
    };
    let report = Report::new(&outcomes, &whole, &missing, took);
    match arguments.json {
        true => print(&report.json()?)?,
        false => print(&report.text())?,
    }
    complain(&outcomes, arguments)?;
    if !missing.is_empty() {
        let names: Vec<String> = missing.iter().map(ToString::to_string).collect();
        let what = format!("faults that never occurred: {}", names.join(", "));
        return Err(Failure::Work(anyhow::anyhow!(what)));
    }
    Ok(())
}

/// Says of every seed that broke a promise which, and how to see it again.
fn complain(outcomes: &[(u64, Outcome)], arguments: &Arguments) -> Result<(), Failure> {
    let scenario = match arguments.scenario {
        Kind::Storm => "",
        Kind::Quiet => " --scenario quiet",
    };
    let without = arguments.without.as_ref().map(|rule| format!(" --without {rule}"));
    let without = without.unwrap_or_default();
    let mut lines: Vec<String> = Vec::new();
    for (seed, outcome) in outcomes {
        let Some((violation, step)) = &outcome.violation else { continue };
        for line in &outcome.log {
            print(&format!("{line}\n"))?;
        }
        let steps = arguments.steps;
        lines.push(format!(
            "INV-{}: {} (seed {seed}, step {step})\n\
             reproduce: sublet-sim chaos --seed {seed} --steps {steps}{scenario}{without}",
            violation.invariant, violation.what
        ));
    }
    match lines.is_empty() {
        true => Ok(()),
        false => Err(Failure::Work(anyhow::anyhow!(lines.join("\n")))),
    }
}

/// Runs the seeds on every core, results in their order.
pub(super) fn run_all(seeds: &[u64], options: &Options) -> Vec<(u64, Outcome)> {
    let next = AtomicU64::new(0);
    let done = Mutex::new(Vec::new());
    let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let bar = progress_bar(seeds.len(), "chaos");
    thread::scope(|scope| {
        for _ in 0..cores.min(seeds.len()) {
            scope.spawn(|| {
                while let Some(seed) = usize::try_from(next.fetch_add(1, Ordering::Relaxed))
                    .ok()
                    .and_then(|place| seeds.get(place))
                {
                    let outcome = chaos::run(*seed, options);
                    bar.inc(1);
                    done.lock().unwrap_or_else(PoisonError::into_inner).push((*seed, outcome));
                }
            });
        }
    });
    bar.finish_and_clear();
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(seed, _)| *seed);
    done
}

/// What is printed.
struct Report<'a> {
    outcomes: &'a [(u64, Outcome)],
    whole: &'a Outcome,
    missing: &'a [Fault],
    took: Duration,
}

#[derive(Serialize)]
struct Json {
    seeds: usize,
    steps: u64,
    steps_per_second: u64,
    virtual_hours: u64,
    commands: u64,
    records: u64,
    grants: u64,
    for_quota: u64,
    terms: u64,
    ends: std::collections::BTreeMap<&'static str, u64>,
    faults: std::collections::BTreeMap<String, u64>,
    faults_missing: Vec<String>,
    violations: Vec<String>,
    traces: Vec<String>,
}

impl<'a> Report<'a> {
    const fn new(
        outcomes: &'a [(u64, Outcome)],
        whole: &'a Outcome,
        missing: &'a [Fault],
        took: Duration,
    ) -> Self {
        Report { outcomes, whole, missing, took }
    }

    fn rate(&self) -> u64 {
        let millis = u64::try_from(self.took.as_millis()).unwrap_or(u64::MAX).max(1);
        self.whole.steps.saturating_mul(1_000) / millis
    }

    fn traces(&self) -> Vec<String> {
        let hash = |seed: &u64, trace: &[u8; 32]| {
            let hex: String = trace.iter().fold(String::new(), |mut text, byte| {
                let _ = write!(text, "{byte:02x}");
                text
            });
            format!("seed {seed} {hex}")
        };
        let traced = self.outcomes.iter();
        traced.filter_map(|(seed, one)| one.trace.as_ref().map(|trace| hash(seed, trace))).collect()
    }

    fn text(&self) -> String {
        let whole = self.whole;
        let mut text = String::new();
        let _ = writeln!(
            text,
            "{} seeds, {} steps, {} steps/s, {} h of virtual time",
            self.outcomes.len(),
            whole.steps,
            self.rate(),
            whole.virtual_ms / 3_600_000
        );
        let _ = writeln!(
            text,
            "{} commands, {} records, {} grants, {} terms, {} times quota taken back",
            whole.commands, whole.records, whole.grants, whole.terms, whole.for_quota
        );
        let ends: Vec<String> =
            whole.ends.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
        let _ = writeln!(text, "ends: {}", ends.join(", "));
        let faults: Vec<String> =
            Fault::ALL.iter().map(|fault| format!("{fault} {}", whole.faults.of(*fault))).collect();
        let _ = writeln!(text, "faults: {}", faults.join(", "));
        for trace in self.traces() {
            let _ = writeln!(text, "{trace}");
        }
        let broken = self.outcomes.iter().filter(|(_, one)| one.violation.is_some()).count();
        let _ = writeln!(text, "{broken} violations");
        text
    }

    fn json(&self) -> Result<String, Failure> {
        let whole = self.whole;
        let faults =
            Fault::ALL.iter().map(|fault| (fault.to_string(), whole.faults.of(*fault))).collect();
        let violations = self.outcomes.iter().filter_map(|(seed, one)| {
            let (violation, step) = one.violation.as_ref()?;
            let (number, what) = (violation.invariant, &violation.what);
            Some(format!("INV-{number} seed {seed} step {step}: {what}"))
        });
        let json = Json {
            seeds: self.outcomes.len(),
            steps: whole.steps,
            steps_per_second: self.rate(),
            virtual_hours: whole.virtual_ms / 3_600_000,
            commands: whole.commands,
            records: whole.records,
            grants: whole.grants,
            for_quota: whole.for_quota,
            terms: whole.terms,
            ends: whole.ends.clone(),
            faults,
            faults_missing: self.missing.iter().map(ToString::to_string).collect(),
            violations: violations.collect(),
            traces: self.traces(),
        };
        let text = serde_json::to_string(&json).map_err(|error| Failure::Work(error.into()))?;
        Ok(text + "\n")
    }
}
