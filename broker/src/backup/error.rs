//! Why a backup is not taken for one, and where it is wrong.

use std::io;
use std::path::PathBuf;

use sublet_protocol::codec;
use sublet_protocol::ids::CellId;

use crate::raft;

/// Why a backup cannot be written, or nothing can be made of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file is no backup, or was changed.
    #[error("{} is damaged at {place}", file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// Where.
        place: Place,
        /// What is wrong there.
        #[source]
        fault: Fault,
    },
    /// A newer version of the program wrote it.
    #[error("{} was written by a newer version", file.display())]
    Newer {
        /// The file.
        file: PathBuf,
    },
    /// There is a file where the backup is to be.
    #[error("{} exists already", file.display())]
    Exists {
        /// The file.
        file: PathBuf,
    },
    /// There is data where the cell is to be.
    #[error("{} is not empty: a cell is restored into a new folder", folder.display())]
    Occupied {
        /// The folder.
        folder: PathBuf,
    },
    /// The number belonged to a broker of the old cell.
    #[error("broker {broker} was one of the old cell: give the restored one another number")]
    OldBroker {
        /// The number.
        broker: u64,
    },
    /// The backup is another cell's.
    #[error("it is a backup of cell {found}, not of {expected}")]
    OtherCell {
        /// Whose it is.
        found: CellId,
        /// Whose it should be.
        expected: CellId,
    },
    /// A file could not be read or written.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The ledger of the restored cell could not be written.
    #[error("the ledger could not be written")]
    Ledger(#[source] sublet_ledger::Error),
    /// The log of the restored cell could not be begun.
    #[error("the log could not be begun")]
    Raft(#[source] raft::Error),
    /// What is to be written has no bytes.
    #[error("it cannot be encoded")]
    Codec(#[source] codec::Error),
}

/// A place in a backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Its first bytes.
    Header,
    /// The record of this index.
    Record(u64),
    /// Its end, or all of it.
    End,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Header => f.write_str("its header"),
            Self::Record(index) => write!(f, "record {index}"),
            Self::End => f.write_str("its end"),
        }
    }
}

/// What is wrong with a backup.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// It does not begin as a backup does.
    #[error("it is not a backup")]
    Magic,
    /// The file ends too early.
    #[error("it is cut short")]
    Short,
    /// The header cannot be read.
    #[error("the header cannot be read")]
    Header,
    /// A record cannot be read, or not as it was written.
    #[error("the record cannot be read")]
    Undecodable,
    /// A record stands where another should.
    #[error("record {found} stands there")]
    Misplaced {
        /// The index that it names.
        found: u64,
    },
    /// Its debits and credits do not fit the books.
    #[error("its lines do not fit the books")]
    Books,
    /// The rules could not have made it here.
    #[error("it does not follow from what precedes it")]
    Impossible,
    /// The records have another root.
    #[error("the records have the root {found}, not {noted}")]
    Root {
        /// The root that the header names.
        noted: String,
        /// The root of the records.
        found: String,
    },
    /// The digest differs: some byte was changed.
    #[error("the digest differs: bytes were changed")]
    Digest,
    /// There are bytes behind the end.
    #[error("there are bytes behind its end")]
    Trailing,
    /// The state that comes of it breaks an invariant.
    #[error("the state breaks INV-{invariant}: {what}")]
    Invariant {
        /// Its number.
        invariant: u8,
        /// What is broken.
        what: String,
    },
    /// The records do not found the cell that the header names.
    #[error("the records are not those of the cell that the header names")]
    Cell,
}
