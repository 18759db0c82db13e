//! A node that starts again, with its files whole or damaged.

use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::super::{Error, Raft};
use super::{Diary, open, options, propose, seal, until};

fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut files: Vec<_> =
        fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|found| found == extension));
    files.sort();
    files
}

fn newest_log(folder: &Path) -> PathBuf {
    files(&folder.join("wal"), "wal").pop().unwrap()
}

fn newest_snapshot(folder: &Path) -> PathBuf {
    files(&folder.join("snapshots"), "snap").pop().unwrap()
}

/// Applies `count` commands in `folder` and stops.
async fn run(folder: &Path, from: usize, count: usize) {
    let (raft, _) = open(folder).await;
    for number in from..from + count {
        propose(&raft, &format!("c{number}")).await;
    }
    raft.shutdown().await;
}

fn expected(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("c{number}")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_replays_the_whole_log_before_open_returns() {
    let folder = tempfile::tempdir().unwrap();
    run(folder.path(), 0, 20).await;
    run(folder.path(), 20, 5).await;
    let (raft, diary) = open(folder.path()).await;
    assert_eq!(diary.commands(), expected(25));
    raft.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_starts_again_never_leads_in_the_term_in_which_it_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let mut terms = Vec::new();
    for number in 0..3 {
        let (raft, _) = open(folder.path()).await;
        propose(&raft, &format!("c{number}")).await;
        terms.push(raft.leadership().borrow().term);
        raft.shutdown().await;
    }
    assert!(terms.windows(2).all(|pair| pair[0] < pair[1]), "{terms:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_begins_at_the_newest_snapshot() {
    let folder = tempfile::tempdir().unwrap();
    let (raft, diary) = open(folder.path()).await;
    for name in ["1", "2", "3"] {
        propose(&raft, name).await;
        seal(&raft, name).await;
    }
    let sealed = raft.status().snapshot.unwrap();
    propose(&raft, "after").await;
    until(|| raft.status().purged.is_some()).await;
    raft.shutdown().await;
    let (raft, again) = open(folder.path()).await;
    assert_eq!(again.restored(), [sealed]);
    assert_eq!(again.commands(), diary.commands());
    assert_eq!(again.entries(), 1, "only the entry after the snapshot is replayed");
    propose(&raft, "more").await;
    raft.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_seal_right_before_shutdown_is_stored() {
    let folder = tempfile::tempdir().unwrap();
    let (raft, _) = open(folder.path()).await;
    let at = raft.propose_last(b"seal".to_vec()).await.unwrap().0;
    raft.shutdown().await;
    let (raft, diary) = open(folder.path()).await;
    assert_eq!(diary.restored(), [at]);
    raft.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_cut_at_any_byte_of_its_last_records_opens_with_a_prefix() {
    let folder = tempfile::tempdir().unwrap();
    run(folder.path(), 0, 5).await;
    let log = newest_log(folder.path());
    let whole = fs::read(&log).unwrap();
    for cut in (1..150).step_by(7) {
        let copy = tempfile::tempdir().unwrap();
        fs::create_dir(copy.path().join("wal")).unwrap();
        let file = copy.path().join("wal").join(log.file_name().unwrap());
        fs::write(&file, &whole[..whole.len() - cut]).unwrap();
        let (raft, diary) = open(copy.path()).await;
        let found = diary.commands();
        assert_eq!(found, expected(5)[..found.len()], "after cutting {cut} bytes");
        propose(&raft, "new").await;
        raft.shutdown().await;
        let (raft, diary) = open(copy.path()).await;
        assert_eq!(diary.commands().len(), found.len() + 1);
        raft.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_or_zeros_after_the_end_of_the_log_lose_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut total = 0;
    let pseudo_random: Vec<u8> = (0..5_000_u32).map(|n| ((n * n) >> 3) as u8).collect();
    let half_a_record = [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9];
    for tail in [&b"garbage"[..], &[0; 4_096], &pseudo_random, &half_a_record] {
        run(folder.path(), total, 3).await;
        total += 3;
        let log = newest_log(folder.path());
        let mut bytes = fs::read(&log).unwrap();
        bytes.extend_from_slice(tail);
        fs::write(&log, bytes).unwrap();
        let (raft, diary) = open(folder.path()).await;
        assert_eq!(diary.commands(), expected(total));
        raft.shutdown().await;
    }
    assert_eq!(fs::read_dir(folder.path().join("torn")).unwrap().count(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_before_the_end_of_the_log_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    run(folder.path(), 0, 10).await;
    let log = newest_log(folder.path());
    let whole = fs::read(&log).unwrap();
    let at = whole.windows(2).position(|bytes| bytes == b"c4").unwrap();
    // A changed command, and a changed length of a command's record.
    for (place, value) in [(at, b'X'), (at - 12, 0x7f)] {
        let mut bytes = whole.clone();
        bytes[place] = value;
        fs::write(&log, &bytes).unwrap();
        let refused = Raft::open(options(folder.path()).0, Diary::new()).await;
        assert!(matches!(refused, Err(Error::DamagedLog { .. })), "{refused:?}");
        assert_eq!(fs::read(&log).unwrap(), bytes);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_in_an_older_log_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (mut options, _) = options(folder.path());
    options.log_file_bytes = 2_048;
    let raft = Raft::open(options.clone(), Diary::new()).await.unwrap();
    for number in 0..40 {
        propose(&raft, &format!("c{number} {}", "x".repeat(200))).await;
    }
    raft.shutdown().await;
    let logs = files(&folder.path().join("wal"), "wal");
    assert!(logs.len() > 3);
    let whole = fs::read(&logs[1]).unwrap();
    let mut changed = whole.clone();
    changed[whole.len() / 2] ^= 1;
    for damaged in [changed, whole[..whole.len() - 9].to_vec()] {
        fs::write(&logs[1], damaged).unwrap();
        let refused = Raft::open(options.clone(), Diary::new()).await;
        assert!(matches!(refused, Err(Error::Storage { .. })), "{refused:?}");
    }
    fs::write(&logs[1], whole).unwrap();
    let diary = Diary::new();
    let raft = Raft::open(options, diary.clone()).await.unwrap();
    assert_eq!(diary.commands().len(), 40);
    raft.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_newest_snapshot_falls_back_to_the_older_and_the_log() {
    for damage in 0..3 {
        let folder = tempfile::tempdir().unwrap();
        let (raft, diary) = open(folder.path()).await;
        for name in ["1", "2", "3"] {
            propose(&raft, name).await;
            seal(&raft, name).await;
        }
        propose(&raft, "after").await;
        until(|| raft.status().purged.is_some()).await;
        raft.shutdown().await;
        let newest = newest_snapshot(folder.path());
        let mut bytes = fs::read(&newest).unwrap();
        let middle = bytes.len() / 2;
        match damage {
            0 => bytes.truncate(middle),
            1 => bytes[middle] ^= 1,
            _ => bytes.clear(),
        }
        fs::write(&newest, bytes).unwrap();
        let (raft, again) = open(folder.path()).await;
        assert_eq!(again.commands(), diary.commands());
        assert_eq!(files(&folder.path().join("snapshots"), "damaged").len(), 1);
        // The replayed seal is stored again.
        let sealed = raft.status();
        until(|| files(&folder.path().join("snapshots"), "snap").len() == 2).await;
        propose(&raft, "more").await;
        seal(&raft, "4").await;
        assert!(raft.status().snapshot > sealed.snapshot);
        raft.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_of_a_newer_version_is_refused_and_stays_where_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let (raft, _) = open(folder.path()).await;
    seal(&raft, "1").await;
    until(|| raft.status().snapshot.is_some()).await;
    raft.shutdown().await;
    let newest = newest_snapshot(folder.path());
    let mut bytes = fs::read(&newest).unwrap();
    bytes[7] += 1;
    let body = bytes.len() - 32;
    let digest = Sha256::digest(&bytes[..body]);
    bytes[body..].copy_from_slice(&digest);
    fs::write(&newest, &bytes).unwrap();
    let refused = Raft::open(options(folder.path()).0, Diary::new()).await.unwrap_err();
    assert!(refused.to_string().ends_with("written by a newer version"), "{refused}");
    assert_eq!(newest_snapshot(folder.path()), newest);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_any_intact_snapshot_a_purged_log_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (raft, _) = open(folder.path()).await;
    for name in ["1", "2", "3"] {
        seal(&raft, name).await;
    }
    until(|| raft.status().purged.is_some()).await;
    raft.shutdown().await;
    for snapshot in files(&folder.path().join("snapshots"), "snap") {
        fs::write(snapshot, b"nothing").unwrap();
    }
    let refused = Raft::open(options(folder.path()).0, Diary::new()).await;
    assert!(matches!(refused, Err(Error::Gap { snapshot: None, .. })), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_fails_on_replay_fails_open() {
    let folder = tempfile::tempdir().unwrap();
    let (raft, _) = open(folder.path()).await;
    propose(&raft, "a").await;
    let _unknown = raft.propose(b"fail".to_vec()).await;
    raft.shutdown().await;
    let (options, _) = options(folder.path());
    let failed = Raft::open(options, Diary::new()).await;
    assert!(matches!(failed, Err(Error::Machine(_) | Error::Stopped)), "{failed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purge_removes_log_files_and_the_rest_still_replays() {
    let folder = tempfile::tempdir().unwrap();
    let (mut options, _) = options(folder.path());
    options.log_file_bytes = 4_096;
    let diary = Diary::new();
    let raft = Raft::open(options.clone(), diary.clone()).await.unwrap();
    for round in 0..3 {
        for number in 0..40 {
            propose(&raft, &format!("{round} {number} {}", "x".repeat(200))).await;
        }
        seal(&raft, "").await;
    }
    until(|| raft.status().purged.is_some()).await;
    propose(&raft, "after").await;
    raft.shutdown().await;
    let first = files(&folder.path().join("wal"), "wal").remove(0);
    assert!(!first.to_str().unwrap().ends_with("r-00_000_000_000_000_000_000.wal"));
    let again = Diary::new();
    let raft = Raft::open(options, again.clone()).await.unwrap();
    assert_eq!(again.commands(), diary.commands());
    raft.shutdown().await;
}
