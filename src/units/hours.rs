//! Off-peak hours: `22:00-06:00` each day, `mon-fri 20:00-24:00`, `sat,sun 00:00-24:00`.

use std::collections::BTreeSet;

use sublet_protocol::calendar::{Day, OffPeak, TimeOfDay};

/// Reads hours of some days of the week; without days they are those of each day.
pub(crate) fn parse_hours(text: &str) -> Result<OffPeak, String> {
    let error = || {
        format!(
            "{text:?} are no hours: write 22:00-06:00, mon-fri 20:00-24:00 or sat,sun 00:00-24:00"
        )
    };
    let text = text.trim();
    let (days, hours) = text.rsplit_once(' ').unwrap_or(("mon-sun", text));
    let days = days.split(',').map(|part| parse_days(part.trim()));
    let days: BTreeSet<Day> =
        days.collect::<Option<Vec<_>>>().ok_or_else(error)?.into_iter().flatten().collect();
    let (from, until) = hours.split_once('-').ok_or_else(error)?;
    let time = |text: &str| text.parse::<TimeOfDay>().map_err(|_| error());
    Ok(OffPeak { days, from: time(from)?, until: time(until)? })
}

/// One day or several in a row: `fri-mon` goes over the weekend.
fn parse_days(text: &str) -> Option<Vec<Day>> {
    let place = |name: &str| Day::ALL.iter().position(|day| day.as_str() == name);
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (place(first)?, place(last)?);
    let count = (last + Day::ALL.len() - first) % Day::ALL.len() + 1;
    Some(Day::ALL.into_iter().cycle().skip(first).take(count).collect())
}

/// As they are read.
pub(crate) fn show_hours(hours: &OffPeak) -> String {
    let names: Vec<&str> = hours.days.iter().map(|day| day.as_str()).collect();
    match names.len() {
        7 => format!("{}-{}", hours.from, hours.until),
        _ => format!("{} {}-{}", names.join(","), hours.from, hours.until),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hours_are_those_of_some_days_or_of_each() {
        let rows = [
            ("22:00-06:00", "22:00-06:00"),
            ("mon-fri 20:00-24:00", "mon,tue,wed,thu,fri 20:00-24:00"),
            ("sat,sun 00:00-24:00", "sat,sun 00:00-24:00"),
            ("fri-mon 22:00-06:00", "mon,fri,sat,sun 22:00-06:00"),
            ("mon-sun 01:00-02:00", "01:00-02:00"),
        ];
        for (text, shown) in rows {
            let hours = parse_hours(text).unwrap();
            assert_eq!(show_hours(&hours), shown, "{text}");
            assert_eq!(parse_hours(shown), Ok(hours), "{shown}");
        }
    }

    #[test]
    fn what_are_no_hours_is_refused_with_what_to_write() {
        for bad in ["", "22-6", "22:00", "22:00-25:00", "Mon 22:00-06:00", "mon,,tue 1:00-2:00"] {
            let error = parse_hours(bad).unwrap_err();
            assert!(error.contains("write 22:00-06:00"), "{bad}: {error}");
        }
    }
}
