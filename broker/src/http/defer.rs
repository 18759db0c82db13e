//! A request that is to wait for better hours: what instants that means, by the calendar that its
//! tenant has now.

use sublet_core::State;
use sublet_core::matching::LATE_MAX;
use sublet_core::quota::Node;
use sublet_protocol::api::{DeferCreate, RequestCreate};
use sublet_protocol::calendar::Calendar;
use sublet_protocol::deferral::{Deferral, WINDOWS_MAX};
use sublet_protocol::ids::TenantId;
use sublet_protocol::units::{Seconds, Timestamp};

use super::app::App;
use super::error::ApiError;
use crate::calendar;

/// How long a request without a deadline waits for off-peak hours at the most.
const PATIENCE: Seconds = Seconds::new(7 * 24 * 3_600);
/// How far ahead anything is deferred: the longest that a lease may last.
const HORIZON: Seconds = Seconds::new(30 * 24 * 3_600);

/// What the body asks for; nothing if it is to start as soon as it can.
pub(crate) async fn resolve(
    app: &App,
    tenant: TenantId,
    body: &RequestCreate,
) -> Result<Option<Deferral>, ApiError> {
    let Some(asked) = &body.defer else { return Ok(None) };
    let read =
        app.cell.read(|state| (calendar_of(state, tenant).cloned(), state.policy().start_timeout));
    let (calendar, start_timeout) = read.await?;
    let needed = start_timeout.saturating_add(Seconds::new(body.duration.get()));
    resolved(asked, needed, calendar.as_ref(), app.cell.now()).map(Some)
}

/// The tenant's own off-peak hours, else those of the nearest group that has some.
pub(crate) fn calendar_of(state: &State, tenant: TenantId) -> Option<&Calendar> {
    let mut next = Some(tenant);
    while let Some(id) = next {
        let own = state.tenants().get(&id).and_then(|tenant| tenant.calendar());
        if own.is_some() {
            return own;
        }
        next = state.tree().node(id).and_then(Node::parent);
    }
    None
}

fn resolved(
    asked: &DeferCreate,
    needed: Seconds,
    calendar: Option<&Calendar>,
    now: Timestamp,
) -> Result<Deferral, ApiError> {
    let [not_before, deadline] =
        [asked.not_before, asked.deadline].map(|instant| instant.map(|instant| instant.0));
    let begin = now.max(not_before.unwrap_or(now));
    let horizon = now.after(HORIZON);
    if begin > horizon {
        let detail = "not_before may be at most 30 days ahead";
        return Err(ApiError::content("DEFER_INVALID", "/defer/not_before", detail));
    }
    let by_deadline = deadline
        .map(|deadline| {
            let millis = deadline.get().checked_sub(needed.as_millis().get());
            let last = millis.map(Timestamp::new).filter(|last| *last >= begin);
            last.ok_or_else(|| {
                let after = if begin > now { " after not_before" } else { "" };
                let detail = format!(
                    "it cannot be over by then: start and duration take up to {needed} s{after}"
                );
                ApiError::content("DEFER_INVALID", "/defer/deadline", detail)
            })
        })
        .transpose()?;
    let plain = Deferral { not_before, deadline, windows: Vec::new(), start_by: begin };
    if !asked.off_peak {
        return Ok(plain);
    }
    let calendar = calendar.filter(|calendar| !calendar.off_peak.is_empty()).ok_or_else(|| {
        let detail = "no off-peak hours are set for the tenant: an operator sets them";
        ApiError::content("CALENDAR_MISSING", "/defer/off_peak", detail)
    })?;
    // A promised start may be late by a moment: that must not make the end late.
    let in_time = |last: Timestamp| {
        let millis = last.get().checked_sub(LATE_MAX.as_millis().get());
        millis.map_or(begin, |millis| begin.max(Timestamp::new(millis)))
    };
    let start_by = by_deadline.map_or_else(|| begin.after(PATIENCE), in_time).min(horizon);
    let found = calendar::windows(calendar, begin, start_by);
    let mut windows = found.map_err(|error| {
        ApiError::content("CALENDAR_INVALID", "/defer/off_peak", error.to_string())
    })?;
    windows.truncate(WINDOWS_MAX);
    match windows.last().copied() {
        // What is behind the last window that can be kept is not waited for.
        Some(last) if windows.len() == WINDOWS_MAX => {
            Ok(Deferral { windows, start_by: last.until, ..plain })
        }
        Some(_) => Ok(Deferral { windows, start_by, ..plain }),
        // There are no such hours in time: to wait for nothing helps nobody.
        None => Ok(plain),
    }
}

#[cfg(test)]
mod tests {
    use sublet_protocol::api::Time;
    use sublet_protocol::calendar::{Day, OffPeak, Zone};
    use sublet_protocol::deferral::Window;

    use super::*;

    const HOUR: Seconds = Seconds::new(3_600);

    fn at(text: &str) -> Timestamp {
        text.parse::<Time>().unwrap().0
    }

    fn hours(from: &str, until: &str) -> OffPeak {
        let (from, until) = (from.parse().unwrap(), until.parse().unwrap());
        OffPeak { days: Day::ALL.into(), from, until }
    }

    fn nights(days: &[Day]) -> Calendar {
        let (from, until) = ("22:00".parse().unwrap(), "06:00".parse().unwrap());
        let off_peak = vec![OffPeak { days: days.iter().copied().collect(), from, until }];
        Calendar { zone: Zone::new("Europe/Berlin").unwrap(), off_peak }
    }

    fn asked(not_before: Option<&str>, off_peak: bool, deadline: Option<&str>) -> DeferCreate {
        let [not_before, deadline] =
            [not_before, deadline].map(|text| text.map(|text| Time(at(text))));
        DeferCreate { not_before, off_peak, deadline }
    }

    /// On Monday the 30th of November 2026, one o'clock in the afternoon in Berlin.
    fn noon() -> Timestamp {
        at("2026-11-30T12:00:00Z")
    }

    #[test]
    fn off_peak_hours_are_waited_for_until_the_last_chance() {
        let asked = asked(None, true, Some("2026-12-01T23:30:00Z"));
        let found = resolved(&asked, HOUR, Some(&nights(&Day::ALL)), noon()).unwrap();
        let window = |from, until| Window { from: at(from), until: at(until) };
        assert_eq!(
            found.windows,
            [
                window("2026-11-30T21:00:00Z", "2026-12-01T05:00:00Z"),
                window("2026-12-01T21:00:00Z", "2026-12-01T22:25:00Z"),
            ]
        );
        assert_eq!(found.start_by, at("2026-12-01T22:25:00Z"));
        assert!(found.is_sound());
    }

    #[test]
    fn without_a_deadline_it_waits_a_week() {
        let found = resolved(&asked(None, true, None), HOUR, Some(&nights(&Day::ALL)), noon());
        let found = found.unwrap();
        assert_eq!((found.windows.len(), found.start_by), (7, noon().after(PATIENCE)));
        let later = asked(Some("2026-12-05T12:00:00Z"), true, None);
        let found = resolved(&later, HOUR, Some(&nights(&[Day::Sat])), noon()).unwrap();
        assert_eq!(found.windows.len(), 1);
        assert_eq!(found.windows[0].from, at("2026-12-05T21:00:00Z"));
    }

    #[test]
    fn where_there_are_no_such_hours_in_time_it_does_not_wait() {
        let asked = asked(None, true, Some("2026-12-01T12:00:00Z"));
        let found = resolved(&asked, HOUR, Some(&nights(&[Day::Sat])), noon()).unwrap();
        assert_eq!((found.windows.len(), found.opens_at(noon())), (0, noon()));
    }

    #[test]
    fn who_has_no_time_to_spare_does_not_wait() {
        // An hour of work and five minutes to spare: its last chance is now.
        for (deadline, waits) in [("13:05:00Z", false), ("13:05:00.001Z", true)] {
            let by = format!("2026-11-30T{deadline}");
            let late = Calendar { off_peak: vec![hours("12:30", "23:00")], ..nights(&Day::ALL) };
            let found = resolved(&asked(None, true, Some(&by)), HOUR, Some(&late), noon()).unwrap();
            assert_eq!(found.start_by > noon(), waits, "{deadline}");
        }
    }

    #[test]
    fn more_windows_than_can_be_kept_are_not_waited_for() {
        let mut calendar = nights(&Day::ALL);
        for (from, until) in [("08:00", "09:00"), ("12:00", "13:00")] {
            let (from, until) = (from.parse().unwrap(), until.parse().unwrap());
            calendar.off_peak.push(OffPeak { days: Day::ALL.into(), from, until });
        }
        let far = asked(None, true, Some("2026-12-29T12:00:00Z"));
        let found = resolved(&far, HOUR, Some(&calendar), noon()).unwrap();
        assert_eq!(found.windows.len(), WINDOWS_MAX);
        assert_eq!(Some(found.start_by), found.windows.last().map(|window| window.until));
        assert!(found.is_sound());
    }

    #[test]
    fn each_fault_is_named_and_its_neighbour_is_not() {
        let nights = nights(&Day::ALL);
        let of = |asked: &DeferCreate, calendar| {
            let found = resolved(asked, HOUR, calendar, noon());
            found.map(|_| ()).map_err(|error| {
                let problem = error.problem("");
                (problem.code, problem.errors[0].pointer.clone().unwrap_or_default())
            })
        };
        let fault = |code: &str, pointer: &str| Err((code.to_owned(), pointer.to_owned()));
        let far = |text| asked(Some(text), false, None);
        let (late, in_time) = ("2026-12-30T12:00:00.001Z", "2026-12-30T12:00:00Z");
        assert_eq!(of(&far(late), None), fault("DEFER_INVALID", "/defer/not_before"));
        assert_eq!(of(&far(in_time), None), Ok(()));
        let by = |text| asked(None, true, Some(text));
        let (soon, just) = ("2026-11-30T12:59:59.999Z", "2026-11-30T13:00:00Z");
        assert_eq!(of(&by(soon), Some(&nights)), fault("DEFER_INVALID", "/defer/deadline"));
        assert_eq!(of(&by(just), Some(&nights)), Ok(()));
        let any = asked(None, true, None);
        assert_eq!(of(&any, None), fault("CALENDAR_MISSING", "/defer/off_peak"));
        let none = Calendar { off_peak: vec![], ..nights.clone() };
        assert_eq!(of(&any, Some(&none)), fault("CALENDAR_MISSING", "/defer/off_peak"));
        assert_eq!(of(&any, Some(&nights)), Ok(()));
    }
}
