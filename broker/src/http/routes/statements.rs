//! `/v1/ledger/statements` and `/v1/ledger/periods`: what finance reads and closes.

use axum::Json as Answer;
use axum::extract::State;
use axum::http::StatusCode;
use sublet_ledger::charges::Charge;
use sublet_ledger::periods::{Period, PeriodError};
use sublet_ledger::statement::{Party, StatementBuilder, StatementError};
use sublet_protocol::api::{PeriodClose, PeriodsView, Problem, StatementSide, StatementView, Time};
use sublet_protocol::commands::Command;
use sublet_protocol::events::Event;
use sublet_protocol::ids::TenantId;
use sublet_protocol::money::Currency;
use sublet_protocol::units::Timestamp;

use crate::cell::{Cell, RECORDS_MAX};
use crate::http::app::App;
use crate::http::error::ApiError;
use crate::http::extract::{Call, Json, Operator, Params, Reader};
use crate::http::mutation::Mutation;

/// Most lines of a statement that a broker makes. Longer ones are made offline, by `sublet-audit`.
const LINES_MAX: usize = 10_000;

/// What a tenant owes, or earned by lending, for a month or another period.
#[utoipa::path(
    get, path = "/v1/ledger/statements", tag = "ledger", security(("token" = [])),
    params(
        ("tenant" = Option<TenantId>, Query, description = "whose; the token's own if not named"),
        ("side" = Option<StatementSide>, Query, description = "borrower if not named"),
        ("month" = Option<String>, Query, description = "as 2026-03; or from and until"),
        ("from" = Option<String>, Query, description = "a day or an instant"),
        ("until" = Option<String>, Query, description = "a day or an instant; not in the period"),
        ("zone" = Option<String>, Query, description = "an IANA time zone; UTC if not named"),
    ),
    responses((status = OK, body = StatementView), (status = "4XX", body = Problem,
        content_type = "application/problem+json")),
)]
pub(crate) async fn statement(
    State(app): State<App>,
    reader: Reader,
    mut params: Params,
) -> Result<Answer<StatementView>, ApiError> {
    let asked = params.id::<TenantId>("tenant")?;
    let sides = [("borrower", StatementSide::Borrower), ("lender", StatementSide::Lender)];
    let side = params.word("side", &sides)?.unwrap_or(StatementSide::Borrower);
    let period = period(&mut params)?;
    params.end()?;
    let Some(tenant) = asked.or(reader.scope.tenant()).or(reader.tenant) else {
        let detail = "name a tenant: the token is not one tenant's";
        return Err(ApiError::malformed("QUERY_INVALID", "tenant", detail));
    };
    let known = app.cell.read(|state| state.tenants().contains_key(&tenant)).await?;
    if !known || !reader.scope.sees(tenant) {
        return Err(ApiError::not_found());
    }
    let permit = app.statement()?;
    let (cell, currency) = (app.cell.clone(), app.currency());
    let party = Party { tenant, side };
    // It reads the journal from the period on. A caller that goes away must not make room meanwhile.
    let task = tokio::task::spawn_blocking(move || {
        let made = make(&cell, party, period, currency);
        drop(permit);
        made
    });
    let made = task.await.map_err(|error| {
        tracing::error!(%error, "a statement broke off");
        ApiError::internal()
    })?;
    made.map(Answer)
}

fn period(params: &mut Params) -> Result<Period, ApiError> {
    let zone = params.text("zone").unwrap_or_else(|| "UTC".to_owned());
    let (from, until) = (params.text("from"), params.text("until"));
    let period = match (params.text("month"), from, until) {
        (Some(month), None, None) => Period::month(&month, &zone),
        (None, Some(from), Some(until)) => Period::between(&from, &until, &zone),
        _other => {
            let detail = "name a period: month, or both from and until";
            return Err(ApiError::malformed("QUERY_INVALID", "month", detail));
        }
    };
    period.map_err(|error| {
        let name = match &error {
            PeriodError::UnknownZone(_) => "zone",
            PeriodError::Instant(_) | PeriodError::Empty => "from",
            _month => "month",
        };
        ApiError::malformed("QUERY_INVALID", name, error.to_string())
    })
}

/// Reads the journal from the period's begin to its end, or to the record that closed the period: what
/// is settled later counts later.
fn make(
    cell: &Cell,
    party: Party,
    period: Period,
    currency: Currency,
) -> Result<StatementView, ApiError> {
    let (from, until) = (period.from(), period.until());
    let mut builder = StatementBuilder::new(party, period, currency);
    let end = cell.head()?.size;
    let mut next = match from.get().checked_sub(1) {
        Some(before) => {
            let last = cell.journal(|journal| journal.at_time(Timestamp::new(before)))?;
            last.map_or(0, |last| last.saturating_add(1))
        }
        None => 0,
    };
    let mut closed = Timestamp::ZERO;
    while next < end && closed < until {
        let batch = cell.records(next, RECORDS_MAX)?;
        if batch.is_empty() {
            break;
        }
        for record in batch.into_iter().filter(|record| record.index < end) {
            next = record.index.saturating_add(1);
            match &record.event {
                Event::PeriodClosed { until: instant, .. } => closed = *instant,
                Event::LeaseEnded { lease, tenant, owner, .. }
                    if [*tenant, *owner].contains(&party.tenant) =>
                {
                    let records = cell.records_of_lease(*lease)?;
                    let charge = Charge::of_lease(&records, closed).ok_or_else(|| {
                        tracing::error!(lease_id = %lease, "a lease has ended without a grant");
                        ApiError::internal()
                    })?;
                    builder.add(&charge).map_err(|error| failed(&error))?;
                }
                Event::ChargeTurned { turn }
                    if [turn.tenant, turn.owner].contains(&party.tenant) =>
                {
                    let records = cell.records_of_lease(turn.lease)?;
                    let charge = Charge::of_turn(&records, record.index, closed);
                    let charge = charge.ok_or_else(|| {
                        tracing::error!(lease_id = %turn.lease, "a charge was turned without an end");
                        ApiError::internal()
                    })?;
                    builder.add(&charge).map_err(|error| failed(&error))?;
                }
                _other => {}
            }
            if closed >= until {
                break;
            }
        }
        if builder.len() > LINES_MAX {
            let detail = format!(
                "the statement has more than {LINES_MAX} lines: ask for a shorter period, or make \
                 it offline with `sublet-audit statement`"
            );
            let status = StatusCode::UNPROCESSABLE_ENTITY;
            return Err(ApiError::new(status, "STATEMENT_TOO_LONG", detail));
        }
    }
    let made = builder.finish().map_err(|error| failed(&error))?;
    made.view(next, closed).map_err(|error| failed(&error))
}

fn failed(error: &StatementError) -> ApiError {
    tracing::error!(%error, "a statement cannot be made");
    ApiError::internal()
}

/// Up to when the books are closed.
#[utoipa::path(
    get, path = "/v1/ledger/periods", tag = "ledger", security(("token" = [])),
    responses((status = OK, body = PeriodsView), (status = "4XX", body = Problem,
        content_type = "application/problem+json")),
)]
pub(crate) async fn periods(
    State(app): State<App>,
    _: Reader,
    params: Params,
) -> Result<Answer<PeriodsView>, ApiError> {
    params.end()?;
    let closed = app.cell.read(|state| state.closed_until()).await?;
    Ok(Answer(PeriodsView { closed_until: shown(closed) }))
}

fn shown(closed: Timestamp) -> Option<Time> {
    (closed > Timestamp::ZERO).then_some(Time(closed))
}

/// Closes the books up to an instant: what is settled later and falls before it appears behind it, as a
/// correction. It cannot be undone.
#[utoipa::path(
    post, path = "/v1/ledger/periods", tag = "ledger", security(("token" = [])),
    params(("Idempotency-Key" = String, Header)), request_body = PeriodClose,
    responses((status = OK, body = PeriodsView), (status = "4XX", body = Problem,
        content_type = "application/problem+json")),
)]
pub(crate) async fn close(
    State(app): State<App>,
    Operator(caller): Operator,
    call: Call,
    body: Json<PeriodClose>,
) -> Result<Answer<PeriodsView>, ApiError> {
    let actor = caller.as_operator().ok_or_else(ApiError::forbidden)?;
    let PeriodClose { until } = body.value;
    let command = Command::ClosePeriod { until: until.0 };
    let change = Mutation { actor, call: &call, body: &body.value, command }.make(&app).await?;
    let closed = change.find(|record| match &record.event {
        Event::PeriodClosed { until, .. } => Some(*until),
        _other => None,
    });
    Ok(Answer(PeriodsView { closed_until: shown(closed.unwrap_or(until.0)) }))
}
