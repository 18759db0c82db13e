//! The agent's clock: monotonic, going on in suspend, and in demonstrations faster than real time.

use std::num::NonZeroU32;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sublet_protocol::agent::ClockReading;
use sublet_protocol::transport::Pending;
use sublet_protocol::units::{Millis, Timestamp};
use tokio::time::Instant;

use crate::guard::boottime_now;

/// Tells the time and waits. Never goes back.
pub trait Clock: Send + Sync {
    /// Now.
    fn now(&self) -> Millis;

    /// What the machine's clocks show, in real time whatever the speed of this one. For the broker
    /// to compare; nothing here depends on it.
    fn reading(&self) -> ClockReading {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH);
        let wall = wall.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX));
        ClockReading { wall: Timestamp::new(wall), monotonic: boottime_now() }
    }

    /// Waits until the clock shows `at` or later; not at all if it does already.
    fn sleep_until(&self, at: Millis) -> Pending<'_, ()>;
}

/// The clock of a real node: `CLOCK_BOOTTIME` (LR5).
#[derive(Debug, Clone, Copy, Default)]
pub struct BootClock;

/// The longest sleep between two looks at the boot clock: timers may stand still in suspend.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl Clock for BootClock {
    fn now(&self) -> Millis {
        boottime_now()
    }

    fn sleep_until(&self, at: Millis) -> Pending<'_, ()> {
        Box::pin(async move {
            loop {
                let left = Duration::from_millis(at.saturating_sub(boottime_now()).get());
                if left.is_zero() {
                    return;
                }
                tokio::time::sleep(left.min(LOOK_EVERY)).await;
            }
        })
    }
}

/// A clock that starts at zero and runs `speed` times as fast as real time, on tokio's timer (whose
/// grain is a real millisecond).
#[derive(Debug, Clone, Copy)]
pub struct ScaledClock {
    origin: Instant,
    speed: NonZeroU32,
}

impl ScaledClock {
    /// A clock that shows zero now. Copies of it agree.
    #[must_use]
    pub fn new(speed: NonZeroU32) -> Self {
        Self { origin: Instant::now(), speed }
    }
}

impl Clock for ScaledClock {
    fn now(&self) -> Millis {
        let micros = u64::try_from(self.origin.elapsed().as_micros()).unwrap_or(u64::MAX);
        Millis::new(micros.saturating_mul(u64::from(self.speed.get())) / 1_000)
    }

    fn sleep_until(&self, at: Millis) -> Pending<'_, ()> {
        let micros = at.get().saturating_mul(1_000).div_ceil(u64::from(self.speed.get()));
        let wake = self.origin.checked_add(Duration::from_micros(micros));
        Box::pin(async move {
            match wake {
                Some(wake) => tokio::time::sleep_until(wake).await,
                None => std::future::pending().await,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_scaled_clock_shows_at_least_what_was_waited_for() {
        let clock = ScaledClock::new(NonZeroU32::new(3_600).unwrap());
        let real = std::time::Instant::now();
        clock.sleep_until(Millis::new(100_000)).await;
        assert!(clock.now() >= Millis::new(100_000));
        assert!(real.elapsed() < Duration::from_secs(10));
        clock.sleep_until(Millis::ZERO).await;
    }

    #[tokio::test]
    async fn the_boot_clock_waits_in_real_time() {
        let start = BootClock.now();
        BootClock.sleep_until(start.saturating_add(Millis::new(20))).await;
        assert!(BootClock.now() >= start.saturating_add(Millis::new(20)));
    }
}
