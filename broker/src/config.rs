//! The settings of a cell's shell. What changes decisions is replicated policy, not this.

use std::net::SocketAddr;
use std::path::PathBuf;

use sublet_protocol::ids::CellId;
use sublet_protocol::policy::Policy;

use crate::clock::ClockKind;
use crate::raft::{Begin, Endpoint, FatalHook, Security};
use crate::space;

/// How often the invariants are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checks {
    /// After every command, and the state is evolved a second time from the journalled bytes and
    /// compared. For `dev` and tests: it costs time in proportion to the state.
    Always,
    /// After one command of this many. Zero switches them off.
    OneIn(u32),
}

/// How this broker talks to the others of its cell.
#[derive(Debug, Clone)]
pub struct Peers {
    /// Where the others connect to.
    pub listen: SocketAddr,
    /// Where the others, and callers who are sent here, find it.
    pub endpoint: Endpoint,
    /// How the connections are protected.
    pub security: Security,
}

/// The key that signs the ledger's checkpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LedgerKey {
    /// This broker signs nothing.
    None,
    /// The one in this file, if it is there.
    File(PathBuf),
    /// The one in this file; if it is not there, it is made under this name.
    Made {
        /// The file.
        file: PathBuf,
        /// The name, which is the ledger's origin: without spaces and plus signs.
        origin: String,
    },
}

/// The settings of [`Cell::open`](crate::cell::Cell::open). [`Config::new`] has the defaults.
#[derive(Debug, Clone)]
pub struct Config {
    /// The cell's name. It is written into log, snapshots and journal.
    pub cell: CellId,
    /// The policy a new cell is founded with. A cell that exists keeps its own.
    pub policy: Policy,
    /// This node's number within the cell. Default 1.
    pub node_id: u64,
    /// What an empty data folder means: a new cell of this one broker (the default), or that it waits
    /// until a cell takes it in.
    pub begin: Begin,
    /// How it talks to other brokers. None (the default) in a cell of one.
    pub peers: Option<Peers>,
    /// Where log and ledger lie. None (the default) is a temporary folder that is removed when
    /// the cell is shut down.
    pub data_dir: Option<PathBuf>,
    /// How often invariants are checked. Default: one command in 64.
    pub checks: Checks,
    /// Where ledger time comes from. Default: the machine's clocks.
    pub clock: ClockKind,
    /// A seal yields a snapshot once the journal has grown by this many records since the last
    /// one. Default 16,384: the log replayed at a start stays below about twice that.
    pub snapshot_records: u64,
    /// Size in bytes at which the raft log begins a new file; files that are purged go as a whole.
    /// Default 32 MiB.
    pub log_file_bytes: usize,
    /// The key that signs checkpoints at seals. Default: none.
    pub ledger_key: LedgerKey,
    /// When the disk has too little room, and what is kept back for ends. None (the default) does
    /// not look.
    pub space: Option<space::Settings>,
    /// What this broker can do; a cell that was raised above it is refused. Default:
    /// [`sublet_core::FEATURE_LEVEL`]. Lower, it stands for an older program in tests.
    pub feature_level: u16,
    /// What happens when storage fails or this replica diverges. Default: the process aborts.
    pub on_fatal: FatalHook,
}

impl Config {
    /// The defaults for a cell of this name.
    #[must_use]
    pub fn new(cell: CellId) -> Self {
        Self {
            cell,
            policy: Policy::default(),
            node_id: 1,
            begin: Begin::Found,
            peers: None,
            data_dir: None,
            checks: Checks::OneIn(64),
            clock: ClockKind::Real,
            snapshot_records: 16_384,
            log_file_bytes: 32 * 1024 * 1024,
            ledger_key: LedgerKey::None,
            space: None,
            feature_level: sublet_core::FEATURE_LEVEL,
            on_fatal: FatalHook::abort(),
        }
    }
}
