//! The store on disk: one file, replaced whole; one lock, held as long as the agent lives.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::{Durable, DurableState, Error, folders};

const STATE: &str = "agent-state";
const STATE_NEW: &str = "agent-state.new";
const LOCK: &str = "agent-lock";
/// First word of the file's first line; the version and the hash of what follows come after it.
const MAGIC: &str = "sublet-agent-state";
const VERSION: &str = "1";

/// Keeps the state in a folder.
///
/// The file is one line `sublet-agent-state 1 <SHA-256 of the rest>` and the state as JSON. It is
/// written beside the old one, fsynced, renamed over it, and the folder is fsynced.
#[derive(Debug)]
pub struct FileStore {
    folder: PathBuf,
    /// Locked while this lives (LF4).
    _lock: File,
}

impl FileStore {
    /// Opens `folder`, makes it if it is missing, and takes its lock.
    ///
    /// # Errors
    /// [`Error::Locked`] if another agent has it, [`Error::Disk`] if it cannot be opened.
    pub fn open(folder: &Path) -> Result<Self, Error> {
        let disk = |path: &Path| {
            let path = path.to_owned();
            move |source| Error::Disk { path, source }
        };
        folders::create(folder).map_err(disk(folder))?;
        let path = folder.join(LOCK);
        let lock = File::options().create(true).append(true).open(&path).map_err(disk(&path))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { folder: folder.to_owned(), _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(Error::Locked { path }),
            Err(TryLockError::Error(source)) => Err(Error::Disk { path, source }),
        }
    }

    fn read(&self) -> Result<DurableState, Error> {
        let path = self.folder.join(STATE);
        match fs::read(&path) {
            Ok(bytes) => parse(&bytes).map_err(|what| Error::Corrupt { path, what }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(DurableState::default()),
            Err(source) => Err(Error::Disk { path, source }),
        }
    }

    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        let new = self.folder.join(STATE_NEW);
        let mut file = File::create(&new)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&new, self.folder.join(STATE))?;
        folders::sync(&self.folder)
    }
}

impl Durable for FileStore {
    fn begin(&mut self) -> Result<DurableState, Error> {
        let mut state = self.read()?;
        state.boot = state.boot.next();
        self.store(&state)?;
        Ok(state)
    }

    fn store(&mut self, state: &DurableState) -> Result<(), Error> {
        let path = || self.folder.join(STATE);
        let body = serde_json::to_string_pretty(state)
            .map_err(|error| Error::Disk { path: path(), source: error.into() })?;
        let bytes = format!("{MAGIC} {VERSION} {}\n{body}\n", hash(body.as_bytes()));
        self.write(bytes.as_bytes()).map_err(|source| Error::Disk { path: path(), source })
    }
}

fn hash(body: &[u8]) -> String {
    hex::encode(Sha256::digest(body))
}

fn parse(bytes: &[u8]) -> Result<DurableState, &'static str> {
    let text = std::str::from_utf8(bytes).map_err(|_| "it is not text")?;
    let (head, body) = text.split_once('\n').ok_or("it is cut off")?;
    let body = body.strip_suffix('\n').ok_or("it is cut off")?;
    let expected = match head.split(' ').collect::<Vec<_>>()[..] {
        [MAGIC, VERSION, hash] => hash.to_owned(),
        [MAGIC, _, _] => return Err("it has another version"),
        _ => return Err("it does not begin as one"),
    };
    if hash(body.as_bytes()) != expected {
        return Err("its hash does not agree");
    }
    serde_json::from_str(body).map_err(|_| "a field is missing or unknown")
}
