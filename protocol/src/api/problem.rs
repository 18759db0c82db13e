//! Errors as the API answers them: RFC 9457 problem documents.

use serde::{Deserialize, Serialize};

/// A problem document (`application/problem+json`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Problem {
    /// Always `about:blank`: the code says what it is.
    #[serde(rename = "type")]
    pub kind: String,
    /// The HTTP status in words.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// What is wrong with this very call, for a person.
    pub detail: String,
    /// What is wrong, for a program: stable, upper case.
    pub code: String,
    /// Which call it was, as in the broker's log.
    pub request_id: String,
    /// Which fields are wrong; left out if none is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldError>,
}

/// What is wrong with one field: of the body (`pointer`) or of path, query or headers (`parameter`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FieldError {
    /// A JSON pointer (RFC 6901) into the body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pointer: Option<String>,
    /// The name of a path, query or header parameter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameter: Option<String>,
    /// What is wrong with it and what is allowed.
    pub detail: String,
}
