//! Refusals of the server (RFC 9457 problem documents) and servers that cannot be reached.

use std::io::ErrorKind;
use std::time::Duration;

use sublet_protocol::api::Problem;
use ureq::http::{HeaderMap, StatusCode};

use super::Try;
use crate::config::Settings;
use crate::failure::{Exit, Failure, Outcome};

/// Longest wait that a server can ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(10);
/// Most characters of an answer that is no problem document.
const EXCERPT: usize = 200;

/// The failure that a refusal by the server becomes.
pub(super) fn failure(status: StatusCode, body: &[u8], path: &str) -> Failure {
    let exit = exit(status);
    let Ok(problem) = serde_json::from_slice::<Problem>(body) else {
        let text: String = String::from_utf8_lossy(body).chars().take(EXCERPT).collect();
        return Failure::new(exit, format!("the server answered {status} to {path}"))
            .because(if text.is_empty() { "no explanation".to_owned() } else { text });
    };
    let mut failure = Failure::new(exit, problem.detail.trim_end_matches('.'));
    for error in &problem.errors {
        let place = error.pointer.as_ref().or(error.parameter.as_ref());
        let place = place.map(|place| format!("{place}: ")).unwrap_or_default();
        failure = failure.because(format!("{place}{}", error.detail));
    }
    failure = failure.because(format!("{} (call {} to {path})", problem.code, problem.request_id));
    match exit {
        Exit::Auth if status == StatusCode::UNAUTHORIZED => failure
            .because("a token is refused if it is expired, altered or not for this server")
            .hint("leave out --token and SUBLET_TOKEN: a new one is made with the profile's key")
            .hint("or have one printed: sublet token"),
        _ if status == StatusCode::GONE => {
            failure.hint("name a broker of the cell: --server URL, or the variable SUBLET_SERVER")
        }
        Exit::Auth => failure.hint("which rights a token has: sublet token --help"),
        _ => failure,
    }
}

fn exit(status: StatusCode) -> Exit {
    match status.as_u16() {
        400 | 413 | 415 => Exit::Usage,
        401 | 403 => Exit::Auth,
        404 => Exit::NotFound,
        409 | 412 | 422 => Exit::Refused,
        408 | 429 | 502..=504 | 507 => Exit::Temporary,
        _ => Exit::Failed,
    }
}

/// How long the server asks to wait; nothing if it does not say so in seconds.
pub(super) fn retry_after(headers: &HeaderMap) -> Duration {
    let text = headers.get("retry-after").and_then(|value| value.to_str().ok());
    let seconds =
        text.and_then(|text| text.parse().ok()).map_or(Duration::ZERO, Duration::from_secs);
    seconds.min(RETRY_AFTER_MAX)
}

/// No answer came. A refused connection is final: nobody listens there. Anything else may pass.
pub(super) fn unreachable(settings: &Settings, error: &ureq::Error) -> Outcome<Try> {
    let server = &settings.server;
    let from = format!("that address is from {}", settings.origin);
    let failure = |what: String| Failure::new(Exit::Temporary, what).because(error).because(&from);
    let start = "start one on this machine: sublet dev";
    let other = "or name another: --server URL, or the variable SUBLET_SERVER";
    let absent = || failure(format!("no server answers at {server}")).hint(start).hint(other);
    match error {
        ureq::Error::Io(io) if io.kind() == ErrorKind::ConnectionRefused => Err(absent()),
        ureq::Error::ConnectionFailed | ureq::Error::HostNotFound => Err(absent()),
        ureq::Error::BadUri(_) | ureq::Error::Http(_) | ureq::Error::TlsRequired => {
            let what = format!("{server} is not an address this command can use");
            Err(Failure::usage(what).because(error).because(&from))
        }
        _ => {
            let failure = failure(format!("the answer of {server} did not arrive"));
            let hint = "it may have been done all the same: look before you ask again";
            Ok(Try::Again(failure.hint(hint), Duration::ZERO))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_document_becomes_what_where_and_an_exit_code() {
        let body = br#"{"type":"about:blank","title":"Unprocessable","status":422,
            "code":"SPEC_INVALID","detail":"count must be 1 to 1024.","request_id":"q1",
            "errors":[{"pointer":"/spec/count","detail":"0 is too small"}]}"#;
        let failure = failure(StatusCode::UNPROCESSABLE_ENTITY, body, "/v1/requests");
        assert_eq!(failure.exit(), Exit::Refused);
        let expected = "count must be 1 to 1024\n  because: /spec/count: 0 is too small\n  \
            because: SPEC_INVALID (call q1 to /v1/requests)";
        assert_eq!(failure.to_string(), expected);
    }

    #[test]
    fn a_refused_token_is_told_apart_from_missing_rights() {
        let body = br#"{"type":"about:blank","title":"Unauthorized","status":401,
            "code":"UNAUTHENTICATED","detail":"a valid bearer token is needed","request_id":"q1"}"#;
        let refused = failure(StatusCode::UNAUTHORIZED, body, "/v1/offers").to_string();
        assert!(refused.contains("expired") && refused.contains("SUBLET_TOKEN"), "{refused}");
        let denied = failure(StatusCode::FORBIDDEN, body, "/v1/offers").to_string();
        assert!(denied.contains("rights") && !denied.contains("expired"), "{denied}");
    }

    #[test]
    fn an_answer_that_is_no_problem_document_is_quoted() {
        let failure = failure(StatusCode::BAD_GATEWAY, b"<html>", "/v1/offers");
        assert_eq!(failure.exit(), Exit::Temporary);
        assert!(failure.to_string().contains("<html>"));
    }
}
