//! A public trace as the load: its tenants mapped onto ours, its jobs thinned to what one machine
//! can show.

use std::collections::BTreeMap;

use sublet_protocol::ids::TenantId;
use sublet_protocol::requests::{Class, DURATION_MAX};
use sublet_protocol::units::{CpuMilli, MiB, Permille, Seconds};
use sublet_simulations::generator::Job;
use sublet_simulations::replay::{Job as TraceJob, Window, Workload};

use super::Trace;
use super::load::{Load, OpenMax};
use super::owners::{idle_share, seeds};
use super::site::{Site, named, sites, tenants};
use crate::failure::{Exit, Failure, Outcome};

/// Most GPUs that are simulated; invariants are checked over all of them after every command.
const GPUS_MAX: u64 = 256;
/// The trace says nothing of CPU and memory.
const CPU: CpuMilli = CpuMilli::new(4_000);
const HOST_MEMORY: MiB = MiB::new(32 * 1_024);
/// Classes in hundredths: the trace has one kind of work only, and ranks shall be seen at work.
const CLASSES: [(Class, u64); 4] =
    [(Class::Latency, 15), (Class::Training, 20), (Class::Batch, 30), (Class::Experiment, 35)];

/// A trace, made to fit.
pub(super) struct Mapped {
    /// The clusters.
    pub(super) sites: Vec<Site>,
    /// The jobs.
    pub(super) load: Load,
    /// What was done to the trace, for people.
    pub(super) told: Vec<String>,
}

/// Reads the trace and makes it fit.
pub(super) fn map(trace: &Trace, seed: u64) -> Outcome<Mapped> {
    let workload = Workload::philly(&trace.data, Window::PHILLY, trace.rho).map_err(|error| {
        let what = format!("cannot use the trace in {}", trace.data.display());
        causes(Failure::new(Exit::Usage, what), &error)
    })?;
    let sites = sized(workload.gpus().min(GPUS_MAX));
    let gpus: u64 = sites.iter().map(|site| u64::from(site.gpus())).sum();
    let days = u64::from(Window::PHILLY.days);
    let idle = idle_share(&seeds(seed, &sites));
    let largest = sites.iter().map(Site::gpus).max().unwrap_or(0);
    let fitting = |job: &&TraceJob| job.gpus <= largest;
    let asked: u128 = workload.jobs.iter().filter(fitting).map(gpu_seconds).sum();
    let wanted = u128::from(gpus) * u128::from(days) * 86_400;
    let wanted = wanted * u128::from(trace.rho.get()) * u128::from(idle.get()) / 1_000_000;
    let kept = u16::try_from((wanted * 1_000 / asked.max(1)).min(1_000)).unwrap_or(1_000);
    let owners = owners(&workload);
    let mut dropped = 0_u32;
    let mut jobs = Vec::new();
    for (number, job) in workload.jobs.iter().enumerate() {
        if job.gpus > largest {
            dropped += 1;
            continue;
        }
        let chance = named(&format!("trace job {number} of seed {seed}"));
        if chance % 1_000 < u128::from(kept) {
            jobs.push(ours(job, owners[job.owner], chance));
        }
    }
    let fit = Fit { gpus, idle, kept: Permille::new(kept), rho: trace.rho, dropped };
    let told = told(&workload, &owners, &fit);
    let load = Load { jobs: Box::new(jobs.into_iter()), open_max: OpenMax::TRACE, seed };
    Ok(Mapped { sites, load, told })
}

/// The failure with the whole chain of causes.
fn causes(mut failure: Failure, error: &dyn std::error::Error) -> Failure {
    failure = failure.because(error);
    let mut next = error.source();
    while let Some(cause) = next {
        failure = failure.because(cause);
        next = cause.source();
    }
    failure
}

/// Clusters with about this many GPUs together: half in the first, a quarter in each other.
fn sized(gpus: u64) -> Vec<Site> {
    let nodes = |share: u64, per_node: u64| {
        u32::try_from(gpus.div_ceil(share * per_node).max(1)).unwrap_or(u32::MAX)
    };
    sites([nodes(2, 8), nodes(4, 8), nodes(4, 4)])
}

fn gpu_seconds(job: &TraceJob) -> u128 {
    u128::from(job.duration.get()) * u128::from(job.gpus)
}

/// Which of our tenants each of the trace's becomes: the largest first, each to whoever has least.
fn owners(workload: &Workload) -> Vec<TenantId> {
    let mut asked = vec![0_u128; workload.pools.len()];
    for job in &workload.jobs {
        asked[job.owner] += gpu_seconds(job);
    }
    let mut order: Vec<usize> = (0..asked.len()).collect();
    order.sort_by_key(|owner| std::cmp::Reverse(asked[*owner]));
    let ours = tenants();
    let mut sums = vec![0_u128; ours.len()];
    let mut owners = vec![ours[0]; asked.len()];
    for owner in order {
        let least = (0..sums.len()).min_by_key(|index| sums[*index]).unwrap_or(0);
        sums[least] += asked[owner];
        owners[owner] = ours[least];
    }
    owners
}

fn ours(job: &TraceJob, tenant: TenantId, chance: u128) -> Job {
    let mut drawn = u64::try_from(chance >> 64 & 0xffff_ffff).unwrap_or(0) % 100;
    let mut class = Class::Batch;
    for (one, share) in CLASSES {
        class = one;
        if drawn < share {
            break;
        }
        drawn -= share;
    }
    // A job longer than the longest lease is cut off; it would wait for ever else.
    let longest = Seconds::new(DURATION_MAX.get() / 5 * 4);
    Job {
        tenant,
        submit: job.submit,
        gpus: job.gpus,
        duration: job.duration.min(longest),
        class,
        cpu: CPU,
        host_memory: HOST_MEMORY,
    }
}

/// What was done to a trace to make it fit.
struct Fit {
    /// GPUs that are simulated.
    gpus: u64,
    /// How much of the time their owners leave them idle.
    idle: Permille,
    /// How many of the jobs are kept.
    kept: Permille,
    /// The load that was asked for.
    rho: Permille,
    /// Jobs that no cluster could hold.
    dropped: u32,
}

fn told(workload: &Workload, owners: &[TenantId], fit: &Fit) -> Vec<String> {
    let mut names: BTreeMap<TenantId, Vec<String>> = BTreeMap::new();
    for (pool, owner) in workload.pools.iter().zip(owners) {
        names.entry(*owner).or_default().push(pool.tenant.to_string());
    }
    let mut told = vec![format!(
        "philly: {} jobs of {} tenants, {} GPUs for a load of {}; simulated here: {} GPUs, of \
         which owners leave {} % of the time idle; of every 1,000 jobs {} are kept, so that the \
         load on idle time is the same",
        workload.jobs.len(),
        workload.pools.len(),
        workload.gpus(),
        thousandths(fit.rho),
        fit.gpus,
        fit.idle.get() / 10,
        fit.kept,
    )];
    if fit.dropped > 0 {
        told.push(format!("philly: {} jobs larger than any cluster are left out", fit.dropped));
    }
    let mapped = names.iter().map(|(ours, theirs)| format!("{ours} = {}", theirs.join(" + ")));
    told.push(format!("philly: {}", mapped.collect::<Vec<_>>().join("; ")));
    told.push(
        "philly: ranks are drawn (15 % latency, 20 % training, 30 % batch, 35 % experiment): the \
         trace has none"
            .to_owned(),
    );
    told
}

fn thousandths(part: Permille) -> String {
    let text = format!("{}.{:03}", part.get() / 1_000, part.get() % 1_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
