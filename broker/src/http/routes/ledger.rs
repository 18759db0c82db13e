//! `/v1/ledger`.

use axum::Json as Answer;
use axum::extract::State;
use sublet_ledger::accounts::Balance;
use sublet_ledger::verify::Report;
use sublet_protocol::api::{
    AccountView, LedgerState, Money, Page, Problem, RecordView, Time, VerifyView,
};
use sublet_protocol::money::{Account, Currency, MicroCredits};

use crate::auth::Scope;
use crate::cell::RECORDS_MAX;
use crate::http::app::App;
use crate::http::error::ApiError;
use crate::http::extract::{Auditor, Params, Reader};
use crate::http::visibility::Visibility;

/// Most batches of records that are searched for one page of what a tenant sees.
const BATCHES_MAX: usize = 20;

/// How far the ledger is.
#[utoipa::path(
    get, path = "/v1/ledger/state", tag = "ledger", security(("token" = [])),
    responses((status = OK, body = LedgerState), (status = "4XX", body = Problem,
        content_type = "application/problem+json")),
)]
pub(crate) async fn state(
    State(app): State<App>,
    _: Reader,
    params: Params,
) -> Result<Answer<LedgerState>, ApiError> {
    params.end()?;
    app.cell.read(|_| ()).await?;
    ledger_state(&app).map(Answer)
}

/// How far the ledger is, as this broker knows it.
pub(super) fn ledger_state(app: &App) -> Result<LedgerState, ApiError> {
    let cell = app.cell.read_stale(|state| state.cell().map(|(cell, _)| cell));
    let (head, sealed, time) = app.cell.journal(|journal| {
        let sealed = journal.size() - journal.tail_records();
        Ok((journal.head(), sealed, journal.last_time()))
    })?;
    let time = Time(time.unwrap_or_default());
    Ok(LedgerState { cell, size: head.size, root: head.root.to_string(), sealed, time })
}

/// Records that the caller sees, in their order. A page may be short, or empty, and have a cursor.
#[utoipa::path(
    get, path = "/v1/ledger/records", tag = "ledger", security(("token" = [])),
    params(
        ("from" = Option<u64>, Query, description = "records from this index on"),
        ("cursor" = Option<String>, Query), ("limit" = Option<u32>, Query),
    ),
    responses((status = OK, body = Page<RecordView>), (status = "4XX", body = Problem,
        content_type = "application/problem+json")),
)]
pub(crate) async fn records(
    State(app): State<App>,
    reader: Reader,
    mut params: Params,
) -> Result<Answer<Page<RecordView>>, ApiError> {
    let from = params.whole("from", 0..=u64::MAX)?;
    let cursor = params.whole("cursor", 0..=u64::MAX)?;
    let limit = params.limit()?;
    params.end()?;
    app.cell.read(|_| ()).await?;
    let mut next = cursor.or(from).unwrap_or(0);
    let (mut items, mut visibility) = (Vec::new(), Visibility::new(reader.scope));
    for _ in 0..BATCHES_MAX {
        let batch = app.cell.records(next, RECORDS_MAX)?;
        let is_end = batch.len() < RECORDS_MAX;
        for record in batch {
            if items.len() == limit {
                return Ok(Answer(Page { items, next_cursor: Some(next.to_string()) }));
            }
            next = record.index.saturating_add(1);
            if visibility.sees(&app, &record)? {
                items.push(RecordView::from(record));
            }
        }
        if is_end {
            return Ok(Answer(Page { items, next_cursor: None }));
        }
    }
    Ok(Answer(Page { items, next_cursor: Some(next.to_string()) }))
}

/// Reads the whole ledger again and checks records, hashes, segments and books.
#[utoipa::path(
    get, path = "/v1/ledger/verify", tag = "ledger", security(("token" = [])),
    responses((status = OK, body = VerifyView), (status = "4XX", body = Problem,
        content_type = "application/problem+json")),
)]
pub(crate) async fn verify(
    State(app): State<App>,
    _: Auditor,
    params: Params,
) -> Result<Answer<VerifyView>, ApiError> {
    params.end()?;
    let (permit, cell) = (app.verify()?, app.cell.clone());
    // A task of its own: a caller that goes away must not make room while the check runs on.
    let task = tokio::spawn(async move {
        let report = cell.verify().await;
        drop(permit);
        report
    });
    let report = task.await.map_err(|error| {
        tracing::error!(%error, "a check of the ledger broke off");
        ApiError::internal()
    })??;
    Ok(Answer(verified(&report)))
}

fn verified(report: &Report) -> VerifyView {
    let findings = report.first_bad.iter().map(|bad| {
        let mut text = format!("from record {} on: {}", bad.index, bad.finding);
        let mut cause = std::error::Error::source(&bad.finding);
        while let Some(error) = cause {
            text = format!("{text}: {error}");
            cause = error.source();
        }
        text
    });
    VerifyView {
        verified: report.is_good(),
        records: report.records,
        root: report.root.to_string(),
        balanced: report.accounts.is_balanced(),
        findings: findings.collect(),
    }
}

/// The trial balance: every account that the caller sees, with the sums of its postings.
#[utoipa::path(
    get, path = "/v1/ledger/accounts", tag = "ledger", security(("token" = [])),
    responses((status = OK, body = Page<AccountView>), (status = "4XX", body = Problem,
        content_type = "application/problem+json")),
)]
pub(crate) async fn accounts(
    State(app): State<App>,
    reader: Reader,
    params: Params,
) -> Result<Answer<Page<AccountView>>, ApiError> {
    params.end()?;
    app.cell.read(|_| ()).await?;
    let (accounts, currency) = (app.cell.accounts(), app.currency());
    let seen = accounts.trial_balance().filter(|(account, _)| sees(reader.scope, account));
    let items: Option<Vec<_>> = seen.map(|(of, balance)| account(of, balance, currency)).collect();
    let items = items.ok_or_else(|| {
        tracing::error!("the sum of an account's postings is too large to be written");
        ApiError::internal()
    })?;
    Ok(Answer(Page { items, next_cursor: None }))
}

fn sees(scope: Scope, account: &Account) -> bool {
    match account {
        Account::Expense(tenant) | Account::Hold(tenant) | Account::Revenue(tenant) => {
            scope.sees(*tenant)
        }
        Account::Fee | Account::Rounding => scope == Scope::Cell,
    }
}

fn account(account: Account, balance: Balance, currency: Currency) -> Option<AccountView> {
    let money = |sum: i128| {
        let amount = i64::try_from(sum).ok().map(MicroCredits::new)?;
        Some(Money::new(amount, currency))
    };
    let (debit, credit) = (money(balance.debit)?, money(balance.credit)?);
    Some(AccountView { account: account.to_string(), debit, credit })
}
