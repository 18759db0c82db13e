//! `?stale=true`: an answer from what this broker knows, without asking the leader, which says how far
//! it may be behind.

use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, Method, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use utoipa::openapi::path::{Operation, ParameterBuilder, ParameterIn};
use utoipa::openapi::{ObjectBuilder, RefOr, Required, Type};

use super::app::App;
use super::error::ApiError;
use crate::behind::behind;
use crate::cell::Known;

/// The header of a stale answer that says how many records of the ledger it shows, at least.
pub const INDEX_HEADER: &str = "sublet-index";
/// The header of a stale answer that says how many milliseconds ago the broker last heard from the
/// leader, or from a quorum if it leads. It is missing if the broker knows of no leader.
pub const AGE_HEADER: &str = "sublet-age";
/// The parameter.
const STALE: &str = "stale";

/// Serves a read that may be behind as such. Changes have no such parameter.
pub(super) async fn allow(State(app): State<App>, mut request: Request, next: Next) -> Response {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return next.run(request).await;
    }
    match take(request.uri_mut()) {
        Ok(true) => match app.cell.known().await {
            Ok(known) => told(behind(next.run(request)).await, known),
            Err(error) => ApiError::from(error).into_response(),
        },
        Ok(false) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

/// Takes the parameter out of the query: whether the answer may be behind.
fn take(uri: &mut Uri) -> Result<bool, ApiError> {
    let query = uri.query().unwrap_or_default();
    let is_it = |pair: &&str| pair.split('=').next() == Some(STALE);
    let mut given = query.split('&').filter(is_it);
    let malformed = |detail| ApiError::malformed("QUERY_INVALID", STALE, detail);
    let is_stale = match (given.next(), given.next()) {
        (None, _) => return Ok(false),
        (Some(_), Some(_)) => return Err(malformed("the parameter is given twice")),
        (Some("stale=true"), None) => true,
        (Some("stale=false"), None) => false,
        (Some(_), None) => return Err(malformed("stale must be one of: true, false")),
    };
    let rest: Vec<&str> = query.split('&').filter(|pair| !is_it(pair)).collect();
    let path = match rest.is_empty() {
        true => uri.path().to_owned(),
        false => format!("{}?{}", uri.path(), rest.join("&")),
    };
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(path.parse().map_err(|_| malformed("the query cannot be read"))?);
    *uri = Uri::from_parts(parts).map_err(|_| malformed("the query cannot be read"))?;
    Ok(is_stale)
}

fn told(mut response: Response, known: Known) -> Response {
    let headers = response.headers_mut();
    headers.insert(HeaderName::from_static(INDEX_HEADER), HeaderValue::from(known.records));
    if let Some(heard) = known.heard {
        let millis = u64::try_from(heard.as_millis()).unwrap_or(u64::MAX);
        headers.insert(HeaderName::from_static(AGE_HEADER), HeaderValue::from(millis));
    }
    response
}

/// Names the parameter in the description of a read.
pub(super) fn describe(operation: &mut Operation) {
    let text = "`true`: answer from what this broker knows, without asking the leader. \
        The answer's header Sublet-Index says how many records of the ledger it shows at least, \
        Sublet-Age how many milliseconds ago the broker last heard from the leader (from a quorum \
        if it leads); that is missing if it knows of no leader.";
    let parameter = ParameterBuilder::new()
        .name(STALE)
        .parameter_in(ParameterIn::Query)
        .required(Required::False)
        .description(Some(text))
        .schema(Some(ObjectBuilder::new().schema_type(Type::Boolean)));
    operation.parameters.get_or_insert_default().push(RefOr::T(parameter.build()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parameter_is_taken_out_and_nothing_else() {
        for (before, is_stale, after) in [
            ("/v1/x", false, "/v1/x"),
            ("/v1/x?a=1&b=%20", false, "/v1/x?a=1&b=%20"),
            ("/v1/x?stale=true", true, "/v1/x"),
            ("/v1/x?a=1&stale=true&b=stale", true, "/v1/x?a=1&b=stale"),
            ("/v1/x?stale=false&a=1", false, "/v1/x?a=1"),
            ("/v1/x?stales=1", false, "/v1/x?stales=1"),
        ] {
            let mut uri: Uri = before.parse().unwrap();
            assert_eq!(take(&mut uri).unwrap(), is_stale, "{before}");
            assert_eq!(uri.to_string(), after);
        }
        for wrong in ["stale", "stale=", "stale=1", "stale=true&stale=true"] {
            let mut uri: Uri = format!("/v1/x?{wrong}").parse().unwrap();
            assert!(take(&mut uri).is_err(), "{wrong}");
        }
    }
}
