//! `/v1/prices`.

use axum::Json as Answer;
use axum::extract::State;
use sublet_protocol::api::{Page, PriceSet, PriceView, Problem};
use sublet_protocol::commands::Command;
use sublet_protocol::ids::{GpuModel, TenantId};
use sublet_protocol::money::MicroCredits;
use sublet_protocol::requests::Tier;

use crate::http::app::App;
use crate::http::error::ApiError;
use crate::http::extract::{Call, Changer, Json, Params, Reader};
use crate::http::lists::page;
use crate::http::mutation::Mutation;
use crate::http::views;

/// Highest price, as in the rules: one million units per GPU-hour.
const PRICE_MAX: MicroCredits = MicroCredits::new(1_000_000 * MicroCredits::PER_UNIT);

const TIERS: [(&str, Tier); 3] = [
    ("opportunistic", Tier::Opportunistic),
    ("standard", Tier::Standard),
    ("reserved", Tier::Reserved),
];

/// Posted prices that the caller sees: its own, or all of the cell. What borrowers pay is in
/// `/v1/offers`.
#[utoipa::path(
    get, path = "/v1/prices", tag = "prices", security(("token" = [])),
    params(("owner" = Option<String>, Query), ("model" = Option<String>, Query),
        ("cursor" = Option<String>, Query), ("limit" = Option<u32>, Query)),
    responses((status = OK, body = Page<PriceView>), (status = "4XX", body = Problem,
        content_type = "application/problem+json")),
)]
pub(crate) async fn list(
    State(app): State<App>,
    reader: Reader,
    mut params: Params,
) -> Result<Answer<Page<PriceView>>, ApiError> {
    let (owner, model): (Option<TenantId>, Option<GpuModel>) =
        (params.id("owner")?, params.id("model")?);
    let after = params.text("cursor").map(|text| place(&text)).transpose()?;
    let limit = params.limit()?;
    params.end()?;
    let read = app.cell.read(|state| {
        let currency = state.policy().currency;
        let seen = state.prices().iter();
        let seen = seen.filter(|((of, _, _), _)| reader.scope.sees(*of));
        let seen = seen.filter(|((of, on, _), _)| {
            owner.is_none_or(|owner| owner == *of) && model.is_none_or(|model| model == *on)
        });
        let seen = seen.filter(|(key, _)| after.is_none_or(|after| **key > after));
        let items = seen.map(|(key, price)| (cursor(*key), views::price(*key, *price, currency)));
        page(items, limit)
    });
    Ok(Answer(read.await?))
}

/// Where a page ends.
type Place = (TenantId, GpuModel, Tier);

fn cursor((owner, model, tier): Place) -> String {
    let name = TIERS.iter().find(|(_, of)| *of == tier).map_or("", |(name, _)| *name);
    format!("{owner}/{model}/{name}")
}

fn place(cursor: &str) -> Result<Place, ApiError> {
    let read = || {
        let mut parts = cursor.split('/');
        let (owner, model, tier) = (parts.next()?, parts.next()?, parts.next()?);
        let tier = TIERS.iter().find(|(name, _)| *name == tier)?.1;
        Some((owner.parse().ok()?, model.parse().ok()?, tier))
    };
    read().ok_or_else(ApiError::bad_cursor)
}

/// Posts a price: the owner itself, or an operator for it.
#[utoipa::path(
    put, path = "/v1/prices", tag = "prices", security(("token" = [])),
    params(("Idempotency-Key" = String, Header)), request_body = PriceSet,
    responses((status = OK, body = PriceView), (status = "4XX", body = Problem,
        content_type = "application/problem+json")),
)]
pub(crate) async fn set(
    State(app): State<App>,
    Changer(caller): Changer,
    call: Call,
    body: Json<PriceSet>,
) -> Result<Answer<PriceView>, ApiError> {
    let PriceSet { owner, model, tier, per_gpu_hour } = body.value;
    let currency = app.currency();
    let own = caller.as_tenant().filter(|_| caller.acting_tenant() == Some(owner));
    let actor = own.or_else(|| caller.as_operator()).ok_or_else(ApiError::forbidden)?;
    let amount = views::money(per_gpu_hour, "/per_gpu_hour", currency)?;
    if amount > PRICE_MAX {
        let detail = format!("a price is at most {PRICE_MAX} per GPU-hour");
        return Err(ApiError::content("PRICE_INVALID", "/per_gpu_hour/amount", detail));
    }
    let known = app.cell.read(|state| {
        let is_known = state.tenants().contains_key(&owner);
        (is_known, state.prices().get(&(owner, model, tier)).copied())
    });
    let (is_known, posted) = known.await?;
    if !is_known {
        let detail = format!("there is no tenant {owner}");
        return Err(ApiError::content("TENANT_MISSING", "/owner", detail));
    }
    let command = Command::SetPrice { owner, model, tier, per_gpu_hour: amount };
    let change = Mutation { actor, call: &call, body: &body.value, command }.make(&app).await?;
    let set = change.find(|record| views::price_set(record, currency));
    // What it is already needs no record.
    let unchanged = || posted.map(|price| views::price((owner, model, tier), price, currency));
    set.or_else(unchanged).map(Answer).ok_or_else(ApiError::internal)
}
