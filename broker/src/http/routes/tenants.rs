//! `/v1/tenants` and `/v1/quotas`.

use std::ops::Bound;

use axum::Json as Answer;
use axum::extract::State;
use axum::http::StatusCode;
use sublet_protocol::api::{Page, Problem, QuotaSet, QuotaView, TenantCreate, TenantView};
use sublet_protocol::commands::Command;
use sublet_protocol::ids::{GpuModel, TenantId};
use sublet_protocol::units::GpuMilli;

use super::plan;
use crate::http::app::App;
use crate::http::error::ApiError;
use crate::http::extract::{Call, Id, Ids, Json, Operator, Params, Reader};
use crate::http::lists::page;
use crate::http::mutation::Mutation;
use crate::http::views;

/// Tenants that the caller sees: its own, or all of the cell.
#[utoipa::path(
    get, path = "/v1/tenants", tag = "tenants", security(("token" = [])),
    params(("cursor" = Option<String>, Query), ("limit" = Option<u32>, Query)),
    responses((status = OK, body = Page<TenantView>), (status = "4XX", body = Problem,
        content_type = "application/problem+json")),
)]
pub(crate) async fn list(
    State(app): State<App>,
    reader: Reader,
    mut params: Params,
) -> Result<Answer<Page<TenantView>>, ApiError> {
    let after: Option<TenantId> = params.id("cursor")?;
    let limit = params.limit()?;
    params.end()?;
    let from = after.map_or(Bound::Unbounded, Bound::Excluded);
    let read = app.cell.read(|state| {
        let seen = state.tenants().range((from, Bound::Unbounded));
        let seen = seen.filter(|(id, _)| reader.scope.sees(**id));
        let items = seen.map(|(id, tenant)| (id.to_string(), views::tenant(*id, tenant, state)));
        page(items, limit)
    });
    let mut tenants = read.await?;
    for tenant in &mut tenants.items {
        tenant.name = app.cell.name_of(tenant.id);
    }
    Ok(Answer(tenants))
}

/// Adds a tenant.
#[utoipa::path(
    post, path = "/v1/tenants", tag = "tenants", security(("token" = [])),
    params(("Idempotency-Key" = String, Header)), request_body = TenantCreate,
    responses((status = CREATED, body = TenantView), (status = "4XX", body = Problem,
        content_type = "application/problem+json")),
)]
pub(crate) async fn create(
    State(app): State<App>,
    Operator(caller): Operator,
    call: Call,
    body: Json<TenantCreate>,
) -> Result<(StatusCode, Answer<TenantView>), ApiError> {
    let TenantCreate { id, parent } = body.value;
    if let Some(parent) = parent {
        let is_known = app.cell.read(|state| state.tenants().contains_key(&parent)).await?;
        if !is_known {
            let detail = format!("there is no tenant {parent}");
            return Err(ApiError::content("TENANT_MISSING", "/parent", detail));
        }
    }
    let actor = caller.as_operator().ok_or_else(ApiError::forbidden)?;
    let command = Command::CreateTenant { tenant: id, parent };
    let change = Mutation { actor, call: &call, body: &body.value, command }.make(&app).await?;
    let currency = app.currency();
    let view = change.find(|record| views::tenant_created(record, currency));
    Ok((StatusCode::CREATED, Answer(view.ok_or_else(ApiError::internal)?)))
}

/// One tenant.
#[utoipa::path(
    get, path = "/v1/tenants/{tenant}", tag = "tenants", security(("token" = [])),
    params(("tenant" = String, Path)),
    responses((status = OK, body = TenantView), (status = "4XX", body = Problem,
        content_type = "application/problem+json")),
)]
pub(crate) async fn show(
    State(app): State<App>,
    reader: Reader,
    Id(id): Id<TenantId>,
) -> Result<Answer<TenantView>, ApiError> {
    let read = app.cell.read(|state| {
        let tenant = state.tenants().get(&id).filter(|_| reader.scope.sees(id))?;
        Some(views::tenant(id, tenant, state))
    });
    let tenant = read.await?.ok_or_else(ApiError::not_found)?;
    Ok(Answer(TenantView { name: app.cell.name_of(id), ..tenant }))
}

/// Sets how much of a GPU model a tenant may hold, borrow and lend.
#[utoipa::path(
    put, path = "/v1/tenants/{tenant}/quotas/{model}", tag = "tenants", security(("token" = [])),
    params(("tenant" = String, Path), ("model" = String, Path),
        ("Idempotency-Key" = String, Header)),
    request_body = QuotaSet,
    responses((status = OK, body = QuotaView), (status = "4XX", body = Problem,
        content_type = "application/problem+json")),
)]
pub(crate) async fn set_quota(
    State(app): State<App>,
    Operator(caller): Operator,
    Ids(tenant, model): Ids<TenantId, GpuModel>,
    call: Call,
    body: Json<QuotaSet>,
) -> Result<Answer<QuotaView>, ApiError> {
    let actor = caller.as_operator().ok_or_else(ApiError::forbidden)?;
    let quota = body.value.quota();
    let command = Command::SetQuota { tenant, model, quota };
    let change = Mutation { actor, call: &call, body: &body.value, command }.make(&app).await?;
    // What it is already needs no record.
    let unchanged = views::quota_of(tenant, model, &quota);
    let view = change.find(views::quota_set).unwrap_or(unchanged);
    let warning = app.cell.read_stale(|state| unseen_model(state, model));
    Ok(Answer(QuotaView { warning: warning.filter(|_| quota.nominal > GpuMilli::ZERO), ..view }))
}

/// What is to be said of a model that nobody prices, offers or leases: it may come, or be misspelt.
fn unseen_model(state: &sublet_core::State, model: GpuModel) -> Option<String> {
    let is_seen = state.prices().keys().any(|(_, priced, _)| *priced == model)
        || state.offers().values().any(|offer| offer.capacity().model == model)
        || state.leases().values().any(|lease| lease.terms().model == model);
    if is_seen {
        return None;
    }
    let known = plan::known_models(state);
    let known = known.map_or_else(String::new, |known| format!("; prices are posted for {known}"));
    Some(format!(
        "{model} has no price and is neither on offer nor on lease: if it is not to come later, the \
         name may be wrong{known}"
    ))
}

/// Quotas that the caller sees, by tenant and model.
#[utoipa::path(
    get, path = "/v1/quotas", tag = "tenants", security(("token" = [])),
    params(("tenant" = Option<String>, Query), ("cursor" = Option<String>, Query),
        ("limit" = Option<u32>, Query)),
    responses((status = OK, body = Page<QuotaView>), (status = "4XX", body = Problem,
        content_type = "application/problem+json")),
)]
pub(crate) async fn quotas(
    State(app): State<App>,
    reader: Reader,
    mut params: Params,
) -> Result<Answer<Page<QuotaView>>, ApiError> {
    let only: Option<TenantId> = params.id("tenant")?;
    let after = params.text("cursor").map(|cursor| place(&cursor)).transpose()?;
    let limit = params.limit()?;
    params.end()?;
    let read = app.cell.read(|state| {
        let seen = state.tenants().iter();
        let seen = seen.filter(|(id, _)| reader.scope.sees(**id) && only.is_none_or(|o| o == **id));
        let quotas = seen.flat_map(|(id, tenant)| views::quotas(*id, tenant, state));
        let left = quotas.filter(|q| after.is_none_or(|after| (q.tenant, q.model) > after));
        page(left.map(|quota| (format!("{}/{}", quota.tenant, quota.model), quota)), limit)
    });
    Ok(Answer(read.await?))
}

/// Behind which quota a page begins.
fn place(cursor: &str) -> Result<(TenantId, GpuModel), ApiError> {
    let parts = cursor.split_once('/');
    let place = parts.and_then(|(tenant, model)| tenant.parse().ok().zip(model.parse().ok()));
    place.ok_or_else(ApiError::bad_cursor)
}
