//! A run: a seed's lives, one after another, each with its faults and its heal phase.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

use super::fault::Faults;
use super::rule::Rule;
use super::world::World;
use crate::checker::Violation;

/// Steps of one life; a longer run is several of them, so that memory stays flat.
const LIFE: u64 = 100_000;

/// What goes wrong in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scenario {
    /// Everything.
    #[default]
    Storm,
    /// Nothing but what networks, clients and guests do by themselves.
    Quiet,
}

/// How to run.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Steps with faults.
    pub steps: u64,
    /// What goes wrong.
    pub scenario: Scenario,
    /// The rule that is taken out.
    pub rule: Option<Rule>,
    /// Whether a hash of everything that happens is taken.
    pub is_traced: bool,
    /// One committed state in so many is checked as a whole; none: as it is by default.
    pub check_every: Option<u64>,
    /// How many of the last things that happened are noted in words.
    pub log: usize,
}

/// A property that did not hold, with the step.
pub type Found = (Violation, u64);

/// What came of a run.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// Things that happened.
    pub steps: u64,
    /// Virtual time that passed, in milliseconds.
    pub virtual_ms: u64,
    /// Commands that were committed.
    pub commands: u64,
    /// Records they made.
    pub records: u64,
    /// Leases that were granted.
    pub grants: u64,
    /// Requests for which leases ended for quota alone.
    pub for_quota: u64,
    /// Leases that ended, by reason.
    pub ends: BTreeMap<&'static str, u64>,
    /// Terms.
    pub terms: u64,
    /// Faults that occurred.
    pub faults: Faults,
    /// The first property that did not hold, if any, with the step.
    pub violation: Option<Found>,
    /// The hash of everything that happened.
    pub trace: Option<[u8; 32]>,
    /// The last things that happened.
    pub log: Vec<String>,
}

impl Outcome {
    /// Adds another run's counts; the first violation stays.
    pub fn add(&mut self, other: &Outcome) {
        self.steps += other.steps;
        self.virtual_ms += other.virtual_ms;
        self.commands += other.commands;
        self.records += other.records;
        self.grants += other.grants;
        self.for_quota += other.for_quota;
        self.terms += other.terms;
        for (reason, count) in &other.ends {
            *self.ends.entry(reason).or_default() += count;
        }
        self.faults.add(&other.faults);
        if self.violation.is_none() {
            self.violation.clone_from(&other.violation);
        }
    }
}

/// Runs `seed`.
#[must_use]
pub fn run(seed: u64, options: &Options) -> Outcome {
    let mut whole = Outcome::default();
    let mut trace = options.is_traced.then(Sha256::new);
    let (mut left, mut life) = (options.steps, 0);
    while left > 0 && whole.violation.is_none() {
        let steps = left.min(LIFE);
        let mut world = World::new(options, seed, life);
        let begin = world.now;
        let violation = world.run(steps);
        let at = whole.steps + world.steps;
        let tally = world.checker.tally();
        whole.add(&Outcome {
            steps: world.steps,
            virtual_ms: world.now - begin,
            commands: tally.commands,
            records: tally.records,
            grants: tally.grants,
            for_quota: tally.for_quota,
            ends: tally.ends.clone(),
            terms: world.raft.term,
            faults: world.faults,
            violation: violation.map(|violation| (violation, at)),
            trace: None,
            log: Vec::new(),
        });
        whole.log = world.log.take().map(super::log::Log::into_lines).unwrap_or_default();
        if let (Some(trace), Some(one)) = (&mut trace, world.trace.take()) {
            trace.update(one.finalize());
        }
        left -= steps;
        life += 1;
    }
    whole.trace = trace.map(|trace| trace.finalize().into());
    whole
}
