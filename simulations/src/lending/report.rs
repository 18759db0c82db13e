//! What a charged replay found, for machines and for people.

use std::fmt;

use serde::Serialize;
use sublet_protocol::requests::Class;
use sublet_protocol::units::{Permille, Seconds};

use super::run::{Lent, Options};
use crate::replay::{Books, Invariants, Waits, Window, Workload};

/// The result of one charged replay. Times are seconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
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
    /// What lending cost.
    pub friction: FrictionReport,
    /// From submission to the end of the work, less the work itself: waiting, starting and work done
    /// twice.
    pub delay: Spread,
    /// Each tenant, in the order of their first submission.
    pub tenants: Vec<TenantDelay>,
    /// How long owners' jobs waited for guests to go, over all that started at home.
    pub owner_delay: Spread,
    /// Owners' jobs that started at home.
    pub home_starts: u64,
    /// Of these, jobs for which a guest had to go.
    pub home_starts_delayed: usize,
    /// Leases granted.
    pub leases: u64,
    /// Leases that owners took back.
    pub reclaims: u64,
    /// Of these, leases whose owner came before the time that nine in ten promises should outlast.
    pub reclaims_early: u64,
    /// Leases that ended for a higher rank.
    pub preemptions: u64,
    /// GPU-hours.
    pub gpu_hours: GpuHours,
    /// The invariants.
    pub invariants: Invariants,
    /// The books.
    pub accounts: Books,
    /// Groups of plans that the rules refused.
    pub groups_refused: u64,
    /// How long the replay took.
    pub wall_seconds: f64,
}

/// What lending cost, seconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FrictionReport {
    /// Idle so long before a GPU is offered.
    pub idle_after: u64,
    /// Between two looks at a node.
    pub sample: u64,
    /// From grant to start.
    pub start: u64,
    /// Fetching data.
    pub staging: u64,
    /// Between two checkpoints; none = never.
    pub checkpoint: Option<u64>,
    /// The class that guests ask for.
    pub class: Class,
}

/// Times in seconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Spread {
    /// The mean, to a tenth.
    pub mean: f64,
    /// The median.
    pub p50: u64,
    /// Nineteen in twenty are at most this.
    pub p95: u64,
    /// The longest.
    pub max: u64,
}

/// How one tenant fared.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TenantDelay {
    /// Who.
    pub tenant: String,
    /// GPUs of its pool.
    pub gpus: u64,
    /// Its jobs that ran.
    pub jobs: usize,
    /// Its mean delay, to a tenth of a second.
    pub mean: f64,
    /// Nineteen in twenty of its jobs had at most this.
    pub p95: u64,
}

/// Whole GPU-hours. What the window holds lies before the last submission.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GpuHours {
    /// Owners' jobs at home, over the whole replay.
    pub own: u64,
    /// Left idle by owners, in the window.
    pub idle: u64,
    /// Of these, offered or lent.
    pub offered: u64,
    /// Of these, held by guests.
    pub held: u64,
    /// Guests' work that was kept, over the whole replay: all of it on GPUs that were not allocated. Nothing
    /// is gained by right-sizing or soft sharing, since the trace does not say what a job used.
    pub recovered: u64,
    /// Guests' work that was lost with a reclaim.
    pub lost: u64,
    /// Guests' starts and staging.
    pub overhead: u64,
    /// Of what guests held, the thousandths that were work that was kept.
    pub goodput_permille: u64,
}

impl Spread {
    fn of(times: impl Iterator<Item = Seconds>) -> Spread {
        let times = Waits::of(times);
        Spread { mean: times.mean(), p50: times.at(500), p95: times.at(950), max: times.at(1_000) }
    }
}

impl Report {
    /// Sums up a replay of `workload`.
    pub fn new(
        workload: &Workload,
        (options, window, load): (Options, Window, Permille),
        lent: &Lent,
        wall: std::time::Duration,
    ) -> Report {
        let tenants = (0..workload.pools.len()).map(|owner| tenant(workload, lent, owner));
        // Most owners' jobs find room at once.
        let delayed = lent.owner_delays.len();
        let undelayed = usize::try_from(lent.home_starts).unwrap_or(usize::MAX) - delayed;
        let at_once = std::iter::repeat_n(Seconds::ZERO, undelayed);
        Report {
            rho: f64::from(load.get()) / 1_000.0,
            from: window.first.to_string(),
            days: window.days,
            gpus: workload.gpus(),
            jobs: workload.jobs.len(),
            dropped: lent.delays.iter().filter(|delay| delay.is_none()).count(),
            friction: friction(&options),
            delay: Spread::of(lent.delays.iter().copied().flatten()),
            tenants: tenants.collect(),
            owner_delay: Spread::of(lent.owner_delays.iter().copied().chain(at_once)),
            home_starts: lent.home_starts,
            home_starts_delayed: delayed,
            leases: lent.leases,
            reclaims: lent.reclaims,
            reclaims_early: lent.early,
            preemptions: lent.preemptions,
            gpu_hours: gpu_hours(lent),
            invariants: Invariants::of(&lent.tally),
            accounts: Books { balanced: lent.is_balanced },
            groups_refused: lent.tally.groups_refused,
            wall_seconds: (wall.as_secs_f64() * 1_000.0).round() / 1_000.0,
        }
    }

    /// Whether the rules held throughout.
    pub fn is_sound(&self) -> bool {
        self.invariants.violations == 0 && self.accounts.balanced
    }
}

fn friction(options: &Options) -> FrictionReport {
    let friction = options.friction;
    FrictionReport {
        idle_after: friction.idle_after.get(),
        sample: friction.sample.get(),
        start: friction.start.get(),
        staging: friction.staging.get(),
        checkpoint: friction.checkpoint.map(Seconds::get),
        class: options.class,
    }
}

fn gpu_hours(lent: &Lent) -> GpuHours {
    let hours = |seconds: u64| seconds / 3_600;
    let spent = lent.useful + lent.lost + lent.overhead;
    GpuHours {
        own: hours(lent.own),
        idle: hours(lent.idle),
        offered: hours(lent.offered),
        held: hours(lent.held),
        recovered: hours(lent.useful),
        lost: hours(lent.lost),
        overhead: hours(lent.overhead),
        goodput_permille: (lent.useful * 1_000).checked_div(spent).unwrap_or(0),
    }
}

fn tenant(workload: &Workload, lent: &Lent, owner: usize) -> TenantDelay {
    let own = workload.jobs.iter().zip(&lent.delays).filter(|(job, _)| job.owner == owner);
    let delays = Waits::of(own.filter_map(|(_, delay)| *delay));
    TenantDelay {
        tenant: workload.pools[owner].tenant.to_string(),
        gpus: workload.pools[owner].gpus(),
        jobs: delays.len(),
        mean: delays.mean(),
        p95: delays.at(950),
    }
}

/// The table for people.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cost = &self.friction;
        writeln!(
            f,
            "sublet, charged, at load {}: {} GPUs, {} jobs of {} days from {}, {} dropped",
            self.rho, self.gpus, self.jobs, self.days, self.from, self.dropped
        )?;
        let saves = cost.checkpoint.map_or("never".to_owned(), |every| format!("every {every} s"));
        writeln!(
            f,
            "offered after {} s idle, seen every {} s, start {} s, staging {} s, checkpoints {saves}",
            cost.idle_after, cost.sample, cost.start, cost.staging
        )?;
        let Spread { mean, p50, p95, max } = &self.delay;
        writeln!(f, "delay, seconds: mean {mean:.1}, median {p50}, p95 {p95}, longest {max}")?;
        writeln!(f)?;
        writeln!(
            f,
            "{:<32} {:>6} {:>7} {:>14} {:>12}",
            "tenant", "GPUs", "jobs", "mean delay s", "p95 delay s"
        )?;
        for TenantDelay { tenant, gpus, jobs, mean, p95 } in &self.tenants {
            writeln!(f, "{tenant:<32} {gpus:>6} {jobs:>7} {mean:>14.1} {p95:>12}")?;
        }
        writeln!(f)?;
        let hours = &self.gpu_hours;
        writeln!(
            f,
            "GPU-hours: {} left idle, {} of them offered, {} held by guests; recovered {}, lost {}, starts {} \
             (goodput {:.1} %)",
            hours.idle,
            hours.offered,
            hours.held,
            hours.recovered,
            hours.lost,
            hours.overhead,
            f64::from(u32::try_from(hours.goodput_permille).unwrap_or(1_000)) / 10.0
        )?;
        writeln!(
            f,
            "{} leases, {} taken back by owners ({} of them early), {} preempted",
            self.leases, self.reclaims, self.reclaims_early, self.preemptions
        )?;
        writeln!(
            f,
            "owners: {} starts at home, {} after a guest had to go; delay p95 {} s over all, longest {} s",
            self.home_starts, self.home_starts_delayed, self.owner_delay.p95, self.owner_delay.max
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
