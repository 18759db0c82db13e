//! The settings of one node's replication.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::fatal::FatalHook;
use super::network::{AskHandler, Identity};
use super::types::{Begin, Endpoint, Error};

/// Where a node takes chance from. It spreads attempts in time; nothing that is decided hangs on it.
#[derive(Clone)]
pub struct Chance(Arc<dyn Fn() -> u64 + Send + Sync>);

impl Chance {
    /// Takes the numbers that `draw` gives.
    pub fn new(draw: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(draw))
    }

    /// Takes them from the operating system; 0 if that has none.
    #[must_use]
    pub fn system() -> Self {
        Self::new(|| {
            let mut bytes = [0; 8];
            getrandom::fill(&mut bytes).map_or(0, |()| u64::from_le_bytes(bytes))
        })
    }

    /// The next number.
    pub(super) fn draw(&self) -> u64 {
        (self.0)()
    }
}

impl fmt::Debug for Chance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Chance")
    }
}

/// How a node takes part in a cell of several.
#[derive(Debug, Clone)]
pub struct Peers {
    /// Where other brokers connect to.
    pub listen: SocketAddr,
    /// Where the other brokers find this one; written into the members when a cell is begun here.
    pub endpoint: Endpoint,
    /// What this node shows to others, and how it judges what they show.
    pub identity: Identity,
    /// Answers questions of followers.
    pub asks: AskHandler,
}

/// The settings of one node's replication. [`Options::new`] gives the values of production.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where log and snapshots lie. Created if absent; one process at a time.
    pub directory: PathBuf,
    /// The cell's name. It is written into the log and every snapshot; another cell's are refused.
    pub cell: String,
    /// This node's id within the cell. Written into the log; never reuse one for a new disk.
    pub node_id: u64,
    /// Whether it may begin a cell if the directory is empty.
    pub begin: Begin,
    /// How it takes part in a cell of several; nothing in a cell of one.
    pub peers: Option<Peers>,
    /// How often a leader reports to its followers.
    pub heartbeat: Duration,
    /// The shortest silence after which a follower stands for election. For half of the longest it
    /// votes for nobody else, whatever happens, so it must be above that.
    pub election_min: Duration,
    /// The longest silence after which a follower stands for election.
    pub election_max: Duration,
    /// How many commands may wait to be packed. One more is refused with [`Error::Busy`].
    pub proposals_max: usize,
    /// How many commands one log entry may carry.
    pub commands_per_entry_max: usize,
    /// How many bytes of commands one log entry may carry, and so how large one command may be.
    pub bytes_per_entry_max: usize,
    /// How many entries may be on their way to the disk at once. What gathers meanwhile becomes
    /// one entry.
    pub entries_in_flight_max: usize,
    /// How long a proposal or a read barrier is waited for.
    pub propose_timeout: Duration,
    /// How long [`Raft::open`](super::Raft::open) waits for a single node to lead and to have
    /// applied its log.
    pub recovery_timeout: Duration,
    /// How long the log's writer waits for company before it fsyncs.
    pub flush_wait: Duration,
    /// Size in bytes at which the log begins a new file. The open file is held in memory.
    pub log_file_bytes: usize,
    /// What this node tells its peers that it can do.
    pub feature_level: u16,
    /// Spreads attempts to reach other nodes.
    pub chance: Chance,
    /// What happens on a storage or machine error.
    pub on_fatal: FatalHook,
}

impl Options {
    /// The production settings for node `node_id` of `cell` with its files in `directory`.
    pub fn new(directory: impl Into<PathBuf>, cell: impl Into<String>, node_id: u64) -> Self {
        Self {
            directory: directory.into(),
            cell: cell.into(),
            node_id,
            begin: Begin::Found,
            peers: None,
            heartbeat: Duration::from_millis(250),
            election_min: Duration::from_millis(2_000),
            election_max: Duration::from_millis(3_000),
            proposals_max: 16_384,
            commands_per_entry_max: 512,
            bytes_per_entry_max: 4 * 1024 * 1024,
            entries_in_flight_max: 4,
            propose_timeout: Duration::from_secs(10),
            recovery_timeout: Duration::from_secs(300),
            flush_wait: Duration::from_micros(50),
            log_file_bytes: 32 * 1024 * 1024,
            feature_level: 1,
            chance: Chance::system(),
            on_fatal: FatalHook::abort(),
        }
    }

    /// Checks what the types cannot.
    ///
    /// # Errors
    /// [`Error::Options`] names the first option that makes no sense.
    pub(super) fn check(&self) -> Result<(), Error> {
        let refuse = |option, problem| Err(Error::Options { option, problem });
        if self.directory.to_str().is_none() {
            return refuse("directory", "must be valid UTF-8");
        }
        if self.cell.is_empty() || self.cell.len() > 64 {
            return refuse("cell", "must have 1 to 64 bytes");
        }
        if self.heartbeat.is_zero() || self.heartbeat >= self.election_max / 4 {
            return refuse("heartbeat", "must be positive and below a quarter of election_max");
        }
        let is_between =
            self.election_min > self.election_max / 2 && self.election_min < self.election_max;
        if !is_between {
            return refuse("election_min", "must be between half of election_max and all of it");
        }
        if self.peers.is_some() && self.bytes_per_entry_max > 8 * 1024 * 1024 {
            return refuse("bytes_per_entry_max", "must be at most 8 MiB in a cell of several");
        }
        for (option, value) in [
            ("proposals_max", self.proposals_max),
            ("commands_per_entry_max", self.commands_per_entry_max),
            ("bytes_per_entry_max", self.bytes_per_entry_max),
            ("entries_in_flight_max", self.entries_in_flight_max),
            ("log_file_bytes", self.log_file_bytes),
        ] {
            if value == 0 {
                return refuse(option, "must not be 0");
            }
        }
        if self.bytes_per_entry_max > 256 * 1024 * 1024 {
            return refuse("bytes_per_entry_max", "must be at most 256 MiB");
        }
        if self.commands_per_entry_max > 1_000_000 {
            return refuse("commands_per_entry_max", "must be at most 1,000,000");
        }
        Ok(())
    }

    /// Who this node is, as it is written into the log.
    pub(super) fn identity(&self) -> String {
        format!("{}/{}", self.cell, self.node_id)
    }
}
