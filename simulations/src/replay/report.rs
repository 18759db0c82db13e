//! What a replay found, for machines and for people.

use std::fmt;

use serde::Serialize;
use sublet_core::invariants::Violation;
use sublet_protocol::units::{Permille, Seconds};

use super::{Policy, Replayed, Tally, Window, Workload};

/// The result of one replay. Times are seconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The policy's name.
    pub policy: &'static str,
    /// The load the pools were sized for.
    pub rho: f64,
    /// The first day.
    pub from: String,
    /// How many days.
    pub days: u16,
    /// GPUs of all pools.
    pub gpus: u64,
    /// Jobs submitted, dropped ones included.
    pub jobs: usize,
    /// Jobs larger than their tenant's pool, which are left out.
    pub dropped: usize,
    /// Mean wait of the jobs that ran, to a tenth of a second.
    pub avg_queue_seconds: f64,
    /// The median wait.
    pub p50_queue_seconds: u64,
    /// Nineteen in twenty waited at most this long.
    pub p95_queue_seconds: u64,
    /// The longest wait.
    pub max_queue_seconds: u64,
    /// Each tenant, in the order of their first submission.
    pub tenants: Vec<TenantReport>,
    /// Leases taken away before their work was done.
    pub preemptions: u64,
    /// GPU-seconds that jobs ran.
    pub gpu_seconds: u64,
    /// Of these, GPU-seconds in another tenant's cluster.
    pub borrowed_gpu_seconds: u64,
    /// Commands applied.
    pub commands: u64,
    /// Records made.
    pub events: u64,
    /// Groups of plans that the rules refused.
    pub groups_refused: u64,
    /// The invariants.
    pub invariants: Invariants,
    /// The books.
    pub accounts: Books,
    /// How long the replay took.
    pub wall_seconds: f64,
}

/// How one tenant fared.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TenantReport {
    /// Who.
    pub tenant: String,
    /// GPUs of its pool.
    pub gpus: u64,
    /// Its jobs that ran.
    pub jobs: usize,
    /// Its jobs that were left out.
    pub dropped: usize,
    /// Mean wait, to a tenth of a second.
    pub avg_queue_seconds: f64,
    /// Nineteen in twenty of its jobs waited at most this long.
    pub p95_queue_seconds: u64,
}

/// What the checks of states found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Invariants {
    /// States checked.
    pub checked: u64,
    /// Violations found.
    pub violations: u64,
    /// The first of them.
    pub first: Vec<String>,
}

impl Invariants {
    pub(crate) fn of(tally: &Tally) -> Invariants {
        let first = tally.first_violations.iter();
        let text =
            |violation: &Violation| format!("INV-{}: {}", violation.invariant, violation.what);
        Invariants {
            checked: tally.checks,
            violations: tally.violations,
            first: first.map(text).collect(),
        }
    }
}

/// What the books say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Books {
    /// Debits equal credits and no hold is left open.
    pub balanced: bool,
}

impl Report {
    /// Sums up a replay of `workload`.
    pub fn new(
        workload: &Workload,
        (policy, window, load): (Policy, Window, Permille),
        replayed: &Replayed,
        wall: std::time::Duration,
    ) -> Report {
        let waits = Waits::of(replayed.waits.iter().copied().flatten());
        let tally = &replayed.tally;
        Report {
            policy: policy.name(),
            rho: f64::from(load.get()) / 1_000.0,
            from: window.first.to_string(),
            days: window.days,
            gpus: workload.gpus(),
            jobs: workload.jobs.len(),
            dropped: replayed.waits.iter().filter(|wait| wait.is_none()).count(),
            avg_queue_seconds: waits.mean(),
            p50_queue_seconds: waits.at(500),
            p95_queue_seconds: waits.at(950),
            max_queue_seconds: waits.at(1_000),
            tenants: (0..workload.pools.len())
                .map(|owner| tenant(workload, replayed, owner))
                .collect(),
            preemptions: replayed.preemptions,
            gpu_seconds: replayed.gpu_seconds,
            borrowed_gpu_seconds: replayed.borrowed_gpu_seconds,
            commands: tally.commands,
            events: tally.events,
            groups_refused: tally.groups_refused,
            invariants: Invariants::of(tally),
            accounts: Books { balanced: replayed.is_balanced },
            wall_seconds: (wall.as_secs_f64() * 1_000.0).round() / 1_000.0,
        }
    }

    /// Whether the rules held throughout.
    pub fn is_sound(&self) -> bool {
        self.invariants.violations == 0 && self.accounts.balanced
    }
}

fn tenant(workload: &Workload, replayed: &Replayed, owner: usize) -> TenantReport {
    let of_owner = workload.jobs.iter().zip(&replayed.waits).filter(|(job, _)| job.owner == owner);
    let waits: Vec<Option<Seconds>> = of_owner.map(|(_, wait)| *wait).collect();
    let ran = Waits::of(waits.iter().copied().flatten());
    TenantReport {
        tenant: workload.pools[owner].tenant.to_string(),
        gpus: workload.pools[owner].gpus(),
        jobs: ran.len(),
        dropped: waits.len() - ran.len(),
        avg_queue_seconds: ran.mean(),
        p95_queue_seconds: ran.at(950),
    }
}

/// Waits in ascending order, seconds.
pub(crate) struct Waits(Vec<u64>);

impl Waits {
    pub(crate) fn of(waits: impl Iterator<Item = Seconds>) -> Self {
        let mut waits: Vec<u64> = waits.map(Seconds::get).collect();
        waits.sort_unstable();
        Self(waits)
    }

    /// How many.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The mean to a tenth, rounded half up; 0 if there are none.
    pub(crate) fn mean(&self) -> f64 {
        let count = u64::try_from(self.0.len()).unwrap_or(u64::MAX).max(1);
        let tenths = (self.0.iter().sum::<u64>() * 10 + count / 2) / count;
        // Exact below 2⁵³ tenths, which is 28 million years.
        #[allow(clippy::as_conversions, reason = "there is no lossless conversion of u64 to f64")]
        let mean = tenths as f64 / 10.0;
        mean
    }

    /// The smallest wait that at least `permille` of the waits do not exceed; 0 if there are none.
    pub(crate) fn at(&self, permille: usize) -> u64 {
        let rank = (self.0.len() * permille).div_ceil(1_000).max(1);
        self.0.get(rank - 1).copied().unwrap_or(0)
    }
}

/// The table for people.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} at load {}: {} GPUs, {} jobs of {} days from {}, {} dropped",
            self.policy, self.rho, self.gpus, self.jobs, self.days, self.from, self.dropped
        )?;
        writeln!(
            f,
            "queue seconds: mean {:.1}, median {}, p95 {}, longest {}",
            self.avg_queue_seconds,
            self.p50_queue_seconds,
            self.p95_queue_seconds,
            self.max_queue_seconds
        )?;
        writeln!(f)?;
        writeln!(
            f,
            "{:<32} {:>6} {:>7} {:>8} {:>14} {:>12}",
            "tenant", "GPUs", "jobs", "dropped", "mean wait s", "p95 wait s"
        )?;
        for tenant in &self.tenants {
            writeln!(
                f,
                "{:<32} {:>6} {:>7} {:>8} {:>14.1} {:>12}",
                tenant.tenant,
                tenant.gpus,
                tenant.jobs,
                tenant.dropped,
                tenant.avg_queue_seconds,
                tenant.p95_queue_seconds
            )?;
        }
        writeln!(f)?;
        writeln!(
            f,
            "GPU-hours {}, of these {} in other tenants' clusters; {} preemptions",
            self.gpu_seconds / 3_600,
            self.borrowed_gpu_seconds / 3_600,
            self.preemptions
        )?;
        writeln!(
            f,
            "rules: {} commands, {} records, {} plan groups refused, {} states checked, {} violations, books {}",
            self.commands,
            self.events,
            self.groups_refused,
            self.invariants.checked,
            self.invariants.violations,
            if self.accounts.balanced { "balanced" } else { "NOT BALANCED" }
        )?;
        for violation in &self.invariants.first {
            writeln!(f, "  {violation}")?;
        }
        writeln!(f, "took {:.1} s", self.wall_seconds)
    }
}
