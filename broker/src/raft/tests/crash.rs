//! Nodes in processes of their own, which are killed or run out of disk.
//!
//! The child is this test binary, told by an environment variable to run one node: it proposes
//! numbered commands and writes a line for each that is acknowledged.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::super::{Options, Raft};
use super::{Diary, open};

const FOLDER: &str = "SUBLET_TEST_RAFT_FOLDER";
const FIRST: &str = "SUBLET_TEST_RAFT_FIRST";
const SEAL_EVERY: &str = "SUBLET_TEST_RAFT_SEAL_EVERY";
const NAME: &str = "raft::tests::crash::child_node";

/// Not a test: the body of the child.
#[test]
#[ignore = "the body of a child process that other tests start"]
fn child_node() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let first: u64 = std::env::var(FIRST).unwrap().parse().unwrap();
    let seal_every: u64 = std::env::var(SEAL_EVERY).unwrap().parse().unwrap();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let mut options = Options::new(folder, "test", 1);
        options.log_file_bytes = 256 * 1024;
        let raft = Raft::open(options, Arc::new(Diary::default())).await.unwrap();
        let next = Arc::new(AtomicU64::new(first));
        let workers = (0..16).map(|_| {
            let (raft, next) = (raft.clone(), Arc::clone(&next));
            tokio::spawn(async move {
                loop {
                    let number = next.fetch_add(1, Ordering::SeqCst);
                    let (at, _) = match number % seal_every {
                        7 => raft.propose_last(format!("seal {number}").into_bytes()).await,
                        _ => raft.propose(format!("c {number}").into_bytes()).await,
                    }
                    .unwrap();
                    let line = format!("ack {number} {} {}\n", at.term, at.index);
                    // Not the print macros: the test harness would keep those.
                    std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
                }
            })
        });
        futures::future::join_all(workers).await;
    });
}

fn start(
    command: &mut Command,
    folder: &Path,
    first: u64,
    seal_every: u64,
) -> (Child, BufReader<ChildStdout>) {
    command.env(FOLDER, folder).env(FIRST, first.to_string());
    command.env(SEAL_EVERY, seal_every.to_string());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    (child, output)
}

fn child() -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", NAME, "--ignored", "--nocapture"]);
    command
}

/// The acknowledged number in a line of the child, if it is one.
fn acknowledged(line: &str) -> Option<u64> {
    let rest = &line[line.find("ack ")? + 4..];
    // A line that the kill cut short does not count: it might be a shorter number.
    rest.ends_with('\n').then(|| rest.split(' ').next()?.parse().ok())?
}

/// The numbers a diary holds, which must not repeat.
async fn applied(folder: &Path) -> BTreeSet<u64> {
    let (raft, diary) = open(folder).await;
    let commands = diary.commands();
    raft.shutdown().await;
    let numbers: Vec<u64> =
        commands.iter().map(|text| text.split(' ').nth(1).unwrap().parse().unwrap()).collect();
    let set: BTreeSet<u64> = numbers.iter().copied().collect();
    assert_eq!(set.len(), numbers.len(), "a command was applied twice");
    let positions: Vec<_> = diary.pages.lock().unwrap().iter().map(|(at, _)| *at).collect();
    assert!(positions.is_sorted());
    set
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_acknowledged_is_lost_when_the_process_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let mut acked = BTreeSet::new();
    let mut first = 0;
    for round in 0_u64..12 {
        let (mut node, mut output) = start(&mut child(), folder.path(), first, 500);
        let pause = Duration::from_millis(20 + 37 * (round % 7));
        let mut begun: Option<Instant> = None;
        let mut killed = false;
        let mut line = String::new();
        while output.read_line(&mut line).unwrap() > 0 {
            if let Some(number) = acknowledged(&line) {
                acked.insert(number);
                let begun = *begun.get_or_insert_with(Instant::now);
                if !killed && begun.elapsed() >= pause {
                    node.kill().unwrap();
                    killed = true;
                }
            }
            line.clear();
        }
        assert!(killed, "the child ended by itself");
        node.wait().unwrap();
        let found = applied(folder.path()).await;
        let lost: Vec<_> = acked.difference(&found).collect();
        assert!(lost.is_empty(), "round {round}: acknowledged and lost: {lost:?}");
        first += 1_000_000;
    }
    assert!(acked.len() > 500, "only {} acknowledgements in all", acked.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_write_of_the_log_aborts_the_process_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    // SIGXFSZ is ignored, so that a write beyond the limit is an error rather than the end.
    let binary = std::env::current_exe().unwrap();
    let mut limited = Command::new("sh");
    limited.args(["-c", "trap '' XFSZ; ulimit -f 100; exec \"$0\" \"$@\""]);
    limited.arg(binary).args(["--exact", NAME, "--ignored", "--nocapture"]);
    let (mut node, mut output) = start(&mut limited, folder.path(), 8, u64::MAX);
    let mut acked = BTreeSet::new();
    let mut line = String::new();
    while output.read_line(&mut line).unwrap() > 0 {
        acked.extend(acknowledged(&line));
        line.clear();
    }
    let mut said = String::new();
    node.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    let status = node.wait().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(6), "{status} {said}");
    assert!(said.contains("sublet: fatal: the raft log cannot be written"), "{said}");
    assert!(!acked.is_empty());
    let found = applied(folder.path()).await;
    let lost: Vec<_> = acked.difference(&found).collect();
    assert!(lost.is_empty(), "acknowledged and lost: {lost:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_process_on_the_directory_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (raft, _) = open(folder.path()).await;
    let (node, mut output) = start(&mut child(), folder.path(), 0, 500);
    let mut said = String::new();
    output.read_to_string(&mut said).unwrap();
    let result = node.wait_with_output().unwrap();
    said.push_str(&String::from_utf8_lossy(&result.stderr));
    assert!(!result.status.success());
    assert!(said.contains("Locked"), "{said}");
    raft.shutdown().await;
}
