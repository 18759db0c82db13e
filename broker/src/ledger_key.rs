//! The key that signs the ledger's checkpoints: a file that only its owner can read.
//!
//! One key for each cell. The broker that founds the cell makes it; an operator copies it to the
//! others. A broker without it seals the same segments and signs nothing.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use sublet_ledger::note::{Kind, PrivateKey};

use crate::config::LedgerKey;
use crate::error::Error;
use crate::folders;

/// Reads the key, or makes it where that is wanted; nothing if there is none.
///
/// # Errors
/// [`Error::LedgerKey`], [`Error::Randomness`].
pub(crate) fn load(wanted: &LedgerKey) -> Result<Option<PrivateKey>, Error> {
    match wanted {
        LedgerKey::None => Ok(None),
        LedgerKey::File(path) => read(path),
        LedgerKey::Made { file, origin } => match read(file)? {
            Some(key) => Ok(Some(key)),
            None => make(file, origin).map(Some),
        },
    }
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::LedgerKey { path: path.to_owned(), source }
}

fn read(path: &Path) -> Result<Option<PrivateKey>, Error> {
    let line = match fs::read_to_string(path) {
        Ok(line) => line,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(path)(error)),
    };
    let mode = fs::metadata(path).map_err(failed(path))?.permissions().mode();
    if mode & 0o077 != 0 {
        tracing::warn!(file = %path.display(), "others than its owner can read the ledger's key");
    }
    let key = line.parse::<PrivateKey>().map_err(io::Error::other).map_err(failed(path))?;
    match key.public().kind() {
        Kind::Log => Ok(Some(key)),
        Kind::Witness => Err(failed(path)(io::Error::other("it is the key of a witness"))),
    }
}

/// Makes a key in a file that is not there; on the disk when this returns, so that no signature is
/// of a key that is lost.
fn make(path: &Path, origin: &str) -> Result<PrivateKey, Error> {
    let mut random = [0; 32];
    getrandom::fill(&mut random).map_err(Error::Randomness)?;
    let key = PrivateKey::new(origin, Kind::Log, &random);
    let key = key.map_err(io::Error::other).map_err(failed(path))?;
    let mut options = OpenOptions::new();
    let opened = options.write(true).create_new(true).mode(0o600).open(path);
    let written = opened.and_then(|mut file| {
        file.write_all(format!("{}\n", key.to_secret_line()).as_bytes())?;
        file.sync_all()?;
        folders::sync(
            path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new(".")),
        )
    });
    written.map_err(failed(path))?;
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_made_once_for_its_owner_only_and_never_where_it_was_not_wanted() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("ledger.key");
        assert!(load(&LedgerKey::None).unwrap().is_none());
        assert!(load(&LedgerKey::File(file.clone())).unwrap().is_none());
        assert!(!file.exists());
        let wanted = LedgerKey::Made { file: file.clone(), origin: "berlin.sublet".to_owned() };
        let first = load(&wanted).unwrap().unwrap();
        assert_eq!(first.public().name(), "berlin.sublet");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        for again in [wanted, LedgerKey::File(file.clone())] {
            assert_eq!(load(&again).unwrap().unwrap().public(), first.public());
        }
        fs::write(&file, "no key").unwrap();
        let error = load(&LedgerKey::File(file.clone())).unwrap_err();
        assert!(error.to_string().contains("ledger.key"), "{error}");
    }
}
