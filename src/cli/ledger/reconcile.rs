//! `sublet ledger reconcile`: whether ledger, broker and agents agree.

use clap::Args;
use sublet_protocol::api::{Money, ReconciliationView};
use sublet_protocol::ids::TenantId;
use sublet_protocol::units::Seconds;

use crate::cli::amounts::show_money;
use crate::cli::global::Context;
use crate::failure::{Exit, Failure, Outcome};
use crate::output::{Column, Table, note};
use crate::units::show_seconds;

/// Hold ledger, broker and agents against each other. What two reports of an agent in a row (60 s) show is
/// a leak: not_held (leased, but its agent does not hold it), not_leased (held, but no lease stands for
/// it), not_used (leased and held, but its guest uses neither GPU nor CPU). Exit code 1 if anything leaks
/// or the books differ, 75 if nothing does but some nodes have not reported.
#[derive(Debug, Args)]
pub(crate) struct Reconcile {}

impl Reconcile {
    /// Does it.
    pub(super) fn run(context: &Context) -> Outcome<Exit> {
        let found = context.client()?.reconciliation()?;
        context.printer.list(&found, &table(&found))?;
        if !context.printer.is_data() {
            note(&summary(&found));
            for gap in &found.books {
                let of = |hold: &Option<Money>| {
                    hold.as_ref().map_or_else(|| "nothing".to_owned(), |m| show_money(m.amount))
                };
                let (ledger, broker) = (of(&gap.ledger), of(&gap.broker));
                note(&format!("{}: the ledger holds {ledger}, the broker {broker}", gap.lease));
            }
            if !found.nodes_unknown.is_empty() {
                note(&format!("not known: {}", found.nodes_unknown.join(", ")));
            }
        }
        if !found.leaks.is_empty() || found.books_differ > 0 {
            let what = format!(
                "{} leaks, {} holds that the books and the broker do not agree in",
                found.leaks.len(),
                found.books_differ
            );
            return Err(Failure::new(Exit::Failed, what));
        }
        match found.nodes_unknown.len() {
            0 => Ok(Exit::Done),
            count => {
                let what = format!("{count} nodes have not reported what they hold");
                Err(Failure::new(Exit::Temporary, what)
                    .because("their agents are silent, or the broker has just begun to lead"))
            }
        }
    }
}

fn summary(found: &ReconciliationView) -> String {
    format!(
        "{} leases, {} nodes have reported within {} s, {} have not",
        found.leases,
        found.nodes_reported,
        found.cycle_seconds * 2,
        found.nodes_unknown.len(),
    )
}

fn table(found: &ReconciliationView) -> Table {
    let columns = [
        Column::text("LEAK"),
        Column::text("LEASE"),
        Column::text("GPU"),
        Column::text("TENANT"),
        Column::text("OWNER"),
        Column::number("AGE"),
        Column::number("COST"),
    ];
    let mut table = Table::new(&columns, "nothing leaks that is known of");
    let known = |id: Option<TenantId>| id.map_or_else(|| "-".to_owned(), |id| id.to_string());
    for leak in &found.leaks {
        table.row([
            leak.kind.code().to_owned(),
            leak.lease.to_string(),
            format!("{}/{}/{}", leak.cluster, leak.node, leak.device),
            known(leak.tenant),
            known(leak.owner),
            show_seconds(Seconds::new(leak.age_seconds)),
            leak.cost.as_ref().map_or_else(|| "-".to_owned(), |cost| show_money(cost.amount)),
        ]);
    }
    table
}
