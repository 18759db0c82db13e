//! The disk below a broker breaks at every call: what was acknowledged is there, and once.
//!
//! A child process founds a cell, has requests submitted, stops, starts again and has more
//! submitted. `traced` notes what it does to its files and can break any one call. From the notes of
//! a run a simulated disk is fed, which loses power as disks do; what is left is put into a folder
//! and opened. So the log (raft-log), sled, snapshots and archive are covered as they are built in,
//! without a seam in any of them.
//!
//! A run of all tests takes a sample of the calls. `SUBLET_STORAGE_EVERY=1` takes each one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};

use nix::sys::signal::Signal;
use sublet_broker::clock::ClockKind;
use sublet_broker::raft::FatalHook;
use sublet_broker::{Cell, Config};
use sublet_ledger::disk::{Disk, DiskFault, Omission, SimulatedDisk};
use sublet_protocol::commands::Outcome;
use sublet_protocol::ids::RequestId;
use tokio::runtime::Runtime;

use crate::traced::{self, Deed, End, Fault, Struck, Traced};
use crate::world::{config, key, set_up, submit, user};

const DIR: &str = "SUBLET_TEST_STORAGE_DIR";
const CHILD: &str = "storage::child_of_the_storage_tests";
/// Requests submitted in each of the two lives.
const REQUESTS: u128 = 30;
/// One call in this many is broken in an ordinary run; a prime, so that no kind of call is missed
/// because the program repeats itself.
const EVERY: usize = 29;

/// A request that was acknowledged, as the record that stands for it, in a term.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Ack {
    number: u128,
    first: u64,
    term: u64,
}

impl Ack {
    fn parse(line: &str) -> Option<Ack> {
        // The test harness may have begun the line.
        let (_, ack) = line.trim_end().split_once("ack ")?;
        let words: Vec<&str> = ack.split(' ').collect();
        let [number, first, term] = words.as_slice() else { return None };
        Some(Ack {
            number: number.parse().ok()?,
            first: first.parse().ok()?,
            term: term.parse().ok()?,
        })
    }
}

/// Everything is small, so that a short life has seals, snapshots, several log files and purges.
fn small(dir: &Path) -> Config {
    let mut config = config(Some(dir), ClockKind::Real);
    config.snapshot_records = 16;
    config.log_file_bytes = 8 * 1024;
    config
}

/// Not a test: the body of the child.
#[test]
#[ignore = "the body of a child process that other tests start"]
fn child_of_the_storage_tests() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).unwrap();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let dir = PathBuf::from(dir);
        live(&dir, 0).await.shutdown().await;
        println!("closed");
        let _cell = live(&dir, REQUESTS).await;
        // The end of the second life is that of the process.
        std::process::exit(0);
    });
}

async fn live(dir: &Path, from: u128) -> Cell {
    let mut config = small(dir);
    config.on_fatal = FatalHook::abort();
    let cell = match Cell::open(config).await {
        Ok(cell) => cell,
        Err(error) => {
            println!("cannot open: {error:?}");
            std::process::exit(3);
        }
    };
    set_up(&cell).await;
    for number in from..from + REQUESTS {
        let submitted = cell.propose(user("acme"), Some(key(number)), submit(number, None)).await;
        match submitted {
            Ok(Outcome::Done { first, .. }) => {
                println!("ack {number} {first} {}", cell.status().term);
            }
            Ok(other) => panic!("{other:?}"),
            Err(error) => {
                println!("not done: {error:?}");
                std::process::exit(4);
            }
        }
    }
    println!("closing");
    cell
}

/// A life of the child in the folder `root`.
fn child(root: &Path, fault: Option<(u64, Fault)>) -> Traced {
    let mut command = Process::new(std::env::current_exe().unwrap());
    command.args([CHILD, "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
    command.env(DIR, root.join("data")).stderr(Stdio::null());
    traced::run(&mut command, root, fault)
}

fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().canonicalize().unwrap();
    (folder, root)
}

fn acks(deeds: &[Deed]) -> BTreeSet<Ack> {
    let said = deeds.iter().filter_map(|deed| match deed {
        Deed::Said(text) => Some(text),
        _other => None,
    });
    said.flat_map(|text| text.lines()).filter_map(Ack::parse).collect()
}

/// The disk after `deeds`, as they were done below `root`.
fn replay(deeds: &[Deed], root: &Path, omission: Option<Omission>) -> SimulatedDisk {
    let disk = SimulatedDisk::default();
    if let Some(omission) = omission {
        disk.omit(omission);
    }
    let below = |path: &Path| path.strip_prefix(root).unwrap().to_owned();
    for deed in deeds {
        let done = match deed {
            Deed::Said(_) => Ok(()),
            Deed::Create(file) => disk.create(&below(file)).map(drop),
            Deed::Cut { file, length } => {
                disk.edit(&below(file)).and_then(|mut file| file.truncate(*length))
            }
            Deed::Write { file, at, bytes } => {
                disk.edit(&below(file)).and_then(|mut file| file.write(*at, bytes))
            }
            Deed::Sync { path, failed } => sync(&disk, &below(path), *failed),
            Deed::MakeFolder(folder) => disk.create_folder(&below(folder)),
            Deed::Rename { from, to } => disk.rename(&below(from), &below(to)),
            Deed::Remove(file) => disk.remove(&below(file)),
            Deed::RemoveFolder(folder) => disk.remove_folder(&below(folder)),
        };
        match done {
            Ok(()) => {}
            // A file that is open and has no name any more: nobody will see it.
            Err(error) if error.kind() == ErrorKind::NotFound && is_nameless(deed) => {}
            Err(error) => panic!("{deed:?}: {error}"),
        }
    }
    disk
}

fn is_nameless(deed: &Deed) -> bool {
    match deed {
        Deed::Cut { file: path, .. } | Deed::Write { file: path, .. } | Deed::Sync { path, .. } => {
            path.to_string_lossy().ends_with(" (deleted)")
        }
        _other => false,
    }
}

fn sync(disk: &SimulatedDisk, path: &Path, failed: bool) -> std::io::Result<()> {
    let is_folder = disk.names(path).is_ok();
    let file = if is_folder { None } else { Some(disk.edit(path)?) };
    if failed {
        disk.plan(0, DiskFault::InputOutput);
    }
    let synced = match file {
        Some(mut file) => file.sync(),
        None => disk.sync_folder(path),
    };
    disk.mend();
    assert_eq!(synced.is_err(), failed);
    Ok(())
}

/// Puts what is on the disk into a folder.
fn put_out(disk: &SimulatedDisk, from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for name in disk.names(from).unwrap() {
        let (from, to) = (from.join(&name), to.join(&name));
        match disk.copy_out(&from) {
            Ok(bytes) => fs::write(&to, bytes).unwrap(),
            Err(_) => put_out(disk, &from, &to),
        }
    }
}

/// Choices that differ by `seed`; the first seed loses all that can be lost.
fn chooser(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed;
    move |below| {
        if seed == 0 {
            return 0;
        }
        // splitmix64
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below.max(1)
    }
}

/// What a cell opened on `dir` lacks of what was acknowledged, has twice, or has wrong.
async fn wrong(dir: &Path, acks: &BTreeSet<Ack>) -> Option<String> {
    let cell = match Cell::open(small(dir)).await {
        Ok(cell) => cell,
        Err(error) => return Some(format!("cannot be opened: {error:?}")),
    };
    let found = wrong_in(&cell, acks).await;
    cell.shutdown().await;
    found
}

async fn wrong_in(cell: &Cell, acks: &BTreeSet<Ack>) -> Option<String> {
    let size = cell.head().unwrap().size;
    let mut submitted: BTreeMap<RequestId, Vec<u64>> = BTreeMap::new();
    for record in cell.records(0, usize::MAX).unwrap() {
        if record.event.name() == "request_submitted" {
            submitted.entry(record.event.request().unwrap()).or_default().push(record.index);
        }
    }
    assert!(size < 1_000, "a page of records holds them all");
    if let Some((request, twice)) = submitted.iter().find(|(_, found)| found.len() > 1) {
        return Some(format!("request {request} stands in records {twice:?}"));
    }
    for ack in acks {
        let found = submitted.get(&RequestId::new(ack.number));
        if found != Some(&vec![ack.first]) {
            return Some(format!("{ack:?} is lost: {found:?} of {size} records"));
        }
        // The only voter may go on in its term; a vote that is lost would take it back to an older.
        if cell.status().term < ack.term {
            return Some(format!("{ack:?}: votes were lost, this is term {}", cell.status().term));
        }
    }
    for ack in acks.iter().rev().take(3) {
        let (key, again) = (key(ack.number), submit(ack.number, None));
        let again = cell.propose(user("acme"), Some(key), again).await;
        if !matches!(again, Ok(Outcome::Repeated { first }) if first == ack.first) {
            return Some(format!("{ack:?} asked for again: {again:?}"));
        }
    }
    let report = cell.verify().await.unwrap();
    if !report.is_good() || report.accounts != cell.accounts() {
        return Some(format!("the ledger does not verify: {:?}", report.first_bad));
    }
    let violations = cell.violations();
    (!violations.is_empty()).then(|| format!("{violations:?}"))
}

/// What is wrong with the data that the disk keeps after a loss of power.
fn wrong_after_power_loss(
    runtime: &Runtime,
    disk: &SimulatedDisk,
    seed: u64,
    acks: &BTreeSet<Ack>,
) -> Option<String> {
    disk.lose_power(&mut chooser(seed));
    let (_folder, root) = folder();
    put_out(disk, Path::new(""), &root);
    runtime.block_on(wrong(&root.join("data"), acks))
}

/// Every how many calls one is broken, and where to begin.
fn sample() -> usize {
    let every = std::env::var("SUBLET_STORAGE_EVERY").map(|every| every.parse().unwrap());
    every.unwrap_or(EVERY)
}

#[track_caller]
fn none_of(what: &str, tried: usize, wrong: &[String]) {
    println!("{what}: {tried} tried");
    assert!(tried > 5, "{what}: only {tried} were tried");
    assert!(wrong.is_empty(), "{what}: {} of {tried}, the first: {}", wrong.len(), wrong[0]);
}

/// A whole life, seen and left alone.
fn whole() -> (tempfile::TempDir, PathBuf, Traced) {
    let (folder, root) = folder();
    let life = child(&root, None);
    assert_eq!(life.end, End::Exited(0));
    assert_eq!(acks(&life.deeds).len(), usize::try_from(2 * REQUESTS).unwrap());
    let is_below = |path: &Path, part: &str| path.strip_prefix(&root).unwrap().starts_with(part);
    // It would prove nothing about what it does not do.
    for part in ["data/raft/wal", "data/raft/snapshots", "data/ledger/archive", "data/ledger/sled"]
    {
        let syncs = life.deeds.iter().filter(
            |deed| matches!(deed, Deed::Sync { path, failed: false } if is_below(path, part)),
        );
        assert!(syncs.count() > 0, "nothing below {part} was synced");
    }
    let removed = |deed: &&Deed| matches!(deed, Deed::Remove(file) if is_below(file, "data/raft"));
    assert!(life.deeds.iter().filter(removed).count() > 1, "the log was never purged");
    (folder, root, life)
}

#[test]
fn no_loss_of_power_at_any_call_loses_what_was_acknowledged() {
    let runtime = Runtime::new().unwrap();
    let (_folder, root, life) = whole();
    let (mut tried, mut found) = (0, Vec::new());
    for at in (0..=life.deeds.len()).step_by(sample()) {
        let done = &life.deeds[..at];
        for seed in [0, u64::try_from(at).unwrap() + 1] {
            let disk = replay(done, &root, None);
            tried += 1;
            let wrong = wrong_after_power_loss(&runtime, &disk, seed, &acks(done));
            found.extend(wrong.map(|wrong| {
                format!("after {at} of {} deeds, seed {seed}: {wrong}", life.deeds.len())
            }));
        }
    }
    none_of("loss of power", tried, &found);
}

#[test]
fn a_broker_whose_syncs_are_left_out_is_seen_to_lose_what_it_acknowledged() {
    let runtime = Runtime::new().unwrap();
    let (_folder, root, life) = whole();
    for omission in [Omission::FileSync, Omission::FolderSync] {
        let mut lost = Vec::new();
        let points = [life.deeds.len() / 2, life.deeds.len() * 3 / 4, life.deeds.len()];
        for at in points {
            let done = &life.deeds[..at];
            let disk = replay(done, &root, Some(omission));
            lost.extend(wrong_after_power_loss(&runtime, &disk, 0, &acks(done)));
        }
        println!("without {omission:?}: {lost:?}");
        assert_eq!(lost.len(), points.len(), "without {omission:?} only {lost:?}");
    }
}

/// A life with a fault at a call; what is wrong then.
fn broken_at(runtime: &Runtime, call: u64, fault: Fault) -> (bool, Option<String>) {
    let (_folder, root) = folder();
    let life = child(&root, Some((call, fault)));
    let acks = acks(&life.deeds);
    let Some(struck) = &life.struck else { return (false, None) };
    let what = format!("{fault:?} at call {call} ({} of {})", struck.call, struck.path.display());
    // Closing, a broker has nothing left to promise.
    let is_closing = life.deeds[..struck.at].iter().rev().find_map(|deed| match deed {
        Deed::Said(text) => Some(text.ends_with("closing\n")),
        _other => None,
    });
    let goes_on = life.end == End::Exited(0) && is_closing != Some(true);
    if goes_on && (struck.is_sync || fault == Fault::Full) {
        return (true, Some(format!("{what}: the broker went on")));
    }
    if life.end == End::Killed(Signal::SIGKILL) {
        println!("{what}: the broker stood still");
        if !is_opening(&life, struck) {
            return (true, Some(format!("{what}: the broker stood still")));
        }
    }
    // What a failed sync should have written is gone once the power is.
    let disk = replay(&life.deeds, &root, None);
    let wrong = runtime
        .block_on(wrong(&root.join("data"), &acks))
        .or_else(|| wrong_after_power_loss(runtime, &disk, 0, &acks));
    (true, wrong.map(|wrong| format!("{what}, then {:?}: {wrong}", life.end)))
}

/// An error while sled opens can leave its threads waiting for each other for ever. Nothing was
/// promised by then in this life, and the broker says that it still opens. At work and when it closes,
/// a broker ends itself.
fn is_opening(life: &Traced, struck: &Struck) -> bool {
    let said = life.deeds[..struck.at].iter().rev().find_map(|deed| match deed {
        Deed::Said(text) => Some(text),
        _other => None,
    });
    said.is_none_or(|text| text.ends_with("closed\n"))
}

fn broken_everywhere(fault: Fault) {
    let runtime = Runtime::new().unwrap();
    let (_folder, _root, life) = whole();
    let (mut tried, mut found) = (0, Vec::new());
    for call in (0..life.calls).step_by(sample()) {
        let (is_struck, wrong) = broken_at(&runtime, call, fault);
        tried += usize::from(is_struck);
        found.extend(wrong);
    }
    println!("{} calls in all", life.calls);
    none_of(&format!("{fault:?}"), tried, &found);
}

#[test]
fn no_io_error_at_any_call_loses_what_was_acknowledged() {
    broken_everywhere(Fault::InputOutput);
}

#[test]
fn no_full_disk_at_any_call_loses_what_was_acknowledged() {
    broken_everywhere(Fault::Full);
}
