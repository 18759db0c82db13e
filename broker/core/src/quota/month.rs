//! Calendar months, in UTC.

use serde::{Deserialize, Serialize};
use sublet_protocol::units::Timestamp;

/// A calendar month in UTC, counted from January 1970. Ledger time has no leap seconds.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash, Serialize, Deserialize,
)]
pub struct Month(u64);

const MILLIS_PER_DAY: u64 = 86_400_000;
/// Days of 400 Gregorian years.
const DAYS_PER_ERA: u64 = 146_097;
/// Days from 0000-03-01, where the count of eras begins, to 1970-01-01.
const DAYS_TO_EPOCH: u64 = 719_468;

impl Month {
    /// The month that `at` is in.
    ///
    /// Years are counted from March, so that the leap day is the last of its year: "chrono-Compatible
    /// Low-Level Date Algorithms" (H. Hinnant, 2013), `civil_from_days`.
    #[must_use]
    pub const fn of(at: Timestamp) -> Month {
        let days = at.get() / MILLIS_PER_DAY + DAYS_TO_EPOCH;
        let (era, day) = (days / DAYS_PER_ERA, days % DAYS_PER_ERA);
        let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
        let day_of_year = day - (365 * year + year / 4 - year / 100);
        let from_march = (5 * day_of_year + 2) / 153;
        let months = (era * 400 + year) * 12 + from_march + 2;
        Month(months - 1_970 * 12)
    }

    /// Its year, and its number from 1.
    #[must_use]
    pub const fn year_and_number(self) -> (u64, u64) {
        (1_970 + self.0 / 12, self.0 % 12 + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_month_begins_at_midnight_utc_on_its_first_day() {
        // Seconds since the epoch, as `date -u -d 2024-03-01 +%s` prints them.
        let firsts = [
            (0_u64, (1970, 1)),
            (951_782_400, (2000, 2)),
            (951_868_800, (2000, 3)),
            (1_704_067_200, (2024, 1)),
            (1_709_251_200, (2024, 3)),
            (1_735_689_600, (2025, 1)),
            (4_107_542_400, (2100, 3)),
        ];
        for (seconds, expected) in firsts {
            let at = Timestamp::new(seconds * 1_000);
            assert_eq!(Month::of(at).year_and_number(), expected, "{seconds}");
        }
        let leap_day = Timestamp::new(1_709_251_199_999);
        assert_eq!(Month::of(leap_day).year_and_number(), (2024, 2));
        let new_year = Timestamp::new(1_735_689_599_999);
        assert_eq!(Month::of(new_year).year_and_number(), (2024, 12));
    }

    #[test]
    fn months_follow_each_other_without_gap_for_two_centuries() {
        let mut last = Month::of(Timestamp::new(0));
        for day in 1..73_000 {
            let month = Month::of(Timestamp::new(day * MILLIS_PER_DAY));
            assert!(month == last || month.0 == last.0 + 1, "day {day}");
            last = month;
        }
        assert_eq!(last.year_and_number().0, 2_169);
    }
}
