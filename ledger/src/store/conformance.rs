//! What every store must do; run against each of them.

use super::{Batch, MemoryStore, SledStore, Store, Tree};

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
