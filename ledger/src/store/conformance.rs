//! What every store must do; run against each of them.

use std::path::Path;
use std::sync::Arc;

use super::{Batch, CommitStore, MemoryStore, SledStore, Store, Tree};
use crate::disk::{Disk, RealDisk, SimulatedDisk};
use crate::error::{Damage, Error};

fn put(store: &mut dyn Store, writes: &[(Tree, &str, &str)]) {
    let mut batch = Batch::default();
    for (tree, key, value) in writes {
        batch.put(*tree, key.as_bytes().to_vec(), value.as_bytes().to_vec());
    }
    store.commit(batch).unwrap();
}

fn keys(entries: Vec<super::Entry>) -> Vec<String> {
    entries.into_iter().map(|(key, _)| String::from_utf8(key).unwrap()).collect()
}

fn conforms(store: &mut dyn Store) {
    assert_eq!(store.get(Tree::Records, b"a").unwrap(), None);
    assert_eq!(store.last_until(Tree::Records, b"z").unwrap(), None);

    put(
        store,
        &[
            (Tree::Records, "b", "2"),
            (Tree::Records, "a", "1"),
            (Tree::Records, "d", "4"),
            (Tree::Meta, "a", "meta"),
        ],
    );
    assert_eq!(store.get(Tree::Records, b"a").unwrap(), Some(b"1".to_vec()));
    assert_eq!(store.get(Tree::Meta, b"a").unwrap(), Some(b"meta".to_vec()));
    assert_eq!(store.get(Tree::ByTenant, b"a").unwrap(), None);

    let last = |store: &dyn Store, key: &str| {
        let last = store.last_until(Tree::Records, key.as_bytes()).unwrap();
        last.map(|(key, _)| String::from_utf8(key).unwrap())
    };
    assert_eq!(last(store, "0"), None);
    assert_eq!(last(store, "b"), Some("b".to_owned()));
    assert_eq!(last(store, "c"), Some("b".to_owned()));

    let scan = |store: &dyn Store, from: &str, to: &str, limit| {
        keys(store.scan(Tree::Records, from.as_bytes()..=to.as_bytes(), limit).unwrap())
    };
    assert_eq!(scan(store, "a", "d", 9), ["a", "b", "d"]);
    assert_eq!(scan(store, "a", "d", 2), ["a", "b"]);
    assert_eq!(scan(store, "b0", "c", 9), [""; 0]);
    assert_eq!(scan(store, "d", "a", 9), [""; 0]);

    put(store, &[(Tree::Records, "a", "5"), (Tree::Records, "a", "6")]);
    assert_eq!(store.get(Tree::Records, b"a").unwrap(), Some(b"6".to_vec()));
    let mut batch = Batch::default();
    batch.remove(Tree::Records, b"b".to_vec());
    batch.remove(Tree::Records, b"never there".to_vec());
    store.commit(batch).unwrap();
    assert_eq!(scan(store, "a", "d", 9), ["a", "d"]);
    store.sync().unwrap();
}

#[test]
fn the_store_in_memory_conforms() {
    conforms(&mut MemoryStore::default());
}

#[test]
fn the_store_on_disk_conforms_and_remembers() {
    let dir = tempfile::tempdir().unwrap();
    conforms(&mut SledStore::open(dir.path()).unwrap());
    let store = SledStore::open(dir.path()).unwrap();
    assert_eq!(store.get(Tree::Records, b"a").unwrap(), Some(b"6".to_vec()));
    assert_eq!(store.get(Tree::Meta, b"a").unwrap(), Some(b"meta".to_vec()));
}

/// What a store of commits on this disk must do beyond that.
fn conforms_and_remembers(disk: &Arc<dyn Disk>, dir: &Path) {
    conforms(&mut CommitStore::open(disk, dir).unwrap());
    let store = CommitStore::open(disk, dir).unwrap();
    assert_eq!(store.get(Tree::Records, b"a").unwrap(), Some(b"6".to_vec()));
    assert_eq!(store.get(Tree::Records, b"b").unwrap(), None);
    assert_eq!(store.get(Tree::Meta, b"a").unwrap(), Some(b"meta".to_vec()));
}

#[test]
fn the_store_of_commits_conforms_and_remembers_on_every_disk() {
    let dir = tempfile::tempdir().unwrap();
    let real: Arc<dyn Disk> = Arc::new(RealDisk);
    conforms_and_remembers(&real, &dir.path().join("store"));
    let simulated: Arc<dyn Disk> = Arc::new(SimulatedDisk::default());
    conforms_and_remembers(&simulated, Path::new("store"));
}

/// A store of three commits on a simulated disk, the first two synced; and its file.
fn three_commits() -> (SimulatedDisk, Arc<dyn Disk>, Vec<u8>) {
    let simulated = SimulatedDisk::default();
    let disk: Arc<dyn Disk> = Arc::new(simulated.clone());
    let mut store = CommitStore::open(&disk, Path::new("store")).unwrap();
    put(&mut store, &[(Tree::Records, "a", "value")]);
    put(&mut store, &[(Tree::Records, "b", "value")]);
    store.sync().unwrap();
    put(&mut store, &[(Tree::Records, "c", "value")]);
    let bytes = simulated.copy_out(Path::new("store/commits")).unwrap();
    (simulated, disk, bytes)
}

/// The keys of the store made of `bytes`, or that they are damaged.
fn reopened(simulated: &SimulatedDisk, disk: &Arc<dyn Disk>, bytes: &[u8]) -> Option<Vec<String>> {
    simulated.copy_in(Path::new("store/commits"), bytes).unwrap();
    match CommitStore::open(disk, Path::new("store")) {
        Ok(store) => Some(keys(store.scan(Tree::Records, &b"a"[..]..=&b"z"[..], 9).unwrap())),
        Err(Error::Damaged(Damage::Corrupt)) => None,
        Err(error) => panic!("{error:?}"),
    }
}

#[test]
fn a_file_of_commits_cut_anywhere_holds_a_prefix_of_them() {
    let (simulated, disk, good) = three_commits();
    let mut before = 0;
    for length in 0..=good.len() {
        let keys = reopened(&simulated, &disk, &good[..length]).unwrap();
        assert_eq!(keys, ["a", "b", "c"][..keys.len()]);
        assert!(keys.len() >= before, "length {length}");
        before = keys.len();
    }
    assert_eq!(before, 3);
}

#[test]
fn a_bit_flipped_in_a_file_of_commits_is_damage_or_cuts_the_last_one_off() {
    let (simulated, disk, good) = three_commits();
    for bit in 0..good.len() * 8 {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        let keys = reopened(&simulated, &disk, &bad);
        assert!(
            keys.is_none() || keys == Some(vec!["a".into(), "b".into()]),
            "bit {bit}: {keys:?}"
        );
    }
}

#[test]
fn a_value_that_changed_under_an_open_store_of_commits_is_damage_not_an_answer() {
    let (simulated, disk, good) = three_commits();
    let store = CommitStore::open(&disk, Path::new("store")).unwrap();
    let mut file = disk.edit(Path::new("store/commits")).unwrap();
    for bit in 0..good.len() * 8 {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        file.write(0, &bad).unwrap();
        match store.get(Tree::Records, b"b") {
            Ok(value) => assert_eq!(value, Some(b"value".to_vec()), "bit {bit}"),
            Err(error) => assert!(matches!(error, Error::Damaged(Damage::Corrupt)), "bit {bit}"),
        }
    }
    drop(simulated);
}
