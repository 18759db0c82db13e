//! A table from keys to ordinals: open addressing, four bytes a cell. The keys lie with the entries.
//!
//! It keeps no order and shows none, so that nothing can come to depend on one. The seed is mixed
//! into each hash: who chooses ids must not be able to choose cells.

const EMPTY: u32 = u32::MAX;
/// Cells of the smallest table.
const CELLS_MIN: usize = 16;

/// Finds ordinals by the hash of their keys.
#[derive(Debug, Clone)]
pub(super) struct Table {
    cells: Vec<u32>,
    len: usize,
}

impl Table {
    pub(super) fn new() -> Table {
        Table { cells: vec![EMPTY; CELLS_MIN], len: 0 }
    }

    /// Where a probe for `hash` begins: the hash as a fraction of the number of cells.
    fn start(&self, hash: u64) -> usize {
        let cells = u64::try_from(self.cells.len()).unwrap_or(u64::MAX);
        usize::try_from(high(u128::from(hash) * u128::from(cells))).unwrap_or(0)
    }

    fn next(&self, cell: usize) -> usize {
        if cell + 1 == self.cells.len() { 0 } else { cell + 1 }
    }

    /// The ordinal whose key is meant, if it is here.
    pub(super) fn find(&self, hash: u64, is_meant: impl Fn(u32) -> bool) -> Option<u32> {
        let mut cell = self.start(hash);
        loop {
            match self.cells[cell] {
                EMPTY => return None,
                ordinal if is_meant(ordinal) => return Some(ordinal),
                _other => cell = self.next(cell),
            }
        }
    }

    /// Adds an ordinal that is not here. `hash_of` gives the hash of any ordinal that is.
    pub(super) fn insert(&mut self, hash: u64, ordinal: u32, hash_of: impl Fn(u32) -> u64) {
        // At most two cells in three are full; half as many again are made when they are.
        if (self.len + 1) * 3 > self.cells.len() * 2 {
            let larger = self.cells.len() + self.cells.len() / 2;
            let old = std::mem::replace(&mut self.cells, vec![EMPTY; larger]);
            for known in old.into_iter().filter(|known| *known != EMPTY) {
                self.put(hash_of(known), known);
            }
        }
        self.put(hash, ordinal);
        self.len += 1;
    }

    fn put(&mut self, hash: u64, ordinal: u32) {
        let mut cell = self.start(hash);
        while self.cells[cell] != EMPTY {
            cell = self.next(cell);
        }
        self.cells[cell] = ordinal;
    }

    /// Takes an ordinal out, if it is here, and closes the gap.
    pub(super) fn remove(&mut self, hash: u64, ordinal: u32, hash_of: impl Fn(u32) -> u64) {
        let mut gap = self.start(hash);
        while self.cells[gap] != ordinal {
            if self.cells[gap] == EMPTY {
                return;
            }
            gap = self.next(gap);
        }
        self.len -= 1;
        let mut cell = self.next(gap);
        while self.cells[cell] != EMPTY {
            let start = self.start(hash_of(self.cells[cell]));
            // It may move to the gap unless its own place lies after the gap, on the way to it.
            let is_between = if gap <= cell {
                gap < start && start <= cell
            } else {
                gap < start || start <= cell
            };
            if !is_between {
                self.cells[gap] = self.cells[cell];
                gap = cell;
            }
            cell = self.next(cell);
        }
        self.cells[gap] = EMPTY;
    }

    /// How many ordinals it holds.
    #[cfg(test)]
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// What it takes of memory, in bytes.
    pub(super) const fn bytes(&self) -> usize {
        self.cells.capacity() * size_of::<u32>()
    }
}

/// The upper half of a product.
fn high(product: u128) -> u64 {
    u64::try_from(product >> 64).unwrap_or(u64::MAX)
}

fn low(product: u128) -> u64 {
    u64::try_from(product & u128::from(u64::MAX)).unwrap_or(u64::MAX)
}

/// The golden ratio as a fraction of 2⁶⁴, made odd.
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Mixes a word into a hash: the halves of a 128-bit product, folded (Wang Yi, wyhash).
pub(super) fn mix(hash: u64, word: u64) -> u64 {
    let product = u128::from(hash ^ word) * u128::from(ODD ^ hash.rotate_left(32));
    high(product) ^ low(product)
}

/// A number of 128 bits as two words, the upper first: an entry that holds it needs no padding.
pub(super) type Words = [u64; 2];

pub(super) fn words(number: u128) -> Words {
    [high(number), low(number)]
}

pub(super) fn number(words: Words) -> u128 {
    u128::from(words[0]) << 64 | u128::from(words[1])
}

/// The hash of a number of 128 bits: one product, folded.
pub(super) fn hash_words(seed: u64, words: Words) -> u64 {
    let product =
        u128::from(words[0] ^ seed ^ ODD) * u128::from(words[1] ^ seed.rotate_left(32) ^ ODD);
    high(product) ^ low(product)
}

/// Appends to a vector that grows by an eighth, not by the whole: it may be most of the memory.
pub(super) fn push_tight<T>(entries: &mut Vec<T>, fresh: T) {
    if entries.len() == entries.capacity() {
        entries.reserve_exact(entries.len() / 8 + 4);
    }
    entries.push(fresh);
}

/// The hash of a text.
pub(super) fn hash_text(seed: u64, text: &[u8]) -> u64 {
    let mut hash = seed;
    for chunk in text.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        hash = mix(hash, u64::from_le_bytes(word));
    }
    hash
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn it_finds_what_was_put_in_and_not_taken_out(
            steps in prop::collection::vec((any::<bool>(), 0_u128..80), 1..400),
            seed in any::<u64>(),
        ) {
            let mut keys: Vec<u128> = Vec::new();
            let (mut table, mut model) = (Table::new(), BTreeMap::new());
            for (is_in, key) in steps {
                let hash = hash_words(seed, words(key));
                match (is_in, model.get(&key).copied()) {
                    (true, None) => {
                        let ordinal = keys.len() as u32;
                        keys.push(key);
                        table.insert(hash, ordinal, |o| hash_words(seed, words(keys[o as usize])));
                        model.insert(key, ordinal);
                    }
                    (false, Some(ordinal)) => {
                        table.remove(hash, ordinal, |o| hash_words(seed, words(keys[o as usize])));
                        model.remove(&key);
                    }
                    (true, Some(_)) | (false, None) => {}
                }
                prop_assert_eq!(table.len(), model.len());
                for key in 0..80 {
                    let found =
                        table.find(hash_words(seed, words(key)), |o| keys[o as usize] == key);
                    prop_assert_eq!(found, model.get(&key).copied());
                }
            }
        }
    }

    #[test]
    fn hashes_spread_neighbours_over_the_cells() {
        let mut table = Table::new();
        for ordinal in 0..10_000 {
            table.insert(hash_words(1, words(u128::from(ordinal))), ordinal, |o| {
                hash_words(1, words(u128::from(o)))
            });
        }
        let runs = table.cells.split(|cell| *cell == EMPTY).map(<[u32]>::len);
        let longest = runs.max().unwrap();
        assert!(longest < 150, "a probe may pass {longest} cells");
    }
}
