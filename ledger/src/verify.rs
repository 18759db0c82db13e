//! The verifier: reads every byte of a journal again and says where it is not what it should be.
//!
//! It folds accounts and knows no rule of lending. It reads segments and pages from the disk, not
//! from memory, and holds one segment and the accounts at a time. It stops at the first thing that
//! is wrong, since nothing behind it can be relied on.

use std::path::{Path, PathBuf};

use sublet_protocol::codec::{self, decode_record, encode_record};
use sublet_protocol::events::Event;
use sublet_protocol::ids::CellId;
use sublet_protocol::records::Record;
use sublet_protocol::units::Timestamp;

use crate::accounts::{Accounts, PostingError};
use crate::audit::Class;
use crate::chains::{Chains, Links};
use crate::checkpoint::Checkpoint;
use crate::error::{Damage, Error, SegmentFault};
use crate::index::Postings;
use crate::journal::Journal;
use crate::merkle::{Frontier, Hash, TreeHead};
use crate::segment::Seal;

/// What the verifier found.
#[derive(Debug)]
pub struct Report {
    /// Records that were read and are good.
    pub records: u64,
    /// The root over them.
    pub root: Hash,
    /// Segments that were read and are good.
    pub segments: u32,
    /// The books over them.
    pub accounts: Accounts,
    /// The first thing that is wrong.
    pub first_bad: Option<Bad>,
}

impl Report {
    /// True if nothing is wrong and the books balance.
    pub fn is_good(&self) -> bool {
        self.first_bad.is_none() && self.accounts.is_balanced()
    }
}

/// What is wrong, and with which record it begins.
#[derive(Debug)]
pub struct Bad {
    /// Index of the first record that cannot be relied on.
    pub index: u64,
    /// What is wrong.
    pub finding: Finding,
}

/// What can be wrong with a journal.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Finding {
    /// A segment cannot be read.
    #[error("archive segment {} is damaged", file.display())]
    SegmentDamaged {
        /// Its file.
        file: PathBuf,
        /// What is wrong with it.
        #[source]
        fault: SegmentFault,
    },
    /// The store cannot be read.
    #[error("the store is damaged")]
    StoreDamaged(#[source] Damage),
    /// The record's bytes are not a record.
    #[error("the record cannot be decoded")]
    Undecodable,
    /// The record's bytes are not those in which it is written.
    #[error("the record is not in its canonical form")]
    NotCanonical,
    /// Another record is in its place.
    #[error("record {found} is in its place")]
    Misplaced {
        /// The index that the record names.
        found: u64,
    },
    /// Its ledger time lies before that of the record before it.
    #[error("its time {time} lies before {before}")]
    TimeWentBack {
        /// Its ledger time.
        time: Timestamp,
        /// That of the record before it.
        before: Timestamp,
    },
    /// Its posting is wrong.
    #[error("it cannot be posted")]
    Posting(#[source] PostingError),
    /// The records of a segment, or all of them, do not have the root that was noted.
    #[error("the records up to here have the root {found}, not {noted}")]
    Root {
        /// The root noted.
        noted: Hash,
        /// The root of the records found.
        found: Hash,
    },
    /// The index does not lead to the record.
    #[error("the index does not lead to it")]
    NotIndexed,
    /// The segment's header names other times than its first and last record have.
    #[error("the segment names other times than its records")]
    OtherTimes,
    /// The segment names another cell than the one that the first record founds.
    #[error("the segment names another cell than the records do")]
    OtherCell,
    /// Debits and credits, or the holds and their accounts, differ after a segment.
    #[error("the books do not balance after the records of this segment")]
    Unbalanced,
    /// The checkpoint beside a segment cannot be read.
    #[error("the checkpoint {} cannot be read", file.display())]
    CheckpointDamaged {
        /// Its file.
        file: PathBuf,
    },
    /// The checkpoint beside a segment names the key and is not signed by it.
    #[error("the signature of the checkpoint {} is not that of the cell's key", file.display())]
    CheckpointForged {
        /// Its file.
        file: PathBuf,
    },
    /// A checkpoint names another root than the records have.
    #[error(
        "a checkpoint of {} records has the root {}, the first {} records here have {}",
        signed.size, signed.root, found.size, found.root
    )]
    OtherRootSigned {
        /// The tree of the checkpoint.
        signed: TreeHead,
        /// The tree found.
        found: TreeHead,
    },
    /// The auditor's key has not signed the records from here on.
    #[error("no checkpoint signed by the key covers the records from here on")]
    NotSigned,
    /// Too few witnesses have signed any checkpoint.
    #[error("no checkpoint is signed by as many witnesses as are required")]
    NotWitnessed,
    /// There are fewer records than a checkpoint from before covers.
    #[error(
        "a checkpoint from before covers {size} records, there are {found}: this is an older copy"
    )]
    RolledBack {
        /// Records that the checkpoint covers.
        size: u64,
        /// Sealed records found.
        found: u64,
    },
    /// The key has signed two ledgers of which neither extends the other.
    #[error(
        "the key signed two histories: a checkpoint of {} records contradicts one of {}",
        kept.head().size, signed.head().size
    )]
    Fork {
        /// The checkpoint that the auditor brought along.
        kept: Box<Checkpoint>,
        /// One of the folder that is as long or longer.
        signed: Box<Checkpoint>,
        /// The root of the folder's first records, as many as the kept checkpoint covers.
        prefix: Hash,
    },
    /// A checkpoint that the key signed names other charges than the records have.
    #[error(
        "the checkpoint of {size} records names other charges than they have: root {} of {} tenants, \
         not {} of {}", signed.root, signed.size, found.root, found.size
    )]
    OtherCharges {
        /// Records that the checkpoint covers.
        size: u64,
        /// Tenants and the root over their chains, as signed.
        signed: TreeHead,
        /// The same, computed from the records.
        found: TreeHead,
    },
    /// A newer version of the program wrote the record.
    #[error("the record is of version {version}, which this program does not know")]
    UnknownRecord {
        /// The version that it names.
        version: u8,
    },
    /// A newer version of the program wrote the segment.
    #[error("the segment is of format {version}, which this program does not know")]
    UnknownSegment {
        /// The format that it names.
        version: u16,
    },
    /// A newer version of the program wrote the store.
    #[error("the store is of format {found}, which this program does not know")]
    UnknownStore {
        /// The format that it names.
        found: u16,
    },
}

impl Finding {
    /// What kind of thing it is.
    pub const fn class(&self) -> Class {
        match self {
            Self::SegmentDamaged { .. }
            | Self::StoreDamaged(_)
            | Self::Undecodable
            | Self::NotCanonical
            | Self::Misplaced { .. }
            | Self::TimeWentBack { .. }
            | Self::Root { .. }
            | Self::NotIndexed
            | Self::OtherTimes
            | Self::OtherCell
            | Self::CheckpointDamaged { .. }
            | Self::CheckpointForged { .. }
            | Self::OtherRootSigned { .. }
            | Self::NotSigned
            | Self::NotWitnessed
            | Self::RolledBack { .. } => Class::Damaged,
            Self::Fork { .. } => Class::Fork,
            Self::Posting(_) | Self::Unbalanced | Self::OtherCharges { .. } => Class::Books,
            Self::UnknownRecord { .. }
            | Self::UnknownSegment { .. }
            | Self::UnknownStore { .. } => Class::Version,
        }
    }
}

/// Verifies an open journal: segments, tail, root, accounts, index.
///
/// # Errors
/// Only when the operating system fails, or a newer version wrote it. What is wrong with the journal
/// is in the report.
pub fn verify(journal: &Journal) -> Result<Report, Error> {
    let mut verifier = Verifier::default();
    loop {
        if let Some(report) = verifier.step(journal)? {
            return Ok(report);
        }
    }
}

/// Verifies a journal step by step, so that it can be appended to between two steps.
#[derive(Default)]
pub struct Verifier {
    fold: Fold,
}

impl Verifier {
    /// Verifies the next segment or, behind the last one, the tail. The report, once there is
    /// nothing more to read or something is wrong; it is the last step then.
    ///
    /// # Errors
    /// As [`verify`].
    pub fn step(&mut self, journal: &Journal) -> Result<Option<Report>, Error> {
        let next = usize::try_from(self.fold.segments).ok();
        let Some(seal) = next.and_then(|next| journal.seals().get(next)) else {
            return verify_tail(journal, std::mem::take(&mut self.fold)).map(Some);
        };
        match verify_segment(journal, seal.number, &mut self.fold) {
            Ok(()) => Ok(None),
            Err(bad) => std::mem::take(&mut self.fold).report(Some(bad?)).map(Some),
        }
    }
}

fn verify_tail(journal: &Journal, mut fold: Fold) -> Result<Report, Error> {
    let mut bad = None;
    let read = journal.visit_tail_on_disk(|index, bytes| {
        if bad.is_none() {
            bad = fold.record(index, bytes).err();
        }
    });
    if let Err(error) = read
        && bad.is_none()
    {
        bad = Some(bad_of(error, fold.frontier.size())?);
    }
    let (noted, found) = (journal.head(), fold.frontier.head());
    if bad.is_none() && noted != found {
        // Which record of the tail it is nobody can say: every check of a single one has passed.
        let index = journal.archive().frontier().size();
        let finding = Finding::Root { noted: noted.root, found: found.root };
        bad = Some(Bad { index, finding });
    }
    fold.report(bad)
}

/// Verifies the journal of `cell` in `dir`, which must not be open.
///
/// # Errors
/// Only when it is in use, is another cell's or a newer version's, or the operating system fails.
pub fn verify_dir(dir: &Path, cell: CellId) -> Result<Report, Error> {
    match Journal::open(dir, cell) {
        Ok(journal) => verify(&journal),
        Err(error) => Fold::default().report(Some(bad_of(error, 0)?)),
    }
}

/// `Err(Ok(…))`: something is wrong; `Err(Err(…))`: it could not be read.
fn verify_segment(
    journal: &Journal,
    number: u32,
    fold: &mut Fold,
) -> Result<(), Result<Bad, Error>> {
    let first = fold.frontier.size();
    let segment = journal.archive().read_again(number);
    let segment = segment.map_err(|error| bad_of(error, first))?;
    let mut postings = Postings::default();
    fold.begin_segment();
    for (index, bytes) in segment.records() {
        postings.add(&fold.record(index, bytes).map_err(Ok)?);
    }
    let (noted, found) = (segment.seal().root, fold.frontier.root());
    if noted != found {
        return Err(Ok(Bad { index: first, finding: Finding::Root { noted, found } }));
    }
    match postings.missing_from(first, journal.store()) {
        Ok(None) => {}
        Ok(Some(index)) => return Err(Ok(Bad { index, finding: Finding::NotIndexed })),
        Err(error) => return Err(bad_of(error, first)),
    }
    fold.end_segment(segment.seal(), journal.cell()).map_err(Ok)?;
    let newest = journal.checkpoint().filter(|newest| newest.head() == fold.frontier.head());
    fold.check_charges(newest.and_then(Checkpoint::charges), first).map_err(Ok)
}

/// What `error` says about the journal, if it is about the journal.
fn bad_of(error: Error, otherwise: u64) -> Result<Bad, Error> {
    match error {
        Error::Segment { file, first_index, fault } => {
            let index = match fault {
                SegmentFault::Undecodable { index } => index,
                _ => first_index,
            };
            Ok(Bad { index, finding: Finding::SegmentDamaged { file, fault } })
        }
        Error::Damaged(damage) => {
            let index = damage.index().unwrap_or(otherwise);
            Ok(Bad { index, finding: Finding::StoreDamaged(damage) })
        }
        error => Err(error),
    }
}

/// What has been read so far.
#[derive(Default)]
pub(crate) struct Fold {
    frontier: Frontier,
    accounts: Accounts,
    time: Timestamp,
    segments: u32,
    /// Records in the segments that are good.
    sealed: u64,
    /// Ledger time of the first record since the segment began.
    first_time: Option<Timestamp>,
    /// The cell that the first record founds.
    founded: Option<CellId>,
    /// Each tenant's chain of charges.
    chains: Chains,
}

impl Fold {
    /// Records that were hashed.
    pub(crate) const fn size(&self) -> u64 {
        self.frontier.size()
    }

    /// The tree over them.
    pub(crate) const fn frontier(&self) -> &Frontier {
        &self.frontier
    }

    /// Segments that are good.
    pub(crate) const fn segments(&self) -> u32 {
        self.segments
    }

    /// Records in them.
    pub(crate) const fn sealed(&self) -> u64 {
        self.sealed
    }

    /// Each tenant's chain of charges.
    pub(crate) const fn chains(&self) -> &Chains {
        &self.chains
    }

    /// Whether `signed`, which a checkpoint of the records so far says of their charges, is so.
    pub(crate) fn check_charges(&self, signed: Option<TreeHead>, first: u64) -> Result<(), Bad> {
        let (size, found) = (self.frontier.size(), self.chains.head());
        match signed {
            Some(signed) if signed != found => {
                let finding = Finding::OtherCharges { size, signed, found };
                Err(Bad { index: first, finding })
            }
            Some(_) | None => Ok(()),
        }
    }

    /// The books.
    pub(crate) fn into_accounts(self) -> Accounts {
        self.accounts
    }

    /// Takes the tree of records that were posted and hashed elsewhere.
    pub(crate) fn hashed(&mut self, frontier: Frontier) {
        self.frontier = frontier;
    }

    /// Checks the record that has to come next, number `index`, posts it and adds its hash.
    pub(crate) fn record(&mut self, index: u64, bytes: &[u8]) -> Result<Record, Bad> {
        let (record, _) = self.book(index, bytes)?;
        self.frontier.append(Hash::of_leaf(bytes));
        Ok(record)
    }

    /// Checks the record that has to come next, number `index`, and posts it; what it adds to the
    /// chains of its tenants comes with it.
    pub(crate) fn book(&mut self, index: u64, bytes: &[u8]) -> Result<(Record, Links), Bad> {
        let bad = |finding| Bad { index, finding };
        let record = decode_record(bytes).map_err(|error| bad(unreadable(&error)))?;
        if record.index != index {
            return Err(bad(Finding::Misplaced { found: record.index }));
        }
        if encode_record(&record).map_err(|_| bad(Finding::NotCanonical))? != bytes {
            return Err(bad(Finding::NotCanonical));
        }
        if record.time < self.time {
            let (time, before) = (record.time, self.time);
            return Err(bad(Finding::TimeWentBack { time, before }));
        }
        self.accounts.post(&record).map_err(|error| bad(Finding::Posting(error)))?;
        if let Event::CellCreated { cell, .. } = &record.event {
            self.founded = Some(*cell);
        }
        self.time = record.time;
        self.first_time.get_or_insert(record.time);
        let links = self.chains.take(&record, bytes);
        Ok((record, links))
    }

    /// A segment begins with the next record.
    pub(crate) fn begin_segment(&mut self) {
        self.first_time = None;
    }

    /// All records of the segment were posted: what else it says has to be true of them.
    pub(crate) fn end_segment(&mut self, seal: &Seal, cell: CellId) -> Result<(), Bad> {
        let bad = |finding| Err(Bad { index: seal.first, finding });
        if self.first_time != Some(seal.first_time) || self.time != seal.last_time {
            return bad(Finding::OtherTimes);
        }
        if self.founded.is_some_and(|founded| founded != cell) {
            return bad(Finding::OtherCell);
        }
        if !self.accounts.is_balanced() {
            return bad(Finding::Unbalanced);
        }
        self.segments += 1;
        self.sealed = seal.end();
        Ok(())
    }

    fn report(self, first_bad: Option<Bad>) -> Result<Report, Error> {
        let (records, root) = (self.frontier.size(), self.frontier.root());
        let Self { segments, accounts, .. } = self;
        Ok(Report { records, root, segments, accounts, first_bad })
    }
}

fn unreadable(error: &codec::Error) -> Finding {
    match error {
        codec::Error::Version { found, known, .. } if found > known => {
            Finding::UnknownRecord { version: *found }
        }
        _ => Finding::Undecodable,
    }
}
