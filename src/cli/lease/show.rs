//! `sublet lease show`: one lease or request.

use clap::Args;
use sublet_protocol::api::{LeaseSlice, LeaseView, RequestView};
use sublet_protocol::capacity::Part;
use sublet_protocol::units::{GpuMilli, MiB, Seconds};

use super::super::amounts::{show_money, word};
use super::super::find::{self, Found};
use super::super::global::Context;
use crate::client::Client;
use crate::failure::Outcome;
use crate::units::{show_gpus, show_memory, show_seconds};

/// Show one lease or request.
#[derive(Debug, Args)]
pub(in crate::cli) struct Show {
    /// A lease or request: its id or a unique beginning of it.
    id: String,
}

impl Show {
    /// Prints it.
    pub(super) fn run(self, context: &Context, client: &Client) -> Outcome<()> {
        let found = find::either(client, &self.id)?;
        match found {
            Found::Lease(id) => {
                let lease = find::or_unknown(client, found, client.lease(id))?;
                context.printer.item(&lease, &lease_fields(&lease))
            }
            Found::Request(id) => {
                let request = find::or_unknown(client, found, client.request(id))?;
                context.printer.item(&request, &request_fields(&request))
            }
        }
    }
}

/// A lease as names and values.
pub(super) fn lease_fields(lease: &LeaseView) -> Vec<(&'static str, String)> {
    let price = lease.price.per_gpu_hour;
    let slices: Vec<String> = lease.slices.iter().map(slice).collect();
    let mut fields = vec![
        ("lease", lease.id.to_string()),
        ("request", lease.request.to_string()),
        ("state", format!("{}: {}", lease.state.as_str(), lease.state_reason.text)),
        ("tenant", format!("{} (project {})", lease.tenant, lease.project)),
        ("owner", lease.owner.to_string()),
        ("gpus", slices.join("\n")),
        ("rank", format!("{} ({})", word(&lease.tier), word(&lease.class))),
        ("granted", lease.created_at.to_string()),
    ];
    let optional = [
        ("active since", lease.active_since),
        ("ends at", lease.ends_at),
        ("recalled by", lease.recalled_by),
        ("work saved at", lease.checkpoint_at),
        ("guest gone by", lease.stop_by),
        ("ended", lease.ended_at),
    ];
    fields.extend(optional.iter().filter_map(|(name, at)| at.map(|at| (*name, at.to_string()))));
    if let Some(announced) = lease.announced_end {
        fields.push(("will end", format!("{} at {}", announced.reason.code(), announced.at)));
    }
    fields.extend([
        ("duration", format!("at most {}", show_seconds(Seconds::new(lease.duration)))),
        ("used", show_seconds(Seconds::new(lease.used))),
        ("price", format!("{} {} per GPU-hour", show_money(price.amount), price.currency)),
        ("set aside", format!("{} {}", show_money(lease.hold.amount), lease.hold.currency)),
        ("cost", format!("{} {}", show_money(lease.cost.amount), lease.cost.currency)),
    ]);
    if let Some(reason) = lease.end_reason {
        fields.push(("end reason", reason.code().to_owned()));
    }
    if let Some(lost) = lease.lost_gpu_seconds {
        fields.push(("work lost", format!("{lost} GPU-seconds since it was last saved")));
    }
    if let Some(code) = lease.exit_code {
        fields.push(("exit code", code.to_string()));
    }
    fields
}

fn slice(slice: &LeaseSlice) -> String {
    let part = match slice.part {
        Part::Whole => String::new(),
        Part::Mig { profile, start } => format!(" MIG profile {profile} at {start}"),
        Part::Share { index } => format!(" share {index}"),
    };
    let place = format!("{}/{} {}{part}", slice.cluster, slice.node, slice.device);
    let gone = if slice.stopped { ", stopped" } else { "" };
    let size = show_gpus(GpuMilli::new(slice.gpu));
    format!("{place}: {size} GPU, {}{gone}", show_memory(MiB::new(slice.memory)))
}

/// A request as names and values.
pub(super) fn request_fields(request: &RequestView) -> Vec<(&'static str, String)> {
    let spec = &request.spec;
    let each = GpuMilli::new(spec.gpu.get());
    let mut fields = vec![
        ("request", request.id.to_string()),
        ("state", format!("{}: {}", request.state.as_str(), request.state_reason.text)),
        ("tenant", format!("{} (project {})", request.tenant, spec.project)),
        ("gpus", format!("{} × {} GPU", spec.count, show_gpus(each))),
        ("memory", show_memory(MiB::new(spec.memory.get()))),
        ("duration", format!("at most {}", show_seconds(Seconds::new(spec.duration.get())))),
        ("rank", format!("{} ({})", word(&request.tier), word(&spec.class))),
        ("submitted", request.created_at.to_string()),
    ];
    if let Some(lease) = request.lease {
        fields.push(("lease", lease.to_string()));
    }
    fields
        .push(("leases so far", format!("{} ({} taken away)", request.attempts, request.recalls)));
    fields
}
