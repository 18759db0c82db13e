//! The words of the facade: positions, replies, errors, and what the machine must do.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Where an entry stands in the replicated log. Ordered as the log is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogPosition {
    /// The term of the leader that proposed the entry.
    pub term: u64,
    /// The entry's number, counted from 0 without a gap.
    pub index: u64,
}

impl std::fmt::Display for LogPosition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.term, self.index)
    }
}

/// What the log drives. Called from one task only, in log order, the same on every replica.
///
/// The machine's state is rebuilt at every start: [`Machine::restore`] of the newest good snapshot
/// (if there is one), then [`Machine::apply`] of every committed entry after it. Whatever the
/// machine keeps on disk itself may therefore be ahead of the entry it is given.
///
/// Both methods may block; they run outside the async workers where the runtime allows it.
pub trait Machine: Send + Sync + 'static {
    /// Applies the commands of one log entry, in their order, with one reply per command.
    ///
    /// # Errors
    /// An error stops the process: it means that storage failed or that this replica diverged. A
    /// command that is merely refused by the rules is a reply, not an error.
    fn apply(&self, at: LogPosition, commands: &[Vec<u8>]) -> Result<Applied, MachineError>;

    /// Replaces the whole state by this snapshot, which an earlier [`Applied::sealed`] handed out
    /// (perhaps on another replica).
    ///
    /// # Errors
    /// An error stops the process, or fails [`Raft::open`](super::Raft::open).
    fn restore(&self, at: LogPosition, snapshot: &[u8]) -> Result<(), MachineError>;

    /// What tells this cell from others of its name; nothing while it is not known.
    fn origin(&self) -> Option<u128> {
        None
    }

    /// Whether the cell is known to have given this number to a broker.
    fn has_enlisted(&self, _node: u64) -> bool {
        false
    }

    /// What a replica needs besides a snapshot that was sealed here so far: immutable, in order,
    /// equal on every replica.
    fn pieces(&self) -> Vec<Piece> {
        Vec::new()
    }

    /// Which of another replica's pieces are not here, by number, in order.
    ///
    /// # Errors
    /// A piece that is here is another one: this replica diverged, which stops the process.
    fn lacks(&self, pieces: &[Piece]) -> Result<Vec<u64>, MachineError> {
        Ok(pieces.iter().map(|piece| piece.number).collect())
    }

    /// The bytes of a piece, for another replica.
    ///
    /// # Errors
    /// There is no such piece, or it cannot be read.
    fn piece(&self, number: u64) -> Result<Vec<u8>, MachineError> {
        Err(MachineError::new(format!("there is no piece {number}")))
    }

    /// Keeps a piece of another replica, after all those before it.
    ///
    /// # Errors
    /// The bytes are not those of this piece, or storage failed: stops the process.
    fn keep(&self, piece: Piece, _bytes: &[u8]) -> Result<(), MachineError> {
        Err(MachineError::new(format!("piece {} has no place here", piece.number)))
    }
}

/// A part of what the machine keeps on disk beside its snapshots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// Its number, counted from 0.
    pub number: u64,
    /// What tells it from another with that number.
    pub digest: [u8; 32],
}

/// Where a node of the cell can be reached. Kept in the log with the cell's members.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Endpoint {
    /// Its port for other brokers, as `host:port`. Empty on the only node of a cell without peers.
    #[serde(alias = "addr", default)]
    pub peer: String,
    /// The URL of its API, as `http://host:port`, for who is to be sent there. May be empty.
    #[serde(default)]
    pub api: String,
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.peer)
    }
}

/// A node of the cell, as the cell's members say and as far as this node knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its id.
    pub node_id: u64,
    /// Where it can be reached.
    pub endpoint: Endpoint,
    /// Whether it has a vote. Without one it only receives the log.
    pub is_voter: bool,
    /// The last entry that the leader knows to be on its disk. Only the leader knows of others.
    pub matched: Option<u64>,
    /// For how long the leader has not heard from it. Only the leader knows.
    pub silent: Option<Duration>,
}

/// Whether a node may begin a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begin {
    /// With an empty directory it begins a new cell of this one node.
    Found,
    /// With an empty directory it waits until a cell takes it in.
    Wait,
}

/// What applying one entry gave.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Applied {
    /// One reply per command, in the same order.
    pub replies: Vec<Vec<u8>>,
    /// The machine's snapshot as of the end of this entry, if the entry's *last* command sealed the
    /// ledger and the machine wants a snapshot here. Propose a seal by
    /// [`Raft::propose_last`](super::Raft::propose_last), so that nothing follows it in its entry.
    pub sealed: Option<Vec<u8>>,
}

/// Why a machine could not go on.
#[derive(Debug, thiserror::Error)]
#[error("the state machine failed: {0}")]
pub struct MachineError(#[source] Box<dyn std::error::Error + Send + Sync>);

impl MachineError {
    /// Wraps the cause.
    pub fn new(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self(cause.into())
    }
}

/// Who leads, as far as this node knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Leadership {
    /// The current term.
    pub term: u64,
    /// Whether this node leads.
    pub is_leader: bool,
    /// The leader's node id, if one is known.
    pub leader: Option<u64>,
}

/// What this node is to its cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It receives the log but has no vote.
    Learner,
    /// It follows a leader.
    Follower,
    /// It asks for votes.
    Candidate,
    /// It leads.
    Leader,
    /// It has stopped.
    Stopped,
}

/// A node's state at one moment, for display and metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// This node's id.
    pub node_id: u64,
    /// The current term.
    pub term: u64,
    /// What the node is.
    pub role: Role,
    /// The leader's node id, if one is known.
    pub leader: Option<u64>,
    /// Index of the last entry in this node's log.
    pub last_log: Option<u64>,
    /// The last entry known to be committed.
    pub committed: Option<LogPosition>,
    /// The last entry the machine has applied.
    pub applied: Option<LogPosition>,
    /// The newest stored snapshot.
    pub snapshot: Option<LogPosition>,
    /// The last entry that was purged from the log.
    pub purged: Option<LogPosition>,
    /// Bytes of log on disk.
    pub log_bytes: u64,
    /// Commands waiting to be packed into an entry.
    pub waiting: usize,
    /// The nodes of the cell, by id. Empty on a node that no cell has taken in yet.
    pub members: Vec<Member>,
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option makes no sense.
    #[error("raft option `{option}` {problem}")]
    Options {
        /// The option's name.
        option: &'static str,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// Another process (or another handle in this one) has the directory open.
    #[error("{} is in use by another process; stop that one first", directory.display())]
    Locked {
        /// The directory of the log.
        directory: PathBuf,
    },
    /// The directory belongs to another cell or another node.
    #[error("the log belongs to {found}, but this is {expected}")]
    Foreign {
        /// Whose it is, as `cell/node`.
        found: String,
        /// Who opened it, as `cell/node`.
        expected: String,
    },
    /// The log is damaged before its end: intact records follow, so cutting would lose
    /// acknowledged entries.
    #[error("{} is damaged at byte {offset} but goes on after it; restore it from a backup or a peer", file.display())]
    DamagedLog {
        /// The damaged file.
        file: PathBuf,
        /// Where the damage begins.
        offset: u64,
    },
    /// The log no longer has the entries that follow the newest good snapshot.
    #[error(
        "the log begins after entry {purged}, but the newest intact snapshot is {snapshot:?}; restore a snapshot from a backup or a peer"
    )]
    Gap {
        /// Index of the last purged entry.
        purged: u64,
        /// Index of the newest intact snapshot.
        snapshot: Option<u64>,
    },
    /// The port for other brokers cannot be listened on.
    #[error("cannot listen for brokers on {address}")]
    Listen {
        /// The address.
        address: std::net::SocketAddr,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A change of the cell's members does not fit them.
    #[error("{0}")]
    Members(MembersError),
    /// A file could not be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    Storage {
        /// What was tried.
        action: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The replication layer refused to start or to do what it was asked.
    #[error("raft cannot {action}: {reason}")]
    Refused {
        /// What was tried.
        action: &'static str,
        /// What it said.
        reason: String,
    },
    /// The state machine failed while it was being recovered.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// This node does not lead. The command was not proposed.
    #[error("not the leader (leader: {leader:?})")]
    NotLeader {
        /// Who leads, if known.
        leader: Option<u64>,
    },
    /// Another broker cannot be reached, or one of the two does not want the other.
    #[error("broker {node} {}: {reason}", if *is_refusal { "is not taken in" } else { "is not reached" })]
    Unmet {
        /// Whom this node called.
        node: u64,
        /// Whether waiting alone does not help.
        is_refusal: bool,
        /// What it or the system said.
        reason: String,
    },
    /// No quorum of the cell answered.
    #[error("no quorum")]
    NoQuorum,
    /// There was no leader within the time given.
    #[error("no leader after {waited:?}")]
    NoLeader {
        /// How long it was waited.
        waited: Duration,
    },
    /// Too many commands are waiting. The command was not proposed.
    #[error("too many commands are waiting")]
    Busy,
    /// The command is larger than an entry may be. It was not proposed.
    #[error("a command of {size} bytes exceeds {limit} bytes")]
    TooLarge {
        /// The command's size in bytes.
        size: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// Nobody knows (yet) whether the command was or will be applied. Ask again with the same
    /// command id.
    #[error("the outcome is unknown")]
    Unknown,
    /// This node's replication has stopped.
    #[error("stopped")]
    Stopped,
}

/// Why the cell's members cannot be changed so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MembersError {
    /// Such a node is a member already, under another address.
    #[error("a node of this id is a member already; a new disk needs a new id")]
    Exists,
    /// There is no such node.
    #[error("no node of this id is a member")]
    Missing,
    /// It is the only voter.
    #[error("the cell would be left without a voter")]
    LastVoter,
    /// This node has no port for others.
    #[error("the broker has no port for others: this cell is one of a single broker")]
    NoPeers,
    /// Another change is under way.
    #[error("another change of the members is under way; one at a time")]
    UnderWay,
    /// The number belonged to another broker once.
    #[error(
        "the cell had a broker of this number before: a number stands for one disk and the votes on \
         it; give the new broker a number that was never used"
    )]
    Used,
    /// The new node does not catch up.
    #[error("the new node did not catch up in time; it stays a learner and may be asked for again")]
    Behind,
}

impl Error {
    /// Wraps an I/O error with what was tried and where.
    pub(super) fn storage(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Storage { action, path, source }
    }
}
