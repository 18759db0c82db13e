//! Guests' private folders.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use super::super::{Guest, NotCleared};
use super::environment::FOLDER;
use crate::guard::kill_marked;

/// Passes of killing what carries a folder's mark: 5 s.
const PASSES_MAX: u32 = 500;
const PASS_PAUSE: Duration = Duration::from_millis(10);

/// Where a guest's folder is: named by its token, which no other lease ever has, and its device.
pub(super) fn path(scratch: &Path, guest: &Guest) -> PathBuf {
    scratch.join(format!("{}-{}", guest.key.token, guest.key.slice.device))
}

/// Makes a folder that only this user may enter.
pub(super) fn create(path: &Path) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    DirBuilder::new().mode(0o700).create(path)
}

/// Ends every process that carries the folder's mark. False if some are still there.
pub(super) fn end_marked(path: &Path) -> bool {
    let mark = format!("{FOLDER}={}", path.to_string_lossy());
    for _ in 0..PASSES_MAX {
        if kill_marked(&mark) == 0 {
            return true;
        }
        sleep(PASS_PAUSE);
    }
    false
}

/// Ends every guest whose folder an earlier start left, and erases the folders.
pub(super) fn clear(scratch: &Path) -> Result<(), NotCleared> {
    let entries = match fs::read_dir(scratch) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(_) => return Err(NotCleared),
    };
    for entry in entries {
        let path = entry.map_err(|_| NotCleared)?.path();
        if !end_marked(&path) || fs::remove_dir_all(&path).is_err() {
            return Err(NotCleared);
        }
    }
    Ok(())
}
