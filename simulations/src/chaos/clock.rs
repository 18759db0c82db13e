//! The clocks of simulated machines: a monotonic clock with a rate error, and the ledger clock that
//! a broker draws from it.
//!
//! True time is known to the simulation only, in milliseconds.

use sublet_protocol::units::{Millis, Timestamp};

/// Parts of a whole in which rates are given.
const WHOLE: u64 = 1_000_000;
/// Largest correction of ledger time towards wall time, as in the broker's clock: 500 ppm.
const SLEW_DIVISOR: u64 = 2_000;

/// A monotonic clock that goes on in suspend (LR5).
#[derive(Debug, Clone, Copy)]
pub(super) struct MonoClock {
    /// True time at which it showed `base`.
    since: u64,
    base: u64,
    /// How much it counts in a million true milliseconds.
    rate: u64,
}

impl MonoClock {
    /// A clock that shows `base` at `now` and is wrong by `ppm`.
    pub(super) fn new(now: u64, base: u64, ppm: i64) -> MonoClock {
        MonoClock { since: now, base, rate: WHOLE.saturating_add_signed(ppm) }
    }

    /// What it shows at true time `at`.
    pub(super) fn at(&self, at: u64) -> Millis {
        let passed = at.saturating_sub(self.since).saturating_mul(self.rate) / WHOLE;
        Millis::new(self.base.saturating_add(passed))
    }

    /// The first true time at which it shows `local` or later.
    pub(super) fn when(&self, local: Millis) -> u64 {
        let span = local.get().saturating_sub(self.base);
        let passed = u128::from(span) * u128::from(WHOLE);
        let passed = passed.div_ceil(u128::from(self.rate));
        self.since.saturating_add(u64::try_from(passed).unwrap_or(u64::MAX / 2))
    }

    /// Loses `span` of true time, as `CLOCK_MONOTONIC` does in suspend. Only a mutation does that.
    pub(super) fn lose(&mut self, at: u64, span: u64) {
        let shown = self.at(at).get().saturating_sub(span.saturating_mul(self.rate) / WHOLE);
        *self = MonoClock { since: at, base: shown, rate: self.rate };
    }
}

/// Ledger time on one broker: its monotonic clock, slewed towards its wall clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct LedgerClock {
    mono: MonoClock,
    /// In microseconds.
    value: u64,
    /// The monotonic clock in microseconds when `value` was right.
    at: u64,
    /// Wall time less true time, in milliseconds; jumps.
    wall_offset: i64,
}

impl LedgerClock {
    /// The clock of a process that starts at `now`: it shows wall time.
    pub(super) fn new(now: u64, ppm: i64, wall_offset: i64) -> LedgerClock {
        let mono = MonoClock::new(now, 0, ppm);
        let value = now.saturating_add_signed(wall_offset).saturating_mul(1_000);
        LedgerClock { mono, value, at: 0, wall_offset }
    }

    /// The wall clock is set by somebody.
    pub(super) fn jump(&mut self, by: i64) {
        self.wall_offset = self.wall_offset.saturating_add(by);
    }

    pub(super) const fn wall_offset(&self) -> i64 {
        self.wall_offset
    }

    /// Ledger time now; never less than before.
    pub(super) fn now(&mut self, now: u64) -> Timestamp {
        let mono = now.saturating_sub(self.mono.since).saturating_mul(self.mono.rate) / 1_000;
        let elapsed = mono.saturating_sub(self.at);
        let slew = elapsed / SLEW_DIVISOR;
        let free = self.value.saturating_add(elapsed);
        let wall = now.saturating_add_signed(self.wall_offset).saturating_mul(1_000);
        self.value = wall.clamp(free - slew, free.saturating_add(slew));
        self.at = self.at.max(mono);
        Timestamp::new(self.value / 1_000)
    }

    /// Steps forward to `past` if it is behind it: no command may be stamped before the journal.
    pub(super) fn not_before(&mut self, now: u64, past: Timestamp) {
        let behind = past.since(self.now(now)).get();
        self.value = self.value.saturating_add(behind.saturating_mul(1_000));
    }

    /// About when it will show `at`; at least `now`.
    pub(super) fn when(&mut self, now: u64, at: Timestamp) -> u64 {
        let left = at.since(self.now(now)).get();
        now.saturating_add(left.saturating_mul(WHOLE).div_ceil(self.mono.rate))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_wrong_by_five_percent_is_turned_back_exactly() {
        for ppm in [-50_000, -1, 0, 1, 50_000] {
            let clock = MonoClock::new(1_000, 7, ppm);
            for local in [7, 8, 1_000, 123_457] {
                let at = clock.when(Millis::new(local));
                assert!(clock.at(at) >= Millis::new(local));
                assert!(at == 1_000 || clock.at(at - 1) < Millis::new(local));
            }
        }
    }

    #[test]
    fn ledger_time_does_not_follow_a_jump_of_the_wall_clock() {
        let mut clock = LedgerClock::new(10_000, 0, 0);
        clock.jump(3_600_000);
        assert_eq!(clock.now(12_000), Timestamp::new(12_001));
        clock.jump(-7_200_000);
        assert_eq!(clock.now(14_000), Timestamp::new(14_000));
        clock.not_before(14_000, Timestamp::new(20_000));
        assert_eq!(clock.now(14_000), Timestamp::new(20_000));
    }
}
