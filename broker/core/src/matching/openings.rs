//! When slices come free, and the earliest instant at which enough of them are free together.
//!
//! A slice is free from the bought end of its lease on: nothing that runs on it may run longer, so
//! what is promised on it can be kept. For a hopeful estimate the predicted end is used instead.

use sublet_protocol::capacity::{Part, SliceId};
use sublet_protocol::offers::IdleFor;
use sublet_protocol::requests::{RequestSpec, Tier};
use sublet_protocol::units::{Millis, Timestamp};

use crate::evolve::taken_away;
use crate::fit;
use crate::state::{Lease, LeaseStage, RequestStage, State};

/// Which end of a lease is counted on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ends {
    /// The end that was bought: it is never later.
    Bought,
    /// The end that one run in ten beats, where the request of the lease has a prediction.
    Predicted,
}

/// When a lease's slices are free at the latest; never, if its owner or a fault takes them.
pub(super) fn free_at(
    state: &State,
    lease: &Lease,
    ends: Ends,
    now: Timestamp,
) -> Option<Timestamp> {
    // What its owner wants back is not there for the next one.
    if lease.recalled_by.is_some() {
        return None;
    }
    let bought = match lease.stage {
        LeaseStage::Granted { start_by, .. } => start_by.after(lease.terms.duration),
        LeaseStage::Active { ends_at, .. } => ends_at,
        LeaseStage::Ending { cause, deadline, .. } => match taken_away(cause) {
            Some(_) => return None,
            None => deadline,
        },
    };
    let spec = state.requests.get(&lease.terms.request).map(|request| &request.spec);
    let prediction = spec.and_then(|spec| spec.prediction);
    let end = match (ends, lease.is_running(), prediction) {
        (Ends::Predicted, true, Some(prediction)) => {
            let since = lease.active_since().unwrap_or(now);
            since.after(prediction.duration_q10).min(bought)
        }
        (Ends::Bought | Ends::Predicted, _, _) => bought,
    };
    Some(end.max(now))
}

/// When all that is carved out of an offered slice has been given back.
pub(super) fn over_parts(
    state: &State,
    slice: SliceId,
    ends: Ends,
    now: Timestamp,
) -> Option<Timestamp> {
    let device = SliceId { part: Part::Whole, ..slice };
    let on_device = state.leased.range(device..).take_while(|(other, _)| {
        (other.cluster, other.node, other.device) == (slice.cluster, slice.node, slice.device)
    });
    let parts = on_device.filter(|(other, _)| other.part.overlaps(slice.part));
    let mut ends = parts.map(|(_, lease)| free_at(state, &state.leases[lease], ends, now));
    ends.try_fold(now, |latest, end| end.map(|end| latest.max(end)))
}

/// When a slice that comes free at `at` is free for others than the request it is pledged to: that
/// one may start until its pledge ends, and then run as long as it asks.
pub(super) fn after_pledge(state: &State, slice: SliceId, at: Timestamp) -> Option<Timestamp> {
    let Some(holder) = state.pledged.get(&slice) else { return Some(at) };
    let request = state.requests.get(holder)?;
    let RequestStage::Pledged { until, .. } = request.stage else { return Some(at) };
    Some(over_by(state, &request.spec, until.max(at)))
}

/// Until when the request that a slice is pledged to may start.
pub(super) fn pledged_until(state: &State, slice: SliceId) -> Option<Timestamp> {
    match state.requests.get(state.pledged.get(&slice)?)?.stage {
        RequestStage::Pledged { until, .. } => Some(until),
        RequestStage::Waiting | RequestStage::Granted { .. } => None,
    }
}

/// When a request granted at `at` has given its slices back at the latest: it may take its time to
/// start, and then runs no longer than was bought.
pub(super) fn over_by(state: &State, spec: &RequestSpec, at: Timestamp) -> Timestamp {
    at.after(state.policy.start_timeout).after(spec.duration)
}

/// From when on, and until when at the latest, a request may start on a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Opening {
    pub(super) from: Timestamp,
    pub(super) until: Timestamp,
}

/// How far ahead the idle time that an offer promises is believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trust {
    /// It must cover the wait and the run.
    Covered,
    /// It must cover the run; the agent will say anew how long it stays idle until then.
    Renewed,
}

/// Until when a request may start on what is offered: the idle time must last for its run.
pub(super) fn start_by(
    spec: &RequestSpec,
    idle: Option<(IdleFor, Timestamp)>,
    trust: Trust,
) -> Option<Timestamp> {
    let Some((idle, said_at)) = idle else { return Some(Timestamp::MAX) };
    let Some(promised) = fit::promised(idle, spec.class.tier()) else {
        return Some(Timestamp::MAX);
    };
    let spare = promised.as_millis().checked_sub(fit::needed(spec))?;
    match trust {
        Trust::Covered => Some(said_at.after_millis(spare)),
        Trust::Renewed => Some(Timestamp::MAX),
    }
}

/// The earliest instant, later than `after`, at which one of the openings begins and `count` of them are
/// open at once.
pub(super) fn first_together(
    openings: &[Opening],
    count: usize,
    after: Option<Timestamp>,
) -> Option<Timestamp> {
    if openings.len() < count || count == 0 {
        return None;
    }
    let mut from: Vec<Timestamp> = openings.iter().map(|opening| opening.from).collect();
    let mut until: Vec<Timestamp> = openings.iter().map(|opening| opening.until).collect();
    from.sort_unstable();
    until.sort_unstable();
    let mut closed = 0;
    for (opened, at) in from.iter().enumerate() {
        // The same instant opens several: what counts is how many are open once all have.
        while until.get(closed).is_some_and(|end| end < at) {
            closed += 1;
        }
        let is_late_enough = after.is_none_or(|after| *at > after);
        if is_late_enough && opened + 1 - closed >= count {
            return Some(*at);
        }
    }
    None
}

/// A tier may rely on nothing but what is covered if it is the highest: such a lease never rests on
/// an offer that is likelier than not to be taken back.
pub(super) const fn trusts(tier: Tier) -> &'static [Trust] {
    match tier {
        Tier::Reserved => &[Trust::Covered],
        Tier::Standard | Tier::Opportunistic => &[Trust::Covered, Trust::Renewed],
    }
}

/// How long a request keeps a slice once it is granted, at the most.
pub(super) fn kept_for(state: &State, spec: &RequestSpec) -> Millis {
    over_by(state, spec, Timestamp::ZERO).since(Timestamp::ZERO)
}
