//! `sublet tenant`: who pays or earns.

use clap::{Args, Subcommand};
use sublet_protocol::api::{TenantCreate, TenantView};
use sublet_protocol::ids::TenantId;
use sublet_protocol::units::GpuMilli;

use super::amounts::{self, show_money};
use super::global::Context;
use crate::failure::Outcome;
use crate::output::{Column, Table};
use crate::suggest;
use crate::units::show_gpus;

/// Show and add tenants.
#[derive(Debug, Subcommand)]
pub(super) enum Tenant {
    /// Show all tenants.
    List,
    /// Show one tenant.
    Show(Show),
    /// Add a tenant.
    Create(Create),
}

/// Show one tenant.
#[derive(Debug, Args)]
pub(super) struct Show {
    /// Its id.
    #[arg(value_parser = amounts::tenant)]
    id: TenantId,
}

/// Add a tenant.
#[derive(Debug, Args)]
pub(super) struct Create {
    /// Its id: 1 to 32 characters of a-z, 0-9 and -.
    #[arg(value_parser = amounts::tenant)]
    id: TenantId,
    /// The group it belongs to.
    #[arg(long, value_parser = amounts::tenant)]
    parent: Option<TenantId>,
}

impl Tenant {
    /// Does it.
    pub(super) fn run(self, context: &Context) -> Outcome<()> {
        let client = context.client()?;
        let tenant = match self {
            Tenant::List => return list(context, &client.tenants()?),
            Tenant::Show(Show { id }) => match client.tenant(id)? {
                Some(tenant) => tenant,
                None => {
                    let known = client.tenants()?;
                    let known: Vec<String> = known.iter().map(|t| t.id.to_string()).collect();
                    return Err(suggest::unknown("tenant", id.as_str(), &known));
                }
            },
            Tenant::Create(Create { id, parent }) => {
                client.create_tenant(&TenantCreate { id, parent })?
            }
        };
        context.printer.item(&tenant, &fields(&tenant))
    }
}

fn quotas(tenant: &TenantView) -> Vec<String> {
    let quota = |nominal: u64| show_gpus(GpuMilli::new(nominal));
    tenant.quotas.iter().map(|q| format!("{} {}", quota(q.nominal), q.model)).collect()
}

fn list(context: &Context, tenants: &[TenantView]) -> Outcome<()> {
    let columns = [
        Column::text("TENANT"),
        Column::text("PARENT"),
        Column::number("OPEN"),
        Column::number("HOLD"),
        Column::text("CURRENCY"),
        Column::text("QUOTAS"),
    ];
    let mut table = Table::new(&columns, "no tenants that this token may see");
    for tenant in tenants {
        table.row([
            tenant.id.to_string(),
            tenant.parent.map_or_else(|| "-".to_owned(), |parent| parent.to_string()),
            tenant.open_requests.to_string(),
            show_money(tenant.hold.amount),
            tenant.hold.currency.to_string(),
            quotas(tenant).join(", "),
        ]);
    }
    context.printer.list(&tenants, &table)
}

fn fields(tenant: &TenantView) -> Vec<(&'static str, String)> {
    vec![
        ("tenant", tenant.id.to_string()),
        ("parent", tenant.parent.map_or_else(|| "-".to_owned(), |parent| parent.to_string())),
        ("created", tenant.created_at.to_string()),
        ("open requests", tenant.open_requests.to_string()),
        ("set aside", format!("{} {}", show_money(tenant.hold.amount), tenant.hold.currency)),
        ("quotas", quotas(tenant).join("\n")),
    ]
}
