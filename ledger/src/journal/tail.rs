//! The tail: the records that are not sealed yet. The last few are in memory until they fill a
//! page; the others are pages in tree `records`.
//!
//! A page's key is its first index ‖ chunk number, both big-endian; a page above 16 KiB (one large
//! record) is kept in several chunks, which are written and removed together.

use sublet_protocol::codec::decode_record;
use sublet_protocol::records::Record;
use sublet_protocol::units::Timestamp;

use crate::error::{Damage, Error};
use crate::index::Postings;
use crate::merkle::{Frontier, Hash, TreeHead};
use crate::page::{self, PAGE_BYTES_FULL, PAGE_BYTES_MAX, PageBuilder};
use crate::store::{Batch, Store, Tree};

/// Chunks of a page at most.
const CHUNKS_MAX: usize = PAGE_BYTES_MAX.div_ceil(PAGE_BYTES_FULL);

/// A page in the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Page {
    /// Index of its first record.
    pub(super) first: u64,
    /// Index of the record after its last.
    pub(super) end: u64,
    /// Values it is kept in.
    pub(super) chunks: u16,
}

/// What is known of the tail without the store.
pub(super) struct Tail {
    /// Its pages, in order, without a gap.
    pub(super) pages: Vec<Page>,
    /// The canonical bytes of its last records, which are in no page yet.
    pub(super) fresh: Vec<Vec<u8>>,
    /// Which of its records touch which ids.
    pub(super) postings: Postings,
    /// Frontier of the whole journal.
    pub(super) frontier: Frontier,
    /// Ledger time of the journal's last record.
    pub(super) last_time: Option<Timestamp>,
}

impl Tail {
    /// An empty tail behind `sealed` records.
    pub(super) fn after(sealed: Frontier, last_time: Option<Timestamp>) -> Self {
        let (pages, fresh) = (Vec::new(), Vec::new());
        Self { pages, fresh, postings: Postings::default(), frontier: sealed, last_time }
    }

    /// Reads the tail that has to lead from `sealed` to `head`, and checks every byte of it.
    pub(super) fn read(
        store: &dyn Store,
        sealed: Frontier,
        last_time: Option<Timestamp>,
        head: TreeHead,
    ) -> Result<Self, Error> {
        let mut tail = Self::after(sealed, last_time);
        for place in pages(store)? {
            let expected = tail.frontier.size();
            if place.first != expected {
                return Err(Damage::Missing { index: expected }.into());
            }
            let bytes = read_page(store, place.first, place.chunks)?;
            for record in page::records(place.first, &bytes)? {
                tail.add(&decode(tail.frontier.size(), record)?, Hash::of_leaf(record));
            }
            tail.pages.push(Page { end: tail.frontier.size(), ..place });
        }
        let found = tail.frontier.head();
        if found.size < head.size {
            return Err(Damage::Missing { index: found.size }.into());
        }
        if found != head {
            let (size, noted) = (found.size, head.root);
            return Err(Damage::Root { size, noted, found: found.root }.into());
        }
        Ok(tail)
    }

    /// Index of the first record that is in no page yet.
    pub(super) fn fresh_from(&self) -> u64 {
        self.frontier.size() - u64::try_from(self.fresh.len()).expect("a length fits in 64 bits")
    }

    /// The bytes of record `index`, if it is in no page yet.
    pub(super) fn fresh_record(&self, index: u64) -> Option<&[u8]> {
        let place = usize::try_from(index.checked_sub(self.fresh_from())?).ok()?;
        self.fresh.get(place).map(Vec::as_slice)
    }

    /// Adds a record whose bytes are in the store or among the fresh ones.
    pub(super) fn add(&mut self, record: &Record, leaf: Hash) {
        self.postings.add(record);
        self.frontier.append(leaf);
        self.last_time = Some(record.time);
    }

    /// The page that holds record `index`.
    pub(super) fn page_of(&self, index: u64) -> Option<&Page> {
        let place = self.pages.partition_point(|page| page.end <= index);
        self.pages.get(place).filter(|page| page.first <= index)
    }
}

/// Decodes record `index` from its page and checks that it is that record.
pub(super) fn decode(index: u64, bytes: &[u8]) -> Result<Record, Damage> {
    let record = decode_record(bytes).ok().filter(|record| record.index == index);
    record.ok_or(Damage::Undecodable { index })
}

/// The pages in the store, in order. How many records each has is not known yet (`end` is 0).
pub(super) fn pages(store: &dyn Store) -> Result<Vec<Page>, Error> {
    const AT_ONCE: usize = 64;
    let mut pages: Vec<Page> = Vec::new();
    let (mut start, end) = (Vec::new(), key(u64::MAX, u16::MAX));
    loop {
        let entries = store.scan(Tree::Records, &start..=&end, AT_ONCE)?;
        for (key, _) in &entries {
            let (first, chunk) = split(key).ok_or(Damage::Torn)?;
            match pages.last_mut() {
                Some(page) if page.first == first && page.chunks == chunk => page.chunks += 1,
                _ if chunk == 0 => pages.push(Page { first, end: 0, chunks: 1 }),
                _ => return Err(Damage::Record { index: first }.into()),
            }
        }
        match entries.last() {
            Some((last, _)) => start = [last.as_slice(), &[0]].concat(),
            None => return Ok(pages),
        }
    }
}

/// The bytes of the page that begins with record `first`.
pub(super) fn read_page(store: &dyn Store, first: u64, chunks: u16) -> Result<Vec<u8>, Error> {
    let mut page = Vec::new();
    for chunk in 0..chunks.min(u16::try_from(CHUNKS_MAX).expect("about 65")) {
        let bytes = store.get(Tree::Records, &key(first, chunk))?;
        let bytes = bytes.ok_or(Damage::Missing { index: first })?;
        if page.is_empty() {
            page = bytes;
        } else {
            page.extend_from_slice(&bytes);
        }
    }
    Ok(page)
}

/// Calls `visit` with each record in the store's pages from index `from` on; the index behind the
/// last one.
pub(crate) fn visit_tail(
    store: &dyn Store,
    from: u64,
    mut visit: impl FnMut(u64, &[u8]),
) -> Result<u64, Error> {
    let mut expected = from;
    for place in pages(store)? {
        let bytes = read_page(store, place.first, place.chunks)?;
        for (index, record) in (place.first..).zip(page::records(place.first, &bytes)?) {
            if index > expected {
                return Err(Damage::Missing { index: expected }.into());
            }
            if index == expected {
                visit(index, record);
                expected += 1;
            }
        }
    }
    Ok(expected)
}

/// Writes a page with `batch`.
pub(super) fn put_page(batch: &mut Batch, page: PageBuilder) -> Page {
    let first = page.first();
    let end = first + u64::from(page.count());
    let bytes = page.finish();
    let mut chunks = 0;
    for chunk in bytes.chunks(PAGE_BYTES_FULL) {
        batch.put(Tree::Records, key(first, chunks), chunk.to_vec());
        chunks += 1;
    }
    Page { first, end, chunks }
}

/// Removes a page with `batch`.
pub(super) fn remove_page(batch: &mut Batch, page: &Page) {
    for chunk in 0..page.chunks {
        batch.remove(Tree::Records, key(page.first, chunk));
    }
}

fn key(first: u64, chunk: u16) -> Vec<u8> {
    [first.to_be_bytes().as_slice(), &chunk.to_be_bytes()].concat()
}

fn split(key: &[u8]) -> Option<(u64, u16)> {
    let (first, chunk) = key.split_first_chunk()?;
    Some((u64::from_be_bytes(*first), u16::from_be_bytes(chunk.try_into().ok()?)))
}
