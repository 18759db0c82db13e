//! What a crash leaves at the end of the log: find it, and cut it off if nothing can be lost by it.
//!
//! A crash may leave the last record half written, followed by zeros, or mixed with garbage. Such a
//! record was never fsynced, so it was never acknowledged, and the log is cut before it. raft-log
//! does this for half a record and for zeros only, and takes a wrong length in the *middle* of a
//! file for half a record. So this check comes first: it cuts only if no intact record follows the
//! damage. If one does, the damage is not a torn write and the log is left alone.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use raft_log::RaftLogRecord;
use raft_log::codeq::Decode;

use super::log_store::sync_directory;
use super::types::Error;
use super::wire::Wal;
use crate::folders;

/// What was cut off the end of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cut {
    /// The file that was shortened.
    pub(super) file: PathBuf,
    /// Its size in bytes now.
    pub(super) kept: u64,
    /// How many bytes went.
    pub(super) removed: u64,
}

/// Cuts torn bytes off the newest log file in `wal`. A copy of them is kept in `torn`.
///
/// # Errors
/// [`Error::DamagedLog`] if intact records follow the damage; [`Error::Storage`] if a file cannot
/// be read or written.
pub(super) fn repair(wal: &Path, torn: &Path) -> Result<Option<Cut>, Error> {
    let Some(file) = newest(wal)? else { return Ok(None) };
    let bytes = fs::read(&file).map_err(Error::storage("read", &file))?;
    let good = intact(&bytes);
    let (_, rest) = bytes.split_at(good);
    if rest.is_empty() {
        return Ok(None);
    }
    let kept = u64::try_from(good).unwrap_or(u64::MAX);
    if holds_a_record(rest) {
        return Err(Error::DamagedLog { file, offset: kept });
    }
    let removed = u64::try_from(rest.len()).unwrap_or(u64::MAX);
    keep_copy(torn, &file, kept, rest)?;
    let log = OpenOptions::new().write(true).open(&file).map_err(Error::storage("open", &file))?;
    log.set_len(kept).map_err(Error::storage("shorten", &file))?;
    log.sync_all().map_err(Error::storage("sync", &file))?;
    tracing::warn!(file = %file.display(), kept, removed, "cut a torn end off the raft log");
    Ok(Some(Cut { file, kept, removed }))
}

/// The newest log file. Names are zero-padded offsets, so the last name is the newest file.
fn newest(wal: &Path) -> Result<Option<PathBuf>, Error> {
    let mut newest: Option<PathBuf> = None;
    for entry in fs::read_dir(wal).map_err(Error::storage("list", wal))? {
        let path = entry.map_err(Error::storage("list", wal))?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.starts_with("r-") && name.ends_with(".wal") && newest.as_ref() < Some(&path) {
            newest = Some(path);
        }
    }
    Ok(newest)
}

/// How many bytes of whole, correct records `bytes` begins with.
fn intact(bytes: &[u8]) -> usize {
    let mut rest = bytes;
    let mut good = 0;
    while !rest.is_empty() && RaftLogRecord::<Wal>::decode(&mut rest).is_ok() {
        good = bytes.len() - rest.len();
    }
    good
}

/// Whether a whole, correct record stands anywhere in `bytes` after the first byte.
fn holds_a_record(bytes: &[u8]) -> bool {
    // Every record begins with its kind, a big-endian u32 of 0 to 5.
    (1..bytes.len()).any(|start| {
        let mut rest = bytes.get(start..).unwrap_or_default();
        matches!(rest, [0, 0, 0, 0..=5, ..]) && RaftLogRecord::<Wal>::decode(&mut rest).is_ok()
    })
}

fn keep_copy(torn: &Path, file: &Path, offset: u64, bytes: &[u8]) -> Result<(), Error> {
    folders::create(torn).map_err(Error::storage("create", torn))?;
    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or("log");
    let copy = torn.join(format!("{name}.{offset}"));
    let mut out = fs::File::create(&copy).map_err(Error::storage("create", &copy))?;
    out.write_all(bytes).map_err(Error::storage("write", &copy))?;
    out.sync_all().map_err(Error::storage("sync", &copy))?;
    // The log is cut next; the copy must not be lost by then.
    sync_directory(torn)
}
