//! `sublet price`: what owners ask for a GPU-hour.

use clap::{Args, Subcommand};
use sublet_protocol::api::{Money, PriceSet, PriceView};
use sublet_protocol::ids::{GpuModel, TenantId};
use sublet_protocol::money::{Currency, MicroCredits};
use sublet_protocol::requests::Tier;

use super::amounts::{self, show_money, word};
use super::global::Context;
use crate::client::{Client, Query};
use crate::failure::Outcome;
use crate::output::{Column, Table};

/// Show and post prices.
#[derive(Debug, Subcommand)]
pub(super) enum Price {
    /// Show the posted prices.
    List(List),
    /// Post a price. Leases that were granted before keep theirs.
    Set(Set),
}

/// Show the posted prices.
#[derive(Debug, Args)]
pub(super) struct List {
    /// Only this owner's.
    #[arg(long, value_parser = amounts::tenant)]
    owner: Option<TenantId>,
    /// Only for this GPU model.
    #[arg(long, value_parser = amounts::model)]
    model: Option<GpuModel>,
}

/// Post a price.
#[derive(Debug, Args)]
pub(super) struct Set {
    /// The tenant that owns the GPUs.
    #[arg(long, value_parser = amounts::tenant)]
    owner: TenantId,
    /// For this GPU model.
    #[arg(long, value_parser = amounts::model)]
    model: GpuModel,
    /// For requests of this tier.
    #[arg(long, value_parser = amounts::tier())]
    tier: Tier,
    /// What one GPU costs for one hour, as 1.25.
    #[arg(value_parser = amounts::money, allow_negative_numbers = true)]
    per_gpu_hour: MicroCredits,
}

impl Price {
    /// Does it.
    pub(super) fn run(self, context: &Context) -> Outcome<()> {
        let client = context.client()?;
        match self {
            Price::List(List { owner, model }) => {
                let query = Query::new().with("owner", owner).with("model", model);
                list(context, &client.prices(&query)?)
            }
            Price::Set(Set { owner, model, tier, per_gpu_hour }) => {
                let per_gpu_hour = Money::new(per_gpu_hour, currency(&client)?);
                let price = client.set_price(&PriceSet { owner, model, tier, per_gpu_hour })?;
                context.printer.item(&price, &fields(&price))
            }
        }
    }
}

/// The cell's currency, as any posted price or hold shows it; euro in a cell that has neither.
pub(super) fn currency(client: &Client) -> Outcome<Currency> {
    if let Some(price) = client.prices(&Query::new())?.first() {
        return Ok(price.per_gpu_hour.currency);
    }
    let tenants = client.tenants()?;
    Ok(tenants.first().map_or(Currency::EUR, |tenant| tenant.hold.currency))
}

fn list(context: &Context, prices: &[PriceView]) -> Outcome<()> {
    let columns = [
        Column::text("OWNER"),
        Column::text("GPU"),
        Column::text("TIER"),
        Column::number("PRICE/GPU-H"),
        Column::text("CURRENCY"),
        Column::number("VERSION"),
    ];
    let mut table = Table::new(
        &columns,
        "no posted prices that this token may see; sublet offers shows what is on offer",
    );
    for price in prices {
        table.row([
            price.owner.to_string(),
            price.model.to_string(),
            word(&price.tier),
            show_money(price.per_gpu_hour.amount),
            price.per_gpu_hour.currency.to_string(),
            price.version.to_string(),
        ]);
    }
    context.printer.list(&prices, &table)
}

fn fields(price: &PriceView) -> Vec<(&'static str, String)> {
    let per_hour = price.per_gpu_hour;
    vec![
        ("owner", price.owner.to_string()),
        ("gpu", price.model.to_string()),
        ("tier", word(&price.tier)),
        ("price", format!("{} {} per GPU-hour", show_money(per_hour.amount), per_hour.currency)),
        ("version", price.version.to_string()),
    ]
}
