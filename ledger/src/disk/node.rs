//! A file and a folder of the simulated disk: what a process sees, what is durable, and what stands
//! between the two until it is synced.

use std::collections::BTreeMap;

/// What a disk writes whole or not at all, in bytes.
const SECTOR: usize = 512;

/// What a loss of power took.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Loss {
    /// Changes of files and names that were not synced and are not there as they were made.
    pub lost: u64,
    /// Writes of which some sectors are there and others are not.
    pub torn: u64,
}

/// Number of a node.
pub(super) type Number = u64;

/// Something below a name.
pub(super) enum Node {
    File(File),
    Folder(Folder),
}

/// A file.
#[derive(Default)]
pub(super) struct File {
    /// As a process sees it.
    pub(super) now: Vec<u8>,
    /// As of its last sync.
    pub(super) kept: Vec<u8>,
    /// What was done to it since then, in order.
    changes: Vec<Change>,
    /// Where a bit is flipped and nobody has written since.
    flips: Vec<usize>,
}

enum Change {
    Write { at: usize, bytes: Vec<u8> },
    Truncate { length: usize },
}

impl Change {
    fn apply(&self, content: &mut Vec<u8>) {
        match self {
            Self::Write { at, bytes } => put(content, *at, bytes),
            Self::Truncate { length } => content.truncate(*length),
        }
    }
}

/// Writes `bytes` at `at`; what lies between there and the end is zeros.
fn put(content: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    let end = at + bytes.len();
    if content.len() < end {
        content.resize(end, 0);
    }
    content[at..end].copy_from_slice(bytes);
}

impl File {
    /// A file that is durable.
    pub(super) fn durable(bytes: &[u8]) -> Self {
        Self { now: bytes.to_vec(), kept: bytes.to_vec(), ..Self::default() }
    }

    pub(super) fn write(&mut self, at: usize, bytes: &[u8]) {
        put(&mut self.now, at, bytes);
        self.flips.retain(|flip| !(at..at + bytes.len()).contains(flip));
        self.changes.push(Change::Write { at, bytes: bytes.to_vec() });
    }

    pub(super) fn truncate(&mut self, length: usize) {
        self.now.truncate(length);
        self.flips.retain(|flip| *flip < length);
        self.changes.push(Change::Truncate { length });
    }

    /// How many of its bytes are on the disk as a process sees them, but for flipped ones.
    pub(super) fn durable_length(&self) -> usize {
        self.now.len().min(self.kept.len())
    }

    /// Flips a bit of a durable byte.
    pub(super) fn flip(&mut self, at: usize, bit: u64) {
        let byte = self.kept[at] ^ (1 << bit);
        (self.now[at], self.kept[at]) = (byte, byte);
        self.flips.push(at);
    }

    /// Whether a flipped bit is still there.
    pub(super) fn has_flip(&self, at: usize) -> bool {
        self.flips.contains(&at) && at < self.now.len()
    }

    pub(super) fn sync(&mut self) {
        for change in self.changes.drain(..) {
            change.apply(&mut self.kept);
        }
    }

    /// A sync failed: the system takes what was written for clean and never writes it. A later sync
    /// that succeeds says nothing about it.
    pub(super) fn forget_changes(&mut self) {
        self.changes.clear();
    }

    /// The power went. Of what was not synced, the first changes are there, then one that was torn
    /// at a sector's border, and of the later ones perhaps a few sectors. `choose(n)` is any number
    /// below `n`.
    pub(super) fn lose_power(&mut self, choose: &mut dyn FnMut(u64) -> u64) -> Loss {
        let changes = std::mem::take(&mut self.changes);
        let whole = below(changes.len() + 1, choose);
        let mut loss = Loss { lost: count(changes.len() - whole), torn: 0 };
        let keeps_later = choose(4) == 3;
        for (place, change) in changes.iter().enumerate() {
            match change {
                _ if place < whole => change.apply(&mut self.kept),
                Change::Truncate { .. } => {}
                Change::Write { at, bytes } => {
                    let pieces = pieces(*at, bytes);
                    let torn = if place == whole { below(pieces.len() + 1, choose) } else { 0 };
                    let (all, mut kept) = (pieces.len(), 0);
                    for (number, (at, piece)) in pieces.into_iter().enumerate() {
                        if number < torn || (keeps_later && choose(2) == 1) {
                            put(&mut self.kept, at, piece);
                            kept += 1;
                        }
                    }
                    loss.torn += u64::from(kept > 0 && kept < all);
                }
            }
        }
        self.now.clone_from(&self.kept);
        loss
    }
}

/// The parts of a write that a sector's border divides.
fn pieces(mut at: usize, mut bytes: &[u8]) -> Vec<(usize, &[u8])> {
    let mut pieces = Vec::new();
    while !bytes.is_empty() {
        let (piece, rest) = bytes.split_at(bytes.len().min(SECTOR - at % SECTOR));
        pieces.push((at, piece));
        at += piece.len();
        bytes = rest;
    }
    pieces
}

fn count(length: usize) -> u64 {
    u64::try_from(length).expect("a length fits in 64 bits")
}

fn below(length: usize, choose: &mut dyn FnMut(u64) -> u64) -> usize {
    usize::try_from(choose(count(length))).expect("below a length")
}

/// A folder.
#[derive(Default)]
pub(super) struct Folder {
    /// As a process sees it.
    pub(super) now: BTreeMap<String, Number>,
    /// As of its last sync.
    kept: BTreeMap<String, Number>,
    changes: Vec<NameChange>,
}

enum NameChange {
    Put { name: String, node: Number },
    Rename { from: String, to: String },
    Remove { name: String },
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<String, Number>) {
        match self {
            Self::Put { name, node } => {
                names.insert(name.clone(), *node);
            }
            Self::Rename { from, to } => {
                if let Some(node) = names.remove(from) {
                    names.insert(to.clone(), node);
                }
            }
            Self::Remove { name } => {
                names.remove(name);
            }
        }
    }
}

impl Folder {
    pub(super) fn put(&mut self, name: &str, node: Number) {
        self.change(NameChange::Put { name: name.to_owned(), node });
    }

    pub(super) fn rename(&mut self, from: &str, to: &str) {
        self.change(NameChange::Rename { from: from.to_owned(), to: to.to_owned() });
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.change(NameChange::Remove { name: name.to_owned() });
    }

    fn change(&mut self, change: NameChange) {
        change.apply(&mut self.now);
        self.changes.push(change);
    }

    pub(super) fn sync(&mut self) {
        for change in self.changes.drain(..) {
            change.apply(&mut self.kept);
        }
    }

    /// Every node that it names or, after a loss of power, may name.
    pub(super) fn nodes(&self) -> impl Iterator<Item = Number> + '_ {
        let put = self.changes.iter().filter_map(|change| match change {
            NameChange::Put { node, .. } => Some(*node),
            NameChange::Rename { .. } | NameChange::Remove { .. } => None,
        });
        self.now.values().chain(self.kept.values()).copied().chain(put)
    }

    /// The power went: the first of the changes that were not synced are there, in order, since file
    /// systems keep them in a journal.
    pub(super) fn lose_power(&mut self, choose: &mut dyn FnMut(u64) -> u64) -> Loss {
        let changes = std::mem::take(&mut self.changes);
        let whole = below(changes.len() + 1, choose);
        changes.iter().take(whole).for_each(|change| change.apply(&mut self.kept));
        self.now.clone_from(&self.kept);
        Loss { lost: count(changes.len() - whole), torn: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Choices in a row, then zero.
    fn choices(list: &[u64]) -> impl FnMut(u64) -> u64 + '_ {
        let mut list = list.iter();
        move |below| list.next().copied().unwrap_or(0).min(below.saturating_sub(1))
    }

    #[test]
    fn what_was_not_synced_may_be_lost_whole_kept_whole_or_torn_at_a_sectors_border() {
        let after = |list: &[u64]| {
            let mut file = File::default();
            file.write(0, b"synced");
            file.sync();
            file.write(6, &[7; 1_000]);
            let loss = file.lose_power(&mut choices(list));
            assert_eq!(file.now, file.kept);
            assert_eq!(loss.torn, u64::from(file.now.len() == 512));
            file.now
        };
        assert_eq!(after(&[0, 1, 0]), b"synced");
        assert_eq!(after(&[1]).len(), 1_006);
        let torn = after(&[0, 1, 1]);
        assert_eq!((torn.len(), &torn[..6], &torn[6..]), (512, &b"synced"[..], &[7; 506][..]));
    }

    #[test]
    fn a_later_sector_may_be_there_without_an_earlier_one() {
        let mut file = File::default();
        file.write(0, &[7; 1_024]);
        file.lose_power(&mut choices(&[0, 3, 0, 0, 1]));
        assert_eq!(file.now, [[0; 512], [7; 512]].concat());
    }

    #[test]
    fn what_a_failed_sync_forgot_no_later_one_brings_to_the_disk() {
        let mut file = File::default();
        file.write(0, b"lost");
        file.forget_changes();
        file.write(4, b"kept");
        file.sync();
        assert_eq!((&file.now[..], &file.kept[..]), (&b"lostkept"[..], &b"\0\0\0\0kept"[..]));
    }

    #[test]
    fn names_that_were_not_synced_are_lost_from_the_end() {
        let after = |list: &[u64]| {
            let mut folder = Folder::default();
            folder.put("a", 1);
            folder.sync();
            folder.put("b.tmp", 2);
            folder.rename("b.tmp", "b");
            folder.remove("a");
            folder.lose_power(&mut choices(list));
            folder.now.into_keys().collect::<Vec<_>>()
        };
        assert_eq!(after(&[0]), ["a"]);
        assert_eq!(after(&[1]), ["a", "b.tmp"]);
        assert_eq!(after(&[2]), ["a", "b"]);
        assert_eq!(after(&[3]), ["b"]);
    }
}
