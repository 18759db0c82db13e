//! Errors as the API answers them. Which call it was is filled in when the answer leaves.

use axum::http::StatusCode;
use axum::http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::{IntoResponse, Response};
use sublet_protocol::api::{FieldError, Problem};
use sublet_protocol::refusals::Rejection;
use sublet_protocol::requests::SpecError;

use crate::auth::Unauthenticated;
use crate::error::{Chain, Error};
use crate::raft::MembersError;
use crate::relay::WorkloadError;

/// When to come back after an answer of 429 or 503, in seconds.
const RETRY_SECONDS: u16 = 1;
/// When to come back after an answer of 507: somebody has to make room.
const RETRY_FULL_SECONDS: u16 = 10;

/// An error answer: a problem document but for the call's id.
#[derive(Debug, Clone)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    code: &'static str,
    detail: String,
    errors: Vec<FieldError>,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        ApiError { status, code, detail: detail.into(), errors: Vec::new() }
    }

    /// Names the part of the body that is wrong.
    pub(crate) fn at(mut self, pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        let (pointer, detail) = (Some(pointer.into()), detail.into());
        self.errors.push(FieldError { pointer, parameter: None, detail });
        self
    }

    /// Names the parameter of path, query or headers that is wrong.
    pub(crate) fn parameter(mut self, name: &str, detail: impl Into<String>) -> Self {
        let (parameter, detail) = (Some(name.to_owned()), detail.into());
        self.errors.push(FieldError { pointer: None, parameter, detail });
        self
    }

    /// A part of the body that is well-formed and not acceptable.
    pub(crate) fn content(
        code: &'static str,
        pointer: impl Into<String>,
        detail: impl Into<String>,
    ) -> Self {
        let detail = detail.into();
        ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, code, detail.clone()).at(pointer, detail)
    }

    /// A parameter that cannot be read.
    pub(crate) fn malformed(code: &'static str, name: &str, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        ApiError::new(StatusCode::BAD_REQUEST, code, detail.clone()).parameter(name, detail)
    }

    /// A cursor that no page gave.
    pub(crate) fn bad_cursor() -> Self {
        ApiError::malformed("CURSOR_INVALID", "cursor", "it is not a cursor of this list")
    }

    /// What is not there and what is another's look the same.
    pub(crate) fn not_found() -> Self {
        ApiError::new(StatusCode::NOT_FOUND, "NOT_FOUND", "there is no such thing")
    }

    pub(crate) fn no_route() -> Self {
        ApiError::new(StatusCode::NOT_FOUND, "ROUTE_MISSING", "there is no such route")
    }

    pub(crate) fn wrong_method() -> Self {
        let detail = "the route has no such method";
        ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "METHOD_NOT_ALLOWED", detail)
    }

    pub(crate) fn forbidden() -> Self {
        let detail = "the token's roles do not allow this";
        ApiError::new(StatusCode::FORBIDDEN, "FORBIDDEN", detail)
    }

    pub(crate) fn busy(detail: impl Into<String>) -> Self {
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "BUSY", detail)
    }

    /// A fault of ours: the cause is logged, not told.
    pub(crate) fn internal() -> Self {
        let detail = "the broker failed; the log says why";
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "INTERNAL", detail)
    }

    /// The code, as it will be answered.
    pub(crate) const fn code(&self) -> &'static str {
        self.code
    }

    /// The document, for this call.
    pub(crate) fn problem(&self, request_id: &str) -> Problem {
        Problem {
            kind: "about:blank".to_owned(),
            title: self.status.canonical_reason().unwrap_or("Error").to_owned(),
            status: self.status.as_u16(),
            detail: self.detail.clone(),
            code: self.code.to_owned(),
            request_id: request_id.to_owned(),
            errors: self.errors.clone(),
        }
    }

    /// Headers that go with the status.
    pub(crate) fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        match self.status {
            StatusCode::UNAUTHORIZED => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(RETRY_AFTER, HeaderValue::from(RETRY_SECONDS));
            }
            StatusCode::INSUFFICIENT_STORAGE => {
                headers.insert(RETRY_AFTER, HeaderValue::from(RETRY_FULL_SECONDS));
            }
            _other => {}
        }
        headers
    }
}

impl IntoResponse for ApiError {
    /// The error travels in the answer's extensions to `finish`, which writes the document.
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

impl From<Unauthenticated> for ApiError {
    fn from(_: Unauthenticated) -> Self {
        let detail = "a valid bearer token is needed";
        ApiError::new(StatusCode::UNAUTHORIZED, "UNAUTHENTICATED", detail)
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        let unavailable = StatusCode::SERVICE_UNAVAILABLE;
        match error {
            Error::Unknown => {
                let detail = "it may or may not have been done: \
                              ask again with the same idempotency key";
                ApiError::new(unavailable, "OUTCOME_UNKNOWN", detail)
            }
            Error::Busy => ApiError::busy("too much is waiting: try again later"),
            Error::NotLeader { .. } => {
                let detail = "no broker leads that can be reached from here: try again";
                ApiError::new(unavailable, "NO_LEADER", detail)
            }
            Error::Members(why) => {
                let (status, code) = match why {
                    MembersError::Missing => return ApiError::not_found(),
                    MembersError::Exists => (StatusCode::CONFLICT, "BROKER_EXISTS"),
                    MembersError::NoPeers => (StatusCode::CONFLICT, "NO_PEERS"),
                    MembersError::LastVoter => (StatusCode::CONFLICT, "LAST_VOTER"),
                    MembersError::UnderWay => (unavailable, "CHANGE_UNDER_WAY"),
                    MembersError::Behind => (unavailable, "BROKER_BEHIND"),
                    MembersError::Used => (StatusCode::CONFLICT, "BROKER_NUMBER_USED"),
                };
                ApiError::new(status, code, why.to_string())
            }
            Error::Unmet { is_refusal: true, .. } => {
                ApiError::new(StatusCode::CONFLICT, "BROKER_REFUSED", error.to_string())
            }
            Error::Unmet { is_refusal: false, .. } => {
                ApiError::new(unavailable, "BROKER_UNREACHED", error.to_string())
            }
            Error::Removed => ApiError::new(StatusCode::GONE, "BROKER_REMOVED", error.to_string()),
            Error::NoSpace => {
                let detail = "the leader's disk is full: only what ends something is taken; \
                              try again when there is room";
                ApiError::new(StatusCode::INSUFFICIENT_STORAGE, "STORAGE_FULL", detail)
            }
            error @ Error::Level { .. } => {
                ApiError::new(StatusCode::CONFLICT, "BROKER_TOO_OLD", error.to_string())
            }
            Error::Stopped => ApiError::new(unavailable, "STOPPING", "the broker is stopping"),
            Error::TooLarge => {
                let detail = "the command is larger than any may be";
                ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "TOO_LARGE", detail)
            }
            other => {
                tracing::error!(error = %Chain(&other), "a call failed");
                ApiError::internal()
            }
        }
    }
}

impl From<Rejection> for ApiError {
    fn from(rejection: Rejection) -> Self {
        let error = ApiError::new(status_of(rejection), rejection.code(), rejection.to_string());
        match rejection {
            Rejection::SpecInvalid(spec) => error.at(pointer_of(spec), spec.to_string()),
            // What another's token may not see must look like what is not there.
            Rejection::TenantMissing
            | Rejection::ClusterMissing
            | Rejection::RequestMissing
            | Rejection::LeaseMissing
            | Rejection::RollbackMissing => ApiError::not_found(),
            _other => error,
        }
    }
}

const fn status_of(rejection: Rejection) -> StatusCode {
    match rejection {
        Rejection::NotAllowed | Rejection::ApproverIsProposer => StatusCode::FORBIDDEN,
        Rejection::TenantMissing
        | Rejection::ClusterMissing
        | Rejection::NodeMissing
        | Rejection::OfferMissing
        | Rejection::RequestMissing
        | Rejection::LeaseMissing
        | Rejection::RollbackMissing => StatusCode::NOT_FOUND,
        Rejection::KeysExhausted | Rejection::RequestsExhausted | Rejection::CheckpointTooSoon => {
            StatusCode::TOO_MANY_REQUESTS
        }
        Rejection::CellMissing | Rejection::OtherTerm | Rejection::CounterExhausted => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        Rejection::KeyReused
        | Rejection::PolicyInvalid
        | Rejection::PriceInvalid
        | Rejection::QuotaInvalid
        | Rejection::TermsInvalid
        | Rejection::OfferInvalid
        | Rejection::SpecInvalid(_)
        | Rejection::QuotaTooSmall
        | Rejection::ModelUnknown
        | Rejection::CalendarInvalid
        | Rejection::CostTooLarge
        | Rejection::TooMany
        | Rejection::RecallTooSoon
        | Rejection::PlanMalformed
        | Rejection::RollbackMalformed => StatusCode::UNPROCESSABLE_ENTITY,
        _conflict => StatusCode::CONFLICT,
    }
}

const fn pointer_of(error: SpecError) -> &'static str {
    match error {
        SpecError::Count => "/count",
        SpecError::Gpu => "/gpu",
        SpecError::Memory => "/memory",
        SpecError::Cpu => "/cpu",
        SpecError::HostMemory => "/host_memory",
        SpecError::Duration => "/duration",
        SpecError::MaxPrice => "/max_price/amount",
        SpecError::Choices => "/models",
        SpecError::Workload => "/workload/size",
        SpecError::Deferral => "/defer",
    }
}

impl From<WorkloadError> for ApiError {
    fn from(error: WorkloadError) -> Self {
        let (status, code) = match error {
            WorkloadError::LeaseMissing => return ApiError::not_found(),
            WorkloadError::LeaseEnding => (StatusCode::CONFLICT, "LEASE_ENDING"),
            WorkloadError::NotDeclared => (StatusCode::CONFLICT, "WORKLOAD_NOT_DECLARED"),
            WorkloadError::Size { .. } => (StatusCode::UNPROCESSABLE_ENTITY, "WORKLOAD_SIZE"),
            WorkloadError::Hash => (StatusCode::UNPROCESSABLE_ENTITY, "WORKLOAD_HASH"),
            WorkloadError::Busy => (StatusCode::SERVICE_UNAVAILABLE, "BUSY"),
        };
        ApiError::new(status, code, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_told_as_such_with_a_time_to_come_back() {
        let error = ApiError::from(Error::NoSpace);
        assert_eq!(error.status.as_u16(), 507);
        let problem = error.problem("call");
        assert_eq!((problem.status, &*problem.code), (507, "STORAGE_FULL"));
        assert_eq!(problem.title, "Insufficient Storage");
        assert_eq!(error.headers().get(RETRY_AFTER), Some(&HeaderValue::from_static("10")));
    }
}
