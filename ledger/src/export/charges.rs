//! The layout of all that the ledger knows of a charge.

use super::ExportError;
use super::table::{Column, Kind, Places, Value};
use crate::charges::{Charge, Part};
use crate::periods::Period;

pub(super) const COLUMNS: [Column; 29] = [
    Column::new("record", Kind::Whole),
    Column::new("settled_at", Kind::Time),
    Column::new("lease", Kind::Text),
    Column::new("request", Kind::Text),
    Column::new("borrower", Kind::Text),
    Column::new("lender", Kind::Text),
    Column::new("project", Kind::Text),
    Column::new("cluster", Kind::Text),
    Column::nullable("region", Kind::Text),
    Column::new("model", Kind::Text),
    Column::new("tier", Kind::Text),
    Column::new("gpu_milli", Kind::Whole),
    Column::new("slices", Kind::Whole),
    Column::new("reason", Kind::Text),
    Column::new("period_from", Kind::Time),
    Column::new("period_until", Kind::Time),
    Column::new("begin", Kind::Time),
    Column::new("end", Kind::Time),
    Column::new("billed_ms", Kind::Whole),
    Column::new("lease_measured_ms", Kind::Whole),
    Column::new("lease_excused_ms", Kind::Whole),
    Column::new("price_per_gpu_hour", Kind::Decimal),
    Column::new("price_version", Kind::Whole),
    Column::new("cost", Kind::Decimal),
    Column::new("fee", Kind::Decimal),
    Column::new("earned", Kind::Decimal),
    Column::new("currency", Kind::Text),
    Column::new("correction", Kind::Text),
    Column::nullable("turn", Kind::Text),
];

/// The row of what of a charge counts in a month.
pub(super) fn row(
    charge: &Charge,
    part: &Part,
    month: &Period,
    currency: &str,
) -> Result<Vec<Value>, ExportError> {
    let whole = |number: u64| super::focus::whole(charge, number).map(Value::Whole);
    let money = |amount: i64| Value::Decimal(amount, Places::Two);
    let terms = &charge.terms;
    Ok(vec![
        whole(charge.index)?,
        Value::Time(charge.settled_at),
        Value::text(terms.lease),
        Value::text(terms.request),
        Value::text(terms.tenant),
        Value::text(terms.owner),
        Value::text(terms.project),
        Value::text(terms.cluster),
        charge.region.map_or(Value::Null, Value::text),
        Value::text(terms.model),
        Value::text(super::focus::tier_code(terms.tier())),
        whole(charge.gpu().get())?,
        whole(u64::try_from(terms.members.len()).unwrap_or(u64::MAX))?,
        Value::text(charge.reason.code()),
        Value::Time(month.from()),
        Value::Time(month.until()),
        Value::Time(part.begin),
        Value::Time(part.end),
        Value::Whole(super::focus::whole(charge, part.billed.get())? * charge.sign()),
        whole(charge.measured.get())?,
        whole(charge.excused().get())?,
        money(terms.price.per_gpu_hour.get()),
        Value::Whole(terms.price.version.into()),
        money(part.cost.get()),
        money(part.fee.get()),
        money(part.earned().get()),
        Value::text(currency),
        Value::text(if part.is_correction() { "yes" } else { "no" }),
        charge.turn.map_or(Value::Null, |turn| Value::text(turn.code())),
    ])
}
