//! `sublet lease checkpoint`: a program says that its work is saved.

use clap::Args;

use super::super::find::{self, Found};
use super::super::global::Context;
use super::show;
use crate::client::Client;
use crate::failure::{Exit, Failure, Outcome};

/// Say that the work of a lease is saved up to now. Among leases of one tier, those that would lose
/// least since their last checkpoint are preempted first.
#[derive(Debug, Args)]
pub(in crate::cli) struct Checkpoint {
    /// A lease, or the request it serves: its id or a unique beginning of it.
    id: String,
}

impl Checkpoint {
    /// Says it and prints the lease.
    pub(super) fn run(self, context: &Context, client: &Client) -> Outcome<()> {
        let found = find::either(client, &self.id)?;
        let lease = match found {
            Found::Lease(id) => id,
            Found::Request(id) => {
                let request = find::or_unknown(client, found, client.request(id))?;
                request.lease.ok_or_else(|| {
                    Failure::new(Exit::Refused, format!("request {id} has no lease"))
                })?
            }
        };
        let lease = find::or_unknown(client, found, client.checkpoint(lease))?;
        context.printer.item(&lease, &show::lease_fields(&lease))
    }
}
