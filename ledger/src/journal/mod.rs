//! The journal: every record of what happened, in order, hashed from the first one on.
//!
//! Records are appended to the *tail*, pages in the store under `DIR/sled/`. A seal moves the tail
//! into an immutable segment under `DIR/archive/` and its postings into the store's index; the
//! pages are then removed, so that a record lies on the disk once. (sled 0.34.7 took 480 bytes for
//! each 156-byte record it kept, measured with pages of 10 KiB; a segment takes 160.)
//!
//! Nothing in the store is the only copy of anything: sealed records are in the archive, the tail
//! is in the raft log. So the store is never fsynced on the way of a commit, and one that is
//! missing, behind or damaged is filled from the archive; the caller appends the rest again from
//! its log and must end at the same root.
//!
//! The broker's state machine is the only writer. Reads take `&self` and may run beside each
//! other.

mod append;
mod meta;
mod open;
mod read;
mod sign;
mod tail;

#[cfg(test)]
mod tests;

use std::sync::Mutex;

use sublet_protocol::ids::CellId;
use sublet_protocol::units::Timestamp;

pub(crate) use self::meta::Meta;
pub use self::open::Opened;
use self::sign::Signer;
use self::tail::Tail;
pub(crate) use self::tail::visit_tail;
use crate::archive::Archive;
use crate::chains::Chains;
use crate::disk::Lock;
use crate::merkle::{Hash, TreeHead};
use crate::segment::Seal;
use crate::store::Store;
use crate::subtrees::Subtrees;

/// Place in the raft log of the entry that was applied last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Cursor {
    /// Its log index.
    pub log_index: u64,
    /// Its term.
    pub term: u64,
}

/// What an append did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Appended {
    /// Records that were new.
    pub added: usize,
    /// Records that were there already, with equal bytes.
    pub skipped: usize,
    /// The leaf hash of each record given, for receipts.
    pub leaves: Vec<Hash>,
    /// The journal afterwards.
    pub head: TreeHead,
}

/// The journal of one cell.
pub struct Journal {
    cell: CellId,
    archive: Archive,
    store: Box<dyn Store>,
    tail: Tail,
    /// Segments whose postings are in the store; all, unless a write failed.
    absorbed: u32,
    /// The chains of charges over the sealed records.
    charged: open::Charged,
    /// Behind the store's by at most what the log will replay.
    cursor: Option<Cursor>,
    /// Inner nodes of the tree over sealed records, as far as proofs were prepared.
    nodes: Mutex<Subtrees>,
    /// Signs the seals; `None` without a key.
    signer: Option<Signer>,
    /// Held while the journal is open; `None` in memory.
    #[expect(dead_code, reason = "it is dropped, not read")]
    lock: Option<Lock>,
}

impl Journal {
    /// The cell whose journal it is.
    pub const fn cell(&self) -> CellId {
        self.cell
    }

    /// Records in the journal, and the index of the next.
    pub const fn size(&self) -> u64 {
        self.tail.frontier.size()
    }

    /// The RFC 6962 root over all records.
    pub fn root(&self) -> Hash {
        self.tail.frontier.root()
    }

    /// Size and root.
    pub fn head(&self) -> TreeHead {
        self.tail.frontier.head()
    }

    /// The raft entry applied last, as far as the store remembers: a lower bound after a crash,
    /// `None` after a rebuild.
    pub const fn cursor(&self) -> Option<Cursor> {
        self.cursor
    }

    /// Ledger time of the last record.
    pub const fn last_time(&self) -> Option<Timestamp> {
        self.tail.last_time
    }

    /// Each tenant's chain of charges, over the sealed records.
    pub const fn chains(&self) -> &Chains {
        &self.charged.chains
    }

    /// The segments sealed so far, in order.
    pub fn seals(&self) -> &[Seal] {
        self.archive.seals()
    }

    /// The segment sealed last.
    pub fn last_seal(&self) -> Option<&Seal> {
        self.archive.seals().last()
    }

    /// Records that are not sealed yet.
    pub fn tail_records(&self) -> u64 {
        self.size() - self.archive.frontier().size()
    }

    pub(crate) const fn archive(&self) -> &Archive {
        &self.archive
    }

    pub(crate) fn store(&self) -> &dyn Store {
        &*self.store
    }
}
