//! The store's twin in memory. It forgets everything when dropped.

use std::collections::BTreeMap;
use std::ops::{Bound, RangeInclusive};

use super::{Batch, Entry, Store, Tree};
use crate::error::Error;

/// Four ordered maps in memory.
#[derive(Default)]
pub(crate) struct MemoryStore {
    trees: [BTreeMap<Vec<u8>, Vec<u8>>; Tree::ALL.len()],
}

impl Store for MemoryStore {
    fn get(&self, tree: Tree, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        Ok(self.trees[tree.place()].get(key).cloned())
    }

    fn last_until(&self, tree: Tree, key: &[u8]) -> Result<Option<Entry>, Error> {
        let until = (Bound::Unbounded, Bound::Included(key));
        let last = self.trees[tree.place()].range::<[u8], _>(until).next_back();
        Ok(last.map(|(key, value)| (key.clone(), value.clone())))
    }

    fn scan(
        &self,
        tree: Tree,
        keys: RangeInclusive<&[u8]>,
        limit: usize,
    ) -> Result<Vec<Entry>, Error> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let keys = (Bound::Included(*keys.start()), Bound::Included(*keys.end()));
        let entries = self.trees[tree.place()].range::<[u8], _>(keys).take(limit);
        Ok(entries.map(|(key, value)| (key.clone(), value.clone())).collect())
    }

    fn commit(&mut self, batch: Batch) -> Result<(), Error> {
        for (tree, key, value) in batch.writes {
            match value {
                Some(value) => self.trees[tree.place()].insert(key, value),
                None => self.trees[tree.place()].remove(&key),
            };
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<(), Error> {
        Ok(())
    }
}
