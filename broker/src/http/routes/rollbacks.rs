//! `/v1/rollbacks`: undoing a batch of leases, with a dry run before.

use std::collections::BTreeMap;

use axum::Json as Answer;
use axum::extract::State;
use sublet_core::{Rollback, RollbackStage};
use sublet_protocol::api::{
    Money, Problem, RollbackApprove, RollbackCreate, RollbackPlan, RollbackSelect, RollbackState,
    RollbackTenant, RollbackView, Time,
};
use sublet_protocol::commands::Command;
use sublet_protocol::events::Event;
use sublet_protocol::ids::{RollbackId, TenantId};
use sublet_protocol::money::{Currency, MicroCredits};
use sublet_protocol::rollbacks::{ChargeStanding, RollbackPolicy, RollbackSelector};

use crate::http::app::App;
use crate::http::error::ApiError;
use crate::http::extract::{Auditor, Call, Id, Json, NoBody, Operator, Params};
use crate::http::mutation::Mutation;
use crate::rollback::{self, Found, SelectError};

/// What undoing these leases would do now. Changes and keeps nothing; needs no key.
#[utoipa::path(
    post, path = "/v1/rollbacks/plan", tag = "rollbacks", security(("token" = [])),
    request_body = RollbackSelect,
    responses((status = OK, body = RollbackPlan), (status = "4XX", body = Problem,
        content_type = "application/problem+json")),
)]
pub(crate) async fn plan(
    State(app): State<App>,
    _: Operator,
    body: Json<RollbackSelect>,
) -> Result<Answer<RollbackPlan>, ApiError> {
    let selector = RollbackSelector::from(&body.value);
    let found = select(&app, selector.clone()).await?;
    let limit = app.cell.read_stale(|state| state.policy().rollback);
    shown(&found, &selector, limit, app.currency()).map(Answer)
}

/// Reads what is selected, off the async threads, one or two at a time.
async fn select(app: &App, selector: RollbackSelector) -> Result<Found, ApiError> {
    // Everything that was acknowledged before this call is in the journal behind this read.
    app.cell.read(|_| ()).await?;
    let permit = app.statement()?;
    let cell = app.cell.clone();
    let task = tokio::task::spawn_blocking(move || {
        let found = rollback::select(&cell, &selector);
        drop(permit);
        found
    });
    let found = task.await.map_err(|error| {
        tracing::error!(%error, "the selection of a rollback broke off");
        ApiError::internal()
    })?;
    found.map_err(|error| match error {
        SelectError::Unbounded => {
            ApiError::content("ROLLBACK_UNBOUNDED", "/from", error.to_string())
        }
        SelectError::TooMany => ApiError::content("ROLLBACK_TOO_LARGE", "", error.to_string()),
        SelectError::Read(error) => error.into(),
    })
}

fn digest(found: &Found, selector: &RollbackSelector) -> Result<[u8; 32], ApiError> {
    found.digest(selector).map_err(|error| {
        tracing::error!(%error, "a selection that was read cannot be written");
        ApiError::internal()
    })
}

fn hex(bytes: &[u8; 32]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn too_large() -> ApiError {
    let detail = "the money that is moved is too much to be written: name fewer leases at a time";
    ApiError::content("ROLLBACK_TOO_LARGE", "", detail)
}

/// Sums of one tenant, in micro-units.
#[derive(Default)]
struct Sums {
    leases: u32,
    live: u32,
    expense: i128,
    hold: i128,
    revenue: i128,
}

fn shown(
    found: &Found,
    selector: &RollbackSelector,
    limit: RollbackPolicy,
    currency: Currency,
) -> Result<RollbackPlan, ApiError> {
    let (mut tenants, mut fee, mut live, mut requeued) =
        (BTreeMap::<TenantId, Sums>::new(), 0_i128, 0_u32, 0_u32);
    for chosen in found.leases.values() {
        // What stands goes back; what is reversed is charged again.
        let sign = match chosen.standing {
            ChargeStanding::Charged => -1,
            ChargeStanding::Reversed => 1,
        };
        let charge = chosen.charge.map_or((0, 0), |charge| (charge.cost.get(), charge.fee.get()));
        let [cost, its_fee] = [charge.0, charge.1].map(|amount| sign * i128::from(amount));
        let borrower = tenants.entry(chosen.tenant).or_default();
        borrower.leases += 1;
        borrower.expense += cost;
        if let Some(hold) = chosen.hold {
            (borrower.live, live) = (borrower.live + 1, live + 1);
            borrower.hold += i128::from(hold.get());
        }
        requeued += u32::from(chosen.is_requeued);
        tenants.entry(chosen.owner).or_default().revenue += cost - its_fee;
        fee += its_fee;
    }
    let money = |sum: i128| {
        let amount = i64::try_from(sum).map_err(|_| too_large())?;
        Ok::<_, ApiError>(Money::new(MicroCredits::new(amount), currency))
    };
    let tenants = tenants.into_iter().map(|(tenant, sums)| {
        let Sums { leases, live, expense, hold, revenue } = sums;
        let (expense, hold, revenue) = (money(expense)?, money(hold)?, money(revenue)?);
        Ok(RollbackTenant { tenant, leases, live, expense, hold, revenue })
    });
    let tenants = tenants.collect::<Result<Vec<_>, ApiError>>()?;
    let most = found.money().ok_or_else(too_large)?;
    let leases = u32::try_from(found.leases.len()).unwrap_or(u32::MAX);
    Ok(RollbackPlan {
        digest: hex(&digest(found, selector)?),
        leases,
        live,
        requeued,
        untouched: found.untouched,
        money: Money::new(most, currency),
        fee: money(fee)?,
        tenants,
        needs_approval: leases > limit.leases_alone || most > limit.money_alone,
        records: found.records,
    })
}

/// Undoes these leases, or proposes it, if that is what the dry run showed.
#[utoipa::path(
    post, path = "/v1/rollbacks", tag = "rollbacks", security(("token" = [])),
    params(("Idempotency-Key" = String, Header)), request_body = RollbackCreate,
    responses((status = OK, body = RollbackView), (status = "4XX", body = Problem,
        content_type = "application/problem+json")),
)]
pub(crate) async fn create(
    State(app): State<App>,
    Operator(caller): Operator,
    call: Call,
    body: Json<RollbackCreate>,
) -> Result<Answer<RollbackView>, ApiError> {
    let actor = caller.as_operator().ok_or_else(ApiError::forbidden)?;
    let named = digest_of(&body.value.digest)?;
    let selector = RollbackSelector::from(&body.value.select);
    let key = call.key.0;
    // A call that is repeated is answered as it was: by then its leases are undone.
    let is_repeated = app.cell.read(|state| state.has_operator_key(key)).await?;
    let (mut leases, mut money) = (Vec::new(), MicroCredits::ZERO);
    if !is_repeated {
        let found = select(&app, selector.clone()).await?;
        if found.leases.is_empty() {
            let detail = "none of the selected leases has anything to undo";
            return Err(ApiError::content("ROLLBACK_EMPTY", "/select", detail));
        }
        if digest(&found, &selector)? != named {
            return Err(sublet_protocol::refusals::Rejection::RollbackChanged.into());
        }
        money = found.money().ok_or_else(too_large)?;
        leases = found.leases.into_keys().collect();
    }
    let command =
        Command::ProposeRollback { rollback: new_id()?, selector, leases, money, digest: named };
    let change = Mutation { actor, call: &call, body: &body.value, command }.make(&app).await?;
    let id = change.find(|record| match &record.event {
        Event::RollbackProposed { rollback, .. } => Some(*rollback),
        _other => None,
    });
    view(&app, id.ok_or_else(ApiError::internal)?).await.map(Answer)
}

fn digest_of(text: &str) -> Result<[u8; 32], ApiError> {
    let wrong = || {
        let detail = "must be the 64 hexadecimal digits that the dry run showed";
        ApiError::content("DIGEST_INVALID", "/digest", detail)
    };
    let pairs = text.as_bytes().chunks(2);
    let byte = |pair: &[u8]| {
        let is_hex = pair.len() == 2 && pair.iter().all(u8::is_ascii_hexdigit);
        let text = std::str::from_utf8(pair).ok().filter(|_| is_hex)?;
        u8::from_str_radix(text, 16).ok()
    };
    let bytes: Option<Vec<u8>> = pairs.map(byte).collect();
    bytes.and_then(|bytes| bytes.try_into().ok()).ok_or_else(wrong)
}

/// A repeat under the same key is answered with the first one's id, so chance is good enough.
fn new_id() -> Result<RollbackId, ApiError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| {
        tracing::error!(%error, "no randomness for a rollback's id");
        ApiError::internal()
    })?;
    Ok(RollbackId::new(u128::from_be_bytes(bytes)))
}

/// Rollbacks that wait or run, and the newest 32 that are over; the newest proposal first.
#[utoipa::path(
    get, path = "/v1/rollbacks", tag = "rollbacks", security(("token" = [])),
    responses((status = OK, body = Vec<RollbackView>), (status = "4XX", body = Problem,
        content_type = "application/problem+json")),
)]
pub(crate) async fn list(
    State(app): State<App>,
    _: Auditor,
    params: Params,
) -> Result<Answer<Vec<RollbackView>>, ApiError> {
    params.end()?;
    let currency = app.currency();
    let read = app.cell.read(|state| {
        let known = state.rollbacks().iter();
        let mut views: Vec<_> = known.map(|(id, one)| viewed(*id, one, currency)).collect();
        views.sort_by_key(|view| std::cmp::Reverse((view.proposed_at, view.id)));
        views
    });
    Ok(Answer(read.await?))
}

/// One rollback, if it waits, runs, or is one of the newest 32 that are over. The ledger has all.
#[utoipa::path(
    get, path = "/v1/rollbacks/{rollback}", tag = "rollbacks", security(("token" = [])),
    params(("rollback" = String, Path)),
    responses((status = OK, body = RollbackView), (status = "4XX", body = Problem,
        content_type = "application/problem+json")),
)]
pub(crate) async fn show(
    State(app): State<App>,
    _: Auditor,
    Id(id): Id<RollbackId>,
) -> Result<Answer<RollbackView>, ApiError> {
    view(&app, id).await.map(Answer)
}

/// Lets a rollback that another operator proposed begin.
#[utoipa::path(
    post, path = "/v1/rollbacks/{rollback}/approval", tag = "rollbacks", security(("token" = [])),
    params(("rollback" = String, Path), ("Idempotency-Key" = String, Header)),
    request_body = RollbackApprove,
    responses((status = OK, body = RollbackView), (status = "4XX", body = Problem,
        content_type = "application/problem+json")),
)]
pub(crate) async fn approve(
    State(app): State<App>,
    Operator(caller): Operator,
    Id(id): Id<RollbackId>,
    call: Call,
    body: Json<RollbackApprove>,
) -> Result<Answer<RollbackView>, ApiError> {
    let actor = caller.as_operator().ok_or_else(ApiError::forbidden)?;
    let digest = digest_of(&body.value.digest)?;
    let command = Command::ApproveRollback { rollback: id, digest };
    Mutation { actor, call: &call, body: &body.value, command }.make(&app).await?;
    view(&app, id).await.map(Answer)
}

/// Drops a rollback that waits for its approval.
#[utoipa::path(
    delete, path = "/v1/rollbacks/{rollback}", tag = "rollbacks", security(("token" = [])),
    params(("rollback" = String, Path), ("Idempotency-Key" = String, Header)),
    responses((status = OK, body = RollbackView), (status = "4XX", body = Problem,
        content_type = "application/problem+json")),
)]
pub(crate) async fn reject(
    State(app): State<App>,
    Operator(caller): Operator,
    Id(id): Id<RollbackId>,
    call: Call,
    _: NoBody,
) -> Result<Answer<RollbackView>, ApiError> {
    let actor = caller.as_operator().ok_or_else(ApiError::forbidden)?;
    let command = Command::RejectRollback { rollback: id };
    Mutation { actor, call: &call, body: &(), command }.make(&app).await?;
    view(&app, id).await.map(Answer)
}

async fn view(app: &App, id: RollbackId) -> Result<RollbackView, ApiError> {
    let currency = app.currency();
    let read = app
        .cell
        .read(|state| state.rollbacks().get(&id).map(|rollback| viewed(id, rollback, currency)));
    read.await?.ok_or_else(ApiError::not_found)
}

fn viewed(id: RollbackId, rollback: &Rollback, currency: Currency) -> RollbackView {
    let (state, approve_by, dropped) = match rollback.stage() {
        RollbackStage::Proposed { approve_by } => {
            (RollbackState::Proposed, Some(Time(approve_by)), None)
        }
        RollbackStage::Running => (RollbackState::Running, None, None),
        RollbackStage::Dropped { cause } => (RollbackState::Dropped, None, Some(cause)),
        RollbackStage::Finished => (RollbackState::Finished, None, None),
    };
    RollbackView {
        id,
        state,
        since: Time(rollback.since()),
        proposed_by: rollback.proposed_by().clone(),
        proposed_at: Time(rollback.proposed_at()),
        approve_by,
        approved_by: rollback.approved_by().cloned(),
        dropped,
        rollback: rollback.selector().rollback,
        leases: rollback.total(),
        done: rollback.done(),
        untouched: rollback.untouched(),
        live: rollback.live(),
        turned: rollback.turned(),
        money: Money::new(rollback.money(), currency),
        digest: hex(rollback.digest()),
    }
}
