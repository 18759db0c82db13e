//! What a handler takes from a call: caller and role, path, query, body, idempotency key. Each says
//! what is wrong and where.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use axum::Extension;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use futures::StreamExt;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use sublet_protocol::api::{BODY_DEPTH_MAX, BODY_MAX, IDEMPOTENCY_KEY_MAX, PAGE_DEFAULT, PAGE_MAX};
use sublet_protocol::ids::{IdError, TenantId};

use super::app::App;
use super::error::ApiError;
use super::json;
use crate::auth::{Caller, RateOwner, Role, Scope, Unauthenticated};

/// How long a body may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// The header of a mutation's key.
const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// Proves who calls. To be asked before a handler runs.
pub(crate) fn authenticate(app: &App, headers: &HeaderMap) -> Result<Caller, ApiError> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return Err(Unauthenticated.into());
    };
    let text = value.to_str().map_err(|_| Unauthenticated)?;
    let (scheme, token) = text.split_once(' ').ok_or(Unauthenticated)?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(Unauthenticated.into());
    }
    Ok(app.verifier.verify(token.trim_start_matches(' '))?)
}

async fn caller(parts: &mut Parts, app: &App) -> Result<Caller, ApiError> {
    // The layer round all routes of `/v1` has put it there.
    match Extension::<Caller>::from_request_parts(parts, app).await {
        Ok(Extension(caller)) => Ok(caller),
        Err(_) => Err(Unauthenticated.into()),
    }
}

/// A caller that may read: tenant, auditor or operator, with what it sees.
pub(crate) struct Reader {
    pub(crate) scope: Scope,
    /// The tenant that it acts for, if its token names one, whatever else it may see.
    pub(crate) tenant: Option<TenantId>,
    pub(crate) owner: RateOwner,
}

impl FromRequestParts<App> for Reader {
    type Rejection = ApiError;
    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let caller = caller(parts, app).await?;
        let scope = caller.scope().ok_or_else(ApiError::forbidden)?;
        Ok(Reader { scope, tenant: caller.acting_tenant(), owner: caller.rate_owner() })
    }
}

/// An auditor or operator.
pub(crate) struct Auditor;

impl FromRequestParts<App> for Auditor {
    type Rejection = ApiError;
    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let caller = caller(parts, app).await?;
        let may = caller.is_any(&[Role::Auditor, Role::Operator]);
        if may { Ok(Auditor) } else { Err(ApiError::forbidden()) }
    }
}

/// An operator.
pub(crate) struct Operator(pub(crate) Caller);

impl FromRequestParts<App> for Operator {
    type Rejection = ApiError;
    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let caller = caller(parts, app).await?;
        let may = caller.is_any(&[Role::Operator]);
        if may { Ok(Operator(caller)) } else { Err(ApiError::forbidden()) }
    }
}

/// A caller in the role of a tenant.
pub(crate) struct Tenant {
    pub(crate) tenant: TenantId,
    pub(crate) caller: Caller,
}

impl FromRequestParts<App> for Tenant {
    type Rejection = ApiError;
    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let caller = caller(parts, app).await?;
        let tenant = caller.acting_tenant().ok_or_else(ApiError::forbidden)?;
        Ok(Tenant { tenant, caller })
    }
}

/// A caller that may change something of a tenant: the tenant itself or an operator.
pub(crate) struct Changer(pub(crate) Caller);

impl FromRequestParts<App> for Changer {
    type Rejection = ApiError;
    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let caller = caller(parts, app).await?;
        let may = caller.is_any(&[Role::Tenant, Role::Operator]);
        if may { Ok(Changer(caller)) } else { Err(ApiError::forbidden()) }
    }
}

/// The one id in the path.
pub(crate) struct Id<T>(pub(crate) T);

impl<T: FromStr<Err = IdError> + Send> FromRequestParts<App> for Id<T> {
    type Rejection = ApiError;
    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let mut path = path_parameters(parts, app).await?;
        let (name, text) = path.pop().ok_or_else(ApiError::no_route)?;
        id(&name, &text).map(Id)
    }
}

/// The one number in the path.
pub(crate) struct Number(pub(crate) u64);

impl FromRequestParts<App> for Number {
    type Rejection = ApiError;
    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let mut path = path_parameters(parts, app).await?;
        let (name, text) = path.pop().ok_or_else(ApiError::no_route)?;
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let number = text.parse().ok().filter(|_| digits).map(Number);
        number.ok_or_else(|| ApiError::malformed("ID_INVALID", &name, "must be a whole number"))
    }
}

/// The two ids in the path, in their order.
pub(crate) struct Ids<A, B>(pub(crate) A, pub(crate) B);

impl<A, B> FromRequestParts<App> for Ids<A, B>
where
    A: FromStr<Err = IdError> + Send,
    B: FromStr<Err = IdError> + Send,
{
    type Rejection = ApiError;
    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let path = path_parameters(parts, app).await?;
        let [(first, a), (second, b)] = path.as_slice() else { return Err(ApiError::no_route()) };
        Ok(Ids(id(first, a)?, id(second, b)?))
    }
}

async fn path_parameters(parts: &mut Parts, app: &App) -> Result<Vec<(String, String)>, ApiError> {
    let path = Path::<Vec<(String, String)>>::from_request_parts(parts, app).await;
    let malformed = |_| ApiError::malformed("ID_INVALID", "id", "the path is not UTF-8");
    path.map(|Path(pairs)| pairs).map_err(malformed)
}

fn id<T: FromStr<Err = IdError>>(name: &str, text: &str) -> Result<T, ApiError> {
    text.parse()
        .map_err(|error: IdError| ApiError::malformed("ID_INVALID", name, error.to_string()))
}

/// The query's parameters. A handler takes out those it knows, then calls [`Params::end`].
pub(crate) struct Params(BTreeMap<String, String>);

impl FromRequestParts<App> for Params {
    type Rejection = ApiError;
    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, ApiError> {
        let pairs = Query::<Vec<(String, String)>>::try_from_uri(&parts.uri);
        let malformed = |_| ApiError::malformed("QUERY_INVALID", "", "the query cannot be read");
        let Query(pairs) = pairs.map_err(malformed)?;
        let mut parameters = BTreeMap::new();
        for (name, value) in pairs {
            if parameters.insert(name.clone(), value).is_some() {
                let detail = "the parameter is given twice";
                return Err(ApiError::malformed("QUERY_INVALID", &name, detail));
            }
        }
        Ok(Params(parameters))
    }
}

impl Params {
    pub(crate) fn text(&mut self, name: &str) -> Option<String> {
        self.0.remove(name)
    }

    pub(crate) fn id<T: FromStr<Err = IdError>>(
        &mut self,
        name: &str,
    ) -> Result<Option<T>, ApiError> {
        self.text(name).map(|text| id(name, &text)).transpose()
    }

    /// A whole number within a range.
    pub(crate) fn whole(
        &mut self,
        name: &str,
        range: std::ops::RangeInclusive<u64>,
    ) -> Result<Option<u64>, ApiError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let value = text.parse().ok().filter(|value| digits && range.contains(value));
        let (least, most) = (range.start(), range.end());
        let detail = || format!("{name} must be a whole number from {least} to {most}");
        value.map(Some).ok_or_else(|| ApiError::malformed("QUERY_INVALID", name, detail()))
    }

    /// One of a closed list of words.
    pub(crate) fn word<T: Copy>(
        &mut self,
        name: &str,
        words: &[(&str, T)],
    ) -> Result<Option<T>, ApiError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let known = words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
        let list = || words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", ");
        let detail = || format!("{name} must be one of: {}", list());
        known.map(Some).ok_or_else(|| ApiError::malformed("QUERY_INVALID", name, detail()))
    }

    /// The size of a page.
    pub(crate) fn limit(&mut self) -> Result<usize, ApiError> {
        let limit = self.whole("limit", 1..=PAGE_MAX.into())?.unwrap_or(PAGE_DEFAULT.into());
        Ok(usize::try_from(limit).unwrap_or(usize::MAX))
    }

    /// Refuses what nobody took out.
    pub(crate) fn end(self) -> Result<(), ApiError> {
        match self.0.into_keys().next() {
            None => Ok(()),
            Some(name) => {
                let detail = "the route has no such parameter";
                Err(ApiError::malformed("QUERY_INVALID", &name, detail))
            }
        }
    }
}

/// The idempotency key of a mutation, hashed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Key(pub(crate) [u8; 16]);

impl FromRequestParts<App> for Key {
    type Rejection = ApiError;
    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, ApiError> {
        let mut values = parts.headers.get_all(IDEMPOTENCY_KEY).iter();
        let Some(value) = values.next() else {
            let detail = "every change needs a key of its own, so that a repeat does nothing twice";
            return Err(ApiError::malformed("KEY_MISSING", "Idempotency-Key", detail));
        };
        let text = value.to_str().unwrap_or_default();
        let is_visible = text.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
        let is_good = (1..=IDEMPOTENCY_KEY_MAX).contains(&text.len()) && is_visible;
        if !is_good || values.next().is_some() {
            let detail = format!("one key of 1 to {IDEMPOTENCY_KEY_MAX} visible ASCII characters");
            return Err(ApiError::malformed("KEY_INVALID", "Idempotency-Key", detail));
        }
        Ok(Key(first_half(Sha256::digest(text.as_bytes()).into())))
    }
}

/// What tells one change from another: its key, and what it is asked of.
pub(crate) struct Call {
    pub(crate) key: Key,
    pub(crate) method: Method,
    pub(crate) uri: Uri,
}

impl FromRequestParts<App> for Call {
    type Rejection = ApiError;
    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let key = Key::from_request_parts(parts, app).await?;
        Ok(Call { key, method: parts.method.clone(), uri: parts.uri.clone() })
    }
}

/// The first 16 of 32 bytes.
pub(crate) fn first_half(bytes: [u8; 32]) -> [u8; 16] {
    let mut half = [0; 16];
    half.copy_from_slice(&bytes[..16]);
    half
}

/// A JSON body, with the names of the fields that it gives.
pub(crate) struct Json<T> {
    pub(crate) value: T,
    /// The top-level fields that the body gives.
    pub(crate) given: Vec<String>,
}

impl<T: DeserializeOwned> FromRequest<App> for Json<T> {
    type Rejection = ApiError;
    async fn from_request(request: Request, _: &App) -> Result<Self, ApiError> {
        media_type(request.headers(), &["application/json"])?;
        let bytes = body(request).await?;
        json::check_depth(&bytes, BODY_DEPTH_MAX)?;
        let value = json::read(&bytes)?;
        Ok(Json { value, given: json::fields(&bytes) })
    }
}

/// A body of bytes.
pub(crate) struct Raw(pub(crate) Vec<u8>);

impl FromRequest<App> for Raw {
    type Rejection = ApiError;
    async fn from_request(request: Request, _: &App) -> Result<Self, ApiError> {
        // A workload is JSON, and is passed on byte by byte.
        media_type(request.headers(), &["application/octet-stream", "application/json"])?;
        body(request).await.map(Raw)
    }
}

/// No body at all, for a mutation that says everything in its path.
pub(crate) struct NoBody;

impl FromRequest<App> for NoBody {
    type Rejection = ApiError;
    async fn from_request(request: Request, _: &App) -> Result<Self, ApiError> {
        if body(request).await?.is_empty() {
            return Ok(NoBody);
        }
        let detail = "the route takes no body";
        Err(ApiError::new(StatusCode::BAD_REQUEST, "BODY_UNEXPECTED", detail))
    }
}

fn media_type(headers: &HeaderMap, allowed: &[&str]) -> Result<(), ApiError> {
    let unsupported = |name: &str, detail: String| {
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        ApiError::new(status, "MEDIA_TYPE_UNSUPPORTED", detail.clone()).parameter(name, detail)
    };
    if headers.get_all(CONTENT_ENCODING).iter().any(|coding| coding != "identity") {
        return Err(unsupported("Content-Encoding", "bodies may not be compressed".to_owned()));
    }
    let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = value.split(';').next().unwrap_or_default().trim();
    let is_one = headers.get_all(CONTENT_TYPE).iter().count() == 1;
    if is_one && allowed.iter().any(|kind| essence.eq_ignore_ascii_case(kind)) {
        return Ok(());
    }
    let detail = format!("the body must be sent as {}", allowed.join(" or "));
    Err(unsupported("Content-Type", detail))
}

async fn body(request: Request) -> Result<Vec<u8>, ApiError> {
    let too_large = || {
        let detail = format!("a body may have at most {BODY_MAX} bytes");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "BODY_TOO_LARGE", detail)
    };
    let length = request.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    if length.and_then(|text| text.parse::<usize>().ok()).is_some_and(|length| length > BODY_MAX) {
        return Err(too_large());
    }
    let mut stream = request.into_body().into_data_stream();
    let read = async {
        let mut bytes = Vec::new();
        while let Some(piece) = stream.next().await {
            let piece = piece.map_err(|_| {
                let detail = "the body broke off";
                ApiError::new(StatusCode::BAD_REQUEST, "BODY_INCOMPLETE", detail)
            })?;
            if bytes.len() + piece.len() > BODY_MAX {
                return Err(too_large());
            }
            bytes.extend_from_slice(&piece);
        }
        Ok(bytes)
    };
    tokio::time::timeout(BODY_TIMEOUT, read).await.unwrap_or_else(|_| {
        let detail = "the body took too long to arrive";
        Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "BODY_TIMEOUT", detail))
    })
}
