//! Opening: lock, archive, store, and bringing the store up to the archive.

use std::path::Path;
use std::sync::{Arc, Mutex};

use sublet_protocol::ids::CellId;
use sublet_protocol::records::Record;

use super::Journal;
use super::meta::Meta;
use super::tail::{self, Tail};
use crate::archive::Archive;
use crate::chains::{Chains, Keeping};
use crate::disk::{Disk, Lock, RealDisk, SimulatedDisk, create_folders};
use crate::error::{Damage, Error, SegmentFault};
use crate::index::Postings;
use crate::merkle::TreeHead;
use crate::page::{self, PageBuilder};
use crate::segment::{Segment, padded};
use crate::store::{Batch, CommitStore, MemoryStore, SledStore, Store};

/// A journal that was opened even if its store had to be made anew.
pub struct Opened {
    /// The journal. After a rebuild it ends with the last segment; the log has the rest.
    pub journal: Journal,
    /// What was wrong with the store that is now in `sled.damaged/`.
    pub rebuilt: Option<Damage>,
}

impl Journal {
    /// An empty journal in memory.
    pub fn in_memory(cell: CellId) -> Self {
        let archive = Archive::in_memory(cell);
        let tail = Tail::after(archive.frontier().clone(), None);
        let store = Box::<MemoryStore>::default();
        let nodes = Mutex::default();
        let (absorbed, charged) = (0, Charged::default());
        let (cursor, signer, lock) = (None, None, None);
        Self { cell, archive, store, tail, absorbed, charged, cursor, nodes, signer, lock }
    }

    /// Opens or creates the journal of `cell` in `dir`. A store that is missing or behind the
    /// archive is brought up to it; every byte of the tail is checked.
    ///
    /// # Errors
    /// [`Error::Damaged`]: the store cannot be trusted, nothing was changed.
    /// [`Error::Segment`]: the archive cannot be used. [`Error::InUse`], [`Error::OtherCell`].
    pub fn open(dir: &Path, cell: CellId) -> Result<Self, Error> {
        Home::Folder(dir).open(cell)
    }

    /// As [`Journal::open`], but a damaged store is set aside as `sled.damaged/` (in place of an
    /// earlier one) and made anew from the archive.
    ///
    /// # Errors
    /// As [`Journal::open`] without [`Error::Damaged`].
    pub fn open_or_rebuild(dir: &Path, cell: CellId) -> Result<Opened, Error> {
        Home::Folder(dir).open_or_rebuild(cell)
    }

    /// As [`Journal::open_or_rebuild`] on a simulated disk, which holds this journal and nothing
    /// else. Its store is a file of commits in place of sled.
    ///
    /// # Errors
    /// As [`Journal::open_or_rebuild`].
    pub fn open_or_rebuild_on(disk: &SimulatedDisk, cell: CellId) -> Result<Opened, Error> {
        Home::Simulated(disk).open_or_rebuild(cell)
    }

    /// Takes note that `segment` was written: its records leave the tail.
    pub(super) fn absorb_last(&mut self, segment: &Segment) -> Result<(), Error> {
        let meta = self.meta(self.tail.frontier.head());
        let charged = &mut self.charged;
        self.absorbed = absorb(&mut *self.store, &self.archive, segment, &meta, charged)?.segments;
        let sealed = self.archive.frontier().clone();
        let last_time = Some(segment.seal().last_time);
        self.tail = Tail::read(&*self.store, sealed, last_time, meta.head)?;
        Ok(())
    }

    /// The description to be written once the journal is `head`.
    pub(super) fn meta(&self, head: TreeHead) -> Meta {
        let cell = padded(self.cell.as_str());
        Meta { cell, segments: self.absorbed, head, cursor: self.cursor }
    }
}

/// Where a journal is kept.
#[derive(Clone, Copy)]
enum Home<'a> {
    Folder(&'a Path),
    Simulated(&'a SimulatedDisk),
}

impl Home<'_> {
    fn dir(&self) -> &Path {
        match self {
            Self::Folder(dir) => dir,
            Self::Simulated(_) => Path::new(""),
        }
    }

    fn disk(&self) -> Arc<dyn Disk> {
        match self {
            Self::Folder(_) => Arc::new(RealDisk),
            Self::Simulated(disk) => Arc::new((*disk).clone()),
        }
    }

    fn open_store(&self, disk: &Arc<dyn Disk>, dir: &Path) -> Result<Box<dyn Store>, Error> {
        Ok(match self {
            Self::Folder(_) => Box::new(SledStore::open(dir)?),
            Self::Simulated(_) => Box::new(CommitStore::open(disk, dir)?),
        })
    }

    fn open(self, cell: CellId) -> Result<Journal, Error> {
        let lock = self.lock()?;
        Ok(Journal { lock: Some(lock), ..self.open_locked(cell)? })
    }

    fn open_or_rebuild(self, cell: CellId) -> Result<Opened, Error> {
        let lock = Some(self.lock()?);
        let damage = match self.open_locked(cell) {
            Ok(journal) => {
                return Ok(Opened { journal: Journal { lock, ..journal }, rebuilt: None });
            }
            Err(Error::Damaged(damage)) => damage,
            Err(error) => return Err(error),
        };
        let (disk, dir) = (self.disk(), self.dir());
        let (store, aside) = (dir.join("sled"), dir.join("sled.damaged"));
        tracing::warn!(
            %damage, store = %store.display(), aside = %aside.display(),
            "ledger store is damaged, is set aside and made anew from the archive"
        );
        if disk.exists(&aside).map_err(Error::io("look for", &aside))? {
            disk.remove_folder(&aside).map_err(Error::io("delete", &aside))?;
        }
        disk.rename(&store, &aside).map_err(Error::io("rename", &store))?;
        disk.sync_folder(dir).map_err(Error::io("sync", dir))?;
        let journal = self.open_locked(cell)?;
        Ok(Opened { journal: Journal { lock, ..journal }, rebuilt: Some(damage) })
    }

    /// Opens the journal; the caller holds its lock.
    fn open_locked(self, cell: CellId) -> Result<Journal, Error> {
        let (disk, dir) = (self.disk(), self.dir());
        let archive = Archive::open(Arc::clone(&disk), &dir.join("archive"), cell)?;
        let store_dir = dir.join("sled");
        let mut store = self.open_store(&disk, &store_dir)?;
        let found = Meta::read(&*store, &store_dir)?;
        if found.is_none() && !tail::pages(&*store)?.is_empty() {
            return Err(Damage::Torn.into());
        }
        let mut meta = found.unwrap_or(Meta::empty(cell));
        if meta.cell != padded(cell.as_str()) {
            return Err(Error::OtherCell);
        }
        if meta.segments > archive.next_number() {
            let (known, found) = (meta.segments, archive.next_number());
            return Err(archive.bad(found, SegmentFault::Fewer { known, found }));
        }
        let mut charged = Charged::read(&*store, &archive, meta.segments)?;
        for number in meta.segments..archive.next_number() {
            let segment = archive.segment(number)?;
            meta = absorb(&mut *store, &archive, &segment, &meta, &mut charged)?;
        }
        let last_time = archive.seals().last().map(|seal| seal.last_time);
        let tail = Tail::read(&*store, archive.frontier().clone(), last_time, meta.head)?;
        let cursor = meta.cursor;
        let (absorbed, nodes, signer, lock) = (meta.segments, Mutex::default(), None, None);
        Ok(Journal { cell, archive, store, tail, absorbed, charged, cursor, nodes, signer, lock })
    }

    /// Creates the folder and takes the lock that keeps a second process out of it.
    fn lock(self) -> Result<Lock, Error> {
        let (disk, dir) = (self.disk(), self.dir());
        create_folders(&*disk, dir)?;
        let path = dir.join("lock");
        let taken = disk.lock(&path).map_err(Error::io("lock", &path))?;
        taken.ok_or(Error::InUse { dir: dir.to_owned() })
    }
}

/// The chains of charges over the sealed records, and when they were written last.
#[derive(Default)]
pub(super) struct Charged {
    pub(super) chains: Chains,
    keeping: Keeping,
}

impl Charged {
    /// Those over the first `segments` segments: as the store has them, and what was sealed since.
    fn read(store: &dyn Store, archive: &Archive, segments: u32) -> Result<Self, Error> {
        let (keeping, kept, chains) = Keeping::read(store)?;
        if kept > segments {
            return Err(Damage::Meta.into());
        }
        let mut charged = Self { chains, keeping };
        for number in kept..segments {
            let segment = archive.segment(number)?;
            for (index, bytes) in segment.records() {
                charged.chains.take(&decode_sealed(archive, number, (index, bytes))?, bytes);
            }
            charged.keeping.passed(segment.bytes().len());
        }
        Ok(charged)
    }
}

fn decode_sealed(
    archive: &Archive,
    number: u32,
    (index, bytes): (u64, &[u8]),
) -> Result<Record, Error> {
    let undecodable = |_| archive.bad(number, SegmentFault::Undecodable { index });
    tail::decode(index, bytes).map_err(undecodable)
}

/// Puts the postings of `segment`, the next one that `meta` does not know, into the index, adds its
/// charges to the chains and removes its records from the tail, in one commit. Done again from the
/// store, it changes nothing; where it fails the journal has to be opened again.
fn absorb(
    store: &mut dyn Store,
    archive: &Archive,
    segment: &Segment,
    meta: &Meta,
    charged: &mut Charged,
) -> Result<Meta, Error> {
    let mut batch = Batch::default();
    let mut postings = Postings::default();
    for (index, bytes) in segment.records() {
        let record = decode_sealed(archive, segment.seal().number, (index, bytes))?;
        postings.add(&record);
        charged.chains.take(&record, bytes);
    }
    postings.put(segment.seal().first, &mut batch);

    let end = segment.seal().end();
    for place in tail::pages(store)?.iter().take_while(|page| page.first < end) {
        let bytes = tail::read_page(store, place.first, place.chunks)?;
        let mut rest = PageBuilder::new(end);
        for (index, record) in (place.first..).zip(page::records(place.first, &bytes)?) {
            if index >= end {
                rest.push(record);
            } else if segment.record(index).is_some_and(|sealed| sealed != record) {
                return Err(Damage::Record { index }.into());
            }
        }
        tail::remove_page(&mut batch, place);
        if rest.count() > 0 {
            tail::put_page(&mut batch, rest);
        }
    }

    let sealed = TreeHead { size: end, root: segment.seal().root };
    let head = if meta.head.size <= end { sealed } else { meta.head };
    let meta = Meta { segments: segment.seal().number.saturating_add(1), head, ..*meta };
    meta.put(&mut batch);
    let Charged { chains, keeping } = charged;
    keeping.sealed(segment.bytes().len(), (meta.segments, chains), &mut batch);
    store.commit(batch)?;
    Ok(meta)
}
