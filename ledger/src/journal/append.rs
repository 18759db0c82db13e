//! Writing: append, seal, sync.

use sublet_protocol::codec::encode_record;
use sublet_protocol::records::Record;

use super::{Appended, Cursor, Journal, tail};
use crate::accounts::check_posting;
use crate::error::{Error, Refusal};
use crate::merkle::Hash;
use crate::page::{PAGE_BYTES_FULL, PageBuilder};
use crate::segment::Seal;
use crate::store::Batch;

impl Journal {
    /// Appends the records of one raft entry, all or none. Records that are there already with
    /// equal bytes are skipped, so replaying the log is safe. Not durable until a seal or
    /// [`Journal::sync`]: the raft log is. Written to the store once a page is full, since a commit
    /// for each entry costs more than the records in it and makes nothing safer.
    ///
    /// # Errors
    /// [`Error::Diverged`] when a record differs from the one journalled under its index.
    /// [`Error::Refused`] when the records leave a gap, go back in time, do not balance or cannot
    /// be encoded; nothing was changed then. After [`Error::Damaged`] and [`Error::Io`] the
    /// journal has to be opened again.
    pub fn append(&mut self, cursor: Cursor, records: &[Record]) -> Result<Appended, Error> {
        let first = records.first().map_or(0, |first| first.index.min(self.size()));
        let mut time = self.last_time();
        let (mut leaves, mut new) = (Vec::with_capacity(records.len()), Vec::new());
        for (expected, record) in (first..).zip(records) {
            let index = record.index;
            let refused = |why| Error::Refused { index, why };
            if index != expected {
                return Err(refused(Refusal::Gap { expected }));
            }
            let bytes = encode_record(record).map_err(|_| refused(Refusal::TooLarge))?;
            let leaf = Hash::of_leaf(&bytes);
            leaves.push(leaf);
            if index < self.size() {
                self.check_equal(index, &bytes, leaf)?;
                continue;
            }
            if time.is_some_and(|time| record.time < time) {
                return Err(refused(Refusal::TimeWentBack));
            }
            time = Some(record.time);
            check_posting(record.lines()).map_err(|_| refused(Refusal::Unbalanced))?;
            new.push((record, bytes, leaf));
        }
        // The store's cursor may lag: it is a lower bound.
        self.cursor = self.cursor.max(Some(cursor));
        let (added, skipped) = (new.len(), records.len() - new.len());
        self.take(new)?;
        Ok(Appended { added, skipped, leaves, head: self.head() })
    }

    /// Takes in checked records, and writes once they fill a page.
    fn take(&mut self, new: Vec<(&Record, Vec<u8>, Hash)>) -> Result<(), Error> {
        for (record, bytes, leaf) in new {
            self.tail.fresh.push(bytes);
            self.tail.add(record, leaf);
        }
        let waiting: usize = self.tail.fresh.iter().map(Vec::len).sum();
        if waiting < PAGE_BYTES_FULL { Ok(()) } else { self.flush() }
    }

    /// Writes what is in no page yet: pages and description in one commit.
    pub(super) fn flush(&mut self) -> Result<(), Error> {
        let (mut batch, mut pages) = (Batch::default(), Vec::new());
        let mut page = PageBuilder::new(self.tail.fresh_from());
        for (index, bytes) in (page.first()..).zip(&self.tail.fresh) {
            if !page.has_room_for(bytes.len()) {
                let full = std::mem::replace(&mut page, PageBuilder::new(index));
                pages.push(tail::put_page(&mut batch, full));
            }
            page.push(bytes);
        }
        if page.count() > 0 {
            pages.push(tail::put_page(&mut batch, page));
        }
        self.meta(self.head()).put(&mut batch);
        self.store.commit(batch)?;
        self.tail.pages.extend(pages);
        self.tail.fresh.clear();
        Ok(())
    }

    fn check_equal(&self, index: u64, bytes: &[u8], theirs: Hash) -> Result<(), Error> {
        self.with_record(index, |ours| match ours {
            _ if ours == bytes => Ok(()),
            _ => Err(Error::Diverged { index, ours: Hash::of_leaf(ours), theirs }),
        })?
    }

    /// Seals the tail up to and with record `upto` into segments (one, unless it is very large)
    /// that are on the disk when this returns. Sealing again up to the end of a segment changes
    /// nothing, so replaying the log is safe.
    ///
    /// Whoever calls it passes the record before `TailSealed`, on every replica: that event opens
    /// the next segment, and a snapshot taken behind it carries the records after the seal.
    ///
    /// # Errors
    /// [`Error::SealDiverged`] when an earlier segment ends elsewhere; [`Error::Refused`] when
    /// there is no record `upto`.
    pub fn seal(&mut self, upto: u64) -> Result<Seal, Error> {
        if upto >= self.size() {
            return Err(Error::Refused { index: upto, why: Refusal::SealPastEnd });
        }
        if upto < self.archive.frontier().size() {
            let seals = self.archive.seals();
            let seal = seals[seals.partition_point(|seal| seal.end() <= upto)];
            let (segment, ends_there) = (seal.number, seal.end() - 1 == upto);
            return if ends_there { Ok(seal) } else { Err(Error::SealDiverged { upto, segment }) };
        }
        self.flush()?;
        loop {
            let sealed = self.archive.frontier().size();
            let mut builder = self.archive.next_segment();
            self.visit(sealed..upto + 1, |index, bytes| {
                builder.push(tail::decode(index, bytes)?.time, bytes);
                Ok(!builder.is_full())
            })?;
            let segment = self.archive.add(builder)?;
            self.absorb_last(&segment)?;
            self.sign_last()?;
            if segment.seal().end() > upto {
                return Ok(*segment.seal());
            }
        }
    }

    /// Returns once every record is on the disk.
    ///
    /// # Errors
    /// After a failed sync the process must stop: what is on the disk is unknown.
    pub fn sync(&mut self) -> Result<(), Error> {
        self.flush()?;
        self.store.sync()
    }
}
