//! The HTTP API: routes, errors, pages, streams, and the loop that accepts connections.
//!
//! It turns calls into commands on behalf of a verified caller, and state and journal into bodies.
//! It decides nothing: the rules do, when the command is applied. Every route is described in the
//! OpenAPI document at `/openapi.json`. Errors are problem documents (RFC 9457) with a stable code.

mod app;
mod defer;
mod error;
mod extract;
mod finish;
mod impatient;
mod json;
mod limits;
mod lists;
mod mutation;
mod named;
mod receipt;
mod routes;
mod server;
mod stale;
mod streams;
mod views;
mod visibility;

#[cfg(test)]
mod tests;

pub use app::STREAMS_MAX;
pub use routes::openapi;
pub use server::{
    CONNECTIONS_MAX, Config, HEADER_TIMEOUT, Server, WRITE_TIMEOUT, install_metrics, serve,
};
pub use stale::{AGE_HEADER, INDEX_HEADER};
