//! What the replay of minutes found, for machines and for people.

use std::fmt;

use serde::Serialize;

use super::{Recovered, Series};
use crate::replay::{Books, Invariants};

/// The result. GPU-hours are whole.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Tenants of the trace.
    pub tenants: usize,
    /// Their GPUs.
    pub gpus: u64,
    /// Minutes of the trace.
    pub minutes: usize,
    /// GPU-hours left idle by owners.
    pub idle_gpu_hours: u64,
    /// GPU-hours that waiting jobs asked for.
    pub wanted_gpu_hours: u64,
    /// The most that could have been recovered: in each minute, the less of both.
    pub bound_gpu_hours: u64,
    /// GPU-hours offered or held by guests.
    pub offered_gpu_hours: u64,
    /// GPU-hours held by guests.
    pub held_gpu_hours: u64,
    /// GPU-hours of guests' work that was kept.
    pub recovered_gpu_hours: u64,
    /// GPU-hours of guests' work that was lost.
    pub lost_gpu_hours: u64,
    /// GPU-hours of starts and staging.
    pub overhead_gpu_hours: u64,
    /// Thousandths of the idle time that were recovered.
    pub recovered_of_idle_permille: u64,
    /// Thousandths of the bound that were recovered.
    pub recovered_of_bound_permille: u64,
    /// Leases granted.
    pub leases: u64,
    /// Leases that owners took back.
    pub reclaims: u64,
    /// Of these, leases whose owner came before the time that nine in ten promises should outlast.
    pub reclaims_early: u64,
    /// GPUs that owners began to use again.
    pub owner_arrivals: u64,
    /// Of these, GPUs on which a guest had to go first.
    pub owner_arrivals_delayed: u64,
    /// Mean wait of all arrivals, in milliseconds.
    pub owner_wait_mean_ms: u64,
    /// The longest, in seconds.
    pub owner_wait_max_seconds: u64,
    /// Guests that were not gone when their grace was over.
    pub reclaim_misses: u64,
    /// Groups of plans that the rules refused.
    pub groups_refused: u64,
    /// The invariants.
    pub invariants: Invariants,
    /// The books.
    pub accounts: Books,
    /// How long the replay took.
    pub wall_seconds: f64,
}

impl Report {
    /// Sums up a replay of `series`.
    pub fn new(series: &Series, sums: &Recovered, wall: std::time::Duration) -> Report {
        let hours = |seconds: u64| seconds / 3_600;
        let permille = |of: u64| (sums.useful * 1_000).checked_div(of).unwrap_or(0);
        Report {
            tenants: series.tenants.len(),
            gpus: series.gpus(),
            minutes: series.minutes(),
            idle_gpu_hours: hours(sums.idle),
            wanted_gpu_hours: hours(sums.wanted),
            bound_gpu_hours: hours(sums.bound),
            offered_gpu_hours: hours(sums.offered),
            held_gpu_hours: hours(sums.held),
            recovered_gpu_hours: hours(sums.useful),
            lost_gpu_hours: hours(sums.lost),
            overhead_gpu_hours: hours(sums.overhead),
            recovered_of_idle_permille: permille(sums.idle),
            recovered_of_bound_permille: permille(sums.bound),
            leases: sums.leases,
            reclaims: sums.reclaims,
            reclaims_early: sums.early,
            owner_arrivals: sums.arrivals,
            owner_arrivals_delayed: sums.arrivals_delayed,
            owner_wait_mean_ms: (sums.owner_wait * 1_000).checked_div(sums.arrivals).unwrap_or(0),
            owner_wait_max_seconds: sums.owner_wait_max,
            reclaim_misses: sums.misses,
            groups_refused: sums.tally.groups_refused,
            invariants: Invariants::of(&sums.tally),
            accounts: Books { balanced: sums.is_balanced },
            wall_seconds: (wall.as_secs_f64() * 1_000.0).round() / 1_000.0,
        }
    }

    /// Whether the rules held throughout.
    pub fn is_sound(&self) -> bool {
        self.invariants.violations == 0 && self.accounts.balanced
    }
}

/// Thousandths as a percentage.
fn percent(permille: u64) -> String {
    format!("{}.{} %", permille / 10, permille % 10)
}

/// The table for people.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { tenants, gpus, minutes, .. } = self;
        writeln!(f, "sublet, charged: {tenants} tenants, {gpus} GPUs, {minutes} minutes")?;
        writeln!(
            f,
            "GPU-hours: {} left idle, {} wanted by waiting jobs, at most {} of use to them",
            self.idle_gpu_hours, self.wanted_gpu_hours, self.bound_gpu_hours
        )?;
        writeln!(
            f,
            "{} offered, {} held by guests: recovered {}, lost {}, starts {}",
            self.offered_gpu_hours,
            self.held_gpu_hours,
            self.recovered_gpu_hours,
            self.lost_gpu_hours,
            self.overhead_gpu_hours
        )?;
        writeln!(
            f,
            "recovered {} of the idle time, {} of what was of use",
            percent(self.recovered_of_idle_permille),
            percent(self.recovered_of_bound_permille)
        )?;
        writeln!(
            f,
            "{} leases, {} taken back by owners ({} of them early)",
            self.leases, self.reclaims, self.reclaims_early
        )?;
        writeln!(
            f,
            "owners: {} GPUs wanted again, {} of them from guests; mean wait {} ms over all, longest {} s, {} \
             misses",
            self.owner_arrivals,
            self.owner_arrivals_delayed,
            self.owner_wait_mean_ms,
            self.owner_wait_max_seconds,
            self.reclaim_misses
        )?;
        writeln!(
            f,
            "rules: {} plan groups refused, {} states checked, {} violations, books {}",
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
