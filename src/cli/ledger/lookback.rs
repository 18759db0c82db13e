//! `sublet ledger state --at` and `sublet ledger diff`: the state as it was.

use clap::Args;
use sublet_protocol::api::PastState;

use crate::cli::global::Context;
use crate::client::Query;
use crate::failure::Outcome;
use crate::output::{Column, Table};

/// Show what differs between two states of the cell. It folds the ledger again: an operator's token is
/// needed, and time.
#[derive(Debug, Args)]
pub(crate) struct Diff {
    /// The earlier one: how many records, or an instant as 2026-03-01T10:00:00Z.
    from: String,
    /// The later one.
    until: String,
}

/// Shows the state at a point.
pub(crate) fn state_at(context: &Context, at: String) -> Outcome<()> {
    let found = context.client()?.past_state(&Query::new().with("at", Some(at)))?;
    context.printer.item(&found, &fields(&found))
}

fn fields(found: &PastState) -> [(&'static str, String); 8] {
    [
        ("records", found.records.to_string()),
        ("time", found.time.to_string()),
        ("sha256", found.sha256.clone()),
        ("tenants", found.tenants.to_string()),
        ("offers", found.offers.to_string()),
        ("requests", found.requests.to_string()),
        ("leases", found.leases.to_string()),
        ("hold", found.hold.to_string()),
    ]
}

impl Diff {
    /// Does it.
    pub(crate) fn run(self, context: &Context) -> Outcome<()> {
        let query = Query::new().with("from", Some(self.from)).with("until", Some(self.until));
        let found = context.client()?.state_diff(&query)?;
        let columns = [
            Column::text("KIND"),
            Column::number("ADDED"),
            Column::number("REMOVED"),
            Column::number("CHANGED"),
            Column::text("IDS"),
        ];
        let mut table = Table::new(&columns, "nothing differs");
        for of in &found.changes {
            let shown = of.ids.iter().take(4).cloned().collect::<Vec<_>>().join(" ");
            let more = if of.ids.len() > 4 { " …" } else { "" };
            table.row([
                of.kind.clone(),
                of.added.to_string(),
                of.removed.to_string(),
                of.changed.to_string(),
                format!("{shown}{more}"),
            ]);
        }
        context.printer.list(&found, &table)
    }
}
