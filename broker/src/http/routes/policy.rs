//! `/v1/policy`.

use axum::Json as Answer;
use axum::extract::State;
use axum::http::StatusCode;
use sublet_protocol::api::{PolicySet, Problem};
use sublet_protocol::commands::Command;
use sublet_protocol::events::Event;
use sublet_protocol::policy::Policy;

use crate::http::app::App;
use crate::http::error::ApiError;
use crate::http::extract::{Call, Json, Operator, Reader};
use crate::http::mutation::Mutation;

/// The numbers that the cell decides by. They are no secret: whoever asks for GPUs may read them.
#[utoipa::path(
    get, path = "/v1/policy", tag = "policy", security(("token" = [])),
    responses((status = OK, body = Policy), (status = "4XX", body = Problem,
        content_type = "application/problem+json")),
)]
pub(crate) async fn show(
    State(app): State<App>,
    _reader: Reader,
) -> Result<Answer<Policy>, ApiError> {
    Ok(Answer(app.cell.read(|state| state.policy().clone()).await?))
}

/// Sets the policy, if it still is what the caller read.
#[utoipa::path(
    put, path = "/v1/policy", tag = "policy", security(("token" = [])),
    params(("Idempotency-Key" = String, Header)), request_body = PolicySet,
    responses((status = OK, body = Policy), (status = "4XX", body = Problem,
        content_type = "application/problem+json")),
)]
pub(crate) async fn set(
    State(app): State<App>,
    Operator(caller): Operator,
    call: Call,
    body: Json<PolicySet>,
) -> Result<Answer<Policy>, ApiError> {
    let actor = caller.as_operator().ok_or_else(ApiError::forbidden)?;
    let PolicySet { from, to } = &body.value;
    if let Err(error) = to.validate() {
        return Err(ApiError::content("POLICY_INVALID", "/to", error.to_string()));
    }
    if to.currency != from.currency {
        let detail = "the currency of a cell stays: amounts in its books are in it";
        return Err(ApiError::content("POLICY_INVALID", "/to/currency", detail));
    }
    // One change at a time, so that none is lost between the look and the commit.
    let _turn = app.policy.lock().await;
    let key = call.key.0;
    let known = app.cell.read(|state| (state.policy().clone(), state.has_operator_key(key)));
    let (known, is_repeated) = known.await?;
    // A call that is repeated is answered as it was, whatever has been set since.
    if known != *from && known != *to && !is_repeated {
        let detail = "the policy has been changed since it was read: read it again";
        return Err(ApiError::new(StatusCode::CONFLICT, "POLICY_CHANGED", detail));
    }
    let command = Command::SetPolicy { policy: to.clone() };
    let change = Mutation { actor, call: &call, body: &body.value, command }.make(&app).await?;
    let set = change.find(|record| match &record.event {
        Event::PolicySet { policy } => Some(policy.clone()),
        _other => None,
    });
    Ok(Answer(set.unwrap_or_else(|| to.clone())))
}
