//! A store in one file of commits, each with its check sum, on any disk. What is in which commit is
//! kept in memory, the values are read from the file.
//!
//! It stands in for sled on the simulated disk, where sled cannot be: it promises what [`Store`]
//! promises and nothing more, and is not compacted, so it is for short lives only.
//!
//! ```text
//! "SUBLETFS" ‖ commit …
//! commit: length of its writes u32 ‖ number u64 ‖ synced u64 ‖ CRC-32 of all but the length u32 ‖ writes
//! write:  tree u8 ‖ length of the key u32 ‖ length of the value u32, u32::MAX: removed ‖ key ‖ value
//! ```
//!
//! Integers are little-endian. *synced* says how many bytes of the file were durable when the commit
//! was written. So a bad commit that a good one behind it says to have been durable is damage. Any
//! other one was being written when the power went, and is cut off with all behind it: the log
//! brings back what they held.

use std::collections::BTreeMap;
use std::ops::{Bound, RangeInclusive};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Batch, Entry, Store, Tree};
use crate::disk::{Disk, DiskFile, create_folders};
use crate::error::{Damage, Error};

const MAGIC: &[u8; 8] = b"SUBLETFS";
const FILE: &str = "commits";
const HEADER: usize = 4 + 8 + 8 + 4;
const REMOVED: u32 = u32::MAX;

/// Where a value lies in the file, and its check sum.
#[derive(Clone, Copy)]
struct Place {
    at: u64,
    length: usize,
    sum: u32,
}

/// The trees in a file of commits.
pub(crate) struct CommitStore {
    path: PathBuf,
    file: Box<dyn DiskFile>,
    end: u64,
    synced: u64,
    commits: u64,
    trees: [BTreeMap<Vec<u8>, Place>; Tree::ALL.len()],
    /// A commit failed and may be there in part.
    is_torn: bool,
}

impl CommitStore {
    /// Opens or creates the store in the folder `dir`.
    ///
    /// # Errors
    /// [`Error::Damaged`] when a commit that is not the last is bad.
    pub(crate) fn open(disk: &Arc<dyn Disk>, dir: &Path) -> Result<Self, Error> {
        create_folders(&**disk, dir)?;
        let path = dir.join(FILE);
        let is_there = disk.exists(&path).map_err(Error::io("look for", &path))?;
        let file = if is_there { disk.edit(&path) } else { disk.create(&path) };
        let file = file.map_err(Error::io("open", &path))?;
        let trees = Default::default();
        let mut store = Self { path, file, end: 0, synced: 0, commits: 0, trees, is_torn: false };
        store.read()?;
        if !is_there {
            disk.sync_folder(dir).map_err(Error::io("sync", dir))?;
        }
        Ok(store)
    }

    fn read(&mut self) -> Result<(), Error> {
        let length = self.file.length().map_err(Error::io("read", &self.path))?;
        let most = usize::try_from(length).map_err(|_| Damage::Corrupt)?;
        let bytes = self.file.read(0, most).map_err(Error::io("read", &self.path))?;
        let magic = bytes.len().min(MAGIC.len());
        if bytes[..magic] != MAGIC[..magic] && !is_blank(&bytes) {
            return Err(Damage::Corrupt.into());
        }
        let mut end = 0;
        if bytes.len() >= MAGIC.len() && !is_blank(&bytes[..MAGIC.len()]) {
            end = MAGIC.len();
            while let Some(commit) = Commit::at(&bytes, end) {
                if commit.number != self.commits {
                    return Err(Damage::Corrupt.into());
                }
                self.take(end + HEADER, commit.writes).ok_or(Damage::Corrupt)?;
                self.commits += 1;
                end += HEADER + commit.writes.len();
            }
        }
        let behind = (end + 1..bytes.len()).filter_map(|at| Commit::at(&bytes, at));
        let known = behind.map(|commit| commit.synced).max();
        if known.is_some_and(|synced| usize::try_from(synced).is_ok_and(|synced| synced > end)) {
            return Err(Damage::Corrupt.into());
        }
        let at = u64::try_from(end).expect("a length fits in 64 bits");
        self.file.truncate(at).map_err(Error::io("cut", &self.path))?;
        if end < MAGIC.len() {
            self.file.write(0, MAGIC).map_err(Error::io("write", &self.path))?;
            end = MAGIC.len();
        }
        // What was there before may be in the system's memory only.
        self.file.sync().map_err(Error::io("sync", &self.path))?;
        self.end = u64::try_from(end).expect("a length fits in 64 bits");
        self.synced = self.end;
        Ok(())
    }

    /// Takes in the writes of a commit that begin at `at`; `None` when they are none.
    fn take(&mut self, at: usize, writes: &[u8]) -> Option<()> {
        let mut rest = writes;
        while !rest.is_empty() {
            let (&[tree], after) = rest.split_first_chunk()?;
            let (key_length, after) = after.split_first_chunk()?;
            let (value_length, after) = after.split_first_chunk()?;
            let (key, after) = split(after, u32::from_le_bytes(*key_length))?;
            let tree = self.trees.get_mut(usize::from(tree))?;
            let value_length = u32::from_le_bytes(*value_length);
            if value_length == REMOVED {
                tree.remove(key);
                rest = after;
                continue;
            }
            let place = u64::try_from(at + writes.len() - after.len()).ok()?;
            let (value, after) = split(after, value_length)?;
            let sum = crc32fast::hash(value);
            tree.insert(key.to_vec(), Place { at: place, length: value.len(), sum });
            rest = after;
        }
        Some(())
    }

    fn value(&self, place: Place) -> Result<Vec<u8>, Error> {
        let value = self.file.read(place.at, place.length);
        let value = value.map_err(Error::io("read", &self.path))?;
        let is_good = value.len() == place.length && crc32fast::hash(&value) == place.sum;
        if is_good { Ok(value) } else { Err(Damage::Corrupt.into()) }
    }
}

fn is_blank(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

fn split(bytes: &[u8], at: u32) -> Option<(&[u8], &[u8])> {
    bytes.split_at_checked(usize::try_from(at).ok()?)
}

/// A whole commit in the file.
struct Commit<'a> {
    number: u64,
    synced: u64,
    writes: &'a [u8],
}

impl<'a> Commit<'a> {
    /// The one that begins at `at`, if its check sum is right.
    fn at(bytes: &'a [u8], at: usize) -> Option<Self> {
        let (length, rest) = bytes.get(at..)?.split_first_chunk()?;
        let (number, rest) = rest.split_first_chunk()?;
        let (synced, rest) = rest.split_first_chunk()?;
        let (sum, rest) = rest.split_first_chunk()?;
        let (writes, _) = split(rest, u32::from_le_bytes(*length))?;
        let (number, synced) = (u64::from_le_bytes(*number), u64::from_le_bytes(*synced));
        let commit = Self { number, synced, writes };
        (!writes.is_empty() && commit.sum() == u32::from_le_bytes(*sum)).then_some(commit)
    }

    fn sum(&self) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&self.number.to_le_bytes());
        hasher.update(&self.synced.to_le_bytes());
        hasher.update(self.writes);
        hasher.finalize()
    }

    fn bytes(&self) -> Vec<u8> {
        let length = u32::try_from(self.writes.len()).expect("a commit is below 1 GiB");
        let (number, synced) = (self.number.to_le_bytes(), self.synced.to_le_bytes());
        let (length, sum) = (length.to_le_bytes(), self.sum().to_le_bytes());
        [&length[..], &number, &synced, &sum, self.writes].concat()
    }
}

impl Store for CommitStore {
    fn get(&self, tree: Tree, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.trees[tree.place()].get(key).map(|place| self.value(*place)).transpose()
    }

    fn last_until(&self, tree: Tree, key: &[u8]) -> Result<Option<Entry>, Error> {
        let until = (Bound::Unbounded, Bound::Included(key));
        let last = self.trees[tree.place()].range::<[u8], _>(until).next_back();
        last.map(|(key, place)| Ok((key.clone(), self.value(*place)?))).transpose()
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
        entries.map(|(key, place)| Ok((key.clone(), self.value(*place)?))).collect()
    }

    fn commit(&mut self, batch: Batch) -> Result<(), Error> {
        if batch.writes.is_empty() {
            return Ok(());
        }
        if self.is_torn {
            return Err(Damage::Torn.into());
        }
        let mut writes = Vec::new();
        for (tree, key, value) in &batch.writes {
            let length =
                |bytes: &[u8]| u32::try_from(bytes.len()).expect("a value is below 64 KiB");
            writes.push(u8::try_from(tree.place()).expect("one of four"));
            writes.extend_from_slice(&length(key).to_le_bytes());
            let value_length = value.as_deref().map_or(REMOVED, length);
            writes.extend_from_slice(&value_length.to_le_bytes());
            writes.extend_from_slice(key);
            writes.extend_from_slice(value.as_deref().unwrap_or_default());
        }
        let commit = Commit { number: self.commits, synced: self.synced, writes: &writes };
        let bytes = commit.bytes();
        self.is_torn = true;
        self.file.write(self.end, &bytes).map_err(Error::io("write", &self.path))?;
        self.is_torn = false;
        let at = usize::try_from(self.end).expect("a file that was read fits in memory") + HEADER;
        self.take(at, &writes).expect("the writes were just encoded");
        self.end += u64::try_from(bytes.len()).expect("a length fits in 64 bits");
        self.commits += 1;
        Ok(())
    }

    fn sync(&mut self) -> Result<(), Error> {
        self.file.sync().map_err(Error::io("sync", &self.path))?;
        self.synced = self.end;
        Ok(())
    }
}
