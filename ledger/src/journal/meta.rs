//! The journal's description: one value in tree `meta`, written with every commit.
//!
//! ```text
//! version u8 = 1 ‖ cell [32] ‖ segments u32 ‖ size u64 ‖ root [32]
//! ‖ cursor: 0 u8, or 1 u8 ‖ log index u64 ‖ term u64 ‖ CRC-32 of all bytes before it u32
//! ```

use std::path::Path;

use sublet_protocol::ids::CellId;

use super::Cursor;
use crate::error::{Damage, Error};
use crate::merkle::{Frontier, Hash, TreeHead};
use crate::segment::padded;
use crate::store::{Batch, Store, Tree};

const KEY: &[u8] = b"journal";
const VERSION: u8 = 1;

/// What the store knows about itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Meta {
    /// The cell, as [`padded`] writes it.
    pub(crate) cell: [u8; 32],
    /// Segments whose postings are in the index and whose pages are gone.
    pub(crate) segments: u32,
    /// The journal's size and root.
    pub(crate) head: TreeHead,
    /// The raft entry applied last.
    pub(super) cursor: Option<Cursor>,
}

impl Meta {
    /// That of an empty journal.
    pub(super) fn empty(cell: CellId) -> Self {
        let head = Frontier::new().head();
        Self { cell: padded(cell.as_str()), segments: 0, head, cursor: None }
    }

    /// Reads it from the store in `dir`; `None` in a new store.
    pub(crate) fn read(store: &dyn Store, dir: &Path) -> Result<Option<Self>, Error> {
        let Some(bytes) = store.get(Tree::Meta, KEY)? else { return Ok(None) };
        if let Some(found) = version(&bytes)
            && found > VERSION
        {
            let (found, known) = (found.into(), VERSION.into());
            return Err(Error::Newer { path: dir.to_owned(), found, known });
        }
        Self::decode(&bytes).map(Some).ok_or(Damage::Meta.into())
    }

    /// Writes it with `batch`.
    pub(super) fn put(&self, batch: &mut Batch) {
        batch.put(Tree::Meta, KEY.to_vec(), self.encode());
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(128);
        bytes.push(VERSION);
        bytes.extend_from_slice(&self.cell);
        bytes.extend_from_slice(&self.segments.to_le_bytes());
        bytes.extend_from_slice(&self.head.size.to_le_bytes());
        bytes.extend_from_slice(self.head.root.as_bytes());
        match self.cursor {
            None => bytes.push(0),
            Some(cursor) => {
                bytes.push(1);
                bytes.extend_from_slice(&cursor.log_index.to_le_bytes());
                bytes.extend_from_slice(&cursor.term.to_le_bytes());
            }
        }
        let sum = crc32fast::hash(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        version(bytes).filter(|version| *version == VERSION)?;
        let (body, _) = bytes.split_last_chunk::<4>()?;
        let (_, rest) = body.split_first_chunk::<1>()?;
        let (cell, rest) = rest.split_first_chunk()?;
        let (segments, rest) = rest.split_first_chunk()?;
        let (size, rest) = rest.split_first_chunk()?;
        let (root, rest) = rest.split_first_chunk()?;
        let cursor = match rest.split_first_chunk::<1>()? {
            ([0], []) => None,
            ([1], rest) => {
                let (log_index, rest) = rest.split_first_chunk()?;
                let term = rest.try_into().ok()?;
                let log_index = u64::from_le_bytes(*log_index);
                Some(Cursor { log_index, term: u64::from_le_bytes(term) })
            }
            _ => return None,
        };
        let (size, root) = (u64::from_le_bytes(*size), Hash::from_bytes(*root));
        let head = TreeHead { size, root };
        Some(Self { cell: *cell, segments: u32::from_le_bytes(*segments), head, cursor })
    }
}

/// The version that the bytes name, if their check sum is right. Every version begins and ends so,
/// and a new format of anything in the store is a new version here.
fn version(bytes: &[u8]) -> Option<u8> {
    let (body, sum) = bytes.split_last_chunk::<4>()?;
    (u32::from_le_bytes(*sum) == crc32fast::hash(body)).then(|| body.first().copied()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    #[test]
    fn the_description_survives_its_bytes_and_no_flipped_bit() {
        let empty = Meta::empty(CellId::new("berlin").unwrap());
        let cursor = Some(Cursor { log_index: 7, term: 2 });
        for meta in [empty, Meta { segments: 3, cursor, ..empty }] {
            let good = meta.encode();
            assert_eq!(Meta::decode(&good), Some(meta));
            for bit in 0..good.len() * 8 {
                let mut bad = good.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(Meta::decode(&bad), None, "bit {bit}");
            }
            assert_eq!(Meta::decode(&good[..good.len() - 1]), None);
        }
    }

    #[test]
    fn a_description_of_a_newer_version_is_not_damage() {
        let mut store = MemoryStore::default();
        let mut put = |bytes: &[u8]| {
            let mut batch = Batch::default();
            batch.put(Tree::Meta, KEY.to_vec(), bytes.to_vec());
            store.commit(batch).unwrap();
            Meta::read(&store, Path::new("sled")).unwrap_err()
        };
        let mut newer = Meta::empty(CellId::new("berlin").unwrap()).encode();
        newer[0] = VERSION + 1;
        assert!(matches!(put(&newer), Error::Damaged(Damage::Meta)), "its check sum is wrong");
        let body = newer.len() - 4;
        let sum = crc32fast::hash(&newer[..body]);
        newer[body..].copy_from_slice(&sum.to_le_bytes());
        let said = put(&newer).to_string();
        assert_eq!(said, "sled was written by a newer version (format 2, this one reads 1)");
    }
}
