//! Folders whose names survive a loss of power.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

/// What may be done with a folder by whom.
const ANYBODY: u32 = 0o777;
const OWNER: u32 = 0o700;

/// Creates `folder` and those above it, as far as they are missing. Each new name is synced into the
/// folder above it, so that what is promised on files below does not hang on a name that is lost.
///
/// # Errors
/// What the system says.
pub(crate) fn create(folder: &Path) -> io::Result<()> {
    create_for(folder, ANYBODY)
}

/// As [`create`]; a folder that is made here can be read by its owner only. Those above it are made
/// as usual.
///
/// # Errors
/// What the system says.
pub(crate) fn create_private(folder: &Path) -> io::Result<()> {
    create_for(folder, OWNER)
}

fn create_for(folder: &Path, mode: u32) -> io::Result<()> {
    let named = folder.ancestors().filter(|one| !one.as_os_str().is_empty());
    let missing: Vec<&Path> = named.take_while(|one| !one.is_dir()).collect();
    for one in missing.into_iter().rev() {
        let mode = if one == folder { mode } else { ANYBODY };
        match fs::DirBuilder::new().mode(mode).create(one) {
            // Somebody else was quicker.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && one.is_dir() => {}
            created => created?,
        }
        let above = one.parent().filter(|above| !above.as_os_str().is_empty());
        sync(above.unwrap_or(Path::new(".")))?;
    }
    Ok(())
}

/// Makes changes of the names in `folder` durable.
///
/// # Errors
/// What the system says.
pub(crate) fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn missing_folders_are_created_and_a_file_in_the_way_is_told() {
        let base = tempfile::tempdir().unwrap();
        let deep = base.path().join("a/b/c");
        create(&deep).unwrap();
        assert!(deep.is_dir());
        create(&deep).unwrap();
        let private = base.path().join("d/e");
        create_private(&private).unwrap();
        assert_eq!(fs::metadata(&private).unwrap().permissions().mode() & 0o777, 0o700);
        assert_ne!(fs::metadata(base.path().join("d")).unwrap().permissions().mode() & 0o077, 0);
        let file = base.path().join("file");
        fs::write(&file, "").unwrap();
        for path in [file.join("below"), file] {
            assert_eq!(create(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        }
    }
}
