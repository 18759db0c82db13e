//! `/v1/tenants/{tenant}/terms`, `/calendar` and `/parent`.

use axum::Json as Answer;
use axum::extract::State;
use sublet_protocol::api::{
    CalendarSet, CalendarView, ParentSet, ParentView, Problem, TermsSet, TermsView,
};
use sublet_protocol::commands::Command;
use sublet_protocol::ids::TenantId;
use sublet_protocol::quotas::{Budget, TenantTerms, Weight};
use sublet_protocol::units::GpuTime;

use crate::calendar;
use crate::http::app::App;
use crate::http::error::ApiError;
use crate::http::extract::{Call, Id, Json, Operator};
use crate::http::mutation::Mutation;
use crate::http::views;

/// Sets how much a tenant counts when capacity is shared, what it may spend in a month, and what its
/// members take back of what they have lent.
#[utoipa::path(
    put, path = "/v1/tenants/{tenant}/terms", tag = "tenants", security(("token" = [])),
    params(("tenant" = String, Path), ("Idempotency-Key" = String, Header)),
    request_body = TermsSet,
    responses((status = OK, body = TermsView), (status = "4XX", body = Problem,
        content_type = "application/problem+json")),
)]
pub(crate) async fn set(
    State(app): State<App>,
    Operator(caller): Operator,
    Id(tenant): Id<TenantId>,
    call: Call,
    body: Json<TermsSet>,
) -> Result<Answer<TermsView>, ApiError> {
    let actor = caller.as_operator().ok_or_else(ApiError::forbidden)?;
    let TermsSet { weight, budget, reclaim } = &body.value;
    let currency = app.currency();
    let money = |money| views::money(money, "/budget/money", currency);
    // The largest number of seconds that the body allows fits.
    let time = |seconds: u64| GpuTime::new(seconds.saturating_mul(GpuTime::GPU_SECOND.get()));
    let budget = Budget {
        gpu_time: budget.gpu_seconds.map(|seconds| time(seconds.get())),
        money: budget.money.map(money).transpose()?,
    };
    let terms = TenantTerms { weight: Weight::new(weight.get_u32()), budget, reclaim: *reclaim };
    let command = Command::SetTerms { tenant, terms };
    let change = Mutation { actor, call: &call, body: &body.value, command }.make(&app).await?;
    // What it is already needs no record.
    let unchanged = || views::terms(tenant, &terms, currency);
    let set = change.find(|record| views::terms_set(record, currency));
    Ok(Answer(set.unwrap_or_else(unchanged)))
}

/// Sets when it is off-peak for a tenant and for all below it that have no hours of their own.
#[utoipa::path(
    put, path = "/v1/tenants/{tenant}/calendar", tag = "tenants", security(("token" = [])),
    params(("tenant" = String, Path), ("Idempotency-Key" = String, Header)),
    request_body = CalendarSet,
    responses((status = OK, body = CalendarView), (status = "4XX", body = Problem,
        content_type = "application/problem+json")),
)]
pub(crate) async fn set_calendar(
    State(app): State<App>,
    Operator(caller): Operator,
    Id(tenant): Id<TenantId>,
    call: Call,
    body: Json<CalendarSet>,
) -> Result<Answer<CalendarView>, ApiError> {
    let actor = caller.as_operator().ok_or_else(ApiError::forbidden)?;
    let calendar = body.value.calendar.clone();
    if let Some(calendar) = &calendar {
        calendar::check_zone(&calendar.zone).map_err(|error| {
            ApiError::content("CALENDAR_INVALID", "/calendar/zone", error.to_string())
        })?;
        calendar.validate().map_err(|error| {
            ApiError::content("CALENDAR_INVALID", "/calendar/off_peak", error.to_string())
        })?;
    }
    let command = Command::SetCalendar { tenant, calendar: calendar.clone() };
    Mutation { actor, call: &call, body: &body.value, command }.make(&app).await?;
    Ok(Answer(CalendarView { tenant, calendar }))
}

/// Moves a tenant, with all below it, to another group.
#[utoipa::path(
    put, path = "/v1/tenants/{tenant}/parent", tag = "tenants", security(("token" = [])),
    params(("tenant" = String, Path), ("Idempotency-Key" = String, Header)),
    request_body = ParentSet,
    responses((status = OK, body = ParentView), (status = "4XX", body = Problem,
        content_type = "application/problem+json")),
)]
pub(crate) async fn move_to(
    State(app): State<App>,
    Operator(caller): Operator,
    Id(tenant): Id<TenantId>,
    call: Call,
    body: Json<ParentSet>,
) -> Result<Answer<ParentView>, ApiError> {
    let actor = caller.as_operator().ok_or_else(ApiError::forbidden)?;
    let parent = body.value.parent;
    if let Some(parent) = parent {
        let is_known = app.cell.read(|state| state.tenants().contains_key(&parent)).await?;
        if !is_known {
            let detail = format!("there is no tenant {parent}");
            return Err(ApiError::content("TENANT_MISSING", "/parent", detail));
        }
    }
    let command = Command::MoveTenant { tenant, parent };
    let change = Mutation { actor, call: &call, body: &body.value, command }.make(&app).await?;
    let over_admitted = change.all(views::over_admitted);
    Ok(Answer(ParentView { tenant, parent, over_admitted }))
}
