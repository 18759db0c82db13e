//! Making proofs from a folder, and comparing two ledgers.

use std::ops::Range;

use sublet_protocol::codec::decode_record;
use sublet_protocol::ids::LeaseId;

use super::chain::{Chain, Stop};
use super::folder::{Folder, FolderError};
use super::trust::Trust;
use crate::checkpoint::Checkpoint;
use crate::merkle::{Hash, TreeHead, consistency_ranges, inclusion_ranges};
use crate::note::PublicKey;
use crate::proof::{Consistency, Fork, Inclusion};
use crate::segment::{Seal, Segment};
use crate::subtrees::{Subtrees, root_over};
use crate::verify::Bad;

/// Why no proof can be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProveError {
    /// The operating system failed.
    #[error("the ledger could not be read")]
    Folder(#[from] FolderError),
    /// The ledger is not whole.
    #[error("the ledger is damaged from record {} on", .0.index)]
    Damaged(Bad),
    /// No checkpoint in the folder is signed by the key.
    #[error("no checkpoint in {0} is signed by the key; nothing can be proven without one")]
    NoCheckpoint(String),
    /// The record is not covered by a signed checkpoint, or not there.
    #[error(
        "record {index} is not covered: the newest signed checkpoint ends before record {signed}"
    )]
    NotCovered {
        /// The record.
        index: u64,
        /// Records that the checkpoint covers.
        signed: u64,
    },
    /// No sealed record names the lease.
    #[error("no sealed record names lease {0}")]
    NoLease(LeaseId),
    /// The earlier checkpoint is the later one, or of another history.
    #[error("the ledger does not extend the checkpoint of {0} records")]
    NotExtended(u64),
}

impl From<Stop> for ProveError {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Bad(bad) => Self::Damaged(bad),
            Stop::Folder(error) => Self::Folder(error),
        }
    }
}

/// A whole ledger with its inner nodes: makes proofs.
#[derive(Debug)]
pub struct Prover<'a> {
    folder: &'a Folder,
    seals: Vec<Seal>,
    nodes: Subtrees,
    head: TreeHead,
    key: Option<PublicKey>,
    newest: Option<Checkpoint>,
    /// The segment that was read last.
    segment: Option<Segment>,
}

impl<'a> Prover<'a> {
    /// Reads the sealed part of `folder` once. Keeps a quarter of a byte for each record. `key` is
    /// whose checkpoints count; without one, that which the folder names.
    ///
    /// # Errors
    /// [`ProveError::Damaged`], [`ProveError::Folder`].
    pub fn new(folder: &'a Folder, key: Option<PublicKey>) -> Result<Self, ProveError> {
        let trust = Trust { key, ..Trust::default() };
        let mut chain = Chain::new(folder, &trust)?;
        let (mut nodes, mut seals) = (Subtrees::default(), Vec::new());
        while let Some(segment) = chain.step()? {
            segment.records().for_each(|(_, record)| nodes.push(Hash::of_leaf(record)));
            seals.push(*segment.seal());
        }
        let (head, signatures) = (chain.frontier().head(), chain.signatures().clone());
        let (key, newest) = (signatures.key, signatures.newest);
        Ok(Self { folder, seals, nodes, head, key, newest, segment: None })
    }

    /// Size and root of the sealed part.
    pub const fn head(&self) -> TreeHead {
        self.head
    }

    /// Whose checkpoints count, if a key is known.
    pub const fn key(&self) -> Option<&PublicKey> {
        self.key.as_ref()
    }

    /// The newest checkpoint that the key signed.
    ///
    /// # Errors
    /// [`ProveError::NoCheckpoint`].
    pub fn newest(&self) -> Result<&Checkpoint, ProveError> {
        let none = || ProveError::NoCheckpoint(self.folder.dir().display().to_string());
        self.newest.as_ref().ok_or_else(none)
    }

    /// Proves that record `index` is in the ledger of the newest checkpoint.
    ///
    /// # Errors
    /// [`ProveError::NotCovered`], [`ProveError::NoCheckpoint`].
    pub fn inclusion(&mut self, index: u64) -> Result<Inclusion, ProveError> {
        let checkpoint = self.newest()?.clone();
        let signed = checkpoint.head().size;
        let ranges = inclusion_ranges(index, signed);
        let ranges = ranges.ok_or(ProveError::NotCovered { index, signed })?;
        let path = self.roots(ranges)?;
        let record =
            self.with_segment(index, |segment| segment.record(index).map(<[u8]>::to_vec))?;
        Ok(Inclusion { index, path, record, checkpoint })
    }

    /// Proves that the ledger of the newest checkpoint extends that of `old`.
    ///
    /// # Errors
    /// [`ProveError::NotExtended`], [`ProveError::NoCheckpoint`].
    pub fn consistency(&mut self, old: &Checkpoint) -> Result<Consistency, ProveError> {
        let new = self.newest()?.clone();
        let (size, not_extended) = (old.head().size, ProveError::NotExtended(old.head().size));
        if size > new.head().size || self.root_at(size)? != old.head().root {
            return Err(not_extended);
        }
        let ranges = consistency_ranges(size, new.head().size).unwrap_or_default();
        Ok(Consistency { path: self.roots(ranges)?, old: old.clone(), new })
    }

    /// Proves that `one` and the newest checkpoint here, which is as long or longer, contradict each
    /// other; `None` if they do not.
    ///
    /// # Errors
    /// [`ProveError::NoCheckpoint`], [`ProveError::Folder`].
    pub fn fork(&mut self, one: &Checkpoint) -> Result<Option<Fork>, ProveError> {
        let other = self.newest()?.clone();
        let size = one.head().size;
        if size > other.head().size {
            return Ok(None);
        }
        let prefix = self.root_at(size)?;
        if prefix == one.head().root {
            return Ok(None);
        }
        let ranges = consistency_ranges(size, other.head().size).unwrap_or_default();
        Ok(Some(Fork { prefix, path: self.roots(ranges)?, one: one.clone(), other }))
    }

    /// The sealed records that name a lease, ascending.
    ///
    /// # Errors
    /// [`ProveError::NoLease`], [`ProveError::Folder`].
    pub fn of_lease(&mut self, lease: LeaseId) -> Result<Vec<u64>, ProveError> {
        let mut found = Vec::new();
        for first in self.seals.iter().map(|seal| seal.first).collect::<Vec<_>>() {
            let named = self.with_segment(first, |segment| {
                let names = |bytes: &[u8]| {
                    decode_record(bytes).is_ok_and(|record| record.event.lease() == Some(lease))
                };
                let records = segment.records().filter(|(_, bytes)| names(bytes));
                records.map(|(index, _)| index).collect::<Vec<_>>()
            })?;
            found.extend(named);
        }
        if found.is_empty() { Err(ProveError::NoLease(lease)) } else { Ok(found) }
    }

    /// The root over the first `size` sealed records.
    ///
    /// # Errors
    /// [`ProveError::Folder`].
    pub fn root_at(&mut self, size: u64) -> Result<Hash, ProveError> {
        if size == 0 {
            return Ok(Hash::of_nothing());
        }
        let all = std::iter::once(0..size.min(self.head.size)).collect();
        self.roots(all).map(|roots| roots[0])
    }

    /// The first record in which two ledgers differ, as far as both go; `None` if they do not. Goes
    /// down the tree, so it reads a segment of each.
    ///
    /// # Errors
    /// [`ProveError::Folder`].
    pub fn first_difference(&mut self, other: &mut Self) -> Result<Option<u64>, ProveError> {
        let (mut low, mut high) = (0, self.head.size.min(other.head.size));
        if self.root_at(high)? == other.root_at(high)? {
            return Ok(None);
        }
        // The first `low` records are alike, the first `high` are not.
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.root_at(middle)? == other.root_at(middle)? {
                low = middle;
            } else {
                high = middle;
            }
        }
        Ok(Some(low))
    }

    fn roots(&mut self, ranges: Vec<Range<u64>>) -> Result<Vec<Hash>, ProveError> {
        let nodes = std::mem::take(&mut self.nodes);
        let mut hash = |run: Range<u64>| self.hash(run);
        let roots = ranges.into_iter().map(|range| nodes.root(range, &mut hash)).collect();
        self.nodes = nodes;
        roots
    }

    /// The root over a short run of leaves, from the records.
    fn hash(&mut self, run: Range<u64>) -> Result<Hash, ProveError> {
        let mut leaves = Vec::new();
        let mut next = run.start;
        while next < run.end {
            let more = self.with_segment(next, |segment| {
                let records =
                    segment.records().filter(|(index, _)| (next..run.end).contains(index));
                records.map(|(_, record)| Hash::of_leaf(record)).collect::<Vec<_>>()
            })?;
            next += u64::try_from(more.len()).expect("a length fits in 64 bits");
            leaves.extend(more);
        }
        Ok(root_over(leaves.into_iter()))
    }

    /// Reads the segment that holds the sealed record `index`, which was read before.
    fn with_segment<T>(
        &mut self,
        index: u64,
        read: impl FnOnce(&Segment) -> T,
    ) -> Result<T, ProveError> {
        if let Some(segment) = self.segment.as_ref().filter(|s| s.record(index).is_some()) {
            return Ok(read(segment));
        }
        let place = self.seals.partition_point(|seal| seal.end() <= index);
        let seal = self.seals.get(place).copied();
        let seal = seal.ok_or(ProveError::NotCovered { index, signed: self.head.size })?;
        let before = match place.checked_sub(1).and_then(|place| self.seals.get(place)) {
            Some(before) => TreeHead { size: before.end(), root: before.root },
            None => TreeHead { size: 0, root: Hash::of_nothing() },
        };
        let changed = |fault| {
            let file = self.folder.file(seal.number, "seg");
            let finding = crate::verify::Finding::SegmentDamaged { file, fault };
            ProveError::Damaged(Bad { index: seal.first, finding })
        };
        let bytes = self.folder.segment(seal.number)?;
        let bytes = bytes.ok_or_else(|| changed(crate::error::SegmentFault::Missing))?;
        let cell = self.folder.cell().expect("its segments were read");
        let segment = Segment::parse(bytes, cell, seal.number, before).map_err(changed)?;
        let result = read(&segment);
        self.segment = Some(segment);
        Ok(result)
    }
}
