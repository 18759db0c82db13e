//! Reading: by index, lease, request, tenant and time; proofs.

use std::ops::Range;
use std::sync::PoisonError;

use sublet_protocol::ids::{LeaseId, RequestId, RollbackId, TenantId};
use sublet_protocol::records::Record;
use sublet_protocol::units::Timestamp;

use super::{Journal, tail};
use crate::error::{Damage, Error, SegmentFault};
use crate::index::{self, Key};
use crate::merkle::{self, Frontier, Hash};
use crate::page;

impl Journal {
    /// Record `index`; `None` behind the end.
    pub fn record(&self, index: u64) -> Result<Option<Record>, Error> {
        if index >= self.size() {
            return Ok(None);
        }
        self.with_record(index, |bytes| self.decode(index, bytes))?.map(Some)
    }

    /// At most `limit` records from index `from` on.
    pub fn range(&self, from: u64, limit: usize) -> Result<Vec<Record>, Error> {
        let most = u64::try_from(limit).unwrap_or(u64::MAX);
        let mut records = Vec::new();
        self.visit(from..from.saturating_add(most), |index, bytes| {
            records.push(self.decode(index, bytes)?);
            Ok(true)
        })?;
        Ok(records)
    }

    /// All records that name the lease, in order.
    pub fn by_lease(&self, lease: LeaseId) -> Result<Vec<Record>, Error> {
        self.look_up(Key::Subject(lease.get()), 0, usize::MAX)
    }

    /// All records that name the request, in order. Those between grant and end name the lease.
    pub fn by_request(&self, request: RequestId) -> Result<Vec<Record>, Error> {
        self.look_up(Key::Subject(request.get()), 0, usize::MAX)
    }

    /// All records that name the rollback, in order: what it did, and what it turned.
    pub fn by_rollback(&self, rollback: RollbackId) -> Result<Vec<Record>, Error> {
        self.look_up(Key::Subject(rollback.get()), 0, usize::MAX)
    }

    /// At most `limit` records of the tenant's business behind index `after` (`None`: from the
    /// beginning), in order.
    pub fn by_tenant(
        &self,
        tenant: TenantId,
        after: Option<u64>,
        limit: usize,
    ) -> Result<Vec<Record>, Error> {
        let from = after.map_or(0, |after| after.saturating_add(1));
        self.look_up(Key::Tenant(tenant), from, limit)
    }

    /// Index of the last record whose ledger time is not after `time`; `None` before the first.
    pub fn at_time(&self, time: Timestamp) -> Result<Option<u64>, Error> {
        let seals = self.seals();
        let place = seals.partition_point(|seal| seal.last_time <= time);
        let (mut low, mut high) = match seals.get(place) {
            Some(seal) => (seal.first, seal.end()),
            None => (self.archive.frontier().size(), self.size()),
        };
        while low < high {
            let middle = low + (high - low) / 2;
            let is_later = self.with_record(middle, |bytes| self.decode(middle, bytes))??;
            if is_later.time <= time { low = middle + 1 } else { high = middle }
        }
        Ok(low.checked_sub(1))
    }

    /// The proof that record `index` is in the journal of the first `size` records. Hashes what
    /// [`Journal::prepare_proofs`] has not. `None` when `index` is not below `size` or `size` is
    /// above the journal's.
    pub fn inclusion_proof(&self, index: u64, size: u64) -> Result<Option<Vec<Hash>>, Error> {
        self.proof(size, merkle::inclusion_ranges(index, size))
    }

    /// The proof that the journal of the first `new` records extends that of the first `old`.
    /// `None` when `old` is above `new` or `new` above the journal's size.
    pub fn consistency_proof(&self, old: u64, new: u64) -> Result<Option<Vec<Hash>>, Error> {
        self.proof(new, merkle::consistency_ranges(old, new))
    }

    /// The root over the first `size` records; `None` above the journal's size.
    pub fn root_at(&self, size: u64) -> Result<Option<Hash>, Error> {
        if size > self.size() {
            return Ok(None);
        }
        let nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.root(0..size, &mut |run| self.root_of(run)).map(Some)
    }

    /// Reads segment `number` from the disk again and hashes its records; `false` if there is no such
    /// segment. Appends wait for some milliseconds for each 4,096 records.
    ///
    /// # Errors
    /// [`Error::Segment`] when it is not what was sealed, [`Error::Io`].
    pub fn scrub(&self, number: u32) -> Result<bool, Error> {
        if number >= self.archive.next_number() {
            return Ok(false);
        }
        let segment = self.archive.read_again(number)?;
        let before = number.checked_sub(1).map(|before| self.archive.read_again(before));
        let mut tree = match before.transpose() {
            Ok(before) => before.map_or_else(Frontier::new, |before| before.frontier().clone()),
            // That one's fault, told when it is read itself; this one has its check sum.
            Err(_) => return Ok(true),
        };
        segment.records().for_each(|(_, record)| tree.append(Hash::of_leaf(record)));
        let is_good =
            tree == *segment.frontier() && self.seals().iter().any(|seal| seal == segment.seal());
        if is_good { Ok(true) } else { Err(self.archive.bad(number, SegmentFault::Root)) }
    }

    /// Hashes at most `limit` more of the sealed records, so that proofs need not: `true` once all
    /// are. Without it a proof hashes them again each time.
    pub fn prepare_proofs(&self, limit: u64) -> Result<bool, Error> {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let sealed = self.archive.frontier().size();
        let end = sealed.min(nodes.size().saturating_add(limit));
        self.visit(nodes.size()..end, |_, bytes| {
            nodes.push(Hash::of_leaf(bytes));
            Ok(true)
        })?;
        Ok(end == sealed)
    }

    fn proof(
        &self,
        size: u64,
        ranges: Option<Vec<Range<u64>>>,
    ) -> Result<Option<Vec<Hash>>, Error> {
        let Some(ranges) = ranges.filter(|_| size <= self.size()) else { return Ok(None) };
        let nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let root = |range| nodes.root(range, &mut |run| self.root_of(run));
        ranges.into_iter().map(root).collect::<Result<_, _>>().map(Some)
    }

    fn root_of(&self, range: Range<u64>) -> Result<Hash, Error> {
        let mut tree = Frontier::new();
        self.visit(range, |_, bytes| {
            tree.append(Hash::of_leaf(bytes));
            Ok(true)
        })?;
        Ok(tree.root())
    }

    fn look_up(&self, key: Key, from: u64, limit: usize) -> Result<Vec<Record>, Error> {
        let sealed_end = self.archive.frontier().size();
        let mut indexes = index::sealed(&*self.store, key, from, limit)?;
        if let Some(index) = indexes.iter().copied().find(|index| *index >= sealed_end) {
            return Err(Damage::Index { index }.into());
        }
        let tail = self.tail.postings.of(key);
        let tail = &tail[tail.partition_point(|index| *index < from)..];
        indexes.extend(tail.iter().take(limit - indexes.len()));
        let record = |index| self.with_record(index, |bytes| self.decode(index, bytes))?;
        indexes.into_iter().map(record).collect()
    }

    fn decode(&self, index: u64, bytes: &[u8]) -> Result<Record, Error> {
        tail::decode(index, bytes).map_err(|damage| match self.archive.segment_of(index) {
            Ok(Some(segment)) => {
                self.archive.bad(segment.seal().number, SegmentFault::Undecodable { index })
            }
            Ok(None) => damage.into(),
            Err(error) => error,
        })
    }

    /// Calls `read` with the bytes of record `index`, which is below the journal's size.
    pub(super) fn with_record<T>(
        &self,
        index: u64,
        read: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, Error> {
        if let Some(segment) = self.archive.segment_of(index)? {
            let bytes = segment.record(index).ok_or(Damage::Missing { index })?;
            return Ok(read(bytes));
        }
        if let Some(bytes) = self.tail.fresh_record(index) {
            return Ok(read(bytes));
        }
        let place = self.tail.page_of(index).ok_or(Damage::Missing { index })?;
        let bytes = tail::read_page(&*self.store, place.first, place.chunks)?;
        let records = page::records(place.first, &bytes)?;
        let place = usize::try_from(index - place.first).ok().and_then(|at| records.get(at));
        Ok(read(place.ok_or(Damage::Missing { index })?))
    }

    /// As [`Journal::visit`] for the tail, but finds its pages in the store and not by what is
    /// known of them; for the verifier.
    pub(crate) fn visit_tail_on_disk(
        &self,
        mut visit: impl FnMut(u64, &[u8]),
    ) -> Result<(), Error> {
        let mut expected = self.archive.frontier().size();
        for place in tail::pages(&*self.store)? {
            if place.first != expected {
                return Err(Damage::Missing { index: expected }.into());
            }
            let bytes = tail::read_page(&*self.store, place.first, place.chunks)?;
            for record in page::records(place.first, &bytes)? {
                visit(expected, record);
                expected += 1;
            }
        }
        if expected != self.tail.fresh_from() {
            return Err(Damage::Missing { index: expected }.into());
        }
        (expected..).zip(&self.tail.fresh).for_each(|(index, record)| visit(index, record));
        Ok(())
    }

    /// Calls `visit` with each record in `range`, as far as there are, until it says `false`.
    /// Holds one segment or page in memory.
    pub(crate) fn visit(
        &self,
        range: Range<u64>,
        mut visit: impl FnMut(u64, &[u8]) -> Result<bool, Error>,
    ) -> Result<(), Error> {
        let end = range.end.min(self.size());
        let mut next = range.start;
        while next < end {
            if let Some(segment) = self.archive.segment_of(next)? {
                while let Some(bytes) = segment.record(next).filter(|_| next < end) {
                    if !visit(next, bytes)? {
                        return Ok(());
                    }
                    next += 1;
                }
                continue;
            }
            if let Some(bytes) = self.tail.fresh_record(next) {
                if !visit(next, bytes)? {
                    return Ok(());
                }
                next += 1;
                continue;
            }
            let place = self.tail.page_of(next).ok_or(Damage::Missing { index: next })?;
            let bytes = tail::read_page(&*self.store, place.first, place.chunks)?;
            let records = page::records(place.first, &bytes)?;
            for (index, record) in (place.first..).zip(records) {
                if index >= end || (index == next && !visit(index, record)?) {
                    return Ok(());
                }
                next = next.max(index + 1);
            }
        }
        Ok(())
    }
}
