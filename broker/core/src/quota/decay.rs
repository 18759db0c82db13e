//! Past use, halved every half-life, in integers.
//!
//! A tenant's past is the average of what counted against it, weighted by `2^(−age / half-life)`:
//! `past(t + d) = past(t) · f + counted · (1 − f)` with `f = 2^(−d / half-life)`. Under constant use
//! it tends to that use; after use has ended it halves every half-life. `f` is made of whole halvings
//! (shifts) and, for the rest of the exponent, the product of `2^(−1/2), 2^(−1/4), …` for the bits
//! that are set in it, each in 62 binary places, from a table of repeated integer square roots.
//! Everything is rounded down, so that every replica computes the same number; the error stays below
//! a hundredth of a per cent for steps of a millisecond and half-lives up to a year (tests).

use serde::{Deserialize, Serialize};
use sublet_protocol::units::{GpuMilli, Millis, Seconds, Timestamp};

use super::rows::at;

/// Binary places of the past, below a thousandth of a GPU.
pub(super) const PAST_PLACES: u32 = 32;
/// Binary places of a factor.
const PLACES: u32 = 48;
/// Binary places while a factor is computed.
const FINE: u32 = 62;
/// More than this counts as this: 10¹⁰ GPUs, so that no product overflows.
const COUNTED_MAX: u64 = 1 << 44;

/// An average above this counts as this, for the same reason.
const AVERAGE_MAX: u128 = 1 << (44 + PAST_PLACES + 2);

/// `2^(−1/2), 2^(−1/4), …` in [`FINE`] binary places, rounded down, times two. Those beyond the last
/// place of an exponent are never looked at.
const ROOTS: [u64; PLACES_LONG] = roots();
const PLACES_LONG: usize = 64;

const fn roots() -> [u64; PLACES_LONG] {
    let mut roots = [0; PLACES_LONG];
    let mut square: u128 = 1 << (FINE - 1);
    let mut place = 0;
    while place < PLACES_LONG {
        square = (square << FINE).isqrt();
        // All of it: it is below 2⁶³.
        let [a, b, c, d, e, f, g, h, ..] = (square << 1).to_le_bytes();
        roots[place] = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        place += 1;
    }
    roots
}

/// `2^(−span / half_life)` in [`PLACES`] binary places.
pub(super) fn factor(span: Millis, half_life: Seconds) -> u128 {
    let (whole, span) = (half_life.as_millis().get().max(1), span.get());
    let halvings = u32::try_from(span / whole).unwrap_or(PLACES);
    if halvings >= PLACES {
        return 0;
    }
    // The bits that are set, from the highest: it is less than a whole.
    let mut bits = fraction(span % whole, whole) << (u64::BITS - PLACES);
    let mut product: u64 = 1 << FINE;
    while bits != 0 {
        let place = bits.leading_zeros();
        bits ^= HIGHEST >> place;
        // Both twice as large, so that the upper half is the product in its places.
        let doubled = u128::from(product << 1) * u128::from(ROOTS[at(place)]);
        product = u64::try_from(doubled >> u64::BITS).unwrap_or(u64::MAX);
    }
    u128::from(product >> halvings >> (FINE - PLACES))
}

const HIGHEST: u64 = 1 << 63;

/// `part / whole` in [`PLACES`] binary places, rounded down; `part` is less than `whole`.
fn fraction(part: u64, whole: u64) -> u64 {
    const HALF: u32 = PLACES / 2;
    if whole < 1 << (u64::BITS - HALF) {
        // As by hand, half of the places at a time.
        let (high, rest) = ((part << HALF) / whole, (part << HALF) % whole);
        return (high << HALF) | ((rest << HALF) / whole);
    }
    let places = (u128::from(part) << PLACES) / u128::from(whole);
    u64::try_from(places).unwrap_or(u64::MAX)
}

/// What counted lately against a tenant or group, as an average.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Past {
    /// Thousandths of a GPU, with [`PAST_PLACES`] binary places.
    average: u128,
    /// When it was that.
    at: Timestamp,
}

fn placed(amount: GpuMilli) -> u128 {
    u128::from(amount.get().min(COUNTED_MAX)) << PAST_PLACES
}

impl Past {
    /// Nothing ever counted.
    pub(super) const NONE: Past = Past { average: 0, at: Timestamp::new(0) };

    /// Whether nothing of it is left, or there never was anything.
    pub(super) const fn is_none(&self) -> bool {
        self.average == 0
    }

    /// What it is `now`, if `counted` counted ever since it was last written.
    pub(super) fn now(&self, now: Timestamp, half_life: Seconds, counted: GpuMilli) -> u128 {
        if self.average == 0 && counted == GpuMilli::ZERO {
            return 0;
        }
        if now <= self.at {
            return self.average;
        }
        let kept = factor(now.since(self.at), half_life);
        let fresh = (1_u128 << PLACES) - kept;
        ((self.average * kept) >> PLACES) + ((placed(counted) * fresh) >> PLACES)
    }

    /// Writes down what it is `now`, before what counts changes.
    pub(super) fn advance(&mut self, now: Timestamp, half_life: Seconds, counted: GpuMilli) {
        self.average = self.now(now, half_life, counted);
        self.at = now;
    }

    /// Counts `amount` as if it had been used for `span` already: the entry penalty.
    pub(super) fn add(&mut self, amount: GpuMilli, span: Seconds, half_life: Seconds) {
        if span == Seconds::ZERO {
            return;
        }
        let fresh = (1_u128 << PLACES) - factor(span.as_millis(), half_life);
        let sum = self.average + ((placed(amount) * fresh) >> PLACES);
        self.average = sum.min(AVERAGE_MAX);
    }

    /// It in thousandths of a GPU, rounded down.
    #[cfg(test)]
    pub(super) const fn whole(placed: u128) -> u128 {
        placed >> PAST_PLACES
    }
}
