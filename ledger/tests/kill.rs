//! SIGKILL at any moment: the journal opens, is a prefix of the history, and the log fills in.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test and its child process")]

#[allow(dead_code, reason = "shared with the unit tests and the measurement")]
mod support;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use sublet_ledger::journal::{Cursor, Journal};
use sublet_ledger::merkle::{Frontier, Hash};
use sublet_ledger::verify::verify;
use sublet_protocol::codec::encode_record;

const KILLS: u64 = 12;
const SEAL_EVERY: u64 = 500;
/// Set for the child, which appends to the journal in this directory until it is killed.
const CHILD_DIR: &str = "SUBLET_LEDGER_KILL_TEST_DIR";
const NAME: &str = "a_killed_process_leaves_a_prefix_that_the_log_completes";

/// Appends the history from `from` on in batches of changing size; `told` hears of each record
/// before it is appended, as the raft log does.
fn append_on(journal: &mut Journal, from: u64, until: u64, mut told: impl FnMut(u64)) {
    let mut next = from;
    while next < until {
        let seal_at = (next / SEAL_EVERY + 1) * SEAL_EVERY;
        let end = (next + 1 + next % 61).min(seal_at).min(until);
        told(end);
        let cursor = Cursor { log_index: end, term: 1 };
        journal.append(cursor, &support::records(next..end)).unwrap();
        if end == seal_at {
            journal.seal(end - 1).unwrap();
        }
        next = end;
    }
}

fn child(dir: &Path) {
    let mut journal = Journal::open(dir, support::cell()).unwrap();
    let mut out = std::io::stdout();
    let from = journal.size();
    append_on(&mut journal, from, u64::MAX, |end| writeln!(out, "{end}").unwrap());
}

/// Lets a child append for `millis` after its first batch, kills it and says how many records its
/// log had.
fn run_and_kill(dir: &Path, millis: u64) -> u64 {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([NAME, "--exact", "--nocapture"])
        .env(CHILD_DIR, dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let (sender, receiver) = std::sync::mpsc::channel();
    let reader = thread::spawn(move || {
        let logged = lines.map_while(Result::ok).filter_map(|line| line.parse::<u64>().ok());
        logged.fold(0, |_, end| {
            sender.send(()).ok();
            end
        })
    });
    receiver.recv_timeout(Duration::from_secs(60)).expect("the child appends");
    thread::sleep(Duration::from_millis(millis));
    child.kill().unwrap();
    child.wait().unwrap();
    reader.join().unwrap()
}

/// Leaf hashes of the history, made as far as they are needed.
#[derive(Default)]
struct History(Vec<Hash>);

impl History {
    fn root_of(&mut self, size: u64) -> Hash {
        let size = usize::try_from(size).unwrap();
        for index in (0..).take(size).skip(self.0.len()) {
            self.0.push(Hash::of_leaf(&encode_record(&support::record(index)).unwrap()));
        }
        let mut tree = Frontier::new();
        self.0[..size].iter().for_each(|leaf| tree.append(*leaf));
        tree.root()
    }
}

#[test]
fn a_killed_process_leaves_a_prefix_that_the_log_completes() {
    if let Some(dir) = std::env::var_os(CHILD_DIR) {
        return child(Path::new(&dir));
    }
    let dir = tempfile::tempdir().unwrap();
    let (mut logged, mut lost) = (0, 0);
    let mut history = History::default();
    for kill in 0..KILLS {
        logged = run_and_kill(dir.path(), kill * 37 % 190).max(logged);
        let mut journal = Journal::open(dir.path(), support::cell()).unwrap();
        let size = journal.size();
        assert!(size <= logged, "kill {kill}: {size} records of {logged}");
        assert_eq!(journal.root(), history.root_of(size), "kill {kill}");
        let report = verify(&journal).unwrap();
        assert!(report.is_good(), "kill {kill}: {report:?}");
        lost += logged - size;
        // The log is replayed from the last seal but one.
        let seals = journal.seals();
        let from = seals.len().checked_sub(2).map_or(0, |before| seals[before].end());
        append_on(&mut journal, from, logged, |_| ());
        assert_eq!(journal.root(), history.root_of(logged), "kill {kill}");
    }
    println!("{KILLS} kills, {logged} records logged, {lost} lost by the store and replayed");
}
