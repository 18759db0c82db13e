//! What a crash leaves at the end of the log: find it, and cut it off if nothing can be lost by it.
//!
//! A crash may leave the last records half written, followed by zeros, or mixed with garbage. Such
//! records were never fsynced, so they were never acknowledged, and the log is cut before them.
//! raft-log does this for half a record and for zeros only, and takes a wrong length in the *middle*
//! of a file for half a record. So this check comes first.
//!
//! A disk that loses power may keep a later sector of what was not fsynced and lose an earlier one, so
//! intact records may follow a torn one. But an entry that was acknowledged is soon followed by the
//! record that it is committed, which is not written before it is on the disk. So the log is cut if
//! nothing follows the damage but entries of terms that were known before it: no commit, no vote,
//! nothing purged or taken back. If anything else follows, the damage may be in what was acknowledged,
//! and the log is left alone.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use raft_log::codeq::Decode;
use raft_log::{RaftLogAction, RaftLogRecord};

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
/// [`Error::DamagedLog`] if what follows the damage shows that it was on the disk; [`Error::Storage`] if a file cannot
/// be read or written.
pub(super) fn repair(wal: &Path, torn: &Path) -> Result<Option<Cut>, Error> {
    let Some(file) = newest(wal)? else { return Ok(None) };
    let bytes = fs::read(&file).map_err(Error::storage("read", &file))?;
    let (good, term) = intact(&bytes);
    let (_, rest) = bytes.split_at(good);
    if rest.is_empty() {
        return Ok(None);
    }
    let kept = u64::try_from(good).unwrap_or(u64::MAX);
    if was_settled(rest, term) {
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

/// How many bytes of whole, correct records `bytes` begins with, and the newest term that they know.
fn intact(bytes: &[u8]) -> (usize, u64) {
    let (mut rest, mut good, mut newest) = (bytes, 0, 0);
    while !rest.is_empty()
        && let Ok(record) = RaftLogRecord::<Wal>::decode(&mut rest)
    {
        good = bytes.len() - rest.len();
        newest = newest.max(term(&record));
    }
    (good, newest)
}

/// The newest term that a record knows.
fn term(record: &RaftLogRecord<Wal>) -> u64 {
    match record {
        RaftLogRecord::Action(RaftLogAction::SaveVote(vote)) => vote.term(),
        RaftLogRecord::Action(
            RaftLogAction::Append((term, _), _)
            | RaftLogAction::Commit((term, _))
            | RaftLogAction::PurgeUpto((term, _))
            | RaftLogAction::TruncateAfter(Some((term, _))),
        ) => *term,
        RaftLogRecord::Action(RaftLogAction::TruncateAfter(None)) => 0,
        RaftLogRecord::Checkpoint(state) => state.vote().map_or(0, |vote| vote.term()),
    }
}

/// Whether a whole, correct record in `bytes`, after the first byte, shows that what stands before it
/// was on the disk: any but an entry of a term up to `known`. A vote may be missing before an entry of
/// a later one.
fn was_settled(bytes: &[u8], known: u64) -> bool {
    let mut rest = bytes.get(1..).unwrap_or_default();
    while !rest.is_empty() {
        let mut next = rest;
        // Every record begins with its kind, a big-endian u32 of 0 to 5.
        let begins = matches!(rest, [0, 0, 0, 0..=5, ..]);
        match RaftLogRecord::<Wal>::decode(&mut next) {
            Ok(RaftLogRecord::Action(RaftLogAction::Append((term, _), _)))
                if begins && term <= known =>
            {
                rest = next;
            }
            Ok(_) if begins => return true,
            Ok(_) | Err(_) => rest = rest.get(1..).unwrap_or_default(),
        }
    }
    false
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

#[cfg(test)]
mod tests {
    use openraft::EntryPayload;
    use raft_log::codeq::Encode;

    use super::*;
    use crate::raft::wire::{Commands, WalPayload, WalVote, from_wal};

    fn bytes(record: RaftLogAction<Wal>) -> Vec<u8> {
        let mut bytes = Vec::new();
        RaftLogRecord::<Wal>::Action(record).encode(&mut bytes).unwrap();
        bytes
    }

    fn entry(term: u64, index: u64) -> Vec<u8> {
        let commands = Commands::from(vec![format!("command {index}").into_bytes()]);
        let payload = EntryPayload::Normal(commands);
        let entry = openraft::Entry { log_id: from_wal(&(term, index)), payload };
        let (at, payload) = WalPayload::of(entry);
        bytes(RaftLogAction::Append(at, payload))
    }

    /// One vote of term 3 and entry 1, committed; then these.
    fn repaired(rest: &[Vec<u8>]) -> Result<(u64, u64), Error> {
        let folder = tempfile::tempdir().unwrap();
        let good = [
            bytes(RaftLogAction::SaveVote(WalVote::new(3, true, 1))),
            entry(3, 1),
            bytes(RaftLogAction::Commit((3, 1))),
        ]
        .concat();
        let wal = folder.path().join("wal");
        fs::create_dir(&wal).unwrap();
        let file = wal.join("r-00_000_000_000_000_000_000.wal");
        fs::write(&file, [good.clone(), rest.concat()].concat()).unwrap();
        let cut = repair(&wal, &folder.path().join("torn"))?;
        let kept = fs::metadata(&file).unwrap().len();
        assert_eq!(cut.is_some(), !rest.is_empty());
        Ok((kept, u64::try_from(good.len()).unwrap()))
    }

    fn torn(mut record: Vec<u8>) -> Vec<u8> {
        let middle = record.len() / 2;
        record[middle] ^= 0x55;
        record
    }

    #[test]
    fn what_was_never_settled_is_cut_whichever_sector_of_it_the_disk_kept() {
        let lost = torn(bytes(RaftLogAction::Commit((3, 1))));
        for rest in [
            vec![],
            vec![torn(entry(3, 2))],
            vec![torn(entry(3, 2)), entry(3, 3)],
            vec![lost, entry(3, 2)],
            vec![torn(entry(3, 2)), entry(3, 3), torn(entry(3, 4)), entry(3, 5)],
            vec![vec![0; 700], entry(3, 3)],
        ] {
            let (kept, good) = repaired(&rest).unwrap();
            assert_eq!(kept, good, "{rest:?}");
        }
    }

    #[test]
    fn what_may_have_been_acknowledged_is_left_alone() {
        let commit = || bytes(RaftLogAction::Commit((3, 2)));
        for rest in [
            // Entry 2 is committed, or the record of it would not be there.
            vec![torn(entry(3, 2)), commit()],
            vec![torn(entry(3, 2)), entry(3, 3), commit()],
            // A vote for the leader of term 4 stood before its entry.
            vec![torn(bytes(RaftLogAction::SaveVote(WalVote::new(4, true, 2)))), entry(4, 2)],
            vec![torn(entry(3, 2)), bytes(RaftLogAction::SaveVote(WalVote::new(4, false, 2)))],
            vec![torn(entry(3, 2)), bytes(RaftLogAction::PurgeUpto((3, 1)))],
            vec![torn(entry(3, 2)), bytes(RaftLogAction::TruncateAfter(Some((3, 1))))],
        ] {
            let refused = repaired(&rest);
            assert!(matches!(refused, Err(Error::DamagedLog { .. })), "{refused:?}: {rest:?}");
        }
    }
}
