//! `sublet lease end`: give a lease back, or withdraw a request that waits.

use clap::Args;
use sublet_protocol::api::RequestState;

use super::super::find::{self, Found};
use super::super::global::Context;
use super::show;
use crate::client::Client;
use crate::failure::Outcome;

/// Give a lease back, or withdraw a request that waits. What was used is paid, the rest given back.
#[derive(Debug, Args)]
pub(in crate::cli) struct End {
    /// A lease or request: its id or a unique beginning of it.
    id: String,
}

impl End {
    /// Does it and prints what came of it.
    pub(super) fn run(self, context: &Context, client: &Client) -> Outcome<()> {
        let found = find::either(client, &self.id)?;
        let lease = match found {
            Found::Lease(id) => id,
            Found::Request(id) => {
                let request = find::or_unknown(client, found, client.request(id))?;
                match (request.state, request.lease) {
                    (RequestState::Granted, Some(lease)) => lease,
                    _ => {
                        let request = client.cancel(id)?;
                        return context.printer.item(&request, &show::request_fields(&request));
                    }
                }
            }
        };
        let lease = find::or_unknown(client, found, client.release(lease))?;
        context.printer.item(&lease, &show::lease_fields(&lease))
    }
}
