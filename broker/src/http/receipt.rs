//! Receipts: an answer to a change names the record that the change made, in the header
//! `Sublet-Receipt`.
//!
//! `{"origin": …, "index": …, "leaf": …, "time": …}`: with it the caller can ask later for a proof
//! that the very record is in the ledger. It is not signed; the checkpoint that covers it is.

use std::cell::RefCell;

use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use sublet_ledger::merkle::Hash;
use sublet_protocol::api::{Receipt, Time};
use sublet_protocol::codec::encode_record;
use sublet_protocol::records::Record;

use super::app::App;
use super::error::ApiError;

/// The header of an answer.
pub(crate) const RECEIPT: HeaderName = HeaderName::from_static("sublet-receipt");

tokio::task_local! {
    /// What the call that this task answers has made.
    static MADE: RefCell<Option<HeaderValue>>;
}

/// Answers a call and adds the receipt of what it made.
pub(crate) async fn with_receipt(request: Request, next: Next) -> Response {
    let answer = async {
        let mut response = next.run(request).await;
        if let Some(receipt) = MADE.with(|made| made.borrow_mut().take()) {
            response.headers_mut().insert(RECEIPT, receipt);
        }
        response
    };
    MADE.scope(RefCell::default(), answer).await
}

/// Notes the record that the call at hand has made, or made when it was first asked.
pub(crate) fn note(app: &App, record: &Record) -> Result<(), ApiError> {
    let bytes = encode_record(record).map_err(|error| {
        tracing::error!(%error, index = record.index, "a record that was read cannot be written");
        ApiError::internal()
    })?;
    let leaf = Hash::of_leaf(&bytes).to_string();
    let (origin, index, time) = (app.cell.origin()?, record.index, Time(record.time));
    let receipt = serde_json::to_string(&Receipt { origin, index, leaf, time });
    // An origin may have letters that a header cannot hold; then the answer goes without.
    let header = receipt.ok().and_then(|text| HeaderValue::from_str(&text).ok());
    // Outside of a call, as in some tests, nobody asks for it.
    let _ = MADE.try_with(|made| made.replace(header));
    Ok(())
}
