//! Finding the ledger in a folder that somebody names.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use sublet_protocol::ids::CellId;

use crate::segment::{self, SEGMENT_BYTES_MAX};

/// Where a ledger lies below what people name: the ledger itself, a broker's data folder, the
/// folder of a demonstration.
const PLACES: [&str; 3] = ["", "ledger", "cell/ledger"];

/// Why a folder cannot be audited.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FolderError {
    /// None of the places has an archive.
    #[error("there is no ledger in {} (looked for {})", dir.display(), shown(looked))]
    NoLedger {
        /// The folder that was named.
        dir: PathBuf,
        /// Where an archive was looked for.
        looked: Vec<PathBuf>,
    },
    /// The operating system failed.
    #[error("could not {action} {}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

impl FolderError {
    /// Wraps the failure of `action` on `path`.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, path: path.to_owned(), source }
    }
}

fn shown(paths: &[PathBuf]) -> String {
    let paths: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
    paths.join(", ")
}

/// A folder with a ledger in it. It is read and never changed.
#[derive(Debug)]
pub struct Folder {
    dir: PathBuf,
    segments: u32,
    bytes: u64,
    cell: Option<CellId>,
}

impl Folder {
    /// Finds the ledger in `dir`: in it, in its `ledger/` or in its `cell/ledger/`; `dir` may also be
    /// its `archive/`.
    ///
    /// # Errors
    /// There is none, or it cannot be listed.
    pub fn find(dir: &Path) -> Result<Self, FolderError> {
        let looked: Vec<PathBuf> =
            PLACES.iter().map(|place| dir.join(place).join("archive")).collect();
        // Whoever names the archive itself means the ledger around it.
        let itself = dir.ends_with("archive").then(|| dir.to_owned());
        let mut places = looked.iter().chain(&itself);
        let Some(archive) = places.find(|archive| archive.is_dir()) else {
            return Err(FolderError::NoLedger { dir: dir.to_owned(), looked });
        };
        let ledger = archive.parent().expect("a path that ends in archive has a parent");
        let mut folder = Self { dir: ledger.to_owned(), segments: 0, bytes: 0, cell: None };
        folder.list(archive)?;
        Ok(folder)
    }

    /// The ledger's own folder: the one that has `archive/` in it.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The cell that the first readable segment names.
    pub const fn cell(&self) -> Option<CellId> {
        self.cell
    }

    /// Segments by the highest number that is there; one that is missing between counts.
    pub const fn segments(&self) -> u32 {
        self.segments
    }

    /// Bytes of all segments.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The folder of the store.
    pub(crate) fn store(&self) -> PathBuf {
        self.dir.join("sled")
    }

    /// A file of the archive: `NNNNNNNNNN.` and this ending.
    pub fn file(&self, number: u32, ending: &str) -> PathBuf {
        self.dir.join("archive").join(format!("{number:010}.{ending}"))
    }

    /// The bytes of segment `number`; `None` if there is no such file. A file that is too large is
    /// cut at the limit, which its check sum tells.
    pub(crate) fn segment(&self, number: u32) -> Result<Option<Vec<u8>>, FolderError> {
        read_capped(&self.file(number, "seg"), SEGMENT_BYTES_MAX)
    }

    /// Keeps a broker from opening the ledger while the guard lives; `None` if one has it open.
    pub(crate) fn lock(&self) -> Result<Option<Guard>, FolderError> {
        let path = self.dir.join("lock");
        let file = match File::open(&path) {
            Ok(file) => file,
            // A copy of the archive alone.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Some(Guard(None))),
            Err(error) => return Err(FolderError::io("open", &path)(error)),
        };
        match file.try_lock_shared() {
            Ok(()) => Ok(Some(Guard(Some(file)))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(FolderError::io("lock", &path)(error)),
        }
    }

    fn list(&mut self, archive: &Path) -> Result<(), FolderError> {
        let mut numbers = Vec::new();
        for entry in fs::read_dir(archive).map_err(FolderError::io("list", archive))? {
            let entry = entry.map_err(FolderError::io("list", archive))?;
            let name = entry.file_name();
            let digits = name.to_str().and_then(|name| name.strip_suffix(".seg"));
            let number = digits.and_then(|digits| digits.parse::<u32>().ok());
            if let Some(number) = number.filter(|number| self.file(*number, "seg").ends_with(&name))
            {
                let path = entry.path();
                let found = entry.metadata().map_err(FolderError::io("look at", &path))?;
                self.bytes = self.bytes.saturating_add(found.len());
                numbers.push(number);
            }
        }
        numbers.sort_unstable();
        self.segments = numbers.last().map_or(0, |last| last.saturating_add(1));
        for number in numbers {
            let path = self.file(number, "seg");
            let start = read_capped(&path, segment::NAMED_BYTES)?;
            if let Some(cell) = start.as_deref().and_then(segment::cell_of) {
                self.cell = Some(cell);
                break;
            }
        }
        Ok(())
    }
}

/// A shared lock on the ledger; `None` where there is nothing to lock.
pub(crate) struct Guard(#[expect(dead_code, reason = "it is dropped, not read")] Option<File>);

/// At most `most` bytes of a file; `None` if there is no file.
pub(crate) fn read_capped(path: &Path, most: usize) -> Result<Option<Vec<u8>>, FolderError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(FolderError::io("open", path)(error)),
    };
    let mut bytes = Vec::new();
    let limit = u64::try_from(most).unwrap_or(u64::MAX);
    file.take(limit).read_to_end(&mut bytes).map_err(FolderError::io("read", path))?;
    Ok(Some(bytes))
}
