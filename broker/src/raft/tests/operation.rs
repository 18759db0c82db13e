//! A node that runs: proposals, packing, limits, leadership, and failures.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;

use super::super::{Error, Raft, Role};
use super::{Diary, open, options, propose, seal, until};

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_of_one_node_leads_at_once_when_new_and_when_started_again() {
    let folder = tempfile::tempdir().unwrap();
    let soon = options(folder.path()).0.election_min;
    let begun = Instant::now();
    let (raft, _) = open(folder.path()).await;
    propose(&raft, "first").await;
    assert!(begun.elapsed() < soon, "a new one took {:?}", begun.elapsed());
    raft.shutdown().await;
    let begun = Instant::now();
    let (raft, _) = open(folder.path()).await;
    propose(&raft, "second").await;
    assert!(begun.elapsed() < soon, "an old one took {:?}", begun.elapsed());
    raft.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn status_and_leadership_tell_of_leading_and_of_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let (raft, diary) = open(folder.path()).await;
    let (at, reply) = raft.propose(b"first".to_vec()).await.unwrap();
    assert_eq!(reply, b"0");
    assert_eq!(diary.commands(), ["first"]);
    let status = raft.status();
    assert_eq!((status.role, status.leader, status.applied), (Role::Leader, Some(1), Some(at)));
    assert!(raft.leadership().borrow().is_leader);
    raft.shutdown().await;
    assert_eq!(raft.status().role, Role::Stopped);
    assert!(!raft.leadership().borrow().is_leader);
}

#[tokio::test]
async fn it_works_on_a_runtime_of_one_thread() {
    let folder = tempfile::tempdir().unwrap();
    let (raft, diary) = open(folder.path()).await;
    propose(&raft, "a").await;
    seal(&raft, "b").await;
    raft.shutdown().await;
    assert_eq!(diary.commands(), ["a", "seal b"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_that_wait_together_share_entries_and_keep_their_order() {
    let folder = tempfile::tempdir().unwrap();
    let (raft, diary) = open(folder.path()).await;
    let names: Vec<String> = (0..1_000).map(|number| format!("c{number}")).collect();
    let all = join_all(names.iter().map(|name| raft.propose(name.clone().into_bytes()))).await;
    for (number, outcome) in all.into_iter().enumerate() {
        assert_eq!(outcome.unwrap().1, number.to_string().into_bytes());
    }
    assert_eq!(diary.commands(), names);
    assert!(diary.entries() < 100, "{} entries for 1000 commands", diary.entries());
    raft.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_follows_a_seal_in_its_entry() {
    let folder = tempfile::tempdir().unwrap();
    let (raft, diary) = open(folder.path()).await;
    let work = (0..300).map(|number| {
        let raft = raft.clone();
        async move {
            match number % 10 {
                5 => raft.propose_last(format!("seal {number}").into_bytes()).await.unwrap(),
                _ => raft.propose(format!("c{number}").into_bytes()).await.unwrap(),
            }
        }
    });
    join_all(work).await;
    let pages = diary.pages.lock().unwrap().clone();
    for pair in pages.windows(2) {
        if pair[0].1.starts_with(b"seal") {
            assert_ne!(pair[0].0, pair[1].0, "a command follows a seal in its entry");
        }
    }
    raft.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_is_busy_and_an_oversized_command_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (mut options, _) = options(folder.path());
    options.proposals_max = 4;
    options.bytes_per_entry_max = 100;
    let raft = Raft::open(options, Diary::new()).await.unwrap();
    let large = raft.propose(vec![b'x'; 101]).await;
    assert!(matches!(large, Err(Error::TooLarge { size: 101, limit: 100 })));
    let all = join_all((0..64).map(|_| raft.propose(vec![b'x'; 60]))).await;
    assert!(all.iter().any(|outcome| matches!(outcome, Err(Error::Busy))));
    assert!(all.iter().any(Result::is_ok));
    raft.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timeout_is_an_unknown_outcome() {
    let folder = tempfile::tempdir().unwrap();
    let (mut options, _) = options(folder.path());
    options.propose_timeout = Duration::from_millis(50);
    let diary = Diary::new();
    let raft = Raft::open(options, diary.clone()).await.unwrap();
    assert!(matches!(raft.propose(b"slow".to_vec()).await, Err(Error::Unknown)));
    until(|| diary.commands() == ["slow"]).await;
    raft.shutdown().await;
    assert!(matches!(raft.propose(b"gone".to_vec()).await, Err(Error::Stopped | Error::Unknown)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_barrier_covers_all_acknowledged_commands() {
    let folder = tempfile::tempdir().unwrap();
    let (raft, _) = open(folder.path()).await;
    let at = propose(&raft, "a").await;
    assert!(raft.read_barrier().await.unwrap() >= at);
    assert!(raft.status().applied >= Some(at));
    raft.shutdown().await;
    assert!(matches!(raft.read_barrier().await, Err(Error::Stopped)));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_two_newest_snapshots_stay_and_the_log_is_purged_up_to_the_older() {
    let folder = tempfile::tempdir().unwrap();
    let (raft, _) = open(folder.path()).await;
    propose(&raft, "a").await;
    seal(&raft, "1").await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(raft.status().purged, None, "purged with one snapshot only");
    let mut seals = Vec::new();
    for name in ["2", "3", "4"] {
        propose(&raft, name).await;
        seals.push(seal(&raft, name).await);
    }
    until(|| raft.status().purged == Some(seals[1])).await;
    let files = std::fs::read_dir(folder.path().join("snapshots")).unwrap().count();
    assert_eq!(files, 2);
    raft.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_machine_ends_the_process_and_answers_nobody() {
    for command in ["fail", "panic"] {
        let folder = tempfile::tempdir().unwrap();
        let (mut options, struck) = options(folder.path());
        options.propose_timeout = Duration::from_secs(5);
        let raft = Raft::open(options, Diary::new()).await.unwrap();
        let outcome = raft.propose(command.as_bytes().to_vec()).await;
        assert!(matches!(outcome, Err(Error::Unknown)), "{outcome:?}");
        let reasons = struck.lock().unwrap().clone();
        assert_eq!(reasons.len(), 1, "{reasons:?}");
        assert!(reasons[0].contains("the state machine failed"), "{reasons:?}");
        raft.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_in_use_is_refused_until_it_is_shut_down() {
    let folder = tempfile::tempdir().unwrap();
    let (raft, _) = open(folder.path()).await;
    let second = Raft::open(options(folder.path()).0, Diary::new()).await;
    assert!(matches!(second, Err(Error::Locked { .. })), "{second:?}");
    raft.shutdown().await;
    let (raft, _) = open(folder.path()).await;
    raft.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_cells_or_another_nodes_log_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    open(folder.path()).await.0.shutdown().await;
    for (cell, node) in [("other", 1), ("test", 2)] {
        let (mut options, _) = options(folder.path());
        (options.cell, options.node_id) = (cell.to_owned(), node);
        let refused = Raft::open(options, Diary::new()).await;
        assert!(matches!(refused, Err(Error::Foreign { .. })), "{refused:?}");
    }
}

#[tokio::test]
async fn senseless_options_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (mut options, _) = options(folder.path());
    options.heartbeat = options.election_max;
    let refused = Raft::open(options, Arc::new(Diary::default())).await;
    assert!(matches!(refused, Err(Error::Options { option: "heartbeat", .. })), "{refused:?}");
}
