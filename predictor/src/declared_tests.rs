//! Exact integer arithmetic at its boundaries.

use sublet_protocol::requests::{COUNT_MAX, DURATION_MAX, MEMORY_MAX};
use sublet_protocol::units::{GpuMilli, Millis};

use super::*;
use crate::{Deadline, Question, predict};

const OPEN: Buffers = Buffers { cap: Cap::Open, ..Buffers::CALIBRATED };

fn declared(memory: u64, duration: u64) -> Declared {
    Declared {
        gpus: 2,
        gpu: GpuMilli::DEVICE,
        memory: MiB::new(memory),
        duration: Seconds::new(duration),
    }
}

/// (memory q50, memory bound, duration q50, duration q90).
fn values(memory: u64, duration: u64, buffers: &Buffers) -> (u64, u64, u64, u64) {
    let answer = predict(&Question::new(declared(memory, duration)), buffers).unwrap();
    let (memory, duration) = (answer.memory, answer.duration);
    (memory.q50.get(), memory.bound.get(), duration.q50.get(), duration.q90.get())
}

#[test]
fn an_open_bound_is_fifteen_and_twenty_percent_more_rounded_up() {
    let rows = [
        ((0, 1), (0, 0, 1, 2)),
        ((1, 4), (1, 2, 4, 5)),
        ((20, 5), (20, 23, 5, 6)),
        ((21, 6), (21, 25, 6, 8)),
        ((19, 10), (19, 22, 10, 12)),
        ((100, 3_600), (100, 115, 3_600, 4_320)),
        ((81_920, 3_599), (81_920, 94_208, 3_599, 4_319)),
    ];
    for ((memory, duration), expected) in rows {
        assert_eq!(values(memory, duration, &OPEN), expected, "{memory} MiB, {duration} s");
    }
}

#[test]
fn a_capped_bound_is_never_above_what_was_declared() {
    assert_eq!(values(20_480, 3_600, &Buffers::CALIBRATED), (20_480, 20_480, 3_600, 3_600));
    let largest = (MEMORY_MAX.get(), DURATION_MAX.get());
    let (_, memory, _, duration) = values(largest.0, largest.1, &Buffers::CALIBRATED);
    assert_eq!((memory, duration), largest);
}

#[test]
fn plain_takes_ninety_percent_rounded_up_and_stretches_it_no_further_than_declared() {
    let rows = [
        ((10, 10), (9, 10, 9, 10)),
        ((11, 11), (10, 11, 10, 11)),
        ((1, 1), (1, 1, 1, 1)),
        ((81_920, 3_600), (73_728, 81_920, 3_240, 3_600)),
    ];
    for ((memory, duration), expected) in rows {
        assert_eq!(values(memory, duration, &Buffers::PLAIN), expected, "{memory}, {duration}");
    }
    let open = Buffers { cap: Cap::Open, ..Buffers::PLAIN };
    assert_eq!(values(1_000, 1_000, &open), (900, 1_035, 900, 1_080));
}

#[test]
fn quantiles_and_bounds_never_decrease() {
    for buffers in [Buffers::CALIBRATED, Buffers::PLAIN, OPEN] {
        for amount in 1..2_000 {
            let (q50, bound, d50, d90) = values(amount, amount, &buffers);
            assert!(q50 <= bound && d50 <= d90, "{amount} with {buffers:?}");
        }
    }
}

#[test]
fn the_answer_says_where_it_comes_from_and_that_nothing_is_sure() {
    let answer = predict(&Question::new(declared(8, 8)), &Buffers::default()).unwrap();
    assert_eq!(answer.gpus, 2);
    assert_eq!(answer.confidence, Permille::ZERO);
    assert_eq!(
        answer.provenance,
        Provenance { layer: PredictionLayer::Declared, version: VERSION }
    );
    let sent = answer.prediction();
    assert_eq!((sent.layer, sent.duration_q90), (PredictionLayer::Declared, Seconds::new(8)));
}

#[test]
fn a_passed_deadline_gives_the_same_values_as_a_fallback() {
    let question = Question::new(declared(8, 8));
    let late = Question { spent: Millis::new(500), ..question };
    let (in_time, late) = (predict(&question, &OPEN).unwrap(), predict(&late, &OPEN).unwrap());
    assert_eq!(late.provenance.layer, PredictionLayer::Fallback);
    assert_eq!(Answer { provenance: in_time.provenance, ..late }, in_time);
}

#[test]
fn a_deadline_is_one_to_five_hundred_milliseconds() {
    for (millis, is_allowed) in [(0, false), (1, true), (500, true), (501, false)] {
        assert_eq!(Deadline::new(Millis::new(millis)).is_ok(), is_allowed, "{millis}");
    }
    let deadline = Deadline::new(Millis::new(20)).unwrap();
    assert!(!deadline.has_passed(Millis::new(19)) && deadline.has_passed(Millis::new(20)));
}

#[test]
fn each_declared_amount_is_refused_just_outside_its_range() {
    type Change = fn(&mut Declared);
    let rows: [(&str, Change, Change); 7] = [
        ("gpus", |d| d.gpus = 0, |d| d.gpus = 1),
        ("gpus", |d| d.gpus = COUNT_MAX + 1, |d| d.gpus = COUNT_MAX),
        ("gpu", |d| d.gpu = GpuMilli::ZERO, |d| d.gpu = GpuMilli::new(1)),
        ("gpu", |d| d.gpu = GpuMilli::new(1_001), |d| d.gpu = GpuMilli::new(1_000)),
        ("memory", |d| d.memory = MiB::MAX, |d| d.memory = MEMORY_MAX),
        ("duration", |d| d.duration = Seconds::ZERO, |d| d.duration = Seconds::new(1)),
        ("duration", |d| d.duration = Seconds::MAX, |d| d.duration = DURATION_MAX),
    ];
    for (name, bad, good) in rows {
        let (mut refused, mut accepted) = (declared(1, 1), declared(1, 1));
        bad(&mut refused);
        good(&mut accepted);
        let error = predict(&Question::new(refused), &OPEN).unwrap_err();
        assert!(matches!(error, Error::DeclaredOutOfRange { field, .. } if field == name));
        assert!(predict(&Question::new(accepted), &OPEN).is_ok(), "neighbour of {name}");
    }
}

#[test]
fn a_buffer_that_turns_its_purpose_round_is_refused() {
    let part = Buffers { memory_part: Permille::new(1_001), ..OPEN };
    let stretch = Buffers { duration_stretch: Permille::new(999), ..OPEN };
    for buffers in [part, stretch] {
        let error = predict(&Question::new(declared(1, 1)), &buffers).unwrap_err();
        assert!(matches!(error, Error::BufferOutOfRange { .. }), "{error}");
    }
}
