//! A cell of three live brokers with simulated agents. The leader runs in this process, because the
//! agents' link has no network yet; the two that follow are processes of their own.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use sublet_broker::config::Peers;
use sublet_broker::raft::{Begin, Endpoint, Security};
use sublet_broker::{Cell, Config};
use sublet_protocol::agent::{Down, DownEnvelope, GrantTerms, Reply, Up, UpEnvelope};
use sublet_protocol::capacity::{Capacity, Hardware, Isolation, Part, SliceId};
use sublet_protocol::codec;
use sublet_protocol::commands::{Actor, Command as Asked, GuestOutcome, Outcome};
use sublet_protocol::ids::{
    Boot, CellId, ClusterId, DeviceId, GpuModel, HostHash, KeyId, NodeId, Project, Region,
    RequestId, TenantId,
};
use sublet_protocol::money::MicroCredits;
use sublet_protocol::offers::{Division, HostRoom, IdleFor, OfferTerms};
use sublet_protocol::policy::Policy;
use sublet_protocol::quotas::Quota;
use sublet_protocol::requests::{Capability, Class, OnRecall, Placement, RequestSpec, Tier};
use sublet_protocol::transport::in_process::{Hub, link};
use sublet_protocol::transport::{Address, AgentLink};
use sublet_protocol::units::{CpuMilli, GpuMilli, MiB, Millis, Seconds};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

use crate::processes::{free_port, listening, start};

/// The first argument of a process that is a broker that follows.
pub(crate) const WORD: &str = "broker";
/// GPUs of a node.
pub(crate) const NODE: u64 = 8;
const CELL: &str = "partners";

/// Three brokers of one cell.
pub(crate) struct Brokers {
    pub(crate) leader: Cell,
    hub: Hub,
    _others: Vec<Child>,
}

impl Brokers {
    /// Starts three below `folder` under `policy`.
    ///
    /// # Errors
    /// One does not come up.
    pub(crate) async fn start(folder: &Path, policy: Policy) -> anyhow::Result<Self> {
        let mut others = Vec::new();
        let mut peers = Vec::new();
        for id in [2, 3] {
            let (listen, log) = (free_port()?, folder.join(format!("broker-{id}.log")));
            let mut command = Command::new(std::env::current_exe()?);
            command.arg(WORD).arg(id.to_string()).arg(folder.join(format!("broker-{id}")));
            command.arg(listen.to_string());
            let mut child = start(&mut command, &log)?;
            listening(&mut child, listen, &log).await?;
            others.push(child);
            peers.push((id, listen));
        }
        let mut config = config(1, &folder.join("broker-1"), free_port()?)?;
        config.policy = policy;
        let leader = Cell::open(config).await?;
        for (id, listen) in peers {
            leader.add_broker(id, endpoint(listen)).await?;
        }
        let (hub, end) = link();
        leader.attach(end).await?;
        Ok(Self { leader, hub, _others: others })
    }

    /// Has an operator ask for something that must be done.
    ///
    /// # Errors
    /// It was not.
    pub(crate) async fn operate(&self, command: Asked) -> anyhow::Result<()> {
        let operator = Actor::Operator { subject: "op".parse()?, key: KeyId::new("k")? };
        done(self.leader.propose(operator, None, command).await?)
    }

    /// Submits a demand of `tenant` and waits until it is committed.
    ///
    /// # Errors
    /// It was not.
    pub(crate) async fn demand(
        &self,
        request: u128,
        tenant: TenantId,
        spec: RequestSpec,
    ) -> anyhow::Result<()> {
        let actor = Actor::Tenant { tenant, subject: "someone".parse()?, key: KeyId::new("k")? };
        let submit = Asked::SubmitRequest { request: RequestId::new(request), tenant, spec };
        done(self.leader.propose(actor, None, submit).await?)
    }

    /// The owner, its cluster of `nodes` nodes and prices, and an agent on each node that says which
    /// grants it was told. Returns once all is on offer.
    ///
    /// # Errors
    /// Something was refused.
    pub(crate) async fn furnish(
        &self,
        nodes: u64,
        run: Run,
        told: mpsc::UnboundedSender<Told>,
    ) -> anyhow::Result<()> {
        let owner = tenant("owner")?;
        self.operate(Asked::CreateTenant { tenant: owner, parent: None }).await?;
        let region = Region::new("eu")?;
        let devices_max = u32::try_from(nodes * NODE)?;
        let cluster = cluster()?;
        self.operate(Asked::CreateCluster { cluster, owner, region, devices_max }).await?;
        let per_gpu_hour = MicroCredits::new(2_000_000);
        for tier in [Tier::Opportunistic, Tier::Standard, Tier::Reserved] {
            self.operate(Asked::SetPrice { owner, model: model()?, tier, per_gpu_hour }).await?;
        }
        let (ready, mut waiting) = mpsc::channel(16);
        for number in 0..nodes {
            let address = Address { cluster, node: NodeId::new(&format!("n{number}"))? };
            let link = self.hub.connect(address);
            let agent = Agent { link, address, number, sequence: 0, told: told.clone(), run };
            let ready = ready.clone();
            tokio::spawn(async move {
                if let Err(error) = agent.run(ready).await {
                    println!("  agent {number}: {error:#}");
                }
            });
        }
        drop(ready);
        let mut count = 0;
        while waiting.recv().await.is_some() {
            count += 1;
        }
        ensure!(count == nodes, "only {count} agents of {nodes} came up");
        Ok(())
    }
}

/// Whether an outcome is that it was done.
fn done(outcome: Outcome) -> anyhow::Result<()> {
    match outcome {
        Outcome::Done { .. } => Ok(()),
        other => bail!("not done: {other:?}"),
    }
}

pub(crate) fn tenant(name: &str) -> anyhow::Result<TenantId> {
    Ok(TenantId::new(name)?)
}

pub(crate) fn model() -> anyhow::Result<GpuModel> {
    Ok(GpuModel::new("a100")?)
}

fn cluster() -> anyhow::Result<ClusterId> {
    Ok(ClusterId::new("c1")?)
}

/// A quota of this many GPUs.
pub(crate) fn quota(gpus: u64) -> Quota {
    Quota::of(GpuMilli::new(gpus * 1_000))
}

/// A demand for `count` GPUs for `seconds`.
pub(crate) fn spec(count: u32, seconds: u64, priority: u8) -> anyhow::Result<RequestSpec> {
    Ok(RequestSpec {
        project: Project::new("p")?,
        class: Class::Batch,
        priority,
        models: vec![],
        count,
        gpu: GpuMilli::DEVICE,
        memory: MiB::new(20_000),
        cpu: CpuMilli::ZERO,
        host_memory: MiB::ZERO,
        placement: Placement::Cluster,
        duration: Seconds::new(seconds),
        max_price: None,
        regions: vec![],
        on_recall: OnRecall::Requeue,
        workload: None,
        prediction: None,
        capability: Capability::ANY,
        deferral: None,
    })
}

/// What an agent was told.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Told {
    /// Whom a member of a lease was granted to.
    pub(crate) tenant: TenantId,
    /// When the agent heard of it first.
    pub(crate) at: Instant,
}

/// How long after it may start a guest ends, by the time that was bought.
pub(crate) type Run = fn(Seconds) -> Duration;

/// Simulates the agent of one node.
struct Agent {
    link: Box<dyn AgentLink>,
    address: Address,
    number: u64,
    sequence: u64,
    told: mpsc::UnboundedSender<Told>,
    run: Run,
}

impl Agent {
    const BOOT: Boot = Boot::new(1);

    /// Says something and does not wait for the answer.
    fn say(
        &mut self,
        body: Up,
    ) -> anyhow::Result<impl Future<Output = anyhow::Result<()>> + use<>> {
        self.sequence += 1;
        let Address { cluster, node } = self.address;
        let host = HostHash([7; 16]);
        let (boot, sequence) = (Self::BOOT, self.sequence);
        let what = body.kind();
        let bytes = codec::encode(&UpEnvelope { cluster, node, host, boot, sequence, body })?;
        // Asked at once; repeated under the same number while the broker says so.
        let first = self.link.request(bytes);
        Ok(async move {
            match codec::decode(&first.await?)? {
                Reply::Done => Ok(()),
                other => bail!("{what}: {other:?}"),
            }
        })
    }

    fn slice(&self, device: u64) -> SliceId {
        let Address { cluster, node } = self.address;
        let device = DeviceId::new(u128::from(self.number * NODE + device + 1));
        SliceId { cluster, node, device, part: Part::Whole }
    }

    async fn run(mut self, ready: mpsc::Sender<()>) -> anyhow::Result<()> {
        self.say(Up::Hello)?.await?;
        let mut generations = BTreeMap::new();
        let slices: Vec<SliceId> = (0..NODE).map(|device| self.slice(device)).collect();
        for slice in slices {
            generations.insert(slice, 1);
            self.say(Up::Offer(offer(slice, 1)?))?.await?;
        }
        ready.send(()).await?;
        drop(ready);
        let (later, mut due) = mpsc::unbounded_channel();
        let mut held: BTreeMap<SliceId, GrantTerms> = BTreeMap::new();
        loop {
            let message = tokio::select! {
                bytes = self.link.next() => match bytes {
                    Some(bytes) => codec::decode::<DownEnvelope>(&bytes)?.body,
                    None => return Ok(()),
                },
                Some(slice) = due.recv() => {
                    let GrantTerms { lease, token, .. } = *held.get(&slice).context("no lease")?;
                    let (used, outcome) = (Millis::new(1), GuestOutcome::Exited { code: 0 });
                    let stopped = Up::Stopped { lease, slice, token, used, outcome };
                    aside(self.say(stopped)?);
                    continue;
                }
            };
            let at = Instant::now();
            match message {
                Down::Grant(grant) => {
                    let GrantTerms { lease, slice, token, tenant, .. } = grant;
                    let is_new = held.insert(slice, grant).is_none_or(|old| old.token != token);
                    if is_new {
                        let _gone = self.told.send(Told { tenant, at });
                    }
                    let confirm = Up::Confirm { lease, slice, token, nonce: Millis::new(1) };
                    aside(self.say(confirm)?);
                }
                Down::Activated { slice, .. } => {
                    let Some(grant) = held.get(&slice) else { continue };
                    let (later, time) = (later.clone(), (self.run)(grant.duration));
                    tokio::spawn(async move {
                        tokio::time::sleep(time).await;
                        let _gone = later.send(slice);
                    });
                }
                Down::Ended { slice, .. } => {
                    let generation = generations.entry(slice).or_insert(1);
                    *generation += 1;
                    aside(self.say(Up::Offer(offer(slice, *generation)?))?);
                }
                Down::Renewed { .. }
                | Down::Stop { .. }
                | Down::Resync
                | Down::OfferAgain { .. }
                | Down::Workload { .. } => {}
            }
        }
    }
}

/// Sends what was said and goes on. What is refused is told: the figure is then worth nothing.
fn aside(said: impl Future<Output = anyhow::Result<()>> + Send + 'static) {
    tokio::spawn(async move {
        match said.await {
            Ok(()) => {}
            // The cell was shut down at the end of a measurement.
            Err(error) if error.is::<sublet_protocol::transport::Error>() => {}
            Err(error) => println!("  an agent was not heard: {error:#}"),
        }
    });
}

fn offer(slice: SliceId, generation: u64) -> anyhow::Result<OfferTerms> {
    let day = Seconds::new(86_400);
    Ok(OfferTerms {
        slice,
        generation,
        boot: Agent::BOOT,
        capacity: Capacity {
            model: model()?,
            gpu: GpuMilli::DEVICE,
            memory: MiB::new(80_000),
            cpu: CpuMilli::new(16_000),
            host_memory: MiB::new(128_000),
            isolation: Isolation::Exclusive,
            island: 0,
            hardware: Hardware::UNKNOWN,
        },
        idle_for: IdleFor { p10: day, p50: day, p90: day },
        recall_notice: Seconds::new(120),
        ttl: Seconds::new(900),
        division: Division::NONE,
        host: HostRoom::Slice,
    })
}

fn endpoint(listen: SocketAddr) -> Endpoint {
    Endpoint { peer: listen.to_string(), api: String::new() }
}

fn config(id: u64, folder: &Path, listen: SocketAddr) -> anyhow::Result<Config> {
    let mut config = Config::new(CellId::new(CELL)?);
    config.node_id = id;
    config.begin = if id == 1 { Begin::Found } else { Begin::Wait };
    config.data_dir = Some(folder.to_owned());
    config.peers = Some(Peers { listen, endpoint: endpoint(listen), security: Security::Plain });
    Ok(config)
}

/// Is a broker that follows, until its standard input ends.
///
/// # Errors
/// It cannot start.
pub(crate) async fn run(mut arguments: impl Iterator<Item = String>) -> anyhow::Result<()> {
    let mut next = || arguments.next().context("too few arguments for a broker");
    let (id, folder, listen) = (next()?.parse()?, next()?, next()?.parse()?);
    let cell = Cell::open(config(id, Path::new(&folder), listen)?).await?;
    tokio::task::spawn_blocking(|| std::io::read_to_string(std::io::stdin())).await??;
    cell.shutdown().await;
    Ok(())
}
