//! Off-peak hours as instants. Time zones are known here and nowhere else in the broker: the rules get
//! the instants with each request that waits for such hours.
//!
//! A calendar speaks of wall clocks, and they jump. Each time that a calendar names is taken for one
//! instant: the first at which the clocks show it or, where they skip it, that at which they skip it.
//! So two spans of which one ends when the other begins meet at one instant, on each day of the year:
//! no hour is in both, and none in neither. Where clocks show an hour twice, both belong to the span
//! that goes on behind it.

use jiff::civil::{Date, Weekday};
use jiff::tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase};
use jiff::{Span, Timestamp as Instant, ToSpan};
use sublet_protocol::calendar::{Calendar, Day, TimeOfDay, Zone};
use sublet_protocol::deferral::Window;
use sublet_protocol::units::Timestamp;
use thiserror::Error;

/// Why a calendar means no instants.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CalendarError {
    /// The name is in no time zone database.
    #[error("there is no time zone {0}: write an IANA name, as Europe/Berlin")]
    UnknownZone(Zone),
    /// Before the year −9999 or after 9999.
    #[error("an instant is out of range")]
    OutOfRange,
}

/// Checks that there is such a zone. The database is built in: it does not depend on the machine.
pub fn check_zone(zone: &Zone) -> Result<(), CalendarError> {
    time_zone(zone).map(|_| ())
}

fn time_zone(zone: &Zone) -> Result<TimeZone, CalendarError> {
    let found = TimeZoneDatabase::bundled().get(zone.as_str());
    found.map_err(|_| CalendarError::UnknownZone(zone.clone()))
}

/// The off-peak windows between two instants, in order and apart: spans that touch or overlap are one.
pub fn windows(
    calendar: &Calendar,
    from: Timestamp,
    until: Timestamp,
) -> Result<Vec<Window>, CalendarError> {
    let zone = time_zone(&calendar.zone)?;
    let [first, last] = [from, until].map(|instant| date_of(&zone, instant));
    // What began the day before may go on.
    let (mut day, last) = (next(first?, -1)?, last?);
    let mut found = Vec::new();
    while day <= last {
        let spans = calendar.off_peak.iter();
        for span in spans.filter(|span| span.days.contains(&day_of(day.weekday()))) {
            let over = if span.from < span.until { day } else { next(day, 1)? };
            let begins = instant(&zone, day, span.from)?.max(from);
            let ends = instant(&zone, over, span.until)?.min(until);
            if begins < ends {
                found.push(Window { from: begins, until: ends });
            }
        }
        day = next(day, 1)?;
    }
    found.sort_unstable();
    Ok(merged(found))
}

fn merged(sorted: Vec<Window>) -> Vec<Window> {
    let mut apart: Vec<Window> = Vec::new();
    for window in sorted {
        match apart.last_mut() {
            Some(last) if window.from <= last.until => last.until = last.until.max(window.until),
            Some(_) | None => apart.push(window),
        }
    }
    apart
}

/// The instant that a time on the clocks of a zone is taken for, as the module says.
fn instant(zone: &TimeZone, date: Date, time: TimeOfDay) -> Result<Timestamp, CalendarError> {
    let minutes = i64::from(time.minutes());
    let clock = date.at(0, 0, 0, 0).checked_add(minutes.minutes());
    let clock = clock.map_err(|_| CalendarError::OutOfRange)?;
    let ambiguous = zone.to_ambiguous_timestamp(clock);
    let found = match ambiguous.offset() {
        AmbiguousOffset::Unambiguous { offset } | AmbiguousOffset::Fold { before: offset, .. } => {
            offset.to_timestamp(clock)
        }
        AmbiguousOffset::Gap { after, .. } => {
            // Just before the clocks jump they would have shown less, had they jumped before.
            let before = after.to_timestamp(clock).map_err(|_| CalendarError::OutOfRange)?;
            let jump = zone.following(before).next().map(|jump| jump.timestamp());
            jump.map_or(Ok(before), Ok)
        }
    };
    from_jiff(found.map_err(|_| CalendarError::OutOfRange)?)
}

fn date_of(zone: &TimeZone, instant: Timestamp) -> Result<Date, CalendarError> {
    let millis = i64::try_from(instant.get()).map_err(|_| CalendarError::OutOfRange)?;
    let instant = Instant::from_millisecond(millis).map_err(|_| CalendarError::OutOfRange)?;
    Ok(zone.to_datetime(instant).date())
}

fn next(date: Date, days: i64) -> Result<Date, CalendarError> {
    date.checked_add(Span::new().days(days)).map_err(|_| CalendarError::OutOfRange)
}

fn from_jiff(instant: Instant) -> Result<Timestamp, CalendarError> {
    let millis = u64::try_from(instant.as_millisecond());
    millis.map(Timestamp::new).map_err(|_| CalendarError::OutOfRange)
}

const fn day_of(weekday: Weekday) -> Day {
    match weekday {
        Weekday::Monday => Day::Mon,
        Weekday::Tuesday => Day::Tue,
        Weekday::Wednesday => Day::Wed,
        Weekday::Thursday => Day::Thu,
        Weekday::Friday => Day::Fri,
        Weekday::Saturday => Day::Sat,
        Weekday::Sunday => Day::Sun,
    }
}

#[cfg(test)]
mod tests {
    use sublet_protocol::api::Time;
    use sublet_protocol::calendar::OffPeak;

    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse::<Time>().unwrap().0
    }

    fn time(text: &str) -> TimeOfDay {
        text.parse().unwrap()
    }

    fn span(days: &[Day], from: &str, until: &str) -> OffPeak {
        OffPeak { days: days.iter().copied().collect(), from: time(from), until: time(until) }
    }

    fn calendar(zone: &str, off_peak: Vec<OffPeak>) -> Calendar {
        let calendar = Calendar { zone: Zone::new(zone).unwrap(), off_peak };
        calendar.validate().unwrap();
        calendar
    }

    /// What the daily span means on one night, from noon to noon in UTC.
    #[track_caller]
    fn check(zone: &str, span_of: (&str, &str), noon: &str, expected: &[(&str, &str)]) {
        let daily = calendar(zone, vec![span(&Day::ALL, span_of.0, span_of.1)]);
        let noon = at(noon);
        let next = noon.after(sublet_protocol::units::Seconds::new(24 * 3_600));
        let expected: Vec<Window> = (expected.iter())
            .map(|(from, until)| Window { from: at(from), until: at(until) })
            .collect();
        assert_eq!(windows(&daily, noon, next), Ok(expected), "{zone} {span_of:?}");
    }

    #[test]
    fn a_night_lasts_as_long_as_the_clocks_say_also_when_they_jump() {
        let berlin = "Europe/Berlin";
        let night = ("22:00", "06:00");
        // Eight hours in winter and in summer; seven and nine where the clocks change.
        let rows = [
            ("2026-01-15T12:00:00Z", "2026-01-15T21:00:00Z", "2026-01-16T05:00:00Z"),
            ("2026-07-15T12:00:00Z", "2026-07-15T20:00:00Z", "2026-07-16T04:00:00Z"),
            ("2026-03-28T12:00:00Z", "2026-03-28T21:00:00Z", "2026-03-29T04:00:00Z"),
            ("2026-10-24T12:00:00Z", "2026-10-24T20:00:00Z", "2026-10-25T05:00:00Z"),
        ];
        for (noon, from, until) in rows {
            check(berlin, night, noon, &[(from, until)]);
        }
        // New York changes on other days.
        let noon = "2026-03-28T12:00:00Z";
        let expected = ("2026-03-29T02:00:00Z", "2026-03-29T10:00:00Z");
        check("America/New_York", night, noon, &[expected]);
        let (noon, early) = ("2026-03-07T12:00:00Z", "2026-03-08T03:00:00Z");
        check("America/New_York", night, noon, &[(early, "2026-03-08T10:00:00Z")]);
    }

    #[test]
    fn a_time_that_the_clocks_skip_is_when_they_skip_it() {
        let noon = "2026-03-28T12:00:00Z";
        let jump = "2026-03-29T01:00:00Z";
        check("Europe/Berlin", ("22:00", "02:30"), noon, &[("2026-03-28T21:00:00Z", jump)]);
        check("Europe/Berlin", ("02:30", "06:00"), noon, &[(jump, "2026-03-29T04:00:00Z")]);
        check("Europe/Berlin", ("02:00", "03:00"), noon, &[]);
        // In São Paulo they skipped midnight.
        let (noon, jump) = ("2018-11-03T15:00:00Z", "2018-11-04T03:00:00Z");
        check("America/Sao_Paulo", ("22:00", "24:00"), noon, &[("2018-11-04T01:00:00Z", jump)]);
        check("America/Sao_Paulo", ("00:00", "06:00"), noon, &[(jump, "2018-11-04T08:00:00Z")]);
    }

    #[test]
    fn a_time_that_the_clocks_show_twice_is_the_first() {
        let (noon, first) = ("2026-10-24T12:00:00Z", "2026-10-25T00:30:00Z");
        check("Europe/Berlin", ("22:00", "02:30"), noon, &[("2026-10-24T20:00:00Z", first)]);
        check("Europe/Berlin", ("02:30", "06:00"), noon, &[(first, "2026-10-25T05:00:00Z")]);
        // The hour from two to three comes twice and is two hours long.
        let two = ("2026-10-25T00:00:00Z", "2026-10-25T02:00:00Z");
        check("Europe/Berlin", ("02:00", "03:00"), noon, &[two]);
    }

    #[test]
    fn a_day_cut_in_two_has_no_double_and_no_missing_hour_all_the_year() {
        let years = [
            ("Europe/Berlin", 2026),
            ("Europe/Dublin", 2026),
            ("America/New_York", 2026),
            ("America/Sao_Paulo", 2018),
            ("Australia/Lord_Howe", 2026),
            ("Africa/Casablanca", 2026),
            ("Asia/Kathmandu", 2026),
            // A Friday was left out.
            ("Pacific/Apia", 2011),
        ];
        let cuts = ["00:00", "00:30", "02:00", "02:15", "02:30", "03:00", "22:00", "23:30"];
        let mut jumps = 0;
        for (zone, year) in years {
            let [from, until] = [year, year + 1].map(|year| at(&format!("{year}-01-01T00:00:00Z")));
            for (one, other) in cuts.iter().zip(cuts.iter().cycle().skip(3)) {
                let half = |begins, ends| {
                    let daily = calendar(zone, vec![span(&Day::ALL, begins, ends)]);
                    windows(&daily, from, until).unwrap()
                };
                let mut both = [half(one, other), half(other, one)].concat();
                both.sort_unstable();
                let ends = both.iter().map(|window| window.until);
                let begins = both.iter().skip(1).map(|window| window.from);
                assert!(ends.clone().zip(begins).all(|(end, begin)| end == begin), "{zone} {one}");
                assert_eq!(both.first().map(|window| window.from), Some(from), "{zone} {one}");
                assert_eq!(both.last().map(|window| window.until), Some(until), "{zone} {one}");
                let length = |window: &Window| window.until.since(window.from).get();
                let day = |pair: &[Window]| length(&pair[0]) + length(&pair[1]);
                jumps += both.windows(2).filter(|pair| day(pair) != 24 * 3_600_000).count();
            }
        }
        assert!(jumps > 100, "only {jumps} days have another length");
    }

    #[test]
    fn days_of_the_week_are_those_on_which_a_span_begins() {
        let weekend = vec![
            span(&[Day::Fri], "20:00", "24:00"),
            span(&[Day::Sat, Day::Sun], "00:00", "24:00"),
            span(&[Day::Sun], "18:00", "06:00"),
        ];
        // 2026-11-27 is a Friday.
        let [from, until] = ["2026-11-27T00:00:00Z", "2026-12-04T00:00:00Z"].map(at);
        let found = windows(&calendar("UTC", weekend), from, until).unwrap();
        let whole = Window { from: at("2026-11-27T20:00:00Z"), until: at("2026-11-30T06:00:00Z") };
        assert_eq!(found, [whole], "what touches or overlaps is one");
        // What began before is seen, cut to what was asked.
        let [from, until] = ["2026-11-30T03:00:00Z", "2026-11-30T05:00:00Z"].map(at);
        let rest =
            windows(&calendar("UTC", vec![span(&[Day::Sun], "18:00", "06:00")]), from, until);
        assert_eq!(rest, Ok(vec![Window { from, until }]));
    }

    #[test]
    fn a_zone_that_is_not_there_is_refused_by_name() {
        let zone = |name| Zone::new(name).unwrap();
        assert_eq!(check_zone(&zone("Europe/Berlin")), Ok(()));
        assert_eq!(check_zone(&zone("UTC")), Ok(()));
        let mars = zone("Mars/Olympus");
        assert_eq!(check_zone(&mars), Err(CalendarError::UnknownZone(mars.clone())));
        let error =
            windows(&calendar("Mars/Olympus", vec![]), at("2026-01-01T00:00:00Z"), Timestamp::MAX);
        assert_eq!(error, Err(CalendarError::UnknownZone(mars)));
    }
}
