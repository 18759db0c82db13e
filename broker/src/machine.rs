//! The cell's state machine: decode, apply the rules, journal, check, tell.
//!
//! The log calls it with one entry after the other. The state is behind a lock that readers hold
//! only for a moment; a reader that sees a state finds all its records in the journal. An error
//! here stops the process: storage failed or this replica diverged.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Instant;

use sublet_core::past::{self, Past};
use sublet_core::{State, invariants};
use sublet_ledger::accounts::Accounts;
use sublet_ledger::journal::{Cursor, Journal};
use sublet_protocol::codec::{self, decode_record, encode_record};
use sublet_protocol::commands::{Command, Outcome, Stamped};
use sublet_protocol::events::Event;
use sublet_protocol::ids::{CellId, CommandId, TenantId};
use sublet_protocol::names::DisplayName;
use sublet_protocol::records::Record;

use crate::config::Checks;
use crate::counters::{Counters, Tally};
use crate::error::Error;
use crate::feed::Feed;
use crate::metrics;
use crate::raft::{Applied, LogPosition, Machine, MachineError, Piece};
use crate::roots::Roots;
use crate::snapshot::{SegmentRef, Snapshot};
use crate::stuck::Busy;

/// Texts of violations that are kept for display.
const VIOLATIONS_KEPT: usize = 16;

/// Why the machine stops the process.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The log holds a command that this program cannot read.
    #[error("a command in the log cannot be read")]
    Command(#[source] codec::Error),
    /// An answer, record or snapshot has no bytes.
    #[error("what was decided cannot be written")]
    Unwritable(#[source] codec::Error),
    /// A snapshot cannot be read.
    #[error("a snapshot cannot be read")]
    Snapshot(#[source] codec::Error),
    /// The snapshot is of another cell.
    #[error("the snapshot belongs to another cell")]
    OtherCell,
    /// The archive is not the one the snapshot was taken over.
    #[error("the archive lacks segment {number} as the snapshot knows it")]
    Segment {
        /// The segment's number.
        number: u32,
    },
    /// A segment of another replica is not what it was said to be.
    #[error("segment {number} of another replica is not the one that was named")]
    Piece {
        /// The segment's number.
        number: u64,
    },
    /// Another replica has another segment of this number.
    #[error("another replica has another segment {number}: one of the two has diverged")]
    Diverged {
        /// The segment's number.
        number: u64,
    },
    /// The cell was raised above what this program can do.
    #[error("the cell is at feature level {cell}, this program can do {ours}: start a newer one")]
    Level {
        /// The cell's level.
        cell: u16,
        /// Ours.
        ours: u16,
    },
    /// The ledger failed.
    #[error("the ledger failed")]
    Ledger(#[source] sublet_ledger::Error),
    /// The journal was closed.
    #[error("the cell has been shut down")]
    Closed,
}

impl From<Failure> for MachineError {
    fn from(failure: Failure) -> Self {
        MachineError::new(failure)
    }
}

/// State, journal and feed of one replica.
pub(crate) struct CellMachine {
    cell: CellId,
    checks: Checks,
    snapshot_records: u64,
    /// The highest feature level that this program can do.
    level: u16,
    replica: RwLock<Replica>,
    /// None once the cell was shut down.
    pub(crate) journal: RwLock<Option<Journal>>,
    /// What other brokers are told and asked about, apart from the state that commands hold up.
    belonging: Mutex<Belonging>,
    feed: Feed,
    /// Since when an entry is being applied.
    pub(crate) busy: Busy,
    /// Whether the log has been replayed: only then commands are counted.
    is_live: AtomicBool,
    /// Whether the next seal must yield a snapshot.
    wants_snapshot: AtomicBool,
}

/// Of which cell this is, and who ever belonged to it.
#[derive(Default)]
struct Belonging {
    origin: Option<CommandId>,
    brokers: BTreeSet<u64>,
}

#[derive(Default)]
struct Replica {
    state: State,
    /// The fold of the journalled bytes, if it is checked (INV-12).
    shadow: Option<State>,
    accounts: Accounts,
    /// What tenants are called. Not of the state: it can be erased.
    names: BTreeMap<TenantId, DisplayName>,
    tally: Tally,
    violations: VecDeque<String>,
    /// The size of the journal at the last snapshot.
    snapshot_at: u64,
    /// Size and root of the journal after some of the last entries, to compare with other replicas.
    roots: Roots,
    /// Commands until the next check.
    unchecked: u32,
}

impl CellMachine {
    pub(crate) fn new(
        cell: CellId,
        journal: Journal,
        checks: Checks,
        snapshot_records: u64,
    ) -> Self {
        let shadow = (checks == Checks::Always).then(State::default);
        Self {
            cell,
            checks,
            snapshot_records,
            level: sublet_core::FEATURE_LEVEL,
            replica: RwLock::new(Replica { shadow, ..Replica::default() }),
            journal: RwLock::new(Some(journal)),
            belonging: Mutex::default(),
            feed: Feed::new(),
            busy: Busy::default(),
            is_live: AtomicBool::new(false),
            wants_snapshot: AtomicBool::new(false),
        }
    }

    /// As a program that can do this feature level.
    #[must_use]
    pub(crate) fn able(self, level: u16) -> Self {
        Self { level, ..self }
    }

    /// The highest feature level that this program can do.
    pub(crate) const fn level(&self) -> u16 {
        self.level
    }

    /// Whatever such a cell decides, this program may decide otherwise.
    fn can(&self, state: &State) -> Result<(), Failure> {
        let (cell, ours) = (state.feature_level(), self.level);
        if cell > ours { Err(Failure::Level { cell, ours }) } else { Ok(()) }
    }

    fn belonging(&self) -> MutexGuard<'_, Belonging> {
        self.belonging.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what the state says of the cell and its brokers.
    fn belong(&self, state: &State) {
        let mut known = self.belonging();
        known.origin = state.origin().or(known.origin);
        if known.brokers.len() != state.brokers().len() {
            known.brokers.clone_from(state.brokers());
        }
    }

    /// A broker of several has its state back only when it hears from a leader; until then its
    /// ledger says of which cell it is. A restored cell has a snapshot, and so its state.
    pub(crate) fn belong_by_ledger(&self) -> Result<(), sublet_ledger::Error> {
        let first = self.journal(|journal| journal.record(0)).transpose()?.flatten();
        let mut known = self.belonging();
        known.origin = known.origin.or(first.map(|record| record.cause));
        Ok(())
    }

    fn replica(&self) -> RwLockReadGuard<'_, Replica> {
        self.replica.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn replica_mut(&self) -> RwLockWriteGuard<'_, Replica> {
        self.replica.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the state. Commands wait meanwhile: be short.
    pub(crate) fn read<R>(&self, read: impl FnOnce(&State) -> R) -> R {
        read(&self.replica().state)
    }

    /// Reads the state and the books of the same moment. Commands wait meanwhile: be short.
    pub(crate) fn read_booked<R>(&self, read: impl FnOnce(&State, &Accounts) -> R) -> R {
        let replica = self.replica();
        read(&replica.state, &replica.accounts)
    }

    /// Reads the journal; nothing once the cell was shut down. Appends wait meanwhile.
    pub(crate) fn journal<R>(&self, read: impl FnOnce(&Journal) -> R) -> Option<R> {
        self.journal.read().unwrap_or_else(PoisonError::into_inner).as_ref().map(read)
    }

    /// The newest records.
    pub(crate) const fn feed(&self) -> &Feed {
        &self.feed
    }

    /// At most `limit` records from `from` on.
    pub(crate) fn records(&self, from: u64, limit: usize) -> Result<Vec<Arc<Record>>, Error> {
        if let Some(recent) = self.feed.recent(from, limit) {
            return Ok(recent);
        }
        let records = self.journal(|journal| journal.range(from, limit)).ok_or(Error::Stopped)?;
        Ok(records.map_err(Error::Ledger)?.into_iter().map(Arc::new).collect())
    }

    pub(crate) fn counters(&self) -> Counters {
        self.replica().tally.counters.clone()
    }

    pub(crate) fn violations(&self) -> Vec<String> {
        self.replica().violations.iter().cloned().collect()
    }

    /// What a tenant is called.
    pub(crate) fn name_of(&self, tenant: TenantId) -> Option<DisplayName> {
        self.replica().names.get(&tenant).cloned()
    }

    pub(crate) fn accounts(&self) -> Accounts {
        self.replica().accounts.clone()
    }

    /// The log has been replayed: from now on commands are counted, and checked one by one. What
    /// was replayed was checked when it was new; here, once more, as a whole.
    pub(crate) fn go_live(&self) {
        let mut replica = self.replica_mut();
        let Replica { state, tally, .. } = &mut *replica;
        tally.resume(state);
        metrics::state_is(state);
        self.is_live.store(true, Ordering::SeqCst);
        if self.checks != Checks::OneIn(0) {
            for violation in invariants::check(&replica.state) {
                replica.violated(violation.invariant, &violation.what);
            }
            replica.compare();
        }
    }

    /// The next seal yields a snapshot.
    pub(crate) fn want_snapshot(&self) {
        self.wants_snapshot.store(true, Ordering::SeqCst);
    }

    /// Ends the feed, brings the journal to the disk and lets go of it.
    pub(crate) fn close(&self) -> Result<(), sublet_ledger::Error> {
        self.feed.close();
        let journal = self.journal.write().unwrap_or_else(PoisonError::into_inner).take();
        journal.map_or(Ok(()), |mut journal| journal.sync())
    }

    fn apply_entry(&self, at: LogPosition, commands: &[Vec<u8>]) -> Result<Applied, Failure> {
        let started = Instant::now();
        let _busy = self.busy.enter();
        let is_live = self.is_live.load(Ordering::Relaxed);
        let mut replica = self.replica_mut();
        let (mut replies, mut records) = (Vec::with_capacity(commands.len()), Vec::new());
        for bytes in commands {
            let stamped: Stamped = codec::decode(bytes).map_err(Failure::Command)?;
            let past = self.past(&replica.state, &stamped.command, &records)?;
            let applied = sublet_core::apply_knowing(&mut replica.state, &stamped, at.term, &past);
            self.count(&mut replica, &stamped, &applied.outcome, &applied.records);
            replica.name(&stamped.command, &applied.outcome);
            replies.push(codec::encode(&applied.outcome).map_err(Failure::Unwritable)?);
            records.extend(applied.records);
            self.can(&replica.state)?;
            if is_live {
                self.check(&mut replica);
            }
        }
        let seal = records.iter().rev().find(|record| is_seal(record)).map(|record| record.index);
        let sealed = {
            let mut journal = self.journal.write().unwrap_or_else(PoisonError::into_inner);
            let journal = journal.as_mut().ok_or(Failure::Closed)?;
            let cursor = Cursor { log_index: at.index, term: at.term };
            journal.append(cursor, &records).map_err(Failure::Ledger)?;
            replica.post(&records)?;
            if is_live && !records.is_empty() {
                replica.compare();
            }
            let size = replica.state.next_index();
            replica.roots.note(at.index, size, journal).map_err(Failure::Ledger)?;
            match seal {
                // The record of the seal is the first of the next segment.
                Some(index) => self.seal(&mut replica, journal, index.saturating_sub(1))?,
                None => None,
            }
        };
        self.belong(&replica.state);
        let next = replica.state.next_index();
        if is_live {
            metrics::entry_applied(started.elapsed(), records.len());
            metrics::state_is(&replica.state);
        }
        drop(replica);
        self.feed.publish(records, next);
        Ok(Applied { replies, sealed })
    }

    /// What the journal says of the leases that a command wants to know of, up to the state's last
    /// record: of this entry's own `records` some may be there already, when the log is replayed.
    fn past(&self, state: &State, command: &Command, records: &[Record]) -> Result<Past, Failure> {
        let (mut past, wanted) = (Past::default(), past::wanted(state, command));
        if wanted.is_empty() {
            return Ok(past);
        }
        let end = records.first().map_or(state.next_index(), |record| record.index);
        for lease in wanted {
            let found = self.journal(|journal| journal.by_lease(lease)).ok_or(Failure::Closed)?;
            let mut found = found.map_err(Failure::Ledger)?;
            found.retain(|record| record.index < end);
            let of_lease = records.iter().filter(|record| record.event.lease() == Some(lease));
            found.extend(of_lease.cloned());
            past.add(lease, &found);
        }
        Ok(past)
    }

    fn count(
        &self,
        replica: &mut Replica,
        stamped: &Stamped,
        outcome: &Outcome,
        records: &[Record],
    ) {
        if !self.is_live.load(Ordering::Relaxed) {
            return;
        }
        metrics::command_applied(&stamped.command, outcome);
        tracing::debug!(
            command = stamped.command.name(), id = %stamped.id, records = records.len(), "applied"
        );
        replica.tally.command(outcome);
        for record in records {
            replica.tally.record(record);
            match &record.event {
                Event::LeaseGranted { .. } => metrics::lease_granted(),
                Event::LeaseEnded { reason, .. } => metrics::lease_ended(*reason),
                _other => {}
            }
        }
    }

    /// Checks the invariants of the state, after every command or a sample of them.
    fn check(&self, replica: &mut Replica) {
        let is_due = match self.checks {
            Checks::Always => true,
            Checks::OneIn(0) => false,
            Checks::OneIn(every) => {
                replica.unchecked += 1;
                replica.unchecked >= every
            }
        };
        if !is_due {
            return;
        }
        replica.unchecked = 0;
        metrics::invariants_checked();
        replica.tally.counters.invariants_checked += 1;
        for violation in invariants::check(&replica.state) {
            replica.violated(violation.invariant, &violation.what);
        }
    }

    /// Seals the records up to and with `upto`. A snapshot is due when the journal has grown by
    /// enough since the last one, or is wanted. Encoding it holds up commands: about a second for
    /// each 300 MiB, that is a million requests.
    fn seal(
        &self,
        replica: &mut Replica,
        journal: &mut Journal,
        upto: u64,
    ) -> Result<Option<Vec<u8>>, Failure> {
        journal.seal(upto).map_err(Failure::Ledger)?;
        let grown = upto.saturating_sub(replica.snapshot_at);
        if !self.wants_snapshot.swap(false, Ordering::SeqCst) && grown < self.snapshot_records {
            return Ok(None);
        }
        let tail = journal.range(upto.saturating_add(1), usize::MAX).map_err(Failure::Ledger)?;
        let segments = journal.seals().iter().map(SegmentRef::from).collect();
        // Moved in and out again: a copy of the state would double the memory.
        let state = std::mem::take(&mut replica.state);
        let accounts = std::mem::take(&mut replica.accounts);
        let names = std::mem::take(&mut replica.names);
        let snapshot = Snapshot { state, accounts, segments, tail, names };
        let bytes = codec::encode(&snapshot);
        replica.state = snapshot.state;
        replica.accounts = snapshot.accounts;
        replica.names = snapshot.names;
        replica.snapshot_at = upto;
        bytes.map(Some).map_err(Failure::Unwritable)
    }

    fn restore_from(&self, at: LogPosition, bytes: &[u8]) -> Result<(), Failure> {
        let snapshot: Snapshot = codec::decode(bytes).map_err(Failure::Snapshot)?;
        if snapshot.state.cell().is_none_or(|(cell, _)| cell != self.cell) {
            return Err(Failure::OtherCell);
        }
        self.can(&snapshot.state)?;
        // The state's lock before the journal's, as everywhere: a planner that still runs has both.
        let mut replica = self.replica_mut();
        let mut journal = self.journal.write().unwrap_or_else(PoisonError::into_inner);
        let journal = journal.as_mut().ok_or(Failure::Closed)?;
        let have: Vec<SegmentRef> = journal.seals().iter().map(SegmentRef::from).collect();
        let lacks = |(place, wanted): (usize, &SegmentRef)| have.get(place) != Some(wanted);
        let missing = snapshot.segments.iter().enumerate().find(|entry| lacks(*entry));
        if let Some((_, SegmentRef { number, .. })) = missing {
            return Err(Failure::Segment { number: *number });
        }
        let cursor = Cursor { log_index: at.index, term: at.term };
        journal.append(cursor, &snapshot.tail).map_err(Failure::Ledger)?;

        let next = snapshot.state.next_index();
        replica.shadow = (self.checks == Checks::Always).then(|| snapshot.state.clone());
        replica.state = snapshot.state;
        replica.accounts = snapshot.accounts;
        replica.names = snapshot.names;
        replica.snapshot_at = next;
        let Replica { state, tally, .. } = &mut *replica;
        tally.resume(state);
        self.belong(state);
        drop(replica);
        self.feed.reset(next);
        Ok(())
    }
}

impl CellMachine {
    /// Size and root of the journal after the entry at `entry`, if it is one of those that are
    /// compared and not long ago.
    pub(crate) fn root_after(&self, entry: u64) -> Option<(u64, [u8; 32])> {
        self.replica().roots.after(entry)
    }

    /// Notes a root as if it were that after the entry at `entry`.
    #[cfg(test)]
    pub(crate) fn plant_root(&self, entry: u64, root: (u64, [u8; 32])) {
        self.replica_mut().roots.plant(entry, root);
    }

    /// The newest entry whose root is known.
    pub(crate) fn last_root(&self) -> Option<(u64, (u64, [u8; 32]))> {
        self.replica().roots.last()
    }
}

impl Machine for CellMachine {
    fn apply(&self, at: LogPosition, commands: &[Vec<u8>]) -> Result<Applied, MachineError> {
        Ok(self.apply_entry(at, commands)?)
    }

    fn restore(&self, at: LogPosition, snapshot: &[u8]) -> Result<(), MachineError> {
        Ok(self.restore_from(at, snapshot)?)
    }

    fn origin(&self) -> Option<u128> {
        self.belonging().origin.map(CommandId::get)
    }

    fn has_enlisted(&self, node: u64) -> bool {
        self.belonging().brokers.contains(&node)
    }

    fn pieces(&self) -> Vec<Piece> {
        self.segments()
    }

    fn lacks(&self, pieces: &[Piece]) -> Result<Vec<u64>, MachineError> {
        Ok(self.lacking(pieces)?)
    }

    fn piece(&self, number: u64) -> Result<Vec<u8>, MachineError> {
        Ok(self.segment(number)?)
    }

    fn keep(&self, piece: Piece, bytes: &[u8]) -> Result<(), MachineError> {
        Ok(self.keep_segment(piece, bytes)?)
    }
}

impl Replica {
    /// Posts journalled records to the books (INV-4) and folds their bytes into the second state.
    fn post(&mut self, records: &[Record]) -> Result<(), Failure> {
        for record in records {
            if let Err(error) = self.accounts.post(record) {
                self.violated(4, &format!("record {}: {error}", record.index));
            }
        }
        let Some(shadow) = &mut self.shadow else { return Ok(()) };
        for record in records {
            let bytes = encode_record(record).map_err(Failure::Unwritable)?;
            let read = decode_record(&bytes).map_err(Failure::Unwritable)?;
            sublet_core::fold(shadow, &read);
        }
        Ok(())
    }

    /// Keeps what a tenant is called, or forgets it.
    fn name(&mut self, command: &Command, outcome: &Outcome) {
        let (Command::NameTenant { tenant, name }, Outcome::Done { .. }) = (command, outcome)
        else {
            return;
        };
        match name {
            Some(name) => self.names.insert(*tenant, name.clone()),
            None => self.names.remove(tenant),
        };
    }

    /// Checks that the state is the fold of what was journalled (INV-12), if that is kept.
    fn compare(&mut self) {
        if self.shadow.as_ref().is_some_and(|shadow| *shadow != self.state) {
            let index = self.state.next_index();
            self.violated(12, &format!("the state is not the fold of the first {index} records"));
        }
    }

    fn violated(&mut self, invariant: u8, what: &str) {
        tracing::error!(invariant, what, "invariant violated");
        metrics::invariant_violated(invariant);
        self.tally.counters.invariant_violations += 1;
        self.violations.truncate(VIOLATIONS_KEPT - 1);
        self.violations.push_front(format!("INV-{invariant}: {what}"));
    }
}

fn is_seal(record: &Record) -> bool {
    matches!(record.event, Event::TailSealed { .. })
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
