//! Sealed segments for another replica, and from one: what goes with a snapshot.
//!
//! A segment travels as its records, each behind its length. Who gets it journals them and seals at
//! the same place, which gives the same file; its root must then be the one that was named.

use std::sync::PoisonError;

use sublet_ledger::Seal;
use sublet_ledger::journal::Cursor;
use sublet_protocol::codec::{decode_record, encode_record};
use sublet_protocol::records::Record;

use crate::machine::{CellMachine, Failure};
use crate::raft::Piece;

fn piece(seal: &Seal) -> Piece {
    Piece { number: u64::from(seal.number), digest: *seal.root.as_bytes() }
}

impl CellMachine {
    /// The segments that were sealed so far.
    pub(crate) fn segments(&self) -> Vec<Piece> {
        self.journal(|journal| journal.seals().iter().map(piece).collect()).unwrap_or_default()
    }

    /// Which of these are not here.
    pub(crate) fn lacking(&self, wanted: &[Piece]) -> Result<Vec<u64>, Failure> {
        let have = self.segments();
        for (ours, theirs) in have.iter().zip(wanted) {
            if ours != theirs {
                return Err(Failure::Diverged { number: theirs.number });
            }
        }
        Ok(wanted.iter().skip(have.len()).map(|piece| piece.number).collect())
    }

    /// The records of a segment.
    pub(crate) fn segment(&self, number: u64) -> Result<Vec<u8>, Failure> {
        let read = self.journal(|journal| {
            let seals = journal.seals().iter();
            let Some(seal) = seals.into_iter().find(|seal| u64::from(seal.number) == number) else {
                return Ok(None);
            };
            let count = usize::try_from(seal.count).unwrap_or(usize::MAX);
            journal.range(seal.first, count).map(Some)
        });
        let records = read.ok_or(Failure::Closed)?.map_err(Failure::Ledger)?;
        let mut bytes = Vec::new();
        for record in records.ok_or(Failure::Piece { number })? {
            let record = encode_record(&record).map_err(Failure::Unwritable)?;
            let length = u32::try_from(record.len()).map_err(|_| Failure::Piece { number })?;
            bytes.extend_from_slice(&length.to_be_bytes());
            bytes.extend_from_slice(&record);
        }
        Ok(bytes)
    }

    /// Journals and seals the records of another replica's next segment.
    pub(crate) fn keep_segment(&self, wanted: Piece, bytes: &[u8]) -> Result<(), Failure> {
        let wrong = || Failure::Piece { number: wanted.number };
        let records = records(bytes).ok_or_else(wrong)?;
        let last = records.last().ok_or_else(wrong)?.index;
        let mut journal = self.journal.write().unwrap_or_else(PoisonError::into_inner);
        let journal = journal.as_mut().ok_or(Failure::Closed)?;
        // The log tells later how far it has come: no entry is named here.
        let cursor = journal.cursor().unwrap_or(Cursor { log_index: 0, term: 0 });
        journal.append(cursor, &records).map_err(Failure::Ledger)?;
        let seal = journal.seal(last).map_err(Failure::Ledger)?;
        if piece(&seal) == wanted { Ok(()) } else { Err(wrong()) }
    }
}

fn records(mut bytes: &[u8]) -> Option<Vec<Record>> {
    let mut records = Vec::new();
    while !bytes.is_empty() {
        let (length, rest) = bytes.split_first_chunk::<4>()?;
        let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
        let (record, rest) = rest.split_at_checked(length)?;
        records.push(decode_record(record).ok()?);
        bytes = rest;
    }
    Some(records)
}
