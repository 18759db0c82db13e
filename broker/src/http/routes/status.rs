//! `/v1/status`: how the cell is.

use axum::Json as Answer;
use axum::extract::State;
use sublet_core::LeaseStage;
use sublet_protocol::api::{LeaseCounts, Problem, StatusView, Time};

use super::ledger::ledger_state;
use crate::http::app::App;
use crate::http::error::ApiError;
use crate::http::extract::{Params, Reader};

/// How the cell is: sums over all tenants.
#[utoipa::path(
    get, path = "/v1/status", tag = "status", security(("token" = [])),
    responses((status = OK, body = StatusView), (status = "4XX", body = Problem,
        content_type = "application/problem+json")),
)]
pub(crate) async fn status(
    State(app): State<App>,
    _: Reader,
    params: Params,
) -> Result<Answer<StatusView>, ApiError> {
    params.end()?;
    app.cell.read(|_| ()).await?;
    status_of(&app).map(Answer)
}

/// How the cell is, as this broker knows it.
pub(super) fn status_of(app: &App) -> Result<StatusView, ApiError> {
    let ledger = ledger_state(app)?;
    let gpu_seconds_lent = app.cell.counters().gpu_millis_lent / 1_000;
    let now = Time(app.cell.now());
    Ok(app.cell.read_stale(|state| {
        let mut leases = LeaseCounts { granted: 0, active: 0, ending: 0 };
        for lease in state.leases().values() {
            match lease.stage() {
                LeaseStage::Granted { .. } => leases.granted += 1,
                LeaseStage::Active { .. } => leases.active += 1,
                LeaseStage::Ending { .. } => leases.ending += 1,
            }
        }
        StatusView {
            cell: state.cell().map(|(cell, _)| cell),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            now,
            offers: count(state.offers().len()),
            waiting: count(state.waiting().len()),
            leases,
            tenants: count(state.tenants().len()),
            clusters: count(state.clusters().len()),
            nodes: count(state.nodes().len()),
            nodes_silent: count(state.nodes().values().filter(|node| node.is_silent()).count()),
            gpu_seconds_lent,
            ledger,
        }
    }))
}

fn count(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
