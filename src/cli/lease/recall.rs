//! `sublet lease recall`: the owner of GPUs wants a lease on them to end.

use clap::Args;
use sublet_protocol::api::RecallCreate;
use sublet_protocol::ids::LeaseId;
use sublet_protocol::units::Seconds;

use super::super::global::Context;
use crate::client::Client;
use crate::failure::Outcome;
use crate::units::parse_seconds;

/// Recall a lease on your own GPUs: its tenant sees the deadline at once, its guests must go at it.
///
/// An owner does not see whose a lease is; its agents' logs name the leases that they carry.
#[derive(Debug, Args)]
pub(in crate::cli) struct Recall {
    /// The whole id of the lease.
    id: LeaseId,
    /// In how much time its guests must go: at least the notice that was offered, and not before the
    /// minimum run time.
    #[arg(long = "in", value_name = "SPAN", value_parser = parse_seconds,
        required_unless_present = "emergency")]
    notice: Option<Seconds>,
    /// At once. What ran for less than the minimum run time then costs its tenant nothing.
    #[arg(long, conflicts_with = "notice")]
    emergency: bool,
}

impl Recall {
    /// Recalls it and prints until when its guests may run.
    pub(super) fn run(self, context: &Context, client: &Client) -> Outcome<()> {
        let recall = match self.notice {
            Some(notice) => RecallCreate::Planned { notice },
            None => RecallCreate::Emergency {},
        };
        let recalled = client.recall(self.id, &recall)?;
        let by = if self.emergency { "gone by" } else { "must go at" };
        let fields = [("lease", recalled.lease.to_string()), (by, recalled.by.to_string())];
        context.printer.item(&recalled, &fields)
    }
}
