//! The records that are not sealed yet, and the index: read from a copy of the store.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use super::folder::{Folder, FolderError};
use crate::Error;
use crate::error::Damage;
use crate::index::Postings;
use crate::journal::{Meta, visit_tail};
use crate::merkle::TreeHead;
use crate::store::SledStore;

/// Why the unsealed records were or were not part of what was checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tail {
    /// They were read, and the index was checked.
    Checked {
        /// How many there are.
        records: u64,
    },
    /// A broker has the ledger open: what it has not sealed changes while one looks.
    InUse,
    /// There is no store: a copy of the archive, or a store that was deleted. A broker makes it
    /// anew.
    NoStore,
    /// Something before them is wrong already.
    NotReached,
}

/// A copy of the store, removed when it is dropped.
pub(super) struct StoreCopy {
    store: SledStore,
    meta: Option<Meta>,
    _dir: TempDir,
}

/// What became of the store.
pub(super) enum Opened {
    /// Here it is.
    Copy(StoreCopy),
    /// It is left out for this reason.
    LeftOut(Tail),
    /// It is there and cannot be used.
    Damaged(Damage),
    /// A newer version wrote it.
    Newer {
        /// The format it names.
        found: u16,
    },
}

impl StoreCopy {
    /// Copies the store of `folder` aside and opens the copy, since opening it changes it.
    pub(super) fn open(folder: &Folder) -> Result<Opened, FolderError> {
        let from = folder.store();
        if !from.is_dir() {
            return Ok(Opened::LeftOut(Tail::NoStore));
        }
        let Some(guard) = folder.lock()? else { return Ok(Opened::LeftOut(Tail::InUse)) };
        let made = tempfile::Builder::new().prefix("sublet-audit-").tempdir();
        let aside = made.map_err(FolderError::io("create a folder in", &std::env::temp_dir()))?;
        copy(&from, aside.path())?;
        drop(guard);
        let opened = SledStore::open(aside.path()).and_then(|store| {
            let meta = Meta::read(&store, &from)?;
            Ok(StoreCopy { store, meta, _dir: aside })
        });
        match opened {
            Ok(copy) => Ok(Opened::Copy(copy)),
            Err(Error::Damaged(damage)) => Ok(Opened::Damaged(damage)),
            Err(Error::Newer { found, .. }) => Ok(Opened::Newer { found }),
            Err(Error::Io { action, path, source }) => {
                Err(FolderError::Io { action, path, source })
            }
            Err(_) => Ok(Opened::Damaged(Damage::Corrupt)),
        }
    }

    /// Segments that the store knows.
    pub(super) fn segments(&self) -> u32 {
        self.meta.as_ref().map_or(0, |meta| meta.segments)
    }

    /// Size and root of the journal as the store notes them, if it was ever written.
    pub(super) fn head(&self) -> Option<TreeHead> {
        self.meta.as_ref().map(|meta| meta.head)
    }

    /// The cell that it belongs to, as a segment names it.
    pub(super) fn cell(&self) -> Option<[u8; 32]> {
        self.meta.as_ref().map(|meta| meta.cell)
    }

    /// The first record of the segment beginning at `first` to which the index does not lead.
    pub(super) fn not_indexed(
        &self,
        first: u64,
        postings: &Postings,
    ) -> Result<Option<u64>, Damage> {
        postings.missing_from(first, &self.store).map_err(damage)
    }

    /// Calls `visit` with each unsealed record from index `from` on.
    pub(super) fn visit(&self, from: u64, visit: impl FnMut(u64, &[u8])) -> Result<(), Damage> {
        visit_tail(&self.store, from, visit).map(drop).map_err(damage)
    }
}

/// A failure of the copy is that of what was copied: the copy itself was written a moment ago.
fn damage(error: Error) -> Damage {
    match error {
        Error::Damaged(damage) => damage,
        _ => Damage::Corrupt,
    }
}

/// Copies the files of a folder and those below it; what is neither file nor folder is left out.
fn copy(from: &Path, to: &Path) -> Result<(), FolderError> {
    for entry in fs::read_dir(from).map_err(FolderError::io("list", from))? {
        let entry = entry.map_err(FolderError::io("list", from))?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type().map_err(FolderError::io("look at", &source))?;
        if kind.is_dir() {
            fs::create_dir(&target).map_err(FolderError::io("create", &target))?;
            copy(&source, &target)?;
        } else if kind.is_file() {
            fs::copy(&source, &target).map_err(FolderError::io("copy", &source))?;
        }
    }
    Ok(())
}
