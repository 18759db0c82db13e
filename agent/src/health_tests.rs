//! Faults, resets and clean looks.

use super::*;
use crate::probe::{Ecc, Rows, Unread};

const DEVICE: DeviceId = DeviceId::new(7);
const RULE: HealthRule = HealthRule { clean_looks: 3 };

fn well() -> Vitals {
    Vitals {
        energy: Some(5_000),
        temperature: Some(40),
        slowdown: Some(87),
        ecc: Some(Ecc { corrected: 3, uncorrected: 0 }),
        rows: Some(Rows::default()),
        hears_xids: true,
        ..Vitals::default()
    }
}

fn xids(codes: &[u32]) -> Vitals {
    Vitals { xids: codes.to_vec(), ..well() }
}

fn after_reset() -> Vitals {
    Vitals { energy: Some(10), ..well() }
}

/// The health after each of these looks, a period apart.
fn course(watch: &mut HealthWatch, looks: &[Option<Vitals>]) -> Vec<Health> {
    let looks = looks.iter().enumerate();
    looks
        .map(|(place, vitals)| {
            let now = Millis::new(30_000 * u64::try_from(place).unwrap());
            watch.on_look(RULE, now, DEVICE, vitals.as_ref()).0
        })
        .collect()
}

fn healths(looks: &[Option<Vitals>]) -> Vec<Health> {
    course(&mut HealthWatch::default(), looks)
}

use Health::{Degraded, Healthy, Unhealthy, Unknown};

#[test]
fn a_fatal_xid_counts_at_once_and_only_reset_and_clean_looks_end_it() {
    let later = |energy| Some(Vitals { energy: Some(energy), ..well() });
    let looks = [
        Some(well()),
        Some(xids(&[95])),
        later(6_000),
        later(7_000),
        later(8_000),
        later(9_000),
        later(10),
        later(20),
        later(30),
        later(40),
    ];
    let expected = [
        Healthy, Unhealthy, Unhealthy, Unhealthy, Unhealthy, Unhealthy, Degraded, Degraded,
        Healthy, Healthy,
    ];
    assert_eq!(healths(&looks), expected);
}

#[test]
fn each_fault_has_its_health() {
    let rows = [
        (xids(&[79]), Unhealthy),
        (xids(&[48]), Degraded),
        (xids(&[94]), Degraded),
        (xids(&[13, 31, 43, 45, 92]), Healthy),
        (xids(&[14, 999]), Healthy),
        (Vitals { ecc: Some(Ecc { corrected: 900, uncorrected: 0 }), ..well() }, Healthy),
        (Vitals { ecc: Some(Ecc { corrected: 3, uncorrected: 1 }), ..well() }, Degraded),
        (Vitals { rows: Some(Rows { is_pending: true, ..Rows::default() }), ..well() }, Degraded),
        (Vitals { rows: Some(Rows { has_failed: true, ..Rows::default() }), ..well() }, Unhealthy),
        (Vitals { rows: Some(Rows { uncorrectable: 1, ..Rows::default() }), ..well() }, Healthy),
        (Vitals { retirement_pending: Some(true), ..well() }, Degraded),
        (Vitals { temperature: Some(86), ..well() }, Healthy),
        (Vitals { temperature: Some(87), ..well() }, Degraded),
        (
            Vitals { unread: vec![Unread { reading: "power", cause: Cause::Device }], ..well() },
            Degraded,
        ),
        (
            Vitals {
                unread: vec![Unread { reading: "power", cause: Cause::Permission }],
                ..well()
            },
            Healthy,
        ),
        (Vitals { ecc: None, hears_xids: false, ..well() }, Unknown),
        (Vitals { ecc: None, ..well() }, Healthy),
        (Vitals::default(), Unknown),
    ];
    for (vitals, expected) in rows {
        assert_eq!(healths(&[Some(vitals.clone())]), [expected], "{vitals:?}");
    }
}

#[test]
fn a_programs_error_does_not_lose_the_gpu_and_every_code_is_counted() {
    let mut watch = HealthWatch::default();
    let seen = course(&mut watch, &[Some(xids(&[31])), Some(xids(&[31, 777])), Some(well())]);
    assert_eq!(seen, [Healthy; 3]);
    let counted: Vec<_> = watch.xids(DEVICE).unwrap().iter().map(|(code, n)| (*code, *n)).collect();
    assert_eq!(counted, [(31, 2), (777, 1)]);
    assert_eq!(watch.quarantine(DEVICE), None);
}

#[test]
fn what_ends_by_itself_needs_no_reset_but_clean_looks() {
    let hot = Vitals { temperature: Some(90), ..well() };
    let looks = [Some(hot.clone()), Some(hot), Some(well()), Some(well()), Some(well())];
    assert_eq!(healths(&looks), [Degraded, Degraded, Degraded, Degraded, Healthy]);
}

#[test]
fn a_fault_between_clean_looks_begins_the_count_anew() {
    let hot = Vitals { temperature: Some(90), ..well() };
    let looks: Vec<_> = [&hot, &well(), &well(), &hot, &well(), &well(), &well()]
        .map(|vitals| Some(vitals.clone()))
        .into();
    let seen = healths(&looks);
    assert_eq!(seen, [Degraded, Degraded, Degraded, Degraded, Degraded, Degraded, Healthy]);
}

#[test]
fn a_device_that_is_gone_is_unhealthy_and_back_only_after_clean_looks() {
    let looks = [Some(well()), None, None, Some(well()), Some(well()), Some(well())];
    assert_eq!(healths(&looks), [Healthy, Unhealthy, Unhealthy, Degraded, Degraded, Healthy]);
}

#[test]
fn a_device_that_did_not_answer_for_a_while_was_not_reset_unless_its_energy_begins_anew() {
    let sick = || Some(xids(&[48]));
    let seen = healths(&[sick(), None, Some(well()), Some(well()), Some(well()), Some(well())]);
    assert_eq!(seen, [Degraded, Unhealthy, Degraded, Degraded, Degraded, Degraded]);
    let back = || Some(after_reset());
    assert_eq!(
        healths(&[sick(), None, back(), back(), back()])[2..],
        [Degraded, Degraded, Healthy]
    );
    let old = |codes: &[u32]| Some(Vitals { energy: None, ..xids(codes) });
    let seen = healths(&[old(&[48]), None, old(&[]), old(&[]), old(&[])]);
    assert_eq!(seen[2..], [Degraded, Degraded, Healthy], "where nothing else can tell");
}

#[test]
fn a_pending_repair_that_is_done_shows_the_reset() {
    let pending = Vitals { rows: Some(Rows { is_pending: true, ..Rows::default() }), ..well() };
    let heard = Vitals { xids: vec![63], ..pending.clone() };
    let done = Vitals { rows: Some(Rows { uncorrectable: 1, ..Rows::default() }), ..well() };
    let looks = [heard, pending, done.clone(), done.clone(), done].map(Some);
    assert_eq!(healths(&looks), [Degraded, Degraded, Degraded, Degraded, Healthy]);
}

#[test]
fn a_repair_that_failed_is_not_ended_by_a_reset() {
    let failed = |energy| {
        let rows = Some(Rows { has_failed: true, ..Rows::default() });
        Some(Vitals { energy: Some(energy), rows, ..well() })
    };
    let looks = [failed(900), failed(5), failed(6), failed(7), failed(8), failed(9)];
    assert_eq!(healths(&looks), [Unhealthy; 6]);
}

#[test]
fn uncorrected_errors_count_since_the_driver_was_loaded_and_a_reset_begins_anew() {
    let errors = |uncorrected, energy| {
        let ecc = Some(Ecc { corrected: 0, uncorrected });
        Some(Vitals { ecc, energy: Some(energy), ..well() })
    };
    let looks =
        [errors(2, 100), errors(2, 200), errors(2, 300), errors(0, 5), errors(0, 6), errors(0, 7)];
    assert_eq!(healths(&looks), [Degraded, Degraded, Degraded, Degraded, Degraded, Healthy]);
}

#[test]
fn an_operators_word_stands_for_a_reset() {
    let mut watch = HealthWatch::default();
    assert_eq!(course(&mut watch, &[Some(xids(&[48])), Some(well())]), [Degraded, Degraded]);
    watch.on_reset(DEVICE);
    assert_eq!(
        course(&mut watch, &[Some(well()), Some(well()), Some(well())]),
        [Degraded, Degraded, Healthy]
    );
}

#[test]
fn a_quarantine_is_kept_over_a_restart_and_a_reset_meanwhile_is_seen() {
    let mut watch = HealthWatch::default();
    course(&mut watch, &[Some(well()), Some(xids(&[95]))]);
    let kept = serde_json::to_string(&watch).unwrap();
    let mut again: HealthWatch = serde_json::from_str(&kept).unwrap();
    assert_eq!(again, watch);
    assert_eq!(course(&mut again, &[Some(well()), Some(well())]), [Unhealthy, Unhealthy]);
    let mut reset: HealthWatch = serde_json::from_str(&kept).unwrap();
    let clean = Some(after_reset());
    assert_eq!(
        course(&mut reset, &[clean.clone(), clean.clone(), clean]),
        [Degraded, Degraded, Healthy]
    );
}

#[test]
fn changes_are_told_once() {
    let mut watch = HealthWatch::default();
    let mut changes = Vec::new();
    let reset = after_reset();
    for vitals in [xids(&[48]), xids(&[48]), reset.clone(), reset.clone(), reset.clone(), reset] {
        changes.extend(watch.on_look(RULE, Millis::ZERO, DEVICE, Some(&vitals)).1);
    }
    let expected = [Change::Quarantined(vec![Fault::Xid(48)]), Change::Reset, Change::Released];
    assert_eq!(changes, expected);
}
