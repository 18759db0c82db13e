//! A simulated node: devices whose owners use them by a schedule, or by a seeded pattern.
//!
//! It knows nothing of guests: what a guest does on a simulated device is not its owner's use and
//! does not show. The owner's processes have numbers above any real one ([`OWNER_PROCESS_FIRST`]).

use sublet_protocol::ids::{DeviceId, GpuModel};
use sublet_protocol::units::{MiB, Millis};

use super::{Error, Health, Layout, OwnerQueue, Percent, Probe, ProcessId, Sample, Vitals};

/// Number of the simulated owner's process on the first device. Linux gives no number above 2²².
pub const OWNER_PROCESS_FIRST: u32 = 1_000_000_000;

/// A simulated device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Its id.
    pub id: DeviceId,
    /// Its model.
    pub model: GpuModel,
    /// All its memory.
    pub memory_total: MiB,
    /// What the driver takes of it.
    pub memory_driver: MiB,
}

/// One use by the owner: `device` is used in `[from, until)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnerUse {
    /// First moment.
    pub from: Millis,
    /// First moment after.
    pub until: Millis,
    /// The device used.
    pub device: DeviceId,
    /// How busy it is.
    pub utilisation: Percent,
    /// Memory the owner's process takes, beside the driver's.
    pub memory: MiB,
}

/// What goes wrong with a device in `[from, until)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// First moment.
    pub from: Millis,
    /// First moment after.
    pub until: Millis,
    /// The device.
    pub device: DeviceId,
    /// What happens to it.
    pub kind: FaultKind,
}

/// What can go wrong with a simulated device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// It fell off the bus: no sample.
    Lost,
    /// The driver gives no permission to read use, memory and processes: all unknown.
    Blind,
}

/// Owners that come and go at random: idle and busy spells alternate on each device, each of a
/// length drawn evenly from its range. The same seed gives the same spells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pattern {
    /// Seed; each device draws from a sequence of its own.
    pub seed: u64,
    /// Shortest and longest time without the owner.
    pub idle: (Millis, Millis),
    /// Shortest and longest use.
    pub busy: (Millis, Millis),
    /// How busy a used device is.
    pub utilisation: Percent,
    /// Memory the owner's process takes.
    pub memory: MiB,
}

/// A simulated node.
#[derive(Debug, Clone)]
pub struct SimProbe {
    devices: Vec<Device>,
    uses: Vec<OwnerUse>,
    faults: Vec<Fault>,
    spells: Vec<Spells>,
}

impl SimProbe {
    /// A node whose owners follow `uses`, in any order; where two overlap the earlier one shows.
    #[must_use]
    pub fn scheduled(devices: Vec<Device>, mut uses: Vec<OwnerUse>) -> Self {
        uses.sort_by_key(|one| (one.from, one.until));
        Self { devices, uses, faults: Vec::new(), spells: Vec::new() }
    }

    /// A node whose owners follow `pattern`, for ever.
    #[must_use]
    pub fn patterned(devices: Vec<Device>, pattern: &Pattern) -> Self {
        let mut seeds = SplitMix(pattern.seed);
        let spells = devices.iter().map(|_| Spells::new(*pattern, seeds.next())).collect();
        Self { devices, uses: Vec::new(), faults: Vec::new(), spells }
    }

    /// Adds faults to the node.
    #[must_use]
    pub fn with_faults(mut self, faults: Vec<Fault>) -> Self {
        self.faults = faults;
        self
    }

    fn fault(&self, device: DeviceId, now: Millis) -> Option<FaultKind> {
        let covers =
            |fault: &&Fault| fault.device == device && fault.from <= now && now < fault.until;
        self.faults.iter().find(covers).map(|fault| fault.kind)
    }

    fn owner_use(&mut self, place: usize, now: Millis) -> Option<(Percent, MiB)> {
        if let Some(spells) = self.spells.get_mut(place) {
            return spells.at(now);
        }
        let device = self.devices[place].id;
        let covers = |one: &&OwnerUse| one.device == device && one.from <= now && now < one.until;
        self.uses.iter().find(covers).map(|one| (one.utilisation, one.memory))
    }
}

impl Probe for SimProbe {
    fn sample(&mut self, now: Millis) -> Result<Vec<Sample>, Error> {
        let mut samples = Vec::with_capacity(self.devices.len());
        for place in 0..self.devices.len() {
            let owner_use = self.owner_use(place, now);
            let device = &self.devices[place];
            match self.fault(device.id, now) {
                Some(FaultKind::Lost) => {}
                Some(FaultKind::Blind) => samples.push(blind(device)),
                None => samples.push(seen(device, place, owner_use)),
            }
        }
        Ok(samples)
    }

    fn next_change(&mut self, now: Millis) -> Option<Millis> {
        let uses = self.uses.iter().flat_map(|one| [one.from, one.until]);
        let faults = self.faults.iter().flat_map(|one| [one.from, one.until]);
        let fixed = uses.chain(faults).filter(|at| *at > now).min();
        let drawn = self.spells.iter_mut().map(|spells| spells.next_change(now)).min();
        [fixed, drawn].into_iter().flatten().min()
    }
}

fn seen(device: &Device, place: usize, owner_use: Option<(Percent, MiB)>) -> Sample {
    let (utilisation, memory) = owner_use.unwrap_or((Percent::ZERO, MiB::new(0)));
    let used = device.memory_driver.get().saturating_add(memory.get());
    let process = u32::try_from(place).unwrap_or(u32::MAX).saturating_add(OWNER_PROCESS_FIRST);
    Sample {
        device: device.id,
        model: device.model,
        layout: Layout::Whole,
        memory_total: Some(device.memory_total),
        memory_used: Some(MiB::new(used.min(device.memory_total.get()))),
        memory_driver: Some(device.memory_driver),
        utilisation: Some(utilisation),
        processes: Some(owner_use.map(|_| ProcessId(process)).into_iter().collect()),
        owner_queue: Some(match owner_use {
            Some(_) => OwnerQueue::Something,
            None => OwnerQueue::Nothing,
        }),
        health: Health::Healthy,
        vitals: Vitals::default(),
    }
}

fn blind(device: &Device) -> Sample {
    Sample {
        device: device.id,
        model: device.model,
        layout: Layout::Whole,
        memory_total: Some(device.memory_total),
        memory_used: None,
        memory_driver: None,
        utilisation: None,
        processes: None,
        owner_queue: None,
        health: Health::Unknown,
        vitals: Vitals::default(),
    }
}

/// The idle and busy spells of one device, drawn as time goes on. Time never goes back.
#[derive(Debug, Clone)]
struct Spells {
    pattern: Pattern,
    random: SplitMix,
    is_busy: bool,
    until: Millis,
}

impl Spells {
    fn new(pattern: Pattern, seed: u64) -> Self {
        let mut random = SplitMix(seed);
        let until = Millis::new(random.between(pattern.idle));
        Self { pattern, random, is_busy: false, until }
    }

    fn at(&mut self, now: Millis) -> Option<(Percent, MiB)> {
        while self.until <= now {
            self.is_busy = !self.is_busy;
            let range = if self.is_busy { self.pattern.busy } else { self.pattern.idle };
            // At least a millisecond, or a range of zero would never let time pass.
            let length = self.random.between(range).max(1);
            self.until = Millis::new(self.until.get().saturating_add(length));
        }
        self.is_busy.then_some((self.pattern.utilisation, self.pattern.memory))
    }

    fn next_change(&mut self, now: Millis) -> Millis {
        self.at(now);
        self.until
    }
}

/// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): small, seeded, good enough for a demonstration.
#[derive(Debug, Clone)]
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Evenly from `low..=high` (from `low` alone if the range is empty); the modulo's bias is
    /// below 2⁻³⁰ here.
    fn between(&mut self, (low, high): (Millis, Millis)) -> u64 {
        let width = high.get().saturating_sub(low.get()).saturating_add(1);
        low.get().saturating_add(self.next() % width.max(1))
    }
}

#[cfg(test)]
#[path = "sim_tests.rs"]
mod tests;
