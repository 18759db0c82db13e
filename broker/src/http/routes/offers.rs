//! `/v1/offers`.

use axum::Json as Answer;
use axum::extract::State;
use sublet_core::StateView;
use sublet_protocol::api::{OfferPage, Problem};
use sublet_protocol::requests::{COUNT_MAX, MEMORY_MAX};
use sublet_protocol::units::MiB;

use crate::http::app::App;
use crate::http::error::ApiError;
use crate::http::extract::{Params, Reader};
use crate::http::views::{self, OfferFilter};

/// Idle capacity, alike slices counted together: cluster, model and price, but no tenant's name.
#[utoipa::path(
    get, path = "/v1/offers", tag = "offers", security(("token" = [])),
    params(
        ("model" = Option<String>, Query, description = "of this GPU model"),
        ("cluster" = Option<String>, Query, description = "in this cluster"),
        ("memory" = Option<u64>, Query, description = "at least this much device memory, in MiB"),
        ("count" = Option<u32>, Query, description = "at least this many alike slices free"),
        ("cursor" = Option<String>, Query), ("limit" = Option<u32>, Query),
    ),
    responses((status = OK, body = OfferPage), (status = "4XX", body = Problem,
        content_type = "application/problem+json")),
)]
pub(crate) async fn list(
    State(app): State<App>,
    _: Reader,
    mut params: Params,
) -> Result<Answer<OfferPage>, ApiError> {
    let filter = OfferFilter {
        model: params.id("model")?,
        cluster: params.id("cluster")?,
        memory: params.whole("memory", 0..=MEMORY_MAX.get())?.map(MiB::new),
        count: params.whole("count", 1..=COUNT_MAX.into())?,
    };
    let (after, limit) = (params.text("cursor"), params.limit()?);
    params.end()?;
    if after.as_deref().is_some_and(|after| !views::is_offer_group(after)) {
        return Err(ApiError::bad_cursor());
    }
    let (now, closed) = (app.cell.now(), app.cell.closed_nodes());
    let read = app.cell.read(|state| {
        views::offers(StateView { state, now }, &closed, filter, (after.as_deref(), limit))
    });
    Ok(Answer(read.await?))
}
