//! Past use halves every half-life, however often it is looked at.

use super::super::decay::Past;
use super::*;

const HALF_LIFE: Seconds = Seconds::new(7 * 24 * 3_600);
const GPUS: GpuMilli = GpuMilli::new(12_000);

const fn instant(millis: u64) -> Timestamp {
    Timestamp::new(1_700_000_000_000 + millis)
}

/// A past of 12 GPUs used for ever.
fn steady(half_life: Seconds) -> Past {
    let mut past = Past::default();
    past.advance(instant(0), half_life, GpuMilli::ZERO);
    past.add(GPUS, Seconds::new(1_000 * half_life.get()), half_life);
    past
}

#[track_caller]
fn assert_near(found: u128, expected: u64) {
    let expected = u128::from(expected) << 32;
    let error = found.abs_diff(expected);
    assert!(error * 1_000 <= expected, "{} is not {}", found >> 32, expected >> 32);
}

#[test]
fn a_past_is_half_after_one_half_life_and_a_quarter_after_two() {
    let past = steady(HALF_LIFE);
    let week = HALF_LIFE.as_millis().get();
    let after = |millis| past.now(instant(millis), HALF_LIFE, GpuMilli::ZERO);
    assert_near(after(0), 12_000);
    assert_near(after(week), 6_000);
    assert_near(after(2 * week), 3_000);
    // 2^(−1/2) and 2^(−3/4) of 12,000.
    assert_near(after(week / 2), 8_485);
    assert_near(after(week / 4 * 3), 7_135);
    assert_eq!(after(60 * week), 0, "in the end it is forgotten");
}

#[test]
fn a_past_halves_as_well_when_it_is_written_down_again_and_again() {
    for (half_life, steps) in [(HALF_LIFE, 50_000), (Seconds::new(31_536_000), 30_000)] {
        let whole = half_life.as_millis().get();
        let mut past = steady(half_life);
        for step in 1..=steps {
            past.advance(instant(whole / steps * step), half_life, GpuMilli::ZERO);
        }
        assert_near(past.now(instant(whole), half_life, GpuMilli::ZERO), 6_000);
    }
}

#[test]
fn steps_of_one_millisecond_decay_as_one_step_of_their_sum() {
    let many_gpus = GpuMilli::new(12_000_000);
    for half_life in [HALF_LIFE, Seconds::new(31_536_000)] {
        let mut past = Past::default();
        past.advance(instant(0), half_life, GpuMilli::ZERO);
        for step in 1..=20_000 {
            past.advance(instant(step), half_life, many_gpus);
        }
        let mut once = Past::default();
        once.advance(instant(0), half_life, GpuMilli::ZERO);
        once.advance(instant(20_000), half_life, many_gpus);
        let at = |past: &Past| past.now(instant(20_000), half_life, many_gpus);
        let (many, one) = (at(&past), at(&once));
        assert!(many.abs_diff(one) * 1_000 <= one, "{many} in steps, {one} at once");
    }
}

#[test]
fn constant_use_is_approached_and_never_passed() {
    let mut past = Past::default();
    past.advance(instant(0), HALF_LIFE, GpuMilli::ZERO);
    let week = HALF_LIFE.as_millis().get();
    assert_near(past.now(instant(week), HALF_LIFE, GPUS), 6_000);
    assert_near(past.now(instant(20 * week), HALF_LIFE, GPUS), 12_000);
    assert!(Past::whole(past.now(instant(100 * week), HALF_LIFE, GPUS)) <= 12_000);
}

#[test]
fn a_grant_counts_at_once_as_if_it_had_run_for_the_entry_penalty_and_only_once() {
    let mut tree = Tree::default();
    tree.insert(name(0), None);
    let penalty = Moment { entry_penalty: Seconds::new(1_000), ..at(0) };
    tree.take(name(0), model(), milli(8_000), &penalty);
    // The entry penalty is one half-life here: half of what was granted.
    let past = |tree: &Tree| {
        let sums = tree.node(name(0)).unwrap().row(model()).sums;
        Past::whole(sums.past.now(at(0).now, at(0).half_life, milli(8_000)))
    };
    assert_eq!(past(&tree), 4_000);
    tree.give_back(name(0), model(), milli(8_000), &penalty);
    assert_eq!(past(&tree), 4_000, "an end counts nothing and gives nothing back");
}

#[test]
fn the_largest_amounts_over_the_longest_time_do_not_overflow() {
    let half_life = Seconds::new(31_536_000);
    let mut past = steady(half_life);
    for step in 0..100 {
        past.add(GpuMilli::MAX, Seconds::MAX, half_life);
        past.advance(instant(step * 1_000_000_000_000), half_life, GpuMilli::MAX);
    }
    assert!(past.now(Timestamp::MAX, half_life, GpuMilli::MAX) > 0);
    // Nor many at one instant.
    for _ in 0..1_000 {
        past.add(GpuMilli::MAX, Seconds::MAX, half_life);
    }
    assert!(past.now(instant(99_000_000_000_001), half_life, GpuMilli::MAX) > 0);
}

/// `2^(−span / half-life)` by a look at every binary place, as it was first written.
fn plain_factor(span: u64, half_life: u64) -> u128 {
    let (whole, span) = (u128::from(half_life.max(1)), u128::from(span));
    let halvings = span / whole;
    if halvings >= 48 {
        return 0;
    }
    let rest = ((span % whole) << 48) / whole;
    let (mut product, mut root): (u128, u128) = (1 << 62, 1 << 61);
    for place in 1..=48 {
        root = (root << 62).isqrt();
        if (rest >> (48 - place)) & 1 == 1 {
            product = (product * root) >> 62;
        }
    }
    product >> halvings >> 14
}

#[test]
fn a_factor_is_the_product_of_the_roots_of_its_places_to_the_last_bit() {
    use super::super::decay::factor;
    let mut random = Random(29);
    for _ in 0..20_000 {
        let (long, far) = (1 + random.below(25), 1 + random.below(45));
        let (half_life, span) = (1 + random.below(1 << long), random.below(1 << far));
        let found = factor(sublet_protocol::units::Millis::new(span), Seconds::new(half_life));
        assert_eq!(found, plain_factor(span, half_life * 1_000), "{span} of {half_life} s");
    }
}
