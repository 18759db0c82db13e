//! Ledger time: where the cell's `now` comes from, and waiting for an instant of it.
//!
//! The leader stamps commands with it and nobody else reads it; order is the journal's index. A
//! clock never goes back. It is injected, so that `dev` can run an hour in a minute and tests need
//! not wait.

use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sublet_protocol::agent::ClockReading;
use sublet_protocol::units::{Millis, Timestamp};
use tokio::sync::watch;

/// Largest correction towards wall time: 500 ppm is one nanosecond in 2,000.
const SLEW_DIVISOR: u64 = 2_000;
/// A sleep is looked at again after this long at most: the clock may have been set forward.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// The shortest sleep: tokio's timer has a resolution of a millisecond.
const SLEEP_MIN: Duration = Duration::from_millis(1);

/// Which clock a cell runs on.
#[derive(Debug, Clone, Default)]
pub enum ClockKind {
    /// The machine's monotonic clock, drawn slowly towards its wall clock.
    #[default]
    Real,
    /// The machine's monotonic clock, this many times as fast, from the wall time of the start.
    Scaled(NonZeroU32),
    /// Stands still until it is moved. For tests.
    Manual(ManualClock),
}

/// A clock that is moved by hand. Clones are the same clock.
#[derive(Debug, Clone)]
pub struct ManualClock(Arc<watch::Sender<Timestamp>>);

impl ManualClock {
    /// Stands at `start`.
    #[must_use]
    pub fn new(start: Timestamp) -> Self {
        Self(Arc::new(watch::Sender::new(start)))
    }

    /// Moves it by `span`.
    pub fn advance(&self, span: Millis) {
        self.0.send_modify(|now| *now = now.after_millis(span));
    }
}

/// The cell's ledger clock. Cheap to clone; clones are the same clock.
#[derive(Debug, Clone)]
pub struct Clock(Arc<Source>);

#[derive(Debug)]
enum Source {
    Real { start: Instant, slewed: Mutex<Slewed> },
    Scaled { start: Instant, base: Mutex<Timestamp>, speed: u32 },
    Manual(ManualClock),
}

impl Clock {
    /// A clock of this kind that shows wall time now (a manual one: what it was made with).
    #[must_use]
    pub fn new(kind: ClockKind) -> Self {
        // `Instant` stops while the machine is suspended; a broker's machine is not. When it
        // matters (LR5) this becomes CLOCK_BOOTTIME, as it is in the agent.
        let start = Instant::now();
        Self(Arc::new(match kind {
            ClockKind::Real => {
                Source::Real { start, slewed: Mutex::new(Slewed { value: wall_nanos(), at: 0 }) }
            }
            ClockKind::Scaled(speed) => {
                let base = Mutex::new(Timestamp::new(wall_nanos() / 1_000_000));
                Source::Scaled { start, base, speed: speed.get() }
            }
            ClockKind::Manual(manual) => Source::Manual(manual),
        }))
    }

    /// Ledger time now. Never less than an earlier call returned.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        match &*self.0 {
            Source::Real { start, slewed } => {
                let mut slewed = slewed.lock().unwrap_or_else(PoisonError::into_inner);
                slewed.advance(nanos(start.elapsed()), wall_nanos());
                Timestamp::new(slewed.value / 1_000_000)
            }
            Source::Scaled { start, base, speed } => {
                let base = *base.lock().unwrap_or_else(PoisonError::into_inner);
                let elapsed = (nanos(start.elapsed()) / 1_000).saturating_mul(u64::from(*speed));
                base.after_millis(Millis::new(elapsed / 1_000))
            }
            Source::Manual(manual) => *manual.0.borrow(),
        }
    }

    /// What this machine's clocks show, in real time whatever the speed of ledger time: to be compared
    /// with those of agents.
    #[must_use]
    pub fn reading(&self) -> ClockReading {
        match &*self.0 {
            Source::Real { start, .. } | Source::Scaled { start, .. } => ClockReading {
                wall: Timestamp::new(wall_nanos() / 1_000_000),
                monotonic: Millis::new(nanos(start.elapsed()) / 1_000_000),
            },
            Source::Manual(manual) => {
                let wall = *manual.0.borrow();
                ClockReading { wall, monotonic: Millis::new(wall.get()) }
            }
        }
    }

    /// Steps forward to `past` if it is behind it: after a start no time lies before the journal's.
    pub fn not_before(&self, past: Timestamp) {
        let behind = past.since(self.now());
        match &*self.0 {
            Source::Real { slewed, .. } => {
                let mut slewed = slewed.lock().unwrap_or_else(PoisonError::into_inner);
                slewed.value = slewed.value.saturating_add(behind.get().saturating_mul(1_000_000));
            }
            Source::Scaled { base, .. } => {
                let mut base = base.lock().unwrap_or_else(PoisonError::into_inner);
                *base = base.after_millis(behind);
            }
            Source::Manual(manual) => manual.advance(behind),
        }
    }

    /// How much faster than the machine's clock it runs.
    #[must_use]
    pub fn speed(&self) -> u32 {
        match &*self.0 {
            Source::Real { .. } | Source::Manual(_) => 1,
            Source::Scaled { speed, .. } => *speed,
        }
    }

    /// Waits until ledger time `at`. Safe to drop while pending.
    pub async fn sleep_until(&self, at: Timestamp) {
        if let Source::Manual(manual) = &*self.0 {
            let mut moved = manual.0.subscribe();
            // The sender lives as long as this clock.
            let _ = moved.wait_for(|now| *now >= at).await;
            return;
        }
        loop {
            let left = at.since(self.now());
            if left == Millis::ZERO {
                return;
            }
            let real = left.get().div_ceil(u64::from(self.speed()));
            tokio::time::sleep(Duration::from_millis(real).clamp(SLEEP_MIN, SLEEP_MAX)).await;
        }
    }
}

/// A monotonic clock that is drawn towards wall time, all in nanoseconds.
#[derive(Debug)]
struct Slewed {
    /// What it shows: since the Unix epoch.
    value: u64,
    /// The monotonic instant at which it showed that.
    at: u64,
}

impl Slewed {
    /// Goes on to the monotonic instant `at`, with wall time `wall` to be drawn to.
    fn advance(&mut self, at: u64, wall: u64) {
        let elapsed = at.saturating_sub(self.at);
        let slew_max = elapsed / SLEW_DIVISOR;
        let free = self.value.saturating_add(elapsed);
        self.value = wall.clamp(free - slew_max, free.saturating_add(slew_max));
        self.at = self.at.max(at);
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// Wall time in nanoseconds since the Unix epoch; zero on a machine whose clock is before it.
fn wall_nanos() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000_000_000;

    #[test]
    fn a_jump_of_the_wall_clock_is_slewed_at_500_ppm_in_both_directions() {
        for wall in [10 * HOUR, 0] {
            let mut clock = Slewed { value: 5 * HOUR, at: 0 };
            clock.advance(2_000_000, wall);
            let drift = 1_000;
            let expected = if wall == 0 { 2_000_000 - drift } else { 2_000_000 + drift };
            assert_eq!(clock.value - 5 * HOUR, expected);
        }
    }

    #[test]
    fn a_small_difference_to_wall_time_is_closed_and_then_kept_closed() {
        let mut clock = Slewed { value: HOUR + 100, at: 0 };
        clock.advance(1_000_000_000, HOUR + 1_000_000_000);
        assert_eq!(clock.value, HOUR + 1_000_000_000);
        clock.advance(1_000_000_001, HOUR + 1_000_000_001);
        assert_eq!(clock.value, HOUR + 1_000_000_001);
    }

    #[test]
    fn no_clock_goes_back_and_a_start_steps_past_the_journal() {
        let far = Timestamp::new(wall_nanos() / 1_000_000 + 1_000_000);
        let speed = NonZeroU32::new(60).unwrap();
        let manual = ClockKind::Manual(ManualClock::new(Timestamp::new(5)));
        for kind in [ClockKind::Real, ClockKind::Scaled(speed), manual] {
            let clock = Clock::new(kind);
            clock.not_before(far);
            let mut last = far;
            for _ in 0..1_000 {
                let now = clock.now();
                assert!(now >= last, "{clock:?} went back from {last} to {now}");
                last = now;
            }
            clock.not_before(Timestamp::new(1));
            assert!(clock.now() >= last);
        }
    }

    #[tokio::test]
    async fn a_scaled_clock_passes_a_minute_in_a_moment() {
        let clock = Clock::new(ClockKind::Scaled(NonZeroU32::new(6_000).unwrap()));
        let (real, ledger) = (Instant::now(), clock.now());
        clock.sleep_until(ledger.after_millis(Millis::new(60_000))).await;
        assert!(clock.now().since(ledger) >= Millis::new(60_000));
        assert!(real.elapsed() < Duration::from_secs(5));
    }

    #[tokio::test]
    async fn a_sleeper_on_a_manual_clock_wakes_when_it_is_moved() {
        let manual = ManualClock::new(Timestamp::new(10));
        let clock = Clock::new(ClockKind::Manual(manual.clone()));
        let sleeper = tokio::spawn({
            let clock = clock.clone();
            async move { clock.sleep_until(Timestamp::new(20)).await }
        });
        manual.advance(Millis::new(9));
        tokio::task::yield_now().await;
        assert!(!sleeper.is_finished());
        manual.advance(Millis::new(1));
        sleeper.await.unwrap();
    }
}
