//! `sublet cluster`: sets of GPU nodes of one owner.

use clap::{Args, Subcommand};
use sublet_protocol::api::{ClusterCreate, ClusterView, NodeClock, NodeView, Whole};
use sublet_protocol::ids::{ClusterId, NodeId, Region, TenantId};

use super::amounts;
use super::global::Context;
use crate::failure::{Failure, Outcome};
use crate::output::{Column, Table};
use crate::suggest;

/// Show and add clusters.
#[derive(Debug, Subcommand)]
pub(super) enum Cluster {
    /// Show all clusters.
    List,
    /// Show one cluster.
    Show(Show),
    /// Show the nodes of a cluster, with their clocks.
    Nodes(Show),
    /// Add a cluster.
    Create(Create),
    /// Forget a node that is gone, so that another machine can have its id.
    RemoveNode(RemoveNode),
}

/// One cluster.
#[derive(Debug, Args)]
pub(super) struct Show {
    /// Its id.
    #[arg(value_parser = amounts::cluster)]
    id: ClusterId,
}

/// Forget a node that is gone: its machine was replaced, or two machines claimed its id.
///
/// Its agent must be silent, or the node fenced, and every lease on it have ended. Stop the wrong machine's
/// agent first; then start the right one anew.
#[derive(Debug, Args)]
pub(super) struct RemoveNode {
    /// The cluster.
    #[arg(value_parser = amounts::cluster)]
    cluster: ClusterId,
    /// The node, as `sublet cluster nodes` names it.
    #[arg(value_parser = amounts::node)]
    node: NodeId,
}

/// Add a cluster.
#[derive(Debug, Args)]
pub(super) struct Create {
    /// Its id: 1 to 32 characters of a-z, 0-9 and -.
    #[arg(value_parser = amounts::cluster)]
    id: ClusterId,
    /// The tenant that owns it and earns.
    #[arg(long, value_parser = amounts::tenant)]
    owner: TenantId,
    /// Where it stands.
    #[arg(long, value_parser = amounts::region)]
    region: Region,
    /// Most devices its agents may offer.
    #[arg(long, default_value_t = 1_000, allow_negative_numbers = true)]
    devices_max: u64,
}

impl Cluster {
    /// Does it.
    pub(super) fn run(self, context: &Context) -> Outcome<()> {
        let client = context.client()?;
        let cluster = match self {
            Cluster::List => return list(context, &client.clusters()?),
            Cluster::Nodes(Show { id }) => {
                find(&client.clusters()?, id)?;
                return list_nodes(context, &client.nodes(id)?);
            }
            Cluster::RemoveNode(RemoveNode { cluster, node }) => {
                let removed = client.remove_node(cluster, node)?;
                let fields = [
                    ("node", removed.id.to_string()),
                    ("cluster", removed.cluster.to_string()),
                    ("removed", removed.removed_at.to_string()),
                ];
                return context.printer.item(&removed, &fields);
            }
            Cluster::Show(Show { id }) => find(&client.clusters()?, id)?,
            Cluster::Create(Create { id, owner, region, devices_max }) => {
                let devices_max = Whole::new(devices_max)
                    .map_err(|error| Failure::usage(format!("--devices-max: {error}")))?;
                client.create_cluster(&ClusterCreate { id, owner, region, devices_max })?
            }
        };
        context.printer.item(&cluster, &fields(&cluster))
    }
}

fn find(known: &[ClusterView], id: ClusterId) -> Outcome<ClusterView> {
    known.iter().find(|cluster| cluster.id == id).cloned().ok_or_else(|| {
        let known: Vec<String> = known.iter().map(|cluster| cluster.id.to_string()).collect();
        suggest::unknown("cluster", id.as_str(), &known)
    })
}

fn list_nodes(context: &Context, nodes: &[NodeView]) -> Outcome<()> {
    let columns = [
        Column::text("NODE"),
        Column::text("AGENT"),
        Column::number("FREE"),
        Column::number("LEASED"),
        Column::text("CLOCK"),
        Column::number("STARTS").wide(),
        Column::text("REGISTERED").wide(),
    ];
    let mut table = Table::new(&columns, "no agent of this cluster has registered");
    for node in nodes {
        let agent = match (node.fenced, node.silent) {
            (true, _) => "fenced",
            (false, true) => "silent",
            (false, false) => "heard",
        };
        table.row([
            node.id.to_string(),
            agent.to_owned(),
            node.offers.to_string(),
            node.leased.to_string(),
            clock(node),
            node.boot.to_string(),
            node.registered_at.to_string(),
        ]);
    }
    context.printer.list(&nodes, &table)
}

/// What the clock of a node shows: `right (+0.003 s)`.
fn clock(node: &NodeView) -> String {
    let word = match node.clock {
        NodeClock::Unknown => "not known",
        NodeClock::Right => "right",
        NodeClock::Off => "off",
        NodeClock::Far => "far off, no new leases",
    };
    let Some(offset) = node.clock_offset_ms else { return word.to_owned() };
    let sign = if offset < 0 { '-' } else { '+' };
    let size = offset.unsigned_abs();
    format!("{word} ({sign}{}.{:03} s)", size / 1_000, size % 1_000)
}

fn list(context: &Context, clusters: &[ClusterView]) -> Outcome<()> {
    let columns = [
        Column::text("CLUSTER"),
        Column::text("OWNER"),
        Column::text("REGION"),
        Column::number("NODES"),
        Column::number("DEVICES"),
        Column::number("FREE"),
        Column::number("LEASED"),
        Column::number("SILENT").wide(),
        Column::number("CLOCK OFF").wide(),
    ];
    let mut table = Table::new(&columns, "no clusters that this token may see");
    for cluster in clusters {
        table.row([
            cluster.id.to_string(),
            cluster.owner.to_string(),
            cluster.region.to_string(),
            cluster.nodes.to_string(),
            cluster.devices.to_string(),
            cluster.offers.to_string(),
            cluster.leased.to_string(),
            cluster.nodes_silent.to_string(),
            cluster.nodes_clock_off.to_string(),
        ]);
    }
    context.printer.list(&clusters, &table)
}

fn fields(cluster: &ClusterView) -> Vec<(&'static str, String)> {
    let (silent, off) = (cluster.nodes_silent, cluster.nodes_clock_off);
    let nodes = format!("{} ({silent} silent, {off} with a clock that is off)", cluster.nodes);
    vec![
        ("cluster", cluster.id.to_string()),
        ("owner", cluster.owner.to_string()),
        ("region", cluster.region.to_string()),
        ("created", cluster.created_at.to_string()),
        ("nodes", nodes),
        ("devices", format!("{} of at most {}", cluster.devices, cluster.devices_max)),
        ("slices on offer", cluster.offers.to_string()),
        ("leased slices", cluster.leased.to_string()),
    ]
}
