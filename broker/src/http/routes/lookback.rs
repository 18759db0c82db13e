//! `/v1/ledger/past` and `/v1/ledger/diff`: the state as it was, and what has changed since.

use axum::Json as Answer;
use axum::extract::State;
use sublet_protocol::api::{Money, PastState, Problem, StateChanges, StateDiff, Time};
use sublet_protocol::money::{Currency, MicroCredits};

use crate::cell::Cell;
use crate::error::Error;
use crate::http::app::App;
use crate::http::error::ApiError;
use crate::http::extract::{Operator, Params};
use crate::lookback::{self, Changes};

/// Most ids of one kind and direction that are listed.
const IDS_MAX: usize = 100;

/// The state behind a record or at an instant. It is folded again from the first record on, two at a time.
#[utoipa::path(
    get, path = "/v1/ledger/past", tag = "ledger", security(("token" = [])),
    params(("at" = String, Query,
        description = "how many records, or an instant: all records up to and with it")),
    responses((status = OK, body = PastState), (status = "4XX", body = Problem,
        content_type = "application/problem+json")),
)]
pub(crate) async fn past(
    State(app): State<App>,
    _: Operator,
    mut params: Params,
) -> Result<Answer<PastState>, ApiError> {
    let at = point(&app, &mut params, "at").await?;
    params.end()?;
    let currency = app.currency();
    let told = look_back(&app, move |cell| {
        let state = lookback::state_at(cell, at)?;
        told(&state, currency)
    });
    told.await.map(Answer)
}

/// What differs between the states behind two records, or at two instants.
#[utoipa::path(
    get, path = "/v1/ledger/diff", tag = "ledger", security(("token" = [])),
    params(
        ("from" = String, Query, description = "how many records, or an instant"),
        ("until" = String, Query, description = "how many records, or an instant; not before from"),
    ),
    responses((status = OK, body = StateDiff), (status = "4XX", body = Problem,
        content_type = "application/problem+json")),
)]
pub(crate) async fn diff(
    State(app): State<App>,
    _: Operator,
    mut params: Params,
) -> Result<Answer<StateDiff>, ApiError> {
    let from = point(&app, &mut params, "from").await?;
    let until = point(&app, &mut params, "until").await?;
    params.end()?;
    if until < from {
        return Err(ApiError::malformed("QUERY_INVALID", "until", "must not be before from"));
    }
    let currency = app.currency();
    let told = look_back(&app, move |cell| {
        let before = lookback::state_at(cell, from)?;
        let after = lookback::state_from(cell, &before, until)?;
        let changes = lookback::compare(&before, &after);
        let differs = |of: &&Changes| {
            !(of.added.is_empty() && of.removed.is_empty() && of.changed.is_empty())
        };
        let changes = changes.iter().filter(differs).map(shown).collect();
        Ok(StateDiff { from: told(&before, currency)?, until: told(&after, currency)?, changes })
    });
    told.await.map(Answer)
}

/// Off the async threads: it reads the journal from its first record on.
async fn look_back<T: Send + 'static>(
    app: &App,
    look: impl FnOnce(&Cell) -> Result<T, Error> + Send + 'static,
) -> Result<T, ApiError> {
    let permit = app.statement()?;
    let cell = app.cell.clone();
    let task = tokio::task::spawn_blocking(move || {
        let found = look(&cell);
        drop(permit);
        found
    });
    let found = task.await.map_err(|error| {
        tracing::error!(%error, "looking back broke off");
        ApiError::internal()
    })?;
    Ok(found?)
}

/// How many records a parameter names.
async fn point(app: &App, params: &mut Params, name: &str) -> Result<u64, ApiError> {
    let wrong = |detail: String| ApiError::malformed("QUERY_INVALID", name, detail);
    let text = params.text(name).unwrap_or_default();
    // Everything that was acknowledged before this call is in the journal behind this read.
    app.cell.read(|_| ()).await?;
    let size = app.cell.head()?.size;
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        let records = text.parse().ok().filter(|records| (1..=size).contains(records));
        return records.ok_or_else(|| wrong(format!("the ledger has 1 to {size} records")));
    }
    let instant: Time = text.parse().map_err(|_| {
        wrong("must be a number of records, or an instant as 2026-03-01T10:00:00Z".to_owned())
    })?;
    let last = app.cell.journal(|journal| journal.at_time(instant.0))?;
    let records = last.map(|last| last.saturating_add(1));
    records.ok_or_else(|| wrong("the ledger begins later".to_owned()))
}

fn told(state: &sublet_core::State, currency: Currency) -> Result<PastState, Error> {
    let count = |length: usize| u64::try_from(length).unwrap_or(u64::MAX);
    let sha256 = lookback::fingerprint(state).map_err(Error::Codec)?;
    let mut hold = 0_i64;
    for tenant in state.tenants().values() {
        hold = hold.saturating_add(tenant.hold().get());
    }
    Ok(PastState {
        records: state.next_index(),
        time: Time(state.now()),
        sha256: sha256.iter().map(|byte| format!("{byte:02x}")).collect(),
        tenants: count(state.tenants().len()),
        offers: count(state.offers().len()),
        requests: count(state.requests().len()),
        leases: count(state.leases().len()),
        hold: Money::new(MicroCredits::new(hold), currency),
    })
}

fn shown(changes: &Changes) -> StateChanges {
    let count = |of: &Vec<String>| u64::try_from(of.len()).unwrap_or(u64::MAX);
    let signed = |sign: char, of: &[String]| {
        of.iter().take(IDS_MAX).map(|id| format!("{sign}{id}")).collect::<Vec<_>>()
    };
    StateChanges {
        kind: changes.kind.to_owned(),
        added: count(&changes.added),
        removed: count(&changes.removed),
        changed: count(&changes.changed),
        ids: [
            signed('+', &changes.added),
            signed('-', &changes.removed),
            signed('~', &changes.changed),
        ]
        .concat(),
    }
}
