//! Changes: proposed once under their idempotency key, answered from the records they made.

use serde::Serialize;
use sha2::{Digest, Sha256};
use sublet_protocol::commands::{Actor, Command, IdempotencyKey, Outcome};
use sublet_protocol::events::Event;
use sublet_protocol::ids::{LeaseId, RequestId};
use sublet_protocol::records::Record;
use sublet_protocol::refusals::Rejection;

use super::app::App;
use super::error::ApiError;
use super::extract::{Call, first_half};
use super::receipt;
use crate::cell::RECORDS_MAX;

/// A change that a caller asks for.
pub(crate) struct Mutation<'a, B> {
    pub(crate) actor: Actor,
    pub(crate) call: &'a Call,
    /// What was asked, in its canonical form: a typed body, every default filled in.
    pub(crate) body: &'a B,
    pub(crate) command: Command,
}

/// What came of a change, now or when it was first asked for under this key.
pub(crate) enum Change {
    /// These records, of one command.
    Made(Vec<Record>),
    /// Nothing had to change.
    Nothing,
}

impl<B: Serialize> Mutation<'_, B> {
    /// Has the change made, or finds what it made before under the same key.
    pub(crate) async fn make(self, app: &App) -> Result<Change, ApiError> {
        let key = IdempotencyKey { key: self.call.key.0, body: self.hash()? };
        match app.cell.propose(self.actor, Some(key), self.command).await? {
            Outcome::Done { count: 0, .. } => Ok(Change::Nothing),
            Outcome::Done { first, .. } | Outcome::Repeated { first } => made(app, first),
            Outcome::Refused { rejection } => Err(refused(rejection)),
        }
    }

    /// First half of the SHA-256 over method, path and canonical body.
    fn hash(&self) -> Result<[u8; 16], ApiError> {
        let body = serde_json::to_vec(self.body).map_err(|error| {
            tracing::error!(%error, "a body that was read cannot be written");
            ApiError::internal()
        })?;
        let mut hash = Sha256::new();
        for part in [self.call.method.as_str().as_bytes(), self.call.uri.path().as_bytes()] {
            hash.update(part);
            hash.update([0]);
        }
        hash.update(&body);
        Ok(first_half(hash.finalize().into()))
    }
}

fn refused(rejection: Rejection) -> ApiError {
    let error = ApiError::from(rejection);
    match rejection {
        Rejection::KeyReused => error.parameter("Idempotency-Key", rejection.to_string()),
        _other => error,
    }
}

/// The records of the command that made record `first`.
fn made(app: &App, first: u64) -> Result<Change, ApiError> {
    let mut records = app.cell.records(first, RECORDS_MAX)?;
    if let Some(record) = records.first() {
        receipt::note(app, record)?;
    }
    let cause = records.first().map(|record| record.cause);
    records.retain(|record| Some(record.cause) == cause);
    Ok(Change::Made(records))
}

impl Change {
    /// The index of its last record.
    pub(crate) fn last(&self) -> Option<u64> {
        match self {
            Change::Made(records) => records.last().map(|record| record.index),
            Change::Nothing => None,
        }
    }

    /// The first of its events that `pick` finds.
    pub(crate) fn find<T>(&self, pick: impl Fn(&Record) -> Option<T>) -> Option<T> {
        match self {
            Change::Made(records) => records.iter().find_map(pick),
            Change::Nothing => None,
        }
    }

    /// All of its events that `pick` finds.
    pub(crate) fn all<T>(&self, pick: impl Fn(&Record) -> Option<T>) -> Vec<T> {
        match self {
            Change::Made(records) => records.iter().filter_map(pick).collect(),
            Change::Nothing => Vec::new(),
        }
    }

    /// Refuses if what it made is a refused request.
    pub(crate) fn accepted(self) -> Result<Change, Rejection> {
        let refusal = self.find(|record| match &record.event {
            Event::RequestRefused { rejection, .. } => Some(*rejection),
            _other => None,
        });
        refusal.map_or(Ok(self), Err)
    }

    /// The request that it made.
    pub(crate) fn request(&self) -> Option<RequestId> {
        self.find(|record| match &record.event {
            Event::RequestSubmitted { request, .. } => Some(*request),
            _other => None,
        })
    }
}

/// The records of a lease up to and with the change: the answer is the same whenever it is asked.
pub(crate) fn lease_records(
    app: &App,
    lease: LeaseId,
    change: &Change,
) -> Result<Vec<Record>, ApiError> {
    let records = app.cell.records_of_lease(lease)?;
    Ok(up_to(records, change))
}

/// The records of a request up to and with the change.
pub(crate) fn request_records(
    app: &App,
    request: RequestId,
    change: &Change,
) -> Result<Vec<Record>, ApiError> {
    let records = app.cell.records_of_request(request)?;
    Ok(up_to(records, change))
}

fn up_to(mut records: Vec<Record>, change: &Change) -> Vec<Record> {
    if let Some(last) = change.last() {
        records.retain(|record| record.index <= last);
    }
    records
}
