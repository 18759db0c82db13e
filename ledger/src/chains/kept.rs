//! The chains between two starts of a broker: one value in tree `meta` of the store.
//!
//! ```text
//! version u8 = 1 ‖ segments u32 ‖ JSON ‖ CRC-32 of all bytes before it u32
//! ```
//!
//! It is not written at each seal: with many tenants it may be as large as a segment. It is written
//! once the segments since the last time have eight times its bytes, so it adds an eighth at most to
//! what is written, and a start folds at most that much again.

use super::Chains;
use super::fold::Parts;
use crate::error::{Damage, Error};
use crate::store::{Batch, Store, Tree};

const KEY: &[u8] = b"charges";
const VERSION: u8 = 1;
/// How many times its own bytes the segments have before it is written again.
const TIMES: usize = 8;

/// When the chains were kept last, and how much was sealed since.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Keeping {
    bytes: usize,
    since: usize,
}

impl Keeping {
    /// Takes note of a segment of `length` bytes, number `segments - 1`, and writes `chains`, which
    /// are those behind it, with `batch` if it is time to.
    pub(crate) fn sealed(
        &mut self,
        length: usize,
        (segments, chains): (u32, &Chains),
        batch: &mut Batch,
    ) {
        self.passed(length);
        if self.since >= self.bytes.saturating_mul(TIMES) {
            let value = encode(segments, chains);
            *self = Self { bytes: value.len(), since: 0 };
            batch.put(Tree::Meta, KEY.to_vec(), value);
        }
    }

    /// Takes note of a segment of `length` bytes that was sealed since.
    pub(crate) fn passed(&mut self, length: usize) {
        self.since = self.since.saturating_add(length);
    }

    /// The chains as they were kept last, and the number of segments that they are over; those of no
    /// segment in a store that has none.
    ///
    /// # Errors
    /// [`Damage::Meta`].
    pub(crate) fn read(store: &dyn Store) -> Result<(Self, u32, Chains), Error> {
        let Some(value) = store.get(Tree::Meta, KEY)? else {
            return Ok((Self::default(), 0, Chains::new()));
        };
        let (segments, chains) = decode(&value).ok_or(Damage::Meta)?;
        Ok((Self { bytes: value.len(), since: 0 }, segments, chains))
    }
}

fn encode(segments: u32, chains: &Chains) -> Vec<u8> {
    let json = serde_json::to_vec(&chains.parts()).expect("numbers and names have a JSON form");
    let mut bytes = vec![VERSION];
    bytes.extend_from_slice(&segments.to_le_bytes());
    bytes.extend_from_slice(&json);
    let sum = crc32fast::hash(&bytes);
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8]) -> Option<(u32, Chains)> {
    let (body, sum) = bytes.split_last_chunk::<4>()?;
    let is_whole = u32::from_le_bytes(*sum) == crc32fast::hash(body);
    let (version, rest) = body.split_first().filter(|_| is_whole)?;
    let (segments, json) = rest.split_first_chunk()?;
    let parts: Parts = serde_json::from_slice(json).ok().filter(|_| *version == VERSION)?;
    Some((u32::from_le_bytes(*segments), Chains::from_parts(parts)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support;
    use sublet_protocol::codec::encode_record;

    #[test]
    fn chains_survive_their_bytes_and_no_flipped_bit() {
        let mut chains = Chains::new();
        for record in support::records(0..70) {
            chains.take(&record, &encode_record(&record).unwrap());
        }
        let good = encode(7, &chains);
        assert_eq!(decode(&good), Some((7, chains)));
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(&bad), None, "bit {bit}");
        }
    }
}
