//! Instants: `2026-12-01T22:00:00+01:00`, or a span from now on, as `8h`.

use sublet_protocol::api::Time;
use sublet_protocol::units::{Seconds, Timestamp};

use super::parse_seconds;

/// An instant, as it was said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    /// This one.
    At(Timestamp),
    /// So long from now.
    In(Seconds),
}

impl When {
    /// The instant, if it is `now` now.
    pub(crate) fn instant(self, now: Timestamp) -> Timestamp {
        match self {
            When::At(instant) => instant,
            When::In(span) => now.after(span),
        }
    }
}

/// Reads an instant with its offset from UTC, or a span from now on.
pub(crate) fn parse_when(text: &str) -> Result<When, String> {
    let text = text.trim();
    if let Ok(Time(instant)) = text.parse() {
        return Ok(When::At(instant));
    }
    parse_seconds(text).map(When::In).map_err(|_| {
        format!(
            "{text:?} is no instant: write it as 2026-12-01T22:00:00+01:00, \
             2026-12-01T21:00:00Z or, from now on, 8h"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_needs_its_offset_and_a_span_its_unit() {
        let ten = Timestamp::new(1_796_158_800_000);
        assert_eq!(parse_when("2026-12-01T22:00:00+01:00"), Ok(When::At(ten)));
        assert_eq!(parse_when("2026-12-01T21:00:00Z"), Ok(When::At(ten)));
        assert_eq!(parse_when("90m"), Ok(When::In(Seconds::new(5_400))));
        assert_eq!(When::In(Seconds::new(60)).instant(ten), Timestamp::new(1_796_158_860_000));
        for bad in ["2026-12-01T22:00:00", "22:00", "tomorrow", "8", "", "2026-13-01T00:00:00Z"] {
            assert!(parse_when(bad).unwrap_err().contains("is no instant"), "{bad}");
        }
    }
}
