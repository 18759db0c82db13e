//! The sealed part without its meaning: segments, hashes, roots, signatures.

use std::collections::BTreeMap;

use super::folder::{Folder, FolderError, read_capped};
use super::locate;
use super::trust::{Signatures, Trust};
use crate::archive::PUBLIC_KEY;
use crate::checkpoint::Checkpoint;
use crate::error::SegmentFault;
use crate::merkle::{Frontier, Hash, TreeHead};
use crate::note::{NOTE_BYTES_MAX, PublicKey, Signed};
use crate::segment::{Segment, VERSION};
use crate::verify::{Bad, Finding};

/// What can stop a walk.
pub(super) enum Stop {
    /// Something is wrong.
    Bad(Bad),
    /// The operating system failed.
    Folder(FolderError),
}

impl From<Bad> for Stop {
    fn from(bad: Bad) -> Self {
        Self::Bad(bad)
    }
}

impl From<FolderError> for Stop {
    fn from(error: FolderError) -> Self {
        Self::Folder(error)
    }
}

/// Walks along the segments of a folder; each has to follow the one before it.
pub(super) struct Chain<'a> {
    folder: &'a Folder,
    trust: &'a Trust,
    next: u32,
    /// What was signed beside the segment of the last step.
    beside: Option<Checkpoint>,
    frontier: Frontier,
    signatures: Signatures,
    /// Records up to the newest kept checkpoint that this ledger extends.
    confirmed: u64,
    /// Roots of the sizes that kept checkpoints name, as they are passed.
    roots: BTreeMap<u64, Option<Hash>>,
}

impl<'a> Chain<'a> {
    /// A walk from the first segment on.
    pub(super) fn new(folder: &'a Folder, trust: &'a Trust) -> Result<Self, FolderError> {
        let own = match trust.key {
            Some(_) => None,
            None => public_key(folder)?,
        };
        let is_pinned = trust.key.is_some();
        let key = trust.key.clone().or(own);
        let (signed, witnessed, without, newest) = (0, 0, Vec::new(), None);
        let signatures = Signatures { key, is_pinned, signed, witnessed, without, newest };
        let sizes = trust.against.iter().map(|checkpoint| (checkpoint.head().size, None));
        let mut chain = Self {
            folder,
            trust,
            next: 0,
            beside: None,
            frontier: Frontier::new(),
            signatures,
            confirmed: 0,
            roots: sizes.collect(),
        };
        chain.note_root();
        Ok(chain)
    }

    /// The tree over the records so far.
    pub(super) const fn frontier(&self) -> &Frontier {
        &self.frontier
    }

    /// Whose signatures were found so far.
    pub(super) const fn signatures(&self) -> &Signatures {
        &self.signatures
    }

    /// Records up to the newest kept checkpoint that the ledger extends.
    pub(super) const fn confirmed(&self) -> u64 {
        self.confirmed
    }

    /// The checkpoint that the key signed beside the segment of the last step.
    pub(super) const fn beside(&self) -> Option<&Checkpoint> {
        self.beside.as_ref()
    }

    /// What checkpoints of just the records so far say of their charges: the one beside the segment
    /// of the last step, and those that were kept.
    pub(super) fn charges(&self) -> impl Iterator<Item = TreeHead> {
        let size = self.frontier.size();
        let kept = self.trust.against.iter().filter(move |kept| kept.head().size == size);
        self.beside.iter().chain(kept).filter_map(Checkpoint::charges)
    }

    /// The next segment, if there is one more; its bytes, hashes and checkpoint are good.
    pub(super) fn step(&mut self) -> Result<Option<Segment>, Stop> {
        if self.next >= self.folder.segments() {
            return Ok(None);
        }
        let (number, index) = (self.next, self.frontier.size());
        let Some(bytes) = self.folder.segment(number)? else {
            return Err(Bad { index, finding: self.damaged(number, SegmentFault::Missing) }.into());
        };
        let segment = self.segment(number, bytes)?;
        self.signed(number, index)?;
        if self.beside.is_none() {
            self.signatures.without.push(number);
        }
        self.next += 1;
        Ok(Some(segment))
    }

    fn segment(&mut self, number: u32, bytes: Vec<u8>) -> Result<Segment, Bad> {
        let (first, cell) = (self.frontier.size(), self.folder.cell());
        let parsed = match cell {
            Some(cell) => Segment::parse_or_give_back(bytes, cell, number, self.frontier.head()),
            None => Err((SegmentFault::Magic, bytes)),
        };
        let segment = match parsed {
            Ok(segment) => segment,
            Err((SegmentFault::Version { version }, _)) if version > VERSION => {
                return Err(Bad { index: first, finding: Finding::UnknownSegment { version } });
            }
            Err((fault, bytes)) => {
                let index = locate::first_bad(&bytes, cell, number, &self.frontier);
                let finding = self.damaged(number, fault);
                return Err(Bad { index: index.unwrap_or(first), finding });
            }
        };
        for (_, record) in segment.records() {
            self.frontier.append(Hash::of_leaf(record));
            self.note_root();
        }
        if self.frontier != *segment.frontier() {
            let index = locate::first_wrong(segment.records()).unwrap_or(first);
            let (noted, found) = (segment.seal().root, self.frontier.root());
            return Err(Bad { index, finding: Finding::Root { noted, found } });
        }
        Ok(segment)
    }

    /// Checks the checkpoint beside segment `number`, which begins with record `first`.
    fn signed(&mut self, number: u32, first: u64) -> Result<(), Stop> {
        self.beside = None;
        let file = self.folder.file(number, "ckpt");
        let Some(bytes) = read_capped(&file, NOTE_BYTES_MAX)? else { return Ok(()) };
        let text = String::from_utf8(bytes).ok();
        let bad = |index, finding| Err(Stop::Bad(Bad { index, finding }));
        let Some(found) = text.and_then(|text| text.parse::<Checkpoint>().ok()) else {
            return bad(first, Finding::CheckpointDamaged { file });
        };
        let said = match &self.signatures.key {
            Some(key) if found.origin() == key.name() => found.signed_by(key),
            _ => Signed::No,
        };
        let head = self.frontier.head();
        match said {
            Signed::Forged => bad(first, Finding::CheckpointForged { file }),
            // From the last signed record on nobody vouches for what is there.
            _ if found.head() != head => {
                let (signed, found) = (found.head(), head);
                bad(self.signatures.signed, Finding::OtherRootSigned { signed, found })
            }
            Signed::Yes { .. } => {
                self.signatures.signed = head.size;
                if !self.trust.witnesses.is_empty() && self.trust.is_witnessed(&found) {
                    self.signatures.witnessed = head.size;
                }
                self.signatures.newest = Some(found.clone());
                self.beside = Some(found);
                Ok(())
            }
            Signed::No => Ok(()),
        }
    }

    /// After the last segment: whether what has to be signed is, and whether the ledger extends what
    /// was kept from before.
    pub(super) fn end(&mut self) -> Result<(), Bad> {
        let sealed = self.frontier.size();
        let Signatures { is_pinned, signed, .. } = self.signatures;
        let mut kept: Vec<&Checkpoint> = self.trust.against.iter().collect();
        kept.sort_by_key(|checkpoint| checkpoint.head().size);
        for checkpoint in kept {
            let TreeHead { size, root } = checkpoint.head();
            match self.roots.get(&size).copied().flatten() {
                Some(found) if found == root => {
                    self.confirmed = size;
                    if !self.trust.witnesses.is_empty() && self.trust.is_witnessed(checkpoint) {
                        self.signatures.witnessed = self.signatures.witnessed.max(size);
                    }
                }
                Some(found) => return Err(self.contradiction(checkpoint, found)),
                None => {
                    let finding = Finding::RolledBack { size, found: sealed };
                    return Err(Bad { index: sealed, finding });
                }
            }
        }
        if is_pinned && signed < sealed {
            return Err(Bad { index: signed, finding: Finding::NotSigned });
        }
        let is_wanted = !self.trust.witnesses.is_empty() && sealed > 0;
        if is_wanted && self.signatures.witnessed == 0 {
            return Err(Bad { index: 0, finding: Finding::NotWitnessed });
        }
        Ok(())
    }

    /// The kept checkpoint has another root than the ledger: a fork if the key has signed both.
    fn contradiction(&self, kept: &Checkpoint, found: Hash) -> Bad {
        let TreeHead { size, root } = kept.head();
        let newest = self.signatures.newest.as_ref().filter(|newest| newest.head().size >= size);
        let finding = match newest {
            Some(newest) => Finding::Fork {
                kept: Box::new(kept.clone()),
                signed: Box::new(newest.clone()),
                prefix: found,
            },
            None => {
                let (signed, found) = (kept.head(), TreeHead { size, root: found });
                debug_assert_ne!(root, found.root, "the caller compared them");
                Finding::OtherRootSigned { signed, found }
            }
        };
        Bad { index: self.confirmed, finding }
    }

    /// Keeps the root if a kept checkpoint is of this size.
    fn note_root(&mut self) {
        if self.roots.is_empty() {
            return;
        }
        if let Some(root) = self.roots.get_mut(&self.frontier.size()) {
            *root = Some(self.frontier.root());
        }
    }

    fn damaged(&self, number: u32, fault: SegmentFault) -> Finding {
        Finding::SegmentDamaged { file: self.folder.file(number, "seg"), fault }
    }
}

/// The key that the folder itself names.
fn public_key(folder: &Folder) -> Result<Option<PublicKey>, FolderError> {
    let path = folder.dir().join("archive").join(PUBLIC_KEY);
    let bytes = read_capped(&path, NOTE_BYTES_MAX)?;
    let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
    Ok(text.and_then(|text| text.parse().ok()))
}
