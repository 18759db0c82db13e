//! What must survive, what must be refused.

use std::fs;

use sublet_protocol::capacity::Part;
use sublet_protocol::ids::{ClusterId, NodeId};

use super::*;

fn slice(device: u128) -> SliceId {
    SliceId {
        cluster: ClusterId::new("c").unwrap(),
        node: NodeId::new("n").unwrap(),
        device: DeviceId::new(device),
        part: Part::Whole,
    }
}

fn token(counter: u64) -> Token {
    Token { epoch: 1, counter }
}

fn filled(boot: u64) -> DurableState {
    let mut state = DurableState { boot: Boot::new(boot), ..DurableState::default() };
    state.raise(slice(1), token(9));
    state.record(UsageEntry {
        lease: LeaseId::new(3),
        slice: slice(1),
        token: token(9),
        used: Millis::new(1_234),
        outcome: Some(GuestOutcome::Exited { code: -7 }),
    });
    state
}

#[test]
fn each_start_counts_and_what_was_stored_is_found_again() {
    let folder = tempfile::tempdir().unwrap();
    let memory = MemoryStore::default();
    type Open = fn(&std::path::Path, &MemoryStore) -> Box<dyn Durable>;
    let stores: [Open; 2] =
        [|path, _| Box::new(FileStore::open(path).unwrap()), |_, memory| Box::new(memory.clone())];
    for open in stores {
        let mut first = open(folder.path(), &memory);
        assert_eq!(first.begin().unwrap().boot, Boot::new(1));
        first.store(&filled(1)).unwrap();
        drop(first);
        assert_eq!(open(folder.path(), &memory).begin().unwrap(), filled(2));
    }
}

#[test]
fn a_second_agent_is_kept_out_while_the_first_lives() {
    let folder = tempfile::tempdir().unwrap();
    let first = FileStore::open(folder.path()).unwrap();
    assert!(matches!(FileStore::open(folder.path()), Err(Error::Locked { .. })));
    drop(first);
    assert!(FileStore::open(folder.path()).is_ok());
}

#[test]
fn every_damaged_byte_is_refused_and_the_file_is_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = FileStore::open(folder.path()).unwrap();
    store.store(&filled(1)).unwrap();
    let path = folder.path().join("agent-state");
    let good = fs::read(&path).unwrap();
    for place in 0..good.len() {
        let mut bad = good.clone();
        bad[place] ^= 1;
        fs::write(&path, &bad).unwrap();
        let error = store.begin().unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }), "byte {place}: {error}");
        assert_eq!(fs::read(&path).unwrap(), bad);
    }
    for length in 0..good.len() {
        fs::write(&path, &good[..length]).unwrap();
        assert!(matches!(store.begin(), Err(Error::Corrupt { .. })), "cut at {length}");
    }
}

#[test]
fn a_crash_between_write_and_rename_leaves_the_old_state() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = FileStore::open(folder.path()).unwrap();
    store.store(&filled(4)).unwrap();
    fs::write(folder.path().join("agent-state.new"), b"half a sta").unwrap();
    assert_eq!(store.begin().unwrap(), filled(5));
}

#[test]
fn tokens_only_rise() {
    let mut state = DurableState::default();
    assert!(state.raise(slice(1), token(5)));
    assert!(!state.raise(slice(1), token(4)));
    assert!(!state.raise(slice(1), token(5)));
    assert_eq!(state.newest_on_slice(&slice(1)), token(5));
    assert_eq!(state.newest_on_device(DeviceId::new(1)), token(5));
    assert_eq!(state.newest_on_slice(&slice(2)), Token::NONE);
}
