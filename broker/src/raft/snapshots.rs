//! The snapshot files: the two newest, each whole or not there.
//!
//! A file is: magic (7 bytes), version (one digit), length of the header (u32, big-endian), header
//! (JSON: cell, position, membership), the machine's bytes, SHA-256 of all that precedes it. Every
//! version begins and ends so, which tells a newer one from a damaged one. It is written under
//! another name, fsynced, renamed, and the folder is fsynced.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use openraft::type_config::alias::SnapshotMetaOf;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::log_store::sync_directory;
use super::types::{Error, LogPosition};
use super::wire::{TypeConfig, position};
use crate::folders;

const MAGIC: &[u8; 7] = b"SBLSNAP";
/// The newest version of the file, and the only one so far.
const VERSION: u8 = b'1';
const DIGEST: usize = 32;
const KEPT: usize = 2;

/// What a snapshot file says about itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Header {
    cell: String,
    meta: SnapshotMetaOf<TypeConfig>,
}

/// A snapshot file, held open: it can be read even after it has been replaced.
#[derive(Debug, Clone)]
pub(super) struct StoredSnapshot {
    path: PathBuf,
    file: Arc<Mutex<File>>,
    cell: String,
    meta: SnapshotMetaOf<TypeConfig>,
}

impl StoredSnapshot {
    pub(super) fn meta(&self) -> &SnapshotMetaOf<TypeConfig> {
        &self.meta
    }

    /// Where in the log the snapshot stands; `None` is before its first entry.
    pub(super) fn position(&self) -> Option<LogPosition> {
        self.meta.last_log_id.as_ref().map(position)
    }

    /// The machine's bytes, after checking the digest over the whole file.
    ///
    /// # Errors
    /// `InvalidData` if the file is damaged, or what reading gave.
    pub(super) fn read(&self) -> io::Result<Vec<u8>> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, payload) = parse(read_all(&mut file)?)?;
        Ok(payload)
    }
}

fn read_all(file: &mut File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn damaged(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn parse(mut bytes: Vec<u8>) -> io::Result<(Header, Vec<u8>)> {
    let body = bytes.len().checked_sub(DIGEST).ok_or_else(|| damaged("snapshot too short"))?;
    let (content, digest) = bytes.split_at(body);
    if Sha256::digest(content).as_slice() != digest {
        return Err(damaged("snapshot digest differs"));
    }
    let rest = content.strip_prefix(MAGIC).ok_or_else(|| damaged("not a snapshot"))?;
    let (version, rest) = rest.split_first().ok_or_else(|| damaged("snapshot too short"))?;
    if *version > VERSION {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "written by a newer version"));
    }
    if *version != VERSION {
        return Err(damaged("not a snapshot"));
    }
    let (length, rest) =
        rest.split_first_chunk::<4>().ok_or_else(|| damaged("snapshot too short"))?;
    let length = usize::try_from(u32::from_be_bytes(*length)).map_err(io::Error::other)?;
    let (header, payload) =
        rest.split_at_checked(length).ok_or_else(|| damaged("snapshot too short"))?;
    let header = serde_json::from_slice(header)?;
    let start = body - payload.len();
    bytes.truncate(body);
    Ok((header, bytes.split_off(start)))
}

/// The folder of snapshots.
#[derive(Debug)]
pub(super) struct Snapshots {
    folder: PathBuf,
    cell: String,
    /// Newest first, at most [`KEPT`].
    kept: Mutex<Vec<StoredSnapshot>>,
}

impl Snapshots {
    /// Reads and checks every snapshot in `folder`. A damaged one is renamed `*.damaged` and does
    /// not count.
    ///
    /// # Errors
    /// [`Error::Foreign`] for another cell's snapshot, [`Error::Storage`] otherwise, also for a
    /// snapshot that a newer version wrote: it stays where it is.
    pub(super) fn open(folder: &Path, cell: &str) -> Result<Self, Error> {
        folders::create(folder).map_err(Error::storage("create", folder))?;
        let mut kept = Vec::new();
        for entry in fs::read_dir(folder).map_err(Error::storage("list", folder))? {
            let path = entry.map_err(Error::storage("list", folder))?.path();
            match path.extension().and_then(|extension| extension.to_str()) {
                Some("tmp") => fs::remove_file(&path).map_err(Error::storage("remove", &path))?,
                Some("snap") => kept.extend(load(&path)?),
                _ => {}
            }
        }
        for snapshot in &kept {
            if snapshot.cell != cell {
                let found = snapshot.cell.clone();
                return Err(Error::Foreign { found, expected: cell.to_owned() });
            }
        }
        kept.sort_by_key(|snapshot| std::cmp::Reverse(snapshot.position()));
        sync_directory(folder)?;
        let store =
            Self { folder: folder.to_owned(), cell: cell.to_owned(), kept: Mutex::new(kept) };
        store.prune()?;
        Ok(store)
    }

    /// Stores a snapshot and lets go of all but the two newest. Blocks.
    ///
    /// # Errors
    /// [`Error::Storage`]; nothing has changed then but perhaps a `.tmp` file.
    pub(super) fn write(
        &self,
        meta: &SnapshotMetaOf<TypeConfig>,
        payload: &[u8],
    ) -> Result<StoredSnapshot, Error> {
        let name = match meta.last_log_id.as_ref().map(position) {
            Some(at) => format!("{:020}-{:020}.snap", at.index, at.term),
            None => "empty.snap".to_owned(),
        };
        let path = self.folder.join(name);
        let temporary = path.with_extension("tmp");
        let file = self
            .write_file(&temporary, meta, payload)
            .and_then(|()| fs::rename(&temporary, &path))
            .and_then(|()| File::open(&path))
            .map_err(Error::storage("write", &path))?;
        sync_directory(&self.folder)?;
        let stored = StoredSnapshot {
            path,
            file: Arc::new(Mutex::new(file)),
            cell: self.cell.clone(),
            meta: meta.clone(),
        };
        {
            let mut kept = self.kept();
            kept.retain(|other| other.path != stored.path);
            kept.push(stored.clone());
            kept.sort_by_key(|snapshot| std::cmp::Reverse(snapshot.position()));
        }
        self.prune()?;
        Ok(stored)
    }

    fn write_file(
        &self,
        path: &Path,
        meta: &SnapshotMetaOf<TypeConfig>,
        payload: &[u8],
    ) -> io::Result<()> {
        let header = serde_json::to_vec(&Header { cell: self.cell.clone(), meta: meta.clone() })?;
        let length = u32::try_from(header.len()).map_err(io::Error::other)?;
        let length = length.to_be_bytes();
        let mut file = File::create(path)?;
        let mut digest = Sha256::new();
        let parts: [&[u8]; 5] = [MAGIC, &[VERSION], &length, &header, payload];
        for part in parts {
            digest.update(part);
            file.write_all(part)?;
        }
        file.write_all(&digest.finalize())?;
        file.sync_all()
    }

    /// Deletes all but the newest two.
    fn prune(&self) -> Result<(), Error> {
        let mut kept = self.kept();
        while kept.len() > KEPT {
            if let Some(old) = kept.pop() {
                fs::remove_file(&old.path).map_err(Error::storage("remove", &old.path))?;
            }
        }
        Ok(())
    }

    /// The newest snapshot.
    pub(super) fn newest(&self) -> Option<StoredSnapshot> {
        self.kept().first().cloned()
    }

    /// Up to which entry the log may be purged: the older of the two newest snapshots.
    pub(super) fn purge_bound(&self) -> Option<u64> {
        let kept = self.kept();
        (kept.len() >= KEPT).then(|| kept.last()?.position()).flatten().map(|at| at.index)
    }

    fn kept(&self) -> MutexGuard<'_, Vec<StoredSnapshot>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens and checks a snapshot file, or sets a damaged one aside.
fn load(path: &Path) -> Result<Option<StoredSnapshot>, Error> {
    let mut file = File::open(path).map_err(Error::storage("open", path))?;
    let bytes = read_all(&mut file).map_err(Error::storage("read", path))?;
    match parse(bytes) {
        Ok((header, _)) => Ok(Some(StoredSnapshot {
            path: path.to_owned(),
            file: Arc::new(Mutex::new(file)),
            cell: header.cell,
            meta: header.meta,
        })),
        Err(error) if error.kind() == io::ErrorKind::Unsupported => {
            Err(Error::storage("use", path)(error))
        }
        Err(error) => {
            tracing::error!(file = %path.display(), %error, "a snapshot is damaged; set aside");
            let aside = path.with_extension("damaged");
            fs::rename(path, &aside).map_err(Error::storage("rename", path))?;
            Ok(None)
        }
    }
}
