//! Why the cell did not do or answer something.

use std::io;
use std::path::PathBuf;

use sublet_protocol::codec;
use sublet_protocol::ids::CellId;
use sublet_protocol::refusals::Rejection;

use crate::raft;

/// Why a call of the [`Cell`](crate::cell::Cell) failed. A refusal by the rules is not one: it is
/// an [`Outcome`](sublet_protocol::commands::Outcome).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It may or may not have happened. Ask again with the same idempotency key.
    #[error("the outcome is unknown: ask again with the same idempotency key")]
    Unknown,
    /// Too much waits. Nothing happened; try again later.
    #[error("too much is waiting")]
    Busy,
    /// The disk of the leader has no room for it. Nothing happened; what ends something is still
    /// taken.
    #[error("the disk is full: only what ends something is taken")]
    NoSpace,
    /// A broker cannot do the feature level that the cell is to be raised to, or does not say.
    #[error("broker {broker} cannot do feature level {level} (it can do: {can:?})")]
    Level {
        /// The broker.
        broker: u64,
        /// What it can do; nothing if it does not answer.
        can: Option<u16>,
        /// What was asked for.
        level: u16,
    },
    /// This node does not lead its cell. Nothing happened.
    #[error("this node does not lead (leader: {leader:?})")]
    NotLeader {
        /// Which node leads, if known.
        leader: Option<u64>,
    },
    /// The members of the cell cannot be changed so, or not now.
    #[error(transparent)]
    Members(raft::MembersError),
    /// A broker that is to be taken in is not reached, or one side does not want the other.
    #[error("broker {broker} {}: {reason}", if *is_refusal { "is not taken in" } else { "is not reached" })]
    Unmet {
        /// Its number.
        broker: u64,
        /// Whether waiting alone does not help.
        is_refusal: bool,
        /// What was said.
        reason: String,
    },
    /// This broker was taken out of the cell: another one says so.
    #[error("this broker was taken out of the cell: ask another one")]
    Removed,
    /// The certificates of this broker cannot be used.
    #[error("this broker cannot show who it is")]
    Identity(#[source] raft::IdentityError),
    /// The command is larger than any may be. Nothing happened.
    #[error("the command is too large")]
    TooLarge,
    /// The cell has been shut down.
    #[error("the cell has been shut down")]
    Stopped,
    /// The data belongs to another cell.
    #[error("the data belongs to cell {found}, this is {expected}")]
    OtherCell {
        /// Whose it is.
        found: CellId,
        /// Whose it should be.
        expected: CellId,
    },
    /// The ledger has records that the raft log does not know of.
    #[error(
        "the ledger in {} has {journal} records, but the raft log and snapshots beside it lead to \
         {log} only: a part of them is missing; restore them from a backup or a peer",
        ledger.display()
    )]
    LogBehind {
        /// The ledger's folder.
        ledger: PathBuf,
        /// Records in the journal.
        journal: u64,
        /// Records after the log was replayed.
        log: u64,
    },
    /// A new cell could not be founded.
    #[error("the cell could not be founded")]
    Founding(#[source] Rejection),
    /// The data folder could not be made.
    #[error("cannot create {}", path.display())]
    Folder {
        /// Which folder.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The key that signs checkpoints cannot be read or made.
    #[error("the ledger's key {} cannot be used", path.display())]
    LedgerKey {
        /// Its file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: io::Error,
    },
    /// The replicated log failed or refused.
    #[error("the replicated log failed")]
    Raft(#[source] raft::Error),
    /// The ledger failed.
    #[error("the ledger failed")]
    Ledger(#[source] sublet_ledger::Error),
    /// Bytes are not what they should be.
    #[error("the log's answer cannot be read")]
    Codec(#[source] codec::Error),
    /// The system has no randomness.
    #[error("no randomness for a command's id")]
    Randomness(#[source] getrandom::Error),
}

impl From<raft::Error> for Error {
    fn from(error: raft::Error) -> Self {
        match error {
            raft::Error::NotLeader { leader } => Error::NotLeader { leader },
            raft::Error::NoQuorum => Error::NotLeader { leader: None },
            raft::Error::Busy => Error::Busy,
            raft::Error::TooLarge { .. } => Error::TooLarge,
            raft::Error::Unknown => Error::Unknown,
            raft::Error::Stopped => Error::Stopped,
            raft::Error::Members(why) => Error::Members(why),
            raft::Error::Unmet { node, is_refusal, reason } => {
                Error::Unmet { broker: node, is_refusal, reason }
            }
            other => Error::Raft(other),
        }
    }
}

/// Shows an error with all its causes, for log lines.
pub(crate) struct Chain<'a>(pub(crate) &'a dyn std::error::Error);

impl std::fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_shows_every_cause_once() {
        let source = io::Error::other("disk full");
        let error = Error::Folder { path: "/data".into(), source };
        assert_eq!(Chain(&error).to_string(), "cannot create /data: disk full");
    }
}
