//! Quantities: integers with their unit in the type and the field private.
//!
//! Arithmetic is `checked_…` or `saturating_…`, chosen by the caller on purpose. Money is never
//! saturated, so [`MicroCredits`](crate::money::MicroCredits) offers only the checked kind.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! quantity {
    ($(#[$doc:meta])* $name:ident($repr:ty), $unit:literal) => {
        $(#[$doc])*
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name($repr);

        impl $name {
            /// None of it.
            pub const ZERO: $name = $name(0);
            /// The most that can be written.
            pub const MAX: $name = $name(<$repr>::MAX);

            #[doc = concat!("This many ", $unit, ".")]
            #[must_use]
            pub const fn new(value: $repr) -> Self {
                $name(value)
            }

            #[doc = concat!("How many ", $unit, ".")]
            #[must_use]
            pub const fn get(self) -> $repr {
                self.0
            }

            /// The sum, or nothing if it cannot be written.
            #[must_use]
            pub const fn checked_add(self, other: Self) -> Option<Self> {
                match self.0.checked_add(other.0) {
                    Some(value) => Some($name(value)),
                    None => None,
                }
            }

            /// The difference, or nothing if it is below zero.
            #[must_use]
            pub const fn checked_sub(self, other: Self) -> Option<Self> {
                match self.0.checked_sub(other.0) {
                    Some(value) => Some($name(value)),
                    None => None,
                }
            }

            /// The sum, at most [`Self::MAX`].
            #[must_use]
            pub const fn saturating_add(self, other: Self) -> Self {
                $name(self.0.saturating_add(other.0))
            }

            /// The difference, at least zero.
            #[must_use]
            pub const fn saturating_sub(self, other: Self) -> Self {
                $name(self.0.saturating_sub(other.0))
            }

            /// `count` times this, or nothing if it cannot be written.
            #[must_use]
            pub const fn checked_mul(self, count: $repr) -> Option<Self> {
                match self.0.checked_mul(count) {
                    Some(value) => Some($name(value)),
                    None => None,
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

quantity!(
    /// Thousandths of one GPU: 1,000 is a whole device.
    GpuMilli(u64),
    "thousandths of a GPU"
);
quantity!(
    /// Memory in MiB (2²⁰ bytes).
    MiB(u64),
    "MiB"
);
quantity!(
    /// Thousandths of one CPU core.
    CpuMilli(u64),
    "thousandths of a CPU core"
);
quantity!(
    /// A span of time in whole seconds.
    Seconds(u64),
    "seconds"
);
quantity!(
    /// A span of time in milliseconds, or an instant on one machine's monotonic clock.
    Millis(u64),
    "milliseconds"
);
quantity!(
    /// An instant of the cell's ledger time: milliseconds since 1970-01-01 00:00 UTC.
    Timestamp(u64),
    "milliseconds since the Unix epoch"
);
quantity!(
    /// GPU time: thousandths of a GPU times milliseconds. A GPU-hour is 3.6 × 10⁹ of it.
    GpuTime(u64),
    "thousandths of a GPU times milliseconds"
);
quantity!(
    /// Thousandths: 1,000 is all of it.
    Permille(u16),
    "thousandths"
);

/// By how much a wall clock is ahead of another, in milliseconds; below zero if it is behind.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct ClockOffset(i64);

impl ClockOffset {
    /// This many milliseconds.
    #[must_use]
    pub const fn new(millis: i64) -> Self {
        ClockOffset(millis)
    }

    /// How many milliseconds.
    #[must_use]
    pub const fn get(self) -> i64 {
        self.0
    }

    /// By how much `clock` is ahead of `other`, at most what can be written.
    #[must_use]
    pub fn between(clock: Timestamp, other: Timestamp) -> Self {
        let span = i64::try_from(clock.0.abs_diff(other.0)).unwrap_or(i64::MAX);
        ClockOffset(if clock >= other { span } else { -span })
    }

    /// The offset if the clock were `span` further ahead, at most what can be written.
    #[must_use]
    pub fn ahead_by(self, span: Millis) -> Self {
        ClockOffset(self.0.saturating_add(i64::try_from(span.0).unwrap_or(i64::MAX)))
    }

    /// Its size, whichever way it goes.
    #[must_use]
    pub const fn size(self) -> Millis {
        Millis(self.0.unsigned_abs())
    }
}

impl GpuMilli {
    /// One whole device.
    pub const DEVICE: GpuMilli = GpuMilli(1_000);
}

impl GpuTime {
    /// One GPU for one second.
    pub const GPU_SECOND: GpuTime = GpuTime(1_000_000);

    /// This much GPU for so long, or nothing if it cannot be written.
    #[must_use]
    pub const fn over(amount: GpuMilli, span: Millis) -> Option<GpuTime> {
        match amount.0.checked_mul(span.0) {
            Some(value) => Some(GpuTime(value)),
            None => None,
        }
    }
}

impl Seconds {
    /// The span in milliseconds, at most [`Millis::MAX`].
    #[must_use]
    pub const fn as_millis(self) -> Millis {
        Millis(self.0.saturating_mul(1_000))
    }
}

impl Millis {
    /// The span in whole seconds, rounded down.
    #[must_use]
    pub const fn as_seconds_floor(self) -> Seconds {
        Seconds(self.0 / 1_000)
    }
}

impl Timestamp {
    /// The instant `span` later, at most the end of time.
    #[must_use]
    pub const fn after(self, span: Seconds) -> Timestamp {
        Timestamp(self.0.saturating_add(span.as_millis().0))
    }

    /// The instant `span` later, at most the end of time.
    #[must_use]
    pub const fn after_millis(self, span: Millis) -> Timestamp {
        Timestamp(self.0.saturating_add(span.0))
    }

    /// The time from `earlier` to this, zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Timestamp) -> Millis {
        Millis(self.0.saturating_sub(earlier.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_below_zero_is_nothing_or_zero_as_asked() {
        assert_eq!(MiB::new(1).checked_sub(MiB::new(2)), None);
        assert_eq!(MiB::new(1).saturating_sub(MiB::new(2)), MiB::ZERO);
    }

    #[test]
    fn an_offset_has_a_sign_and_never_overflows() {
        let (early, late) = (Timestamp::new(5), Timestamp::new(9));
        assert_eq!(ClockOffset::between(late, early), ClockOffset::new(4));
        assert_eq!(ClockOffset::between(early, late), ClockOffset::new(-4));
        assert_eq!(ClockOffset::new(-4).ahead_by(Millis::new(1)), ClockOffset::new(-3));
        assert_eq!(ClockOffset::new(-4).size(), Millis::new(4));
        let most = ClockOffset::between(Timestamp::MAX, Timestamp::ZERO);
        assert_eq!(most.ahead_by(Millis::MAX), ClockOffset::new(i64::MAX));
        assert_eq!(ClockOffset::new(i64::MIN).size(), Millis::new(1 << 63));
    }

    #[test]
    fn an_instant_moves_by_seconds_in_milliseconds() {
        assert_eq!(Timestamp::new(5).after(Seconds::new(2)), Timestamp::new(2_005));
        assert_eq!(Timestamp::new(5).since(Timestamp::new(9)), Millis::ZERO);
    }
}
