//! The archive: the journal's sealed segments, `archive/NNNNNNNNNN.seg`, and what was signed about
//! them, `archive/NNNNNNNNNN.ckpt`.
//!
//! It is the truth about sealed records, and the only copy of them on this machine. A segment
//! appears whole or not at all: written aside, fsynced, renamed, directory fsynced. Opening the
//! archive reads every segment once and checks its sum and that it follows the one before it;
//! `verify` also hashes the records.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sublet_protocol::ids::CellId;

use crate::checkpoint::Checkpoint;
use crate::disk::{Disk, create_folders};
use crate::error::{Error, SegmentFault};
use crate::merkle::{Frontier, TreeHead};
use crate::note::{NOTE_BYTES_MAX, PublicKey};
use crate::segment::{SEGMENT_BYTES_MAX, Seal, Segment, SegmentBuilder, VERSION};

/// Segments kept in memory after they were read. A segment of 4,096 records is about 1 MiB.
const CACHED_SEGMENTS: usize = 4;

/// The file with the public key.
pub(crate) const PUBLIC_KEY: &str = "ledger.pub";

/// The sealed part of the journal.
pub(crate) struct Archive {
    cell: CellId,
    shelf: Shelf,
    seals: Vec<Seal>,
    frontier: Frontier,
    cache: Mutex<VecDeque<Arc<Segment>>>,
}

/// Where the segments are.
enum Shelf {
    /// As files in this directory.
    Directory(Arc<dyn Disk>, PathBuf),
    /// In memory, for a journal that is not kept.
    Memory(Vec<Arc<Segment>>),
}

impl Archive {
    /// An empty archive in memory.
    pub(crate) fn in_memory(cell: CellId) -> Self {
        Self::empty(cell, Shelf::Memory(Vec::new()))
    }

    /// Opens the archive in `dir` of `disk`, creating the directory if need be.
    ///
    /// # Errors
    /// [`Error::Segment`] when a segment is missing or damaged or does not follow the one before.
    pub(crate) fn open(disk: Arc<dyn Disk>, dir: &Path, cell: CellId) -> Result<Self, Error> {
        create_folders(&*disk, dir)?;
        let count = segments_in(&*disk, dir)?;
        // A process that died between a segment's rename and this sync left a name that the next
        // loss of power may take back. From here on it is relied on.
        disk.sync_folder(dir).map_err(Error::io("sync", dir))?;
        let mut archive = Self::empty(cell, Shelf::Directory(disk, dir.to_owned()));
        for number in 0..count {
            let segment = archive.read(number, archive.frontier.head())?;
            archive.seals.push(*segment.seal());
            archive.frontier = segment.frontier().clone();
        }
        Ok(archive)
    }

    fn empty(cell: CellId, shelf: Shelf) -> Self {
        let cache = Mutex::new(VecDeque::new());
        Self { cell, shelf, seals: Vec::new(), frontier: Frontier::new(), cache }
    }

    /// What the segments cover, in order.
    pub(crate) fn seals(&self) -> &[Seal] {
        &self.seals
    }

    /// The frontier of the journal up to the last sealed record.
    pub(crate) const fn frontier(&self) -> &Frontier {
        &self.frontier
    }

    /// Number of the next segment.
    pub(crate) fn next_number(&self) -> u32 {
        self.seals.last().map_or(0, |last| last.number.saturating_add(1))
    }

    /// Begins the segment after the last.
    pub(crate) fn next_segment(&self) -> SegmentBuilder {
        SegmentBuilder::new(self.cell, self.next_number(), &self.frontier)
    }

    /// Adds the finished next segment. It is on the disk when this returns.
    pub(crate) fn add(&mut self, builder: SegmentBuilder) -> Result<Arc<Segment>, Error> {
        let (bytes, seal, _) = builder.finish();
        if let Shelf::Directory(disk, dir) = &self.shelf {
            write_whole(&**disk, dir, &segment_name(seal.number), &bytes)?;
        }
        let segment = Segment::parse(bytes, self.cell, seal.number, self.frontier.head());
        let segment = Arc::new(segment.map_err(|fault| self.bad(seal.number, fault))?);
        if let Shelf::Memory(segments) = &mut self.shelf {
            segments.push(Arc::clone(&segment));
        }
        self.seals.push(seal);
        self.frontier = segment.frontier().clone();
        self.remember(&segment);
        Ok(segment)
    }

    /// The segment that holds record `index`; `None` when it is not sealed.
    pub(crate) fn segment_of(&self, index: u64) -> Result<Option<Arc<Segment>>, Error> {
        let place = self.seals.partition_point(|seal| seal.end() <= index);
        let Some(seal) = self.seals.get(place) else { return Ok(None) };
        self.segment(seal.number).map(Some)
    }

    /// Segment `number`, from memory if it was read lately.
    pub(crate) fn segment(&self, number: u32) -> Result<Arc<Segment>, Error> {
        let cached = self.cache().iter().find(|cached| cached.seal().number == number).cloned();
        if let Some(segment) = cached {
            return Ok(segment);
        }
        let segment = Arc::new(self.read_again(number)?);
        self.remember(&segment);
        Ok(segment)
    }

    /// Segment `number` from the disk, checked as when the archive was opened.
    pub(crate) fn read_again(&self, number: u32) -> Result<Segment, Error> {
        let before = match number.checked_sub(1).and_then(|previous| self.seal(previous)) {
            Some(previous) => TreeHead { size: previous.end(), root: previous.root },
            None => Frontier::new().head(),
        };
        self.read(number, before)
    }

    /// The checkpoint beside segment `number`, if one is there that can be read.
    pub(crate) fn read_checkpoint(&self, number: u32) -> Result<Option<Checkpoint>, Error> {
        let Shelf::Directory(disk, dir) = &self.shelf else { return Ok(None) };
        let path = dir.join(checkpoint_name(number));
        let bytes = read_capped(&**disk, &path, NOTE_BYTES_MAX)?;
        let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
        Ok(text.and_then(|text| text.parse().ok()))
    }

    /// Puts a checkpoint beside segment `number`, in place of one that is there.
    pub(crate) fn write_checkpoint(
        &self,
        number: u32,
        checkpoint: &Checkpoint,
    ) -> Result<(), Error> {
        let Shelf::Directory(disk, dir) = &self.shelf else { return Ok(()) };
        write_whole(&**disk, dir, &checkpoint_name(number), checkpoint.to_string().as_bytes())
    }

    /// Notes whose key signs, unless that stands there.
    pub(crate) fn write_public_key(&self, key: &PublicKey) -> Result<(), Error> {
        let Shelf::Directory(disk, dir) = &self.shelf else { return Ok(()) };
        let line = format!("{key}\n").into_bytes();
        if read_capped(&**disk, &dir.join(PUBLIC_KEY), NOTE_BYTES_MAX)?.as_ref() == Some(&line) {
            return Ok(());
        }
        write_whole(&**disk, dir, PUBLIC_KEY, &line)
    }

    /// The error that segment `number` is bad, or newer.
    pub(crate) fn bad(&self, number: u32, fault: SegmentFault) -> Error {
        if let SegmentFault::Version { version: found } = fault
            && found > VERSION
        {
            return Error::Newer { path: self.file(number), found, known: VERSION };
        }
        let first_index = match self.seal(number) {
            Some(seal) => seal.first,
            None => self.frontier.size(),
        };
        Error::Segment { file: self.file(number), first_index, fault }
    }

    fn seal(&self, number: u32) -> Option<&Seal> {
        self.seals.get(usize::try_from(number).ok()?)
    }

    fn file(&self, number: u32) -> PathBuf {
        match &self.shelf {
            Shelf::Directory(_, dir) => dir.join(segment_name(number)),
            Shelf::Memory(_) => PathBuf::from(segment_name(number)),
        }
    }

    fn read(&self, number: u32, before: TreeHead) -> Result<Segment, Error> {
        let bytes = match &self.shelf {
            Shelf::Directory(disk, _) => {
                read_capped(&**disk, &self.file(number), SEGMENT_BYTES_MAX)?
            }
            Shelf::Memory(segments) => {
                let place = usize::try_from(number).ok();
                place.and_then(|place| segments.get(place)).map(|segment| segment.bytes().to_vec())
            }
        };
        let bytes = bytes.ok_or_else(|| self.bad(number, SegmentFault::Missing))?;
        Segment::parse(bytes, self.cell, number, before).map_err(|fault| self.bad(number, fault))
    }

    fn remember(&self, segment: &Arc<Segment>) {
        let mut cache = self.cache();
        cache.push_front(Arc::clone(segment));
        cache.truncate(CACHED_SEGMENTS);
    }

    fn cache(&self) -> MutexGuard<'_, VecDeque<Arc<Segment>>> {
        // A panic elsewhere cannot leave a list of whole segments half changed.
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn segment_name(number: u32) -> String {
    format!("{number:010}.seg")
}

fn checkpoint_name(number: u32) -> String {
    format!("{number:010}.ckpt")
}

/// How many segments `dir` has by the highest number there; deletes what a crash left unfinished.
/// A gap is found when the missing one is read.
fn segments_in(disk: &dyn Disk, dir: &Path) -> Result<u32, Error> {
    let mut count = 0;
    for name in disk.names(dir).map_err(Error::io("list", dir))? {
        if [".seg.tmp", ".ckpt.tmp", ".pub.tmp"].iter().any(|end| name.ends_with(end)) {
            let path = dir.join(name);
            disk.remove(&path).map_err(Error::io("delete", &path))?;
            continue;
        }
        let number = name.strip_suffix(".seg").and_then(|digits| digits.parse::<u32>().ok());
        if let Some(number) = number.filter(|number| segment_name(*number) == name) {
            count = count.max(number.saturating_add(1));
        }
    }
    Ok(count)
}

/// The file's bytes; `None` if there is no file. One that is too large is cut at the limit, which
/// its check sum tells.
fn read_capped(disk: &dyn Disk, file: &Path, most: usize) -> Result<Option<Vec<u8>>, Error> {
    let opened = match disk.open(file) {
        Ok(opened) => opened,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io("open", file)(error)),
    };
    opened.read(0, most).map(Some).map_err(Error::io("read", file))
}

/// Writes the file so that after a crash it is there with all its bytes or not at all.
fn write_whole(disk: &dyn Disk, dir: &Path, name: &str, bytes: &[u8]) -> Result<(), Error> {
    let (aside, place) = (dir.join(format!("{name}.tmp")), dir.join(name));
    let mut file = disk.create(&aside).map_err(Error::io("create", &aside))?;
    file.write(0, bytes).map_err(Error::io("write", &aside))?;
    file.sync().map_err(Error::io("sync", &aside))?;
    disk.rename(&aside, &place).map_err(Error::io("rename", &aside))?;
    disk.sync_folder(dir).map_err(Error::io("sync", dir))
}
