//! The clock of the guard.

use nix::time::{ClockId, clock_gettime};
use sublet_protocol::units::Millis;

/// Milliseconds since the machine booted, suspend included (`CLOCK_BOOTTIME`).
///
/// # Panics
/// Never on a Linux that runs this crate: the clock exists since 2.6.39 and its values fit.
#[must_use]
pub fn boottime_now() -> Millis {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("CLOCK_BOOTTIME exists on every Linux");
    let seconds = u64::try_from(now.tv_sec()).expect("a time since boot is not negative");
    let nanos = u64::try_from(now.tv_nsec()).expect("a part of a second is not negative");
    Millis::new(seconds.saturating_mul(1_000).saturating_add(nanos / 1_000_000))
}
