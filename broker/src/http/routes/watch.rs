//! `/v1/watch`: records as they are journalled.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use sublet_protocol::api::{Problem, RecordView};

use crate::http::app::App;
use crate::http::error::ApiError;
use crate::http::extract::{Params, Reader};
use crate::http::streams::{self, Shown};
use crate::http::visibility::Visibility;

/// Records that the caller sees as server-sent events, without a gap and without end. The event's
/// id is the record's index, its name the kind of record.
#[utoipa::path(
    get, path = "/v1/watch", tag = "ledger", security(("token" = [])),
    params(
        ("from" = Option<u64>, Query, description = "from this index on; default: new ones"),
        ("Last-Event-ID" = Option<u64>, Header, description = "records behind this index"),
    ),
    responses((status = OK, body = RecordView, content_type = "text/event-stream"),
        (status = "4XX", body = Problem, content_type = "application/problem+json")),
)]
pub(crate) async fn watch(
    State(app): State<App>,
    reader: Reader,
    headers: HeaderMap,
    mut params: Params,
) -> Result<Response, ApiError> {
    let from = streams::start(&headers, &mut params)?;
    params.end()?;
    app.cell.read(|_| ()).await?;
    let from = match from {
        Some(from) => from,
        None => app.cell.head()?.size,
    };
    let permit = app.stream(reader.owner)?;
    streams::records(app, permit, Shown::Visible(Visibility::new(reader.scope)), from)
}
