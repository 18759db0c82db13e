//! Each reading at its boundary, every combination of unknown ones, and hysteresis.

use sublet_protocol::ids::{DeviceId, GpuModel};

use super::*;
use crate::probe::{ProcessId, Vitals};

const MINUTE: u64 = 60_000;

fn quiet() -> Sample {
    Sample {
        device: DeviceId::new(1),
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

fn with(change: impl FnOnce(&mut Sample)) -> Sample {
    let mut sample = quiet();
    change(&mut sample);
    sample
}

fn at(minutes: u64) -> Millis {
    Millis::new(minutes * MINUTE)
}

/// Feeds one sample a minute and returns the last verdict.
fn verdict_after(samples: &[Sample]) -> Verdict {
    let mut detector = IdleDetector::new(IdleRule::default());
    let minutes = (0..).map(at).zip(samples);
    minutes.map(|(now, sample)| detector.on_sample(now, sample)).last().unwrap()
}

#[test]
fn each_reading_has_its_boundary() {
    let rows: Vec<(Sample, Look)> = vec![
        (quiet(), Look::Quiet),
        (with(|s| s.utilisation = Some(Percent::saturating(3))), Look::Quiet),
        (with(|s| s.utilisation = Some(Percent::saturating(4))), Look::Busy),
        (with(|s| s.memory_used = Some(MiB::new(856))), Look::Quiet),
        (with(|s| s.memory_used = Some(MiB::new(857))), Look::Held),
        (with(|s| s.processes = Some(vec![ProcessId(1)])), Look::Busy),
        (with(|s| s.owner_queue = Some(OwnerQueue::Something)), Look::Busy),
        (with(|s| s.health = Health::Degraded), Look::Sick),
        (with(|s| s.health = Health::Unhealthy), Look::Sick),
    ];
    for (sample, expected) in rows {
        assert_eq!(look(&IdleRule::default(), &sample), expected, "{sample:?}");
    }
}

#[test]
fn no_combination_of_unknown_readings_is_quiet() {
    let hide: [fn(&mut Sample); 6] = [
        |s| s.utilisation = None,
        |s| s.memory_used = None,
        |s| s.memory_driver = None,
        |s| s.processes = None,
        |s| s.owner_queue = None,
        |s| s.health = Health::Unknown,
    ];
    for chosen in 1_u32..(1 << hide.len()) {
        let mut sample = quiet();
        for (place, hide_one) in hide.iter().enumerate() {
            if chosen & (1 << place) != 0 {
                hide_one(&mut sample);
            }
        }
        let seen = look(&IdleRule::default(), &sample);
        assert!(matches!(seen, Look::Unknown(_)), "{seen:?} of {sample:?}");
    }
}

#[test]
fn a_reading_that_shows_use_counts_even_where_another_is_missing() {
    let busy = with(|s| (s.utilisation, s.memory_used) = (Some(Percent::saturating(90)), None));
    assert_eq!(look(&IdleRule::default(), &busy), Look::Busy);
    let process = with(|s| (s.processes, s.utilisation) = (Some(vec![ProcessId(1)]), None));
    assert_eq!(look(&IdleRule::default(), &process), Look::Busy);
}

#[test]
fn memory_held_at_zero_percent_is_held_with_and_without_a_visible_process() {
    let held = with(|s| s.memory_used = Some(MiB::new(24_576)));
    assert_eq!(look(&IdleRule::default(), &held), Look::Held);
    let held = Sample { processes: Some(vec![ProcessId(1)]), ..held };
    assert_eq!(look(&IdleRule::default(), &held), Look::Held);
    assert_eq!(verdict_after(&vec![held; 60]), Verdict::NotIdle(Look::Held));
}

#[test]
fn a_device_is_idle_after_ten_quiet_minutes_and_not_before() {
    assert_eq!(verdict_after(&vec![quiet(); 10]), Verdict::Settling { since: at(0) });
    assert_eq!(verdict_after(&vec![quiet(); 11]), Verdict::Idle { since: at(0) });
}

#[test]
fn one_dip_inside_training_makes_no_offer() {
    let training = with(|s| {
        s.utilisation = Some(Percent::saturating(97));
        s.processes = Some(vec![ProcessId(9)]);
    });
    let dip = quiet();
    let mut samples = vec![training.clone(); 20];
    samples.extend(vec![dip; 9]);
    samples.push(training);
    assert!(samples.len() > 11);
    let mut detector = IdleDetector::new(IdleRule::default());
    for (minute, sample) in (0..).zip(&samples) {
        let verdict = detector.on_sample(at(minute), sample);
        assert!(!matches!(verdict, Verdict::Idle { .. }), "minute {minute}: {verdict:?}");
    }
}

#[test]
fn idle_ends_with_the_first_sample_that_is_not_quiet_and_starts_anew() {
    let mut samples = vec![quiet(); 11];
    samples.push(with(|s| s.utilisation = None));
    assert_eq!(verdict_after(&samples), Verdict::NotIdle(Look::Unknown(Missing::Utilisation)));
    samples.extend(vec![quiet(); 10]);
    assert_eq!(verdict_after(&samples), Verdict::Settling { since: at(12) });
}

#[test]
fn time_that_nobody_looked_at_does_not_count_as_quiet() {
    let mut detector = IdleDetector::new(IdleRule::default());
    detector.on_sample(at(0), &quiet());
    assert_eq!(detector.on_sample(at(30), &quiet()), Verdict::Settling { since: at(30) });
}
