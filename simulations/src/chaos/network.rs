//! Messages between agents and brokers: lost, doubled, late, out of order, or cut off one way or
//! both ways. What arrives is what was sent: integrity is the codec's and the transport's part.

use std::rc::Rc;

use sublet_protocol::agent::{Down, DownEnvelope, Reply};
use sublet_protocol::codec;

use super::fault::Fault;
use super::queue::Event;
use super::world::World;

/// From this delay on a message counts as late.
const LATE: u64 = 10_000;
/// The longest delay.
const DELAY_MAX: u64 = 90_000;

/// The wires of one agent.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Wires {
    pub(super) is_up_cut: bool,
    pub(super) is_down_cut: bool,
    /// Brokers it cannot reach and that cannot reach it.
    pub(super) cut_brokers: [bool; 3],
    /// When the last message of each direction arrives, to see what overtakes.
    last_up: u64,
    last_down: u64,
}

impl World {
    /// Whether brokers and agents are cut off from each other altogether.
    const fn is_dark(&self) -> bool {
        self.now < self.dark_until
    }

    /// How long one copy of a message takes; nothing if it is lost.
    fn delay(&mut self) -> Option<u64> {
        if self.is_calm {
            return Some(1 + self.random.below(20));
        }
        let (roll, late) = (self.random.below(200), self.profile.late);
        match roll {
            0..=4 => {
                self.faults.count(Fault::Lost);
                None
            }
            _ if roll < 5 + late => {
                let delay = self.random.below(DELAY_MAX);
                if delay >= LATE {
                    self.faults.count(Fault::Late);
                }
                Some(delay)
            }
            _ if roll < 35 + late => Some(self.random.below(2_000)),
            _most => Some(1 + self.random.below(40)),
        }
    }

    /// One copy, sometimes two.
    fn copies(&mut self) -> u64 {
        let is_doubled = !self.is_calm && self.random.chance(1, self.profile.doubled);
        if is_doubled {
            self.faults.count(Fault::Doubled);
        }
        1 + u64::from(is_doubled)
    }

    /// From an agent to every broker that listens.
    pub(super) fn send_up(&mut self, agent: usize, bytes: &Rc<[u8]>) {
        for _ in 0..self.copies() {
            if self.agents[agent].wires.is_up_cut || self.is_dark() {
                continue;
            }
            let Some(delay) = self.delay() else { continue };
            let at = self.now + delay;
            self.note_order(agent, at, true);
            self.queue.push(at, Event::Up { bytes: Rc::clone(bytes) });
        }
    }

    /// From a broker to an agent.
    pub(super) fn send_down(&mut self, replica: usize, agent: usize, term: u64, body: Down) {
        if self.is_deposed(replica) {
            self.faults.count(Fault::DeposedSpoke);
        }
        let (cluster, node) = (self.agents[agent].cluster, self.agents[agent].node);
        let Ok(bytes) = codec::encode(&DownEnvelope { cluster, node, term, body }) else {
            return self.fail(12, "a message to an agent has no bytes");
        };
        let bytes: Rc<[u8]> = bytes.into();
        for _ in 0..self.copies() {
            let wires = &self.agents[agent].wires;
            if wires.is_down_cut || wires.cut_brokers[replica] || self.is_dark() {
                continue;
            }
            let Some(delay) = self.delay() else { continue };
            let at = self.now + delay;
            self.note_order(agent, at, false);
            self.queue.push(at, Event::Down { agent, bytes: Rc::clone(&bytes) });
        }
    }

    /// A broker's answer to a message of an agent.
    pub(super) fn reply(
        &mut self,
        replica: usize,
        agent: usize,
        (boot, sequence): (u64, u64),
        reply: &Reply,
    ) {
        let wires = &self.agents[agent].wires;
        if wires.is_down_cut || wires.cut_brokers[replica] || self.is_dark() {
            return;
        }
        let Some(delay) = self.delay() else { return };
        let Ok(bytes) = codec::encode(reply) else {
            return self.fail(12, "a reply has no bytes");
        };
        let at = self.now + delay;
        self.queue.push(at, Event::Reply { agent, boot, sequence, bytes: bytes.into() });
    }

    fn note_order(&mut self, agent: usize, at: u64, is_up: bool) {
        let wires = &mut self.agents[agent].wires;
        let last = if is_up { &mut wires.last_up } else { &mut wires.last_down };
        let is_overtaken = at < *last;
        *last = at.max(*last);
        if is_overtaken {
            self.faults.count(Fault::Reordered);
        }
    }
}
