//! Deferral: a request that may wait for better hours, with the instants that this means.
//!
//! The windows were found out when the request was submitted, by the calendar that its tenant had
//! then: a calendar that changes later changes nothing for it.

use serde::{Deserialize, Serialize};

use crate::units::Timestamp;

/// A span of time, without its last instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Window {
    /// Its first instant.
    pub from: Timestamp,
    /// The first instant behind it.
    pub until: Timestamp,
}

/// Which hours a request would rather start in, and how long it may wait for them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Deferral {
    /// Not before this, as it was asked.
    pub not_before: Option<Timestamp>,
    /// When its lease should be over, as it was asked.
    pub deadline: Option<Timestamp>,
    /// The off-peak windows until `start_by`, in order and apart; empty if it was not asked to wait
    /// for them.
    pub windows: Vec<Window>,
    /// Its last chance: later than this it is not to wait.
    pub start_by: Timestamp,
}

/// Most windows of one request: two a day for a month.
pub const WINDOWS_MAX: usize = 64;

impl Deferral {
    /// Whether the windows are in order and apart, not too many, and nothing begins behind `start_by`.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let has_length = self.windows.iter().all(|window| window.from < window.until);
        let are_apart = self.windows.windows(2).all(|pair| pair[0].until < pair[1].from);
        let last = self.windows.last().map(|window| window.until).into_iter();
        let in_time = last.chain(self.not_before).all(|instant| instant <= self.start_by);
        self.windows.len() <= WINDOWS_MAX && has_length && are_apart && in_time
    }

    /// Whether a start then is one that was asked for: in a window, or at the last chance.
    #[must_use]
    pub fn asks_for(&self, at: Timestamp) -> bool {
        at <= self.start_by && self.opens_at(at) == at
    }

    /// The first instant from `at` on that is in a window, or not before the last chance.
    #[must_use]
    pub fn opens_at(&self, at: Timestamp) -> Timestamp {
        let at = at.max(self.not_before.unwrap_or(Timestamp::ZERO));
        if at >= self.start_by {
            return at;
        }
        let open = self.windows.iter().find(|window| at < window.until);
        open.map_or(self.start_by, |window| window.from.max(at))
    }

    /// When the window that is open at `at` closes; nothing if it does not before the last chance.
    #[must_use]
    pub fn closes_at(&self, at: Timestamp) -> Option<Timestamp> {
        if at >= self.start_by {
            return None;
        }
        let open = self.windows.iter().find(|window| window.from <= at && at < window.until)?;
        Some(open.until).filter(|until| *until < self.start_by)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(millis: u64) -> Timestamp {
        Timestamp::new(millis)
    }

    fn nights() -> Deferral {
        let windows =
            [(10, 20), (30, 40)].map(|(from, until)| Window { from: at(from), until: at(until) });
        Deferral { not_before: None, deadline: None, windows: windows.into(), start_by: at(50) }
    }

    #[test]
    fn it_opens_with_each_window_and_for_good_in_the_end() {
        let rows = [(0, 10, None), (10, 10, Some(20)), (19, 19, Some(20)), (20, 30, None)];
        let more = [(39, 39, Some(40)), (40, 50, None), (50, 50, None), (99, 99, None)];
        for (now, opens, closes) in rows.into_iter().chain(more) {
            let deferral = nights();
            assert_eq!(deferral.opens_at(at(now)), at(opens), "{now}");
            assert_eq!(deferral.closes_at(at(now)), closes.map(at), "{now}");
        }
        let late = Deferral { not_before: Some(at(15)), ..nights() };
        assert_eq!(late.opens_at(at(0)), at(15));
        let only = Deferral { not_before: Some(at(50)), windows: vec![], ..nights() };
        assert_eq!((only.opens_at(at(0)), only.opens_at(at(60))), (at(50), at(60)));
        // A window that ends where everything opens does not close.
        let last = Deferral { start_by: at(40), ..nights() };
        assert_eq!((last.closes_at(at(35)), last.opens_at(at(40))), (None, at(40)));
    }

    #[test]
    fn it_asks_for_its_windows_and_for_its_last_chance() {
        let asked = [10, 19, 30, 39, 50];
        for instant in 0..60 {
            assert_eq!(nights().asks_for(at(instant)), in_rows(instant, &asked), "{instant}");
        }
    }

    /// Whether the instant is in a span whose first and last are in the rows, or the one left over.
    fn in_rows(instant: u64, rows: &[u64]) -> bool {
        rows.chunks(2).any(|span| span[0] <= instant && instant <= *span.last().unwrap_or(&span[0]))
    }

    #[test]
    fn what_is_out_of_order_is_not_sound() {
        let window = |from, until| Window { from: at(from), until: at(until) };
        let with = |windows: Vec<Window>| Deferral { windows, ..nights() }.is_sound();
        assert!(nights().is_sound() && with(vec![]));
        assert!(!with(vec![window(10, 10)]), "a window without length");
        assert!(!with(vec![window(10, 20), window(20, 30)]), "two that are one");
        assert!(!with(vec![window(30, 40), window(10, 20)]), "backwards");
        assert!(!with(vec![window(10, 51)]) && with(vec![window(10, 50)]), "behind the last start");
        assert!(!Deferral { not_before: Some(at(51)), ..nights() }.is_sound());
        let many = |count: u64| (0..count).map(|n| window(2 * n, 2 * n + 1)).collect();
        let of =
            |count| Deferral { windows: many(count), start_by: at(999), ..nights() }.is_sound();
        assert!(of(64) && !of(65));
    }
}
