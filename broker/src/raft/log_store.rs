//! The log and the vote, kept by raft-log.

use std::fmt::Debug;
use std::fs::{File, TryLockError};
use std::io;
use std::ops::{Bound, RangeBounds};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use openraft::storage::{IOFlushed, LogState, RaftLogReader, RaftLogStorage};
use openraft::type_config::alias::{EntryOf, LogIdOf, VoteOf};
use openraft::{OptionalSend, RaftTypeConfig};
use raft_log::RaftLog;
use raft_log::api::raft_log_writer::RaftLogWriter;
use tokio::sync::oneshot;

use super::fatal::Fatal;
use super::options::Options;
use super::tail;
use super::types::Error;
use super::wire::{Flushed, TypeConfig, Wal, WalPayload, WalVote, from_wal, to_wal};
use crate::folders;

/// About how many bytes one read for a follower may give.
const READ_BYTES: u64 = 4 * 1024 * 1024;

/// Entries kept in memory beyond those of the open file.
const CACHE_BYTES: usize = 32 * 1024 * 1024;

/// The log of this node. Cheap to clone; all clones are the same log.
#[derive(Clone)]
pub(super) struct LogStore {
    open: Arc<Mutex<Option<Open>>>,
    fatal: Fatal,
}

/// The open log with the lock of its directory, in the order in which they are let go.
struct Open {
    log: RaftLog<Wal>,
    _lock: DirectoryLock,
}

/// The lock of the directory. Let go by word, not only by closing the file: a process that is being
/// started at this moment still holds a copy of it.
struct DirectoryLock(File);

impl Drop for DirectoryLock {
    fn drop(&mut self) {
        if let Err(error) = self.0.unlock() {
            tracing::warn!(%error, "the lock of the raft directory was not let go");
        }
    }
}

impl LogStore {
    /// Opens (or creates) the log below `options.directory`, repairing a torn end.
    ///
    /// # Errors
    /// [`Error::Locked`], [`Error::Foreign`], [`Error::DamagedLog`] or [`Error::Storage`].
    pub(super) fn open(options: &Options, fatal: Fatal) -> Result<Self, Error> {
        let directory = &options.directory;
        folders::create(directory).map_err(Error::storage("create", directory))?;
        let lock = lock(directory)?;
        let wal = directory.join("wal");
        folders::create(&wal).map_err(Error::storage("create", &wal))?;
        tail::repair(&wal, &directory.join("torn"))?;

        let mut config = raft_log::Config::new(wal.display());
        config.wal.read_buffer_size = Some(1024 * 1024);
        config.wal.chunk_max_size = Some(options.log_file_bytes);
        config.wal.flush_batch_wait = Some(options.flush_wait);
        config.log_cache_capacity = Some(CACHE_BYTES);
        let log = RaftLog::open(Arc::new(config)).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => Error::Locked { directory: directory.clone() },
            _ => Error::Storage { action: "open the log in", path: wal.clone(), source: error },
        })?;
        // The first file's name must survive a power loss as well as its contents.
        sync_directory(&wal)?;
        let mut open = Open { log, _lock: lock };
        claim(&mut open.log, &options.identity(), &wal)?;
        Ok(Self { open: Arc::new(Mutex::new(Some(open))), fatal })
    }

    /// The last purged entry's index.
    pub(super) fn purged(&self) -> io::Result<Option<u64>> {
        self.with(|log| Ok(log.log_state().purged().map(|at| at.1)))
    }

    /// Bytes of log on disk; 0 once closed.
    pub(super) fn bytes(&self) -> u64 {
        self.with(|log| Ok(log.on_disk_size())).unwrap_or(0)
    }

    /// Votes before the node runs. Blocks.
    pub(super) fn vote_now(&self, vote: WalVote) -> io::Result<()> {
        self.with(|log| {
            log.save_vote(vote)?;
            flush(log)
        })
    }

    /// Writes what is pending, stops the writer and lets go of the directory. Blocks.
    pub(super) fn close(&self) {
        let open = self.lock().take();
        drop(open);
    }

    fn lock(&self) -> MutexGuard<'_, Option<Open>> {
        // A panic while the log was held leaves it readable at worst; a write error is sticky in it.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, act: impl FnOnce(&mut RaftLog<Wal>) -> io::Result<T>) -> io::Result<T> {
        match self.lock().as_mut() {
            Some(open) => act(&mut open.log),
            None => Err(io::Error::new(io::ErrorKind::NotConnected, "the raft log is closed")),
        }
    }

    /// Does `act`, fsyncs and waits for it. An error ends the process.
    async fn durably(
        &self,
        act: impl FnOnce(&mut RaftLog<Wal>) -> io::Result<()>,
    ) -> io::Result<()> {
        let (told, flushed) = oneshot::channel();
        let sent = self.with(|log| {
            act(log)?;
            log.flush(true, Some(Flushed::Waiter(told)))
        });
        let result = match sent {
            Ok(()) => flushed.await.unwrap_or_else(|_| Err(writer_gone())),
            Err(error) => Err(error),
        };
        self.struck(result)
    }

    fn struck<T>(&self, result: io::Result<T>) -> io::Result<T> {
        if let Err(error) = &result {
            self.fatal.strike(&format!("the raft log cannot be written: {error}"));
        }
        result
    }

    fn read(&self, from: u64, to: u64, bytes: u64) -> io::Result<Vec<EntryOf<TypeConfig>>> {
        if from >= to {
            return Ok(Vec::new());
        }
        self.with(|log| {
            let mut entries = Vec::new();
            let mut size = 0;
            for item in log.read(from, to) {
                let (at, payload) = item?;
                size += <Wal as raft_log::Types>::payload_size(&payload);
                entries.push(payload.entry(&at));
                if size >= bytes {
                    break;
                }
            }
            Ok(entries)
        })
    }
}

fn writer_gone() -> io::Error {
    io::Error::other("the writer of the raft log has stopped")
}

fn lock(directory: &Path) -> Result<DirectoryLock, Error> {
    let path = directory.join("LOCK");
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(Error::storage("open", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(DirectoryLock(file)),
        Err(TryLockError::WouldBlock) => Err(Error::Locked { directory: directory.to_owned() }),
        Err(TryLockError::Error(source)) => Err(Error::storage("lock", &path)(source)),
    }
}

/// Makes changes of the names in `directory` durable.
pub(super) fn sync_directory(directory: &Path) -> Result<(), Error> {
    folders::sync(directory).map_err(Error::storage("sync", directory))
}

/// Writes `identity` into a new log, or checks that it is an old one's.
fn claim(log: &mut RaftLog<Wal>, identity: &str, wal: &Path) -> Result<(), Error> {
    if let Some(found) = log.log_state().user_data.clone() {
        if found == identity {
            return Ok(());
        }
        return Err(Error::Foreign { found, expected: identity.to_owned() });
    }
    log.save_user_data(Some(identity.to_owned()))
        .and_then(|_| flush(log))
        .map_err(Error::storage("write to the log in", wal))
}

/// Fsyncs what was written, and waits for it. Blocks.
fn flush(log: &mut RaftLog<Wal>) -> io::Result<()> {
    let (told, mut flushed) = oneshot::channel();
    log.flush(true, Some(Flushed::Waiter(told)))?;
    log.wait_worker_idle()?;
    flushed.try_recv().unwrap_or_else(|_| Err(writer_gone()))
}

/// A range as `[from, to)`.
fn ends(range: &impl RangeBounds<u64>) -> (u64, u64) {
    let from = match range.start_bound() {
        Bound::Included(from) => *from,
        Bound::Excluded(before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let to = match range.end_bound() {
        Bound::Included(last) => last.saturating_add(1),
        Bound::Excluded(to) => *to,
        Bound::Unbounded => u64::MAX,
    };
    (from, to)
}

impl RaftLogReader<TypeConfig> for LogStore {
    async fn try_get_log_entries<RB>(&mut self, range: RB) -> io::Result<Vec<EntryOf<TypeConfig>>>
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let (from, to) = ends(&range);
        self.read(from, to, u64::MAX)
    }

    async fn read_vote(&mut self) -> io::Result<Option<VoteOf<TypeConfig>>> {
        self.with(|log| Ok(log.log_state().vote().map(|vote| vote.vote())))
    }

    async fn limited_get_log_entries(
        &mut self,
        start: u64,
        end: u64,
    ) -> io::Result<Vec<EntryOf<TypeConfig>>> {
        self.read(start, end, READ_BYTES)
    }
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> io::Result<LogState<TypeConfig>> {
        self.with(|log| {
            let state = log.log_state();
            Ok(LogState {
                last_purged_log_id: state.purged().map(from_wal),
                last_log_id: state.last().map(from_wal),
            })
        })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &VoteOf<TypeConfig>) -> io::Result<()> {
        let vote = WalVote::of(vote);
        self.durably(|log| log.save_vote(vote).map(drop)).await
    }

    async fn save_committed(&mut self, committed: Option<LogIdOf<TypeConfig>>) -> io::Result<()> {
        let Some(committed) = committed.as_ref().map(to_wal) else { return Ok(()) };
        // Not fsynced: it only saves work at the next start. It rides on the next entry's fsync.
        self.with(|log| {
            let state = log.log_state();
            let fits = state.last() >= Some(&committed) && state.committed() < Some(&committed);
            if fits {
                log.commit(committed)?;
                log.flush(false, None)?;
            }
            Ok(())
        })
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogIdOf<TypeConfig>>> {
        self.with(|log| Ok(log.log_state().committed().map(from_wal)))
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> io::Result<()>
    where
        I: IntoIterator<Item = <TypeConfig as RaftTypeConfig>::Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let fatal = self.fatal.clone();
        let sent = self.with(|log| {
            log.append(entries.into_iter().map(WalPayload::of))?;
            log.flush(true, Some(Flushed::Entries(callback, fatal)))
        });
        self.struck(sent)
    }

    async fn truncate_after(&mut self, last: Option<LogIdOf<TypeConfig>>) -> io::Result<()> {
        let keep = last.map_or(0, |last| last.index().saturating_add(1));
        let known = self.with(|log| Ok(log.log_state().last().map_or(0, |at| at.1 + 1)))?;
        if keep >= known {
            return Ok(());
        }
        self.durably(|log| log.truncate(keep).map(drop)).await
    }

    async fn purge(&mut self, upto: LogIdOf<TypeConfig>) -> io::Result<()> {
        self.durably(|log| log.purge(to_wal(&upto)).map(drop)).await
    }
}
