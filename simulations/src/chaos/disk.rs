//! In some worlds the brokers keep their ledgers on disks that break, and open them again with the
//! real recovery: segments and store from the disk, state and books from the newer or older of two
//! snapshots, the rest from the log.
//!
//! Every disk may lose its power, fail calls and get full. Bits flip on one of the three only: what
//! two of three lose nobody can bring back. The raft log and the snapshots are taken to be kept.

use std::path::Path;
use std::rc::Rc;

use sublet_ledger::disk::{DiskFault, Flip, Omission, SimulatedDisk};
use sublet_ledger::journal::{Cursor, Journal};
use sublet_ledger::merkle::Hash;
use sublet_ledger::{Error, verify};
use sublet_protocol::codec::encode_record;
use sublet_protocol::ids::CellId;
use sublet_protocol::records::Record;

use super::broker::Snapshot;
use super::clock::LedgerClock;
use super::fault::Fault;
use super::queue::Event;
use super::rule::Rule;
use super::world::World;
use super::{Options, Scenario};
use crate::generator::Random;

/// The stream of chance for disks is far from those of the lives, so that a world without disks is
/// what it would be if there were none.
const STREAM: u64 = 1 << 40;
/// A broken disk hits one of its next so many calls.
const CALLS: u64 = 40;
/// Where bits flip; in what was set aside they concern nobody.
const FLIPPED: [&str; 2] = ["sled", "archive"];

/// The disks of a world.
pub(super) struct Disks {
    random: Random,
    is_used: bool,
    /// The longest pause between two things that happen to a disk.
    every: u64,
    /// The replica whose bits flip.
    victim: usize,
    /// The hash of each record as it was applied first.
    history: Vec<Hash>,
}

/// The disk of a replica.
#[derive(Default)]
pub(super) struct Drive {
    disk: SimulatedDisk,
    flip: Option<Flip>,
    /// A call failed: what a sync forgot may be missing at any later time.
    has_failed: bool,
}

impl Drive {
    /// Whether something has happened that may leave damage.
    const fn is_suspect(&self) -> bool {
        self.flip.is_some() || self.has_failed
    }
}

/// What happens to a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DiskStep {
    /// Whatever comes next.
    Any,
    /// Somebody makes room.
    Mended,
}

impl Disks {
    pub(super) fn new(seed: u64, life: u64, options: &Options) -> Disks {
        let mut random = Random::new(seed, STREAM + life);
        // A rule that is taken out is looked for in the rules' own worlds.
        let may_be = matches!(options.rule, None | Some(Rule::LedgerSync));
        let is_used = random.chance(1, 2) && may_be && options.scenario == Scenario::Storm;
        let every = 20_000 + random.below(600_000);
        let victim = usize::try_from(random.below(3)).unwrap_or(0);
        Disks { random, is_used, every, victim, history: Vec::new() }
    }

    /// How long somebody waits before he tries again.
    pub(super) fn pause(&mut self) -> u64 {
        self.random.below(5_000)
    }

    /// A record was applied by the first replica of all.
    pub(super) fn note(&mut self, leaves: &[Hash]) {
        if self.is_used {
            self.history.extend_from_slice(leaves);
        }
    }
}

fn cell() -> CellId {
    CellId::new("chaos").expect("a cell's name")
}

impl World {
    /// Every broker's first ledger.
    pub(super) fn set_up_disks(&mut self) {
        for replica in 0..self.replicas.len() {
            if self.disks.is_used {
                let drive = Drive::default();
                if self.is_without(Rule::LedgerSync) {
                    drive.disk.omit(Omission::FileSync);
                }
                self.replicas[replica].drive = Some(drive);
                self.open_ledger(replica);
            } else {
                self.replicas[replica].journal = Some(Journal::in_memory(cell()));
            }
        }
    }

    pub(super) fn schedule_disk(&mut self) {
        if self.disks.is_used && !self.is_calm {
            let at = self.now + 1_000 + self.disks.random.below(self.disks.every);
            let replica = self.disks.random.below(3);
            let replica = usize::try_from(replica).unwrap_or(0);
            self.queue.push(at, Event::Disk { replica, what: DiskStep::Any });
        }
    }

    pub(super) fn on_disk(&mut self, replica: usize, what: DiskStep) {
        if what == DiskStep::Mended {
            return self.drive(replica).disk.mend();
        }
        self.schedule_disk();
        if self.is_calm {
            return;
        }
        let calls = self.disks.random.below(CALLS);
        match self.disks.random.below(12) {
            0 => self.drive(replica).disk.plan(calls, DiskFault::PowerLoss),
            1 => self.drive(replica).disk.plan(calls, DiskFault::InputOutput),
            2 => self.drive(replica).disk.plan(calls, DiskFault::Full),
            3 => self.crash_replica(replica),
            4 | 5 => self.stop_cleanly(replica),
            6..=8 => self.drive(replica).disk.write_back(),
            9 => self.flip_bit(),
            _more => {}
        }
        self.audit(replica);
        self.audit(self.disks.victim);
    }

    fn drive(&mut self, replica: usize) -> &mut Drive {
        self.replicas[replica].drive.as_mut().expect("only worlds with disks have such events")
    }

    /// The process is told to end: it brings its journal to the disk first.
    fn stop_cleanly(&mut self, replica: usize) {
        let synced = self.replicas[replica].journal.as_mut().map(Journal::sync);
        match synced {
            Some(Err(error)) => self.ledger_failed(replica, &error),
            Some(Ok(())) | None => self.crash_replica(replica),
        }
    }

    fn flip_bit(&mut self) {
        let (victim, random) = (self.disks.victim, &mut self.disks.random);
        let Some(drive) = &mut self.replicas[victim].drive else { return };
        if drive.flip.as_ref().is_some_and(|flip| drive.disk.has(flip)) {
            return;
        }
        let folder = Path::new(FLIPPED[usize::from(random.chance(1, 2))]);
        drive.flip = drive.disk.flip_bit(folder, &mut |below| random.below(below));
        if drive.flip.is_some() {
            self.faults.count(Fault::BitFlip);
        }
    }

    /// Somebody reads a record: it is the one that was written, or the ledger says that it is
    /// damaged, and the process ends and recovers.
    fn audit(&mut self, replica: usize) {
        let Some(journal) = &self.replicas[replica].journal else { return };
        let index = self.disks.random.below(journal.size());
        let tenant = self.clients.tenants.first().copied();
        let read = match (journal.record(index), tenant) {
            (Ok(found), Some(tenant)) => {
                journal.by_tenant(tenant, index.checked_sub(1), 4).map(|mut records| {
                    records.extend(found);
                    records
                })
            }
            (found, _) => found.map(|found| found.into_iter().collect()),
        };
        match read {
            Ok(records) => {
                if let Some(other) = records.iter().find(|record| !self.is_known(record)) {
                    let what = format!("replica {replica} serves another record {}", other.index);
                    self.fail(8, &what);
                }
            }
            Err(error) => self.ledger_failed(replica, &error),
        }
    }

    fn is_known(&self, record: &Record) -> bool {
        let place = usize::try_from(record.index).ok();
        let written = place.and_then(|place| self.disks.history.get(place));
        let bytes = encode_record(record).ok();
        bytes.is_some_and(|bytes| written == Some(&Hash::of_leaf(&bytes)))
    }

    /// The ledger of a running replica failed. What a disk does to it ends the process; anything
    /// else is a bug.
    pub(super) fn ledger_failed(&mut self, replica: usize, error: &Error) {
        if self.is_of_the_disk(replica, error) {
            self.crash_replica(replica);
        } else {
            self.fail(8, &format!("the ledger of replica {replica} fails: {error:?}"));
        }
    }

    /// Whether the disk explains the error; counts what the disk did.
    fn is_of_the_disk(&mut self, replica: usize, error: &Error) -> bool {
        let Some(drive) = &mut self.replicas[replica].drive else { return false };
        match error {
            // Counted when it comes back.
            Error::Io { .. } if drive.disk.is_dark() => true,
            Error::Io { .. } if drive.disk.is_full() => {
                self.faults.count(Fault::DiskFull);
                let at = self.now + 10_000 + self.disks.random.below(300_000);
                self.queue.push(at, Event::Disk { replica, what: DiskStep::Mended });
                true
            }
            Error::Io { .. } => {
                drive.has_failed = true;
                self.faults.count(Fault::DiskError);
                true
            }
            Error::Damaged(_) | Error::Segment { .. } => drive.is_suspect(),
            _bug => false,
        }
    }

    /// The process is gone, and perhaps its power.
    pub(super) fn close_ledger(&mut self, replica: usize) {
        let random = &mut self.disks.random;
        let one = &mut self.replicas[replica];
        let Some(drive) = &mut one.drive else { return };
        one.journal = None;
        if random.chance(1, 2) || drive.disk.is_dark() {
            self.faults.count(Fault::PowerLoss);
            let loss = drive.disk.lose_power(&mut |below| random.below(below));
            self.faults.count_many(Fault::UnsyncedLost, loss.lost);
            self.faults.count_many(Fault::TornWrite, loss.torn);
        }
    }

    /// Opens the ledger again as a process does that starts; whether it could.
    fn open_ledger(&mut self, replica: usize) -> bool {
        let Some(drive) = &mut self.replicas[replica].drive else { return true };
        match Journal::open_or_rebuild_on(&drive.disk, cell()) {
            Ok(opened) => {
                if opened.rebuilt.is_some() {
                    self.faults.count(Fault::StoreRebuilt);
                }
                let is_explained = opened.rebuilt.is_none() || drive.is_suspect();
                let is_unseen = drive.flip.take().is_some_and(|flip| drive.disk.has(&flip));
                self.replicas[replica].journal = Some(opened.journal);
                if !is_explained {
                    self.fail(8, &format!("the store of replica {replica} is damaged by itself"));
                }
                if is_unseen {
                    self.fail(8, &format!("replica {replica} opens over a flipped bit"));
                }
                true
            }
            Err(error) => {
                self.not_opened(replica, &error);
                false
            }
        }
    }

    fn not_opened(&mut self, replica: usize, error: &Error) {
        if !self.is_of_the_disk(replica, error) {
            return self.fail(8, &format!("replica {replica} cannot open its ledger: {error:?}"));
        }
        if self.drive(replica).disk.is_dark() {
            return self.close_ledger(replica);
        }
        if let Error::Segment { file, .. } = error {
            self.bring_back(replica, file);
        }
    }

    /// An operator copies a segment from another broker.
    fn bring_back(&mut self, replica: usize, file: &Path) {
        let others = (0..self.replicas.len()).filter(|other| *other != replica);
        let drives = others.filter_map(|other| self.replicas[other].drive.as_ref());
        let copy = drives.into_iter().find_map(|drive| drive.disk.copy_out(file).ok());
        // Another one may not have sealed as far yet: the operator comes again.
        if let (Some(copy), Some(drive)) = (copy, &self.replicas[replica].drive)
            && drive.disk.copy_in(file, &copy).is_ok()
        {
            self.faults.count(Fault::SegmentRestored);
        }
    }

    /// What a process does first: it opens its ledger and restores a snapshot. Whether it could; if
    /// not, it is started again.
    pub(super) fn recover(&mut self, replica: usize) -> bool {
        if !self.open_ledger(replica) {
            return false;
        }
        let one = &mut self.replicas[replica];
        let newest = Rc::clone(&one.snapshots.1);
        // The newest may not have been stored yet when the process died.
        let is_older = one.drive.is_some() && self.disks.random.chance(1, 3);
        let snapshot = if is_older { Rc::clone(&one.snapshots.0) } else { newest };
        if is_older && snapshot.applied < one.snapshots.1.applied {
            self.faults.count(Fault::OlderSnapshot);
        }
        self.restore(replica, &snapshot)
    }

    fn restore(&mut self, replica: usize, snapshot: &Snapshot) -> bool {
        let now = self.now;
        let one = &mut self.replicas[replica];
        one.state = snapshot.state.clone();
        one.accounts = snapshot.accounts.clone();
        one.applied = snapshot.applied;
        one.clock = LedgerClock::new(now, one.rate, one.clock.wall_offset());
        let Some(journal) = &mut one.journal else { return false };
        if !journal.seals().starts_with(&snapshot.seals) {
            let what = format!("replica {replica} lacks a segment that its snapshot rests on");
            self.fail(8, &what);
            return false;
        }
        let log_index = u64::try_from(snapshot.applied).unwrap_or(u64::MAX).saturating_sub(1);
        let restored = journal.append(Cursor { log_index, term: snapshot.term }, &snapshot.tail);
        match restored {
            Ok(_) => true,
            Err(error) => {
                if !self.is_of_the_disk(replica, &error) {
                    let what = format!("replica {replica} cannot restore a snapshot: {error:?}");
                    self.fail(8, &what);
                }
                self.close_ledger(replica);
                false
            }
        }
    }

    /// The faults are over: disks work again, and who has a flipped bit finds it when it starts.
    pub(super) fn mend_disks(&mut self) {
        for replica in 0..self.replicas.len() {
            if let Some(drive) = &self.replicas[replica].drive {
                drive.disk.mend();
                if drive.flip.is_some() {
                    self.crash_replica(replica);
                }
            }
        }
    }

    /// At the end every journal is read again, and the segments are compared byte by byte (INV-8).
    pub(super) fn compare_disks(&mut self) {
        for replica in 0..self.replicas.len() {
            let one = &self.replicas[replica];
            let (Some(drive), Some(journal)) = (&one.drive, &one.journal) else { continue };
            match verify::verify(journal) {
                Ok(report) if report.is_good() => {}
                bad => {
                    let what = format!("the ledger of replica {replica} is not good: {bad:?}");
                    return self.fail(8, &what);
                }
            }
            let first = self.replicas[0].drive.as_ref();
            for seal in journal.seals() {
                let file = format!("archive/{:010}.seg", seal.number);
                let ours = drive.disk.copy_out(Path::new(&file)).ok();
                let theirs = first.and_then(|first| first.disk.copy_out(Path::new(&file)).ok());
                if ours.is_none() || ours != theirs {
                    let what = format!("{file} of replica {replica} differs from the first's");
                    return self.fail(8, &what);
                }
            }
        }
    }
}
