//! Starts everything, waits, and stops everything in order.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sublet_broker::auth::{KeySet, Verifier};
use sublet_broker::config::{Checks, LedgerKey};
use sublet_broker::http::{self, Server};
use sublet_broker::{Cell, Config, clock::ClockKind};
use sublet_protocol::ids::{CellId, TenantId};
use sublet_protocol::transport::in_process;
use sublet_protocol::units::Timestamp;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::{JoinHandle, JoinSet};

use super::folder::Folder;
use super::live::{Live, Place};
use super::load::{self, Counts};
use super::owners::StoryClock;
use super::pace::Pace;
use super::site::{self, BORROWER, Site};
use super::summary::{Accounts, Invariants, Ledger, Summary, resident_mib_max};
use super::{Settings, agents, real, setup, trace};
use crate::config::{Profile, Role, has_default, remove_if_ours, write};
use crate::failure::{Exit, Failure, Outcome};
use crate::server::{LEDGER_KEY, origin};
use crate::{keys, output};

/// The name of the profile that is written.
const PROFILE: &str = "dev";
/// Issuer and audience of tokens.
const ISSUER: &str = "sublet-dev";
const AUDIENCE: &str = "sublet";
/// How often the first lease is looked for.
const LOOK: Duration = Duration::from_millis(50);

/// Ctrl-c or a polite kill.
struct Stop {
    interrupt: Signal,
    terminate: Signal,
}

impl Stop {
    fn listen() -> Outcome<Stop> {
        let failure =
            |error| Failure::new(Exit::Failed, "cannot listen for signals").because(error);
        Ok(Stop {
            interrupt: signal(SignalKind::interrupt()).map_err(failure)?,
            terminate: signal(SignalKind::terminate()).map_err(failure)?,
        })
    }

    /// The next signal.
    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Runs until a signal arrives or the time is over.
pub(super) async fn run(settings: &Settings) -> Outcome<Exit> {
    let mut stop = Stop::listen()?;
    let started = Instant::now();
    let folder = Folder::open(settings.data_dir.as_deref())?;
    let (sites, load, told) = story(settings)?;
    let mut world = World::start(settings, &folder, &sites, load).await?;
    let place = if settings.is_json { Place::Error } else { Place::Output };
    let live = Live::new(place, world.begin);
    world.announce(settings, &folder, &live, &told)?;
    let first_lease = world.wait(settings, &live, &mut stop, started).await;
    live.end();
    live.say("stopping: no new calls, guests ended, ledger sealed (once more to stop at once)");
    let summary = tokio::select! {
        summary = world.finish(settings, &folder, started, first_lease) => summary?,
        () = stop.next() => {
            remove_if_ours(PROFILE);
            return Err(Failure::new(Exit::Interrupted, "stopped at once; nothing that was acknowledged is lost"));
        }
    };
    report(settings, &live, &summary)
}

/// The clusters, the jobs, and what to tell about them.
fn story(settings: &Settings) -> Outcome<(Vec<Site>, Option<load::Load>, Vec<String>)> {
    if let Some(nvml) = &settings.nvml {
        let told =
            "GPUs without MIG only; no owner's queue is read: what runs there is seen".to_owned();
        return Ok((real::sites(nvml)?, None, vec![told]));
    }
    let (sites, load, told) = match &settings.trace {
        Some(trace) => {
            let mapped = trace::map(trace, settings.seed)?;
            (mapped.sites, mapped.load, mapped.told)
        }
        None => {
            let sites = site::demo();
            let load = load::generated(settings.seed, &sites);
            (sites, load, Vec::new())
        }
    };
    Ok((sites, settings.has_load.then_some(load), told))
}

fn report(settings: &Settings, live: &Live, summary: &Summary) -> Outcome<Exit> {
    for line in summary.lines() {
        live.say(&line);
    }
    if settings.is_json {
        let line = serde_json::to_string(summary).map_err(|error| {
            Failure::new(Exit::Failed, "cannot write the summary").because(error)
        })?;
        output::print(&format!("{line}\n"))?;
    }
    match summary.is_good() {
        true => Ok(Exit::Done),
        false => Err(Failure::new(Exit::Failed, "ledger, books or rules are not as they must be")),
    }
}

/// Everything that runs.
struct World {
    cell: Cell,
    id: CellId,
    server: Server,
    agents: JoinSet<Result<(), sublet_agent::node::Error>>,
    load: Option<JoinHandle<()>>,
    counts: Arc<Counts>,
    /// The start of the story: when the cell was founded.
    begin: Timestamp,
    /// Ledger time when this process started.
    resumed: Timestamp,
}

impl World {
    async fn start(
        settings: &Settings,
        folder: &Folder,
        sites: &[Site],
        load: Option<load::Load>,
    ) -> Outcome<World> {
        let pace = Pace(settings.speed);
        let id = CellId::new("dev").expect("a cell id of allowed characters");
        let cell = open(id, folder, pace).await?;
        setup::found(&cell, sites, pace, folder.last_speed().map(Pace)).await?;
        folder.keep_speed(settings.speed)?;
        let begin = cell.record(0).map_err(|error| broken(&error))?;
        let begin = begin.map_or(Timestamp::ZERO, |record| record.time);
        let resumed = cell.now();
        let (hub, link) = in_process::link();
        cell.attach(link).await.map_err(|error| broken(&error))?;
        let fleet = agents::Fleet {
            hub: &hub,
            cell: &cell,
            folder,
            pace,
            seed: settings.has_load.then_some(settings.seed),
            nvml: settings.nvml.as_ref(),
            story: StoryClock { offset: resumed.since(begin) },
        };
        let agents = agents::start(&fleet, sites)?;
        let server = serve(settings, folder, &cell).await?;
        let counts = Arc::new(Counts::default());
        let load = load.map(|load| {
            let counts = Arc::clone(&counts);
            tokio::spawn(load::run(cell.clone(), load, begin, counts))
        });
        Ok(World { cell, id, server, agents, load, counts, begin, resumed })
    }

    /// Writes the profile and says where everything is.
    fn announce(
        &self,
        settings: &Settings,
        folder: &Folder,
        live: &Live,
        told: &[String],
    ) -> Outcome<()> {
        let server = format!("http://{}", self.server.address());
        live.say(&format!("sublet dev: {server}"));
        match write(PROFILE, &profile(&server, folder)?) {
            Ok(path) => {
                let flag = if has_default() { " --profile dev" } else { "" };
                live.say(&format!("  in another terminal: sublet{flag} offers"));
                let path = path.display();
                live.say(&format!("  it is found by the profile {path}; of several, the newest"));
            }
            // The cell runs all the same; who cannot write there can still name it.
            Err(failure) => live.say(&format!("warning: {failure}")),
        }
        live.say("  a token for curl: sublet token");
        let kept = if folder.is_kept() { "kept" } else { "removed at the end" };
        live.say(&format!("  data: {} ({kept})", folder.path().display()));
        let pace = Pace(settings.speed);
        live.say(&format!(
            "  1 second = {} s of lease time; seed {}; {}",
            settings.speed,
            settings.seed,
            match settings.nvml {
                Some(_) => "GPUs are this machine's",
                None => "GPUs and owners are simulated",
            }
        ));
        if pace.stretch() > 1 {
            let stretch = pace.stretch();
            live.say(&format!("  at this speed renewals and time-outs are {stretch} × as long"));
        }
        for line in told {
            live.say(&format!("  {line}"));
        }
        Ok(())
    }

    /// Shows the live line until it is time to stop; returns when the first lease was granted.
    async fn wait(
        &mut self,
        settings: &Settings,
        live: &Live,
        stop: &mut Stop,
        started: Instant,
    ) -> Option<Duration> {
        let end = settings.duration.map(|span| Duration::from_secs(span.get()));
        let mut first_lease = None;
        let ready = Instant::now();
        let mut shown = ready;
        live.show(&self.cell);
        loop {
            tokio::select! {
                () = stop.next() => return first_lease,
                () = tokio::time::sleep(LOOK) => {}
                Some(ended) = self.agents.join_next() => say_ended(live, ended),
            }
            if first_lease.is_none() && self.cell.counters().leases_granted > 0 {
                first_lease = Some(started.elapsed());
            }
            if end.is_some_and(|end| ready.elapsed() >= end) {
                return first_lease;
            }
            if shown.elapsed() >= live.every() {
                shown = Instant::now();
                live.show(&self.cell);
            }
        }
    }

    /// Stops everything in order, then verifies the ledger from its files.
    async fn finish(
        mut self,
        settings: &Settings,
        folder: &Folder,
        started: Instant,
        first_lease: Option<Duration>,
    ) -> Outcome<Summary> {
        let uptime = started.elapsed();
        let lease_time = self.cell.now().since(self.resumed).as_seconds_floor();
        self.server.shutdown().await;
        remove_if_ours(PROFILE);
        if let Some(load) = self.load.take() {
            load.abort();
        }
        // Dropping an agent ends its guests.
        self.agents.shutdown().await;
        let accounts = self.cell.accounts();
        self.cell.shutdown().await;
        let counters = self.cell.counters();
        let ledger = folder.cell().join("ledger");
        let id = self.id;
        let verified =
            tokio::task::spawn_blocking(move || sublet_ledger::verify::verify_dir(&ledger, id));
        let verified = verified.await.map_err(|error| broken(&error))?;
        let report = verified.map_err(|error| broken(&error))?;
        let reasons = counters.leases_ended.iter();
        Ok(Summary {
            leases_granted: counters.leases_granted,
            leases_ended: counters.leases_ended_total(),
            leases_ended_by_reason: reasons.map(|(reason, n)| (reason.code(), *n)).collect(),
            owner_reclaims: counters.owner_reclaims,
            preemptions: counters.preemptions,
            gpu_seconds_lent: counters.gpu_millis_lent / 1_000,
            first_lease_seconds: first_lease.map(|at| at.as_secs_f64()),
            ledger: Ledger::of(&report),
            accounts: Accounts {
                balanced: accounts.is_balanced() && report.accounts.is_balanced(),
                open_holds: accounts.open_holds().count(),
            },
            invariants: Invariants::of(&counters, self.cell.violations()),
            load: self.counts.now(),
            uptime_seconds: uptime.as_secs_f64(),
            lease_seconds: lease_time.get(),
            speed: settings.speed.get(),
            seed: settings.seed,
            resident_mib_max: resident_mib_max(),
        })
    }
}

fn say_ended(
    live: &Live,
    ended: Result<Result<(), sublet_agent::node::Error>, tokio::task::JoinError>,
) {
    let why = match ended {
        Ok(Ok(())) => "its link was closed".to_owned(),
        Ok(Err(error)) => error.to_string(),
        Err(error) => error.to_string(),
    };
    live.say(&format!("an agent has ended: {why}"));
}

async fn open(id: CellId, folder: &Folder, pace: Pace) -> Outcome<Cell> {
    let mut config = Config::new(id);
    config.policy = pace.policy();
    config.data_dir = Some(folder.cell());
    config.checks = Checks::Always;
    let (file, origin) = (folder.cell().join(LEDGER_KEY), origin(id));
    config.ledger_key = LedgerKey::Made { file, origin };
    config.clock = ClockKind::Scaled(pace.0);
    Cell::open(config).await.map_err(|error| broken(&error))
}

async fn serve(settings: &Settings, folder: &Folder, cell: &Cell) -> Outcome<Server> {
    let key = keys::create(&folder.key())?;
    let mut known = KeySet::default();
    let public = key.verifying_key().to_bytes();
    known.add_bytes(setup::key(), &public).map_err(|error| broken(&error))?;
    let config = http::Config {
        bind: settings.listen,
        verifier: Verifier::new(known, ISSUER, AUDIENCE),
        metrics: http::install_metrics().ok(),
    };
    http::serve(cell.clone(), config).await.map_err(|error| {
        let what = format!("cannot listen on {}", settings.listen);
        Failure::new(Exit::Failed, what).because(error).hint("port 0 takes one that is free")
    })
}

fn profile(server: &str, folder: &Folder) -> Outcome<Profile> {
    let tenant = TenantId::new(BORROWER).map_err(|error| broken(&error))?;
    Ok(Profile {
        server: server.to_owned(),
        key: Some(folder.key()),
        key_id: Some(setup::KEY.to_owned()),
        issuer: Some(ISSUER.to_owned()),
        audience: Some(AUDIENCE.to_owned()),
        subject: Some("dev-user".to_owned()),
        tenant: Some(tenant),
        roles: vec![Role::Tenant, Role::Auditor, Role::Operator],
        pid: Some(std::process::id()),
    })
}

/// Something inside failed: with the whole chain of causes.
fn broken(error: &dyn std::error::Error) -> Failure {
    let mut failure = Failure::new(Exit::Failed, error.to_string());
    let mut next = error.source();
    while let Some(cause) = next {
        failure = failure.because(cause);
        next = cause.source();
    }
    failure
}
