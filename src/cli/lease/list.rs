//! `sublet lease list`: leases, or requests that wait.

use clap::Args;
use sublet_protocol::api::{LeaseView, RequestView};
use sublet_protocol::units::{GpuMilli, MiB, Seconds};

use super::super::amounts::{self, show_money, word};
use super::super::global::Context;
use crate::client::{Client, Query};
use crate::failure::Outcome;
use crate::output::{self, Column, Table};
use crate::units::{show_gpus, show_memory, show_seconds};

/// Show leases, or requests that wait.
#[derive(Debug, Args)]
pub(in crate::cli) struct List {
    /// Ended leases, too.
    #[arg(long, short, conflicts_with = "waiting")]
    all: bool,
    /// Requests that wait, instead of leases.
    #[arg(long, short)]
    waiting: bool,
    /// Only the ids, one a line.
    #[arg(long, short)]
    quiet: bool,
    /// At most this many.
    #[arg(long, value_parser = amounts::limit, default_value = "1000", allow_negative_numbers = true)]
    limit: usize,
}

impl List {
    /// Prints them.
    pub(super) fn run(self, context: &Context, client: &Client) -> Outcome<()> {
        if self.waiting {
            let query = Query::new().with("state", Some("waiting"));
            let requests = client.requests(&query, self.limit)?;
            return self.print(context, &requests, |r| r.id.to_string(), &waiting(&requests));
        }
        let query = Query::new().with("state", self.all.then_some("all"));
        let leases = client.leases(&query, self.limit)?;
        self.print(context, &leases, |lease| lease.id.to_string(), &table(&leases))
    }

    fn print<T: serde::Serialize>(
        &self,
        context: &Context,
        items: &[T],
        id: impl Fn(&T) -> String,
        table: &Table,
    ) -> Outcome<()> {
        if self.quiet {
            let ids: Vec<String> = items.iter().map(|item| format!("{}\n", id(item))).collect();
            return output::print(&ids.concat());
        }
        context.printer.list(&items, table)
    }
}

fn table(leases: &[LeaseView]) -> Table {
    let columns = [
        Column::text("LEASE"),
        Column::text("STATE"),
        Column::number("GPUS"),
        Column::text("GPU"),
        Column::text("CLUSTER"),
        Column::text("RANK"),
        Column::number("USED"),
        Column::number("COST"),
        Column::text("CURRENCY"),
        Column::text("END"),
        Column::text("TENANT").wide(),
        Column::text("PROJECT").wide(),
        Column::text("REQUEST").wide(),
        Column::text("GRANTED").wide(),
    ];
    let mut table = Table::new(&columns, "no leases");
    for lease in leases {
        let count = u64::try_from(lease.slices.len()).unwrap_or(u64::MAX);
        table.row([
            lease.id.to_string(),
            lease.state.as_str().to_owned(),
            show_gpus(GpuMilli::new(lease.gpu.saturating_mul(count))),
            lease.model.to_string(),
            lease.cluster.to_string(),
            word(&lease.tier),
            show_seconds(Seconds::new(lease.used)),
            show_money(lease.cost.amount),
            lease.cost.currency.to_string(),
            lease.end_reason.map_or_else(|| "-".to_owned(), |reason| reason.code().to_owned()),
            lease.tenant.to_string(),
            lease.project.to_string(),
            lease.request.to_string(),
            lease.created_at.to_string(),
        ]);
    }
    table
}

fn waiting(requests: &[RequestView]) -> Table {
    let columns = [
        Column::text("REQUEST"),
        Column::number("GPUS"),
        Column::number("MEM"),
        Column::number("DURATION"),
        Column::text("RANK"),
        Column::text("SUBMITTED"),
        Column::text("REASON"),
        Column::text("TENANT").wide(),
    ];
    let mut table = Table::new(&columns, "no requests wait");
    for request in requests {
        let spec = &request.spec;
        let milli = spec.gpu.get().saturating_mul(spec.count.get());
        table.row([
            request.id.to_string(),
            show_gpus(GpuMilli::new(milli)),
            show_memory(MiB::new(spec.memory.get())),
            show_seconds(Seconds::new(spec.duration.get())),
            word(&request.tier),
            request.created_at.to_string(),
            request.state_reason.code.clone(),
            request.tenant.to_string(),
        ]);
    }
    table
}
