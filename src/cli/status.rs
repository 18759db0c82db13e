//! `sublet status`: how the cell is.

use clap::Args;
use sublet_protocol::units::Seconds;

use super::global::Context;
use crate::failure::Outcome;
use crate::units::show_seconds;

/// Say how the cell is.
#[derive(Debug, Args)]
pub(super) struct Status {}

impl Status {
    /// Prints it.
    pub(super) fn run(self, context: &Context) -> Outcome<()> {
        let client = context.client()?;
        let status = client.status()?;
        let (leases, ledger) = (status.leases, &status.ledger);
        let cell = status.cell.map_or_else(|| "not founded".to_owned(), |cell| cell.to_string());
        let silent = match status.nodes_silent {
            0 => String::new(),
            silent => format!(", {silent} silent"),
        };
        let fields = [
            ("server", client.settings().server.clone()),
            ("cell", cell),
            ("version", status.version.clone()),
            ("ledger time", status.now.to_string()),
            ("slices on offer", status.offers.to_string()),
            ("waiting", status.waiting.to_string()),
            (
                "leases",
                format!(
                    "{} granted, {} active, {} ending",
                    leases.granted, leases.active, leases.ending
                ),
            ),
            (
                "lent",
                format!("{} of GPU time", show_seconds(Seconds::new(status.gpu_seconds_lent))),
            ),
            ("tenants", status.tenants.to_string()),
            ("clusters", format!("{} with {} nodes{silent}", status.clusters, status.nodes)),
            ("ledger", format!("{} records, {} sealed", ledger.size, ledger.sealed)),
            ("root", ledger.root.clone()),
        ];
        context.printer.item(&status, &fields)
    }
}
