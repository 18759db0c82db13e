//! Instants of ledger time as bodies hold them.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

use crate::units::Timestamp;

/// An instant as RFC 3339 in UTC with milliseconds: `2026-11-30T08:50:13.123Z`.
///
/// Instants after the year 9999 are shown as its last millisecond.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub Timestamp);

/// Why a text is not an instant.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} is not an instant: write RFC 3339, as 2026-11-30T08:50:13.123Z")]
pub struct TimeError(String);

/// 9999-12-31T23:59:59.999Z without the two days that time zones may take off the end.
const MILLIS_MAX: i64 = 253_402_207_200_999;

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = i64::try_from(self.0.get()).unwrap_or(i64::MAX).min(MILLIS_MAX);
        let instant = jiff::Timestamp::from_millisecond(millis).unwrap_or(jiff::Timestamp::MAX);
        f.pad(&format!("{instant:.3}"))
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Time {
    type Err = TimeError;
    fn from_str(text: &str) -> Result<Time, TimeError> {
        let error = || TimeError(text.chars().take(40).collect());
        let instant: jiff::Timestamp = text.parse().map_err(|_| error())?;
        let millis = u64::try_from(instant.as_millisecond()).map_err(|_| error())?;
        Ok(Time(Timestamp::new(millis)))
    }
}

impl From<Timestamp> for Time {
    fn from(instant: Timestamp) -> Time {
        Time(instant)
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

struct TimeVisitor;

impl Visitor<'_> for TimeVisitor {
    type Value = Time;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an instant in RFC 3339")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Time, E> {
        text.parse().map_err(E::custom)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(TimeVisitor)
    }
}
