//! Which record of a bad segment is bad.
//!
//! A segment's check sum and root say that something is wrong, not where. Three things can be told
//! beyond that: a single flipped bit, from the check sum; a record that is cut, is no record, or is
//! another one than its place says. Anything else, a careful edit above all, can only be told to
//! lie in the segment.

use std::ops::Range;

use sublet_protocol::codec::{RECORD_MAX, decode_record, encode_record};
use sublet_protocol::ids::CellId;

use crate::merkle::{Frontier, Hash};
use crate::segment::{CHECK, HEADER, Segment};

/// The first record of a segment that is known to be wrong, if one is. The segment could not be
/// read, or its check sum is wrong.
pub(super) fn first_bad(
    bytes: &[u8],
    cell: Option<CellId>,
    number: u32,
    before: &Frontier,
) -> Option<u64> {
    if let Some(at) = flipped_bit(bytes)
        && let Some(cell) = cell
        && is_whole_without(bytes, at, cell, number, before)
    {
        let mut mended = bytes.to_vec();
        mended[at / 8] ^= 1 << (at % 8);
        return record_at(&mended, at / 8, before.size());
    }
    let (first, ranges, is_cut) = ranges(bytes, before.size());
    let whole = (first..).zip(ranges.iter().map(|range| &bytes[range.clone()]));
    let wrong = first_wrong(whole);
    let after = first + u64::try_from(ranges.len()).ok()?;
    wrong.or(is_cut.then_some(after))
}

/// The first of these records that is not the record of its place.
pub(super) fn first_wrong<'a>(records: impl Iterator<Item = (u64, &'a [u8])>) -> Option<u64> {
    let mut records = records;
    let is_right = |index: u64, bytes: &[u8]| {
        let record = decode_record(bytes).ok().filter(|record| record.index == index);
        record.is_some_and(|record| encode_record(&record).is_ok_and(|again| again == bytes))
    };
    records.find(|(index, bytes)| !is_right(*index, bytes)).map(|(index, _)| index)
}

/// Whether the segment is good once the bit is turned back.
fn is_whole_without(bytes: &[u8], at: usize, cell: CellId, number: u32, before: &Frontier) -> bool {
    let mut mended = bytes.to_vec();
    mended[at / 8] ^= 1 << (at % 8);
    let Ok(segment) = Segment::parse(mended, cell, number, before.head()) else { return false };
    let mut after = before.clone();
    segment.records().for_each(|(_, record)| after.append(Hash::of_leaf(record)));
    after == *segment.frontier()
}

/// The record in whose bytes or length byte `at` of a good segment lies; `None` in front of them or
/// behind.
fn record_at(bytes: &[u8], at: usize, first: u64) -> Option<u64> {
    let (_, ranges, _) = ranges(bytes, first);
    let place = ranges.iter().position(|range| (range.start - 4..range.end).contains(&at))?;
    Some(first + u64::try_from(place).ok()?)
}

/// Where the records lie as far as their lengths lead, and whether they end too early.
fn ranges(bytes: &[u8], first: u64) -> (u64, Vec<Range<usize>>, bool) {
    let mut found = Vec::new();
    let counted = bytes.get(HEADER - Hash::BYTES - 8 - 8 - 4..HEADER - Hash::BYTES - 8 - 8);
    let count = counted.and_then(|four| four.try_into().ok()).map_or(0, u32::from_le_bytes);
    let mut at = HEADER;
    for _ in 0..count {
        let length = bytes.get(at..at + 4).and_then(|four| four.try_into().ok());
        let length = length.map(u32::from_le_bytes).and_then(|length| usize::try_from(length).ok());
        let Some(length) = length.filter(|length| (1..=RECORD_MAX).contains(length)) else {
            return (first, found, true);
        };
        let range = at + 4..at + 4 + length;
        if range.end > bytes.len() {
            return (first, found, true);
        }
        at = range.end;
        found.push(range);
    }
    (first, found, false)
}

/// The only bit, counted from the first byte's lowest, whose change explains the check sum; `None`
/// if no single bit does. Each bit changes a CRC-32 in a way of its own, up to 512 MiB.
fn flipped_bit(bytes: &[u8]) -> Option<usize> {
    let body = bytes.len().checked_sub(CHECK)?;
    let noted = u32::from_le_bytes(bytes[body..].try_into().ok()?);
    let change = noted ^ crc32fast::hash(&bytes[..body]);
    let table = table();
    let by_highest = by_highest(&table);
    // A flipped bit of the last byte does what the table says. One byte further in front the
    // same change has taken in one more zero byte, which is undone.
    let mut back = change;
    for byte in (0..body).rev() {
        if let Some(bit) = (0..8_usize).find(|bit| table[1 << bit] == back) {
            return Some(byte * 8 + bit);
        }
        let low = by_highest[usize::from(back.to_be_bytes()[0])];
        back = ((back ^ table[usize::from(low)]) << 8) | u32::from(low);
    }
    let in_the_sum = (change.count_ones() == 1).then(|| change.trailing_zeros());
    in_the_sum.and_then(|bit| usize::try_from(bit).ok()).map(|bit| body * 8 + bit)
}

/// Which byte's entry begins with each value: no two begin alike, so that a step can be undone.
fn by_highest(table: &[u32; 256]) -> [u8; 256] {
    let mut by_highest = [0; 256];
    for (entry, byte) in table.iter().zip(0_u8..=255) {
        by_highest[usize::from(entry.to_be_bytes()[0])] = byte;
    }
    by_highest
}

/// The table of CRC-32 (IEEE 802.3, bits reversed): what each byte does to the state.
fn table() -> [u32; 256] {
    const POLYNOMIAL: u32 = 0xedb8_8320;
    let mut table = [0; 256];
    for (entry, byte) in table.iter_mut().zip(0_u32..) {
        let step = |state: u32| {
            if state & 1 == 1 { POLYNOMIAL ^ (state >> 1) } else { state >> 1 }
        };
        *entry = (0..8).fold(byte, |state, _| step(state));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_sum_tells_which_bit_was_flipped() {
        let body: Vec<u8> = (0..300_u32).map(|n| u8::try_from(n * 7 % 251).unwrap()).collect();
        let good = [body.as_slice(), &crc32fast::hash(&body).to_le_bytes()].concat();
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(flipped_bit(&bad), Some(bit));
        }
        let mut two = good;
        two[3] ^= 1;
        two[200] ^= 4;
        assert_eq!(flipped_bit(&two), None, "two bits are no single one");
    }
}
