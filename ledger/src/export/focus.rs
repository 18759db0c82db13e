//! The layout of the FinOps Open Cost and Usage Specification (FOCUS), version 1.2.
//!
//! Who pays is the billing account. All leases can be taken back, so they are priced as `Dynamic`.
//! There is no list price beside the one posted: list, contracted, effective and billed cost are one.
//! A lease of which nothing is billed has no row. Source: <https://focus.finops.org/focus-specification/v1-2/>,
//! read in 2026.

use std::collections::BTreeMap;

use sublet_protocol::ids::TenantId;
use sublet_protocol::money::Currency;
use sublet_protocol::requests::Tier;
use sublet_protocol::rollbacks::ChargeStanding;
use sublet_protocol::units::{Millis, Timestamp};

use super::ExportError;
use super::table::{Column, Kind, Places, Value, decimal};
use crate::charges::{Charge, Part, divide_half_even};
use crate::periods::Period;

/// Which version of the specification.
pub const FOCUS_VERSION: &str = "1.2";

/// Columns that every file must have.
pub const MANDATORY: [&str; 21] = [
    "BilledCost",
    "BillingAccountId",
    "BillingAccountName",
    "BillingCurrency",
    "BillingPeriodEnd",
    "BillingPeriodStart",
    "ChargeCategory",
    "ChargeClass",
    "ChargeDescription",
    "ChargePeriodEnd",
    "ChargePeriodStart",
    "ContractedCost",
    "EffectiveCost",
    "InvoiceIssuerName",
    "ListCost",
    "PricingQuantity",
    "PricingUnit",
    "ProviderName",
    "PublisherName",
    "ServiceCategory",
    "ServiceName",
];

pub(super) const COLUMNS: [Column; 48] = [
    Column::new("BilledCost", Kind::Decimal),
    Column::new("BillingAccountId", Kind::Text),
    Column::new("BillingAccountName", Kind::Text),
    Column::new("BillingCurrency", Kind::Text),
    Column::new("BillingPeriodEnd", Kind::Time),
    Column::new("BillingPeriodStart", Kind::Time),
    Column::new("ChargeCategory", Kind::Text),
    Column::nullable("ChargeClass", Kind::Text),
    Column::new("ChargeDescription", Kind::Text),
    Column::new("ChargeFrequency", Kind::Text),
    Column::new("ChargePeriodEnd", Kind::Time),
    Column::new("ChargePeriodStart", Kind::Time),
    Column::new("ConsumedQuantity", Kind::Decimal),
    Column::new("ConsumedUnit", Kind::Text),
    Column::new("ContractedCost", Kind::Decimal),
    Column::new("ContractedUnitPrice", Kind::Decimal),
    Column::new("EffectiveCost", Kind::Decimal),
    Column::new("InvoiceIssuerName", Kind::Text),
    Column::new("ListCost", Kind::Decimal),
    Column::new("ListUnitPrice", Kind::Decimal),
    Column::new("PricingCategory", Kind::Text),
    Column::new("PricingQuantity", Kind::Decimal),
    Column::new("PricingUnit", Kind::Text),
    Column::new("ProviderName", Kind::Text),
    Column::new("PublisherName", Kind::Text),
    Column::nullable("RegionId", Kind::Text),
    Column::nullable("RegionName", Kind::Text),
    Column::new("ResourceId", Kind::Text),
    Column::nullable("ResourceName", Kind::Text),
    Column::new("ResourceType", Kind::Text),
    Column::new("ServiceCategory", Kind::Text),
    Column::new("ServiceName", Kind::Text),
    Column::new("ServiceSubcategory", Kind::Text),
    Column::new("SkuId", Kind::Text),
    Column::new("SkuMeter", Kind::Text),
    Column::new("SkuPriceId", Kind::Text),
    Column::new("SubAccountId", Kind::Text),
    Column::new("SubAccountName", Kind::Text),
    Column::new("SubAccountType", Kind::Text),
    Column::new("Tags", Kind::Text),
    Column::new("x_BilledMilliseconds", Kind::Whole),
    Column::new("x_EndReason", Kind::Text),
    Column::new("x_GpuMilli", Kind::Whole),
    Column::new("x_LeaseId", Kind::Text),
    Column::new("x_LedgerRecord", Kind::Whole),
    Column::new("x_PlatformFee", Kind::Decimal),
    Column::new("x_PriceVersion", Kind::Whole),
    Column::new("x_RequestId", Kind::Text),
];

/// Names that stand in no record.
#[derive(Debug, Clone, Default)]
pub struct Names {
    /// Who writes the invoices.
    pub issuer: String,
    /// Display names of tenants; an id stands for itself.
    pub tenants: BTreeMap<TenantId, String>,
}

impl Names {
    fn of(&self, tenant: TenantId) -> String {
        self.tenants.get(&tenant).cloned().unwrap_or_else(|| tenant.to_string())
    }
}

/// The row of what of a charge counts in a month; none if nothing is billed there.
pub(super) fn row(
    charge: &Charge,
    part: &Part,
    month: &Period,
    currency: Currency,
    names: &Names,
) -> Result<Option<Vec<Value>>, ExportError> {
    if part.billed == Millis::ZERO {
        return Ok(None);
    }
    let terms = &charge.terms;
    let money = |amount: i64| Value::Decimal(amount, Places::Two);
    let cost = money(part.cost.get());
    let price = money(terms.price.per_gpu_hour.get());
    let hours = gpu_hours(charge, part)?;
    let quantity = Value::Decimal(hours, Places::None);
    let is_correction = part.is_correction();
    let (start, end) = whole_seconds(part);
    let (lease, owner) = (terms.lease.to_string(), names.of(terms.owner));
    let sku = format!("{}/{}/{}", terms.owner, terms.model, tier_code(terms.tier()));
    let region = || charge.region.map_or(Value::Null, Value::text);
    let kind = match charge.turn {
        Some(ChargeStanding::Reversed) => "reversal of lease",
        Some(ChargeStanding::Charged) => "lease charged again",
        None => "lease",
    };
    let description =
        format!("{} {kind} {lease}, {} GPU-hours", terms.model, decimal(hours, Places::None));
    let account = names.of(terms.tenant);
    let project = terms.project.to_string();
    Ok(Some(vec![
        cost.clone(),
        Value::text(terms.tenant),
        Value::Text(account),
        Value::text(currency),
        Value::Time(month.until()),
        Value::Time(month.from()),
        Value::text("Usage"),
        if is_correction { Value::text("Correction") } else { Value::Null },
        Value::Text(description),
        Value::text("Usage-Based"),
        Value::Time(end),
        Value::Time(start),
        quantity.clone(),
        Value::text("GPU-Hours"),
        cost.clone(),
        price.clone(),
        cost.clone(),
        Value::text(&names.issuer),
        cost,
        price,
        Value::text("Dynamic"),
        quantity,
        Value::text("GPU-Hours"),
        Value::text(&names.issuer),
        Value::Text(owner),
        region(),
        region(),
        Value::text(&lease),
        Value::Null,
        Value::text("GPU lease"),
        Value::text("Compute"),
        Value::text("Idle GPU lease"),
        Value::text("Other (Compute)"),
        Value::text(&sku),
        Value::text("GPU time"),
        Value::Text(format!("{sku}/{}", terms.price.version)),
        Value::text(&project),
        Value::text(&project),
        Value::text("Project"),
        Value::Text(tags(&project)),
        Value::Whole(whole(charge, part.billed.get())? * charge.sign()),
        Value::text(charge.reason.code()),
        Value::Whole(whole(charge, charge.gpu().get())?),
        Value::Text(lease),
        Value::Whole(whole(charge, charge.index)?),
        money(part.fee.get()),
        Value::Whole(terms.price.version.into()),
        Value::text(terms.request),
    ]))
}

/// Tags as the JSON object that FOCUS wants.
fn tags(project: &str) -> String {
    let mut tags = serde_json::Map::new();
    tags.insert("project".to_owned(), project.into());
    serde_json::Value::Object(tags).to_string()
}

pub(super) const fn tier_code(tier: Tier) -> &'static str {
    match tier {
        Tier::Opportunistic => "opportunistic",
        Tier::Standard => "standard",
        Tier::Reserved => "reserved",
    }
}

/// A number in a column of whole numbers.
pub(super) fn whole(charge: &Charge, number: u64) -> Result<i64, ExportError> {
    i64::try_from(number).map_err(|_| ExportError::TooLarge { index: charge.index })
}

/// GPU-hours in millionths, rounded half to even. Counted from the begin of the lease, so that its
/// parts add up.
fn gpu_hours(charge: &Charge, part: &Part) -> Result<i64, ExportError> {
    let begin = charge.begin();
    let up_to = |instant: Timestamp| {
        let usage = i128::from(charge.gpu().get()) * i128::from(instant.since(begin).get());
        // A GPU-hour is 1,000 × 3,600,000 thousandths of a GPU times milliseconds.
        divide_half_even(usage.saturating_mul(1_000_000), 3_600_000_000)
    };
    let hours = (up_to(part.end) - up_to(part.begin)) * i128::from(charge.sign());
    let hours = i64::try_from(hours);
    hours.map_err(|_| ExportError::TooLarge { index: charge.index })
}

/// The time of a part in whole seconds: both ends are rounded down, so that parts meet, and none is
/// without length.
fn whole_seconds(part: &Part) -> (Timestamp, Timestamp) {
    let floor = |instant: Timestamp| Timestamp::new(instant.get() - instant.get() % 1_000);
    let (start, end) = (floor(part.begin), floor(part.end));
    let least = start.after_millis(Millis::new(1_000));
    (start, end.max(least))
}
