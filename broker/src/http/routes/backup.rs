//! `/v1/ledger/backup`: all of the ledger, in the form that a cell can be restored from.

use std::io;

use axum::body::Body;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use sublet_protocol::api::Problem;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use crate::error::Chain;
use crate::http::app::App;
use crate::http::error::ApiError;
use crate::http::extract::{Operator, Params};

/// Pieces that are made before the caller has taken the first.
const AHEAD: usize = 2;

/// Everything that was acknowledged before the call, in the file that `sublet restore` reads. It ends
/// with a digest: an answer that breaks off is told from a whole one.
#[utoipa::path(
    get, path = "/v1/ledger/backup", tag = "ledger", security(("token" = [])),
    responses((status = OK, body = Vec<u8>, content_type = "application/octet-stream"),
        (status = "4XX", body = Problem, content_type = "application/problem+json")),
)]
pub(crate) async fn backup(
    State(app): State<App>,
    _: Operator,
    params: Params,
) -> Result<Response, ApiError> {
    params.end()?;
    // It reads as much as a check of the ledger does, and takes its turn with those.
    let permit = app.verify()?;
    let pieces = app.cell.backup().await?;
    let (sender, receiver) = mpsc::channel(AHEAD);
    tokio::task::spawn_blocking(move || {
        for piece in pieces {
            let piece = piece.map_err(|error| {
                tracing::error!(error = %Chain(&error), "a backup broke off");
                io::Error::other("the backup broke off")
            });
            let is_over = piece.is_err();
            if sender.blocking_send(piece).is_err() || is_over {
                break;
            }
        }
        drop(permit);
    });
    let body = Body::from_stream(ReceiverStream::new(receiver));
    Ok(([(CONTENT_TYPE, "application/octet-stream")], body).into_response())
}
