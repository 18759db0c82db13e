//! The RFC 6962 Merkle tree over the journal's records: roots and proofs.
//!
//! A [`Frontier`] holds the roots of the complete subtrees (RFC 9162, 2.1.2), so appending costs
//! O(1) hashes on average and a tree of any size is at most 64 hashes. Proofs are made from
//! *ranges*: [`inclusion_ranges`] and [`consistency_ranges`] say which runs of leaves have to be
//! hashed, and the caller hashes them from wherever it keeps its records.
//!
//! Written here because the kept crate (`ct-merkle` 0.3, our test oracle) wants every leaf in
//! memory, has no frontier, panics on a bad index, and checks a proof only against the whole
//! leaf, not against the leaf hash a receipt carries.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use sha2::{Digest, Sha256};

/// A SHA-256 hash of a leaf, a node or a root. Shown as 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hash([u8; Hash::BYTES]);

impl Hash {
    /// Bytes in a hash.
    pub const BYTES: usize = 32;

    /// The hash with these bytes.
    pub const fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    /// The bytes of the hash.
    pub const fn as_bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }

    /// The hash of a leaf: `SHA-256(0x00 ‖ bytes)`.
    pub fn of_leaf(bytes: &[u8]) -> Self {
        let mut hasher = Sha256::new_with_prefix([0x00]);
        hasher.update(bytes);
        Self(hasher.finalize().into())
    }

    /// The root of the tree without leaves: SHA-256 of nothing.
    pub fn of_nothing() -> Self {
        Self(Sha256::digest([]).into())
    }

    /// The hash of an inner node: `SHA-256(0x01 ‖ left ‖ right)`.
    pub(crate) fn of_node(left: &Self, right: &Self) -> Self {
        let mut bytes = [0x01; 1 + 2 * Self::BYTES];
        bytes[1..=Self::BYTES].copy_from_slice(&left.0);
        bytes[1 + Self::BYTES..].copy_from_slice(&right.0);
        Self(Sha256::digest(bytes).into())
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Why a text is not a hash.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a hash is written as 64 lower-case hexadecimal digits")]
pub struct HashError;

impl FromStr for Hash {
    type Err = HashError;

    fn from_str(text: &str) -> Result<Self, HashError> {
        let mut bytes = [0; Self::BYTES];
        let pairs = text.as_bytes().chunks(2).zip(&mut bytes);
        for (pair, byte) in pairs {
            let digits = std::str::from_utf8(pair).map_err(|_| HashError)?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| HashError)?;
        }
        // One spelling only: neither capitals nor a sign nor another length.
        let hash = Self(bytes);
        if hash.to_string() == text { Ok(hash) } else { Err(HashError) }
    }
}

impl Serialize for Hash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The tree reduced to what its next leaf needs: its size and the roots of its complete
/// subtrees, the largest (leftmost) first.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Frontier {
    size: u64,
    peaks: Vec<Hash>,
}

impl Frontier {
    /// The tree without leaves.
    pub const fn new() -> Self {
        Self { size: 0, peaks: Vec::new() }
    }

    /// The frontier of a tree of `size` leaves with these subtree roots, the largest first.
    /// `None` when their number is not that of the bits set in `size`.
    pub fn from_parts(size: u64, peaks: Vec<Hash>) -> Option<Self> {
        (peaks.len() == peaks_of(size)).then_some(Self { size, peaks })
    }

    /// Leaves in the tree.
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// The roots of the complete subtrees, the largest first.
    pub fn peaks(&self) -> &[Hash] {
        &self.peaks
    }

    /// Adds the leaf with hash `leaf` at the right.
    ///
    /// # Panics
    /// After 2⁶⁴ − 1 leaves.
    pub fn append(&mut self, leaf: Hash) {
        let mut node = leaf;
        let mut complete = self.size;
        while complete & 1 == 1 {
            let left = self.peaks.pop().expect("there is one peak for each bit set in the size");
            node = Hash::of_node(&left, &node);
            complete >>= 1;
        }
        self.peaks.push(node);
        self.size = self.size.checked_add(1).expect("a journal has fewer than 2^64 records");
    }

    /// The tree's size and root.
    pub fn head(&self) -> TreeHead {
        TreeHead { size: self.size, root: self.root() }
    }

    /// The root hash of the tree (RFC 6962, 2.1).
    pub fn root(&self) -> Hash {
        let right_to_left = self.peaks.iter().rev().copied();
        right_to_left
            .reduce(|right, left| Hash::of_node(&left, &right))
            .unwrap_or_else(Hash::of_nothing)
    }
}

/// Subtree roots in the frontier of a tree of `size` leaves: the bits set in `size`.
pub fn peaks_of(size: u64) -> usize {
    usize::try_from(size.count_ones()).expect("at most 64")
}

/// The runs of leaves whose tree hashes are, in this order, the inclusion proof of leaf `index`
/// in the tree of `size` leaves (RFC 6962, 2.1.1). `None` when there is no such leaf.
pub fn inclusion_ranges(index: u64, size: u64) -> Option<Vec<Range<u64>>> {
    if index >= size {
        return None;
    }
    let (mut start, mut end) = (0, size);
    let mut from_root = Vec::new();
    while end - start > 1 {
        let middle = start + split(end - start);
        if index < middle {
            from_root.push(middle..end);
            end = middle;
        } else {
            from_root.push(start..middle);
            start = middle;
        }
    }
    from_root.reverse();
    Some(from_root)
}

/// The runs of leaves whose tree hashes are, in this order, the proof that the tree of `new`
/// leaves extends the tree of `old` leaves (RFC 6962, 2.1.2). `None` when `old > new`; empty when
/// `old` is 0 or equals `new`.
pub fn consistency_ranges(old: u64, new: u64) -> Option<Vec<Range<u64>>> {
    if old > new {
        return None;
    }
    let mut from_root = Vec::new();
    if old == 0 {
        return Some(from_root);
    }
    let (mut start, mut end) = (0, new);
    while old != end {
        let middle = start + split(end - start);
        if old <= middle {
            from_root.push(middle..end);
            end = middle;
        } else {
            from_root.push(start..middle);
            start = middle;
        }
    }
    // The checker knows the old root already when the old tree is one of the subtrees.
    if start != 0 {
        from_root.push(start..end);
    }
    from_root.reverse();
    Some(from_root)
}

/// The largest power of two below `leaves`, for `leaves > 1`.
fn split(leaves: u64) -> u64 {
    1 << (leaves - 1).ilog2()
}

/// A tree as a checkpoint names it: how many leaves and the root over them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TreeHead {
    /// Leaves in the tree.
    pub size: u64,
    /// The root over them.
    pub root: Hash,
}

/// True if `proof` shows that the leaf with hash `leaf` is number `index` of `tree`
/// (RFC 9162, 2.1.3.2).
pub fn is_included(leaf: &Hash, index: u64, tree: &TreeHead, proof: &[Hash]) -> bool {
    if index >= tree.size {
        return false;
    }
    let (mut position, mut last) = (index, tree.size - 1);
    let mut root = *leaf;
    for sibling in proof {
        if last == 0 {
            return false;
        }
        if position & 1 == 1 || position == last {
            root = Hash::of_node(sibling, &root);
            skip_levels_without_sibling(&mut position, &mut last);
        } else {
            root = Hash::of_node(&root, sibling);
        }
        position >>= 1;
        last >>= 1;
    }
    last == 0 && root == tree.root
}

/// True if `proof` shows that `new` extends `old`: nothing removed, changed or reordered
/// (RFC 9162, 2.1.4.2). Any tree extends the empty one.
pub fn is_consistent(old: &TreeHead, new: &TreeHead, proof: &[Hash]) -> bool {
    if old.size == 0 {
        return proof.is_empty() && old.root == Hash::of_nothing();
    }
    if old.size >= new.size {
        return proof.is_empty() && old == new;
    }
    let (seed, path) = match proof.split_first() {
        _ if old.size.is_power_of_two() => (&old.root, proof),
        Some((seed, path)) => (seed, path),
        None => return false,
    };
    let (mut position, mut last) = (old.size - 1, new.size - 1);
    let shared = position.trailing_ones();
    position >>= shared;
    last >>= shared;
    let (mut old_root, mut new_root) = (*seed, *seed);
    for node in path {
        if last == 0 {
            return false;
        }
        if position & 1 == 1 || position == last {
            old_root = Hash::of_node(node, &old_root);
            new_root = Hash::of_node(node, &new_root);
            skip_levels_without_sibling(&mut position, &mut last);
        } else {
            new_root = Hash::of_node(&new_root, node);
        }
        position >>= 1;
        last >>= 1;
    }
    last == 0 && old_root == old.root && new_root == new.root
}

/// Climbs from a rightmost node to where it is a right child, or to the root.
fn skip_levels_without_sibling(position: &mut u64, last: &mut u64) {
    while *position & 1 == 0 && *position != 0 {
        *position >>= 1;
        *last >>= 1;
    }
}

#[cfg(test)]
#[path = "merkle_tests.rs"]
mod tests;
