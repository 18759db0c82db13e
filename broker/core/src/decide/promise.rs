//! Promised starts: what the matcher reserves, judged as far as a promise binds.
//!
//! A promise grants nothing: when its time comes the request is granted like any other, by the same
//! rules. It must name slices that are there and could serve the request together, and an instant
//! that has not passed; whoever was promised something else before is told why it changes. That
//! nobody is granted what would delay it is the matcher's business.

use sublet_protocol::capacity::SliceId;
use sublet_protocol::events::Event;
use sublet_protocol::ids::RequestId;
use sublet_protocol::refusals::Rejection;
use sublet_protocol::requests::PromiseCause;
use sublet_protocol::units::Timestamp;

use super::Decision;
use super::plan::{are_distinct, is_asked_count};
use crate::fit::{self, Candidate};
use crate::state::{PROMISES_MAX, Request, RequestStage, State};

/// What is to be promised.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) start: Timestamp,
    pub(super) not_before: Timestamp,
    pub(super) slices: &'a [SliceId],
}

pub(super) fn promise(
    state: &State,
    (request, entry): (RequestId, &Request),
    asked: &Asked<'_>,
    cause: PromiseCause,
    now: Timestamp,
) -> Decision {
    let Asked { start, not_before, slices } = *asked;
    // What is kept by a pledge is on its way already.
    if matches!(entry.stage, RequestStage::Pledged { .. }) {
        return Err(Rejection::RequestNotWaiting);
    }
    if !is_asked_count(&entry.spec, slices.len()) {
        return Err(Rejection::PlanCount);
    }
    if !are_distinct(slices.iter()) {
        return Err(Rejection::PlanMalformed);
    }
    let known: Option<Vec<Candidate>> =
        slices.iter().map(|slice| fit::there(state, *slice)).collect();
    let known = known.ok_or(Rejection::OfferMissing)?;
    // How long an offer still stays idle is said anew until then.
    let fits = |candidate: &Candidate| {
        let later = Candidate { idle: None, ..*candidate };
        fit::misfit(state, &entry.spec, &later, now).is_none()
    };
    let is_fit = known.iter().all(fits);
    let alike = |candidate: &Candidate| (candidate.capacity.model, candidate.capacity.gpu);
    let are_alike = known.windows(2).all(|pair| alike(&pair[0]) == alike(&pair[1]));
    if !is_fit || !are_alike || !fit::stand_as_asked(entry.spec.placement, &known) {
        return Err(Rejection::SliceUnfit);
    }
    let before = state.promises.get(&request);
    let is_full = before.is_none() && state.promises.len() >= PROMISES_MAX;
    // Only the first promise has no other reason than that the request waits.
    let is_first = before.is_none() == (cause == PromiseCause::Queued);
    let is_earlier = before.is_none_or(|before| start < before.start);
    let is_sound = is_earlier || cause != PromiseCause::Earlier;
    if start < now || not_before > start || is_full || !is_first || !is_sound {
        return Err(Rejection::PromiseInvalid);
    }
    let (tenant, slices) = (entry.tenant, slices.to_vec());
    Ok(vec![Event::StartPromised { request, tenant, start, not_before, slices, cause }])
}

pub(super) fn withdraw(
    state: &State,
    request: RequestId,
    entry: &Request,
    cause: PromiseCause,
) -> Decision {
    let is_told_why = !matches!(cause, PromiseCause::Queued | PromiseCause::Earlier);
    if !state.promises.contains_key(&request) || !is_told_why {
        return Err(Rejection::PromiseInvalid);
    }
    Ok(vec![Event::PromiseWithdrawn { request, tenant: entry.tenant, cause }])
}
