//! A table from keys to ordinals: chains that run through the entries themselves.
//!
//! The table holds where each chain begins, four bytes a chain; an entry holds its key and the next
//! of its chain. To put one in or to take one out touches its own chain only. The table keeps no
//! order and shows none, so that nothing can come to depend on one. A seed is mixed into each hash:
//! who chooses ids must not be able to choose chains.

use super::{NONE, at};

/// Chains of the smallest table.
const CHAINS_MIN: usize = 16;

/// An entry that a table finds by its key.
pub(super) trait Chained {
    /// The hash of its key.
    fn hash(&self, seed: u64) -> u64;

    /// The next entry of its chain. Only the table changes it while the entry is in.
    fn chain(&self) -> u32;

    /// See [`Chained::chain`].
    fn chain_mut(&mut self) -> &mut u32;
}

/// Finds entries by the hash of their keys. The caller keeps the entries, in one array.
#[derive(Debug, Clone)]
pub(super) struct Table {
    heads: Vec<u32>,
    len: usize,
}

impl Table {
    pub(super) fn new() -> Table {
        Table { heads: vec![NONE; CHAINS_MIN], len: 0 }
    }

    /// The chain of a hash: the hash as a fraction of the number of chains.
    fn chain_of(&self, hash: u64) -> usize {
        let chains = u64::try_from(self.heads.len()).unwrap_or(u64::MAX);
        usize::try_from(high(u128::from(hash) * u128::from(chains))).unwrap_or(0)
    }

    /// The entry whose key is meant, if it is here.
    #[inline]
    pub(super) fn find<E: Chained>(
        &self,
        entries: &[E],
        hash: u64,
        is_meant: impl Fn(&E) -> bool,
    ) -> Option<u32> {
        let mut no = self.heads[self.chain_of(hash)];
        while let Some(entry) = entries.get(at(no)) {
            if is_meant(entry) {
                return Some(no);
            }
            no = entry.chain();
        }
        None
    }

    /// Adds an entry that is not here.
    #[inline]
    pub(super) fn insert<E: Chained>(&mut self, entries: &mut [E], seed: u64, no: u32) {
        if self.len == self.heads.len() {
            self.grow(entries, seed);
        }
        self.len += 1;
        self.put(entries, seed, no);
    }

    fn put<E: Chained>(&mut self, entries: &mut [E], seed: u64, no: u32) {
        let entry = &mut entries[at(no)];
        let chain = self.chain_of(entry.hash(seed));
        *entry.chain_mut() = std::mem::replace(&mut self.heads[chain], no);
    }

    /// Half as many chains again, when there are as many entries as chains.
    #[cold]
    fn grow<E: Chained>(&mut self, entries: &mut [E], seed: u64) {
        let larger = self.heads.len() + self.heads.len() / 2;
        for head in std::mem::replace(&mut self.heads, vec![NONE; larger]) {
            let mut next = head;
            while next != NONE {
                let no = next;
                next = entries[at(no)].chain();
                self.put(entries, seed, no);
            }
        }
    }

    /// Takes the entry out whose key is meant, if it is here.
    #[inline]
    pub(super) fn remove<E: Chained>(
        &mut self,
        entries: &mut [E],
        hash: u64,
        is_meant: impl Fn(u32, &E) -> bool,
    ) -> Option<u32> {
        let chain = self.chain_of(hash);
        let (mut before, mut no) = (NONE, self.heads[chain]);
        while let Some(entry) = entries.get(at(no)) {
            let next = entry.chain();
            if is_meant(no, entry) {
                match entries.get_mut(at(before)) {
                    Some(before) => *before.chain_mut() = next,
                    None => self.heads[chain] = next,
                }
                self.len -= 1;
                return Some(no);
            }
            (before, no) = (no, next);
        }
        None
    }

    /// How many entries it holds.
    #[cfg(test)]
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// What it takes of memory, in bytes, besides the entries.
    pub(super) const fn bytes(&self) -> usize {
        self.heads.capacity() * size_of::<u32>()
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
    use std::collections::btree_map::Entry;

    use proptest::prelude::*;

    use super::*;

    struct Item {
        key: u128,
        chain: u32,
    }

    impl Chained for Item {
        fn hash(&self, seed: u64) -> u64 {
            hash_words(seed, words(self.key))
        }

        fn chain(&self) -> u32 {
            self.chain
        }

        fn chain_mut(&mut self) -> &mut u32 {
            &mut self.chain
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn it_finds_what_was_put_in_and_not_taken_out(
            steps in prop::collection::vec((any::<bool>(), 0_u128..80), 1..400),
            seed in any::<u64>(),
        ) {
            let mut items: Vec<Item> = Vec::new();
            let (mut table, mut model) = (Table::new(), BTreeMap::new());
            for (is_in, key) in steps {
                let hash = hash_words(seed, words(key));
                if !is_in {
                    let removed = table.remove(&mut items, hash, |_, item| item.key == key);
                    prop_assert_eq!(removed, model.remove(&key));
                } else if let Entry::Vacant(place) = model.entry(key) {
                    let ordinal = items.len() as u32;
                    items.push(Item { key, chain: NONE });
                    table.insert(&mut items, seed, ordinal);
                    place.insert(ordinal);
                }
                prop_assert_eq!(table.len(), model.len());
                for key in 0..80 {
                    let hash = hash_words(seed, words(key));
                    let found = table.find(&items, hash, |item| item.key == key);
                    prop_assert_eq!(found, model.get(&key).copied());
                }
            }
        }
    }

    #[test]
    fn hashes_spread_neighbours_over_the_chains() {
        let (mut table, mut items) = (Table::new(), Vec::new());
        for ordinal in 0..10_000 {
            items.push(Item { key: u128::from(ordinal), chain: NONE });
            table.insert(&mut items, 1, ordinal);
        }
        let length = |head: &u32| {
            std::iter::successors(items.get(at(*head)), |item| items.get(at(item.chain))).count()
        };
        let longest = table.heads.iter().map(length).max().unwrap();
        assert!(longest < 12, "a chain has {longest} entries");
    }
}
