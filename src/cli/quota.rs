//! `sublet quota`: how much of one GPU model a tenant may hold at once.

use clap::{Args, Subcommand};
use sublet_protocol::api::{QuotaSet, QuotaView, Whole};
use sublet_protocol::ids::{GpuModel, TenantId};
use sublet_protocol::units::GpuMilli;

use super::amounts;
use super::global::Context;
use crate::client::Query;
use crate::failure::{Failure, Outcome};
use crate::output::{Column, Table};
use crate::units::show_gpus;

/// Show and set quotas.
#[derive(Debug, Subcommand)]
pub(super) enum Quota {
    /// Show the quotas.
    List(List),
    /// Set a quota.
    Set(Set),
}

/// Show the quotas.
#[derive(Debug, Args)]
pub(super) struct List {
    /// Only of this tenant.
    #[arg(long, value_parser = amounts::tenant)]
    tenant: Option<TenantId>,
}

/// Set a quota.
#[derive(Debug, Args)]
pub(super) struct Set {
    /// Whose.
    #[arg(long, value_parser = amounts::tenant)]
    tenant: TenantId,
    /// For this GPU model.
    #[arg(long, value_parser = amounts::model)]
    model: GpuModel,
    /// How many GPUs it may hold at once; 0 for none.
    #[arg(allow_negative_numbers = true)]
    gpus: u64,
}

impl Quota {
    /// Does it.
    pub(super) fn run(self, context: &Context) -> Outcome<()> {
        let client = context.client()?;
        match self {
            Quota::List(List { tenant }) => {
                let quotas = client.quotas(&Query::new().with("tenant", tenant))?;
                list(context, &quotas)
            }
            Quota::Set(Set { tenant, model, gpus }) => {
                let nominal = Whole::new(gpus.saturating_mul(GpuMilli::DEVICE.get()))
                    .map_err(|_| Failure::usage(format!("{gpus} GPUs are too many for a quota")))?;
                let quota = client.set_quota(tenant, model, &QuotaSet::of(nominal))?;
                let fields = [
                    ("tenant", quota.tenant.to_string()),
                    ("gpu", quota.model.to_string()),
                    ("quota", show_gpus(GpuMilli::new(quota.nominal))),
                ];
                context.printer.item(&quota, &fields)
            }
        }
    }
}

fn list(context: &Context, quotas: &[QuotaView]) -> Outcome<()> {
    let columns = [
        Column::text("TENANT"),
        Column::text("GPU"),
        Column::number("QUOTA"),
        Column::number("HELD"),
    ];
    let mut table = Table::new(&columns, "no quotas are set");
    for quota in quotas {
        let held = quota.held.map_or_else(|| "-".to_owned(), |held| show_gpus(GpuMilli::new(held)));
        table.row([
            quota.tenant.to_string(),
            quota.model.to_string(),
            show_gpus(GpuMilli::new(quota.nominal)),
            held,
        ]);
    }
    context.printer.list(&quotas, &table)
}
