//! B14: admission workloads after Kueue's performance tests of its scheduler, with live brokers.
//!
//! Cohorts of queues become groups of tenants. Each tenant has a quota of 20 GPUs, may borrow 100 and
//! its group may take back what it lent; as in the original, nothing but quotas is scarce: there are as
//! many GPUs as all quotas together. A workload is a request for 1, 5 or 20 GPUs; its run is mocked by
//! the simulated agents, which report the end of a guest so long after it may start. The makespan goes
//! from the first submission until no request waits and no lease lives.
//!
//! The bound: within a cohort, what is submitted at or after a moment has to be run after it, on its
//! quota. So no schedule ends before `a + (GPU time of all that comes at or after a) / quota`, for any
//! arrival `a`, nor before an arrival plus its run.

use std::sync::Arc;
use std::time::Duration;

use sublet_protocol::commands::Command;
use sublet_protocol::policy::Policy;
use sublet_protocol::quotas::{Quota, Reclaim, TenantTerms};
use sublet_protocol::units::{GpuMilli, Seconds};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::cell::{Brokers, NODE, model, quota, spec, tenant};
use crate::{processes, report};

/// Workloads of one kind that one queue gets.
#[derive(Debug, Clone, Copy)]
struct Kind {
    count: u32,
    /// Between two submissions.
    every: Duration,
    runs: Duration,
    gpus: u32,
    priority: u8,
    /// The seconds that are bought, by which the agent knows the kind.
    bought: u64,
}

/// A workload of cohorts that are all alike.
struct Workload {
    name: &'static str,
    cohorts: u64,
    queues: u64,
    kinds: [Kind; 3],
    /// At most this many times the bound.
    target: f64,
}

/// GPUs of a queue's quota.
const QUOTA: u64 = 20;
/// GPUs that a queue may borrow.
const BORROWED: u64 = 100;
/// Between two looks at whether it is over.
const LOOK: Duration = Duration::from_millis(10);
/// A run is broken off after this.
const PATIENCE: Duration = Duration::from_secs(180);

const fn kind(bought: u64, count: u32, every: u64, runs: u64, gpus: u32, priority: u8) -> Kind {
    let (every, runs) = (Duration::from_millis(every), Duration::from_millis(runs));
    Kind { count, every, runs, gpus, priority, bought }
}

/// Kueue's baseline: 15,000 workloads.
const BASELINE: Workload = Workload {
    name: "15,000 workloads in 5 cohorts of 6 queues",
    cohorts: 5,
    queues: 6,
    kinds: [
        kind(3_601, 350, 100, 200, 1, 50),
        kind(3_602, 100, 500, 500, 5, 100),
        kind(3_603, 50, 1_200, 1_000, 20, 200),
    ],
    target: 1.10,
};

/// Kueue's large scale, with 25 workloads to a queue: 50,000.
const LARGE: Workload = Workload {
    name: "50,000 workloads in 20 cohorts of 100 queues",
    cohorts: 20,
    queues: 100,
    kinds: [
        kind(3_604, 17, 20, 50, 1, 50),
        kind(3_605, 5, 50, 100, 5, 100),
        kind(3_606, 3, 200, 200, 20, 200),
    ],
    target: 1.5,
};

impl Workload {
    fn gpus(&self) -> u64 {
        self.cohorts * self.queues * QUOTA
    }

    /// No schedule ends before this; see above. Cohorts are alike, and so are a cohort's queues.
    fn bound(&self) -> Duration {
        let arrivals = |kind: &Kind| {
            let Kind { count, every, .. } = *kind;
            (0..count).map(move |number| every * number)
        };
        let moments = self.kinds.iter().flat_map(arrivals);
        let bounds = moments.map(|from| {
            let after = self.kinds.iter().map(|kind| {
                let count = arrivals(kind).filter(|at| *at >= from).count() as f64;
                count * kind.runs.as_secs_f64() * f64::from(kind.gpus)
            });
            from + Duration::from_secs_f64(after.sum::<f64>() / QUOTA as f64)
        });
        let last = |kind: &Kind| kind.every * kind.count.saturating_sub(1) + kind.runs;
        bounds.chain(self.kinds.iter().map(last)).max().unwrap_or_default()
    }
}

/// How long a guest runs, by what was bought.
fn run_of(bought: Seconds) -> Duration {
    let kinds = BASELINE.kinds.iter().chain(&LARGE.kinds);
    let found = kinds.into_iter().find(|kind| Seconds::new(kind.bought) == bought);
    found.map_or(Duration::ZERO, |kind| kind.runs)
}

/// Runs the first workload, or both, and prints.
///
/// # Errors
/// A broker does not start or breaks off.
pub(crate) async fn measure(large: bool) -> anyhow::Result<()> {
    run(if large { &LARGE } else { &BASELINE }).await
}

async fn run(workload: &'static Workload) -> anyhow::Result<()> {
    println!("B14: {}", workload.name);
    let folder = processes::folder()?;
    let policy = Policy { offers_per_cluster: 1_000_000, ..Policy::default() };
    let brokers = Arc::new(Brokers::start(folder.path(), policy).await?);
    let (told, _heard) = mpsc::unbounded_channel();
    brokers.furnish(workload.gpus().div_ceil(NODE), run_of, told).await?;
    let queues = found(&brokers, workload).await?;
    report::load("before the first submission");
    let begun = Instant::now();
    let (mut submissions, mut kinds) = (JoinSet::new(), 0);
    for (number, queue) in (0..).zip(queues) {
        for (place, kind) in (0..).zip(workload.kinds) {
            let (brokers, first) = (Arc::clone(&brokers), (number * 3 + place) << 64);
            kinds += 1;
            submissions.spawn(async move { submit(&brokers, queue, kind, first, begun).await });
        }
    }
    let mut submitted = 0;
    let makespan = loop {
        tokio::time::sleep(LOOK).await;
        while let Some(done) = submissions.try_join_next() {
            done??;
            submitted += 1;
        }
        let left =
            brokers.leader.read_stale(|state| (state.requests().len(), state.leases().len()));
        if submitted == kinds && left == (0, 0) {
            break Some(begun.elapsed());
        }
        if begun.elapsed() > PATIENCE {
            println!("  {} requests and {} leases are left", left.0, left.1);
            break None;
        }
    };
    report::load("at the end");
    let counters = brokers.leader.counters();
    println!(
        "  {} commands, {} leases granted, {} violations of invariants",
        counters.commands, counters.leases_granted, counters.invariant_violations
    );
    brokers.leader.shutdown().await;
    let bound = workload.bound();
    let Some(makespan) = makespan else {
        println!("  bound {bound:.2?}, not over after {PATIENCE:.0?}: NOT reached");
        return Ok(());
    };
    let times = makespan.as_secs_f64() / bound.as_secs_f64();
    let reached = if times <= workload.target { "reached" } else { "NOT reached" };
    println!(
        "  makespan {makespan:.2?}, bound {bound:.2?}: {times:.3} times, target at most {}: {reached}",
        workload.target
    );
    Ok(())
}

/// Groups and their tenants, with their quotas.
async fn found(
    brokers: &Brokers,
    workload: &Workload,
) -> anyhow::Result<Vec<sublet_protocol::ids::TenantId>> {
    let mut queues = Vec::new();
    for cohort in 0..workload.cohorts {
        let group = tenant(&format!("cohort-{cohort}"))?;
        let terms = TenantTerms { reclaim: Reclaim::Any, ..TenantTerms::default() };
        brokers.operate(Command::CreateTenant { tenant: group, parent: None }).await?;
        brokers.operate(Command::SetTerms { tenant: group, terms }).await?;
        for queue in 0..workload.queues {
            let queue = tenant(&format!("queue-{cohort}-{queue}"))?;
            brokers.operate(Command::CreateTenant { tenant: queue, parent: Some(group) }).await?;
            let borrow_limit = Some(GpuMilli::new(BORROWED * 1_000));
            let quota = Quota { borrow_limit, ..quota(QUOTA) };
            let command = Command::SetQuota { tenant: queue, model: model()?, quota };
            brokers.operate(command).await?;
            queues.push(queue);
        }
    }
    Ok(queues)
}

/// Submits all of one kind to one queue, each at its time.
async fn submit(
    brokers: &Brokers,
    queue: sublet_protocol::ids::TenantId,
    kind: Kind,
    first: u128,
    begun: Instant,
) -> anyhow::Result<()> {
    for number in 0..kind.count {
        tokio::time::sleep_until(begun + kind.every * number).await;
        let spec = spec(kind.gpus, kind.bought, kind.priority)?;
        brokers.demand(first + u128::from(number), queue, spec).await?;
    }
    Ok(())
}
