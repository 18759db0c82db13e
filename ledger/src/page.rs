//! A page: the records of one apply (or a part of them) as one value of the store.
//!
//! ```text
//! version u8 = 1 ‖ count u16 ‖ count × (length u32 ‖ check u32 ‖ record) ‖ check u32
//! ```
//!
//! Integers are little-endian. A record's check is the CRC-32 of its index and its bytes, so that
//! a flipped bit, a moved and an exchanged record are found with their index; the last check
//! covers the first index and all bytes before it. They find accidents. Intent is found by the
//! Merkle root.

use sublet_protocol::codec::RECORD_MAX;

use crate::error::Damage;

/// Bytes at which a page is full. A larger record has a page of its own, which the store then
/// keeps in several values.
pub(crate) const PAGE_BYTES_FULL: usize = 16 * 1024;
/// Bytes of any page at most.
pub(crate) const PAGE_BYTES_MAX: usize = PAGE_BYTES_FULL + RECORD_MAX;

const VERSION: u8 = 1;
const HEADER: usize = 1 + 2;
const ENTRY: usize = 4 + 4;
const CHECK: usize = 4;

/// Fills a page record by record.
pub(crate) struct PageBuilder {
    first: u64,
    count: u16,
    bytes: Vec<u8>,
}

impl PageBuilder {
    /// An empty page whose first record will be `first`.
    pub(crate) fn new(first: u64) -> Self {
        let mut bytes = Vec::with_capacity(1024);
        bytes.extend_from_slice(&[VERSION, 0, 0]);
        Self { first, count: 0, bytes }
    }

    /// Index of the first record.
    pub(crate) const fn first(&self) -> u64 {
        self.first
    }

    /// Records in the page.
    pub(crate) const fn count(&self) -> u16 {
        self.count
    }

    /// True if a record of `length` bytes belongs into this page rather than into the next. An
    /// empty page takes any record.
    pub(crate) fn has_room_for(&self, length: usize) -> bool {
        let fits = self.bytes.len() + ENTRY + length + CHECK <= PAGE_BYTES_FULL;
        self.count == 0 || (fits && self.count < u16::MAX)
    }

    /// Adds the next record.
    ///
    /// # Panics
    /// Without room for it.
    pub(crate) fn push(&mut self, record: &[u8]) {
        assert!(self.has_room_for(record.len()), "the caller asks for room first");
        let length = u32::try_from(record.len()).expect("the codec caps a record at 1 MiB");
        let index = self.first + u64::from(self.count);
        self.bytes.extend_from_slice(&length.to_le_bytes());
        self.bytes.extend_from_slice(&check(index, record).to_le_bytes());
        self.bytes.extend_from_slice(record);
        self.count += 1;
    }

    /// The finished page.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.bytes[1..HEADER].copy_from_slice(&self.count.to_le_bytes());
        let sum = check(self.first, &self.bytes);
        self.bytes.extend_from_slice(&sum.to_le_bytes());
        self.bytes
    }
}

/// CRC-32 over `index` and `bytes`.
fn check(index: u64, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&index.to_le_bytes());
    hasher.update(bytes);
    hasher.finalize()
}

/// The records of a page that was read, in order. Every check has been made.
///
/// # Errors
/// [`Damage::Record`] with the first index that is bad.
pub(crate) fn records(first: u64, page: &[u8]) -> Result<Vec<&[u8]>, Damage> {
    let bad = |index| Damage::Record { index };
    let (body, sum) = page.split_last_chunk::<CHECK>().ok_or(bad(first))?;
    let (header, mut rest) = body.split_first_chunk::<HEADER>().ok_or(bad(first))?;
    let count = u16::from_le_bytes([header[1], header[2]]);
    if header[0] != VERSION || count == 0 || page.len() > PAGE_BYTES_MAX {
        return Err(bad(first));
    }
    let mut records = Vec::with_capacity(usize::from(count).min(rest.len() / ENTRY));
    for index in (first..).take(usize::from(count)) {
        // A page that ends before its count has a bad header, not a bad record.
        let suspect = if rest.is_empty() { first } else { index };
        let (record, after) = entry(index, rest).ok_or(bad(suspect))?;
        records.push(record);
        rest = after;
    }
    if !rest.is_empty() || u32::from_le_bytes(*sum) != check(first, body) {
        return Err(bad(first));
    }
    Ok(records)
}

/// The first record of `bytes` and what follows it; `None` when its check fails.
fn entry(index: u64, bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, bytes) = bytes.split_first_chunk::<4>()?;
    let (sum, bytes) = bytes.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
    let (record, rest) = bytes.split_at_checked(length)?;
    (u32::from_le_bytes(*sum) == check(index, record)).then_some((record, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> Vec<u8> {
        let mut page = PageBuilder::new(7);
        for record in [&b"one"[..], b"", b"three and more"] {
            page.push(record);
        }
        page.finish()
    }

    #[test]
    fn a_page_gives_back_what_was_pushed() {
        assert_eq!(records(7, &page()).unwrap(), [&b"one"[..], b"", b"three and more"]);
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let good = page();
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(records(7, &bad).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_flipped_bit_in_a_record_is_found_with_its_index() {
        let mut bad = page();
        let inside_the_third = bad.len() - CHECK - 3;
        bad[inside_the_third] ^= 0x10;
        assert_eq!(records(7, &bad), Err(Damage::Record { index: 9 }));
    }

    #[test]
    fn a_page_cut_short_or_put_elsewhere_is_found() {
        let good = page();
        for length in 0..good.len() {
            assert!(records(7, &good[..length]).is_err(), "length {length}");
        }
        assert!(records(8, &good).is_err());
        assert!(records(7, &[good.as_slice(), b"x"].concat()).is_err());
    }

    #[test]
    fn a_record_larger_than_a_page_has_one_of_its_own() {
        let mut page = PageBuilder::new(0);
        assert!(page.has_room_for(RECORD_MAX));
        page.push(&vec![5; RECORD_MAX]);
        assert!(!page.has_room_for(0));
        assert_eq!(records(0, &page.finish()).unwrap(), [vec![5; RECORD_MAX]]);
    }
}
