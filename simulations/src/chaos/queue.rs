//! What will happen, in order: by true time, then by when it was scheduled.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;

use sublet_protocol::agent::UpEnvelope;
use sublet_protocol::commands::PlanGroup;

use super::disk::DiskStep;
use super::owner::Visit;

/// One thing that happens.
#[derive(Debug)]
pub(super) enum Event {
    /// Bytes of an agent reach the brokers.
    Up { bytes: Rc<[u8]> },
    /// The answer to an agent's message reaches it.
    Reply { agent: usize, boot: u64, sequence: u64, bytes: Rc<[u8]> },
    /// Bytes of a broker reach an agent.
    Down { agent: usize, bytes: Rc<[u8]> },
    /// Something is due in an agent's session.
    AgentWake { agent: usize },
    /// An agent's message was not answered in time.
    AgentRetry { agent: usize, boot: u64, sequence: u64 },
    /// A process starts again.
    AgentStart { agent: usize },
    /// A suspended node goes on.
    AgentResume { agent: usize },
    /// An agent looks at a device.
    Look { device: usize },
    /// An agent looks at all its devices, as it does from time to time.
    Sample { agent: usize, boot: u64 },
    /// The owner, a stranger or a fault comes to a device.
    Arrives { device: usize, visit: Visit },
    /// It leaves.
    Leaves { device: usize },
    /// Something happens to a guest.
    Guest { guest: u64, what: GuestStep },
    /// A proposal would be committed.
    Commit { id: u64 },
    /// A replica learns what was committed.
    Apply { replica: usize },
    /// A leader's read barrier is over.
    Barrier { replica: usize, term: u64, message: Box<UpEnvelope> },
    /// A plan was made.
    Planned { replica: usize, term: u64, groups: Vec<PlanGroup> },
    /// Something is due at a leader.
    LeaderWake { replica: usize },
    /// Those who can vote look for a leader.
    Election,
    /// The winner of a term has proved it and takes office.
    Office { replica: usize, term: u64 },
    /// A leader learns that it no longer is one.
    Deposed { replica: usize, term: u64 },
    /// A broker's process starts again.
    ReplicaStart { replica: usize },
    /// Something happens to a broker's disk.
    Disk { replica: usize, what: DiskStep },
    /// A broker is reachable for the others again.
    ReplicaJoins { replica: usize },
    /// Nothing of an agent reaches the brokers any more.
    Pulled { agent: usize },
    /// The wires of an agent are mended.
    Mended { agent: usize },
    /// A client acts.
    Client { client: usize },
    /// A client has no answer yet.
    ClientTimeout { operation: u64, tries: u32 },
    /// Something breaks.
    Fault,
    /// A promise of the protocol must have been kept by now.
    Check(Deadline),
    /// The heal phase goes on.
    Heal(u32),
}

/// What happens to a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GuestStep {
    /// It runs, or turns out not to.
    Starts,
    /// It ends by itself or because it was told to.
    Exits,
    /// Its guard looks at the deadline.
    Deadline,
    /// Its guard sees that the agent is gone.
    AgentGone,
    /// Nothing of it is left.
    Cleaned,
}

/// What must be true at an instant.
#[derive(Debug, Clone, Copy)]
pub(super) enum Deadline {
    /// A guest is gone: it was told to stop (INV-3) or the owner is back (INV-7).
    GuestGone { guest: u64, invariant: u8 },
    /// No guest of the token runs any more (INV-3).
    TokenGone { counter: u64 },
}

struct Entry {
    at: u64,
    number: u64,
    event: Event,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// The queue.
#[derive(Default)]
pub(super) struct Queue {
    heap: BinaryHeap<Reverse<Entry>>,
    next: u64,
}

impl Queue {
    pub(super) fn push(&mut self, at: u64, event: Event) {
        self.heap.push(Reverse(Entry { at, number: self.next, event }));
        self.next += 1;
    }

    pub(super) fn pop(&mut self) -> Option<(u64, Event)> {
        self.heap.pop().map(|Reverse(entry)| (entry.at, entry.event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_due_at_one_time_happens_in_the_order_in_which_it_was_scheduled() {
        let mut queue = Queue::default();
        queue.push(5, Event::Election);
        queue.push(3, Event::Heal(1));
        queue.push(3, Event::Heal(2));
        assert!(matches!(queue.pop(), Some((3, Event::Heal(1)))));
        assert!(matches!(queue.pop(), Some((3, Event::Heal(2)))));
        assert!(matches!(queue.pop(), Some((5, Event::Election))));
        assert!(queue.pop().is_none());
    }
}
