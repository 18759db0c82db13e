//! The calls of the replication layer.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::Stream;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{
    ClientWriteError, Fatal as RaftFatal, ForwardReason, ForwardToLeader, LinearizableReadError,
    RaftError,
};
use openraft::raft::{ReadPolicy, WriteResponse};
use openraft::{BasicNode, Config, RaftMetrics, ServerState, SnapshotPolicy};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use super::fatal::Fatal;
use super::keeper;
use super::log_store::LogStore;
use super::machine::{Adapter, Shared};
use super::network::Alone;
use super::options::Options;
use super::proposer::{self, Proposal};
use super::snapshots::Snapshots;
use super::types::{Error, Leadership, LogPosition, Machine, Role, Status};
use super::wire::{TypeConfig, position};

/// openraft with this crate's types filled in.
pub(super) type Core = openraft::Raft<TypeConfig, Adapter>;

/// The results of a write, one per entry.
pub(super) type WriteOutcomes = Pin<
    Box<
        dyn Stream<
                Item = Result<
                    Result<WriteResponse<TypeConfig>, ClientWriteError<TypeConfig>>,
                    RaftFatal<TypeConfig>,
                >,
            > + Send,
    >,
>;

/// How long `shutdown` waits for a seal to be stored.
const LAST_SNAPSHOT: Duration = Duration::from_secs(30);

/// One node's replication. Cheap to clone; all clones are the same node.
///
/// Call [`Raft::shutdown`] before the runtime ends: it stores what was sealed and lets go of the
/// directory. (Nothing acknowledged depends on it.)
#[derive(Clone)]
pub struct Raft {
    inner: Arc<Inner>,
}

struct Inner {
    core: Core,
    queue: mpsc::Sender<Proposal>,
    leadership: Arc<watch::Sender<Leadership>>,
    log: LogStore,
    shared: Arc<Shared>,
    snapshots: Arc<Snapshots>,
    fatal: Fatal,
    options: Arc<Options>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl std::fmt::Debug for Raft {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Raft").field("status", &self.status()).finish()
    }
}

impl Raft {
    /// Opens the node in `options.directory`, or begins a new cell of one node if it is empty.
    ///
    /// Restores `machine` from the newest intact snapshot and replays the committed log into it. A
    /// node that is its cell's only voter leads and has applied its whole log when this returns.
    ///
    /// # Errors
    /// [`Error::Options`], [`Error::Locked`], [`Error::Foreign`], [`Error::DamagedLog`],
    /// [`Error::Gap`], [`Error::Storage`], [`Error::Machine`], [`Error::Refused`]; and
    /// [`Error::NoLeader`] if recovery took longer than `options.recovery_timeout`.
    pub async fn open(options: Options, machine: Arc<dyn Machine>) -> Result<Self, Error> {
        options.check()?;
        let config = Arc::new(config(&options)?);
        let fatal = Fatal::new(options.on_fatal.clone());
        let log = LogStore::open(&options, fatal.clone())?;
        let raft = match Self::start(options, config, machine, log.clone(), fatal.clone()).await {
            Ok(raft) => raft,
            Err(error) => {
                log.close();
                return Err(error);
            }
        };
        match raft.take_office().await {
            Ok(()) => Ok(raft),
            Err(error) => {
                raft.shutdown().await;
                Err(error)
            }
        }
    }

    async fn start(
        options: Options,
        config: Arc<Config>,
        machine: Arc<dyn Machine>,
        log: LogStore,
        fatal: Fatal,
    ) -> Result<Self, Error> {
        let folder = options.directory.join("snapshots");
        let snapshots = Arc::new(Snapshots::open(&folder, &options.cell)?);
        let purged = log.purged().map_err(Error::storage("read", &options.directory))?;
        let newest = snapshots.newest().and_then(|stored| stored.position()).map(|at| at.index);
        if let Some(purged) = purged
            && newest < Some(purged)
        {
            return Err(Error::Gap { purged, snapshot: newest });
        }
        let shared = Arc::new(Shared::default());
        let adapter =
            Adapter::restore(machine, Arc::clone(&snapshots), Arc::clone(&shared), fatal.clone())?;
        let core = Core::build(options.node_id, config, Alone, log.clone(), adapter).await;
        let core = core.map_err(|error| match shared.take_failure() {
            Some(failure) => Error::Machine(failure),
            None => refused("start", &error),
        })?;
        fatal.arm();
        core.run();

        let options = Arc::new(options);
        let (queue, waiting) = mpsc::channel(options.proposals_max);
        let leadership = Arc::new(watch::Sender::new(Leadership::default()));
        let told = Arc::clone(&leadership);
        let tasks = vec![
            tokio::spawn(proposer::run(core.clone(), waiting, Arc::clone(&options))),
            tokio::spawn(keeper::observe(core.clone(), told, fatal.clone())),
            tokio::spawn(keeper::keep(core.clone(), Arc::clone(&shared), Arc::clone(&snapshots))),
        ];
        let tasks = Mutex::new(tasks);
        let inner =
            Inner { core, queue, leadership, log, shared, snapshots, fatal, options, tasks };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Begins the cell if it is new; leads at once if nobody else could.
    async fn take_office(&self) -> Result<(), Error> {
        let Inner { core, options, .. } = &*self.inner;
        let id = options.node_id;
        if !core.is_initialized().await.map_err(|error| refused("start", &error))? {
            let members = BTreeMap::from([(id, BasicNode::default())]);
            core.initialize(members).await.map_err(|error| refused("begin a cell", &error))?;
        }
        let members = move |state: &openraft::RaftState<TypeConfig>| {
            state.membership_state.effective().membership().voter_ids().eq([id])
        };
        let alone =
            core.with_raft_state(members).await.map_err(|error| refused("start", &error))?;
        if !alone {
            return Ok(());
        }
        // The metrics may lag behind; beginning a cell has already called an election.
        let state = core.with_raft_state(|state| state.server_state).await;
        let state = state.map_err(|error| refused("start", &error))?;
        if matches!(state, ServerState::Follower | ServerState::Learner) {
            core.trigger().elect(false).await.map_err(|error| refused("elect", &error))?;
        }
        self.wait_for_leader(options.recovery_timeout).await?;
        core.wait_for_recovery(Some(options.recovery_timeout)).await.map(drop).map_err(|_| {
            if self.inner.fatal.struck() {
                Error::Stopped
            } else {
                Error::NoLeader { waited: options.recovery_timeout }
            }
        })
    }

    /// Proposes a command and waits until it has been applied: its position and the machine's reply.
    ///
    /// Commands that wait at the same time share a log entry and its fsync.
    ///
    /// # Errors
    /// [`Error::Busy`], [`Error::TooLarge`], [`Error::NotLeader`] and [`Error::Stopped`]: it was not
    /// proposed. [`Error::Unknown`]: it may or may not have been, and may still be applied.
    pub async fn propose(&self, command: Vec<u8>) -> Result<(LogPosition, Vec<u8>), Error> {
        self.submit(command, false).await
    }

    /// Like [`Raft::propose`], and no other command follows this one in its log entry. For seals.
    ///
    /// # Errors
    /// As [`Raft::propose`].
    pub async fn propose_last(&self, command: Vec<u8>) -> Result<(LogPosition, Vec<u8>), Error> {
        self.submit(command, true).await
    }

    async fn submit(&self, command: Vec<u8>, last: bool) -> Result<(LogPosition, Vec<u8>), Error> {
        let (size, limit) = (command.len(), self.inner.options.bytes_per_entry_max);
        if size > limit {
            return Err(Error::TooLarge { size, limit });
        }
        let (reply, outcome) = oneshot::channel();
        let sent = self.inner.queue.try_send(Proposal { command, last, reply });
        sent.map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => Error::Busy,
            mpsc::error::TrySendError::Closed(_) => Error::Stopped,
        })?;
        match tokio::time::timeout(self.inner.options.propose_timeout, outcome).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) | Err(_) => Err(Error::Unknown),
        }
    }

    /// Waits until everything that was acknowledged anywhere before this call has been applied
    /// here. Reading the machine after it is linearizable. Only the leader can do it.
    ///
    /// # Errors
    /// [`Error::NotLeader`], [`Error::NoQuorum`] (also when time ran out), [`Error::Stopped`].
    pub async fn read_barrier(&self) -> Result<LogPosition, Error> {
        let give_up = tokio::time::Instant::now() + self.inner.options.propose_timeout;
        loop {
            let asked = self.inner.core.ensure_linearizable(ReadPolicy::ReadIndex);
            let outcome = match tokio::time::timeout_at(give_up, asked).await {
                Ok(outcome) => outcome,
                Err(_) => return Err(Error::NoQuorum),
            };
            match outcome {
                Ok(read) => return Ok(position(read.log_id())),
                Err(RaftError::Fatal(_)) => return Err(Error::Stopped),
                Err(RaftError::APIError(LinearizableReadError::QuorumNotEnough(_))) => {
                    return Err(Error::NoQuorum);
                }
                Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(
                    ForwardToLeader { reason: ForwardReason::LeaseExpired, .. },
                ))) => tokio::time::sleep(Duration::from_millis(5)).await,
                Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(forward))) => {
                    return Err(Error::NotLeader { leader: forward.leader_id });
                }
            }
        }
    }

    /// Who leads, now and from now on.
    #[must_use]
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.inner.leadership.subscribe()
    }

    /// Waits until a leader is known, which may be this node.
    ///
    /// # Errors
    /// [`Error::NoLeader`] after `timeout`, [`Error::Stopped`].
    pub async fn wait_for_leader(&self, timeout: Duration) -> Result<Leadership, Error> {
        let mut told = self.leadership();
        let known = told.wait_for(|leadership| leadership.leader.is_some());
        match tokio::time::timeout(timeout, known).await {
            Ok(Ok(leadership)) => Ok(*leadership),
            Ok(Err(_)) => Err(Error::Stopped),
            Err(_) => Err(Error::NoLeader { waited: timeout }),
        }
    }

    /// The node's state at this moment.
    #[must_use]
    pub fn status(&self) -> Status {
        let Inner { options, snapshots, log, queue, shared, .. } = &*self.inner;
        let metrics = self.metrics();
        let role = match metrics.state {
            _ if metrics.running_state.is_err() => Role::Stopped,
            ServerState::Learner => Role::Learner,
            ServerState::Follower => Role::Follower,
            ServerState::Candidate => Role::Candidate,
            ServerState::Leader => Role::Leader,
            ServerState::Shutdown => Role::Stopped,
        };
        Status {
            node_id: options.node_id,
            term: metrics.current_term,
            role,
            leader: keeper::leadership(&metrics).leader,
            last_log: metrics.last_log_index,
            committed: metrics.local_committed.as_ref().map(position),
            applied: shared.applied(),
            snapshot: snapshots.newest().and_then(|stored| stored.position()),
            purged: metrics.purged.as_ref().map(position),
            log_bytes: log.bytes(),
            waiting: queue.max_capacity().saturating_sub(queue.capacity()),
        }
    }

    /// Stops the node: stores what was sealed, applies nothing any more, lets go of the directory.
    /// Calls that still wait end with [`Error::Unknown`] or [`Error::Stopped`]. May be called twice.
    pub async fn shutdown(&self) {
        let Inner { core, log, shared, fatal, tasks, leadership, .. } = &*self.inner;
        let running = self.metrics().running_state.is_ok();
        if running && !fatal.struck() {
            let stored = async {
                while !shared.idle() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            if tokio::time::timeout(LAST_SNAPSHOT, stored).await.is_err() {
                tracing::warn!("a sealed state was not stored before the node stopped");
            }
        }
        fatal.disarm();
        if core.shutdown().await.is_err() {
            tracing::warn!("replication did not stop in order");
        }
        let tasks = std::mem::take(&mut *tasks.lock().unwrap_or_else(PoisonError::into_inner));
        for task in tasks {
            task.abort();
        }
        keeper::nobody_leads(leadership);
        let (shared, log) = (Arc::clone(shared), log.clone());
        let closed = tokio::task::spawn_blocking(move || {
            shared.close();
            log.close();
        });
        if closed.await.is_err() {
            tracing::warn!("the raft log did not close in order");
        }
    }

    fn metrics(&self) -> RaftMetrics<TypeConfig> {
        self.inner.core.metrics().borrow_watched().clone()
    }
}

fn refused(action: &'static str, error: &dyn std::error::Error) -> Error {
    Error::Refused { action, reason: error.to_string() }
}

/// openraft's settings: it neither takes snapshots nor purges by itself.
fn config(options: &Options) -> Result<Config, Error> {
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let config = Config {
        cluster_name: options.cell.clone(),
        heartbeat_interval: millis(options.heartbeat),
        election_timeout_min: millis(options.election_min),
        election_timeout_max: millis(options.election_max),
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: u64::MAX,
        ..Config::default()
    };
    config.validate().map_err(|error| refused("start", &error))
}
