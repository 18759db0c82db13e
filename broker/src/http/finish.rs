//! What every call goes through: its id, its time limit, and its answer's last touches.

use std::any::Any;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::app::App;
use super::error::ApiError;
use super::extract::authenticate;
use super::receipt::with_receipt;
use crate::metrics;

/// How long a call may take until its answer begins.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// The header that carries the call's id.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// What error answers are written in.
const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");

/// Gives the call an id and a time limit; writes the document of an error answer.
pub(crate) async fn finish(request: Request, next: Next) -> Response {
    let id = request_id();
    let started = Instant::now();
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let route = request.extensions().get::<MatchedPath>().cloned();
    let answer = tokio::time::timeout(CALL_TIMEOUT, next.run(request)).await;
    let mut response = answer.unwrap_or_else(|_| {
        let detail = "the call took too long; a change may have been made: \
                      ask again with the same idempotency key";
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "CALL_TIMEOUT", detail).into_response()
    });
    let error = response.extensions_mut().remove::<ApiError>().or_else(|| unexplained(&response));
    if let Some(error) = error {
        let code = error.code();
        if response.status().is_server_error() {
            tracing::warn!(request_id = id, %method, path = ?path, code, "a call failed");
        }
        write(&mut response, &error, &id);
    }
    let route = route.as_ref().map_or("none", MatchedPath::as_str);
    metrics::call_answered(route, response.status().as_u16(), started.elapsed());
    let headers = response.headers_mut();
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    if let Ok(id) = HeaderValue::from_str(&id) {
        headers.insert(REQUEST_ID, id);
    }
    response
}

/// An error answer that did not come from us has no document yet.
fn unexplained(response: &Response) -> Option<ApiError> {
    let status = response.status();
    if !status.is_client_error() && !status.is_server_error() {
        return None;
    }
    match status {
        StatusCode::NOT_FOUND => Some(ApiError::no_route()),
        StatusCode::METHOD_NOT_ALLOWED => Some(ApiError::wrong_method()),
        _other => {
            let text = status.canonical_reason().unwrap_or("error");
            Some(ApiError::new(status, "HTTP", text.to_ascii_lowercase()))
        }
    }
}

fn write(response: &mut Response, error: &ApiError, id: &str) {
    let document = serde_json::to_vec(&error.problem(id));
    *response.body_mut() = Body::from(document.unwrap_or_default());
    let headers = response.headers_mut();
    headers.remove(CONTENT_LENGTH);
    headers.insert(CONTENT_TYPE, PROBLEM);
    headers.extend(error.headers());
}

/// 16 hex digits, or `-` if the system has no randomness.
fn request_id() -> String {
    let mut bytes = [0; 8];
    match getrandom::fill(&mut bytes) {
        Ok(()) => hex::encode(bytes),
        Err(_) => "-".to_owned(),
    }
}

/// Lets through to the routes of `/v1` only who proves who it is, and not too often.
pub(crate) async fn guard(State(app): State<App>, mut request: Request, next: Next) -> Response {
    match authenticate(&app, request.headers()) {
        Ok(caller) if !app.limits.admits(&caller, Instant::now()) => {
            let detail = "too many calls: try again later";
            ApiError::new(StatusCode::TOO_MANY_REQUESTS, "RATE_LIMITED", detail).into_response()
        }
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            with_receipt(request, next).await
        }
        Err(error) => error.into_response(),
    }
}

/// A handler that panicked: our fault.
#[allow(clippy::needless_pass_by_value, reason = "the layer hands the panic over")]
pub(crate) fn panicked(panic: Box<dyn Any + Send + 'static>) -> Response {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    tracing::error!(panic = text.unwrap_or("of an unknown kind"), "a handler panicked");
    ApiError::internal().into_response()
}
