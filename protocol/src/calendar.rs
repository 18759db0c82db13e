//! Calendars: when a tenant's off-peak hours are, by the clocks of its time zone.
//!
//! Only words: what instants they mean is found out by the broker, which knows the time zones. The
//! rules see instants only.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

/// Longest name of a time zone: the longest in the IANA database of 2026 has 32 characters.
const ZONE_MAX: usize = 48;
/// Most spans that a calendar lists.
pub const SPANS_MAX: usize = 16;
/// Minutes of a day.
const DAY_MINUTES: u16 = 24 * 60;

/// What is wrong with a calendar. The text says what to write.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CalendarError {
    /// Not the name of a time zone.
    #[error("a time zone has 1 to 48 characters of A-Z, a-z, 0-9, /, _, + and -")]
    Zone,
    /// Not a time of day.
    #[error("a time of day is written 00:00 to 24:00, as 22:30")]
    TimeOfDay,
    /// Not a day of the week.
    #[error("a day of the week is one of mon, tue, wed, thu, fri, sat and sun")]
    Day,
    /// A span without a day, or that ends where it begins.
    #[error("off-peak hours need a day of the week, and must not end when they begin")]
    EmptySpan,
    /// Too many spans.
    #[error("at most 16 off-peak spans may be listed")]
    TooManySpans,
}

/// The IANA name of a time zone, as `Europe/Berlin`. Whether there is such a zone is not checked here.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Zone(String);

impl Zone {
    /// The zone of this name; refuses what cannot be one.
    pub fn new(name: &str) -> Result<Zone, CalendarError> {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || "/_+-".contains(c);
        let is_name = (1..=ZONE_MAX).contains(&name.len()) && name.chars().all(is_allowed);
        if is_name { Ok(Zone(name.to_owned())) } else { Err(CalendarError::Zone) }
    }

    /// Its name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Zone {
    type Error = CalendarError;
    fn try_from(name: String) -> Result<Zone, CalendarError> {
        Zone::new(&name)
    }
}

impl From<Zone> for String {
    fn from(zone: Zone) -> String {
        zone.0
    }
}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// A time on a wall clock, in minutes from midnight: `22:30`. `24:00` is the end of the day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimeOfDay(u16);

impl TimeOfDay {
    /// This many minutes after midnight, at most 1,440.
    pub const fn new(minutes: u16) -> Result<TimeOfDay, CalendarError> {
        if minutes <= DAY_MINUTES { Ok(TimeOfDay(minutes)) } else { Err(CalendarError::TimeOfDay) }
    }

    /// Minutes from midnight, 0 to 1,440.
    #[must_use]
    pub const fn minutes(self) -> u16 {
        self.0
    }
}

impl fmt::Display for TimeOfDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{:02}:{:02}", self.0 / 60, self.0 % 60))
    }
}

impl FromStr for TimeOfDay {
    type Err = CalendarError;
    fn from_str(text: &str) -> Result<TimeOfDay, CalendarError> {
        let two = |part: &str| -> Option<u16> {
            let is_number = part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_digit());
            if is_number { part.parse().ok() } else { None }
        };
        let parts = text.split_once(':').and_then(|(hour, minute)| two(hour).zip(two(minute)));
        let (hour, minute) = parts.ok_or(CalendarError::TimeOfDay)?;
        if minute > 59 {
            return Err(CalendarError::TimeOfDay);
        }
        TimeOfDay::new(hour * 60 + minute)
    }
}

impl Serialize for TimeOfDay {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TimeOfDay {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<TimeOfDay, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = TimeOfDay;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a time of day as text")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<TimeOfDay, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Text)
    }
}

/// A day of the week, written as `mon`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "&'static str")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(rename_all = "snake_case"))]
pub enum Day {
    /// Monday.
    Mon,
    /// Tuesday.
    Tue,
    /// Wednesday.
    Wed,
    /// Thursday.
    Thu,
    /// Friday.
    Fri,
    /// Saturday.
    Sat,
    /// Sunday.
    Sun,
}

impl Day {
    /// All, from Monday.
    pub const ALL: [Day; 7] =
        [Day::Mon, Day::Tue, Day::Wed, Day::Thu, Day::Fri, Day::Sat, Day::Sun];

    /// As it is written.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Day::Mon => "mon",
            Day::Tue => "tue",
            Day::Wed => "wed",
            Day::Thu => "thu",
            Day::Fri => "fri",
            Day::Sat => "sat",
            Day::Sun => "sun",
        }
    }
}

impl From<Day> for &'static str {
    fn from(day: Day) -> &'static str {
        day.as_str()
    }
}

impl FromStr for Day {
    type Err = CalendarError;
    fn from_str(text: &str) -> Result<Day, CalendarError> {
        Day::ALL.into_iter().find(|day| day.as_str() == text).ok_or(CalendarError::Day)
    }
}

impl TryFrom<String> for Day {
    type Error = CalendarError;
    fn try_from(text: String) -> Result<Day, CalendarError> {
        text.parse()
    }
}

/// Hours of some days of the week. What ends before it begins ends on the next day.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OffPeak {
    /// On which days it begins.
    pub days: BTreeSet<Day>,
    /// When it begins.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "22:00"))]
    pub from: TimeOfDay,
    /// When it is over: on the same day if that is later than `from`, else on the next.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "06:00"))]
    pub until: TimeOfDay,
}

/// When it is off-peak for a tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Calendar {
    /// Whose clocks count.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "Europe/Berlin"))]
    pub zone: Zone,
    /// The off-peak hours; they may overlap. None means that there are none.
    pub off_peak: Vec<OffPeak>,
}

impl Calendar {
    /// Checks that every span has a day and a length, and that there are not too many.
    pub fn validate(&self) -> Result<(), CalendarError> {
        if self.off_peak.len() > SPANS_MAX {
            return Err(CalendarError::TooManySpans);
        }
        let is_empty = |span: &OffPeak| {
            let minutes = (span.from.minutes() % DAY_MINUTES, span.until.minutes());
            span.days.is_empty() || span.from == span.until || minutes == (0, 0)
        };
        if self.off_peak.iter().any(is_empty) { Err(CalendarError::EmptySpan) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_of_day_is_two_digits_a_colon_and_two_digits_up_to_midnight() {
        for (text, minutes) in [("00:00", 0), ("22:30", 1_350), ("24:00", 1_440)] {
            let time: TimeOfDay = text.parse().unwrap();
            assert_eq!((time.minutes(), time.to_string().as_str()), (minutes, text));
        }
        for bad in ["24:01", "25:00", "7:00", "07:0", "0700", "07:60", "+7:00", "07:00:00", ""] {
            assert_eq!(bad.parse::<TimeOfDay>(), Err(CalendarError::TimeOfDay), "{bad}");
        }
    }

    #[test]
    fn each_fault_of_a_calendar_is_refused_and_its_neighbour_is_not() {
        let span = |days: &[Day], from: &str, until: &str| OffPeak {
            days: days.iter().copied().collect(),
            from: from.parse().unwrap(),
            until: until.parse().unwrap(),
        };
        let with = |spans: Vec<OffPeak>| {
            Calendar { zone: Zone::new("Europe/Berlin").unwrap(), off_peak: spans }.validate()
        };
        let night = || span(&Day::ALL, "22:00", "06:00");
        assert_eq!(with(vec![]), Ok(()));
        assert_eq!(with(vec![night(); 16]), Ok(()));
        assert_eq!(with(vec![night(); 17]), Err(CalendarError::TooManySpans));
        assert_eq!(with(vec![span(&[], "22:00", "06:00")]), Err(CalendarError::EmptySpan));
        assert_eq!(with(vec![span(&[Day::Sat], "06:00", "06:00")]), Err(CalendarError::EmptySpan));
        assert_eq!(with(vec![span(&[Day::Sat], "24:00", "00:00")]), Err(CalendarError::EmptySpan));
        assert_eq!(with(vec![span(&[Day::Sat], "00:00", "24:00")]), Ok(()));
        for bad in ["", "Europe/Berlin ", "Zürich", &"x".repeat(49)] {
            assert_eq!(Zone::new(bad), Err(CalendarError::Zone), "{bad:?}");
        }
        assert!(Zone::new("America/Argentina/ComodRivadavia").is_ok());
    }
}
