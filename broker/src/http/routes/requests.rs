//! `/v1/requests`.

use std::ops::Bound;

use axum::Json as Answer;
use axum::extract::State;
use axum::http::StatusCode;
use sublet_core::{RequestStage, matching};
use sublet_protocol::api::{Page, Problem, RequestCreate, RequestView};
use sublet_protocol::commands::Command;
use sublet_protocol::events::Event;
use sublet_protocol::ids::RequestId;
use sublet_protocol::records::Record;
use sublet_protocol::requests::RequestSpec;

use crate::auth::{Caller, Scope};
use crate::http::app::App;
use crate::http::defer;
use crate::http::error::ApiError;
use crate::http::extract::{Call, Changer, Id, Json, NoBody, Params, Reader, Tenant};
use crate::http::lists::{page, search};
use crate::http::mutation::{Mutation, request_records};
use crate::http::routes::plan;
use crate::http::views::{self, texts};

/// Which requests a list shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Which {
    Open,
    Waiting,
    Granted,
    Closed,
    All,
}

const WHICH: [(&str, Which); 5] = [
    ("open", Which::Open),
    ("waiting", Which::Waiting),
    ("granted", Which::Granted),
    ("closed", Which::Closed),
    ("all", Which::All),
];

/// Requests that the caller sees. Open ones by id, closed ones (cancelled and refused ones too) and
/// all in the order they came.
#[utoipa::path(
    get, path = "/v1/requests", tag = "requests", security(("token" = [])),
    params(
        ("state" = Option<String>, Query,
            description = "open (default), waiting, granted, closed or all"),
        ("cursor" = Option<String>, Query), ("limit" = Option<u32>, Query),
    ),
    responses((status = OK, body = Page<RequestView>), (status = "4XX", body = Problem,
        content_type = "application/problem+json")),
)]
pub(crate) async fn list(
    State(app): State<App>,
    reader: Reader,
    mut params: Params,
) -> Result<Answer<Page<RequestView>>, ApiError> {
    let which = params.word("state", &WHICH)?.unwrap_or(Which::Open);
    let limit = params.limit()?;
    let ids = match which {
        Which::Open | Which::Waiting | Which::Granted => {
            let after = params.id("cursor")?;
            params.end()?;
            open(&app, reader.scope, which, (after, limit)).await?
        }
        Which::Closed | Which::All => {
            let after = params.whole("cursor", 0..=u64::MAX)?;
            params.end()?;
            app.cell.read(|_| ()).await?;
            search(&app, reader.scope, (after, limit), |record| Ok(named(record, which)))?
        }
    };
    let mut items = Vec::with_capacity(ids.items.len());
    for id in ids.items {
        items.extend(views::request(&app.cell.records_of_request(id)?, app.currency()));
    }
    Ok(Answer(Page { items, next_cursor: ids.next_cursor }))
}

async fn open(
    app: &App,
    scope: Scope,
    which: Which,
    (after, limit): (Option<RequestId>, usize),
) -> Result<Page<RequestId>, ApiError> {
    let from = after.map_or(Bound::Unbounded, Bound::Excluded);
    let read = app.cell.read(|state| {
        let seen = state.requests().range((from, Bound::Unbounded));
        let seen = seen.filter(|(_, request)| scope.sees(request.tenant()));
        let seen = seen.filter(|(_, request)| match request.stage() {
            RequestStage::Waiting | RequestStage::Pledged { .. } => which != Which::Granted,
            RequestStage::Granted { .. } => which != Which::Waiting,
        });
        page(seen.map(|(id, _)| (id.to_string(), *id)), limit)
    });
    Ok(read.await?)
}

/// The request that a record closes, or (of all) begins.
fn named(record: &Record, which: Which) -> Option<RequestId> {
    match (&record.event, which) {
        (Event::RequestSubmitted { request, .. }, Which::All)
        | (Event::RequestRefused { request, .. }, _)
        | (
            Event::RequestClosed { request, .. } | Event::RequestCancelled { request, .. },
            Which::Closed,
        ) => Some(*request),
        _other => None,
    }
}

/// Asks for capacity. What is granted, and when, is decided later: the request waits.
#[utoipa::path(
    post, path = "/v1/requests", tag = "requests", security(("token" = [])),
    params(("Idempotency-Key" = String, Header)), request_body = RequestCreate,
    responses((status = CREATED, body = RequestView), (status = "4XX", body = Problem,
        content_type = "application/problem+json")),
)]
pub(crate) async fn create(
    State(app): State<App>,
    Tenant { tenant, caller }: Tenant,
    call: Call,
    body: Json<RequestCreate>,
) -> Result<(StatusCode, Answer<RequestView>), ApiError> {
    let spec = views::from_body(&body.value, app.currency())?;
    if !app.cell.read(|state| state.tenants().contains_key(&tenant)).await? {
        return Err(unknown_tenant());
    }
    let actor = caller.as_tenant().ok_or_else(ApiError::forbidden)?;
    let deferral = defer::resolve(&app, tenant, &body.value).await?.map(Box::new);
    let spec = RequestSpec { deferral, ..spec };
    let command = Command::SubmitRequest { request: new_id()?, tenant, spec: spec.clone() };
    let change = Mutation { actor, call: &call, body: &body.value, command }.make(&app).await?;
    let change = change.accepted().map_err(|rejection| plan::refusal(&app, rejection))?;
    let id = change.request().ok_or_else(ApiError::internal)?;
    let view = views::request(&request_records(&app, id, &change)?, app.currency());
    let view = view.ok_or_else(ApiError::internal)?;
    let unmet = app.cell.read_stale(|state| matching::unmet_at_sight(state, &spec));
    let warning = unmet.map(|unmet| texts::unmet(unmet, app.currency()));
    Ok((StatusCode::CREATED, Answer(RequestView { warning, ..view })))
}

/// The tenant of the token was never added to this cell.
pub(super) fn unknown_tenant() -> ApiError {
    let detail = "the tenant of the token is not known to this cell";
    ApiError::new(StatusCode::FORBIDDEN, "TENANT_UNKNOWN", detail)
}

/// A repeat under the same key is answered with the first one's id, so chance is good enough.
fn new_id() -> Result<RequestId, ApiError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| {
        tracing::error!(%error, "no randomness for a request's id");
        ApiError::internal()
    })?;
    Ok(RequestId::new(u128::from_be_bytes(bytes)))
}

/// One request.
#[utoipa::path(
    get, path = "/v1/requests/{request}", tag = "requests", security(("token" = [])),
    params(("request" = String, Path)),
    responses((status = OK, body = RequestView), (status = "4XX", body = Problem,
        content_type = "application/problem+json")),
)]
pub(crate) async fn show(
    State(app): State<App>,
    reader: Reader,
    Id(id): Id<RequestId>,
) -> Result<Answer<RequestView>, ApiError> {
    find(&app, reader.scope, id).await.map(Answer)
}

/// The request, if it is there and seen.
pub(super) async fn find(app: &App, scope: Scope, id: RequestId) -> Result<RequestView, ApiError> {
    // Everything that was acknowledged before this call is in the journal behind this read.
    app.cell.read(|_| ()).await?;
    let view = views::request(&app.cell.records_of_request(id)?, app.currency());
    view.filter(|view| scope.sees(view.tenant)).ok_or_else(ApiError::not_found)
}

/// Withdraws a request. If a lease serves it, the lease is given back.
#[utoipa::path(
    delete, path = "/v1/requests/{request}", tag = "requests", security(("token" = [])),
    params(("request" = String, Path), ("Idempotency-Key" = String, Header)),
    responses((status = OK, body = RequestView), (status = "4XX", body = Problem,
        content_type = "application/problem+json")),
)]
pub(crate) async fn cancel(
    State(app): State<App>,
    Changer(caller): Changer,
    Id(id): Id<RequestId>,
    call: Call,
    _: NoBody,
) -> Result<Answer<RequestView>, ApiError> {
    let scope = caller.scope().ok_or_else(ApiError::forbidden)?;
    let view = find(&app, scope, id).await?;
    let actor = actor(&caller, view.tenant)?;
    let is_over = app.cell.read(|state| !state.requests().contains_key(&id)).await?;
    let command = Command::CancelRequest { request: id };
    let change = Mutation { actor, call: &call, body: &(), command }.make(&app).await;
    let change =
        change.map_err(|error| match is_over && error.status == StatusCode::NOT_FOUND {
            true => {
                let detail = format!("the request is {}", view.state.as_str());
                ApiError::new(StatusCode::CONFLICT, "REQUEST_CLOSED", detail)
            }
            false => error,
        })?;
    let view = views::request(&request_records(&app, id, &change)?, app.currency());
    view.map(Answer).ok_or_else(ApiError::internal)
}

/// Who changes what belongs to `tenant`: the tenant itself, else an operator.
pub(super) fn actor(
    caller: &Caller,
    tenant: sublet_protocol::ids::TenantId,
) -> Result<sublet_protocol::commands::Actor, ApiError> {
    let own = caller.as_tenant().filter(|_| caller.acting_tenant() == Some(tenant));
    own.or_else(|| caller.as_operator()).ok_or_else(ApiError::not_found)
}
