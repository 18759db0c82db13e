//! `sublet-audit node`.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;
use sublet_ledger::nodes::{Node, NodeReport, NodeReportBuilder};
use sublet_protocol::api::Money;
use sublet_protocol::ids::{ClusterId, LeaseId, NodeId, TenantId};
use sublet_protocol::money::MicroCredits;

use super::books;
use super::output::Output;
use super::statement::Span;
use super::trust::TrustArgs;

/// Divide what a node cost between the leases that used it and what was idle, to the cent.
///
/// What a node costs and how many GPUs it has is not in the ledger: both are named. A lease's share is
/// what it counts for quota and money, for the time that is billed. The ledger is verified and every
/// charge computed again on the way.
#[derive(Debug, Args)]
pub(crate) struct NodeCost {
    /// The ledger, the data folder of a broker or of `sublet dev`, or a copy of one.
    dir: PathBuf,
    #[command(flatten)]
    trust: TrustArgs,
    /// The node's cluster.
    #[arg(long)]
    cluster: ClusterId,
    /// The node.
    #[arg(long)]
    node: NodeId,
    /// How many GPUs it has.
    #[arg(long)]
    gpus: u32,
    /// What it costs for an hour, used or not, as 24.00.
    #[arg(long)]
    per_hour: MicroCredits,
    #[command(flatten)]
    span: Span,
}

/// The report, as JSON.
#[derive(Debug, Serialize)]
struct Found {
    cluster: ClusterId,
    node: NodeId,
    from: String,
    until: String,
    leases: Vec<Lease>,
    idle_gpu_hours: String,
    idle: Money,
    total: Money,
}

#[derive(Debug, Serialize)]
struct Lease {
    lease: LeaseId,
    tenant: TenantId,
    gpu_hours: String,
    cost: Money,
    paid: Money,
}

impl NodeCost {
    /// Does it; the exit code.
    pub(crate) fn run(self, output: &Output) -> Result<u8> {
        let period = self.span.period()?;
        let Self { cluster, node, gpus, per_hour, .. } = self;
        let of = Node { cluster, node, gpus, per_hour };
        let mut builder = None;
        let read = books::read(&self.dir, &self.trust, output, |charge, books| {
            if builder.is_none() {
                let currency = books.currency().context("the cell has no currency")?;
                builder = Some(NodeReportBuilder::new(of, period.clone(), currency));
            }
            if let Some(builder) = builder.as_mut() {
                builder.add(charge);
            }
            Ok(())
        })?;
        let code = books::complain(&read);
        if code != 0 {
            return Ok(code);
        }
        let currency = read.recount.currency();
        let currency = currency.context("the ledger has no record of its founding")?;
        let builder =
            builder.unwrap_or_else(|| NodeReportBuilder::new(of, period.clone(), currency));
        let report = builder.finish()?;
        let money = |amount| Money::new(amount, currency);
        let found = Found {
            cluster,
            node,
            from: period.local(period.from()),
            until: period.local(period.until()),
            leases: leases(&report, &money),
            idle_gpu_hours: gpu_hours(report.idle_gpu_time),
            idle: money(report.idle),
            total: money(report.total),
        };
        output.print(&found, &found.text())?;
        Ok(0)
    }
}

fn leases(report: &NodeReport, money: &impl Fn(MicroCredits) -> Money) -> Vec<Lease> {
    let lease = |used: &sublet_ledger::nodes::Used| Lease {
        lease: used.lease,
        tenant: used.tenant,
        gpu_hours: gpu_hours(used.gpu_time),
        cost: money(used.cost),
        paid: money(used.paid),
    };
    report.used.iter().map(lease).collect()
}

/// Thousandths of a GPU times milliseconds as GPU-hours with three places, rounded down.
fn gpu_hours(gpu_time: u128) -> String {
    let thousandths = gpu_time / 3_600_000;
    format!("{}.{:03}", thousandths / 1_000, thousandths % 1_000)
}

impl Found {
    fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(text, "{}/{}, {} to {}", self.cluster, self.node, self.from, self.until);
        for lease in &self.leases {
            let Lease { lease, tenant, gpu_hours, cost, paid } = lease;
            let _ = writeln!(
                text,
                "  {lease}  {tenant}  {gpu_hours:>10} GPU-h  costs {cost}  paid {paid}"
            );
        }
        let (hours, idle) = (&self.idle_gpu_hours, &self.idle);
        let _ = writeln!(text, "  idle  {hours:>10} GPU-h  costs {idle}");
        let _ = writeln!(text, "total  {}", self.total);
        text
    }
}
