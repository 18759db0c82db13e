//! Where the journal keeps its pages and indexes: ordered maps and one atomic commit.
//!
//! Three implementations, one conformance suite (`conformance.rs`): [`MemoryStore`] for tests, the
//! simulator and `dev` without a data directory, [`CommitStore`] for the simulated disk,
//! [`SledStore`] for everything else. A commit is atomic but not durable; only `sync` is durable.

mod commits;
mod memory;
mod sled;

#[cfg(test)]
mod conformance;

use std::ops::RangeInclusive;

pub(crate) use self::commits::CommitStore;
pub(crate) use self::memory::MemoryStore;
pub(crate) use self::sled::SledStore;
use crate::error::Error;

/// The maps of the store. At most 8 in all: each costs sled memory, and it never reuses one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tree {
    /// First index, chunk → page of the records that are not sealed yet.
    Records,
    /// Bucket, segment → sealed records of each lease and request.
    BySubject,
    /// Bucket, segment → sealed records of each tenant.
    ByTenant,
    /// The journal's description under one key.
    Meta,
}

impl Tree {
    /// All trees, in the order of their declaration.
    pub(crate) const ALL: [Self; 4] = [Self::Records, Self::BySubject, Self::ByTenant, Self::Meta];

    /// Place in [`Tree::ALL`].
    const fn place(self) -> usize {
        match self {
            Self::Records => 0,
            Self::BySubject => 1,
            Self::ByTenant => 2,
            Self::Meta => 3,
        }
    }

    /// Name on disk.
    const fn name(self) -> &'static str {
        match self {
            Self::Records => "records",
            Self::BySubject => "by_lease",
            Self::ByTenant => "by_tenant",
            Self::Meta => "meta",
        }
    }
}

/// A key and its value.
pub(crate) type Entry = (Vec<u8>, Vec<u8>);

/// Writes that happen together or not at all.
#[derive(Default)]
pub(crate) struct Batch {
    writes: Vec<(Tree, Vec<u8>, Option<Vec<u8>>)>,
}

impl Batch {
    /// Puts `value` under `key`, in place of what was there.
    pub(crate) fn put(&mut self, tree: Tree, key: Vec<u8>, value: Vec<u8>) {
        self.writes.push((tree, key, Some(value)));
    }

    /// Removes `key` and its value, if it is there.
    pub(crate) fn remove(&mut self, tree: Tree, key: Vec<u8>) {
        self.writes.push((tree, key, None));
    }
}

/// Ordered maps of bytes with one atomic commit.
pub(crate) trait Store: Send + Sync {
    /// The value under `key`.
    fn get(&self, tree: Tree, key: &[u8]) -> Result<Option<Vec<u8>>, Error>;

    /// The last entry whose key is not after `key`.
    fn last_until(&self, tree: Tree, key: &[u8]) -> Result<Option<Entry>, Error>;

    /// The first `limit` entries with keys in `keys`, in order.
    fn scan(
        &self,
        tree: Tree,
        keys: RangeInclusive<&[u8]>,
        limit: usize,
    ) -> Result<Vec<Entry>, Error>;

    /// Does all writes of `batch` or, on an error or a crash, none.
    fn commit(&mut self, batch: Batch) -> Result<(), Error>;

    /// Returns once everything committed is on the disk.
    fn sync(&mut self) -> Result<(), Error>;
}
