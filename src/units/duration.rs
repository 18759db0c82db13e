//! Spans of time: `2h30m`, `90s`, `1d`; whole seconds, rounded up. A bare number is refused.

use jiff::{Span, SpanRelativeTo};
use sublet_protocol::units::Seconds;

/// Reads a span of time. A day counts 24 hours.
pub(crate) fn parse_seconds(text: &str) -> Result<Seconds, String> {
    let text = text.trim();
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("{text:?} has no unit: write {text}s, {text}m or {text}h"));
    }
    // Some write a decimal point so, others group thousands: 2,500s is not guessed at.
    if text.contains(',') {
        return Err(format!("{text:?} has a comma: write 1.5h, or 2500s"));
    }
    let error = |_| format!("{text:?} is no span of time: write it as 90s, 2h30m or 1d");
    let span: Span = text.parse().map_err(error)?;
    let duration = span.to_duration(SpanRelativeTo::days_are_24_hours()).map_err(error)?;
    let whole = u64::try_from(duration.as_secs()).ok().filter(|_| !duration.is_negative());
    let whole = whole.ok_or_else(|| format!("{text:?} is before zero"))?;
    let rest = u64::from(duration.subsec_nanos() > 0);
    Ok(Seconds::new(whole.saturating_add(rest)))
}

/// As people read it: the two largest units, as `2h 30m`.
pub(crate) fn show_seconds(span: Seconds) -> String {
    let seconds = span.get();
    let (days, hours) = (seconds / 86_400, seconds % 86_400 / 3_600);
    let (minutes, rest) = (seconds % 3_600 / 60, seconds % 60);
    let parts = match (days, hours, minutes) {
        (0, 0, 0) => [(rest, "s"), (0, "")],
        (0, 0, _) => [(minutes, "m"), (rest, "s")],
        (0, _, _) => [(hours, "h"), (minutes, "m")],
        (_, _, _) => [(days, "d"), (hours, "h")],
    };
    match parts {
        [(first, unit), (0, _)] => format!("{first}{unit}"),
        [(first, unit), (second, smaller)] => format!("{first}{unit} {second}{smaller}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_with_their_units_and_rounded_up() {
        let rows = [
            ("90s", 90),
            ("2h30m", 9_000),
            ("2h 30m", 9_000),
            ("1d", 86_400),
            ("1.5h", 5_400),
            ("1ms", 1),
            ("0s", 0),
            ("90 s", 90),
            ("90sec", 90),
            ("15m", 900),
            ("15min", 900),
            ("1 hour", 3_600),
            ("1w", 604_800),
        ];
        for (text, seconds) in rows {
            assert_eq!(parse_seconds(text), Ok(Seconds::new(seconds)), "{text}");
        }
    }

    #[test]
    fn what_is_no_span_is_refused_with_what_to_write() {
        for (text, expected) in [
            ("90", "has no unit"),
            ("soon", "is no span of time"),
            ("", "is no span of time"),
            ("-5m", "before zero"),
            ("1,5h", "has a comma"),
            ("2,500s", "has a comma"),
            ("2h30", "is no span of time"),
            ("5M", "is no span of time"),
            ("1e3s", "is no span of time"),
            ("1mo", "is no span of time"),
        ] {
            let error = parse_seconds(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn spans_are_shown_in_their_two_largest_units() {
        for (seconds, text) in
            [(0, "0s"), (59, "59s"), (60, "1m"), (9_000, "2h 30m"), (90_000, "1d 1h")]
        {
            assert_eq!(show_seconds(Seconds::new(seconds)), text);
        }
    }
}
