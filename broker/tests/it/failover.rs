//! Three brokers as processes; the one that leads is killed under load, again and again.
//!
//! Each child (this test binary, started again) is a broker with agents of its own, which are heard
//! while it leads, and with callers of its own, who ask all the time. It writes a line for each thing
//! that was acknowledged. The parent kills the leader, looks how long it takes until the next lease
//! is granted, starts the broker again, and in the end looks for all that was acknowledged.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command as Process, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use sublet_broker::cell::RECORDS_MAX;
use sublet_broker::{Cell, Error};
use sublet_protocol::commands::Outcome;
use sublet_protocol::events::Event;
use sublet_protocol::ids::RequestId;
use sublet_protocol::transport::in_process;
use tempfile::TempDir;

use crate::agent::Agent;
use crate::brokers::{broker, endpoint, free_port};
use crate::world::{address, key, set_up, submit, user};

const DIR: &str = "SUBLET_TEST_FAILOVER_DIR";
const WHO: &str = "SUBLET_TEST_FAILOVER_WHO";
const PORTS: &str = "SUBLET_TEST_FAILOVER_PORTS";
/// How many times the leader is killed; more in the long runs.
const KILLS: &str = "SUBLET_FAILOVER_KILLS";
const TEST: &str = "failover::a_killed_leader_costs_seconds_and_nothing_that_was_acknowledged";
const KILLS_DEFAULT: u64 = 5;
const BROKERS: u64 = 3;
const SUBMITTERS: u128 = 2;
/// Between two things that a caller asks for.
const PACE: Duration = Duration::from_millis(20);
/// Seconds after the death of a leader within which the next grant must come. The long runs, which
/// have the machine to themselves, ask for less.
const WITHIN: &str = "SUBLET_FAILOVER_WITHIN";
const WITHIN_DEFAULT: u64 = 20;
const PATIENCE: Duration = Duration::from_secs(90);

#[test]
fn a_killed_leader_costs_seconds_and_nothing_that_was_acknowledged() {
    match std::env::var_os(DIR) {
        Some(dir) => {
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
            let words = |name| -> Vec<String> {
                std::env::var(name).unwrap().split(' ').map(str::to_owned).collect()
            };
            let who: Vec<u64> = words(WHO).iter().map(|word| word.parse().unwrap()).collect();
            let ports = words(PORTS).iter().map(|word| word.parse().unwrap()).collect();
            runtime.block_on(child(Path::new(&dir), who[0], who[1], ports));
        }
        None => parent(),
    }
}

/// Broker `id` at its start number `start`; runs until it is killed.
async fn child(dir: &Path, id: u64, start: u64, ports: Vec<SocketAddr>) {
    let own = ports[usize::try_from(id - 1).unwrap()];
    let cell = Cell::open(broker(dir, id, own)).await.unwrap();
    let from = cell.head().unwrap().size;
    println!("ready 0");
    if id == 1 && start == 0 {
        set_up(&cell).await;
        for (other, port) in (2..).zip(&ports[1..]) {
            while let Err(error) = cell.add_broker(other, endpoint(*port)).await {
                assert!(!matches!(error, Error::Stopped), "{error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        println!("formed 0");
    }
    let mut records = cell.subscribe(from);
    tokio::spawn(async move {
        while let Some(Ok(record)) = records.next().await {
            if let Event::LeaseGranted { terms, .. } = &record.event {
                println!("granted {} {} {}", record.index, terms.lease.get(), record.term);
            }
            println!("at {}", record.index);
        }
    });
    let leader = cell.clone();
    tokio::spawn(async move {
        let mut known = None;
        loop {
            let status = leader.status();
            if status.leader == Some(id) && known != Some(status.term) {
                known = Some(status.term);
                println!("leads {}", status.term);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    let (hub, link) = in_process::link();
    cell.attach(link).await.unwrap();
    for node in 0..3 {
        tokio::spawn(Agent::connect(&hub, address(id * 10 + node), start + 1).run(8));
    }
    for submitter in 0..SUBMITTERS {
        let (cell, first) = (cell.clone(), u128::from(id * 1_000 + start) * 1_000_000);
        tokio::spawn(ask(cell, first + submitter * 100_000));
    }
    std::future::pending::<()>().await;
}

/// Asks for one thing after the other, each until it is acknowledged or refused.
async fn ask(cell: Cell, first: u128) {
    let mut number = first;
    loop {
        match cell.propose(user("acme"), Some(key(number)), submit(number, None)).await {
            Ok(Outcome::Done { first, .. } | Outcome::Repeated { first }) => {
                println!("request {first} {number}");
                number += 1;
            }
            // The queue is full, or the cell is being set up.
            Ok(Outcome::Refused { .. }) => {}
            Err(Error::Stopped) => return,
            // Perhaps it was done: it is asked again under the same key.
            Err(_) => {}
        }
        tokio::time::sleep(PACE).await;
    }
}

/// The children and what they said.
struct Brokers {
    folders: Vec<TempDir>,
    ports: Vec<SocketAddr>,
    children: BTreeMap<u64, Child>,
    sender: mpsc::Sender<(u64, String)>,
    lines: mpsc::Receiver<(u64, String)>,
    /// The broker that was the last to say that it leads, and in which term.
    leader: Option<(u64, u64)>,
    led_since: Instant,
    is_formed: bool,
    /// Records that were acknowledged, by index: the lease or request they are of.
    granted: BTreeMap<u64, u128>,
    requests: BTreeMap<u64, u128>,
    /// The newest term in which something was granted, and when that was first heard of.
    granted_in: Option<(u64, Instant)>,
    /// How far each broker is.
    at: BTreeMap<u64, u64>,
}

impl Brokers {
    fn new() -> Self {
        let (sender, lines) = mpsc::channel();
        Self {
            folders: (0..BROKERS).map(|_| tempfile::tempdir().unwrap()).collect(),
            ports: (0..BROKERS).map(|_| free_port()).collect(),
            children: BTreeMap::new(),
            sender,
            lines,
            leader: None,
            led_since: Instant::now(),
            is_formed: false,
            granted: BTreeMap::new(),
            requests: BTreeMap::new(),
            granted_in: None,
            at: BTreeMap::new(),
        }
    }

    fn dir(&self, id: u64) -> &Path {
        self.folders[usize::try_from(id - 1).unwrap()].path()
    }

    fn start(&mut self, id: u64, start: u64) {
        let ports: Vec<String> = self.ports.iter().map(SocketAddr::to_string).collect();
        let mut child = Process::new(std::env::current_exe().unwrap())
            .args([TEST, "--exact", "--nocapture", "--test-threads=1"])
            .env(DIR, self.dir(id))
            .env(WHO, format!("{id} {start}"))
            .env(PORTS, ports.join(" "))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (stdout, sender) = (BufReader::new(child.stdout.take().unwrap()), self.sender.clone());
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if sender.send((id, line)).is_err() {
                    return;
                }
            }
        });
        self.children.insert(id, child);
    }

    fn kill(&mut self, id: u64) {
        let mut child = self.children.remove(&id).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Takes in what the children say until `is_enough`.
    #[track_caller]
    fn hear(&mut self, what: &str, is_enough: impl Fn(&Self) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !is_enough(self) {
            assert!(Instant::now() < end, "waited in vain for {what}");
            if let Ok((id, line)) = self.lines.recv_timeout(Duration::from_millis(50)) {
                self.take(id, &line);
            }
            for (id, child) in &mut self.children {
                assert_eq!(child.try_wait().unwrap(), None, "broker {id} ended by itself");
            }
        }
    }

    fn take(&mut self, id: u64, line: &str) {
        assert!(!line.starts_with("fatal"), "broker {id}: {line}");
        // The first line of a child stands behind what its test runner prints.
        let line = line.rsplit("... ").next().unwrap_or(line);
        let mut words = line.split(' ');
        let kind = words.next().unwrap_or_default().to_owned();
        let numbers: Vec<u128> = words.map_while(|word| word.parse().ok()).collect();
        let short = |place: usize| u64::try_from(numbers[place]).unwrap();
        match (kind.as_str(), numbers.len()) {
            ("formed", 1) => self.is_formed = true,
            ("leads", 1) if self.leader.is_none_or(|(_, term)| term < short(0)) => {
                self.leader = Some((id, short(0)));
                self.led_since = Instant::now();
            }
            ("granted", 3) => {
                self.granted.insert(short(0), numbers[1]);
                if self.granted_in.is_none_or(|(term, _)| term < short(2)) {
                    self.granted_in = Some((short(2), Instant::now()));
                }
            }
            ("request", 2) => {
                self.requests.insert(short(0), numbers[1]);
            }
            ("at", 1) => {
                let at = self.at.entry(id).or_default();
                *at = short(0).max(*at);
            }
            // What else a test runner says, or a line that was cut off.
            _other => {}
        }
    }

    fn furthest(&self) -> u64 {
        self.at.values().copied().max().unwrap_or(0)
    }
}

fn parent() {
    let number = |name, default| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let kills = number(KILLS, KILLS_DEFAULT);
    let within = Duration::from_secs(number(WITHIN, WITHIN_DEFAULT));
    let mut brokers = Brokers::new();
    for id in 1..=BROKERS {
        brokers.start(id, 0);
    }
    brokers.hear("a cell of three", |brokers| brokers.is_formed);
    brokers.hear("a grant", |brokers| brokers.granted_in.is_some());
    let mut took = Vec::new();
    for start in 1..=kills {
        let (id, term) = brokers.leader.unwrap();
        brokers.kill(id);
        let killed = Instant::now();
        brokers.hear("a grant by another leader", |brokers| {
            brokers.granted_in.is_some_and(|(granted, _)| granted > term)
        });
        let (_, granted) = brokers.granted_in.unwrap();
        took.push((granted.duration_since(killed), brokers.led_since.duration_since(killed)));
        let upto = brokers.furthest();
        brokers.at.remove(&id);
        brokers.start(id, start);
        brokers.hear("the killed one to catch up", |brokers| {
            brokers.at.get(&id).is_some_and(|at| *at >= upto)
        });
    }
    for id in 1..=BROKERS {
        brokers.kill(id);
    }
    // What was in the pipes had been acknowledged; a line cut short by the kill had not.
    while let Ok((id, line)) = brokers.lines.recv_timeout(Duration::from_millis(500)) {
        brokers.take(id, &line);
    }
    let (granted, requests) = (brokers.granted.clone(), brokers.requests.clone());
    let upto = granted.keys().chain(requests.keys()).copied().max().unwrap();
    let (leases, asked) = (granted.len(), requests.len());
    took.sort();
    println!("{kills} kills of a leader: {leases} leases and {asked} requests kept");
    println!("from a kill to the next grant, and to the next leader: {took:?}");
    assert!(leases > 0 && asked > 0);
    assert!(took.iter().all(|(granted, _)| *granted <= within), "{took:?}");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut cells = Vec::new();
        for (id, port) in (1..).zip(&brokers.ports) {
            cells.push(Cell::open(broker(brokers.dir(id), id, *port)).await.unwrap());
        }
        let mut roots = BTreeSet::new();
        for cell in &cells {
            roots.insert(check(cell, upto, &granted, &requests).await);
        }
        assert_eq!(roots.len(), 1, "the ledgers differ");
        for cell in cells {
            cell.shutdown().await;
        }
    });
}

/// Everything that was acknowledged is in this broker's ledger, once; its root up to `upto`.
async fn check(
    cell: &Cell,
    upto: u64,
    granted: &BTreeMap<u64, u128>,
    requests: &BTreeMap<u64, u128>,
) -> [u8; 32] {
    let end = Instant::now() + PATIENCE;
    // There may be no leader yet.
    while cell.read(|_| ()).await.is_err() {
        assert!(Instant::now() < end, "the cell does not come back");
    }
    let (mut leases, mut submitted) = (BTreeSet::new(), BTreeSet::new());
    let (mut kept_leases, mut kept_requests) = (0, 0);
    let mut next = 0;
    while next <= upto {
        let records = cell.records(next, RECORDS_MAX).unwrap();
        let last = records.last().unwrap_or_else(|| panic!("no record {next}")).index;
        for record in records.iter().filter(|record| record.index <= upto) {
            if let Some(number) = requests.get(&record.index) {
                // It may be a refused request: that is journalled and acknowledged as well.
                let request = record.event.request().map(RequestId::get);
                assert_eq!(request, Some(*number), "{record:?}");
                kept_requests += 1;
            }
            match &record.event {
                Event::LeaseGranted { terms, .. } => {
                    assert!(leases.insert(terms.lease), "granted twice: {}", terms.lease);
                    let known = granted.get(&record.index);
                    assert!(known.is_none_or(|lease| terms.lease.get() == *lease));
                    kept_leases += usize::from(known.is_some());
                }
                Event::RequestSubmitted { request, .. } => {
                    assert!(submitted.insert(*request), "submitted twice: {request}");
                }
                _other => {}
            }
        }
        next = last + 1;
    }
    assert_eq!((kept_leases, kept_requests), (granted.len(), requests.len()));
    assert_eq!(cell.violations(), Vec::<String>::new());
    let root = cell.journal(|journal| journal.root_at(upto + 1)).unwrap();
    *root.expect("records are missing").as_bytes()
}
