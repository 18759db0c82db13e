//! `sublet server` and `sublet cell init`: one broker of a cell, as its configuration file says.
//!
//! The broker has the consensus log, the ledger, the HTTP API and the port for other brokers. Agents
//! reach it in the same process only (`sublet dev`): a server has no link for them yet.

mod config;

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use sublet_broker::auth::{KeySet, Verifier};
use sublet_broker::backup::{self, Checked, Founder};
use sublet_broker::config::LedgerKey;
use sublet_broker::http::{self, Server};
use sublet_broker::raft::{Begin, Role};
use sublet_broker::{Cell, Config};
use sublet_protocol::ids::CellId;
use sublet_protocol::ids::CommandId;
use sublet_protocol::policy::Policy;
use sublet_protocol::units::Timestamp;
use tokio::signal::unix::{SignalKind, signal};

use crate::failure::{Exit, Failure, Outcome};
use crate::output;
pub(crate) use config::LEDGER_KEY;
use config::Settings;

/// Runs the broker until it is told to stop.
pub(crate) fn run(file: &Path) -> Outcome<Exit> {
    let settings = Settings::read(file)?;
    crate::logging::init("info,openraft=error,raft_log=warn");
    block_on(serve(settings))
}

/// Founds a cell of the one broker that `file` describes. Its data folder must be empty.
pub(crate) fn init(file: &Path) -> Outcome<Exit> {
    let settings = Settings::read(file)?;
    crate::logging::init("warn,openraft=error");
    if settings.holds_a_broker() {
        let what = format!("{} holds a broker of a cell already", settings.data_dir.display());
        return Err(Failure::new(Exit::Refused, what)
            .hint("start it: sublet server --config …")
            .hint("to found another cell, name another folder as `data_dir`"));
    }
    block_on(found(settings))
}

/// Makes the data folder of the broker that `file` describes from a backup.
pub(crate) fn restore(
    file: &Path,
    from: &Path,
    data_dir: Option<PathBuf>,
) -> Outcome<(Checked, PathBuf, u64)> {
    let settings = Settings::read(file)?;
    crate::logging::init("warn,openraft=error");
    let folder = data_dir.unwrap_or_else(|| settings.data_dir.clone());
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let founder = Founder {
        cell: settings.cell,
        broker: settings.broker,
        endpoint: settings.peers().endpoint,
        now: Timestamp::new(u64::try_from(since.as_millis()).unwrap_or(u64::MAX)),
        cause: CommandId::new(u128::from_le_bytes(crate::random::bytes()?)),
    };
    let made = backup::restore(from, &folder, founder);
    let checked = made.map_err(|error| crate::cli::restore_failure(&error))?;
    Ok((checked, folder, settings.broker))
}

fn block_on(work: impl Future<Output = Outcome<Exit>>) -> Outcome<Exit> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| {
        Failure::new(Exit::Failed, "cannot start worker threads").because(error)
    })?;
    let result = runtime.block_on(work);
    // Tasks that still wind down must not hold up the end.
    runtime.shutdown_background();
    result
}

/// The name under which a cell's ledger is known, and that of the key that signs it.
pub(crate) fn origin(cell: CellId) -> String {
    format!("{cell}.sublet/ledger")
}

/// The cell's settings, without a word on what an empty folder means.
fn cell_config(settings: &Settings, begin: Begin) -> Config {
    let mut config = Config::new(settings.cell);
    config.node_id = settings.broker;
    config.data_dir = Some(settings.data_dir.clone());
    config.peers = Some(settings.peers());
    config.begin = begin;
    config.policy = Policy::default();
    config.ledger_key = LedgerKey::File(settings.ledger_key.clone());
    config.space = Some(settings.space.clone());
    config
}

async fn found(settings: Settings) -> Outcome<Exit> {
    let mut config = cell_config(&settings, Begin::Found);
    let (file, origin) = (settings.ledger_key.clone(), origin(settings.cell));
    config.ledger_key = LedgerKey::Made { file, origin };
    let opened = Cell::open(config).await;
    let cell = opened.map_err(|error| broken("cannot found the cell", &error))?;
    cell.shutdown().await;
    let (name, broker) = (settings.cell, settings.broker);
    output::print(&format!(
        "cell {name} has been founded; its only broker is {broker}, in {}\n\
         the key that signs its ledger is {}: copy it to the other brokers, and give auditors\n\
         the line in {}\n",
        settings.data_dir.display(),
        settings.ledger_key.display(),
        settings.data_dir.join("ledger/archive/ledger.pub").display(),
    ))?;
    Ok(Exit::Done)
}

async fn serve(settings: Settings) -> Outcome<Exit> {
    let failure = |error| Failure::new(Exit::Failed, "cannot listen for signals").because(error);
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failure)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failure)?;
    let mut hangup = signal(SignalKind::hangup()).map_err(failure)?;
    let verifier = Verifier::new(keys(&settings)?, &settings.issuer, &settings.audience);
    let opened = Cell::open(cell_config(&settings, Begin::Wait)).await;
    let cell = opened.map_err(|error| broken("cannot start the broker", &error))?;
    let server = match listen(&settings, &cell, verifier).await {
        Ok(server) => server,
        Err(failure) => {
            cell.shutdown().await;
            return Err(failure);
        }
    };
    announce(&settings, &cell, &server)?;
    loop {
        tokio::select! {
            _ = interrupt.recv() => break,
            _ = terminate.recv() => break,
            _ = hangup.recv() => reload(&cell),
        }
    }
    tracing::info!("stopping: no new calls; once more to stop at once");
    let finish = async {
        server.shutdown().await;
        cell.shutdown().await;
    };
    tokio::select! {
        () = finish => Ok(Exit::Done),
        _ = interrupt.recv() => Err(stopped_at_once()),
        _ = terminate.recv() => Err(stopped_at_once()),
    }
}

/// Reads the certificates again. What is wrong with them does not end a broker that runs.
fn reload(cell: &Cell) {
    match cell.reload_certificates() {
        Ok(()) => tracing::info!("the certificates were read again"),
        Err(error) => {
            let failure = broken("those that were read before still count", &error);
            tracing::error!(%failure, "the certificates cannot be read again");
        }
    }
}

fn stopped_at_once() -> Failure {
    Failure::new(Exit::Interrupted, "stopped at once; nothing that was acknowledged is lost")
}

fn keys(settings: &Settings) -> Outcome<KeySet> {
    let mut keys = KeySet::default();
    for (id, path) in &settings.keys {
        let failure = |error: &dyn std::fmt::Display| {
            Failure::usage(format!("cannot use the public key {} in {}", id, path.display()))
                .because(error)
        };
        let pem = std::fs::read(path).map_err(|error| failure(&error))?;
        keys.add_pem(*id, &pem).map_err(|error| failure(&error))?;
    }
    Ok(keys)
}

async fn listen(settings: &Settings, cell: &Cell, verifier: Verifier) -> Outcome<Server> {
    let metrics = http::install_metrics().ok();
    let config = http::Config { bind: settings.api_listen, verifier, metrics };
    http::serve(cell.clone(), config).await.map_err(|error| {
        Failure::new(Exit::Failed, format!("cannot listen on {}", settings.api_listen))
            .because(error)
    })
}

fn announce(settings: &Settings, cell: &Cell, server: &Server) -> Outcome<()> {
    let peers = cell.listens().map(|address| address.to_string()).unwrap_or_default();
    output::print(&format!(
        "sublet server: broker {} of cell {}\n  API: http://{}\n  for brokers: {peers}\n",
        settings.broker,
        settings.cell,
        server.address(),
    ))?;
    let status = cell.status();
    if status.members.is_empty() && status.role != Role::Leader {
        output::note(&format!(
            "  no cell has taken it in yet; on a broker of the cell: \
             sublet cell join --id {} --peer {} --api {}",
            settings.broker, settings.address, settings.url
        ));
    }
    Ok(())
}

/// Something inside failed: with the whole chain of causes.
fn broken(what: &str, error: &(dyn std::error::Error + 'static)) -> Failure {
    // What the configuration names is there to be put right, as a wrong line of it is.
    let identity = error.downcast_ref().is_some_and(|error| {
        matches!(error, sublet_broker::Error::Identity(_) | sublet_broker::Error::LedgerKey { .. })
    });
    let exit = if identity { Exit::Usage } else { Exit::Failed };
    let mut failure = Failure::new(exit, what).because(error);
    let mut next = error.source();
    while let Some(cause) = next {
        failure = failure.because(cause);
        next = cause.source();
    }
    failure
}
