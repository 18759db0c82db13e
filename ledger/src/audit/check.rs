//! Reads a ledger from its first byte to its last and says where it is not what it should be.
//!
//! A segment is first hashed and compared with its root, so that a change of what is stored is
//! told as damage; only then it is decoded and posted, so that what is told about the books is
//! about records that are the ones that were sealed. It stops at the first thing that is wrong.

use sublet_protocol::ids::CellId;
use sublet_protocol::records::Record;

use super::folder::{Folder, FolderError};
use super::locate;
use super::tail::{Opened, StoreCopy, Tail};
use crate::accounts::Accounts;
use crate::error::{Damage, SegmentFault};
use crate::index::Postings;
use crate::merkle::Hash;
use crate::segment::{Segment, VERSION, padded};
use crate::verify::{Bad, Finding, Fold};

/// How far a check has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Bytes of segments that were read.
    pub bytes: u64,
    /// Bytes of all segments.
    pub of: u64,
}

/// What kind of thing is wrong, by what an auditor does about it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Class {
    /// What is stored is not what was written: a file was damaged or edited.
    Damaged,
    /// Two histories were signed.
    Fork,
    /// The records are those that were written, and their postings are wrong.
    Books,
    /// A newer version of the program wrote it; this one cannot judge it.
    Version,
}

impl Class {
    /// The exit code of `sublet-audit`: 2 damaged, 3 fork, 4 books, 5 version.
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Damaged => 2,
            Self::Fork => 3,
            Self::Books => 4,
            Self::Version => 5,
        }
    }
}

/// What a check found.
#[derive(Debug)]
pub struct Outcome {
    /// Records that were read and are good, unsealed ones among them.
    pub records: u64,
    /// The root over them.
    pub root: Hash,
    /// Records in good segments.
    pub sealed: u64,
    /// Good segments.
    pub segments: u32,
    /// The books over the good records.
    pub accounts: Accounts,
    /// What was done about the records that are not sealed.
    pub tail: Tail,
    /// The first thing that is wrong.
    pub first_bad: Option<Bad>,
}

impl Outcome {
    /// What kind of thing is wrong; `None` if nothing is.
    pub fn class(&self) -> Option<Class> {
        self.first_bad.as_ref().map(|bad| bad.finding.class())
    }
}

/// A check of one folder.
#[derive(Debug)]
pub struct Audit<'a> {
    folder: &'a Folder,
}

impl<'a> Audit<'a> {
    /// A check of `folder`.
    pub const fn new(folder: &'a Folder) -> Self {
        Self { folder }
    }

    /// Checks every segment, record, root and posting, and the unsealed records and the index if no
    /// broker has the ledger open. Keeps one segment and the books in memory; the store's copy, up
    /// to 32 MiB of it.
    ///
    /// # Errors
    /// The operating system failed. What is wrong with the ledger is in the outcome.
    pub fn run(&self, progress: impl FnMut(Progress)) -> Result<Outcome, FolderError> {
        self.run_visiting(progress, |_| ())
    }

    /// As [`Audit::run`], and hands over each record in order once it has been found good.
    ///
    /// # Errors
    /// As [`Audit::run`].
    pub fn run_visiting(
        &self,
        progress: impl FnMut(Progress),
        mut visit: impl FnMut(&Record),
    ) -> Result<Outcome, FolderError> {
        let (fold, store) = (Fold::default(), None);
        Run { folder: self.folder, fold, store, visit: &mut visit }.all(progress)
    }
}

/// Checks `folder`; see [`Audit::run`].
///
/// # Errors
/// The operating system failed.
pub fn check(folder: &Folder) -> Result<Outcome, FolderError> {
    Audit::new(folder).run(|_| ())
}

struct Run<'a> {
    folder: &'a Folder,
    fold: Fold,
    store: Option<StoreCopy>,
    visit: &'a mut dyn FnMut(&Record),
}

impl Run<'_> {
    fn all(&mut self, mut progress: impl FnMut(Progress)) -> Result<Outcome, FolderError> {
        let opened = StoreCopy::open(self.folder)?;
        let (left_out, unreadable) = match opened {
            Opened::Copy(copy) => {
                self.store = Some(copy);
                (None, None)
            }
            Opened::LeftOut(why) => (Some(why), None),
            Opened::Damaged(damage) => (None, Some(Finding::StoreDamaged(damage))),
            Opened::Newer { found } => (None, Some(Finding::UnknownStore { found })),
        };
        let mut seen = Progress { bytes: 0, of: self.folder.bytes() };
        for number in 0..self.folder.segments() {
            progress(seen);
            let index = self.fold.size();
            let bytes = self.folder.segment(number)?;
            let checked = match bytes {
                Some(bytes) => {
                    let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
                    seen.bytes = seen.bytes.saturating_add(length);
                    self.segment(number, bytes)
                }
                None => Err(Bad { index, finding: self.damaged(number, SegmentFault::Missing) }),
            };
            if let Err(bad) = checked {
                return Ok(self.outcome(Tail::NotReached, Some(bad)));
            }
        }
        progress(seen);
        let index = self.fold.size();
        if let Some(finding) = unreadable {
            return Ok(self.outcome(Tail::NotReached, Some(Bad { index, finding })));
        }
        if let Some(why) = left_out {
            return Ok(self.outcome(why, None));
        }
        Ok(match self.tail() {
            Ok(records) => self.outcome(Tail::Checked { records }, None),
            Err(bad) => self.outcome(Tail::NotReached, Some(bad)),
        })
    }

    fn segment(&mut self, number: u32, bytes: Vec<u8>) -> Result<(), Bad> {
        let first = self.fold.size();
        let before = self.fold.frontier().clone();
        let bad_at_first = |finding| Bad { index: first, finding };
        let parsed = match self.folder.cell() {
            Some(cell) => Segment::parse_or_give_back(bytes, cell, number, before.head()),
            None => Err((SegmentFault::Magic, bytes)),
        };
        let segment = match parsed {
            Ok(segment) => segment,
            Err((SegmentFault::Version { version }, _)) if version > VERSION => {
                return Err(bad_at_first(Finding::UnknownSegment { version }));
            }
            Err((fault, bytes)) => {
                let cell = self.folder.cell();
                let index = locate::first_bad(&bytes, cell, number, &before).unwrap_or(first);
                return Err(Bad { index, finding: self.damaged(number, fault) });
            }
        };
        let mut after = before;
        segment.records().for_each(|(_, record)| after.append(Hash::of_leaf(record)));
        if after != *segment.frontier() {
            let index = locate::first_wrong(segment.records()).unwrap_or(first);
            let finding = Finding::Root { noted: segment.seal().root, found: after.root() };
            return Err(Bad { index, finding });
        }
        let postings = self.book(&segment)?;
        self.fold.hashed(after);
        let indexed = self.store.as_ref().filter(|store| number < store.segments());
        match indexed.map(|store| store.not_indexed(first, &postings)) {
            None | Some(Ok(None)) => Ok(()),
            Some(Ok(Some(index))) => Err(Bad { index, finding: Finding::NotIndexed }),
            Some(Err(damage)) => Err(bad_at_first(Finding::StoreDamaged(damage))),
        }
    }

    /// Decodes and posts the records of a segment whose hashes are right.
    fn book(&mut self, segment: &Segment) -> Result<Postings, Bad> {
        let mut postings = Postings::default();
        self.fold.begin_segment();
        for (index, bytes) in segment.records() {
            let record = self.fold.book(index, bytes)?;
            (self.visit)(&record);
            if self.store.is_some() {
                postings.add(&record);
            }
        }
        let cell = self.folder.cell().expect("a segment was read under its name");
        self.fold.end_segment(segment.seal(), cell)?;
        Ok(postings)
    }

    /// Checks the records that are not sealed; how many there are.
    fn tail(&mut self) -> Result<u64, Bad> {
        let sealed = self.fold.size();
        let bad = |index, damage| Bad { index, finding: Finding::StoreDamaged(damage) };
        let Some(store) = &self.store else { return Ok(0) };
        let (known, found) = (store.segments(), self.folder.segments());
        if known > found {
            let fault = SegmentFault::Fewer { known, found };
            return Err(Bad { index: sealed, finding: self.damaged(found, fault) });
        }
        let is_other =
            |cell: CellId| store.cell().is_some_and(|named| named != padded(cell.as_str()));
        if self.folder.cell().is_some_and(is_other) {
            return Err(bad(sealed, Damage::Meta));
        }
        let (mut wrong, fold, visit) = (None, &mut self.fold, &mut self.visit);
        let read = store.visit(sealed, |index, bytes| {
            if wrong.is_none() {
                match fold.record(index, bytes) {
                    Ok(record) => visit(&record),
                    Err(bad) => wrong = Some(bad),
                }
            }
        });
        if let Some(wrong) = wrong {
            return Err(wrong);
        }
        read.map_err(|damage| bad(damage.index().unwrap_or(sealed), damage))?;
        let found = self.fold.frontier().head();
        match store.head().filter(|noted| noted.size >= sealed) {
            Some(noted) if noted.size > found.size => {
                Err(bad(found.size, Damage::Missing { index: found.size }))
            }
            Some(noted) if noted != found => {
                let finding = Finding::Root { noted: noted.root, found: found.root };
                Err(Bad { index: sealed, finding })
            }
            Some(_) | None => Ok(found.size - sealed),
        }
    }

    fn damaged(&self, number: u32, fault: SegmentFault) -> Finding {
        Finding::SegmentDamaged { file: self.folder.file(number, "seg"), fault }
    }

    fn outcome(&mut self, tail: Tail, first_bad: Option<Bad>) -> Outcome {
        let fold = std::mem::take(&mut self.fold);
        let (records, root) = (fold.size(), fold.frontier().root());
        let unsealed = if let Tail::Checked { records } = tail { records } else { 0 };
        let sealed = if tail == Tail::NotReached { fold.sealed() } else { records - unsealed };
        Outcome {
            records,
            root,
            sealed,
            segments: fold.segments(),
            accounts: fold.into_accounts(),
            tail,
            first_bad,
        }
    }
}
