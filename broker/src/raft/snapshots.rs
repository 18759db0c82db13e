//! The snapshot files: the two newest, each whole or not there.
//!
//! A file is: magic (7 bytes), version (one digit), length of the header (u32, big-endian), header
//! (JSON: cell, position, membership), the machine's bytes, SHA-256 of all that precedes it. Every
//! version begins and ends so, which tells a newer one from a damaged one. It is written under
//! another name, fsynced, renamed, and the folder is fsynced.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
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

    /// The machine's bytes, after checking the digest over the whole file. They are in memory once.
    ///
    /// # Errors
    /// `InvalidData` if the file is damaged, or what reading gave.
    pub(super) fn read(&self) -> io::Result<Vec<u8>> {
        let file = self.file();
        let mut payload = Vec::new();
        check(&file, |chunk| payload.extend_from_slice(chunk))?;
        Ok(payload)
    }

    /// How large the file is, in bytes.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn bytes(&self) -> io::Result<u64> {
        Ok(self.file().metadata()?.len())
    }

    /// At most `limit` bytes of the file from `offset` on; none at its end. Does not block.
    ///
    /// # Errors
    /// What reading gave.
    pub(super) async fn chunk(&self, offset: u64, limit: usize) -> io::Result<Vec<u8>> {
        let file = Arc::clone(&self.file);
        let read = tokio::task::spawn_blocking(move || {
            let file = file.lock().unwrap_or_else(PoisonError::into_inner);
            let mut chunk = vec![0; limit];
            let count = file.read_at(&mut chunk, offset)?;
            chunk.truncate(count);
            Ok(chunk)
        });
        read.await.map_err(io::Error::other)?
    }

    fn file(&self) -> MutexGuard<'_, File> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes that are read at once.
const READ: usize = 1024 * 1024;
/// Largest header in bytes: a cell has few members.
const HEADER_MAX: usize = 1024 * 1024;

fn damaged(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Reads and checks a whole file, its digest last, and hands on the machine's bytes piece by piece.
/// They are good only if this returns the header.
fn check(file: &File, mut payload: impl FnMut(&[u8])) -> io::Result<Header> {
    let length = file.metadata()?.len();
    let digest_bytes = u64::try_from(DIGEST).map_err(io::Error::other)?;
    let body = length.checked_sub(digest_bytes).ok_or_else(|| damaged("snapshot too short"))?;
    let mut reader = Reader { file, offset: 0, body, digest: Sha256::new() };
    let start: [u8; 12] = reader.exact(12)?.try_into().map_err(|_| damaged("too short"))?;
    let [magic @ .., version, l0, l1, l2, l3] = start;
    // What it is comes out only after the digest was checked; a wrong length only ends the reading.
    let size = usize::try_from(u32::from_be_bytes([l0, l1, l2, l3])).map_err(io::Error::other)?;
    let header = match size <= HEADER_MAX {
        true => reader.exact(size),
        false => Err(damaged("snapshot too short")),
    };
    if header.is_ok() {
        while let Some(chunk) = reader.some()? {
            payload(&chunk);
        }
    } else {
        while reader.some()?.is_some() {}
    }
    let digest = reader.digest.finalize();
    let mut noted = [0; DIGEST];
    file.read_exact_at(&mut noted, body)?;
    if digest.as_slice() != noted {
        return Err(damaged("snapshot digest differs"));
    }
    if magic != *MAGIC {
        return Err(damaged("not a snapshot"));
    }
    if version > VERSION {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "written by a newer version"));
    }
    if version != VERSION {
        return Err(damaged("not a snapshot"));
    }
    Ok(serde_json::from_slice(&header?)?)
}

/// Reads what the digest covers.
struct Reader<'a> {
    file: &'a File,
    offset: u64,
    body: u64,
    digest: Sha256,
}

impl Reader<'_> {
    /// So many bytes.
    fn exact(&mut self, count: usize) -> io::Result<Vec<u8>> {
        let end = self.offset.saturating_add(u64::try_from(count).map_err(io::Error::other)?);
        if end > self.body {
            return Err(damaged("snapshot too short"));
        }
        let mut bytes = vec![0; count];
        self.file.read_exact_at(&mut bytes, self.offset)?;
        self.digest.update(&bytes);
        self.offset = end;
        Ok(bytes)
    }

    /// Some bytes; nothing at the end.
    fn some(&mut self) -> io::Result<Option<Vec<u8>>> {
        let left = self.body.saturating_sub(self.offset);
        if left == 0 {
            return Ok(None);
        }
        self.exact(usize::try_from(left).unwrap_or(READ).min(READ)).map(Some)
    }
}

/// A snapshot that is being received: bytes of another node's file, in order. What has arrived stays
/// when the transfer breaks off, and is gone on with.
#[derive(Debug)]
pub(super) struct Incoming {
    path: PathBuf,
    file: File,
    written: u64,
    bytes: u64,
    cell: String,
}

impl Incoming {
    /// How many bytes are there.
    pub(super) const fn written(&self) -> u64 {
        self.written
    }

    /// Adds bytes. Blocks.
    ///
    /// # Errors
    /// `InvalidData` for more than the file has, or what the system says.
    pub(super) fn write(&mut self, chunk: &[u8]) -> io::Result<()> {
        let count = u64::try_from(chunk.len()).map_err(io::Error::other)?;
        let after = self.written.saturating_add(count);
        if after > self.bytes || count == 0 {
            return Err(damaged("more or fewer bytes than were offered"));
        }
        self.file.write_all_at(chunk, self.written)?;
        self.written = after;
        Ok(())
    }

    /// Checks the whole file. Blocks. It is on the disk when this returns, under a name that counts
    /// for nothing until [`Snapshots::adopt`].
    ///
    /// # Errors
    /// `InvalidData` if it is damaged or another cell's, and then it is gone; or what the system says.
    pub(super) fn finish(self) -> io::Result<StoredSnapshot> {
        let checked = check(&self.file, |_| {});
        let header = match checked {
            Ok(header) if header.cell == self.cell => header,
            Ok(_) => return self.discard(damaged("the snapshot of another cell")),
            Err(error) => return self.discard(error),
        };
        self.file.sync_all()?;
        Ok(StoredSnapshot {
            path: self.path,
            file: Arc::new(Mutex::new(self.file)),
            cell: header.cell,
            meta: header.meta,
        })
    }

    fn discard<T>(self, error: io::Error) -> io::Result<T> {
        fs::remove_file(&self.path)?;
        match error.kind() {
            // Whoever sent it is newer; here it is of no use.
            io::ErrorKind::Unsupported => Err(damaged("a snapshot of a newer version")),
            _ => Err(error),
        }
    }
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
        let path = self.path_of(meta);
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
        self.count(&stored)?;
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

    /// A place for another node's snapshot at `at` of `bytes` bytes; with what has arrived of it
    /// before, if anything. What arrived of others is gone. Blocks.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn incoming(&self, at: (u64, u64), bytes: u64) -> io::Result<Incoming> {
        let (term, index) = at;
        let path = self.folder.join(format!("{index:020}-{term:020}-{bytes}.part"));
        for entry in fs::read_dir(&self.folder)? {
            let other = entry?.path();
            let is_part = other.extension().is_some_and(|extension| extension == "part");
            if is_part && other != path {
                fs::remove_file(&other)?;
            }
        }
        let file =
            File::options().create(true).truncate(false).read(true).write(true).open(&path)?;
        let mut written = file.metadata()?.len();
        if written >= bytes {
            // Whole and yet not taken in: it was damaged, or nobody waited for it.
            file.set_len(0)?;
            written = 0;
        }
        Ok(Incoming { path, file, written, bytes, cell: self.cell.clone() })
    }

    /// Takes a snapshot in: one that was received is renamed, another store's is copied. Blocks.
    ///
    /// # Errors
    /// [`Error::Storage`]; nothing has changed then.
    pub(super) fn adopt(
        &self,
        meta: &SnapshotMetaOf<TypeConfig>,
        snapshot: &StoredSnapshot,
    ) -> Result<StoredSnapshot, Error> {
        let is_received = snapshot.path.parent() == Some(&*self.folder)
            && snapshot.path.extension().is_some_and(|extension| extension == "part");
        if !is_received {
            let bytes = snapshot.read().map_err(Error::storage("read", &snapshot.path))?;
            return self.write(meta, &bytes);
        }
        let path = self.path_of(meta);
        fs::rename(&snapshot.path, &path).map_err(Error::storage("rename", &snapshot.path))?;
        sync_directory(&self.folder)?;
        let stored = StoredSnapshot { path, ..snapshot.clone() };
        self.count(&stored)?;
        Ok(stored)
    }

    fn path_of(&self, meta: &SnapshotMetaOf<TypeConfig>) -> PathBuf {
        self.folder.join(match meta.last_log_id.as_ref().map(position) {
            Some(at) => format!("{:020}-{:020}.snap", at.index, at.term),
            None => "empty.snap".to_owned(),
        })
    }

    /// Lets a file that is in place count, and older ones no longer.
    fn count(&self, stored: &StoredSnapshot) -> Result<(), Error> {
        {
            let mut kept = self.kept();
            kept.retain(|other| other.path != stored.path);
            kept.push(stored.clone());
            kept.sort_by_key(|snapshot| std::cmp::Reverse(snapshot.position()));
        }
        self.prune()
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
    let file = File::open(path).map_err(Error::storage("open", path))?;
    match check(&file, |_| {}) {
        Ok(header) => Ok(Some(StoredSnapshot {
            path: path.to_owned(),
            file: Arc::new(Mutex::new(file)),
            cell: header.cell,
            meta: header.meta,
        })),
        Err(error) if error.kind() == io::ErrorKind::Unsupported => {
            Err(Error::storage("use", path)(error))
        }
        // What cannot be read now is not damaged for ever.
        Err(error) if !is_damage(&error) => Err(Error::storage("read", path)(error)),
        Err(error) => {
            tracing::error!(file = %path.display(), %error, "a snapshot is damaged; set aside");
            let aside = path.with_extension("damaged");
            fs::rename(path, &aside).map_err(Error::storage("rename", path))?;
            Ok(None)
        }
    }
}

/// Whether it was the bytes that were wrong. The reader of the header says so in words of its own.
fn is_damage(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof)
}
