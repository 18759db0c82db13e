//! The folder of a `sublet dev`: given and kept, or temporary and removed at the end.

use std::fs::{self, File, TryLockError};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::failure::{Exit, Failure, Outcome};

/// The file with the speed.
const SPEED: &str = "speed";

/// An open folder. While it lives no other `sublet dev` can open it.
pub(super) struct Folder {
    path: PathBuf,
    /// Removed when dropped.
    temporary: Option<TempDir>,
    /// Locked while this lives.
    _lock: File,
}

impl Folder {
    /// Opens `given`, or makes a temporary one.
    pub(super) fn open(given: Option<&Path>) -> Outcome<Folder> {
        let failure = |path: &Path, error: &dyn std::fmt::Display| {
            let what = format!("cannot use the data folder {}", path.display());
            Failure::new(Exit::Failed, what).because(error)
        };
        let (path, temporary) = match given {
            Some(path) => {
                fs::create_dir_all(path).map_err(|error| failure(path, &error))?;
                (fs::canonicalize(path).map_err(|error| failure(path, &error))?, None)
            }
            None => {
                let made = tempfile::Builder::new().prefix("sublet-dev-").tempdir();
                let made = made.map_err(|error| failure(&std::env::temp_dir(), &error))?;
                (made.path().to_owned(), Some(made))
            }
        };
        let lock_path = path.join("dev.lock");
        let lock = File::options().create(true).append(true).open(&lock_path);
        let lock = lock.map_err(|error| failure(&path, &error))?;
        match lock.try_lock() {
            Ok(()) => Ok(Folder { path, temporary, _lock: lock }),
            Err(TryLockError::WouldBlock) => {
                let what = format!("another `sublet dev` uses {}", path.display());
                Err(Failure::new(Exit::Temporary, what).hint("end it, or give another --data-dir"))
            }
            Err(TryLockError::Error(error)) => Err(failure(&path, &error)),
        }
    }

    /// The folder itself.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is kept at the end.
    pub(super) const fn is_kept(&self) -> bool {
        self.temporary.is_none()
    }

    /// The folder of the cell's log and ledger.
    pub(super) fn cell(&self) -> PathBuf {
        self.path.join("cell")
    }

    /// The key that signs tokens.
    pub(super) fn key(&self) -> PathBuf {
        self.path.join("dev-key.pem")
    }

    /// The speed of the last start in this folder, if there was one that got as far as to say so.
    pub(super) fn last_speed(&self) -> Option<NonZeroU32> {
        fs::read_to_string(self.path.join(SPEED)).ok()?.trim().parse().ok()
    }

    /// Writes down the speed for the next start.
    pub(super) fn keep_speed(&self, speed: NonZeroU32) -> Outcome<()> {
        let path = self.path.join(SPEED);
        fs::write(&path, format!("{speed}\n")).map_err(|error| {
            Failure::new(Exit::Failed, format!("cannot write {}", path.display())).because(error)
        })
    }

    /// What the agent of a node must not forget.
    pub(super) fn agent(&self, node: &str) -> PathBuf {
        self.path.join("agents").join(node)
    }

    /// Which GPUs of a node are sick.
    pub(super) fn health(&self, node: &str) -> PathBuf {
        self.path.join("health").join(format!("{node}.json"))
    }

    /// Where a node's real guests run.
    pub(super) fn scratch(&self, node: &str) -> PathBuf {
        self.path.join("scratch").join(node)
    }
}
