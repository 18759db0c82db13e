//! In some worlds the agents see with their own eyes: the real watch and idle detector, on samples
//! of what is on each device, every 30 s and when the probe tells of a change. Readings are missing
//! now and then. In the other worlds, and on nodes that lie, an agent is told what is there.

use sublet_agent::idle::IdleRule;
use sublet_agent::probe::{Health, Layout, OwnerQueue, Percent, ProcessId, Sample, Vitals};
use sublet_agent::watch::{Guests, Watch};
use sublet_protocol::units::{MiB, Millis};

use super::fault::Fault;
use super::owner::Visit;
use super::queue::Event;
use super::setup::model;
use super::world::World;
use crate::generator::Random;

/// The stream of chance for eyes, apart from those of the lives and the disks.
const STREAM: u64 = 2 << 40;
/// Time between two looks, in milliseconds.
const EVERY: u64 = 30_000;
/// One sample in so many lacks a reading.
const MISSING: u64 = 400;

const MEMORY: MiB = MiB::new(40_000);
const DRIVER: MiB = MiB::new(600);
const OWNER: ProcessId = ProcessId(1);
const STRANGER: ProcessId = ProcessId(2);
/// Guests' processes have this number and higher ones.
const GUESTS: u32 = 10;

/// Whether and how agents see.
pub(super) struct Eyes {
    random: Random,
    is_used: bool,
}

impl Eyes {
    pub(super) fn new(seed: u64, life: u64, may_be: bool) -> Eyes {
        let mut random = Random::new(seed, STREAM + life);
        let is_used = random.chance(1, 2) && may_be;
        Eyes { random, is_used }
    }
}

/// Quiet for a minute is idle, so that more happens in a life; otherwise as in production.
fn rule() -> IdleRule {
    IdleRule { settle: Millis::new(60_000), ..IdleRule::default() }
}

impl World {
    /// A process begins and has seen nothing yet.
    pub(super) fn open_eyes(&mut self, agent: usize) {
        if !self.eyes.is_used || self.agents[agent].is_liar {
            return;
        }
        let devices: Vec<usize> = self.devices_of(agent).collect();
        let ids = devices.into_iter().map(|device| self.devices[device].id);
        self.agents[agent].watch = Some(Watch::new(rule(), ids));
        let boot = self.agents[agent].boot;
        self.queue.push(self.now + 100, Event::Sample { agent, boot });
    }

    /// The agent looks, as it does from time to time.
    pub(super) fn on_sample(&mut self, agent: usize, boot: u64) {
        let one = &self.agents[agent];
        if one.is_up() && one.boot == boot {
            self.queue.push(self.now + EVERY, Event::Sample { agent, boot });
            self.look_around(agent);
        }
    }

    /// The agent looks at its devices and tells its session what has changed.
    pub(super) fn look_around(&mut self, agent: usize) {
        let devices: Vec<usize> = self.devices_of(agent).collect();
        let samples = devices.into_iter().filter_map(|device| self.sample(agent, device));
        let samples: Vec<Sample> = samples.collect();
        let one = &mut self.agents[agent];
        let local = one.clock.at(self.now);
        let (Some(session), Some(watch)) = (&one.session, &mut one.watch) else { return };
        let lent = |device| session.holds(device);
        let ours = |process: ProcessId| process.0 >= GUESTS;
        let seen = watch.on_samples(local, &samples, &Guests { lent: &lent, ours: &ours });
        for observation in seen {
            self.observes(agent, observation);
        }
    }

    /// What the probe reads; nothing of a device that was lost.
    fn sample(&mut self, agent: usize, device: usize) -> Option<Sample> {
        let one = &self.devices[device];
        let id = one.id;
        let visit = one.visitor.map(|(visit, ..)| visit);
        let is_here = |guest: &&super::guests::Guest| {
            guest.is_alive && guest.agent == agent && guest.key.slice.device == id
        };
        let guests = self.guests.all.values().filter(is_here).count();
        let guests = u32::try_from(guests).unwrap_or(u32::MAX - GUESTS);
        let mut processes: Vec<ProcessId> = (GUESTS..GUESTS + guests).map(ProcessId).collect();
        let mut owner_queue = OwnerQueue::Nothing;
        match visit {
            Some(Visit::Lost) => return None,
            Some(Visit::Foreign) => processes.push(STRANGER),
            Some(Visit::Owner) => {
                processes.push(OWNER);
                owner_queue = OwnerQueue::Something;
            }
            None => {}
        }
        let is_quiet = processes.is_empty();
        let mut sample = Sample {
            device: id,
            model: model(),
            layout: Layout::Whole,
            memory_total: Some(MEMORY),
            memory_used: Some(if is_quiet { DRIVER } else { MEMORY }),
            memory_driver: Some(DRIVER),
            utilisation: Some(Percent::saturating(if is_quiet { 0 } else { 95 })),
            processes: Some(processes),
            owner_queue: Some(owner_queue),
            health: Health::Healthy,
            vitals: Vitals::default(),
        };
        if !self.is_calm && self.eyes.random.chance(1, MISSING) {
            self.faults.count(Fault::ReadingMissing);
            match self.eyes.random.below(3) {
                0 => sample.utilisation = None,
                1 => sample.memory_used = None,
                _more => sample.processes = None,
            }
        }
        Some(sample)
    }
}
