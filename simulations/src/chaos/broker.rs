//! One broker: the real rules, ledger and leader's logic, on a replica that crashes and comes back.
//! The shell round them is modelled: what it proposes, when it sends, what it answers.

use std::rc::Rc;

use sublet_core::leader::{Effect, Intake, Leader};
use sublet_core::past::{Past, wanted};
use sublet_core::{Applied, State, apply_knowing};
use sublet_ledger::Seal;
use sublet_ledger::accounts::Accounts;
use sublet_ledger::journal::{Cursor, Journal};
use sublet_protocol::agent::{Reply, Up, UpEnvelope};
use sublet_protocol::codec;
use sublet_protocol::commands::{Actor, Command, Outcome, Stamped};
use sublet_protocol::events::Event as Fact;
use sublet_protocol::ids::{ClusterId, NodeId};
use sublet_protocol::records::Record;
use sublet_protocol::units::{Millis, Timestamp};

use super::clock::LedgerClock;
use super::disk::Drive;
use super::fault::Fault;
use super::queue::Event;
use super::raft::Waiter;
use super::rule::Rule;
use super::world::World;

/// One in so many effects of a leader is not carried out because the process dies before it.
const CRASH_IN_EFFECTS: u64 = 4_000;
/// The leader's logic is not woken more often.
const TICK_PAUSE: u64 = 250;

/// A broker.
pub(super) struct Replica {
    pub(super) state: State,
    pub(super) accounts: Accounts,
    /// None while a process with a disk is down.
    pub(super) journal: Option<Journal>,
    pub(super) drive: Option<Drive>,
    /// Log entries that are applied.
    pub(super) applied: usize,
    /// The older and the newer one. The log reaches back to the older.
    pub(super) snapshots: (Rc<Snapshot>, Rc<Snapshot>),
    pub(super) clock: LedgerClock,
    pub(super) rate: i64,
    pub(super) is_up: bool,
    pub(super) is_isolated: bool,
    pub(super) is_apply_due: bool,
    /// It is asked to hand leadership over.
    pub(super) must_go: bool,
    pub(super) office: Option<Office>,
    wake_at: u64,
}

/// What a broker starts from.
#[derive(Default)]
pub(super) struct Snapshot {
    pub(super) state: State,
    pub(super) accounts: Accounts,
    pub(super) applied: usize,
    pub(super) term: u64,
    /// The segments that it rests on.
    pub(super) seals: Vec<Seal>,
    /// The records that no segment holds yet.
    pub(super) tail: Vec<Record>,
}

/// One term as leader.
pub(super) struct Office {
    pub(super) term: u64,
    pub(super) leader: Leader,
    first_record: u64,
    is_sweeping: bool,
    is_sealing: bool,
    pub(super) is_planning: bool,
    pub(super) is_plan_stale: bool,
}

impl Replica {
    pub(super) fn new(state: State, now: u64, (rate, wall): (i64, i64)) -> Replica {
        let snapshot = Rc::new(Snapshot { state: state.clone(), ..Snapshot::default() });
        Replica {
            state,
            accounts: Accounts::new(),
            journal: None,
            drive: None,
            applied: 0,
            snapshots: (Rc::clone(&snapshot), snapshot),
            clock: LedgerClock::new(now, rate, wall),
            rate,
            is_up: true,
            is_isolated: false,
            is_apply_due: false,
            must_go: false,
            office: None,
            wake_at: u64::MAX,
        }
    }
}

impl World {
    /// Applies what is committed and not applied, and answers `waiter` for the last entry.
    pub(super) fn apply_committed(&mut self, replica: usize, waiter: Option<Waiter>) {
        let mut waiter = waiter;
        while self.replicas[replica].is_up && self.replicas[replica].applied < self.raft.log.len() {
            let place = self.replicas[replica].applied;
            let entry = self.raft.log[place].clone();
            let Ok(stamped) = codec::decode::<Stamped>(&entry.bytes) else {
                return self.fail(12, "a command in the log cannot be read");
            };
            let Some(applied) = self.apply_one(replica, place, entry.term, &stamped) else {
                return;
            };
            let is_last = place + 1 == self.raft.log.len();
            if is_last && let Some(waiter) = waiter.take() {
                self.on_applied(replica, waiter, &applied);
            } else {
                let effects = self.tell_leader(replica, &applied);
                self.carry_out_leader(replica, effects);
            }
        }
        self.plan_leader_wake(replica);
    }

    fn apply_one(
        &mut self,
        replica: usize,
        place: usize,
        term: u64,
        stamped: &Stamped,
    ) -> Option<Applied> {
        let one = &mut self.replicas[replica];
        let mut past = Past::default();
        for lease in wanted(&one.state, &stamped.command) {
            let found = one.journal.as_ref().map(|journal| journal.by_lease(lease));
            let mut found = match found {
                Some(Ok(found)) => found,
                Some(Err(error)) => {
                    self.ledger_failed(replica, &error);
                    return None;
                }
                None => return None,
            };
            found.retain(|record| record.index < one.state.next_index());
            past.add(lease, &found);
        }
        let applied = apply_knowing(&mut one.state, stamped, term, &past);
        let cursor = Cursor { log_index: u64::try_from(place).unwrap_or(u64::MAX), term };
        let seal = applied.records.iter().rev().find(|record| is_seal(record));
        let written = one.journal.as_mut().map(|journal| {
            let appended = journal.append(cursor, &applied.records)?;
            // The record of the seal is the first of the next segment.
            if let Some(seal) = seal {
                journal.seal(seal.index.saturating_sub(1))?;
            }
            Ok(appended.leaves)
        });
        let leaves = match written {
            Some(Ok(leaves)) => leaves,
            Some(Err(error)) => {
                self.ledger_failed(replica, &error);
                return None;
            }
            None => return None,
        };
        let posted = applied.records.iter().try_for_each(|record| one.accounts.post(record));
        one.applied = place + 1;
        if let Err(error) = posted {
            self.fail(4, &format!("entry {place} cannot be posted: {error}"));
            return None;
        }
        if seal.is_some() && !self.take_snapshot(replica, term) {
            return None;
        }
        if place == self.checker.entries() {
            self.disks.note(&leaves);
            let (now, random) = (self.now, self.random.chance(1, self.check_every));
            self.log_entry(replica, stamped, &applied.records);
            let state = &self.replicas[replica].state;
            self.checker.entry(now, stamped, &applied, state, random);
            self.watch_promises(&applied);
        }
        Some(applied)
    }

    /// Takes one behind the last seal; whether its records could be read.
    fn take_snapshot(&mut self, replica: usize, term: u64) -> bool {
        let one = &mut self.replicas[replica];
        let Some(journal) = &one.journal else { return false };
        let sealed = journal.last_seal().map_or(0, Seal::end);
        match journal.range(sealed, usize::MAX) {
            Ok(tail) => {
                let newest = Rc::new(Snapshot {
                    state: one.state.clone(),
                    accounts: one.accounts.clone(),
                    applied: one.applied,
                    term,
                    seals: journal.seals().to_vec(),
                    tail,
                });
                let older = std::mem::replace(&mut one.snapshots.1, newest);
                one.snapshots.0 = older;
                true
            }
            Err(error) => {
                self.ledger_failed(replica, &error);
                false
            }
        }
    }

    /// An entry was committed in this leader's own term: the leader's logic and who waits hear it.
    fn on_applied(&mut self, replica: usize, waiter: Waiter, applied: &Applied) {
        let mut effects = self.tell_leader(replica, applied);
        match waiter {
            Waiter::Agent(message) => {
                let (reply, more) = self.answer(replica, &message, &applied.outcome);
                effects.extend(more);
                self.carry_out_leader(replica, effects);
                if let Some(agent) = self.agent_at(message.cluster, message.node) {
                    self.reply(replica, agent, (message.boot.get(), message.sequence), &reply);
                }
                return;
            }
            Waiter::Client(operation) => self.answer_client(operation, &applied.outcome),
            Waiter::Leader(name) => self.is_settled(replica, name),
            Waiter::Nobody => {}
        }
        self.carry_out_leader(replica, effects);
    }

    fn answer(
        &mut self,
        replica: usize,
        message: &UpEnvelope,
        outcome: &Outcome,
    ) -> (Reply, Vec<Effect>) {
        let one = &mut self.replicas[replica];
        let now = one.clock.now(self.now);
        match &mut one.office {
            Some(office) => office.leader.after_commit(&one.state, now, message, outcome),
            None => (Reply::Later, Vec::new()),
        }
    }

    fn tell_leader(&mut self, replica: usize, applied: &Applied) -> Vec<Effect> {
        let one = &mut self.replicas[replica];
        let now = one.clock.now(self.now);
        let Some(office) = &mut one.office else { return Vec::new() };
        let is_new = applied.records.first().is_some_and(|r| r.index >= office.first_record);
        if !is_new {
            return Vec::new();
        }
        for record in &applied.records {
            if let Fact::NodeRegistered { cluster, node, .. } = &record.event {
                self.checker.leader_hears(self.now, replica, (*cluster, *node));
            }
        }
        office.leader.on_records(&one.state, now, &applied.records)
    }

    fn is_settled(&mut self, replica: usize, name: &'static str) {
        let Some(office) = &mut self.replicas[replica].office else { return };
        match name {
            "sweep" => office.is_sweeping = false,
            "seal_tail" => office.is_sealing = false,
            "commit_plan" => {
                office.is_planning = false;
                if std::mem::take(&mut office.is_plan_stale) {
                    self.make_plan(replica);
                }
            }
            _other => {}
        }
    }

    /// The winner of a term has its read barrier: it knows all that was committed (LR3).
    pub(super) fn on_office(&mut self, replica: usize, term: u64) {
        if self.raft.leader != Some(replica) || self.raft.term != term {
            return;
        }
        if self.replicas[replica].is_up {
            self.apply_committed(replica, None);
        }
        // Its disk may just have failed it.
        if !self.replicas[replica].is_up {
            return;
        }
        let is_bare = self.is_without(Rule::Lr3Heard);
        let now = self.now;
        let one = &mut self.replicas[replica];
        one.clock.not_before(now, one.state.now());
        let stamp = one.clock.now(now);
        // LR3 taken out: every agent counts as last heard when it could be silent for W already.
        let heard =
            if is_bare { before(stamp, one.state.policy().silence().as_millis()) } else { stamp };
        self.checker.takes_office(now, replica);
        let (leader, effects) = Leader::new(term, &one.state, heard);
        one.office = Some(Office {
            term,
            leader,
            first_record: one.state.next_index(),
            is_sweeping: false,
            is_sealing: false,
            is_planning: false,
            is_plan_stale: false,
        });
        self.carry_out_leader(replica, effects);
        if !self.is_calm && self.random.chance(1, 3) {
            self.append_late(replica, term);
        }
        self.plan_leader_wake(replica);
    }

    /// A message of an agent reaches a broker.
    pub(super) fn on_up(&mut self, bytes: &[u8]) {
        let Ok(message) = codec::decode::<UpEnvelope>(bytes) else {
            return self.fail(12, "a message of an agent cannot be read");
        };
        let agent = self.agent_at(message.cluster, message.node);
        for replica in 0..self.replicas.len() {
            let is_cut = agent.is_some_and(|one| self.agents[one].wires.cut_brokers[replica]);
            let is_in_office = self.replicas[replica].office.is_some();
            if self.replicas[replica].is_up && is_in_office && !is_cut {
                self.hear(replica, &message);
            }
        }
    }

    fn hear(&mut self, replica: usize, message: &UpEnvelope) {
        let one = &mut self.replicas[replica];
        let now = one.clock.now(self.now);
        let Some(office) = &mut one.office else { return };
        let term = office.term;
        let intake = office.leader.on_up(&one.state, now, message);
        let node = (message.cluster, message.node);
        let is_newest = one
            .state
            .nodes()
            .get(&node)
            .is_some_and(|known| (known.boot(), known.host()) == (message.boot, message.host));
        // A hello counts when it is registered: one that comes again says nothing of now.
        if is_newest && !matches!(message.body, Up::Hello) {
            self.checker.leader_hears(self.now, replica, node);
        }
        let agent = self.agent_at(message.cluster, message.node);
        let of = (message.boot.get(), message.sequence);
        match intake {
            Intake::Propose(command) => {
                let actor = Actor::Agent { cluster: message.cluster, node: message.node };
                let waiter = Waiter::Agent(Box::new(message.clone()));
                self.propose(replica, term, (actor, None), command, waiter);
            }
            Intake::Barrier if self.is_without(Rule::Lr4Barrier) => {
                self.after_barrier(replica, message);
            }
            Intake::Barrier => {
                let at = self.now + 1 + self.random.below(40);
                let message = Box::new(message.clone());
                self.queue.push(at, Event::Barrier { replica, term, message });
            }
            Intake::Answer(reply, effects) => {
                self.carry_out_leader(replica, effects);
                if let Some(agent) = agent {
                    if self.is_deposed(replica) {
                        self.faults.count(Fault::DeposedSpoke);
                    }
                    self.reply(replica, agent, of, &reply);
                }
            }
            Intake::Output | Intake::Clock => {
                if let Some(agent) = agent {
                    self.reply(replica, agent, of, &Reply::Done);
                }
            }
        }
        self.plan_leader_wake(replica);
    }

    /// LR4: a renewal is answered only by who had its quorum after it came.
    pub(super) fn on_barrier(&mut self, replica: usize, term: u64, message: &UpEnvelope) {
        let holds = self.replicas[replica].office.as_ref().is_some_and(|o| o.term == term);
        if holds && self.leads(replica, term) {
            self.after_barrier(replica, message);
        }
    }

    fn after_barrier(&mut self, replica: usize, message: &UpEnvelope) {
        let one = &mut self.replicas[replica];
        let now = one.clock.now(self.now);
        let Some(office) = &mut one.office else { return };
        let effects = office.leader.after_barrier(&one.state, now, message);
        self.carry_out_leader(replica, effects);
        if let Some(agent) = self.agent_at(message.cluster, message.node) {
            self.reply(replica, agent, (message.boot.get(), message.sequence), &Reply::Done);
        }
    }

    pub(super) fn plan_leader_wake(&mut self, replica: usize) {
        let now = self.now;
        let one = &mut self.replicas[replica];
        let Some(office) = &one.office else { return };
        let stamp = one.clock.now(now);
        let wake = office.leader.next_wake(&one.state, stamp);
        let at = one.clock.when(now, wake).max(now + TICK_PAUSE);
        if at < one.wake_at || one.wake_at <= now {
            one.wake_at = at;
            self.queue.push(at, Event::LeaderWake { replica });
        }
    }

    pub(super) fn on_leader_wake(&mut self, replica: usize) {
        if self.replicas[replica].wake_at != self.now {
            return;
        }
        let one = &mut self.replicas[replica];
        one.wake_at = u64::MAX;
        let now = one.clock.now(self.now);
        let Some(office) = &mut one.office else { return };
        let effects = office.leader.tick(&one.state, now);
        self.checker.bounds_of_leader(office.leader.backlog(), &one.state);
        self.carry_out_leader(replica, effects);
        self.plan_leader_wake(replica);
    }

    fn carry_out_leader(&mut self, replica: usize, effects: Vec<Effect>) {
        for effect in effects {
            let Some(office) = &mut self.replicas[replica].office else { return };
            let term = office.term;
            if self.profile.has_crashes && !self.is_calm && self.random.chance(1, CRASH_IN_EFFECTS)
            {
                self.faults.count(Fault::BrokerCrashInEffects);
                return self.crash_replica(replica);
            }
            match effect {
                Effect::Send { to, message } => {
                    if let Some(agent) = self.agent_at(to.0, to.1) {
                        self.send_down(replica, agent, term, message);
                    }
                }
                Effect::Plan => self.make_plan(replica),
                Effect::Propose(command) => self.lead(replica, term, command),
            }
        }
    }

    /// Proposes as the leader. What is due stays due until it is committed and is not proposed
    /// twice meanwhile.
    pub(super) fn lead(&mut self, replica: usize, term: u64, command: Command) {
        if let Command::DeclareSilent { cluster, node, .. } = &command {
            let state = &self.replicas[replica].state;
            self.checker.leader_says_silent(self.now, replica, state, (*cluster, *node));
        }
        let Some(office) = &mut self.replicas[replica].office else { return };
        let is_in_flight = match &command {
            Command::Sweep => std::mem::replace(&mut office.is_sweeping, true),
            Command::SealTail => std::mem::replace(&mut office.is_sealing, true),
            _other => false,
        };
        if !is_in_flight {
            let waiter = Waiter::Leader(command.name());
            self.propose(replica, term, (Actor::Leader, None), command, waiter);
        }
    }

    pub(super) fn on_deposed(&mut self, replica: usize, term: u64) {
        let one = &mut self.replicas[replica];
        if one.office.as_ref().is_some_and(|office| office.term == term) {
            one.office = None;
        }
    }

    /// The process dies: what is not in log, snapshot and journal is gone.
    pub(super) fn crash_replica(&mut self, replica: usize) {
        if !self.replicas[replica].is_up {
            return;
        }
        self.faults.count(Fault::BrokerCrash);
        let one = &mut self.replicas[replica];
        one.must_go = self.raft.leader == Some(replica);
        one.is_up = false;
        one.office = None;
        one.is_apply_due = false;
        self.close_ledger(replica);
        let back = self.now + 500 + self.random.below(if self.is_calm { 500 } else { 40_000 });
        self.queue.push(back, Event::ReplicaStart { replica });
        self.call_election();
    }

    /// It opens its ledger, restores a snapshot and replays the log; the journal skips what it has,
    /// if it is equal.
    pub(super) fn start_replica(&mut self, replica: usize) {
        if self.replicas[replica].is_up {
            return;
        }
        self.replicas[replica].is_isolated = false;
        if !self.recover(replica) {
            let at = self.now + 500 + self.disks.pause();
            return self.queue.push(at, Event::ReplicaStart { replica });
        }
        self.replicas[replica].is_up = true;
        self.apply_committed(replica, None);
        let now = self.now;
        let one = &mut self.replicas[replica];
        one.clock.not_before(now, one.state.now());
        self.call_election();
    }

    pub(super) fn agent_at(&self, cluster: ClusterId, node: NodeId) -> Option<usize> {
        self.agents.iter().position(|agent| (agent.cluster, agent.node) == (cluster, node))
    }
}

fn is_seal(record: &Record) -> bool {
    matches!(record.event, Fact::TailSealed { .. })
}

fn before(at: Timestamp, span: Millis) -> Timestamp {
    Timestamp::new(at.get().saturating_sub(span.get()))
}
