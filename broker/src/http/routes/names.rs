//! `/v1/tenants/{tenant}/name`: what a tenant is called, for people to read. It can be erased.

use axum::Json as Answer;
use axum::extract::State;
use sublet_protocol::api::{NameSet, NameView, Problem};
use sublet_protocol::commands::Command;
use sublet_protocol::ids::TenantId;
use sublet_protocol::names::DisplayName;

use crate::auth::Caller;
use crate::http::app::App;
use crate::http::error::ApiError;
use crate::http::extract::{Call, Id, Json, NoBody, Operator};
use crate::http::mutation::Mutation;

/// Sets what a tenant is called. The name is in no record of the ledger, in no backup and in no log
/// of the program: a record says that there is one.
#[utoipa::path(
    put, path = "/v1/tenants/{tenant}/name", tag = "tenants", security(("token" = [])),
    params(("tenant" = String, Path), ("Idempotency-Key" = String, Header)),
    request_body = NameSet,
    responses((status = OK, body = NameView), (status = "4XX", body = Problem,
        content_type = "application/problem+json")),
)]
pub(crate) async fn set(
    State(app): State<App>,
    Operator(caller): Operator,
    Id(tenant): Id<TenantId>,
    call: Call,
    body: Json<NameSet>,
) -> Result<Answer<NameView>, ApiError> {
    name(&app, &caller, tenant, &call, Some(body.value.name)).await
}

/// Erases what a tenant is called: at once from all answers, and from the disk of each broker as soon
/// as its log and its older snapshot have been purged, two snapshots later: each 16,384 records, and
/// when the leader is stopped in order.
#[utoipa::path(
    delete, path = "/v1/tenants/{tenant}/name", tag = "tenants", security(("token" = [])),
    params(("tenant" = String, Path), ("Idempotency-Key" = String, Header)),
    responses((status = OK, body = NameView), (status = "4XX", body = Problem,
        content_type = "application/problem+json")),
)]
pub(crate) async fn erase(
    State(app): State<App>,
    Operator(caller): Operator,
    Id(tenant): Id<TenantId>,
    call: Call,
    _: NoBody,
) -> Result<Answer<NameView>, ApiError> {
    name(&app, &caller, tenant, &call, None).await
}

async fn name(
    app: &App,
    caller: &Caller,
    tenant: TenantId,
    call: &Call,
    name: Option<DisplayName>,
) -> Result<Answer<NameView>, ApiError> {
    let actor = caller.as_operator().ok_or_else(ApiError::forbidden)?;
    let command = Command::NameTenant { tenant, name: name.clone() };
    // The hash of the body is recorded with the key, and a short name could be found by trying: the
    // name is left out of it. So a key that is used again for another name is not noticed.
    Mutation { actor, call, body: &name.is_some(), command }.make(app).await?;
    Ok(Answer(NameView { tenant, name: app.cell.name_of(tenant) }))
}
