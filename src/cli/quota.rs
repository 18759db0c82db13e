//! `sublet quota`: how much of one GPU model a tenant may hold, borrow and lend.

use clap::{Args, Subcommand};
use sublet_protocol::api::{QuotaFigures, QuotaSet, QuotaView, Whole};
use sublet_protocol::ids::{GpuModel, TenantId};
use sublet_protocol::quotas::Basis;
use sublet_protocol::units::GpuMilli;

use super::amounts;
use super::global::Context;
use crate::client::Query;
use crate::failure::{Failure, Outcome};
use crate::output::{Column, Table};
use crate::units::{parse_quota, show_gpus};

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
    /// How many GPUs it is guaranteed, as 8 or 0.5; 0 for none.
    #[arg(value_parser = parse_quota, allow_negative_numbers = true)]
    gpus: GpuMilli,
    /// How many more it may borrow from its group; as many as there are if this is left out.
    #[arg(long, value_name = "GPUS", value_parser = parse_quota, allow_negative_numbers = true)]
    borrow: Option<GpuMilli>,
    /// How many of its own its group may lend to others; all if this is left out.
    #[arg(long, value_name = "GPUS", value_parser = parse_quota, allow_negative_numbers = true)]
    lend: Option<GpuMilli>,
    /// Count only what its own clusters have on offer or on lease.
    #[arg(long)]
    hardware: bool,
}

impl Set {
    fn body(&self) -> Outcome<QuotaSet> {
        let amount = |gpus: GpuMilli| {
            let gpus_text = show_gpus(gpus);
            let error = |_| Failure::usage(format!("{gpus_text} GPUs are too many for a quota"));
            Whole::new(gpus.get()).map_err(error)
        };
        Ok(QuotaSet {
            nominal: amount(self.gpus)?,
            borrow_limit: self.borrow.map(amount).transpose()?,
            lend_limit: self.lend.map(amount).transpose()?,
            basis: if self.hardware { Basis::Hardware } else { Basis::Allowance },
        })
    }
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
            Quota::Set(set) => {
                let quota = client.set_quota(set.tenant, set.model, &set.body()?)?;
                let mut fields = vec![
                    ("tenant", quota.tenant.to_string()),
                    ("gpu", quota.model.to_string()),
                    ("quota", show_gpus(GpuMilli::new(quota.nominal))),
                    ("borrows at most", limit(quota.borrow_limit)),
                    ("lends at most", limit(quota.lend_limit)),
                    ("rests on", amounts::word(&quota.basis)),
                ];
                if let Some(warning) = &quota.warning {
                    fields.push(("warning", warning.clone()));
                }
                context.printer.item(&quota, &fields)
            }
        }
    }
}

/// GPUs, or a dash if they are not known.
fn shown(milli: Option<u64>) -> String {
    milli.map_or_else(|| "-".to_owned(), |milli| show_gpus(GpuMilli::new(milli)))
}

/// A limit, or that there is none.
fn limit(milli: Option<u64>) -> String {
    milli.map_or_else(|| "all".to_owned(), |milli| show_gpus(GpuMilli::new(milli)))
}

fn list(context: &Context, quotas: &[QuotaView]) -> Outcome<()> {
    let columns = [
        Column::text("TENANT"),
        Column::text("GPU"),
        Column::number("QUOTA"),
        Column::number("COUNTS"),
        Column::number("HELD"),
        Column::number("BORROWED"),
        Column::number("LEFT"),
        Column::number("BORROW"),
        Column::number("LEND"),
    ];
    let mut table = Table::new(&columns, "no quotas are set");
    for quota in quotas {
        let figure = |of: fn(&QuotaFigures) -> u64| shown(quota.figures.as_ref().map(of));
        table.row([
            quota.tenant.to_string(),
            quota.model.to_string(),
            show_gpus(GpuMilli::new(quota.nominal)),
            figure(|figures| figures.counts),
            shown(quota.held),
            figure(|figures| figures.borrowed),
            figure(|figures| figures.left),
            limit(quota.borrow_limit),
            limit(quota.lend_limit),
        ]);
    }
    context.printer.list(&quotas, &table)
}
