//! Schedules, patterns and faults of simulated nodes.

use super::*;

fn device(number: u128) -> Device {
    Device {
        id: DeviceId::new(number),
        model: GpuModel::new("a100-80gb").unwrap(),
        memory_total: MiB::new(81_920),
        memory_driver: MiB::new(600),
    }
}

fn owner_use(from: u64, until: u64, number: u128) -> OwnerUse {
    OwnerUse {
        from: Millis::new(from),
        until: Millis::new(until),
        device: DeviceId::new(number),
        utilisation: Percent::saturating(95),
        memory: MiB::new(40_000),
    }
}

fn busy_devices(probe: &mut SimProbe, now: u64) -> Vec<u128> {
    let samples = probe.sample(Millis::new(now)).unwrap();
    let busy = samples.iter().filter(|s| s.utilisation > Some(Percent::ZERO));
    busy.map(|s| s.device.get()).collect()
}

#[test]
fn the_owner_uses_a_device_from_its_first_moment_until_before_its_last() {
    let uses = vec![owner_use(30, 40, 2), owner_use(10, 20, 1)];
    let mut probe = SimProbe::scheduled(vec![device(1), device(2)], uses);
    let rows: [(u64, &[u128]); 6] =
        [(9, &[]), (10, &[1]), (19, &[1]), (20, &[]), (30, &[2]), (40, &[])];
    for (now, expected) in rows {
        assert_eq!(busy_devices(&mut probe, now), expected, "at {now}");
    }
}

#[test]
fn the_next_change_is_the_next_step_of_the_schedule() {
    let mut probe = SimProbe::scheduled(vec![device(1)], vec![owner_use(10, 20, 1)]);
    let next: Vec<_> = [0, 10, 20].map(|now| probe.next_change(Millis::new(now))).into();
    assert_eq!(next, [Some(Millis::new(10)), Some(Millis::new(20)), None]);
}

#[test]
fn an_owners_use_shows_in_every_reading() {
    let mut probe = SimProbe::scheduled(vec![device(1)], vec![owner_use(0, 9, 1)]);
    let sample = probe.sample(Millis::ZERO).unwrap().remove(0);
    assert_eq!(sample.memory_used, Some(MiB::new(40_600)));
    assert_eq!(sample.processes, Some(vec![ProcessId(OWNER_PROCESS_FIRST)]));
    assert_eq!(sample.owner_queue, Some(OwnerQueue::Something));
}

#[test]
fn a_lost_device_has_no_sample_and_a_blind_one_is_unknown_not_zero() {
    let fault = |device, kind| Fault {
        from: Millis::new(5),
        until: Millis::new(9),
        device: DeviceId::new(device),
        kind,
    };
    let mut probe = SimProbe::scheduled(vec![device(1), device(2)], vec![])
        .with_faults(vec![fault(1, FaultKind::Lost), fault(2, FaultKind::Blind)]);
    let samples = probe.sample(Millis::new(5)).unwrap();
    assert_eq!(samples.len(), 1);
    assert_eq!(samples[0].utilisation, None);
    assert_eq!(samples[0].processes, None);
    assert_eq!(probe.sample(Millis::new(9)).unwrap().len(), 2);
}

#[test]
fn a_pattern_is_the_same_for_a_seed_and_leaves_both_idle_and_busy_times() {
    let pattern = |seed| Pattern {
        seed,
        idle: (Millis::new(50), Millis::new(100)),
        busy: (Millis::new(10), Millis::new(30)),
        utilisation: Percent::saturating(80),
        memory: MiB::new(1_000),
    };
    let run = |seed| {
        let mut probe = SimProbe::patterned(vec![device(1), device(2)], &pattern(seed));
        (0..2_000).map(|now| busy_devices(&mut probe, now).len()).collect::<Vec<_>>()
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
    let busy: usize = run(7).iter().sum();
    assert!((200..1_600).contains(&busy), "{busy} of 4,000 device-moments");
}
