//! From samples to observations: the idle detector of each device, and the eye on devices that are
//! lent.
//!
//! On a device that is lent, our guest's own use is no sign of its owner; a process that is not
//! ours, or the owner's scheduler, is. No clock, no I/O.

use std::collections::BTreeMap;

use sublet_protocol::ids::DeviceId;
use sublet_protocol::units::Millis;

use crate::idle::{IdleDetector, IdleRule, Look, Verdict, look};
use crate::probe::{Health, OwnerQueue, ProcessId, Sample};
use crate::session::Observation;

/// What the caller knows of the guests.
pub struct Guests<'a> {
    /// Whether a device is lent.
    pub lent: &'a dyn Fn(DeviceId) -> bool,
    /// Whether a process is a guest's.
    pub ours: &'a dyn Fn(ProcessId) -> bool,
}

/// Watches the devices of a node.
#[derive(Debug)]
pub struct Watch {
    rule: IdleRule,
    devices: BTreeMap<DeviceId, Watched>,
}

#[derive(Debug)]
struct Watched {
    detector: IdleDetector,
    told: Option<Observation>,
}

impl Watch {
    /// Watches `devices`, of which nothing is known yet.
    #[must_use]
    pub fn new(rule: IdleRule, devices: impl IntoIterator<Item = DeviceId>) -> Self {
        let watched = |device| (device, Watched { detector: IdleDetector::new(rule), told: None });
        Self { rule, devices: devices.into_iter().map(watched).collect() }
    }

    /// Takes one look at the node: a device without a sample was lost. Returns what has changed.
    pub fn on_samples(
        &mut self,
        now: Millis,
        samples: &[Sample],
        guests: &Guests<'_>,
    ) -> Vec<Observation> {
        let mut changed = Vec::new();
        for (device, watched) in &mut self.devices {
            let sample = samples.iter().find(|sample| sample.device == *device);
            let seen = match sample {
                None => lost(now, *device, &mut watched.detector),
                Some(sample) if (guests.lent)(*device) => {
                    see_lent(now, sample, guests, &mut watched.detector)
                }
                Some(sample) => see_free(now, sample, &self.rule, &mut watched.detector),
            };
            if watched.told != Some(seen) {
                watched.told = Some(seen);
                changed.push(seen);
            }
        }
        changed
    }
}

fn lost(now: Millis, device: DeviceId, detector: &mut IdleDetector) -> Observation {
    detector.on_look(now, Look::Sick);
    Observation::DeviceLost(device)
}

/// A device that is lent counts as quiet as long as nobody but our guest uses it. One whose
/// processes cannot be read hides its owner, so it is as good as lost (LA4).
fn see_lent(
    now: Millis,
    sample: &Sample,
    guests: &Guests<'_>,
    detector: &mut IdleDetector,
) -> Observation {
    let device = sample.device;
    let Some(processes) = &sample.processes else { return lost(now, device, detector) };
    if sample.health == Health::Unhealthy {
        return lost(now, device, detector);
    }
    if sample.owner_queue == Some(OwnerQueue::Something) {
        detector.on_look(now, Look::Busy);
        return Observation::OwnerArrived(device);
    }
    if processes.iter().any(|process| !(guests.ours)(*process)) {
        detector.on_look(now, Look::Busy);
        return Observation::ForeignUse(device);
    }
    detector.on_look(now, Look::Quiet);
    Observation::Idle(device)
}

fn see_free(
    now: Millis,
    sample: &Sample,
    rule: &IdleRule,
    detector: &mut IdleDetector,
) -> Observation {
    let device = sample.device;
    match detector.on_look(now, look(rule, sample)) {
        Verdict::Idle { .. } => Observation::Idle(device),
        Verdict::Settling { .. } => Observation::NotIdle(device),
        Verdict::NotIdle(Look::Sick) => Observation::DeviceLost(device),
        Verdict::NotIdle(_) if sample.owner_queue == Some(OwnerQueue::Something) => {
            Observation::OwnerArrived(device)
        }
        Verdict::NotIdle(_) => Observation::NotIdle(device),
    }
}

#[cfg(test)]
mod tests {
    use sublet_protocol::ids::GpuModel;
    use sublet_protocol::units::MiB;

    use super::*;
    use crate::probe::{Layout, Percent, Vitals};

    const DEVICE: DeviceId = DeviceId::new(1);
    const GUEST: ProcessId = ProcessId(77);

    fn quiet() -> Sample {
        Sample {
            device: DEVICE,
            model: GpuModel::new("a100-80gb").unwrap(),
            layout: Layout::Whole,
            memory_total: Some(MiB::new(81_920)),
            memory_used: Some(MiB::new(600)),
            memory_driver: Some(MiB::new(600)),
            utilisation: Some(Percent::ZERO),
            processes: Some(vec![]),
            owner_queue: Some(OwnerQueue::Nothing),
            health: Health::Healthy,
            vitals: Vitals::default(),
        }
    }

    fn guest_at_work() -> Sample {
        Sample {
            utilisation: Some(Percent::saturating(99)),
            memory_used: Some(MiB::new(70_000)),
            processes: Some(vec![GUEST]),
            ..quiet()
        }
    }

    /// One look at a watch that found the device idle first.
    fn look_after_idle(is_lent: bool, samples: &[Sample]) -> (Watch, Vec<Observation>) {
        let mut watch = Watch::new(IdleRule::default(), [DEVICE]);
        let guests = Guests { lent: &|_| is_lent, ours: &|process| process == GUEST };
        for minute in 0..=10 {
            let _ = watch.on_samples(Millis::new(minute * 60_000), &[quiet()], &guests);
        }
        assert_eq!(watch.devices[&DEVICE].told, Some(Observation::Idle(DEVICE)));
        let seen = watch.on_samples(Millis::new(11 * 60_000), samples, &guests);
        (watch, seen)
    }

    #[test]
    fn on_a_lent_device_only_what_is_not_ours_is_seen() {
        let foreign = Sample { processes: Some(vec![GUEST, ProcessId(5)]), ..guest_at_work() };
        let owner = Sample { owner_queue: Some(OwnerQueue::Something), ..guest_at_work() };
        let owner_foreign = Sample { processes: Some(vec![ProcessId(5)]), ..owner.clone() };
        let hidden = Sample { processes: None, ..guest_at_work() };
        let sick = Sample { health: Health::Unhealthy, ..guest_at_work() };
        let rows: [(Vec<Sample>, Option<Observation>); 7] = [
            (vec![guest_at_work()], None),
            (vec![foreign], Some(Observation::ForeignUse(DEVICE))),
            (vec![owner], Some(Observation::OwnerArrived(DEVICE))),
            (vec![owner_foreign], Some(Observation::OwnerArrived(DEVICE))),
            (vec![hidden], Some(Observation::DeviceLost(DEVICE))),
            (vec![sick], Some(Observation::DeviceLost(DEVICE))),
            (vec![], Some(Observation::DeviceLost(DEVICE))),
        ];
        for (samples, expected) in rows {
            let (_, seen) = look_after_idle(true, &samples);
            assert_eq!(seen, Vec::from_iter(expected), "{samples:?}");
        }
    }

    #[test]
    fn on_a_free_device_any_use_ends_idleness_and_the_owners_is_named() {
        let owner = Sample { owner_queue: Some(OwnerQueue::Something), ..quiet() };
        let unknown = Sample { utilisation: None, ..quiet() };
        let rows: [(Vec<Sample>, Option<Observation>); 5] = [
            (vec![quiet()], None),
            (vec![guest_at_work()], Some(Observation::NotIdle(DEVICE))),
            (vec![owner], Some(Observation::OwnerArrived(DEVICE))),
            (vec![unknown], Some(Observation::NotIdle(DEVICE))),
            (vec![], Some(Observation::DeviceLost(DEVICE))),
        ];
        for (samples, expected) in rows {
            let (_, seen) = look_after_idle(false, &samples);
            assert_eq!(seen, Vec::from_iter(expected), "{samples:?}");
        }
    }

    #[test]
    fn a_device_stays_idle_after_its_guest_but_settles_anew_after_its_owner() {
        let free = Guests { lent: &|_| false, ours: &|_| false };
        let (mut watch, _) = look_after_idle(true, &[guest_at_work()]);
        assert_eq!(watch.on_samples(Millis::new(12 * 60_000), &[quiet()], &free), []);
        let owner = Sample { owner_queue: Some(OwnerQueue::Something), ..guest_at_work() };
        let (mut watch, _) = look_after_idle(true, &[owner]);
        let seen = watch.on_samples(Millis::new(12 * 60_000), &[quiet()], &free);
        assert_eq!(seen, [Observation::NotIdle(DEVICE)]);
        for minute in 13..22 {
            assert_eq!(watch.on_samples(Millis::new(minute * 60_000), &[quiet()], &free), []);
        }
        let seen = watch.on_samples(Millis::new(22 * 60_000), &[quiet()], &free);
        assert_eq!(seen, [Observation::Idle(DEVICE)]);
    }
}
