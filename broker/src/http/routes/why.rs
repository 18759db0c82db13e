//! `/v1/why`: why something waits, or is in its state.

use axum::Json as Answer;
use axum::extract::{Path, State};
use sublet_core::leader::ClockState;
use sublet_core::matching::{Explanation, NearMiss};
use sublet_protocol::api::{NearMissView, Problem, RequestState, Time, WhyView};
use sublet_protocol::ids::{LeaseId, RequestId};
use sublet_protocol::requests::WaitReason;

use super::{leases, requests};
use crate::auth::Scope;
use crate::http::app::App;
use crate::http::error::ApiError;
use crate::http::extract::Reader;
use crate::http::views::texts;

/// Why a request or a lease is in its state.
#[utoipa::path(
    get, path = "/v1/why/{id}", tag = "requests", security(("token" = [])),
    params(("id" = String, Path, description = "the id of a request or of a lease")),
    responses((status = OK, body = WhyView), (status = "4XX", body = Problem,
        content_type = "application/problem+json")),
)]
pub(crate) async fn why(
    State(app): State<App>,
    reader: Reader,
    path: Result<Path<String>, axum::extract::rejection::PathRejection>,
) -> Result<Answer<WhyView>, ApiError> {
    let malformed = |detail: &str| ApiError::malformed("ID_INVALID", "id", detail);
    let Path(id) = path.map_err(|_| malformed("the path is not UTF-8"))?;
    if id.starts_with(LeaseId::PREFIX) {
        let id: LeaseId = id.parse().map_err(|error| malformed(&format!("{error}")))?;
        return why_lease(&app, reader.scope, id).await.map(Answer);
    }
    let id: RequestId = id
        .parse()
        .map_err(|_| malformed("the id of a request (r-…) or of a lease (l-…) is wanted"))?;
    why_request(&app, reader.scope, id).await.map(Answer)
}

async fn why_lease(app: &App, scope: Scope, id: LeaseId) -> Result<WhyView, ApiError> {
    let view = leases::find(app, scope, id).await?;
    Ok(WhyView {
        id: Some(id.to_string()),
        state: view.state.as_str().to_owned(),
        code: view.state_reason.code,
        text: view.state_reason.text,
        since: Some(view.state_reason.since),
        position: None,
        ahead: None,
        near_misses: Vec::new(),
        change: None,
        promised_start: None,
        earliest_start: None,
        latest_start: None,
        warning: None,
    })
}

async fn why_request(app: &App, scope: Scope, id: RequestId) -> Result<WhyView, ApiError> {
    let view = requests::find(app, scope, id).await?;
    let explanation = match view.state {
        RequestState::Waiting => app.cell.explain(id).await?,
        RequestState::Granted
        | RequestState::Closed
        | RequestState::Cancelled
        | RequestState::Refused => None,
    };
    let (id, since) = (Some(id.to_string()), Some(view.state_reason.since));
    if let Some(explanation) = explanation {
        return Ok(WhyView { id, since, ..waiting(app, &explanation) });
    }
    let mut text = view.state_reason.text;
    if let Some(lease) = view.lease.filter(|_| view.state == RequestState::Granted) {
        text = format!("{text}: {lease}");
    }
    Ok(WhyView {
        id,
        state: view.state.as_str().to_owned(),
        code: view.state_reason.code,
        text,
        since,
        position: None,
        ahead: None,
        near_misses: Vec::new(),
        change: None,
        promised_start: None,
        earliest_start: None,
        latest_start: None,
        warning: None,
    })
}

/// Why something waits, or would.
pub(super) fn waiting(app: &App, explanation: &Explanation) -> WhyView {
    let detail = |miss: &NearMiss| match miss.reason {
        WaitReason::Breaker => {
            let (cluster, node) = (miss.example.cluster, miss.example.node);
            let clock = app.cell.clock_of(cluster, node);
            let far = clock.filter(|clock| clock.state == ClockState::Far);
            far.map(|clock| texts::clock_far(clock.offset))
        }
        _other => None,
    };
    let misses = explanation.near_misses.iter().map(|miss| NearMissView {
        reason: miss.reason,
        offers: miss.offers,
        cluster: Some(miss.example.cluster),
        detail: detail(miss).or_else(|| miss.short.map(texts::shortfall)),
    });
    let misses: Vec<NearMissView> = misses.collect();
    let primary = explanation.near_misses.iter().find(|miss| miss.reason == explanation.reason);
    let detail = primary.and_then(detail);
    let currency = app.currency();
    let change = explanation.change.map(|change| texts::change(change, currency));
    // Who waits for better hours, or pauses, is in no line.
    let place = (explanation.position, explanation.position.saturating_sub(1));
    let position = (explanation.reason != WaitReason::Deferred).then_some(place);
    let general = || texts::wait_change(explanation.reason).map(str::to_owned);
    WhyView {
        id: None,
        state: RequestState::Waiting.as_str().to_owned(),
        code: texts::wait_code(explanation.reason).to_owned(),
        text: texts::explanation(explanation, detail.as_deref()),
        since: None,
        position: position.map(|(position, _)| position),
        ahead: position.map(|(_, ahead)| ahead),
        near_misses: misses,
        change: change.or_else(general),
        promised_start: explanation.promised.map(Time),
        earliest_start: explanation.eta.map(|eta| Time(eta.earliest)),
        latest_start: explanation.eta.map(|eta| Time(eta.latest)),
        warning: explanation.unmet.map(|unmet| texts::unmet(unmet, currency)),
    }
}
