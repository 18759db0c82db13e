//! `kill -9` at any moment: what was acknowledged is there.
//!
//! A child process (this test binary, started again) lends and writes a line to a pipe for each
//! thing that was acknowledged. The parent kills it, opens the data itself and looks for them.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use sublet_broker::Cell;
use sublet_broker::clock::ClockKind;
use sublet_ledger::merkle::Hash;
use sublet_protocol::commands::Outcome;
use sublet_protocol::events::Event;
use sublet_protocol::ids::{LeaseId, RequestId};
use sublet_protocol::transport::in_process;

use crate::agent::Agent;
use crate::world::{address, config, key, set_up, submit, user};

const DIR: &str = "SUBLET_TEST_KILL_DIR";
const ROUND: &str = "SUBLET_TEST_KILL_ROUND";
const TEST: &str = "kill::what_was_acknowledged_survives_kill_9_at_any_moment";
/// How many kills there are in all, two a round; more in the long runs.
const KILLS: &str = "SUBLET_KILLS";
const KILLS_DEFAULT: u64 = 20;
/// Rounds in one folder: each reads again all that was acknowledged before it.
const ROUNDS: u64 = 10;
const SUBMITTERS: u128 = 4;

/// A thing that was acknowledged.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Ack {
    Request { number: u128, first: u64 },
    Granted { lease: u128, index: u64 },
    Charged { lease: u128, index: u64, micros: i64 },
}

impl Ack {
    /// The record that stands for it.
    const fn index(&self) -> u64 {
        match self {
            Ack::Request { first, .. } => *first,
            Ack::Granted { index, .. } | Ack::Charged { index, .. } => *index,
        }
    }

    fn print(&self) {
        match self {
            Ack::Request { number, first } => println!("ack request {number} {first}"),
            Ack::Granted { lease, index } => println!("ack granted {lease} {index}"),
            Ack::Charged { lease, index, micros } => {
                println!("ack charged {lease} {index} {micros}");
            }
        }
    }

    fn parse(line: &str) -> Option<Ack> {
        let words: Vec<&str> = line.strip_prefix("ack ")?.split(' ').collect();
        match words.as_slice() {
            ["request", number, first] => {
                Some(Ack::Request { number: number.parse().ok()?, first: first.parse().ok()? })
            }
            ["granted", lease, index] => {
                Some(Ack::Granted { lease: lease.parse().ok()?, index: index.parse().ok()? })
            }
            ["charged", lease, index, micros] => Some(Ack::Charged {
                lease: lease.parse().ok()?,
                index: index.parse().ok()?,
                micros: micros.parse().ok()?,
            }),
            _other => None,
        }
    }
}

#[test]
fn what_was_acknowledged_survives_kill_9_at_any_moment() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    match std::env::var_os(DIR) {
        Some(dir) => {
            let round = std::env::var(ROUND).unwrap().parse().unwrap();
            runtime.block_on(child(Path::new(&dir), round));
        }
        None => parent(&runtime),
    }
}

/// Lends until it is killed.
async fn child(dir: &Path, round: u64) {
    let cell = Cell::open(config(Some(dir), ClockKind::Real)).await.unwrap();
    let from = cell.head().unwrap().size;
    set_up(&cell).await;
    println!("ready");
    let mut records = cell.subscribe(from);
    tokio::spawn(async move {
        while let Some(Ok(record)) = records.next().await {
            let index = record.index;
            match &record.event {
                Event::LeaseGranted { terms, .. } => {
                    Ack::Granted { lease: terms.lease.get(), index }.print();
                }
                Event::LeaseEnded { lease, settlement, .. } => {
                    let micros = settlement.cost.get();
                    Ack::Charged { lease: lease.get(), index, micros }.print();
                }
                _other => {}
            }
        }
    });
    let (hub, link) = in_process::link();
    cell.attach(link).await.unwrap();
    for node in 0..3 {
        tokio::spawn(Agent::connect(&hub, address(node), round + 1).run(8));
    }
    let submitters = (0..SUBMITTERS).map(|submitter| {
        let cell = cell.clone();
        tokio::spawn(async move {
            let first = u128::from(round) * 1_000_000 + submitter * 100_000;
            for number in first.. {
                let command = submit(number, None);
                match cell.propose(user("acme"), Some(key(number)), command).await.unwrap() {
                    Outcome::Done { first, .. } => Ack::Request { number, first }.print(),
                    // The queue is full: what is lent meanwhile makes room.
                    _other => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        })
    });
    for submitter in submitters.collect::<Vec<_>>() {
        submitter.await.unwrap();
    }
}

fn spawn(dir: &Path, round: u64) -> Child {
    Process::new(std::env::current_exe().unwrap())
        .args([TEST, "--exact", "--nocapture", "--test-threads=1"])
        .env(DIR, dir)
        .env(ROUND, round.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Starts a child and kills it while it founds or opens the cell.
fn start_and_kill(dir: &Path, round: u64, after: Duration) {
    let mut child = spawn(dir, round);
    std::thread::sleep(after);
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Runs a child, kills it `after` it was ready, and returns what it acknowledged.
fn run_and_kill(dir: &Path, round: u64, after: Duration) -> BTreeSet<Ack> {
    let mut child = spawn(dir, round);
    let stdout = BufReader::new(child.stdout.take().unwrap());
    let (sender, lines) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        for line in stdout.lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
    });
    let give_up = Instant::now() + Duration::from_secs(60);
    let mut acks = BTreeSet::new();
    let mut kill_at = None;
    while kill_at.is_none_or(|at| Instant::now() < at) {
        assert!(Instant::now() < give_up, "round {round}: the child is not ready");
        if let Ok(line) = lines.recv_timeout(Duration::from_millis(5)) {
            if line.ends_with("ready") {
                kill_at = Some(Instant::now() + after);
            }
            acks.extend(Ack::parse(&line));
        }
        assert_eq!(child.try_wait().unwrap(), None, "round {round}: the child ended by itself");
    }
    child.kill().unwrap();
    child.wait().unwrap();
    reader.join().unwrap();
    // What was in the pipe had been acknowledged; a line cut short by the kill had not.
    acks.extend(lines.iter().filter_map(|line| Ack::parse(&line)));
    acks
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Opens the data, checks all that was acknowledged, and returns the root over the records up to
/// the last acknowledged one. (A new leader appends others at once.)
async fn check(dir: &Path, acks: &BTreeSet<Ack>) -> Hash {
    let cell = Cell::open(config(Some(dir), ClockKind::Real)).await.unwrap();
    for ack in acks {
        match ack {
            Ack::Request { number, first } => {
                let record = cell.record(*first).unwrap().unwrap_or_else(|| panic!("{ack:?}"));
                assert_eq!(record.event.request(), Some(RequestId::new(*number)), "{ack:?}");
            }
            Ack::Granted { lease, index } => {
                let record = cell.record(*index).unwrap().unwrap_or_else(|| panic!("{ack:?}"));
                assert_eq!(record.event.name(), "lease_granted");
                assert_eq!(record.event.lease(), Some(LeaseId::new(*lease)), "{ack:?}");
            }
            Ack::Charged { lease, index, micros } => {
                let records = cell.records_of_lease(LeaseId::new(*lease)).unwrap();
                let charge = records.iter().find_map(|record| match &record.event {
                    Event::LeaseEnded { settlement, .. } => {
                        Some((record.index, settlement.cost.get()))
                    }
                    _other => None,
                });
                assert_eq!(charge, Some((*index, *micros)), "{ack:?}");
            }
        }
    }
    for ack in acks.iter().rev().take(200) {
        if let Ack::Request { number, first } = ack {
            let command = submit(*number, None);
            let again = cell.propose(user("acme"), Some(key(*number)), command).await.unwrap();
            assert_eq!(again, Outcome::Repeated { first: *first });
        }
    }
    let report = cell.verify().await.unwrap();
    assert!(report.is_good(), "{:?}", report.first_bad);
    assert_eq!(report.accounts, cell.accounts());
    assert_eq!(cell.violations(), Vec::<String>::new());
    let size = acks.iter().map(Ack::index).max().map_or(0, |last| last + 1);
    let root = cell.journal(|journal| journal.root_at(size)).unwrap().expect("records are missing");
    cell.shutdown().await;
    root
}

fn parent(runtime: &tokio::runtime::Runtime) {
    let kills = std::env::var(KILLS).map_or(KILLS_DEFAULT, |text| text.parse().unwrap());
    let mut kept = [0; 3];
    for _ in 0..kills.div_ceil(2 * ROUNDS) {
        let of = |acks: &BTreeSet<Ack>, is: fn(&Ack) -> bool| acks.iter().filter(|a| is(a)).count();
        let acks = rounds(runtime);
        let counts = [
            of(&acks, |ack| matches!(ack, Ack::Request { .. })),
            of(&acks, |ack| matches!(ack, Ack::Granted { .. })),
            of(&acks, |ack| matches!(ack, Ack::Charged { .. })),
        ];
        assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
        kept.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    let [requests, granted, charged] = kept;
    println!("{kills} kills: {requests} requests, {granted} leases, {charged} charges kept");
}

/// Kills the brokers of one folder; what was acknowledged, all of which is there.
fn rounds(runtime: &tokio::runtime::Runtime) -> BTreeSet<Ack> {
    let folder = tempfile::tempdir().unwrap();
    let dir: PathBuf = folder.path().join("data");
    let (mut acks, mut answered) = (BTreeSet::new(), 0);
    for round in 0..ROUNDS {
        start_and_kill(&dir, round, Duration::from_millis(20 + 45 * (round % 6)));
        let after = Duration::from_millis(150 + 170 * (round % 6));
        let new = run_and_kill(&dir, round, after);
        // On a busy machine a broker may be killed before it has answered anything.
        answered += u64::from(!new.is_empty());
        acks.extend(new);
        // The same data twice: as the kill left it, and without the ledger's store.
        let bare = folder.path().join("bare");
        copy(&dir, &bare);
        fs::remove_dir_all(bare.join("ledger/sled")).unwrap();
        let root = runtime.block_on(check(&dir, &acks));
        assert_eq!(runtime.block_on(check(&bare, &acks)), root, "round {round}");
        fs::remove_dir_all(bare).unwrap();
    }
    assert!(answered * 2 >= ROUNDS, "of {ROUNDS} brokers {answered} acknowledged something");
    acks
}
