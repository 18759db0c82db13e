//! `/v1/leases`.

use std::ops::Bound;

use axum::Json as Answer;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use sublet_core::LeaseStage;
use sublet_protocol::api::{
    LeaseState, LeaseView, LogLine, Page, Problem, RecallCreate, RecallView, RecordView, Time,
};
use sublet_protocol::commands::{Actor, Command, Recall};
use sublet_protocol::events::Event;
use sublet_protocol::ids::LeaseId;

use super::requests::actor;
use crate::auth::Scope;
use crate::http::app::App;
use crate::http::error::ApiError;
use crate::http::extract::{Call, Changer, Id, Json, NoBody, Params, Raw, Reader, Tenant};
use crate::http::lists::{page, search};
use crate::http::mutation::{Mutation, lease_records};
use crate::http::streams::{self, Follow, Shown};
use crate::http::views;

/// Which leases a list shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Which {
    Live,
    Only(LeaseState),
    All,
}

const WHICH: [(&str, Which); 6] = [
    ("live", Which::Live),
    ("granted", Which::Only(LeaseState::Granted)),
    ("active", Which::Only(LeaseState::Active)),
    ("ending", Which::Only(LeaseState::Ending)),
    ("ended", Which::Only(LeaseState::Ended)),
    ("all", Which::All),
];

/// Leases that the caller sees. Live ones by id, ended ones and all in the order they came.
#[utoipa::path(
    get, path = "/v1/leases", tag = "leases", security(("token" = [])),
    params(
        ("state" = Option<String>, Query,
            description = "live (default), granted, active, ending, ended or all"),
        ("cursor" = Option<String>, Query), ("limit" = Option<u32>, Query),
    ),
    responses((status = OK, body = Page<LeaseView>), (status = "4XX", body = Problem,
        content_type = "application/problem+json")),
)]
pub(crate) async fn list(
    State(app): State<App>,
    reader: Reader,
    mut params: Params,
) -> Result<Answer<Page<LeaseView>>, ApiError> {
    let which = params.word("state", &WHICH)?.unwrap_or(Which::Live);
    let limit = params.limit()?;
    let ids = match which {
        Which::Only(LeaseState::Ended) | Which::All => {
            let after = params.whole("cursor", 0..=u64::MAX)?;
            params.end()?;
            app.cell.read(|_| ()).await?;
            search(&app, reader.scope, (after, limit), |record| {
                Ok(match (&record.event, which) {
                    (Event::LeaseGranted { terms, .. }, Which::All) => Some(terms.lease),
                    (Event::LeaseEnded { lease, .. }, Which::Only(_)) => Some(*lease),
                    _other => None,
                })
            })?
        }
        Which::Live | Which::Only(_) => {
            let after = params.id("cursor")?;
            params.end()?;
            live(&app, reader.scope, which, (after, limit)).await?
        }
    };
    let mut items = Vec::with_capacity(ids.items.len());
    for id in ids.items {
        items.extend(views::lease(&app.cell.records_of_lease(id)?, app.currency()));
    }
    Ok(Answer(Page { items, next_cursor: ids.next_cursor }))
}

async fn live(
    app: &App,
    scope: Scope,
    which: Which,
    (after, limit): (Option<LeaseId>, usize),
) -> Result<Page<LeaseId>, ApiError> {
    let from = after.map_or(Bound::Unbounded, Bound::Excluded);
    let read = app.cell.read(|state| {
        let seen = state.leases().range((from, Bound::Unbounded));
        let seen = seen.filter(|(_, lease)| scope.sees(lease.terms().tenant));
        let seen = seen.filter(|(_, lease)| {
            let stage = match lease.stage() {
                LeaseStage::Granted { .. } => LeaseState::Granted,
                LeaseStage::Active { .. } => LeaseState::Active,
                LeaseStage::Ending { .. } => LeaseState::Ending,
            };
            which == Which::Live || which == Which::Only(stage)
        });
        page(seen.map(|(id, _)| (id.to_string(), *id)), limit)
    });
    Ok(read.await?)
}

/// One lease, live or ended.
#[utoipa::path(
    get, path = "/v1/leases/{lease}", tag = "leases", security(("token" = [])),
    params(("lease" = String, Path)),
    responses((status = OK, body = LeaseView), (status = "4XX", body = Problem,
        content_type = "application/problem+json")),
)]
pub(crate) async fn show(
    State(app): State<App>,
    reader: Reader,
    Id(id): Id<LeaseId>,
) -> Result<Answer<LeaseView>, ApiError> {
    find(&app, reader.scope, id).await.map(Answer)
}

/// The lease, if it is there and seen.
pub(super) async fn find(app: &App, scope: Scope, id: LeaseId) -> Result<LeaseView, ApiError> {
    // Everything that was acknowledged before this call is in the journal behind this read.
    app.cell.read(|_| ()).await?;
    let view = views::lease(&app.cell.records_of_lease(id)?, app.currency());
    view.filter(|view| scope.sees(view.tenant)).ok_or_else(ApiError::not_found)
}

/// Ends a lease: its tenant gives it back, or an operator revokes it.
#[utoipa::path(
    delete, path = "/v1/leases/{lease}", tag = "leases", security(("token" = [])),
    params(("lease" = String, Path), ("Idempotency-Key" = String, Header)),
    responses((status = OK, body = LeaseView), (status = "4XX", body = Problem,
        content_type = "application/problem+json")),
)]
pub(crate) async fn end(
    State(app): State<App>,
    Changer(caller): Changer,
    Id(id): Id<LeaseId>,
    call: Call,
    _: NoBody,
) -> Result<Answer<LeaseView>, ApiError> {
    let scope = caller.scope().ok_or_else(ApiError::forbidden)?;
    let view = find(&app, scope, id).await?;
    let actor = actor(&caller, view.tenant)?;
    let command = match &actor {
        Actor::Tenant { .. } => Command::ReleaseLease { lease: id },
        Actor::Operator { .. } | Actor::Agent { .. } | Actor::Leader => {
            Command::RevokeLease { lease: id }
        }
    };
    let is_over = app.cell.read(|state| !state.leases().contains_key(&id)).await?;
    let change = Mutation { actor, call: &call, body: &(), command }.make(&app).await;
    let change =
        change.map_err(|error| match is_over && error.status == StatusCode::NOT_FOUND {
            true => ApiError::new(StatusCode::CONFLICT, "LEASE_ENDED", "the lease has ended"),
            false => error,
        })?;
    let view = views::lease(&lease_records(&app, id, &change)?, app.currency());
    view.map(Answer).ok_or_else(ApiError::internal)
}

/// The program of a lease has saved its work: what ran before is no longer lost when the lease is
/// taken away. Among leases of one tier, those that would lose least are preempted first; a lease that
/// never reports counts as the median of those that do.
#[utoipa::path(
    post, path = "/v1/leases/{lease}/checkpoints", tag = "leases", security(("token" = [])),
    params(("lease" = String, Path), ("Idempotency-Key" = String, Header)),
    responses((status = OK, body = LeaseView), (status = "4XX", body = Problem,
        content_type = "application/problem+json")),
)]
pub(crate) async fn checkpoint(
    State(app): State<App>,
    Tenant { tenant, caller }: Tenant,
    Id(id): Id<LeaseId>,
    call: Call,
    _: NoBody,
) -> Result<Answer<LeaseView>, ApiError> {
    let view = find(&app, Scope::Tenant(tenant), id).await?;
    if view.state == LeaseState::Ended {
        return Err(ApiError::new(StatusCode::CONFLICT, "LEASE_ENDED", "the lease has ended"));
    }
    let (actor, command) = (actor(&caller, tenant)?, Command::ReportCheckpoint { lease: id });
    let change = Mutation { actor, call: &call, body: &(), command }.make(&app).await?;
    let view = views::lease(&lease_records(&app, id, &change)?, app.currency());
    view.map(Answer).ok_or_else(ApiError::internal)
}

/// The owner of its GPUs recalls a lease: by plan, with a deadline that its tenant sees at once, or
/// in an emergency. For the owner and operators; the answer says nothing of whose lease it is.
#[utoipa::path(
    post, path = "/v1/leases/{lease}/recall", tag = "leases", security(("token" = [])),
    params(("lease" = String, Path), ("Idempotency-Key" = String, Header)),
    request_body = RecallCreate,
    responses((status = OK, body = RecallView), (status = "4XX", body = Problem,
        content_type = "application/problem+json")),
)]
pub(crate) async fn recall(
    State(app): State<App>,
    Changer(caller): Changer,
    Id(id): Id<LeaseId>,
    call: Call,
    body: Json<RecallCreate>,
) -> Result<Answer<RecallView>, ApiError> {
    let actor = caller.as_tenant().or_else(|| caller.as_operator());
    let actor = actor.ok_or_else(ApiError::forbidden)?;
    let recall = match body.value {
        RecallCreate::Planned { notice } => Recall::Planned { by: app.cell.now().after(notice) },
        RecallCreate::Emergency {} => Recall::Emergency,
    };
    let command = Command::RecallLease { lease: id, recall };
    let change = Mutation { actor, call: &call, body: &body.value, command }.make(&app).await?;
    let by = change.find(|record| match &record.event {
        Event::LeaseRecalled { by, .. } => Some(*by),
        Event::LeaseEnding { deadline, .. } => Some(*deadline),
        _other => None,
    });
    let by = match by {
        Some(by) => by,
        // The same instant was named before.
        None => {
            let known = app.cell.read(|state| state.leases().get(&id)?.recalled_by()).await?;
            known.ok_or_else(ApiError::not_found)?
        }
    };
    Ok(Answer(RecallView { lease: id, by: Time(by) }))
}

/// Hands over the workload that the request declared. The same bytes may be sent again.
#[utoipa::path(
    put, path = "/v1/leases/{lease}/workload", tag = "leases", security(("token" = [])),
    params(("lease" = String, Path), ("Idempotency-Key" = String, Header)),
    request_body(content = String, content_type = "application/octet-stream"),
    responses((status = NO_CONTENT), (status = "4XX", body = Problem,
        content_type = "application/problem+json")),
)]
pub(crate) async fn workload(
    State(app): State<App>,
    Tenant { tenant, .. }: Tenant,
    Id(id): Id<LeaseId>,
    _: Call,
    Raw(bytes): Raw,
) -> Result<StatusCode, ApiError> {
    let view = find(&app, Scope::Tenant(tenant), id).await?;
    if view.state == LeaseState::Ended {
        return Err(ApiError::new(StatusCode::CONFLICT, "LEASE_ENDED", "the lease has ended"));
    }
    app.cell.put_workload(id, bytes)?;
    Ok(StatusCode::NO_CONTENT)
}

/// What the guest prints, as lines of JSON. Kept in memory only, and not for long.
#[utoipa::path(
    get, path = "/v1/leases/{lease}/logs", tag = "leases", security(("token" = [])),
    params(
        ("lease" = String, Path),
        ("from" = Option<u64>, Query, description = "read from this offset on"),
        ("follow" = Option<bool>, Query, description = "wait for more until the lease has ended"),
    ),
    responses((status = OK, body = LogLine, content_type = "application/x-ndjson"),
        (status = "4XX", body = Problem, content_type = "application/problem+json")),
)]
pub(crate) async fn logs(
    State(app): State<App>,
    Tenant { tenant, caller }: Tenant,
    Id(id): Id<LeaseId>,
    mut params: Params,
) -> Result<Response, ApiError> {
    let from = params.whole("from", 0..=u64::MAX)?.unwrap_or(0);
    let words = [("true", Follow::ToTheEnd), ("false", Follow::No)];
    let follow = params.word("follow", &words)?.unwrap_or(Follow::No);
    params.end()?;
    let view = find(&app, Scope::Tenant(tenant), id).await?;
    let reader = app.cell.output(id, from);
    // One more look: it may have ended in between.
    let is_over = view.state == LeaseState::Ended
        || app.cell.read(|state| !state.leases().contains_key(&id)).await?;
    if reader.is_none() && !is_over {
        return Err(ApiError::busy("too many leases print at once: try again later"));
    }
    let permit = app.stream(caller.rate_owner())?;
    streams::output(app, permit, (id, reader), follow)
}

/// The records of a lease as server-sent events, until it has ended.
#[utoipa::path(
    get, path = "/v1/leases/{lease}/events", tag = "leases", security(("token" = [])),
    params(
        ("lease" = String, Path),
        ("from" = Option<u64>, Query, description = "records from this index on; default: all"),
        ("Last-Event-ID" = Option<u64>, Header, description = "records behind this index"),
    ),
    responses((status = OK, body = RecordView, content_type = "text/event-stream"),
        (status = "4XX", body = Problem, content_type = "application/problem+json")),
)]
pub(crate) async fn events(
    State(app): State<App>,
    reader: Reader,
    Id(id): Id<LeaseId>,
    headers: HeaderMap,
    mut params: Params,
) -> Result<Response, ApiError> {
    let from = streams::start(&headers, &mut params)?.unwrap_or(0);
    params.end()?;
    find(&app, reader.scope, id).await?;
    let permit = app.stream(reader.owner)?;
    streams::records(app, permit, Shown::Lease(id), from)
}
