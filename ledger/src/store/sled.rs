//! The store on disk: sled `=0.34.7`, with what has to be done round it.
//!
//! * A torn `snap.*.generating` makes the database unopenable (measured: 2 of 400 kill −9, 0 of
//!   1,000 once it is deleted first), so it is deleted first.
//! * sled panics on some damaged files, so every call is made inside `catch_unwind`, and a panic
//!   becomes [`Damage::Panicked`].
//! * `flush` is `sync_file_range`, not an fsync, so `sync` does both.
//! * Under a burst of writes sled can lock up for ever: the writer waits, holding the segment
//!   accountant, for a truncation that is queued behind writers of its thread pool that wait for
//!   the accountant (seen 2026-11, `bump_tip` in `pagecache/segment.rs`; spacejam/sled#1412 is
//!   open). The pool always has 7 spare threads, so what is written and not flushed is kept to a
//!   fraction of that many log buffers of 512 KiB. It also lets sled reuse its file: 3 instead of
//!   200 bytes on the disk for each event that passed through (measured).
//!
//! * A dropped handle holds sled's own lock until its last background task is done, and an open that
//!   meets it says so in words only. The caller holds the directory's lock, so it can only be such a
//!   handle of this process: it is waited for, and never taken for damage.

use std::fs::{self, File};
use std::io;
use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sled::transaction::{ConflictableTransactionError, TransactionError, Transactional};
use sled::{Db, IVec};

use super::{Batch, Entry, Store, Tree};
use crate::error::{Damage, Error};

/// Bytes sled may keep in memory. Its default is 1 GiB; a process has 200 MiB in all.
const CACHE_BYTES: u64 = 32 * 1024 * 1024;

/// Bytes committed after which the log is flushed; see above. sled may write them several times
/// over.
const UNFLUSHED_BYTES_MAX: usize = 256 * 1024;
/// What sled writes for an entry beside its key and value, at least.
const ENTRY_BYTES: usize = 64;

/// How long a handle that is being let go of is waited for, and how often it is looked for.
const LOCK_WAIT: Duration = Duration::from_secs(10);
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// The trees in a sled database.
pub(crate) struct SledStore {
    dir: PathBuf,
    db: Db,
    unflushed: usize,
    trees: [sled::Tree; Tree::ALL.len()],
}

impl SledStore {
    /// Opens or creates the database in `dir`, after the cleaning that sled leaves undone.
    ///
    /// # Errors
    /// [`Error::Damaged`] when sled says or shows that its files are bad.
    pub(crate) fn open(dir: &Path) -> Result<Self, Error> {
        fs::create_dir_all(dir).map_err(Error::io("create", dir))?;
        delete_unfinished_snapshots(dir)?;
        let open = || {
            let db = open_unlocked(dir)?;
            let mut trees = Vec::with_capacity(Tree::ALL.len());
            for tree in Tree::ALL {
                trees.push(db.open_tree(tree.name())?);
            }
            Ok((db, trees))
        };
        let (db, trees) = guarded(dir, "open", open)?;
        let trees = trees.try_into().expect("one handle was opened for each tree");
        Ok(Self { dir: dir.to_owned(), db, unflushed: 0, trees })
    }

    fn tree(&self, tree: Tree) -> &sled::Tree {
        &self.trees[tree.place()]
    }
}

impl Store for SledStore {
    fn get(&self, tree: Tree, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let value = guarded(&self.dir, "read", || self.tree(tree).get(key))?;
        Ok(value.map(|value| value.to_vec()))
    }

    fn last_until(&self, tree: Tree, key: &[u8]) -> Result<Option<Entry>, Error> {
        guarded(&self.dir, "read", || {
            self.tree(tree).range(..=key).next_back().transpose().map(|last| last.map(owned))
        })
    }

    fn scan(
        &self,
        tree: Tree,
        keys: RangeInclusive<&[u8]>,
        limit: usize,
    ) -> Result<Vec<Entry>, Error> {
        guarded(&self.dir, "read", || {
            self.tree(tree).range(keys).take(limit).map(|entry| entry.map(owned)).collect()
        })
    }

    fn commit(&mut self, batch: Batch) -> Result<(), Error> {
        let mut batches: [sled::Batch; Tree::ALL.len()] = Default::default();
        for (tree, key, value) in batch.writes {
            self.unflushed += ENTRY_BYTES + key.len() + value.as_ref().map_or(0, Vec::len);
            match value {
                Some(value) => batches[tree.place()].insert(key, value),
                None => batches[tree.place()].remove(key),
            }
        }
        guarded(&self.dir, "write", || {
            let written = self.trees[..].transaction(|views| {
                for (view, batch) in views.iter().zip(&batches) {
                    view.apply_batch(batch)?;
                }
                Ok::<(), ConflictableTransactionError<()>>(())
            });
            match written {
                Ok(()) => Ok(()),
                Err(TransactionError::Storage(error)) => Err(error),
                Err(TransactionError::Abort(())) => unreachable!("nothing above aborts"),
            }
        })?;
        if self.unflushed < UNFLUSHED_BYTES_MAX {
            return Ok(());
        }
        self.unflushed = 0;
        guarded(&self.dir, "flush", || self.db.flush().map(drop))
    }

    fn sync(&mut self) -> Result<(), Error> {
        guarded(&self.dir, "flush", || self.db.flush().map(drop))?;
        let file = self.dir.join("db");
        let db = File::open(&file).map_err(Error::io("open", &file))?;
        db.sync_all().map_err(Error::io("sync", &file))
    }
}

/// Opens the database once no dropped handle holds its lock any more.
fn open_unlocked(dir: &Path) -> sled::Result<Db> {
    let config = sled::Config::new()
        .path(dir)
        .cache_capacity(CACHE_BYTES)
        .mode(sled::Mode::LowSpace)
        // A flush in the background would be one more party to the lock-up.
        .flush_every_ms(None);
    let give_up = Instant::now() + LOCK_WAIT;
    loop {
        match config.open() {
            Err(sled::Error::Io(error)) if is_locked(&error) && Instant::now() < give_up => {
                std::thread::sleep(LOCK_PAUSE);
            }
            outcome => return outcome,
        }
    }
}

/// Whether sled says that its lock is taken: it keeps the system's words and drops the number.
fn is_locked(error: &io::Error) -> bool {
    error.raw_os_error().is_none() && error.to_string().starts_with("could not acquire lock")
}

fn owned((key, value): (IVec, IVec)) -> Entry {
    (key.to_vec(), value.to_vec())
}

/// Runs `call` and turns what sled does about bad files into typed errors.
fn guarded<T>(
    dir: &Path,
    action: &'static str,
    call: impl FnOnce() -> sled::Result<T>,
) -> Result<T, Error> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(sled::Error::Io(source))) if is_locked(&source) => {
            Err(Error::InUse { dir: dir.to_owned() })
        }
        Ok(Err(sled::Error::Io(source))) => {
            // sled reports a torn or foreign file as an I/O error of its own making; those of
            // the operating system carry a number.
            match source.raw_os_error() {
                Some(_) => Err(Error::io(action, dir)(source)),
                None => Err(Damage::Corrupt.into()),
            }
        }
        Ok(Err(_)) => Err(Damage::Corrupt.into()),
        Err(panic) => {
            let said = panic.downcast_ref::<String>().map(String::as_str);
            let said = said.or_else(|| panic.downcast_ref::<&str>().copied());
            let message = said.unwrap_or("without a message").to_owned();
            Err(Damage::Panicked { message }.into())
        }
    }
}

/// Deletes `snap.*.generating`: sled writes them aside and never reads them unless torn.
fn delete_unfinished_snapshots(dir: &Path) -> Result<(), Error> {
    for entry in fs::read_dir(dir).map_err(Error::io("list", dir))? {
        let entry = entry.map_err(Error::io("list", dir))?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("snap.") && name.ends_with(".generating") {
            fs::remove_file(entry.path()).map_err(Error::io("delete", &entry.path()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unfinished_snapshot_is_deleted_before_the_store_opens() {
        let dir = tempfile::tempdir().unwrap();
        drop(SledStore::open(dir.path()).unwrap());
        let torn = dir.path().join("snap.000000000000FFFF.generating");
        fs::write(&torn, [0xff; 9]).unwrap();
        SledStore::open(dir.path()).unwrap();
        assert!(!torn.exists());
    }

    #[test]
    fn a_handle_that_is_still_being_let_go_of_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        drop(SledStore::open(dir.path()).unwrap());
        let held = File::open(dir.path().join("db")).unwrap();
        held.lock().unwrap();
        let letting_go = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            drop(held);
        });
        SledStore::open(dir.path()).unwrap();
        letting_go.join().unwrap();
    }

    #[test]
    fn a_file_that_is_no_database_is_damage_not_an_empty_store() {
        let dir = tempfile::tempdir().unwrap();
        drop(SledStore::open(dir.path()).unwrap());
        fs::write(dir.path().join("conf"), b"segment_size: x\n").unwrap();
        assert!(matches!(SledStore::open(dir.path()), Err(Error::Damaged(_))));
    }
}
