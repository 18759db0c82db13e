//! What is replayed: tenants with their pools and the jobs they submit, cut from a trace.

use std::collections::BTreeMap;
use std::path::Path;

use jiff::civil::Date;
use sublet_protocol::ids::TenantId;
use sublet_protocol::units::{Permille, Seconds, Timestamp};

use crate::traces::{self, VcName, philly};

/// GPUs of one node of every pool.
pub const GPUS_PER_NODE: u32 = philly::GPUS_PER_NODE;
/// Longest window, days.
pub const DAYS_MAX: u16 = 3_660;
/// Most tenants of one replay.
pub const TENANTS_MAX: usize = 1_024;

/// Most GPUs of one replay: every one is an offer of its own.
pub const GPUS_MAX: u64 = 200_000;

/// The days that are replayed: local midnight to local midnight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// The first day.
    pub first: Date,
    /// How many days, 1 to [`DAYS_MAX`].
    pub days: u16,
}

impl Window {
    /// The 38 days of the Philly trace that the design's table is about.
    pub const PHILLY: Window = Window { first: jiff::civil::date(2017, 10, 1), days: 38 };

    /// Its length if every day had 24 hours.
    fn seconds(self) -> u128 {
        u128::from(self.days) * 86_400
    }
}

/// One tenant and the pool it owns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// Whose it is.
    pub tenant: TenantId,
    /// Nodes of [`GPUS_PER_NODE`] GPUs, at least 1.
    pub nodes: u32,
    /// Its place in the trace's list of tenants. Of equally free lenders the first listed lends.
    pub listed: usize,
}

impl Pool {
    /// GPUs of the whole pool.
    pub fn gpus(&self) -> u64 {
        u64::from(self.nodes) * u64::from(GPUS_PER_NODE)
    }
}

/// One job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Job {
    /// Whose: an index into [`Workload::pools`].
    pub owner: usize,
    /// When it was submitted, after the start of the window.
    pub submit: Seconds,
    /// How long it runs, at least a second.
    pub duration: Seconds,
    /// How many GPUs, at least 1.
    pub gpus: u32,
}

/// What is replayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    /// The instant that submissions are counted from.
    pub starts_at: Timestamp,
    /// Pools in the order of their tenants' first submission.
    pub pools: Vec<Pool>,
    /// Jobs in the order of submission; of one second, in the order of the file.
    pub jobs: Vec<Job>,
}

/// Why a workload cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// The trace was not read.
    #[error(transparent)]
    Trace(#[from] traces::Error),
    /// No job of the trace was submitted in the window by a tenant with nodes.
    #[error("no job was submitted in the {} days from {} by a tenant of philly_vc_nodes", .window.days, .window.first)]
    NoJobs {
        /// The window.
        window: Window,
    },
    /// The window is longer than a trace can be, or ends beyond the calendar.
    #[error("a window of {} days from {} is not 1 to {DAYS_MAX} days of the calendar", .window.days, .window.first)]
    Window {
        /// The window.
        window: Window,
    },
    /// A load of nothing needs endlessly many nodes.
    #[error("the load is 0, expected 0.001 to 1")]
    NoLoad,
    /// The jobs of a tenant are too large for the window.
    #[error(
        "the jobs need {found} GPUs at this load, at most {GPUS_MAX} are replayed: take more days or a higher load"
    )]
    Gpus {
        /// GPUs of all pools.
        found: u64,
    },
    /// More tenants than a replay takes.
    #[error("the trace has {found} tenants, at most {TENANTS_MAX} are replayed")]
    Tenants {
        /// How many there are.
        found: usize,
    },
}

impl Workload {
    /// Cuts `window` from the Philly trace in `folder` and sizes each tenant's pool for `load`:
    /// nodes = max(1, ⌈mean load / load / 8⌉), mean load = Σ duration · GPUs / window.
    ///
    /// Tenants are those of `philly_vc_nodes`. At its published node counts the trace is only 17 %
    /// loaded, so only their names are taken from there.
    pub fn philly(
        folder: &Path,
        window: Window,
        load: Permille,
    ) -> Result<Workload, WorkloadError> {
        let listed = philly::nodes(folder)?.into_iter().map(|(vc, _)| vc).zip(0..);
        let listed: BTreeMap<VcName, usize> = listed.collect();
        let zone = philly::zone();
        let bad_window = |_| WorkloadError::Window { window };
        let midnight = |day: Date| zone.to_ambiguous_timestamp(day.at(0, 0, 0, 0)).compatible();
        let start = midnight(window.first).map_err(bad_window)?;
        let after_last = window.first.checked_add(jiff::Span::new().days(i64::from(window.days)));
        let end = after_last.and_then(midnight).map_err(bad_window)?;
        if !(1..=DAYS_MAX).contains(&window.days) {
            return Err(WorkloadError::Window { window });
        }
        let mut trace = Vec::new();
        for job in philly::jobs(&philly::jobs_file(folder)?)? {
            let job = job?;
            if (start..end).contains(&job.submit) && listed.contains_key(&job.vc) {
                let after_start = job.submit.as_second() - start.as_second();
                let after_start = u64::try_from(after_start).expect("the job is inside the window");
                trace.push((Seconds::new(after_start), job));
            }
        }
        trace.sort_by_key(|(submit, job)| (*submit, job.line));
        let starts_at =
            u64::try_from(start.as_millisecond()).map_err(|_| WorkloadError::Window { window })?;
        Workload::from_jobs(Timestamp::new(starts_at), &trace, &listed, (window, load))
    }

    fn from_jobs(
        starts_at: Timestamp,
        trace: &[(Seconds, philly::Job)],
        listed: &BTreeMap<VcName, usize>,
        (window, load): (Window, Permille),
    ) -> Result<Workload, WorkloadError> {
        if load == Permille::ZERO {
            return Err(WorkloadError::NoLoad);
        }
        let mut owners = BTreeMap::<&VcName, usize>::new();
        let mut gpu_seconds = Vec::<u128>::new();
        let mut pools = Vec::new();
        let mut jobs = Vec::with_capacity(trace.len());
        for (submit, job) in trace {
            let owner = *owners.entry(&job.vc).or_insert_with(|| {
                pools.push(Pool { tenant: job.vc.tenant(), nodes: 0, listed: listed[&job.vc] });
                gpu_seconds.push(0);
                pools.len() - 1
            });
            gpu_seconds[owner] += u128::from(job.duration_seconds) * u128::from(job.gpus);
            let duration = Seconds::new(job.duration_seconds);
            jobs.push(Job { owner, submit: *submit, duration, gpus: job.gpus });
        }
        if pools.is_empty() {
            return Err(WorkloadError::NoJobs { window });
        }
        if pools.len() > TENANTS_MAX {
            return Err(WorkloadError::Tenants { found: pools.len() });
        }
        let per_node = window.seconds() * u128::from(load.get()) * u128::from(GPUS_PER_NODE);
        for (pool, gpu_seconds) in pools.iter_mut().zip(gpu_seconds) {
            let nodes = (gpu_seconds * 1_000).div_ceil(per_node).max(1);
            pool.nodes = u32::try_from(nodes).unwrap_or(u32::MAX);
        }
        let workload = Workload { starts_at, pools, jobs };
        match workload.gpus() {
            0..=GPUS_MAX => Ok(workload),
            found => Err(WorkloadError::Gpus { found }),
        }
    }

    /// GPUs of all pools.
    pub fn gpus(&self) -> u64 {
        self.pools.iter().map(Pool::gpus).sum()
    }

    /// Whether the job is larger than its tenant's whole pool, so that only one pool of all can run it.
    pub fn outgrows_its_pool(&self, job: &Job) -> bool {
        u64::from(job.gpus) > self.pools[job.owner].gpus()
    }
}
