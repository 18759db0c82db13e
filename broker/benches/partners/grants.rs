//! B7: from a demand to an agent that was told of a grant that is durable on a quorum, beside a queue
//! of jobs in PostgreSQL.
//!
//! Ours is the whole broker but for HTTP: a tenant's demand is judged, logged and fsynced on a quorum,
//! journalled; a plan matches it with an offer under its quota; the grant is judged, logged and fsynced
//! on a quorum, journalled and posted; then the agent hears of it and confirms, reports the end at once
//! and offers the slice again, and all three are logged as well, so that the cell stays as it is: there
//! are always free GPUs. 64 tenants each ask for one GPU when the agent of their last one has been
//! told. PostgreSQL
//! has one copy: 64 workers claim one job after the other with `FOR UPDATE SKIP LOCKED` from a full
//! table, and each claim is a transaction that is fsynced. It inserts no jobs while it is measured,
//! matches nothing, keeps no books and tells nobody.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use sublet_protocol::commands::Command;
use sublet_protocol::policy::Policy;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::cell::{Brokers, NODE, Told, model, quota, spec, tenant};
use crate::postgres::Postgres;
use crate::report::{self, Measured};
use crate::{Asked, processes};

/// Tenants that wait for a grant, and workers that wait for a job.
const WORKERS: usize = 64;
/// How long one side is measured at a time.
const TIME: Duration = Duration::from_secs(4);
/// What is aimed at: this many times PostgreSQL's rate.
const TARGET: f64 = 20.0;
/// Nodes of eight GPUs. More make it slower: a plan ranks every free GPU for each request.
const NODES: u64 = 32;

/// Measures in turns and prints.
///
/// # Errors
/// A process does not start or breaks off.
pub(crate) async fn compare(asked: &Asked) -> anyhow::Result<()> {
    println!("B7: demand, grant durable on a quorum, agent told; {WORKERS} at once");
    let folder = processes::folder()?;
    let postgres = match asked.leaves_out("postgres") {
        true => None,
        false => Some(Postgres::start(folder.path()).await?),
    };
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..asked.rounds {
        ours.push(on_brokers().await?);
        if let Some(postgres) = &postgres {
            theirs.push(postgres.claims(WORKERS, TIME).await?);
        }
    }
    report::load("at the end");
    let ours = report::rounds("three brokers", &ours);
    match postgres {
        Some(_) => {
            let theirs = report::rounds("PostgreSQL, one copy", &theirs);
            println!("  {}", Postgres::version().await?);
            report::ratio(ours, theirs, TARGET);
        }
        None => println!("  PostgreSQL was left out: nothing is compared"),
    }
    Ok(())
}

/// A new cell.
async fn on_brokers() -> anyhow::Result<Measured> {
    let folder = processes::folder()?;
    let brokers = Arc::new(Brokers::start(folder.path(), Policy::default()).await?);
    let (told, mut heard) = mpsc::unbounded_channel();
    let mut waiting = BTreeMap::new();
    let mut workers = JoinSet::new();
    let (stops, begun) = (Arc::new(AtomicBool::new(false)), Instant::now());
    brokers.furnish(NODES, |_| Duration::ZERO, told).await?;
    let furnished = begun.elapsed();
    let begun = Instant::now();
    for number in 0..WORKERS {
        let tenant = tenant(&format!("t{number}"))?;
        brokers.operate(Command::CreateTenant { tenant, parent: None }).await?;
        let quota = quota(NODES * NODE);
        brokers.operate(Command::SetQuota { tenant, model: model()?, quota }).await?;
        let (granted, mut grants) = mpsc::unbounded_channel::<Instant>();
        waiting.insert(tenant, granted);
        let (brokers, stops) = (Arc::clone(&brokers), Arc::clone(&stops));
        workers.spawn(async move {
            let mut times = Vec::new();
            let mut request = u128::try_from(number)? << 64;
            while !stops.load(Ordering::Relaxed) {
                request += 1;
                let asked = Instant::now();
                brokers.demand(request, tenant, spec(1, 3_600, 0)?).await?;
                let told = grants.recv().await.context("the agents are gone")?;
                times.push((told, told.duration_since(asked)));
            }
            anyhow::Ok(times)
        });
    }
    tokio::spawn(async move {
        while let Some(Told { tenant, at }) = heard.recv().await {
            if let Some(granted) = waiting.get(&tenant) {
                let _gone = granted.send(at);
            }
        }
    });
    let (warm, end) = (begun.elapsed() + Duration::from_millis(500), TIME);
    tokio::time::sleep(Duration::from_millis(500) + end).await;
    stops.store(true, Ordering::Relaxed);
    let (from, to) = (begun + warm, begun + warm + end);
    let mut times = Vec::new();
    while let Some(done) = workers.join_next().await {
        let within = done??.into_iter().filter(|(told, _)| (from..to).contains(told));
        times.extend(within.map(|(_, took)| took));
    }
    println!("  {} GPUs on offer after {furnished:.1?}; {} grants", NODES * NODE, times.len());
    brokers.leader.shutdown().await;
    Measured::of(times, end)
}
