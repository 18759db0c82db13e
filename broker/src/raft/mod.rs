//! The replication layer: one non-generic facade over openraft and the write-ahead log of `raft-log`.
//!
//! Commands are opaque bytes here. [`Raft::propose`] packs all waiting commands into one log entry,
//! the entry is fsynced (and, with more nodes, acknowledged by a quorum), and then every replica
//! hands it to its [`Machine`] in log order.
//!
//! What holds
//! - A vote or an entry is fsynced before anyone hears of it. Appends do not wait for one another:
//!   whatever gathers during one fsync shares the next.
//! - The first storage error, and the first error of the machine, stops the process
//!   ([`Options::on_fatal`]): after a failed fsync nobody knows what the disk holds.
//! - Snapshots are taken only where the machine says that it just sealed ([`Applied::sealed`]). The
//!   two newest are kept, and the log is purged only up to the older of the two.
//! - A timeout means *unknown*, never *failed*.
//!
//! On disk, below [`Options::directory`]: `LOCK` (flock), `wal/` (the log), `snapshots/`, and
//! `torn/` (what a repair cut off the end of the log).
//!
//! Only this folder names openraft and raft-log. The code is in files by duty: `types` and `options`
//! are the words of the facade, `facade` the calls, `proposer` the group commit, `machine` the
//! adapter that applies, `keeper` the background duties, `log_store`, `tail` and `snapshots` the
//! disk, `wire` the stored encoding, `network` the way to other nodes, `reads` what a read has to wait
//! for, `members` who belongs to the cell.

mod begin;
mod facade;
mod fatal;
mod keeper;
mod log_store;
mod machine;
mod members;
mod network;
mod options;
mod proposer;
mod reads;
mod snapshots;
mod tail;
mod types;
mod wire;

#[cfg(test)]
mod tests;

pub use begin::begin_with;
pub use facade::Raft;
pub use fatal::FatalHook;
pub use network::{AskHandler, Asked, Identity, IdentityError, Security, TlsFiles, broker_name};
pub use options::{Chance, Options, Peers};
pub use types::{
    Applied, Begin, Endpoint, Error, Leadership, LogPosition, Machine, MachineError, Member,
    MembersError, Piece, Role, Status,
};
