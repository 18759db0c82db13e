//! The routes, and the OpenAPI document that lists them.

mod backup;
mod cell;
mod clusters;
mod health;
mod leases;
mod ledger;
mod lookback;
mod names;
mod offers;
mod page;
mod plan;
mod policy;
mod prices;
mod proofs;
mod reconciliation;
mod requests;
mod rollbacks;
mod statements;
mod status;
mod tenants;
mod terms;
mod watch;
mod why;

use axum::Router;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::IntoResponse;
use axum::routing::get;
use tower_http::catch_panic::CatchPanicLayer;
use utoipa::OpenApi;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::app::App;
use super::error::ApiError;
use super::finish::{finish, guard, panicked};
use super::stale;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Sublet",
        description = "Lends idle GPUs across tenants. Every change needs an Idempotency-Key. \
                       Errors are problem documents (RFC 9457) with a stable code.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0"),
    ),
    components(schemas(
        sublet_protocol::api::Problem,
        sublet_protocol::api::LogLine,
        sublet_protocol::api::RecordView,
    ))
)]
struct Document;

/// The routes of `/v1`: each wants a token and names the roles it is for.
fn guarded() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(tenants::list, tenants::create))
        .routes(routes!(tenants::show))
        .routes(routes!(tenants::set_quota))
        .routes(routes!(terms::set))
        .routes(routes!(names::set, names::erase))
        .routes(routes!(terms::set_calendar))
        .routes(routes!(terms::move_to))
        .routes(routes!(tenants::quotas))
        .routes(routes!(clusters::list, clusters::create))
        .routes(routes!(clusters::nodes))
        .routes(routes!(clusters::remove_node))
        .routes(routes!(policy::show, policy::set))
        .routes(routes!(prices::list, prices::set))
        .routes(routes!(offers::list))
        .routes(routes!(requests::list, requests::create))
        .routes(routes!(requests::show, requests::cancel))
        .routes(routes!(leases::list))
        .routes(routes!(leases::show, leases::end))
        .routes(routes!(leases::checkpoint))
        .routes(routes!(leases::recall))
        .routes(routes!(leases::workload))
        .routes(routes!(leases::logs))
        .routes(routes!(leases::events))
        .routes(routes!(plan::plan))
        .routes(routes!(why::why))
        .routes(routes!(ledger::state))
        .routes(routes!(lookback::past))
        .routes(routes!(lookback::diff))
        .routes(routes!(ledger::records))
        .routes(routes!(ledger::verify))
        .routes(routes!(ledger::accounts))
        .routes(routes!(reconciliation::show))
        .routes(routes!(proofs::checkpoint))
        .routes(routes!(proofs::inclusion))
        .routes(routes!(proofs::extension))
        .routes(routes!(backup::backup))
        .routes(routes!(statements::statement))
        .routes(routes!(statements::periods, statements::close))
        .routes(routes!(rollbacks::plan))
        .routes(routes!(rollbacks::list, rollbacks::create))
        .routes(routes!(rollbacks::show, rollbacks::reject))
        .routes(routes!(rollbacks::approve))
        .routes(routes!(watch::watch))
        .routes(routes!(status::status))
        .routes(routes!(cell::show))
        .routes(routes!(cell::add))
        .routes(routes!(cell::raise))
        .routes(routes!(cell::remove))
}

/// The routes that anyone may read: they show sums and no names.
fn open() -> OpenApiRouter<App> {
    OpenApiRouter::default()
        .routes(routes!(page::page))
        .routes(routes!(health::metrics))
        .routes(routes!(health::live))
        .routes(routes!(health::ready))
}

/// The OpenAPI 3.1 document of all routes.
#[must_use]
pub fn openapi() -> utoipa::openapi::OpenApi {
    let mut document = guarded().into_openapi();
    let reads = document.paths.paths.values_mut().filter_map(|path| path.get.as_mut());
    reads.for_each(stale::describe);
    document.merge(open().into_openapi());
    let token = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).bearer_format("JWT").build();
    let components = document.components.get_or_insert_default();
    components.add_security_scheme("token", SecurityScheme::Http(token));
    document
}

/// Everything that is served.
pub(crate) fn router(app: App) -> Router {
    let document = openapi().to_json().unwrap_or_default();
    let served = move || async move {
        ([(axum::http::header::CONTENT_TYPE, "application/json")], document.clone())
    };
    let (guarded, _) = guarded().split_for_parts();
    let (open, _) = open().split_for_parts();
    guarded
        .route_layer(from_fn_with_state(app.clone(), stale::allow))
        .route_layer(from_fn_with_state(app.clone(), guard))
        .merge(open)
        .route("/openapi.json", get(served))
        .fallback(|| async { ApiError::no_route().into_response() })
        .method_not_allowed_fallback(|| async { ApiError::wrong_method().into_response() })
        .layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn(finish))
        .with_state(app)
}
