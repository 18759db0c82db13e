//! Periods: half-open spans of ledger time, months and days by the clocks of a time zone.
//!
//! Money is counted from instants, never from what clocks show: a zone only says where a month or a
//! day begins. So a day may have 23 or 25 hours, and each instant is in one day only. The database of
//! time zones is built in: what a statement says does not depend on the machine that makes it.

use jiff::civil::Date;
use jiff::tz::{TimeZone, TimeZoneDatabase};
use jiff::{Timestamp as Instant, ToSpan};
use sublet_protocol::units::Timestamp;

/// Why there is no such period.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PeriodError {
    /// Not the name of a time zone.
    #[error("there is no time zone {0:?}: write an IANA name, as Europe/Berlin, or UTC")]
    UnknownZone(String),
    /// Not a month.
    #[error("{0:?} is not a month: write year and month, as 2026-03")]
    Month(String),
    /// Neither a day nor an instant.
    #[error("{0:?} is neither a day, as 2026-03-01, nor an instant, as 2026-03-01T00:00:00Z")]
    Instant(String),
    /// It ends before it begins, or where it begins.
    #[error("a period must end after it begins")]
    Empty,
    /// Before 1970 or after the year 9999.
    #[error("the period is not between the years 1970 and 9999")]
    OutOfRange,
}

/// A span of time: its first instant and the first one behind it, in the days of a time zone.
#[derive(Debug, Clone)]
pub struct Period {
    from: Timestamp,
    until: Timestamp,
    zone: TimeZone,
}

impl Period {
    /// The span `[from, until)`.
    ///
    /// # Errors
    /// [`PeriodError::Empty`], [`PeriodError::UnknownZone`].
    pub fn new(from: Timestamp, until: Timestamp, zone: &str) -> Result<Self, PeriodError> {
        if until <= from {
            return Err(PeriodError::Empty);
        }
        Ok(Self { from, until, zone: find_zone(zone)? })
    }

    /// A month of the zone, written `2026-03`.
    ///
    /// # Errors
    /// [`PeriodError::Month`], [`PeriodError::UnknownZone`], [`PeriodError::OutOfRange`].
    pub fn month(text: &str, zone: &str) -> Result<Self, PeriodError> {
        let error = || PeriodError::Month(cut(text));
        let (year, month) = text.split_once('-').ok_or_else(error)?;
        let are_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        if year.len() != 4 || month.len() != 2 || !are_digits(year) || !are_digits(month) {
            return Err(error());
        }
        let year: i16 = year.parse().map_err(|_| error())?;
        let month: i8 = month.parse().map_err(|_| error())?;
        let first = Date::new(year, month, 1).map_err(|_| error())?;
        Self::month_from(first, find_zone(zone)?)
    }

    /// The month in which an instant lies, by UTC.
    ///
    /// # Errors
    /// [`PeriodError::OutOfRange`].
    pub fn utc_month_of(instant: Timestamp) -> Result<Self, PeriodError> {
        let day = date_of(&TimeZone::UTC, instant)?;
        Self::month_from(day.first_of_month(), TimeZone::UTC)
    }

    fn month_from(first: Date, zone: TimeZone) -> Result<Self, PeriodError> {
        let next = first.checked_add(1.month()).map_err(|_| PeriodError::OutOfRange)?;
        let (from, until) = (start_of(&zone, first)?, start_of(&zone, next)?);
        Ok(Self { from, until, zone })
    }

    /// From one day (or instant) to another, which is not in it: `2026-03-01` is the first instant
    /// of that day in the zone.
    ///
    /// # Errors
    /// [`PeriodError::Instant`], [`PeriodError::Empty`], [`PeriodError::UnknownZone`].
    pub fn between(from: &str, until: &str, zone: &str) -> Result<Self, PeriodError> {
        let found = find_zone(zone)?;
        Self::new(instant(from, &found)?, instant(until, &found)?, zone)
    }

    /// Its first instant.
    #[must_use]
    pub const fn from(&self) -> Timestamp {
        self.from
    }

    /// The first instant behind it.
    #[must_use]
    pub const fn until(&self) -> Timestamp {
        self.until
    }

    /// The name of its time zone.
    #[must_use]
    pub fn zone_name(&self) -> &str {
        self.zone.iana_name().unwrap_or("UTC")
    }

    /// An instant as clocks of the zone show it, with its offset: `2026-10-25T02:30:00+02:00`.
    /// Instants that cannot be shown are shown as the last that can.
    #[must_use]
    pub fn local(&self, instant: Timestamp) -> String {
        let shown = to_jiff(instant).unwrap_or(Instant::MAX);
        let zoned = shown.to_zoned_datetime(self.zone.clone());
        format!("{}", zoned.strftime("%Y-%m-%dT%H:%M:%S%:z"))
    }

    /// The spans into which the days of the zone cut `[begin, end)`, each with its day. A span
    /// without length is in one day.
    ///
    /// # Errors
    /// [`PeriodError::OutOfRange`].
    pub fn days(&self, begin: Timestamp, end: Timestamp) -> Result<Vec<DaySpan>, PeriodError> {
        let mut day = date_of(&self.zone, begin)?;
        let (mut from, mut spans) = (begin, Vec::new());
        loop {
            let next = day.tomorrow().map_err(|_| PeriodError::OutOfRange)?;
            let border = start_of(&self.zone, next)?;
            spans.push(DaySpan { day: Day(day), from, until: border.min(end) });
            if border >= end {
                return Ok(spans);
            }
            (day, from) = (next, border);
        }
    }
}

/// A day of a zone's calendar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Day(Date);

impl std::fmt::Display for Day {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(&self.0.to_string())
    }
}

/// What of a span lies in one day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DaySpan {
    /// Which day.
    pub day: Day,
    /// The first instant.
    pub from: Timestamp,
    /// The first instant behind it.
    pub until: Timestamp,
}

fn find_zone(name: &str) -> Result<TimeZone, PeriodError> {
    if name == "UTC" {
        return Ok(TimeZone::UTC);
    }
    let found = TimeZoneDatabase::bundled().get(name);
    found.map_err(|_| PeriodError::UnknownZone(cut(name)))
}

fn instant(text: &str, zone: &TimeZone) -> Result<Timestamp, PeriodError> {
    if let Ok(day) = text.parse::<Date>()
        && text.len() == 10
    {
        return start_of(zone, day);
    }
    let instant: Instant = text.parse().map_err(|_| PeriodError::Instant(cut(text)))?;
    from_jiff(instant)
}

/// The first instant of a day, whatever its clocks do at midnight.
fn start_of(zone: &TimeZone, day: Date) -> Result<Timestamp, PeriodError> {
    let start = day.to_zoned_datetime(zone.clone()).map_err(|_| PeriodError::OutOfRange)?;
    from_jiff(start.timestamp())
}

fn date_of(zone: &TimeZone, instant: Timestamp) -> Result<Date, PeriodError> {
    Ok(zone.to_datetime(to_jiff(instant)?).date())
}

fn to_jiff(instant: Timestamp) -> Result<Instant, PeriodError> {
    let millis = i64::try_from(instant.get()).map_err(|_| PeriodError::OutOfRange)?;
    Instant::from_millisecond(millis).map_err(|_| PeriodError::OutOfRange)
}

fn from_jiff(instant: Instant) -> Result<Timestamp, PeriodError> {
    let millis = u64::try_from(instant.as_millisecond());
    millis.map(Timestamp::new).map_err(|_| PeriodError::OutOfRange)
}

/// Enough of a text to know it again in a message.
fn cut(text: &str) -> String {
    text.chars().take(40).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hours(period: &Period) -> u64 {
        period.until().since(period.from()).get() / 3_600_000
    }

    #[test]
    fn a_month_has_the_hours_that_its_clocks_run() {
        for (month, zone, expected) in [
            ("2026-03", "UTC", 744),
            ("2026-03", "Europe/Berlin", 743),
            ("2026-10", "Europe/Berlin", 745),
            ("2028-02", "UTC", 29 * 24),
            ("2027-02", "UTC", 28 * 24),
            ("2026-04", "Asia/Kolkata", 720),
        ] {
            let period = Period::month(month, zone).unwrap();
            assert_eq!((hours(&period), period.zone_name()), (expected, zone), "{month}");
        }
    }

    #[test]
    fn months_of_a_zone_meet() {
        let [january, february] = ["2026-01", "2026-02"].map(|m| Period::month(m, "Africa/Cairo"));
        assert_eq!(january.unwrap().until(), february.unwrap().from());
    }

    #[test]
    fn a_day_without_midnight_begins_when_its_clocks_do() {
        // Clocks in Cairo went from 23:59:59 to 01:00 on 24 April 2026.
        let period = Period::between("2026-04-24", "2026-04-25", "Africa/Cairo").unwrap();
        assert_eq!(hours(&period), 23);
        assert_eq!(period.local(period.from()), "2026-04-24T01:00:00+03:00");
    }

    #[test]
    fn an_hour_that_clocks_show_twice_is_told_apart_by_its_offset() {
        let period = Period::month("2026-10", "Europe/Berlin").unwrap();
        let at = |text: &str| instant(text, &TimeZone::UTC).unwrap();
        assert_eq!(period.local(at("2026-10-25T00:30:00Z")), "2026-10-25T02:30:00+02:00");
        assert_eq!(period.local(at("2026-10-25T01:30:00Z")), "2026-10-25T02:30:00+01:00");
    }

    #[test]
    fn what_is_no_period_is_refused_and_says_what_to_write() {
        let month = |text| Period::month(text, "UTC").unwrap_err();
        for text in ["2026", "2026-13", "2026-00", "26-01", "2026-1", "2026-01-01", "+026-01", ""] {
            assert_eq!(month(text), PeriodError::Month(text.to_owned()));
        }
        assert_eq!(month("1969-12"), PeriodError::OutOfRange);
        let between = |from, until| Period::between(from, until, "UTC").unwrap_err();
        assert_eq!(between("2026-03-02", "2026-03-02"), PeriodError::Empty);
        assert_eq!(between("2026-02-30", "2026-03-02"), PeriodError::Instant("2026-02-30".into()));
        let zone = Period::month("2026-03", "Europe/Atlantis").unwrap_err();
        assert_eq!(zone, PeriodError::UnknownZone("Europe/Atlantis".into()));
    }
}
