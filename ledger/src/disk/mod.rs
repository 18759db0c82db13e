//! What the ledger asks of a disk: files, names, and when they are durable.
//!
//! Two implementations, one conformance suite (`conformance.rs`): [`RealDisk`] for everything that
//! is kept, [`SimulatedDisk`] in memory, which breaks as disks do. sled does its own input and
//! output and is not on it. The traits are public for tests: the broker's feed a simulated disk with
//! what a whole broker was seen to do to a real one.
//!
//! The contract is that of POSIX, read strictly: what was written is durable after the file's sync,
//! a name that was created, changed or removed only after its folder's.

mod node;
mod real;
mod simulated;
mod state;

#[cfg(test)]
mod conformance;

use std::any::Any;
use std::io;
use std::path::Path;

pub use self::node::Loss;
pub(crate) use self::real::RealDisk;
pub use self::simulated::{DiskFault, Flip, Omission, SimulatedDisk};
use crate::error::Error;

/// Keeps a lock as long as it lives.
pub type Lock = Box<dyn Any + Send + Sync>;

/// Folders and names.
pub trait Disk: Send + Sync {
    /// Whether there is a file or folder of this name.
    fn exists(&self, path: &Path) -> io::Result<bool>;

    /// Creates one folder in a folder that is there.
    fn create_folder(&self, folder: &Path) -> io::Result<()>;

    /// The names in a folder, sorted. One that is not UTF-8 is nobody's here and is left out.
    fn names(&self, folder: &Path) -> io::Result<Vec<String>>;

    /// Makes what was created, renamed and removed in a folder durable.
    fn sync_folder(&self, folder: &Path) -> io::Result<()>;

    /// Creates a file, or empties the one that is there.
    fn create(&self, file: &Path) -> io::Result<Box<dyn DiskFile>>;

    /// Opens a file that is there, to be read.
    fn open(&self, file: &Path) -> io::Result<Box<dyn DiskFile>>;

    /// Opens a file that is there, to be read and changed.
    fn edit(&self, file: &Path) -> io::Result<Box<dyn DiskFile>>;

    /// Gives a file or folder another name in the same folder. A file of that name is replaced, so
    /// that at no moment neither is there.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    fn remove(&self, file: &Path) -> io::Result<()>;

    /// Removes a folder with all that is in it.
    fn remove_folder(&self, folder: &Path) -> io::Result<()>;

    /// Takes the lock that `file` stands for, creating the file; `None` if another process has it.
    fn lock(&self, file: &Path) -> io::Result<Option<Lock>>;
}

/// An open file.
pub trait DiskFile: Send + Sync {
    /// Its length in bytes.
    fn length(&self) -> io::Result<u64>;

    /// The bytes from `at` on, at most `most`; fewer only where the file ends.
    fn read(&self, at: u64, most: usize) -> io::Result<Vec<u8>>;

    /// Writes all of `bytes` from `at` on. After an error any part of them may be there.
    fn write(&mut self, at: u64, bytes: &[u8]) -> io::Result<()>;

    /// Cuts the file to `length`.
    fn truncate(&mut self, length: u64) -> io::Result<()>;

    /// Makes its bytes and its length durable.
    fn sync(&mut self) -> io::Result<()>;
}

/// Creates `folder` and those above it, as far as they are missing; their names are durable then.
///
/// # Errors
/// [`Error::Io`].
pub(crate) fn create_folders(disk: &dyn Disk, folder: &Path) -> Result<(), Error> {
    let mut missing = Vec::new();
    for one in folder.ancestors().filter(|one| !one.as_os_str().is_empty()) {
        if disk.exists(one).map_err(Error::io("look for", one))? {
            break;
        }
        missing.push(one);
    }
    while let Some(one) = missing.pop() {
        match disk.create_folder(one) {
            // Somebody else was quicker.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            created => created.map_err(Error::io("create", one))?,
        }
        let above = one.parent().filter(|above| !above.as_os_str().is_empty());
        let above = above.unwrap_or(Path::new("."));
        disk.sync_folder(above).map_err(Error::io("sync", above))?;
    }
    Ok(())
}
