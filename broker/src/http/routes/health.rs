//! `/livez`, `/readyz`, `/metrics`.

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use sublet_protocol::api::Problem;

use crate::http::app::App;
use crate::http::error::ApiError;

/// The process answers.
#[utoipa::path(
    get, path = "/livez", tag = "status",
    responses((status = OK, body = String, content_type = "text/plain")),
)]
pub(crate) async fn live() -> &'static str {
    "ok\n"
}

/// The cell answers: it has a leader, and its log has been replayed.
#[utoipa::path(
    get, path = "/readyz", tag = "status",
    responses((status = OK, body = String, content_type = "text/plain"),
        (status = SERVICE_UNAVAILABLE, body = Problem, content_type = "application/problem+json")),
)]
pub(crate) async fn ready(State(app): State<App>) -> Result<&'static str, ApiError> {
    let is_founded = app.cell.read(|state| state.cell().is_some()).await?;
    match is_founded {
        true => Ok("ok\n"),
        false => Err(ApiError::busy("the cell is not founded yet")),
    }
}

/// Metrics in the text form of Prometheus.
#[utoipa::path(
    get, path = "/metrics", tag = "status",
    responses((status = OK, body = String, content_type = "text/plain")),
)]
pub(crate) async fn metrics(State(app): State<App>) -> Response {
    let text = app.metrics.as_ref().map(|handle| {
        handle.run_upkeep();
        handle.render()
    });
    let kind = [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    (kind, text.unwrap_or_default()).into_response()
}
