//! The cell: one facade for the API, the command line and the agent link.
//!
//! It stamps commands and hands them to the log, reads the state, the journal and the books, and
//! runs the leader's driver while this node leads. It knows no HTTP and asks nobody who they are:
//! the caller says on whose behalf it speaks.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sublet_core::leader::AgentClock;
use sublet_core::matching::{self, Explanation, WhatIf};
use sublet_core::{State, StateView};
use sublet_ledger::accounts::Accounts;
use sublet_ledger::journal::Journal;
use sublet_ledger::merkle::TreeHead;
use sublet_ledger::verify::{Report, Verifier};
use sublet_protocol::codec;
use sublet_protocol::commands::{Actor, Command, IdempotencyKey, Outcome, Stamped};
use sublet_protocol::ids::{CellId, ClusterId, CommandId, LeaseId, NodeId, RequestId, TenantId};
use sublet_protocol::names::DisplayName;
use sublet_protocol::policy::Policy;
use sublet_protocol::records::Record;
use sublet_protocol::requests::RequestSpec;
use sublet_protocol::transport::{Address, BrokerLink};
use sublet_protocol::units::Timestamp;
use tempfile::TempDir;

use crate::behind::may_be_behind;
use crate::clock::Clock;
use crate::clocks::Clocks;
use crate::config::{self, Config};
use crate::counters::Counters;
use crate::divergence;
use crate::driver::{self, DriverHandle};
use crate::error::{Chain, Error};
use crate::folders;
use crate::forward::Answering;
use crate::ledger_key;
use crate::machine::CellMachine;
use crate::raft::{self, FatalHook, Identity, Raft};
use crate::reconciliation::Asked;
use crate::records::Subscription;
use crate::relay::{Reader, Relay, WorkloadError};
use crate::scrub;
use crate::space::{self, Room};
use crate::stuck;

/// Most records that one call returns.
pub const RECORDS_MAX: usize = 1_000;

/// How long what is asked of a broker that follows waits for a leader.
const LEADER_PATIENCE: Duration = Duration::from_secs(4);
/// Between two looks for one.
const LEADER_PAUSE: Duration = Duration::from_millis(50);

/// One node of a cell. Cheap to clone; all clones are the same node.
#[derive(Clone)]
pub struct Cell {
    parts: Arc<Parts>,
    driver: Arc<DriverHandle>,
}

/// What the cell and its driver share.
pub(crate) struct Parts {
    pub(crate) raft: Raft,
    pub(crate) machine: Arc<CellMachine>,
    pub(crate) clock: Clock,
    pub(crate) clocks: Clocks,
    pub(crate) asked: Asked,
    pub(crate) relay: Relay,
    /// Nothing in a cell of one.
    identity: Option<Identity>,
    /// Nothing if the disk is not looked at.
    pub(crate) space: Option<Arc<space::Watch>>,
    /// Removed when the cell is shut down or dropped.
    folder: Mutex<Option<TempDir>>,
    on_fatal: FatalHook,
}

/// What a broker knows without asking another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    /// Records in its ledger.
    pub records: u64,
    /// How long ago it last heard from the leader, or from a quorum if it leads. Nothing if it has
    /// heard from no leader since it started or last took part in an election.
    pub heard: Option<Duration>,
}

impl std::fmt::Debug for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cell").field("raft", &self.parts.raft).finish_non_exhaustive()
    }
}

impl Cell {
    /// Opens the cell in `config.data_dir`, or founds it there.
    ///
    /// When this returns on the only node of a cell, it leads, its log has been replayed, and
    /// everything that was ever acknowledged is there. A damaged or missing store of the ledger has
    /// been made anew from archive and log.
    ///
    /// # Errors
    /// [`Error::Folder`], [`Error::Ledger`], [`Error::Raft`], [`Error::OtherCell`],
    /// [`Error::LogBehind`], [`Error::Founding`]: the data cannot be used as it is.
    pub async fn open(config: Config) -> Result<Self, Error> {
        let (folder, path) = folder(config.data_dir)?;
        let space = config.space.map(|settings| Arc::new(space::Watch::new(&path, settings)));
        let (ledger, cell) = (path.join("ledger"), config.cell);
        let key = ledger_key::load(&config.ledger_key)?;
        let opened = tokio::task::spawn_blocking(move || {
            let mut journal = Journal::open_or_rebuild(&ledger, cell)?.journal;
            match key {
                Some(key) => journal.sign_with(key)?,
                None => tracing::info!("no key of the ledger: checkpoints are not signed here"),
            }
            Ok(journal)
        });
        let opened = stuck::opening(opened).await;
        let journal = opened.map_err(|_| Error::Stopped)?.map_err(Error::Ledger)?;
        let (checks, snapshots) = (config.checks, config.snapshot_records);
        let machine = CellMachine::new(config.cell, journal, checks, snapshots);
        let machine = Arc::new(machine.able(config.feature_level));
        let mut options =
            raft::Options::new(path.join("raft"), config.cell.as_str(), config.node_id);
        let on_fatal = config.on_fatal.clone();
        options.on_fatal = config.on_fatal;
        options.begin = config.begin;
        options.feature_level = config.feature_level;
        options.log_file_bytes = config.log_file_bytes;
        let answering = Answering::default();
        let mut shown = None;
        if let Some(config::Peers { listen, endpoint, security }) = config.peers {
            let identity = Identity::load(&security, config.cell.as_str(), config.node_id);
            let identity = identity.map_err(Error::Identity)?;
            shown = Some(identity.clone());
            let asks = answering.handler();
            options.peers = Some(raft::Peers { listen, endpoint, identity, asks });
        }
        let log: Arc<dyn raft::Machine> = machine.clone();
        let raft = Raft::open(options, log).await?;

        let parts = Parts {
            raft,
            machine,
            clock: Clock::new(config.clock),
            clocks: Clocks::default(),
            asked: Asked::default(),
            relay: Relay::default(),
            identity: shown,
            space,
            folder: Mutex::new(folder),
            on_fatal: on_fatal.clone(),
        };
        if let Err(error) = parts.begin(config.cell, config.policy, &path).await {
            parts.close().await;
            return Err(error);
        }
        let parts = Arc::new(parts);
        answering.begin(&parts);
        divergence::watch(&parts, on_fatal.clone());
        stuck::watch(&parts, on_fatal);
        scrub::watch(&parts);
        space::watch(&parts);
        let driver = Arc::new(driver::start(Arc::clone(&parts)));
        Ok(Self { parts, driver })
    }

    /// Takes messages of agents from this link from now on, in place of an earlier one.
    ///
    /// # Errors
    /// [`Error::Stopped`].
    pub async fn attach(&self, link: Box<dyn BrokerLink>) -> Result<(), Error> {
        self.driver.attach(link).await
    }

    /// Asks for something on behalf of `actor` and waits until it is committed and applied. A broker
    /// that follows has its leader do it, and waits until it can be read here.
    ///
    /// # Errors
    /// [`Error::Busy`], [`Error::NotLeader`], [`Error::TooLarge`], [`Error::NoSpace`],
    /// [`Error::Stopped`]: it did not happen. [`Error::Unknown`]: it may have; ask again with the same key.
    pub async fn propose(
        &self,
        actor: Actor,
        key: Option<IdempotencyKey>,
        command: Command,
    ) -> Result<Outcome, Error> {
        let give_up = Instant::now() + LEADER_PATIENCE;
        loop {
            if self.parts.raft.is_removed() {
                return Err(Error::Removed);
            }
            let leadership = *self.parts.raft.leadership().borrow();
            let is_elsewhere = !leadership.is_leader && self.parts.raft.listens().is_some();
            let proposed = match is_elsewhere {
                true => self.parts.forward(actor.clone(), key, command.clone()).await,
                false => {
                    let term = leadership.term;
                    self.parts.propose(actor.clone(), key, command.clone(), term).await
                }
            };
            match proposed {
                // It did not happen: there may be another leader in a moment.
                Err(Error::NotLeader { .. }) if is_elsewhere && Instant::now() < give_up => {
                    tokio::time::sleep(LEADER_PAUSE).await;
                }
                proposed => return proposed,
            }
        }
    }

    /// Reads the state after everything that was acknowledged before this call. Commands wait while
    /// `read` runs: be short, and do not call the cell from within.
    ///
    /// Within [`behind`](crate::behind) it is [`Cell::read_stale`].
    ///
    /// # Errors
    /// [`Error::NotLeader`], [`Error::Stopped`].
    pub async fn read<R>(&self, read: impl FnOnce(&State) -> R) -> Result<R, Error> {
        if !may_be_behind() {
            let current = self.parts.raft.read_index().await;
            if current.is_err() && self.parts.raft.is_removed() {
                return Err(Error::Removed);
            }
            current?;
        }
        Ok(self.parts.machine.read(read))
    }

    /// Reads the state as this node knows it; it may be behind.
    pub fn read_stale<R>(&self, read: impl FnOnce(&State) -> R) -> R {
        self.parts.machine.read(read)
    }

    /// How far behind [`Cell::read_stale`] may be.
    ///
    /// # Errors
    /// [`Error::Stopped`].
    pub async fn known(&self) -> Result<Known, Error> {
        // In this order: what is read after it is at least as new.
        let heard = self.parts.raft.heard().await?;
        Ok(Known { records: self.head()?.size, heard })
    }

    /// Ledger time now.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.parts.clock.now()
    }

    /// The ledger clock.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.parts.clock
    }

    /// Why a request waits; nothing if no such request waits.
    ///
    /// # Errors
    /// As [`Cell::read`].
    pub async fn explain(&self, request: RequestId) -> Result<Option<Explanation>, Error> {
        let (now, limits) = (self.now(), self.parts.clocks.limits());
        let explain =
            |state: &_| matching::explain_within(StateView { state, now }, &limits, request);
        self.read(explain).await
    }

    /// What would come of a request, without asking for it.
    ///
    /// # Errors
    /// As [`Cell::read`].
    pub async fn what_if(&self, tenant: TenantId, spec: &RequestSpec) -> Result<WhatIf, Error> {
        let (now, limits) = (self.now(), self.parts.clocks.limits());
        let what_if =
            |state: &_| matching::what_if_within(StateView { state, now }, &limits, tenant, spec);
        self.read(what_if).await
    }

    /// What this broker knows of the wall clock of an agent's machine, if it leads and has heard of
    /// it.
    #[must_use]
    pub fn clock_of(&self, cluster: ClusterId, node: NodeId) -> Option<AgentClock> {
        self.parts.clocks.of((cluster, node))
    }

    /// What a tenant is called, as this broker knows it.
    #[must_use]
    pub fn name_of(&self, tenant: TenantId) -> Option<DisplayName> {
        self.parts.machine.name_of(tenant)
    }

    /// The nodes on which nothing new is put because their wall clocks are too far off, as this broker
    /// knows them if it leads.
    #[must_use]
    pub fn closed_nodes(&self) -> BTreeSet<(ClusterId, NodeId)> {
        self.parts.clocks.limits().closed
    }

    /// Record `index`; nothing behind the end.
    ///
    /// # Errors
    /// [`Error::Ledger`], [`Error::Stopped`].
    pub fn record(&self, index: u64) -> Result<Option<Record>, Error> {
        self.parts.journal(|journal| journal.record(index))
    }

    /// At most `limit` (and [`RECORDS_MAX`]) records from index `from` on.
    ///
    /// # Errors
    /// As [`Cell::record`].
    pub fn records(&self, from: u64, limit: usize) -> Result<Vec<Record>, Error> {
        self.parts.journal(|journal| journal.range(from, limit.min(RECORDS_MAX)))
    }

    /// All records of a lease, live or ended, in order.
    ///
    /// # Errors
    /// As [`Cell::record`].
    pub fn records_of_lease(&self, lease: LeaseId) -> Result<Vec<Record>, Error> {
        self.parts.journal(|journal| journal.by_lease(lease))
    }

    /// All records that name a request, in order; those between grant and end name the lease.
    ///
    /// # Errors
    /// As [`Cell::record`].
    pub fn records_of_request(&self, request: RequestId) -> Result<Vec<Record>, Error> {
        self.parts.journal(|journal| journal.by_request(request))
    }

    /// At most `limit` (and [`RECORDS_MAX`]) records of a tenant's business behind index `after`.
    ///
    /// # Errors
    /// As [`Cell::record`].
    pub fn records_of_tenant(
        &self,
        tenant: TenantId,
        after: Option<u64>,
        limit: usize,
    ) -> Result<Vec<Record>, Error> {
        let limit = limit.min(RECORDS_MAX);
        self.parts.journal(|journal| journal.by_tenant(tenant, after, limit))
    }

    /// Every record from index `from` on, once and in order: those that are there, then each one as
    /// it is journalled.
    #[must_use]
    pub fn subscribe(&self, from: u64) -> Subscription {
        Subscription::new(Arc::clone(&self.parts.machine), from)
    }

    /// Size and root of the journal.
    ///
    /// # Errors
    /// [`Error::Stopped`].
    pub fn head(&self) -> Result<TreeHead, Error> {
        self.parts.journal(|journal| Ok(journal.head()))
    }

    /// Reads the whole journal again from the disk and checks it. Commands wait for one segment or
    /// the tail at a time.
    ///
    /// # Errors
    /// [`Error::Ledger`] if the system fails, [`Error::Stopped`].
    pub async fn verify(&self) -> Result<Report, Error> {
        let parts = Arc::clone(&self.parts);
        let verified = tokio::task::spawn_blocking(move || {
            let mut verifier = Verifier::default();
            loop {
                if let Some(report) = parts.journal(|journal| verifier.step(journal))? {
                    return Ok(report);
                }
            }
        });
        verified.await.map_err(|_| Error::Stopped)?
    }

    /// Reads the journal itself, for proofs. Commands wait meanwhile.
    ///
    /// # Errors
    /// [`Error::Ledger`], [`Error::Stopped`].
    pub fn journal<R>(
        &self,
        read: impl FnOnce(&Journal) -> Result<R, sublet_ledger::Error>,
    ) -> Result<R, Error> {
        self.parts.journal(read)
    }

    /// The books.
    #[must_use]
    pub fn accounts(&self) -> Accounts {
        self.parts.machine.accounts()
    }

    /// What was done since the cell was opened.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.parts.machine.counters()
    }

    /// The newest violations of invariants, newest first; empty in a sound cell.
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        self.parts.machine.violations()
    }

    pub(crate) fn parts(&self) -> &Parts {
        &self.parts
    }

    /// Where other brokers connect to; nothing in a cell of one.
    #[must_use]
    pub fn listens(&self) -> Option<SocketAddr> {
        self.parts.raft.listens()
    }

    /// Reads the files of the certificates again. They count for connections that are made from now
    /// on. Blocks for as long as reading takes.
    ///
    /// # Errors
    /// [`Error::Identity`]: those that were read before still count.
    pub fn reload_certificates(&self) -> Result<(), Error> {
        self.parts.identity.as_ref().map_or(Ok(()), Identity::reload).map_err(Error::Identity)
    }

    /// The state of this node's replication.
    #[must_use]
    pub fn status(&self) -> raft::Status {
        self.parts.raft.status()
    }

    /// Hands over the workload of a live lease. It is kept in memory and sent to the agent of the
    /// first member until the guest runs or the lease ends.
    ///
    /// # Errors
    /// [`WorkloadError`] says what does not fit; nothing was kept then.
    pub fn put_workload(&self, lease: LeaseId, bytes: Vec<u8>) -> Result<(), WorkloadError> {
        self.parts.put_workload(lease, bytes)?;
        self.driver.workload_waits();
        Ok(())
    }

    /// The output of a lease's guest, from `offset` on, until the lease has ended. Nothing if there
    /// is no such lease, it ended too long ago, or too many are being read.
    #[must_use]
    pub fn output(&self, lease: LeaseId, offset: u64) -> Option<Reader> {
        // Under the state's lock, so that the end of the lease is seen by the reader.
        self.parts
            .machine
            .read(|state| self.parts.relay.read(lease, offset, state.leases().contains_key(&lease)))
    }

    /// Stops the node in order: the leader's work ends, the journal's tail is sealed, a snapshot is
    /// stored, the folders are let go of. May be called twice.
    pub async fn shutdown(&self) {
        self.driver.stop().await;
        let leadership = *self.parts.raft.leadership().borrow();
        if leadership.is_leader {
            self.parts.machine.want_snapshot();
            let seal = self.parts.propose(Actor::Leader, None, Command::SealTail, leadership.term);
            match seal.await {
                Ok(Outcome::Done { .. }) => {}
                Ok(outcome) => tracing::warn!(?outcome, "the tail was not sealed"),
                Err(error) => tracing::warn!(error = %Chain(&error), "the tail was not sealed"),
            }
        }
        self.parts.close().await;
    }
}

impl Parts {
    /// Stamps a command and has it committed and applied.
    pub(crate) async fn propose(
        &self,
        actor: Actor,
        key: Option<IdempotencyKey>,
        command: Command,
        term: u64,
    ) -> Result<Outcome, Error> {
        self.propose_at(actor, key, command, term).await.map(|(outcome, _)| outcome)
    }

    /// As [`Parts::propose`]; with the index of the entry that it became.
    pub(crate) async fn propose_at(
        &self,
        actor: Actor,
        key: Option<IdempotencyKey>,
        command: Command,
        term: u64,
    ) -> Result<(Outcome, u64), Error> {
        if !space::admits(self.room(), &command) {
            return Err(Error::NoSpace);
        }
        let is_seal = matches!(command, Command::SealTail);
        let id = CommandId::new(random()?);
        let stamped = Stamped { id, actor, now: self.clock.now(), term, key, command };
        let bytes = codec::encode(&stamped).map_err(|_| Error::TooLarge)?;
        let (at, reply) = match is_seal {
            true => self.raft.propose_last(bytes).await?,
            false => self.raft.propose(bytes).await?,
        };
        Ok((codec::decode(&reply).map_err(Error::Codec)?, at.index))
    }

    /// After the log was replayed: checks that all fits together, and founds a new cell.
    async fn begin(&self, cell: CellId, policy: Policy, data: &Path) -> Result<(), Error> {
        let (founded, log, now) =
            self.machine.read(|state| (state.cell(), state.next_index(), state.now()));
        let journal = self.journal(|journal| Ok(journal.size()))?;
        let status = self.raft.status();
        // One of several may have applied more before it was stopped than it knows now to be
        // committed; the leader tells, and each record is compared when it comes again. But a node
        // that has records and knows of no vote has lost its log, and with it the votes it gave.
        let is_one_of_several = match status.members.len() {
            0 => status.term > 0,
            count => count > 1,
        };
        let is_behind = is_one_of_several && journal > log;
        if journal != log && !is_behind {
            let ledger = data.join("ledger");
            return Err(Error::LogBehind { ledger, journal, log });
        }
        if is_one_of_several && founded.is_none() && !status.members.is_empty() {
            self.machine.belong_by_ledger().map_err(Error::Ledger)?;
        }
        self.clock.not_before(now);
        self.machine.go_live();
        let leadership = *self.raft.leadership().borrow();
        match founded {
            Some((found, _)) if found != cell => {
                return Err(Error::OtherCell { found, expected: cell });
            }
            Some(_) => return Ok(()),
            None if !leadership.is_leader => return Ok(()),
            None => {}
        }
        let create = Command::CreateCell { cell, policy };
        match self.propose(Actor::Leader, None, create, leadership.term).await? {
            Outcome::Refused { rejection } => Err(Error::Founding(rejection)),
            Outcome::Done { .. } | Outcome::Repeated { .. } => Ok(()),
        }
    }

    pub(crate) fn journal<R>(
        &self,
        read: impl FnOnce(&Journal) -> Result<R, sublet_ledger::Error>,
    ) -> Result<R, Error> {
        self.machine.journal(read).ok_or(Error::Stopped)?.map_err(Error::Ledger)
    }

    fn put_workload(&self, lease: LeaseId, bytes: Vec<u8>) -> Result<(), WorkloadError> {
        // Under the state's lock, so that the end of the lease drops it.
        self.machine.read(|state| {
            let lease_now = state.leases().get(&lease).ok_or(WorkloadError::LeaseMissing)?;
            if let sublet_core::LeaseStage::Ending { .. } = lease_now.stage() {
                return Err(WorkloadError::LeaseEnding);
            }
            let terms = lease_now.terms();
            let declared = terms.workload.as_ref().ok_or(WorkloadError::NotDeclared)?;
            let first = terms.members.first().ok_or(WorkloadError::LeaseMissing)?.slice;
            let to = Address { cluster: first.cluster, node: first.node };
            self.relay.put_workload(lease, declared, (to, terms.token), bytes)
        })
    }

    /// What the disk has room for, as of the last look.
    pub(crate) fn room(&self) -> Room {
        self.space.as_ref().map_or(Room::Plenty, |space| space.room())
    }

    async fn close(&self) {
        let machine = Arc::clone(&self.machine);
        let close = async {
            self.raft.shutdown().await;
            let closed = tokio::task::spawn_blocking(move || machine.close()).await;
            if let Ok(Err(error)) = closed {
                let error = Chain(&error);
                tracing::error!(%error, "the ledger could not be brought to the disk");
            }
        };
        stuck::closing(close, &self.on_fatal).await;
        let folder = self.folder.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(folder) = folder
            && let Err(error) = folder.close()
        {
            tracing::warn!(error = %Chain(&error), "the temporary folder was not removed");
        }
    }
}

/// The data folder, and the temporary one that it is if none was given.
fn folder(data_dir: Option<PathBuf>) -> Result<(Option<TempDir>, PathBuf), Error> {
    match data_dir {
        Some(path) => {
            let made = folders::create_private(&path);
            made.map_err(|source| Error::Folder { path: path.clone(), source })?;
            Ok((None, path))
        }
        None => {
            let made = tempfile::Builder::new().prefix("sublet-").tempdir();
            let path = std::env::temp_dir();
            let folder = made.map_err(|source| Error::Folder { path, source })?;
            let path = folder.path().to_owned();
            Ok((Some(folder), path))
        }
    }
}

fn random() -> Result<u128, Error> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(Error::Randomness)?;
    Ok(u128::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_cell_that_lost_its_log_does_not_start_and_says_which_folder() {
        let folder = tempfile::tempdir().unwrap();
        let open = || {
            let mut config = Config::new(CellId::new("berlin").unwrap());
            config.data_dir = Some(folder.path().to_owned());
            Cell::open(config)
        };
        let cell = open().await.unwrap();
        cell.shutdown().await;
        drop(cell);
        std::fs::remove_dir_all(folder.path().join("raft")).unwrap();
        let error = open().await.unwrap_err();
        assert!(matches!(error, Error::LogBehind { log: 0, .. }), "{error}");
        assert!(error.to_string().contains(&*folder.path().to_string_lossy()), "{error}");
    }
}
