//! How a world begins: three brokers, three clusters of two nodes, four tenants and an operator. The
//! seed chooses policy, clocks, who lies and how often something breaks.

use sublet_agent::session::{Config, Lendable};
use sublet_core::State;
use sublet_protocol::capacity::{Capacity, Hardware, Isolation, Part, SliceId};
use sublet_protocol::commands::Command;
use sublet_protocol::ids::{
    CellId, ClusterId, DeviceId, GpuModel, HostHash, NodeId, Region, TenantId,
};
use sublet_protocol::money::MicroCredits;
use sublet_protocol::offers::IdleFor;
use sublet_protocol::policy::Policy;
use sublet_protocol::preemption::ByTier;
use sublet_protocol::quotas::Quota;
use sublet_protocol::requests::Tier;
use sublet_protocol::units::{CpuMilli, GpuMilli, MiB, Millis, Permille, Seconds};

use super::agent::Agent;
use super::broker::Replica;
use super::client::operator;
use super::fault::Fault;
use super::owner::Device;
use super::queue::Event;
use super::raft::Waiter;
use super::rule::Rule;
use super::world::World;
use super::{Options, Scenario};
use crate::checker::Checker;
use crate::generator::Random;

/// True time at which every world begins: 2026 in milliseconds.
const BEGIN: u64 = 1_767_225_600_000;
/// Largest rate error of a clock, in millionths: 5 %.
const RATE_MAX: u64 = 50_000;
/// From this error on a clock counts as wrong.
const RATE_WRONG: u64 = 40_000;
const CLUSTERS: usize = 3;
const NODES: usize = 2;
const BROKERS: usize = 3;
/// Whole states are checked once in so many commands.
const CHECK_EVERY: u64 = 16;

/// What the seed chose.
#[derive(Debug, Clone)]
pub(super) struct Profile {
    pub(super) policy: Policy,
    pub(super) fault_every: u64,
    pub(super) has_second_hosts: bool,
    /// Processes die between effects.
    pub(super) has_crashes: bool,
    /// Messages of 200 that are late.
    pub(super) late: u64,
    /// One message in so many comes twice.
    pub(super) doubled: u64,
    /// The longest pause of a client.
    pub(super) client_every: u64,
    /// Two of the tenants are in a group, and all have less quota than there are GPUs: leases end for
    /// quota.
    pub(super) is_scarce: bool,
}

impl Profile {
    /// How long a guest may run after its last answered renewal, in true milliseconds: TTL on the
    /// slowest clock and a moment.
    pub(super) fn guests_gone_within(&self) -> u64 {
        self.policy.lease_ttl.as_millis().get() * 20 / 19 + 5_000
    }

    /// W on the slowest leader's clock, in true milliseconds.
    pub(super) fn silence(&self) -> u64 {
        self.policy.silence().as_millis().get() * 20 / 19
    }
}

pub(super) fn name(text: &str) -> TenantId {
    TenantId::new(text).expect("a tenant's name")
}

pub(super) fn model() -> GpuModel {
    GpuModel::new("a100").expect("a model's name")
}

pub(super) fn cluster(number: usize) -> ClusterId {
    ClusterId::new(&format!("c{number}")).expect("a cluster's name")
}

fn policy(random: &mut Random, rule: Option<Rule>) -> Policy {
    // Every clock may be wrong by 5 %.
    let base = Policy { clock_rate_error: Permille::new(50), ..Policy::default() };
    let mut policy = match random.below(3) {
        0 => base,
        1 => Policy {
            renew: Seconds::new(10),
            lease_ttl: Seconds::new(120),
            owner_grace: Seconds::new(60),
            silence_margin: Seconds::new(20),
            offer_ttl: Seconds::new(300),
            start_timeout: Seconds::new(150),
            min_run: ByTier::all(Seconds::new(120)),
            ..base
        },
        _more => {
            Policy { min_run: ByTier::all(Seconds::new(60)), offer_ttl: Seconds::new(240), ..base }
        }
    };
    policy.seal_records = 512;
    if rule == Some(Rule::Lr2Wait) {
        policy.clock_rate_error = Permille::ZERO;
        policy.silence_margin = Seconds::ZERO;
    }
    policy
}

/// Hasty worlds break often; patient ones let leases grow old; stale ones repeat old messages.
fn profile(random: &mut Random, policy: Policy, seed: u64) -> Profile {
    let (fault_every, client_every) = match random.below(3) {
        0 => (100_000 + random.below(400_000), 400_000),
        _hasty => (8_000 + random.below(60_000), 90_000),
    };
    let (late, doubled) = match random.below(3) {
        0 => (60, 5),
        _fresh => (7, 25),
    };
    let has_second_hosts = random.chance(1, 2);
    let has_crashes = true;
    // Not drawn: the other seeds are the worlds that they were.
    let is_scarce = seed % 4 == 1;
    Profile {
        policy,
        fault_every,
        has_second_hosts,
        has_crashes,
        late,
        doubled,
        client_every,
        is_scarce,
    }
}

fn rate(random: &mut Random) -> i64 {
    let error = match random.below(3) {
        0 => RATE_MAX,
        _more => random.below(RATE_MAX + 1),
    };
    let error = i64::try_from(error).unwrap_or(0);
    if random.chance(1, 2) { error } else { -error }
}

impl World {
    /// A world of `seed`, with nothing broken yet.
    pub(super) fn new(options: &Options, seed: u64, life: u64) -> World {
        let mut random = Random::new(seed, life);
        let policy = policy(&mut random, options.rule);
        let profile = profile(&mut random, policy, seed);
        let is_quiet = options.scenario == Scenario::Quiet;
        let liar = (!is_quiet && random.chance(1, 3)).then_some(CLUSTERS - 1);
        let mut world = World {
            now: BEGIN,
            steps: 0,
            queue: super::queue::Queue::default(),
            random,
            faults: super::fault::Faults::default(),
            rule: options.rule,
            profile: Profile { has_crashes: !is_quiet, ..profile },
            agents: Vec::new(),
            second: None,
            devices: Vec::new(),
            guests: super::guests::Guests::default(),
            replicas: Vec::new(),
            raft: super::raft::Raft::default(),
            eyes: super::eyes::Eyes::new(seed, life, !is_quiet && options.rule.is_none()),
            disks: super::disk::Disks::new(seed, life, options),
            clients: super::client::Clients::default(),
            checker: Checker::new(liar.map(cluster)),
            heal: super::heal::Heal::default(),
            is_calm: false,
            is_over: false,
            dark_until: 0,
            check_every: options.check_every.unwrap_or(CHECK_EVERY),
            trace: options.is_traced.then(sha2::Digest::new),
            log: (options.log > 0).then(|| super::log::Log::new(options.log)),
        };
        world.add_brokers();
        world.set_up_disks();
        world.add_agents(liar);
        world.found();
        world.set_going(options.scenario);
        world
    }

    fn add_brokers(&mut self) {
        for _ in 0..BROKERS {
            let wall = i64::try_from(self.random.below(4_000)).unwrap_or(0) - 2_000;
            let rate = rate(&mut self.random);
            let mut state = State::default();
            if let Some(lapse) = self.rule.and_then(Rule::core) {
                lapse.apply(&mut state);
            }
            self.replicas.push(Replica::new(state, self.now, (rate, wall)));
        }
    }

    fn add_agents(&mut self, liar: Option<usize>) {
        for cluster_number in 0..CLUSTERS {
            for node_number in 0..NODES {
                let agent = self.agents.len();
                let node = NodeId::new(&format!("n{node_number}")).expect("a node's name");
                let of = (cluster(cluster_number), node);
                let devices = [self.add_device(agent, of, false), self.add_device(agent, of, true)];
                let slices = devices.into_iter().flatten().collect();
                let config = self.session_config(slices);
                let rate = rate(&mut self.random);
                if rate.unsigned_abs() >= RATE_WRONG {
                    self.faults.count(Fault::WrongRate);
                }
                let host = HostHash([u8::try_from(agent).unwrap_or(0); 16]);
                let is_liar = liar == Some(cluster_number);
                let mut one = Agent::new((of.0, of.1, host), config, (rate, is_liar));
                one.clock = super::clock::MonoClock::new(self.now, 1_000, rate);
                self.agents.push(one);
            }
        }
    }

    /// A device of a node: whole, or two shares of it.
    fn add_device(
        &mut self,
        agent: usize,
        (cluster, node): (ClusterId, NodeId),
        is_shared: bool,
    ) -> Vec<Lendable> {
        let number = u128::try_from(self.devices.len()).unwrap_or(0) + 1;
        let device = DeviceId::new(number);
        let slice = |part| SliceId { cluster, node, device, part };
        let capacity = |gpu, isolation| Capacity {
            model: model(),
            gpu: GpuMilli::new(gpu),
            memory: MiB::new(gpu * 40),
            cpu: CpuMilli::new(8_000),
            host_memory: MiB::new(64_000),
            isolation,
            island: 0,
            hardware: Hardware::UNKNOWN,
        };
        let lendable = if is_shared {
            let share = |index| Lendable {
                slice: slice(Part::Share { index }),
                capacity: capacity(500, Isolation::Mps),
            };
            vec![share(0), share(1)]
        } else {
            let capacity = capacity(1_000, Isolation::Exclusive);
            vec![Lendable { slice: slice(Part::Whole), capacity }]
        };
        let slices = lendable.iter().map(|one| one.slice).collect();
        self.devices.push(Device::new(agent, device, slices));
        lendable
    }

    /// What its agent believes of idleness is anything: forecasts lie.
    fn session_config(&mut self, slices: Vec<Lendable>) -> Config {
        let p10 = 300 + self.random.below(3_000);
        let p50 = p10 + self.random.below(6_000);
        let idle_for = IdleFor {
            p10: Seconds::new(p10),
            p50: Seconds::new(p50),
            p90: Seconds::new(p50 + self.random.below(20_000)),
        };
        Config {
            slices,
            offer_ttl: self.profile.policy.offer_ttl,
            idle_for,
            recall_notice: Seconds::new(120),
            inventory_every: Millis::new(30_000),
            workload_wait: Millis::new(60_000),
        }
    }

    /// Founds the cell through the log, before anything else is.
    fn found(&mut self) {
        let cell = CellId::new("chaos").expect("a cell's name");
        let mut commands = vec![Command::CreateCell { cell, policy: self.profile.policy.clone() }];
        let group = self.profile.is_scarce.then(|| name("pool"));
        commands.extend(group.map(|tenant| Command::CreateTenant { tenant, parent: None }));
        for text in ["acme", "beta", "owner-a", "owner-b"] {
            let tenant = name(text);
            self.clients.tenants.push(tenant);
            let parent = group.filter(|_| ["acme", "beta"].contains(&text));
            commands.push(Command::CreateTenant { tenant, parent });
            let nominal = GpuMilli::new(if self.profile.is_scarce { 2_000 } else { 6_000 });
            commands.push(Command::SetQuota { tenant, model: model(), quota: Quota::of(nominal) });
        }
        let region = Region::new("eu").expect("a region's name");
        for number in 0..CLUSTERS {
            let owner = name(if number == 0 { "owner-a" } else { "owner-b" });
            let cluster = cluster(number);
            commands.push(Command::CreateCluster { cluster, owner, region, devices_max: 64 });
        }
        for owner in ["owner-a", "owner-b"] {
            for tier in [Tier::Opportunistic, Tier::Standard, Tier::Reserved] {
                let per_gpu_hour = MicroCredits::new(2_345_678);
                let owner = name(owner);
                commands.push(Command::SetPrice { owner, model: model(), tier, per_gpu_hour });
            }
        }
        self.raft.term = 1;
        self.raft.leader = Some(0);
        for command in commands {
            self.propose(0, 1, (operator(), None), command, Waiter::Nobody);
        }
        self.queue.push(self.now + 100, Event::Office { replica: 0, term: 1 });
    }

    fn set_going(&mut self, scenario: Scenario) {
        for agent in 0..self.agents.len() {
            let at = self.now + 500 + self.random.below(5_000);
            self.queue.push(at, Event::AgentStart { agent });
        }
        for client in 0..=self.clients.tenants.len() {
            self.schedule_client(client);
        }
        if scenario == Scenario::Quiet {
            return;
        }
        for device in 0..self.devices.len() {
            self.schedule_visit(device);
        }
        self.schedule_fault();
        self.schedule_disk();
    }
}
