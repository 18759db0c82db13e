//! The agents of the simulated machines: the real session, a simulated probe, and both drivers.

use std::sync::Arc;
use std::time::Duration;

use sublet_agent::clock::{Clock, ScaledClock};
use sublet_agent::driver::process::{self, ProcessDriver};
use sublet_agent::driver::routed::RoutedDriver;
use sublet_agent::driver::sim::SimDriver;
use sublet_agent::driver::{Driver, Guest};
use sublet_agent::durable::{Durable, FileStore, MemoryStore};
use sublet_agent::node::{NodeConfig, NodeParts, run_node};
use sublet_agent::probe::Probe;
use sublet_agent::probe::nvml::NvmlProbe;
use sublet_agent::probe::sim::Device;
use sublet_agent::session::{self, Lendable};
use sublet_broker::Cell;
use sublet_protocol::ids::HostHash;
use sublet_protocol::transport::Address;
use sublet_protocol::transport::in_process::Hub;
use sublet_protocol::units::{Millis, Seconds};
use tokio::task::JoinSet;

use super::Nvml;
use super::folder::Folder;
use super::load::PROJECT;
use super::owners::{self, OwnedMachine, StoryClock};
use super::pace::Pace;
use super::real;
use super::site::{Machine, Site, named};
use crate::failure::{Exit, Failure, Outcome};

/// A job of the load declares a quarter more time than it needs, as users do.
pub(super) const NEEDED: (u64, u64) = (4, 5);

/// What the agents have in common.
pub(super) struct Fleet<'a> {
    /// Where they connect.
    pub(super) hub: &'a Hub,
    /// Whom the simulated guests ask what they are.
    pub(super) cell: &'a Cell,
    /// Where they keep their state.
    pub(super) folder: &'a Folder,
    /// How fast lease time passes.
    pub(super) pace: Pace,
    /// What owners are drawn from; without it they never come.
    pub(super) seed: Option<u64>,
    /// Where the story of the owners is.
    pub(super) story: StoryClock,
    /// The driver of this machine's GPUs, if they are lent.
    pub(super) nvml: Option<&'a Nvml>,
}

/// Starts an agent for every machine. Dropping the set ends them and their guests.
pub(super) fn start(
    fleet: &Fleet<'_>,
    sites: &[Site],
) -> Outcome<JoinSet<Result<(), sublet_agent::node::Error>>> {
    let clock: Arc<dyn Clock> = Arc::new(ScaledClock::new(fleet.pace.0));
    let mut agents = JoinSet::new();
    let seeds = owners::seeds(fleet.seed.unwrap_or(0), sites);
    let machines =
        sites.iter().flat_map(|site| site.machines().into_iter().map(move |m| (site, m)));
    for ((site, machine), seed) in machines.zip(seeds) {
        let seed = seed.filter(|_| fleet.seed.is_some());
        let config = config(fleet.pace, site, &machine, seed);
        let parts = parts(fleet, site, &machine, seed, &clock)?;
        agents.spawn(run_node(config, parts));
    }
    Ok(agents)
}

fn config(pace: Pace, site: &Site, machine: &Machine, seed: Option<u64>) -> NodeConfig {
    let slices = machine.slices.iter();
    let slices = slices.map(|(slice, capacity)| Lendable { slice: *slice, capacity: *capacity });
    let session = session::Config {
        slices: slices.collect(),
        offer_ttl: pace.policy().offer_ttl,
        idle_for: owners::forecast(seed),
        recall_notice: Seconds::ZERO,
        inventory_every: pace.inventory_every(),
        workload_wait: pace.workload_wait(),
    };
    NodeConfig {
        cluster: site.cluster,
        node: machine.node,
        host: HostHash(named(&format!("host {}", machine.node)).to_be_bytes()),
        session,
        idle: pace.idle_rule(),
        sample_every: pace.sample_every(),
        reply_timeout: Duration::from_secs(5),
        retry_pause: Duration::from_millis(200),
    }
}

fn parts(
    fleet: &Fleet<'_>,
    site: &Site,
    machine: &Machine,
    seed: Option<u64>,
    clock: &Arc<dyn Clock>,
) -> Outcome<NodeParts> {
    let device = |(slice, _): &(sublet_protocol::capacity::SliceId, _)| Device {
        id: slice.device,
        model: site.model,
        memory_total: site.memory,
        memory_driver: site.driver,
    };
    let devices = machine.slices.iter().map(device).collect();
    let node = machine.node.as_str();
    let probe: Box<dyn Probe> = match fleet.nvml.filter(|_| site.is_real()) {
        Some(nvml) => Box::new(real_probe(fleet, nvml, node)?),
        None => Box::new(OwnedMachine::new(devices, seed, fleet.story)),
    };
    let durable: Box<dyn Durable> = match fleet.folder.is_kept() {
        true => Box::new(FileStore::open(&fleet.folder.agent(node)).map_err(|error| {
            Failure::new(Exit::Failed, format!("the agent of {node} cannot start")).because(error)
        })?),
        false => Box::new(MemoryStore::default()),
    };
    Ok(NodeParts {
        link: fleet.hub.connect(Address { cluster: site.cluster, node: machine.node }),
        probe,
        driver: driver(fleet, node)?,
        durable,
        clock: Arc::clone(clock),
    })
}

/// The GPUs of this machine. Which are sick is kept where state is.
fn real_probe(fleet: &Fleet<'_>, nvml: &Nvml, node: &str) -> Outcome<NvmlProbe> {
    let probe = real::probe(nvml);
    if !fleet.folder.is_kept() {
        return Ok(probe);
    }
    let file = fleet.folder.health(node);
    let cannot = |error| {
        let what = format!("{} cannot be read or kept", file.display());
        Failure::new(Exit::Failed, what).because(error)
    };
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder).map_err(cannot)?;
    }
    probe.keeping_health_in(file.clone()).map_err(cannot)
}

/// Real processes for guests with a workload. Of the others, those of the load end by themselves,
/// and those of a person are held until they are given back or their time is over.
fn driver(fleet: &Fleet<'_>, node: &str) -> Outcome<Box<dyn Driver>> {
    let config = process::Config::of_this_binary(fleet.folder.scratch(node)).map_err(|error| {
        Failure::new(Exit::Failed, "cannot find this program's own file").because(error)
    })?;
    let real = ProcessDriver::new(process::Config { speed: fleet.pace.0, ..config });
    let cell = fleet.cell.clone();
    let simulated = SimDriver::running(move |guest: &Guest| {
        let is_load = cell.read_stale(|state| {
            let lease = state.leases().get(&guest.lease);
            lease.is_some_and(|lease| lease.terms().project.as_str() == PROJECT)
        });
        is_load.then(|| Millis::new(guest.left.get() / NEEDED.1 * NEEDED.0))
    });
    Ok(Box::new(RoutedDriver { real, simulated }))
}
