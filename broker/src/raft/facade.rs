//! The calls of the replication layer.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::Stream;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{ClientWriteError, Fatal as RaftFatal};
use openraft::raft::WriteResponse;
use openraft::{Config, RaftMetrics, ServerState, SnapshotPolicy};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use super::fatal::Fatal;
use super::keeper;
use super::log_store::LogStore;
use super::machine::{Adapter, Shared};
use super::members;
use super::network::{self, Asker, Host, Missed, Network, Question, Reply, Site};
use super::options::{Options, Peers};
use super::proposer::{self, Proposal};
use super::reads;
use super::snapshots::Snapshots;
use super::types::{Begin, Endpoint, Error, Leadership, LogPosition, Machine, Role, Status};
use super::wire::TypeConfig;
use super::wire::position;

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
    /// Nothing in a cell of one node.
    asker: Option<Asker>,
    /// Where peers connect to.
    listens: Option<SocketAddr>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl std::fmt::Debug for Raft {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Raft").field("status", &self.status()).finish()
    }
}

impl Raft {
    /// Opens the node in `options.directory`. If that is empty it begins a new cell of this one
    /// node, or waits until a cell takes it in ([`Options::begin`]).
    ///
    /// Restores `machine` from the newest intact snapshot and replays the committed log into it. A
    /// node that is its cell's only voter leads and has applied its whole log when this returns. One
    /// of several may lag behind what it had applied before, until it hears from the leader.
    ///
    /// # Errors
    /// [`Error::Options`], [`Error::Listen`], [`Error::Locked`], [`Error::Foreign`], [`Error::DamagedLog`],
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
        let port = match &options.peers {
            Some(peers) => Some(Port::open(peers, &options, &machine).await?),
            None => None,
        };
        let for_peers = Arc::clone(&machine);
        let adapter =
            Adapter::restore(machine, Arc::clone(&snapshots), Arc::clone(&shared), fatal.clone())?;
        let site = port.as_ref().map(|port| Arc::clone(&port.site));
        let network = Network { site: site.clone(), machine: Arc::clone(&for_peers) };
        let core = Core::build(options.node_id, config, network, log.clone(), adapter).await;
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
        let mut tasks = vec![
            tokio::spawn(proposer::run(core.clone(), waiting, Arc::clone(&options))),
            tokio::spawn(keeper::observe(core.clone(), told, fatal.clone())),
            tokio::spawn(keeper::keep(core.clone(), Arc::clone(&shared), Arc::clone(&snapshots))),
        ];
        let listens = port.as_ref().map(|port| port.address);
        if let (Some(port), Some(peers)) = (port, &options.peers) {
            let host = Host {
                site: port.site,
                core: core.clone(),
                machine: for_peers,
                snapshots: Arc::clone(&snapshots),
                asks: peers.asks.clone(),
                fatal: fatal.clone(),
                receiving: tokio::sync::Mutex::default(),
                patience: options.propose_timeout,
            };
            tasks.push(tokio::spawn(network::serve(port.listener, Arc::new(host))));
        }
        let (asker, tasks) = (site.map(Asker::new), Mutex::new(tasks));
        let inner = Inner {
            core,
            queue,
            leadership,
            log,
            shared,
            snapshots,
            fatal,
            options,
            asker,
            listens,
            tasks,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Begins the cell if it is new; leads at once if nobody else could.
    async fn take_office(&self) -> Result<(), Error> {
        let Inner { core, options, .. } = &*self.inner;
        let id = options.node_id;
        if !core.is_initialized().await.map_err(|error| refused("start", &error))? {
            if options.begin == Begin::Wait {
                return Ok(());
            }
            let endpoint = options.peers.as_ref().map(|peers| peers.endpoint.clone());
            let members = BTreeMap::from([(id, endpoint.unwrap_or_default())]);
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

    /// Proves that this node leads: waits until everything that was acknowledged anywhere before
    /// this call has been applied here. Only the leader can do it.
    ///
    /// # Errors
    /// [`Error::NotLeader`], [`Error::NoQuorum`] (also when time ran out), [`Error::Stopped`].
    pub async fn read_barrier(&self) -> Result<LogPosition, Error> {
        reads::barrier(&self.inner.core, self.inner.options.propose_timeout).await
    }

    /// Waits until everything that was acknowledged anywhere before this call has been applied
    /// here. Reading the machine after it is linearizable. Any node can do it: one that follows asks
    /// the leader. It is no sign of leading.
    ///
    /// # Errors
    /// [`Error::NotLeader`] if there is no leader or it cannot be reached, [`Error::NoQuorum`] (also
    /// when time ran out), [`Error::Stopped`].
    pub async fn read_index(&self) -> Result<LogPosition, Error> {
        let patience = self.inner.options.propose_timeout;
        let leader = match reads::barrier(&self.inner.core, patience).await {
            Err(Error::NotLeader { leader: Some(leader) }) => leader,
            outcome => return outcome,
        };
        let (term, index) = match self.ask(leader, Question::ReadIndex).await {
            Ok(Reply::ReadIndex(at)) => at,
            Ok(Reply::NotLeader(leader)) => return Err(Error::NotLeader { leader }),
            Ok(Reply::Above(_) | Reply::Stopping) | Err(Missed::NotSent) => {
                return Err(Error::NotLeader { leader: None });
            }
            // A read may be given up: nothing has changed.
            Ok(Reply::NoQuorum) | Err(Missed::Unknown) => return Err(Error::NoQuorum),
            Err(Missed::Busy) => return Err(Error::Busy),
        };
        self.wait_applied(index).await?;
        Ok(LogPosition { term, index })
    }

    /// How long ago this node last heard from the leader, or from a quorum if it leads. Nothing if it
    /// has heard from no leader since it started, or since it last granted a vote.
    ///
    /// # Errors
    /// [`Error::Stopped`].
    pub async fn heard(&self) -> Result<Option<Duration>, Error> {
        reads::heard(&self.inner.core).await
    }

    /// Waits until the entry at `index` has been applied here.
    ///
    /// # Errors
    /// [`Error::NoQuorum`] when time ran out, [`Error::Stopped`].
    pub async fn wait_applied(&self, index: u64) -> Result<(), Error> {
        let Inner { core, options, .. } = &*self.inner;
        let wait = core.wait(Some(options.propose_timeout));
        match wait.applied_index_at_least(Some(index), "a read").await {
            Ok(_) => Ok(()),
            Err(_) if self.metrics().running_state.is_err() => Err(Error::Stopped),
            Err(_) => Err(Error::NoQuorum),
        }
    }

    /// Asks the leader's layer above ([`Peers::asks`]) something, as far as this node knows who
    /// leads.
    ///
    /// # Errors
    /// [`Error::NotLeader`], [`Error::Busy`]: the question was not heard. [`Error::Unknown`]: it may
    /// have been.
    pub async fn ask_leader(&self, question: Vec<u8>) -> Result<Vec<u8>, Error> {
        let mut told = self.leadership();
        let leader = told.borrow_and_update().leader;
        let leader = leader.ok_or(Error::NotLeader { leader: None })?;
        tokio::select! {
            answer = self.ask_node(leader, question) => answer,
            // It stands still or is cut off. Whether it has heard the question is not known.
            _ = told.wait_for(|now| now.leader != Some(leader)) => Err(Error::Unknown),
        }
    }

    /// Asks the layer above of another node something.
    ///
    /// # Errors
    /// As [`Raft::ask_leader`].
    pub async fn ask_node(&self, node: u64, question: Vec<u8>) -> Result<Vec<u8>, Error> {
        match self.ask(node, Question::Above(question.into())).await {
            Ok(Reply::Above(answer)) => Ok(answer.into_vec()),
            Ok(_) | Err(Missed::Unknown) => Err(Error::Unknown),
            Err(Missed::NotSent) => Err(Error::NotLeader { leader: None }),
            Err(Missed::Busy) => Err(Error::Busy),
        }
    }

    async fn ask(&self, node: u64, question: Question) -> Result<Reply, Missed> {
        let Inner { asker, options, .. } = &*self.inner;
        let members = self.status().members;
        let member = members.into_iter().find(|member| member.node_id == node);
        let (Some(asker), Some(member)) = (asker, member) else { return Err(Missed::NotSent) };
        let asked = asker.ask(node, &member.endpoint.peer, question);
        let answered = tokio::time::timeout(options.propose_timeout, asked).await;
        answered.unwrap_or(Err(Missed::Unknown))
    }

    /// Takes a node in: as a learner, and with a vote once it has caught up. Asked again it goes on
    /// where it was. Only the leader can do it, one change at a time.
    ///
    /// # Errors
    /// [`Error::NotLeader`], [`Error::Members`], [`Error::Stopped`]: it is not done, or not all of
    /// it. [`Error::Unknown`]: it may be.
    pub async fn add_member(
        &self,
        node: u64,
        endpoint: Endpoint,
        patience: Duration,
    ) -> Result<(), Error> {
        self.admit_member(node, endpoint, patience).await?;
        self.promote_member(node, patience).await
    }

    /// The first half of [`Raft::add_member`]: the node has nearly all of the log, and no vote.
    ///
    /// # Errors
    /// As [`Raft::add_member`].
    pub async fn admit_member(
        &self,
        node: u64,
        endpoint: Endpoint,
        patience: Duration,
    ) -> Result<(), Error> {
        members::admit(&self.inner.core, node, endpoint, patience).await
    }

    /// The second half of [`Raft::add_member`]: the node votes.
    ///
    /// # Errors
    /// As [`Raft::add_member`].
    pub async fn promote_member(&self, node: u64, patience: Duration) -> Result<(), Error> {
        members::promote(&self.inner.core, node, patience).await
    }

    /// Calls a node at an address, which need not be a member, and greets it: whether it is the one
    /// that is meant, and both want one another.
    ///
    /// # Errors
    /// [`Error::Unmet`]; [`Error::Members`] on a node that talks to no others.
    pub async fn meet(&self, node: u64, address: &str) -> Result<(), Error> {
        let Some(asker) = &self.inner.asker else {
            return Err(Error::Members(super::types::MembersError::NoPeers));
        };
        asker.meet(node, address).await.map_err(|(is_refusal, reason)| Error::Unmet {
            node,
            is_refusal,
            reason,
        })
    }

    /// Whether another broker has said that this one was taken out of the cell.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        self.inner.asker.as_ref().is_some_and(Asker::is_removed)
    }

    /// Takes a node out of the cell. Only the leader can do it, one change at a time; it may be the
    /// leader itself, which then leads no longer.
    ///
    /// # Errors
    /// As [`Raft::add_member`].
    pub async fn remove_member(&self, node: u64, patience: Duration) -> Result<(), Error> {
        members::remove(&self.inner.core, node, patience).await
    }

    /// Where peers connect to; nothing in a cell of one node.
    #[must_use]
    pub fn listens(&self) -> Option<SocketAddr> {
        self.inner.listens
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
            members: members::members(&metrics),
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

/// The port for peers, before there is anyone to serve them.
struct Port {
    listener: TcpListener,
    address: SocketAddr,
    site: Arc<Site>,
}

impl Port {
    async fn open(
        peers: &Peers,
        options: &Options,
        machine: &Arc<dyn Machine>,
    ) -> Result<Self, Error> {
        let address = peers.listen;
        if !peers.identity.is_protected() && !address.ip().to_canonical().is_loopback() {
            let problem = "must be a loopback address where connections are not protected";
            return Err(Error::Options { option: "peers.listen", problem });
        }
        let failed = |source| Error::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let site = Arc::new(Site::new(options, peers.identity.clone(), Arc::clone(machine)));
        Ok(Self { listener, address, site })
    }
}

fn refused(action: &'static str, error: &dyn std::error::Error) -> Error {
    Error::Refused { action, reason: error.to_string() }
}

/// openraft's settings: it neither takes snapshots nor purges by itself.
fn config(options: &Options) -> Result<Config, Error> {
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    // A follower grants nobody a vote for openraft's longest time-out, and stands for election a
    // time-out after that.
    let lease = options.election_max / 2;
    let config = Config {
        cluster_name: options.cell.clone(),
        heartbeat_interval: millis(options.heartbeat),
        election_timeout_min: millis(options.election_min.saturating_sub(lease)),
        election_timeout_max: millis(lease),
        // A node that was cut off must not unseat the leader when it is back.
        enable_pre_vote: Some(options.peers.is_some()),
        // A leader replicates while its own fsync still runs: others may have committed an entry that
        // it loses with its power. In the same term it would write another one in its place, and by
        // term and index nobody could tell the two apart.
        enable_leader_restore: Some(false),
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: u64::MAX,
        ..Config::default()
    };
    config.validate().map_err(|error| refused("start", &error))
}
