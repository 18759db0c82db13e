//! A model of the replicated log: one leader per term, entries committed in order after a delay,
//! leaders that do not know yet that they are deposed, and proposals whose fate is open when their
//! leader goes: some are lost with it, some are committed by its successor.
//!
//! Real consensus is checked elsewhere; here its guarantees and everything it does not guarantee
//! are given to the rules.

use std::collections::BTreeMap;
use std::rc::Rc;

use sublet_protocol::agent::UpEnvelope;
use sublet_protocol::codec;
use sublet_protocol::commands::{Actor, Command, IdempotencyKey, Stamped};
use sublet_protocol::ids::CommandId;
use sublet_protocol::units::Timestamp;

use super::fault::Fault;
use super::queue::Event;
use super::world::World;

/// A committed entry.
#[derive(Debug, Clone)]
pub(super) struct LogEntry {
    pub(super) term: u64,
    pub(super) bytes: Rc<[u8]>,
}

/// Who waits for a proposal.
#[derive(Debug, Clone)]
pub(super) enum Waiter {
    /// An agent's message.
    Agent(Box<UpEnvelope>),
    /// A client's operation.
    Client(u64),
    /// The leader itself.
    Leader(&'static str),
    /// Nobody.
    Nobody,
}

/// A proposal whose fate is open.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) replica: usize,
    pub(super) term: u64,
    pub(super) bytes: Rc<[u8]>,
    pub(super) waiter: Waiter,
}

/// The log and who leads.
#[derive(Debug, Default)]
pub(super) struct Raft {
    pub(super) log: Vec<LogEntry>,
    pub(super) term: u64,
    pub(super) leader: Option<usize>,
    pub(super) pending: BTreeMap<u64, Pending>,
    next: u64,
    commands: u128,
    last_commit_at: u64,
    election_is_due: bool,
}

impl World {
    /// Whether two of three can agree with `replica` now.
    pub(super) fn has_quorum(&self, replica: usize) -> bool {
        let joined = |one: &&super::broker::Replica| one.is_up && !one.is_isolated;
        let me = self.replicas.get(replica).filter(joined);
        me.is_some() && self.replicas.iter().filter(joined).count() * 2 > self.replicas.len()
    }

    /// Whether `replica` leads in `term` and can prove it now.
    pub(super) fn leads(&self, replica: usize, term: u64) -> bool {
        self.raft.leader == Some(replica) && self.raft.term == term && self.has_quorum(replica)
    }

    /// Whether it believes to lead but does not.
    pub(super) fn is_deposed(&self, replica: usize) -> bool {
        let office = self.replicas[replica].office.as_ref();
        office.is_some_and(|o| self.raft.leader != Some(replica) || o.term != self.raft.term)
    }

    /// Puts a command into a leader's log; whether it is ever committed shows later.
    pub(super) fn propose(
        &mut self,
        replica: usize,
        term: u64,
        (actor, key): (Actor, Option<IdempotencyKey>),
        command: Command,
        waiter: Waiter,
    ) {
        let now = self.replicas[replica].clock.now(self.now);
        self.raft.commands += 1;
        let id = CommandId::new(self.raft.commands);
        let stamped = Stamped { id, actor, now, term, key, command };
        match codec::encode(&stamped) {
            Ok(bytes) => self.enqueue(Pending { replica, term, bytes: bytes.into(), waiter }),
            Err(_) => self.fail(12, "a command has no bytes"),
        }
    }

    fn enqueue(&mut self, pending: Pending) {
        let id = self.raft.next;
        self.raft.next += 1;
        self.raft.pending.insert(id, pending);
        let delay = if self.is_calm { 2 } else { 1 + self.random.below(25) };
        let at = (self.now + delay).max(self.raft.last_commit_at);
        self.raft.last_commit_at = at;
        self.queue.push(at, Event::Commit { id });
    }

    pub(super) fn on_commit(&mut self, id: u64) {
        let Some(pending) = self.raft.pending.get(&id) else { return };
        let (replica, term) = (pending.replica, pending.term);
        if self.raft.leader != Some(replica) || self.raft.term != term {
            self.raft.pending.remove(&id);
            self.faults.count(Fault::LostSuffix);
            return;
        }
        if !self.has_quorum(replica) {
            // What follows in the log waits behind it.
            let at = self.now + 300;
            self.raft.last_commit_at = at.max(self.raft.last_commit_at);
            self.queue.push(at, Event::Commit { id });
            return;
        }
        let earlier: Vec<u64> = self.raft.pending.range(..=id).map(|(id, _)| *id).collect();
        for id in earlier {
            let Some(pending) = self.raft.pending.remove(&id) else { continue };
            if (pending.replica, pending.term) == (replica, term) {
                self.append(pending.term, pending.bytes);
                self.apply_committed(replica, Some(pending.waiter));
            }
        }
        self.tell_followers(replica);
    }

    fn append(&mut self, term: u64, bytes: Rc<[u8]>) {
        self.raft.log.push(LogEntry { term, bytes });
    }

    fn tell_followers(&mut self, leader: usize) {
        for replica in 0..self.replicas.len() {
            let one = &self.replicas[replica];
            if replica != leader && one.is_up && !one.is_isolated && !one.is_apply_due {
                self.replicas[replica].is_apply_due = true;
                let at = self.now + 1 + self.random.below(200);
                self.queue.push(at, Event::Apply { replica });
            }
        }
    }

    /// Somebody is missed: an election in a while.
    pub(super) fn call_election(&mut self) {
        if !self.raft.election_is_due {
            self.raft.election_is_due = true;
            let at = self.now + 1_000 + self.random.below(2_000);
            self.queue.push(at, Event::Election);
        }
    }

    pub(super) fn on_election(&mut self) {
        self.raft.election_is_due = false;
        if let Some(leader) = self.raft.leader
            && self.has_quorum(leader)
            && !self.replicas[leader].must_go
        {
            return;
        }
        let able: Vec<usize> = (0..self.replicas.len())
            .filter(|r| self.has_quorum(*r) && !self.replicas[*r].must_go)
            .collect();
        let pick = self.random.below(u64::try_from(able.len()).unwrap_or(0));
        let Some(winner) = usize::try_from(pick).ok().and_then(|pick| able.get(pick)) else {
            return self.call_election();
        };
        self.elect(*winner);
    }

    fn elect(&mut self, winner: usize) {
        if let Some(old) = self.raft.leader {
            self.replicas[old].must_go = false;
            // One that is cut off learns nothing until it is back.
            if !self.replicas[old].is_isolated {
                self.learns_soon(old);
            }
        }
        self.settle_suffix();
        self.raft.term += 1 + self.random.below(2);
        self.raft.leader = Some(winner);
        self.checker.term(self.raft.term);
        let (replica, term) = (winner, self.raft.term);
        self.queue.push(self.now + 1 + self.random.below(150), Event::Office { replica, term });
    }

    /// A broker that no longer leads will know it in a while.
    pub(super) fn learns_soon(&mut self, replica: usize) {
        let Some(office) = &self.replicas[replica].office else { return };
        let term = office.term;
        let learns = self.now + self.random.below(if self.is_calm { 2_000 } else { 60_000 });
        self.queue.push(learns, Event::Deposed { replica, term });
    }

    /// What the old leader had proposed: a prefix was on the winner, the rest is lost with it.
    fn settle_suffix(&mut self) {
        let open = std::mem::take(&mut self.raft.pending);
        let count = u64::try_from(open.len()).unwrap_or(0);
        let kept = self.random.below(count + 1);
        for (place, (id, pending)) in (0_u64..).zip(open) {
            let is_current = Some(pending.replica) == self.raft.leader;
            if place < kept && is_current && pending.term == self.raft.term {
                self.faults.count(Fault::KeptSuffix);
                self.append(pending.term, pending.bytes);
            } else if !is_current || pending.term != self.raft.term {
                // Proposed by one deposed earlier: lost when its turn comes.
                self.raft.pending.insert(id, pending);
            } else {
                self.faults.count(Fault::LostSuffix);
            }
        }
    }

    /// A command that a leader stamped in an earlier term comes into the log under a later one, as
    /// if it had been forwarded: the rules must refuse it.
    pub(super) fn append_late(&mut self, replica: usize, term: u64) {
        let stamped_in = term.saturating_sub(1);
        let nodes = self.replicas[replica].state.nodes();
        let Some(((cluster, node), known)) = nodes.iter().next() else { return };
        let command = Command::DeclareSilent { cluster: *cluster, node: *node, boot: known.boot() };
        let now: Timestamp = self.replicas[replica].clock.now(self.now);
        self.raft.commands += 1;
        let id = CommandId::new(self.raft.commands);
        let stamped =
            Stamped { id, actor: Actor::Leader, now, term: stamped_in, key: None, command };
        if let Ok(bytes) = codec::encode(&stamped) {
            self.faults.count(Fault::OtherTerm);
            self.enqueue(Pending { replica, term, bytes: bytes.into(), waiter: Waiter::Nobody });
        }
    }
}
