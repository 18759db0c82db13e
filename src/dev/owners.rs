//! Owners of simulated machines: they come and go as the generator says, for as long as anybody
//! looks.

use sublet_agent::probe::sim::{Device, OwnerUse, SimProbe};
use sublet_agent::probe::{Error, Percent, Probe, Sample};
use sublet_protocol::offers::IdleFor;
use sublet_protocol::units::{MiB, Millis, Permille, Seconds};
use sublet_simulations::generator::{OwnerProfile, OwnerState, Owners, Turn};

use super::site::Site;

/// How busy an owner keeps a GPU, and how much memory that takes.
const UTILISATION: Percent = Percent::saturating(92);
const MEMORY: MiB = MiB::new(24 * 1_024);

/// An owner who leaves comes back after this many minutes at the earliest. The trace's owners come back
/// sooner half of the time; then hardly any job of the standard tier would fit what is left of an
/// idle time, and a first look at lending would show little of it.
const AWAY_MINUTES: u64 = 45;

/// How owners come and go: the generator's demonstration, longer away.
fn profile() -> OwnerProfile {
    let demo = OwnerProfile::demo();
    let idle_minutes = demo.idle_minutes.each_ref().map(|minutes| minutes.raised(AWAY_MINUTES));
    OwnerProfile { idle_minutes, ..demo }
}

/// The devices of one machine, all used by its owner at once or not at all.
pub(super) struct OwnedMachine {
    devices: Vec<Device>,
    turns: Option<Owners>,
    /// What the agent's clock shows at the start of the story.
    story_begins: StoryClock,
    /// The devices during the current turn.
    now: SimProbe,
    /// When the turn ends, on the agent's clock.
    until: Millis,
}

/// Turns the agent's clock, which begins at zero with each process, into the time of the story,
/// which goes on over restarts.
#[derive(Debug, Clone, Copy)]
pub(super) struct StoryClock {
    /// How far the story was when this process started.
    pub(super) offset: Millis,
}

impl OwnedMachine {
    /// A machine whose owner follows `seed`; without one the owner never comes.
    pub(super) fn new(devices: Vec<Device>, seed: Option<u64>, story: StoryClock) -> OwnedMachine {
        let turns = seed.map(|seed| Owners::new(seed, profile(), 1));
        let now = SimProbe::scheduled(devices.clone(), Vec::new());
        let until = if turns.is_some() { Millis::ZERO } else { Millis::MAX };
        OwnedMachine { devices, turns, story_begins: story, now, until }
    }

    /// Goes on to the turn that `now` falls into.
    fn advance(&mut self, now: Millis) {
        while self.until <= now {
            let Some(turn) = self.turns.as_mut().and_then(Iterator::next) else {
                self.until = Millis::MAX;
                return;
            };
            self.take(&turn);
        }
    }

    fn take(&mut self, turn: &Turn) {
        let on_clock = |story: Seconds| story.as_millis().saturating_sub(self.story_begins.offset);
        let from = on_clock(turn.at);
        self.until = on_clock(turn.at.saturating_add(turn.lasts));
        let until = self.until;
        let used = |device: &Device| OwnerUse {
            from,
            until,
            device: device.id,
            utilisation: UTILISATION,
            memory: MEMORY,
        };
        let uses = match turn.state {
            OwnerState::Idle => Vec::new(),
            OwnerState::Busy => self.devices.iter().map(used).collect(),
        };
        self.now = SimProbe::scheduled(self.devices.clone(), uses);
    }
}

impl Probe for OwnedMachine {
    fn sample(&mut self, now: Millis) -> Result<Vec<Sample>, Error> {
        self.advance(now);
        self.now.sample(now)
    }

    fn next_change(&mut self, now: Millis) -> Option<Millis> {
        self.advance(now);
        Some(self.until)
    }
}

/// The seed of each machine's owner, in the order of clusters and machines. The last machine of each
/// cluster is a spare one: its owner never comes.
pub(super) fn seeds(seed: u64, sites: &[Site]) -> Vec<Option<u64>> {
    let machines = sites.iter().flat_map(|site| (1..=site.nodes).map(|one| one == site.nodes));
    let of = |number| seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(number);
    (0..).zip(machines).map(|(number, is_spare)| (!is_spare).then(|| of(number))).collect()
}

/// How many days of the story are looked at to know the owners.
const DAYS: u64 = 7;

/// The turns of one owner in the first [`DAYS`].
fn turns(seed: u64) -> impl Iterator<Item = Turn> {
    let turns = Owners::new(seed, profile(), 1);
    turns.take_while(|turn| turn.at.get() < DAYS * 86_400)
}

/// How much of the time owners leave their machines idle.
pub(super) fn idle_share(seeds: &[Option<u64>]) -> Permille {
    let (mut idle, mut all) = (0_u64, 0_u64);
    for seed in seeds {
        let Some(seed) = seed else {
            (idle, all) = (idle + DAYS * 86_400, all + DAYS * 86_400);
            continue;
        };
        for turn in turns(*seed) {
            let lasts = turn.lasts.get();
            all += lasts;
            idle += if turn.state == OwnerState::Idle { lasts } else { 0 };
        }
    }
    let share = idle.saturating_mul(1_000) / all.max(1);
    Permille::new(u16::try_from(share).unwrap_or(1_000))
}

/// How long a machine stays idle: of its owner's idle turns one in ten is shorter, half are, nine in
/// ten are. Without an owner, as long as any lease lasts.
pub(super) fn forecast(seed: Option<u64>) -> IdleFor {
    let Some(seed) = seed else {
        let long = sublet_protocol::requests::DURATION_MAX;
        return IdleFor { p10: long, p50: long, p90: long };
    };
    let idle = turns(seed).filter(|turn| turn.state == OwnerState::Idle);
    let mut idle: Vec<Seconds> = idle.map(|turn| turn.lasts).collect();
    idle.sort_unstable();
    let at = |tenths: usize| idle.get(idle.len() * tenths / 10).copied().unwrap_or(Seconds::ZERO);
    IdleFor { p10: at(1), p50: at(5), p90: at(9) }
}

#[cfg(test)]
mod tests {
    use sublet_agent::probe::OwnerQueue;
    use sublet_protocol::ids::{DeviceId, GpuModel};

    use super::*;

    fn devices() -> Vec<Device> {
        let model = GpuModel::new("a100-80gb").unwrap();
        let device = |id| Device {
            id: DeviceId::new(id),
            model,
            memory_total: MiB::new(81_920),
            memory_driver: MiB::new(600),
        };
        vec![device(1), device(2)]
    }

    fn is_busy(machine: &mut OwnedMachine, at: u64) -> bool {
        let samples = machine.sample(Millis::new(at)).unwrap();
        assert_eq!(samples.len(), 2);
        let busy = |sample: &Sample| sample.owner_queue == Some(OwnerQueue::Something);
        assert_eq!(busy(&samples[0]), busy(&samples[1]), "an owner takes the whole machine");
        busy(&samples[0])
    }

    #[test]
    fn owners_come_and_go_and_the_story_goes_on_after_a_restart() {
        let story = |offset| StoryClock { offset: Millis::new(offset) };
        let mut whole = OwnedMachine::new(devices(), Some(7), story(0));
        let minute = 60_000;
        let seen: Vec<bool> = (0..600).map(|at| is_busy(&mut whole, at * minute)).collect();
        assert!(seen.contains(&true) && seen.contains(&false));
        let mut later = OwnedMachine::new(devices(), Some(7), story(300 * minute));
        let again: Vec<bool> = (0..300).map(|at| is_busy(&mut later, at * minute)).collect();
        assert_eq!(again, seen[300..]);
    }

    #[test]
    fn owners_are_known_by_how_long_they_stay_away() {
        let seeds = seeds(1, &crate::dev::site::demo());
        assert_eq!(seeds.iter().filter(|seed| seed.is_none()).count(), 3, "one spare a cluster");
        let share = idle_share(&seeds).get();
        assert!((400..950).contains(&share), "{share}");
        let known = forecast(seeds[0]);
        let away = Seconds::new(AWAY_MINUTES * 60);
        assert!(known.p10 >= away && known.p90 <= Seconds::new(5_400), "{known:?}");
        assert!(known.p10 <= known.p50 && known.p50 < known.p90, "{known:?}");
    }

    #[test]
    fn a_machine_without_an_owner_stays_idle() {
        let mut free = OwnedMachine::new(devices(), None, StoryClock { offset: Millis::ZERO });
        assert!(!is_busy(&mut free, 0) && !is_busy(&mut free, 1_000_000_000));
    }
}
