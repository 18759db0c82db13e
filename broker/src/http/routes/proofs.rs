//! `/v1/ledger/checkpoint`, `/v1/ledger/proofs`, `/v1/ledger/extension`.

use axum::Json as Answer;
use axum::extract::State;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sublet_protocol::api::{CheckpointView, ExtensionView, Problem, ProofView};

use crate::http::app::App;
use crate::http::error::ApiError;
use crate::http::extract::{Number, Params, Reader};
use crate::http::visibility::Visibility;

/// The newest signed checkpoint. Absent before the first seal, and on a broker without the cell's key.
#[utoipa::path(
    get, path = "/v1/ledger/checkpoint", tag = "ledger", security(("token" = [])),
    responses((status = OK, body = CheckpointView), (status = "4XX", body = Problem,
        content_type = "application/problem+json")),
)]
pub(crate) async fn checkpoint(
    State(app): State<App>,
    _: Reader,
    params: Params,
) -> Result<Answer<CheckpointView>, ApiError> {
    params.end()?;
    let checkpoint = app.cell.checkpoint()?.ok_or_else(ApiError::not_found)?;
    let key = app.cell.journal(|journal| Ok(journal.public_key().map(ToString::to_string)))?;
    let head = checkpoint.head();
    Ok(Answer(CheckpointView {
        origin: checkpoint.origin().to_owned(),
        size: head.size,
        root: head.root.to_string(),
        key: key.unwrap_or_default(),
        note: checkpoint.to_string(),
    }))
}

/// The proof that a record is in the ledger of the newest checkpoint. Absent while it is not sealed.
#[utoipa::path(
    get, path = "/v1/ledger/proofs/{index}", tag = "ledger", security(("token" = [])),
    params(("index" = u64, Path, description = "the record")),
    responses((status = OK, body = ProofView), (status = "4XX", body = Problem,
        content_type = "application/problem+json")),
)]
pub(crate) async fn inclusion(
    State(app): State<App>,
    reader: Reader,
    Number(index): Number,
    params: Params,
) -> Result<Answer<ProofView>, ApiError> {
    params.end()?;
    let record = app.cell.record(index)?.ok_or_else(ApiError::not_found)?;
    if !Visibility::new(reader.scope).sees(&app, &record)? {
        return Err(ApiError::not_found());
    }
    let proof = app.cell.prove_inclusion(index).await?.ok_or_else(ApiError::not_found)?;
    let size = proof.checkpoint.head().size;
    let proof = sublet_ledger::proof::Proof::Inclusion(proof).to_string();
    Ok(Answer(ProofView { index, size, proof }))
}

/// What shows that the ledger of the newest checkpoint extends that of an earlier one.
#[utoipa::path(
    get, path = "/v1/ledger/extension", tag = "ledger", security(("token" = [])),
    params(("from" = u64, Query, description = "how many records the earlier one has")),
    responses((status = OK, body = ExtensionView), (status = "4XX", body = Problem,
        content_type = "application/problem+json")),
)]
pub(crate) async fn extension(
    State(app): State<App>,
    _: Reader,
    mut params: Params,
) -> Result<Answer<ExtensionView>, ApiError> {
    let from = params.whole("from", 0..=u64::MAX)?;
    params.end()?;
    let from = from.ok_or_else(|| {
        ApiError::malformed("QUERY_INVALID", "from", "how many records has the earlier one?")
    })?;
    let proven = app.cell.prove_extension(from).await?;
    let (path, checkpoint) = proven.ok_or_else(ApiError::not_found)?;
    Ok(Answer(ExtensionView {
        from,
        hashes: path.iter().map(|hash| STANDARD.encode(hash.as_bytes())).collect(),
        note: checkpoint.to_string(),
    }))
}
