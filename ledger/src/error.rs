//! What can go wrong in the ledger, sorted by what the caller would do about it.

use std::io;
use std::path::{Path, PathBuf};

use crate::merkle::Hash;

/// Why the ledger refused or failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store under `sled/` cannot be trusted. The caller may set it aside and rebuild it
    /// (`Journal::open_or_rebuild`): nothing that is sealed or in the raft log is lost.
    #[error("the ledger's store is damaged")]
    Damaged(#[source] Damage),

    /// A segment of the archive is missing or damaged. Nothing is rebuilt from a bad archive:
    /// an operator brings the file back from a peer or a backup.
    #[error("archive segment {} with record {first_index} cannot be used", file.display())]
    Segment {
        /// The segment's file.
        file: PathBuf,
        /// Index of the first record that the segment has to hold.
        first_index: u64,
        /// What is wrong with it.
        #[source]
        fault: SegmentFault,
    },

    /// This replica has another history than the log it is fed from. The process must stop.
    #[error("record {index} differs from the one journalled: ours {ours}, theirs {theirs}")]
    Diverged {
        /// Index of the record.
        index: u64,
        /// Leaf hash of the journalled record.
        ours: Hash,
        /// Leaf hash of the record offered now.
        theirs: Hash,
    },

    /// An earlier seal ended elsewhere or holds other bytes. The process must stop.
    #[error("the seal up to record {upto} contradicts archive segment {segment}")]
    SealDiverged {
        /// Last record of the seal asked for.
        upto: u64,
        /// Number of the segment that contradicts it.
        segment: u32,
    },

    /// The records offered cannot be journalled; nothing was written. A bug of the caller.
    #[error("record {index} is refused")]
    Refused {
        /// Index of the record.
        index: u64,
        /// Why.
        #[source]
        why: Refusal,
    },

    /// The directory holds the ledger of another cell.
    #[error("the ledger belongs to another cell")]
    OtherCell,

    /// A newer version of the program wrote this, and it is whole. Nothing is damaged: an operator
    /// starts that version again.
    #[error("{} was written by a newer version (format {found}, this one reads {known})", path.display())]
    Newer {
        /// The segment, or the store's folder.
        path: PathBuf,
        /// The format it names.
        found: u16,
        /// The newest format that can be read.
        known: u16,
    },

    /// Another process has the ledger open.
    #[error("the ledger in {} is open in another process", dir.display())]
    InUse {
        /// The ledger's directory.
        dir: PathBuf,
    },

    /// The operating system failed us. After a failed sync the process must stop.
    #[error("could not {action} {}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file or directory.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

impl Error {
    /// Wraps the failure of `action` on `path`.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, path: path.to_owned(), source }
    }
}

impl From<Damage> for Error {
    fn from(damage: Damage) -> Self {
        Self::Damaged(damage)
    }
}

/// What is wrong with the store.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// The store panicked while it was opened, read or written.
    #[error("the store panicked: {message}")]
    Panicked {
        /// What it said.
        message: String,
    },
    /// The store reported that its file is corrupt.
    #[error("the store reports corruption")]
    Corrupt,
    /// The description of the journal (tree `meta`) cannot be read.
    #[error("the journal's description cannot be read")]
    Meta,
    /// There are records but no description of the journal, or the other way round.
    #[error("the journal's records and its description do not belong together")]
    Torn,
    /// No page holds this record, though the journal is longer.
    #[error("record {index} is missing")]
    Missing {
        /// Index of the record.
        index: u64,
    },
    /// A page cannot be read at this record.
    #[error("record {index} does not have the bytes that were written")]
    Record {
        /// Index of the first record that is bad.
        index: u64,
    },
    /// A record has its check sum and cannot be decoded.
    #[error("record {index} cannot be decoded")]
    Undecodable {
        /// Index of the record.
        index: u64,
    },
    /// The unsealed records have another root than the one noted beside them.
    #[error("the records up to {size} have the root {found}, not {noted}")]
    Root {
        /// Records in the journal.
        size: u64,
        /// The root noted.
        noted: Hash,
        /// The root of the records found.
        found: Hash,
    },
    /// An index names a page or record that is not there.
    #[error("an index names record {index}, which is not there")]
    Index {
        /// Index of the record.
        index: u64,
    },
}

impl Damage {
    /// The record that is bad, where that is known.
    pub const fn index(&self) -> Option<u64> {
        match self {
            Self::Missing { index }
            | Self::Record { index }
            | Self::Undecodable { index }
            | Self::Index { index } => Some(*index),
            Self::Panicked { .. } | Self::Corrupt | Self::Meta | Self::Torn | Self::Root { .. } => {
                None
            }
        }
    }
}

/// What is wrong with an archive segment.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SegmentFault {
    /// The file is not there.
    #[error("the file is missing")]
    Missing,
    /// The file does not begin as a segment does.
    #[error("it is not a segment")]
    Magic,
    /// It is whole and of a format that there is not, or not yet ([`Error::Newer`]).
    #[error("its format {version} is unknown")]
    Version {
        /// The format it names.
        version: u16,
    },
    /// It belongs to another cell's ledger.
    #[error("it belongs to another cell")]
    OtherCell,
    /// Its number is not that of its name.
    #[error("it says that it is segment {number}")]
    Number {
        /// The number it names.
        number: u32,
    },
    /// It does not begin where the segment before it ended.
    #[error("it begins at record {first}")]
    First {
        /// The first index it names.
        first: u64,
    },
    /// The previous root it names is not that of the segment before it.
    #[error("it does not follow the segment before it")]
    PreviousRoot,
    /// It ends too early.
    #[error("it is cut short")]
    Short,
    /// A record's length is 0 or above the limit.
    #[error("a record of {length} bytes is impossible")]
    Length {
        /// The length found.
        length: u32,
    },
    /// It holds no records.
    #[error("it is empty")]
    Empty,
    /// There are bytes behind its end.
    #[error("there are bytes behind its end")]
    Trailing,
    /// The check sum is wrong.
    #[error("its check sum is wrong")]
    CheckSum,
    /// The records do not have the root that is noted.
    #[error("its records do not have its root")]
    Root,
    /// The cell's key has signed another root for the records up to its end.
    #[error("the cell's key has signed another root up to its end")]
    OtherRootSigned,
    /// It was there when the store was written and is not any more.
    #[error("the store knows {known} segments, the archive has {found}")]
    Fewer {
        /// Segments that the store knows.
        known: u32,
        /// Segments found.
        found: u32,
    },
    /// A record in it cannot be decoded.
    #[error("record {index} cannot be decoded")]
    Undecodable {
        /// Index of the record.
        index: u64,
    },
}

/// Why records cannot be journalled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// It does not follow the record before it.
    #[error("the next record is {expected}")]
    Gap {
        /// The index that would be accepted.
        expected: u64,
    },
    /// Its ledger time lies before that of the record before it.
    #[error("its time lies before that of the record before it")]
    TimeWentBack,
    /// Its debits and credits differ.
    #[error("its debits and credits differ")]
    Unbalanced,
    /// It cannot be encoded, or has more bytes than a page holds.
    #[error("it cannot be encoded in a page")]
    TooLarge,
    /// A seal up to a record that is not there.
    #[error("a seal cannot pass the last record")]
    SealPastEnd,
}
