//! Reads a ledger from its first byte to its last and says where it is not what it should be.
//!
//! A segment is first hashed and compared with its root, so that a change of what is stored is
//! told as damage; only then it is decoded and posted, so that what is told about the books is
//! about records that are the ones that were sealed. Where there are checkpoints from before, the
//! whole chain is compared with them first. It stops at the first thing that is wrong.

use sublet_protocol::ids::CellId;
use sublet_protocol::records::Record;

use super::chain::{Chain, Stop};
use super::folder::{Folder, FolderError};
use super::tail::{Opened, StoreCopy, Tail};
use super::trust::{Signatures, Trust};
use crate::accounts::Accounts;
use crate::chains::{Chains, Links};
use crate::checkpoint::Checkpoint;
use crate::error::{Damage, SegmentFault};
use crate::index::Postings;
use crate::merkle::Hash;
use crate::segment::{Segment, padded};
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
    /// Whose signatures were checked and how far they reach.
    pub signatures: Signatures,
    /// Records up to the newest checkpoint that the auditor kept from before.
    pub confirmed: u64,
    /// The first thing that is wrong.
    pub first_bad: Option<Bad>,
}

impl Outcome {
    /// What kind of thing is wrong; `None` if nothing is.
    pub fn class(&self) -> Option<Class> {
        self.first_bad.as_ref().map(|bad| bad.finding.class())
    }
}

/// What a check has found good.
#[derive(Debug)]
pub enum Seen<'a> {
    /// The next record, and what it adds to the chains of its tenants if it is sealed.
    Record(&'a Record, &'a Links),
    /// The end of a segment.
    Sealed {
        /// What the key signed about the records so far, if it did.
        checkpoint: Option<&'a Checkpoint>,
        /// The chains of charges over them.
        chains: &'a Chains,
    },
}

/// A check of one folder.
#[derive(Debug)]
pub struct Audit<'a> {
    folder: &'a Folder,
    trust: Trust,
}

impl<'a> Audit<'a> {
    /// A check of `folder` by itself.
    pub fn new(folder: &'a Folder) -> Self {
        Self { folder, trust: Trust::default() }
    }

    /// Checks it against what the auditor trusts, too.
    #[must_use]
    pub fn trusting(self, trust: Trust) -> Self {
        Self { trust, ..self }
    }

    /// Checks every segment, record, root, signature and posting, and the unsealed records and the
    /// index if no broker has the ledger open. Keeps one segment and the books in memory; the store's
    /// copy, up to 32 MiB of it.
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
        self.run_watching(progress, |seen| match seen {
            Seen::Record(record, _) => visit(record),
            Seen::Sealed { .. } => {}
        })
    }

    /// As [`Audit::run_visiting`], and tells of each segment's end with what was signed there.
    ///
    /// # Errors
    /// As [`Audit::run`].
    pub fn run_watching(
        &self,
        mut progress: impl FnMut(Progress),
        mut visit: impl FnMut(Seen<'_>),
    ) -> Result<Outcome, FolderError> {
        let chain = Chain::new(self.folder, &self.trust)?;
        let (fold, store) = (Fold::default(), None);
        let mut run = Run { folder: self.folder, chain, fold, store, visit: &mut visit };
        match self.checked(&mut run, &mut progress) {
            Ok(tail) => Ok(run.outcome(tail, None)),
            Err(Stop::Bad(bad)) => Ok(run.outcome(Tail::NotReached, Some(bad))),
            Err(Stop::Folder(error)) => Err(error),
        }
    }

    fn checked<'s>(
        &'s self,
        run: &mut Run<'s>,
        progress: &mut impl FnMut(Progress),
    ) -> Result<Tail, Stop> {
        let passes = if self.trust.against.is_empty() { 1 } else { 2 };
        let of = self.folder.bytes().saturating_mul(passes);
        let mut seen = Progress { bytes: 0, of };
        let mut read = |segment: &Segment| {
            let length = u64::try_from(segment.bytes().len()).unwrap_or(u64::MAX);
            seen.bytes = seen.bytes.saturating_add(length);
            progress(seen);
        };
        if passes > 1 {
            let mut chain = Chain::new(self.folder, &self.trust)?;
            let walked = (|| {
                while let Some(segment) = chain.step()? {
                    read(&segment);
                }
                Ok(chain.end()?)
            })();
            if let Err(Stop::Bad(bad)) = walked {
                run.chain = chain;
                return Err(Stop::Bad(bad));
            }
            walked?;
        }
        let opened = StoreCopy::open(self.folder)?;
        let (left_out, unreadable) = match opened {
            Opened::Copy(copy) => {
                run.store = Some(copy);
                (None, None)
            }
            Opened::LeftOut(why) => (Some(why), None),
            Opened::Damaged(damage) => (None, Some(Finding::StoreDamaged(damage))),
            Opened::Newer { found } => (None, Some(Finding::UnknownStore { found })),
        };
        while let Some(segment) = run.chain.step()? {
            run.segment(&segment)?;
            read(&segment);
        }
        run.chain.end()?;
        if let Some(finding) = unreadable {
            return Err(Bad { index: run.fold.size(), finding }.into());
        }
        match left_out {
            Some(why) => Ok(why),
            None => Ok(Tail::Checked { records: run.tail()? }),
        }
    }
}

/// Checks `folder` by itself; see [`Audit::run`].
///
/// # Errors
/// The operating system failed.
pub fn check(folder: &Folder) -> Result<Outcome, FolderError> {
    Audit::new(folder).run(|_| ())
}

struct Run<'a> {
    folder: &'a Folder,
    chain: Chain<'a>,
    fold: Fold,
    store: Option<StoreCopy>,
    visit: &'a mut dyn FnMut(Seen<'_>),
}

impl Run<'_> {
    /// Decodes, posts and looks up the records of a segment whose hashes are right.
    fn segment(&mut self, segment: &Segment) -> Result<(), Bad> {
        let seal = *segment.seal();
        let mut postings = Postings::default();
        self.fold.begin_segment();
        for (index, bytes) in segment.records() {
            let (record, links) = self.fold.book(index, bytes)?;
            (self.visit)(Seen::Record(&record, &links));
            if self.store.is_some() {
                postings.add(&record);
            }
        }
        let cell = self.folder.cell().expect("a segment was read under its name");
        self.fold.end_segment(&seal, cell)?;
        self.fold.hashed(self.chain.frontier().clone());
        for signed in self.chain.charges() {
            self.fold.check_charges(Some(signed), seal.first)?;
        }
        let (checkpoint, chains) = (self.chain.beside(), self.fold.chains());
        (self.visit)(Seen::Sealed { checkpoint, chains });
        let indexed = self.store.as_ref().filter(|store| seal.number < store.segments());
        match indexed.map(|store| store.not_indexed(seal.first, &postings)) {
            None | Some(Ok(None)) => Ok(()),
            Some(Ok(Some(index))) => Err(Bad { index, finding: Finding::NotIndexed }),
            Some(Err(damage)) => {
                Err(Bad { index: seal.first, finding: Finding::StoreDamaged(damage) })
            }
        }
    }

    /// Checks the records that are not sealed; how many there are.
    fn tail(&mut self) -> Result<u64, Bad> {
        let sealed = self.fold.size();
        let bad = |index, damage| Bad { index, finding: Finding::StoreDamaged(damage) };
        let Some(store) = &self.store else { return Ok(0) };
        let (known, found) = (store.segments(), self.folder.segments());
        if known > found {
            let fault = SegmentFault::Fewer { known, found };
            let file = self.folder.file(found, "seg");
            return Err(Bad { index: sealed, finding: Finding::SegmentDamaged { file, fault } });
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
                    Ok(record) => visit(Seen::Record(&record, &Vec::new())),
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

    fn outcome(self, tail: Tail, first_bad: Option<Bad>) -> Outcome {
        let Self { chain, fold, .. } = self;
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
            signatures: chain.signatures().clone(),
            confirmed: chain.confirmed(),
            first_bad,
        }
    }
}
