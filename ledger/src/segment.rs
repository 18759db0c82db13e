//! A segment: sealed records as one immutable file, equal byte for byte on every replica.
//!
//! ```text
//! "SUBLETSG" ‖ version u16 = 1 ‖ cell [32], padded with 0 ‖ number u32 ‖ first index u64
//! ‖ count u32 ‖ ledger time of the first and of the last record, 2 × u64 ‖ previous root [32]
//! ‖ count × (length u32 ‖ canonical record)
//! ‖ frontier after the last record: one [32] per bit set in first + count, the largest first
//! ‖ root [32] ‖ CRC-32 of all bytes before it u32
//! ```
//!
//! Integers are little-endian. The roots are those of the whole journal up to this point, not of
//! the segment alone. Nothing in it depends on a wall clock or on the machine.

use std::ops::Range;

use sublet_protocol::codec::RECORD_MAX;
use sublet_protocol::ids::CellId;
use sublet_protocol::units::Timestamp;

use crate::error::SegmentFault;
use crate::merkle::{Frontier, Hash, TreeHead, peaks_of};

/// Bytes of records after which a seal begins another segment, so that one fits in memory.
pub(crate) const RECORD_BYTES_FULL: usize = 16 * 1024 * 1024;
/// Bytes of a segment at most: a larger file is refused before it is read.
pub(crate) const SEGMENT_BYTES_MAX: usize = RECORD_BYTES_FULL + RECORD_MAX + 1024 * 1024;
/// Records of a segment at most.
pub(crate) const SEGMENT_RECORDS_MAX: u32 = 65_536;

/// Bytes in which a cell's or a tenant's name is stored.
pub(crate) const NAME_BYTES: usize = 32;

const MAGIC: &[u8; 8] = b"SUBLETSG";
/// The newest format of a segment, and the only one so far.
pub(crate) const VERSION: u16 = 1;
pub(crate) const HEADER: usize = 8 + 2 + NAME_BYTES + 4 + 8 + 4 + 8 + 8 + Hash::BYTES;
pub(crate) const CHECK: usize = 4;
/// Bytes from the start of a segment to the end of its cell's name.
pub(crate) const NAMED_BYTES: usize = 8 + 2 + NAME_BYTES;

/// What a sealed segment covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seal {
    /// Number of the segment: 0, 1, 2, …
    pub number: u32,
    /// Index of its first record.
    pub first: u64,
    /// Records in it, at least 1.
    pub count: u32,
    /// Ledger time of its first record.
    pub first_time: Timestamp,
    /// Ledger time of its last record.
    pub last_time: Timestamp,
    /// Root of the journal up to its last record.
    pub root: Hash,
}

impl Seal {
    /// Index of the record after its last.
    pub fn end(&self) -> u64 {
        self.first.saturating_add(u64::from(self.count))
    }
}

/// The name of a cell or tenant, padded with zeros.
pub(crate) fn padded(name: &str) -> [u8; NAME_BYTES] {
    let mut bytes = [0; NAME_BYTES];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    bytes
}

/// The cell that the start of a segment names, if it is one. Nothing of it has been checked.
pub(crate) fn cell_of(start: &[u8]) -> Option<CellId> {
    let name = start.strip_prefix(MAGIC)?.get(2..2 + NAME_BYTES)?;
    let length = name.iter().position(|byte| *byte == 0).unwrap_or(NAME_BYTES);
    CellId::new(std::str::from_utf8(&name[..length]).ok()?).ok()
}

/// Builds the bytes of a segment record by record.
pub(crate) struct SegmentBuilder {
    bytes: Vec<u8>,
    number: u32,
    first: u64,
    count: u32,
    times: Option<(Timestamp, Timestamp)>,
    frontier: Frontier,
}

impl SegmentBuilder {
    /// Begins segment `number` behind the records of `before`.
    pub(crate) fn new(cell: CellId, number: u32, before: &Frontier) -> Self {
        let mut bytes = Vec::with_capacity(256 * 1024);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&padded(cell.as_str()));
        bytes.extend_from_slice(&number.to_le_bytes());
        bytes.extend_from_slice(&before.size().to_le_bytes());
        // Count and times are known at the end.
        bytes.extend_from_slice(&[0; 4 + 8 + 8]);
        bytes.extend_from_slice(before.root().as_bytes());
        let frontier = before.clone();
        Self { bytes, number, first: before.size(), count: 0, times: None, frontier }
    }

    /// True once another segment has to be begun.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes.len() >= RECORD_BYTES_FULL || self.count >= SEGMENT_RECORDS_MAX
    }

    /// Adds the next record with its ledger time.
    pub(crate) fn push(&mut self, time: Timestamp, record: &[u8]) {
        let length = u32::try_from(record.len()).expect("the codec caps a record at 1 MiB");
        self.bytes.extend_from_slice(&length.to_le_bytes());
        self.bytes.extend_from_slice(record);
        self.frontier.append(Hash::of_leaf(record));
        self.count += 1;
        self.times = Some((self.times.map_or(time, |(first, _)| first), time));
    }

    /// The finished segment and the frontier behind it.
    ///
    /// # Panics
    /// Without a record.
    pub(crate) fn finish(mut self) -> (Vec<u8>, Seal, Frontier) {
        let (first_time, last_time) = self.times.expect("a seal covers at least one record");
        let at = HEADER - Hash::BYTES - 4 - 8 - 8;
        self.bytes[at..at + 4].copy_from_slice(&self.count.to_le_bytes());
        self.bytes[at + 4..at + 12].copy_from_slice(&first_time.get().to_le_bytes());
        self.bytes[at + 12..at + 20].copy_from_slice(&last_time.get().to_le_bytes());
        for peak in self.frontier.peaks() {
            self.bytes.extend_from_slice(peak.as_bytes());
        }
        let root = self.frontier.root();
        self.bytes.extend_from_slice(root.as_bytes());
        let sum = crc32fast::hash(&self.bytes);
        self.bytes.extend_from_slice(&sum.to_le_bytes());
        let Self { number, first, count, .. } = self;
        let seal = Seal { number, first, count, first_time, last_time, root };
        (self.bytes, seal, self.frontier)
    }
}

/// A segment that was read: its check sum, lengths and noted root have been checked. That its
/// records have that root is checked by the verifier.
#[derive(Debug)]
pub(crate) struct Segment {
    bytes: Vec<u8>,
    records: Vec<Range<usize>>,
    seal: Seal,
    frontier: Frontier,
}

impl Segment {
    /// Reads segment `number` of `cell`, which has to follow the records of `before`.
    pub(crate) fn parse(
        bytes: Vec<u8>,
        cell: CellId,
        number: u32,
        before: TreeHead,
    ) -> Result<Self, SegmentFault> {
        Self::parse_or_give_back(bytes, cell, number, before).map_err(|(fault, _)| fault)
    }

    /// As [`Segment::parse`]; what cannot be read is given back with the fault.
    pub(crate) fn parse_or_give_back(
        bytes: Vec<u8>,
        cell: CellId,
        number: u32,
        before: TreeHead,
    ) -> Result<Self, (SegmentFault, Vec<u8>)> {
        match Layout::of(&bytes, cell, number, before) {
            Ok(Layout { records, seal, frontier }) => Ok(Self { bytes, records, seal, frontier }),
            Err(fault) => Err((fault, bytes)),
        }
    }

    /// What it covers.
    pub(crate) const fn seal(&self) -> &Seal {
        &self.seal
    }

    /// The frontier of the journal up to its last record.
    pub(crate) const fn frontier(&self) -> &Frontier {
        &self.frontier
    }

    /// The whole file.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The canonical bytes of record `index`, if it is in this segment.
    pub(crate) fn record(&self, index: u64) -> Option<&[u8]> {
        let place = usize::try_from(index.checked_sub(self.seal.first)?).ok()?;
        Some(&self.bytes[self.records.get(place)?.clone()])
    }

    /// Its records with their indexes, in order.
    pub(crate) fn records(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let bytes = self.records.iter().map(|range| &self.bytes[range.clone()]);
        (self.seal.first..).zip(bytes)
    }
}

/// What a segment's bytes say, once they have been checked.
struct Layout {
    records: Vec<Range<usize>>,
    seal: Seal,
    frontier: Frontier,
}

impl Layout {
    fn of(bytes: &[u8], cell: CellId, number: u32, before: TreeHead) -> Result<Self, SegmentFault> {
        let mut reader = Reader { rest: bytes };
        if reader.array()? != *MAGIC {
            return Err(SegmentFault::Magic);
        }
        let version = u16::from_le_bytes(reader.array()?);
        // Every version ends with this check sum, so that a newer one is told from a flipped bit.
        let body = bytes.len().checked_sub(CHECK).ok_or(SegmentFault::Short)?;
        if bytes[body..] != crc32fast::hash(&bytes[..body]).to_le_bytes() {
            return Err(SegmentFault::CheckSum);
        }
        if version != VERSION {
            return Err(SegmentFault::Version { version });
        }
        if reader.array()? != padded(cell.as_str()) {
            return Err(SegmentFault::OtherCell);
        }
        let found = u32::from_le_bytes(reader.array()?);
        if found != number {
            return Err(SegmentFault::Number { number: found });
        }
        let first = u64::from_le_bytes(reader.array()?);
        if first != before.size {
            return Err(SegmentFault::First { first });
        }
        let count = u32::from_le_bytes(reader.array()?);
        let first_time = Timestamp::new(u64::from_le_bytes(reader.array()?));
        let last_time = Timestamp::new(u64::from_le_bytes(reader.array()?));
        if Hash::from_bytes(reader.array()?) != before.root {
            return Err(SegmentFault::PreviousRoot);
        }
        let records = reader.records(count, bytes.len())?;
        let end = first.checked_add(u64::from(count)).ok_or(SegmentFault::First { first })?;
        let frontier = reader.frontier(end)?;
        let root = Hash::from_bytes(reader.array()?);
        if reader.rest.len() != CHECK {
            return Err(SegmentFault::Trailing);
        }
        if frontier.root() != root {
            return Err(SegmentFault::Root);
        }
        let seal = Seal { number, first, count, first_time, last_time, root };
        Ok(Self { records, seal, frontier })
    }
}

/// Takes pieces from the front of bytes that nobody vouches for.
struct Reader<'a> {
    rest: &'a [u8],
}

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], SegmentFault> {
        let (array, rest) = self.rest.split_first_chunk::<N>().ok_or(SegmentFault::Short)?;
        self.rest = rest;
        Ok(*array)
    }

    /// Where the records lie in a segment of `total` bytes.
    fn records(&mut self, count: u32, total: usize) -> Result<Vec<Range<usize>>, SegmentFault> {
        if count == 0 {
            return Err(SegmentFault::Empty);
        }
        let count = usize::try_from(count).map_err(|_| SegmentFault::Short)?;
        let mut records = Vec::with_capacity(count.min(self.rest.len() / 4));
        for _ in 0..count {
            let length = u32::from_le_bytes(self.array()?);
            let bytes = usize::try_from(length).ok().filter(|n| (1..=RECORD_MAX).contains(n));
            let bytes = bytes.ok_or(SegmentFault::Length { length })?;
            let start = total - self.rest.len();
            self.rest = self.rest.get(bytes..).ok_or(SegmentFault::Short)?;
            records.push(start..start + bytes);
        }
        Ok(records)
    }

    fn frontier(&mut self, size: u64) -> Result<Frontier, SegmentFault> {
        let mut peaks = Vec::with_capacity(peaks_of(size));
        for _ in 0..peaks_of(size) {
            peaks.push(Hash::from_bytes(self.array()?));
        }
        Frontier::from_parts(size, peaks).ok_or(SegmentFault::Short)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell() -> CellId {
        CellId::new("berlin").unwrap()
    }

    fn small() -> (Vec<u8>, Frontier) {
        let mut before = Frontier::new();
        (0..5_u8).for_each(|n| before.append(Hash::of_leaf(&[n])));
        let mut builder = SegmentBuilder::new(cell(), 3, &before);
        for n in 0..6_u8 {
            builder.push(Timestamp::new(u64::from(n) + 100), &[n; 9]);
        }
        (builder.finish().0, before)
    }

    /// What the verifier does with each segment.
    fn leads_from(before: &Frontier, segment: &Segment) -> bool {
        let mut frontier = before.clone();
        segment.records().for_each(|(_, record)| frontier.append(Hash::of_leaf(record)));
        frontier == *segment.frontier()
    }

    fn is_good(bytes: &[u8], before: &Frontier) -> bool {
        Segment::parse(bytes.to_vec(), cell(), 3, before.head())
            .is_ok_and(|segment| leads_from(before, &segment))
    }

    #[test]
    fn a_segment_gives_back_what_was_sealed() {
        let (bytes, before) = small();
        let segment = Segment::parse(bytes, cell(), 3, before.head()).unwrap();
        assert!(leads_from(&before, &segment));
        assert_eq!((segment.seal().first, segment.seal().end()), (5, 11));
        assert_eq!(segment.seal().last_time, Timestamp::new(105));
        assert_eq!(segment.record(4), None);
        assert_eq!(segment.record(10), Some(&[5; 9][..]));
        assert_eq!(segment.record(11), None);
        assert_eq!(segment.records().count(), 6);
    }

    #[test]
    fn every_flipped_bit_of_a_segment_is_found() {
        let (good, before) = small();
        assert!(is_good(&good, &before));
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(!is_good(&bad, &before), "bit {bit}");
        }
    }

    #[test]
    fn a_segment_cut_anywhere_or_extended_is_found() {
        let (good, before) = small();
        for length in 0..good.len() {
            assert!(!is_good(&good[..length], &before), "length {length}");
        }
        assert!(!is_good(&[good.as_slice(), &[0]].concat(), &before));
    }

    /// An editor who knows the format repairs the check sum; the root still tells.
    #[test]
    fn an_edited_record_with_a_repaired_check_sum_is_found() {
        let (good, before) = small();
        for at in HEADER..good.len() - CHECK {
            let mut bad = good.clone();
            bad[at] ^= 1;
            let body = bad.len() - CHECK;
            let sum = crc32fast::hash(&bad[..body]);
            bad[body..].copy_from_slice(&sum.to_le_bytes());
            assert!(!is_good(&bad, &before), "byte {at}");
        }
    }

    #[test]
    fn a_segment_of_another_cell_number_or_history_is_refused() {
        let (good, before) = small();
        let parse = |cell: &str, number, before: &Frontier| {
            Segment::parse(good.clone(), CellId::new(cell).unwrap(), number, before.head())
        };
        assert!(matches!(parse("paris", 3, &before), Err(SegmentFault::OtherCell)));
        assert!(matches!(parse("berlin", 4, &before), Err(SegmentFault::Number { number: 3 })));
        let mut other = Frontier::new();
        (0..5_u8).for_each(|n| other.append(Hash::of_leaf(&[n, n])));
        assert!(matches!(parse("berlin", 3, &other), Err(SegmentFault::PreviousRoot)));
        other.append(Hash::of_nothing());
        assert!(matches!(parse("berlin", 3, &other), Err(SegmentFault::First { first: 5 })));
    }

    #[test]
    fn a_claimed_count_allocates_no_more_than_the_file_holds() {
        let (mut bad, before) = small();
        let at = HEADER - Hash::BYTES - 20;
        bad[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        let body = bad.len() - CHECK;
        let sum = crc32fast::hash(&bad[..body]);
        bad[body..].copy_from_slice(&sum.to_le_bytes());
        assert!(!is_good(&bad, &before));
    }
}
