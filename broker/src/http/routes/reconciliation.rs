//! `/v1/ledger/reconciliation`: whether ledger, broker and agents agree.

use axum::Json as Answer;
use axum::extract::State;
use sublet_core::leader::{CYCLE, Leak, LeakKind};
use sublet_protocol::api::{
    BookGapView, LeakKindView, LeakView, Money, Problem, ReconciliationView, Time,
};
use sublet_protocol::money::{Currency, MicroCredits};
use sublet_protocol::units::Timestamp;

use crate::http::app::App;
use crate::http::error::ApiError;
use crate::http::extract::{Auditor, Params};
use crate::reconciliation::{BookGap, Reconciled};

/// Holds ledger, broker and agents against each other. What agents hold and GPUs do is known from
/// their reports, every 30 s; what two reports in a row show is a leak. A node that has not reported
/// is unknown, which does not mean that nothing leaks there.
#[utoipa::path(
    get, path = "/v1/ledger/reconciliation", tag = "ledger", security(("token" = [])),
    responses((status = OK, body = ReconciliationView), (status = "4XX", body = Problem,
        content_type = "application/problem+json")),
)]
pub(crate) async fn show(
    State(app): State<App>,
    auditor: Auditor,
    params: Params,
) -> Result<Answer<ReconciliationView>, ApiError> {
    let Auditor = auditor;
    params.end()?;
    let found = app.cell.reconcile().await?;
    Ok(Answer(view(found, app.currency())))
}

fn view(found: Reconciled, currency: Currency) -> ReconciliationView {
    let Reconciled { agents, leases, gaps, books } = found;
    let at = agents.at;
    let unknown = agents.unknown.iter().map(|(cluster, node)| format!("{cluster}/{node}"));
    ReconciliationView {
        at: Time(at),
        cycle_seconds: CYCLE.get(),
        leases,
        nodes_reported: agents.reported,
        nodes_unknown: unknown.collect(),
        leaks: agents.leaks.iter().map(|leak| leak_of(leak, at, currency)).collect(),
        books_differ: gaps,
        books: books.iter().map(|gap| gap_of(gap, currency)).collect(),
    }
}

fn leak_of(leak: &Leak, at: Timestamp, currency: Currency) -> LeakView {
    let kind = match leak.kind {
        LeakKind::NotHeld => LeakKindView::NotHeld,
        LeakKind::NotLeased => LeakKindView::NotLeased,
        LeakKind::NotUsed => LeakKindView::NotUsed,
    };
    LeakView {
        kind,
        lease: leak.lease,
        cluster: leak.slice.cluster,
        node: leak.slice.node,
        device: leak.slice.device,
        tenant: leak.tenant,
        owner: leak.owner,
        since: Time(leak.since),
        age_seconds: at.since(leak.since).get() / 1_000,
        cost: leak.cost.map(|cost| Money::new(cost, currency)),
    }
}

/// A hold past what an amount can show is shown as the largest.
fn gap_of(gap: &BookGap, currency: Currency) -> BookGapView {
    let money = |hold: i128| {
        let most = if hold < 0 { i64::MIN } else { i64::MAX };
        Money::new(MicroCredits::new(i64::try_from(hold).unwrap_or(most)), currency)
    };
    BookGapView { lease: gap.lease, ledger: gap.ledger.map(money), broker: gap.broker.map(money) }
}
