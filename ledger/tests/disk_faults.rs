//! Power loss, I/O error and full disk at each call that a short life of a journal makes on its
//! disk. What was sealed is there afterwards, the rest is a prefix that the log completes; and
//! without the syncs it is not, which shows that this test can fail.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

#[allow(dead_code, reason = "shared with the unit tests and the measurement")]
mod support;

use std::io;
use std::ops::Range;

use sublet_ledger::Error;
use sublet_ledger::disk::{DiskFault, Omission, SimulatedDisk};
use sublet_ledger::journal::{Cursor, Journal, Opened};
use sublet_ledger::merkle::{Frontier, Hash};
use sublet_ledger::verify::verify;
use sublet_protocol::codec::encode_record;
use sublet_protocol::events::Event;
use sublet_protocol::records::Record;

/// Ways in which the same unsynced bytes are lost.
const LOSSES: u64 = 3;

/// What happens in a life.
enum Step {
    /// Records up to this one are appended.
    Append(u64),
    /// All of them are brought to the disk.
    Sync,
    /// All of them are sealed.
    Seal,
    /// The process ends and another begins, which replays the log from the last seal.
    Reopen,
}

use Step::{Append, Reopen, Seal, Sync};

const LIFE: [Step; 17] = [
    Append(4),
    Sync,
    Append(9),
    Append(13),
    Seal,
    Append(14),
    Append(17),
    Sync,
    Reopen,
    // One is larger than a page, so that the store is written without a sync.
    Append(22),
    Append(26),
    Seal,
    Append(28),
    Reopen,
    Append(30),
    Seal,
    Sync,
];
const RECORDS: u64 = 30;
/// A record that is larger than a page: the grant of a lease of so many members.
const LARGE: u64 = 18;
const MEMBERS: usize = 180;

/// What the ledger said to be safe.
#[derive(Default, Clone, Copy)]
struct Promised {
    /// Records in segments.
    sealed: u64,
    /// Records that a sync brought to the disk.
    synced: u64,
}

fn records(range: Range<u64>) -> Vec<Record> {
    let mut records = support::records(range);
    for record in &mut records {
        if record.index == LARGE
            && let Event::LeaseGranted { terms, .. } = &mut record.event
        {
            terms.members = vec![terms.members[0]; MEMBERS];
        }
    }
    records
}

fn open(disk: &SimulatedDisk) -> Result<Opened, Error> {
    Journal::open_or_rebuild_on(disk, support::cell())
}

/// How far a life goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Until {
    End,
    NewSeal,
}

/// The life, until the disk fails. One that was begun before is gone through again, as the log is
/// replayed from the last seal.
fn live(disk: &SimulatedDisk, until: Until, promised: &mut Promised) -> Result<(), Error> {
    let before = promised.sealed;
    let (mut journal, mut next) = (open(disk)?.journal, 0);
    let append = |journal: &mut Journal, from: u64, end: u64| {
        let from = from.max(journal.size() - journal.tail_records());
        let cursor = Cursor { log_index: end, term: 1 };
        journal.append(cursor, &records(from..end.max(from))).map(drop)
    };
    for step in &LIFE {
        match step {
            Append(end) => {
                append(&mut journal, next, *end)?;
                next = *end;
            }
            Sync => {
                journal.sync()?;
                promised.synced = promised.synced.max(journal.size());
            }
            Seal => {
                journal.seal(next - 1)?;
                promised.sealed = promised.sealed.max(next);
                if until == Until::NewSeal && next > before {
                    return Ok(());
                }
            }
            Reopen => {
                drop(journal);
                journal = open(disk)?.journal;
                append(&mut journal, 0, next)?;
            }
        }
    }
    Ok(())
}

fn root_of(size: u64) -> Hash {
    let mut tree = Frontier::new();
    for record in records(0..size) {
        tree.append(Hash::of_leaf(&encode_record(&record).unwrap()));
    }
    tree.root()
}

/// What the journal on `disk` lacks of what was promised, if it lacks anything.
fn lost(disk: &SimulatedDisk, promised: Promised, roots: &[Hash]) -> Option<String> {
    let journal = match open(disk) {
        Ok(Opened { rebuilt: None, journal }) => journal,
        // Of an unsealed record nothing was promised: the archive and the log have everything.
        Ok(Opened { rebuilt: Some(_), journal }) if promised.synced == 0 => journal,
        Ok(Opened { rebuilt: Some(damage), .. }) => return Some(format!("damaged: {damage}")),
        Err(error) => return Some(format!("{error:?}")),
    };
    let sealed = journal.size() - journal.tail_records();
    if sealed < promised.sealed || journal.size() < promised.synced {
        let (size, Promised { sealed: seals, synced }) = (journal.size(), promised);
        return Some(format!("{sealed} of {seals} sealed, {size} of {synced} synced"));
    }
    let root = usize::try_from(journal.size()).ok().and_then(|size| roots.get(size));
    if root != Some(&journal.root()) {
        return Some(format!("{} records that are not the history's", journal.size()));
    }
    let report = verify(&journal).unwrap();
    (!report.is_good()).then(|| format!("{report:?}"))
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

/// A life in which the call after `call` more runs into `fault`: what is lost then, or after a
/// second life that replays the log and a second loss of power.
fn broken_at(
    call: u64,
    fault: DiskFault,
    omission: Option<Omission>,
    seed: u64,
    roots: &[Hash],
) -> Option<String> {
    let disk = SimulatedDisk::default();
    if let Some(omission) = omission {
        disk.omit(omission);
    }
    disk.plan(call, fault);
    let mut promised = Promised::default();
    match live(&disk, Until::End, &mut promised) {
        Ok(()) | Err(Error::Io { .. }) => {}
        Err(error) => return Some(format!("another error than the disk's: {error:?}")),
    }
    match fault {
        DiskFault::PowerLoss => {
            disk.lose_power(&mut chooser(seed));
        }
        // What a failed sync forgot is not on the disk, and another process cannot know it: the
        // log can.
        DiskFault::InputOutput => promised.synced = 0,
        DiskFault::Full => {
            // Started again while it is full, it says so and changes nothing.
            if let Err(error) = open(&disk)
                && !matches!(&error, Error::Io { source, .. } if is_full(source))
            {
                return Some(format!("another error than the full disk: {error:?}"));
            }
        }
    }
    disk.mend();
    if seed % 2 == 1 && fault != DiskFault::PowerLoss {
        disk.lose_power(&mut chooser(seed));
    }
    if let Some(lost) = lost(&disk, promised, roots) {
        return Some(format!("at once: {lost}"));
    }
    let until = if seed < 2 { Until::NewSeal } else { Until::End };
    if let Err(error) = live(&disk, until, &mut promised) {
        return Some(format!("the log cannot be replayed: {error:?}"));
    }
    disk.lose_power(&mut chooser(0));
    if fault == DiskFault::InputOutput {
        promised.synced = 0;
    }
    lost(&disk, promised, roots).map(|lost| format!("after a second life: {lost}"))
}

fn is_full(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::StorageFull
}

/// All losses, for each call of a life and each way of losing.
fn losses(fault: DiskFault, omission: Option<Omission>) -> (u64, Vec<String>) {
    let roots: Vec<Hash> = (0..=RECORDS).map(root_of).collect();
    let whole = SimulatedDisk::default();
    live(&whole, Until::End, &mut Promised::default()).unwrap();
    let calls = whole.calls();
    let mut lost = Vec::new();
    for call in 0..calls {
        for seed in 0..LOSSES {
            let what = broken_at(call, fault, omission, seed, &roots);
            lost.extend(what.map(|what| format!("{fault:?} at call {call}, loss {seed}: {what}")));
        }
    }
    (calls, lost)
}

#[track_caller]
fn check_nothing_lost(fault: DiskFault) {
    let (calls, lost) = losses(fault, None);
    println!("{fault:?}: {calls} calls, {} lives", calls * LOSSES);
    assert!(calls > 80, "the life makes {calls} calls");
    assert!(lost.is_empty(), "{} losses, the first: {}", lost.len(), lost[0]);
}

#[test]
fn no_loss_of_power_at_any_call_loses_what_was_promised() {
    check_nothing_lost(DiskFault::PowerLoss);
}

#[test]
fn no_io_error_at_any_call_loses_what_was_promised() {
    check_nothing_lost(DiskFault::InputOutput);
}

#[test]
fn no_full_disk_at_any_call_loses_what_was_promised() {
    check_nothing_lost(DiskFault::Full);
}

#[test]
fn a_journal_whose_syncs_are_left_out_is_seen_to_lose_what_it_promised() {
    for omission in [Omission::FileSync, Omission::FolderSync] {
        let (_, lost) = losses(DiskFault::PowerLoss, Some(omission));
        println!("without {omission:?}: {} losses, the first: {}", lost.len(), lost[0]);
        assert!(lost.len() > 10, "without {omission:?}: {lost:?}");
    }
}
