//! Inner nodes of the tree, so that a proof does not hash the whole ledger.
//!
//! The roots of all complete subtrees of 256 leaves and more are kept: a quarter of a byte for each
//! record. A proof then takes at most 255 leaves beside its own, and the nodes.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::merkle::{Frontier, Hash};

/// Levels below this one are hashed again: subtrees of fewer than 256 leaves.
const LEVEL_MIN: u32 = 8;
/// Leaves of the smallest subtree that is kept.
const LEAVES_MIN: u64 = 1 << LEVEL_MIN;

/// Subtree roots of a tree that grows.
#[derive(Default, Debug)]
pub(crate) struct Subtrees {
    size: u64,
    peaks: Vec<Hash>,
    /// Level and place in it → root; level 8 holds subtrees of 256 leaves.
    kept: BTreeMap<(u32, u64), Hash>,
}

impl Subtrees {
    /// Leaves taken in.
    pub(crate) const fn size(&self) -> u64 {
        self.size
    }

    /// Takes in the next leaf.
    pub(crate) fn push(&mut self, leaf: Hash) {
        let (mut node, mut level) = (leaf, 0);
        while (self.size >> level) & 1 == 1 {
            let left = self.peaks.pop().expect("there is one peak for each bit set in the size");
            node = Hash::of_node(&left, &node);
            level += 1;
            if level >= LEVEL_MIN {
                self.kept.insert((level, self.size >> level), node);
            }
        }
        self.peaks.push(node);
        self.size += 1;
    }

    /// The root over a run of leaves as proofs need it: it begins at a multiple of the power of two
    /// that is not below its length. `hash` gives the root over a short run, from the leaves.
    pub(crate) fn root<E>(
        &self,
        run: Range<u64>,
        hash: &mut impl FnMut(Range<u64>) -> Result<Hash, E>,
    ) -> Result<Hash, E> {
        let length = run.end - run.start;
        if length < LEAVES_MIN {
            return hash(run);
        }
        if length.is_power_of_two() {
            let level = length.ilog2();
            if let Some(kept) = self.kept.get(&(level, run.start >> level)) {
                return Ok(*kept);
            }
            if length == LEAVES_MIN {
                return hash(run);
            }
        }
        let middle = run.start + (1 << (length - 1).ilog2());
        let left = self.root(run.start..middle, hash)?;
        let right = self.root(middle..run.end, hash)?;
        Ok(Hash::of_node(&left, &right))
    }
}

/// The root over these leaves.
pub(crate) fn root_over(leaves: impl Iterator<Item = Hash>) -> Hash {
    let mut tree = Frontier::new();
    leaves.for_each(|leaf| tree.append(leaf));
    tree.root()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;
    use crate::merkle::{consistency_ranges, inclusion_ranges};

    fn leaf(index: u64) -> Hash {
        Hash::of_leaf(&index.to_le_bytes())
    }

    fn slow(run: Range<u64>) -> Hash {
        root_over(run.map(leaf))
    }

    #[test]
    fn runs_of_proofs_have_the_root_of_their_leaves_and_few_leaves_are_hashed() {
        let mut nodes = Subtrees::default();
        (0..2_900).for_each(|index| nodes.push(leaf(index)));
        for size in [1, 255, 256, 257, 511, 512, 1_000, 2_048, 2_899, 2_900] {
            let ranges = [0, 1, 255, 256, 700, 2_899].into_iter();
            let inclusion = ranges.filter_map(|index| inclusion_ranges(index, size));
            let old = [1, 255, 256, 257, 600, 2_048].into_iter();
            let consistency = old.filter_map(|old| consistency_ranges(old, size));
            for ranges in inclusion.chain(consistency) {
                let mut hashed = 0;
                for range in ranges {
                    let mut hash = |run: Range<u64>| {
                        hashed += run.end - run.start;
                        Ok::<_, Infallible>(slow(run))
                    };
                    assert_eq!(nodes.root(range.clone(), &mut hash), Ok(slow(range)));
                }
                assert!(hashed < 3 * LEAVES_MIN, "{hashed} leaves of {size}");
            }
        }
        assert_eq!(nodes.size(), 2_900);
    }
}
