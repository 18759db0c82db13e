//! A cell and its nodes side by side, with real rules, leader's logic and sessions, for scenarios in
//! which each message is delivered, lost or repeated by hand. No network, no time but what a test
//! lets pass.
#![allow(clippy::needless_pass_by_value, reason = "tests are data: they hand commands over")]

use std::collections::BTreeMap;

use sublet_agent::driver::{Exit, GuestKey, Report};
use sublet_agent::durable::{Durable, MemoryStore};
use sublet_agent::session::{
    Config, Effect as AgentEffect, GuestUse, Lendable, Observation, Session,
};
use sublet_core::leader::{ClockChange, Effect, Intake, Leader};
use sublet_core::{State, StateView, apply, fold, invariants, matching};
use sublet_protocol::agent::{ClockReading, Down, Reply, Up, UpEnvelope};
use sublet_protocol::capacity::{Capacity, Hardware, Isolation, Part, SliceId};
use sublet_protocol::commands::{Actor, Command, IdempotencyKey, Outcome, Stamped};
use sublet_protocol::ids::{
    CellId, ClusterId, CommandId, DeviceId, GpuModel, HostHash, KeyId, LeaseId, NodeId, Project,
    Region, RequestId, TenantId,
};
use sublet_protocol::leases::Member;
use sublet_protocol::money::MicroCredits;
use sublet_protocol::offers::IdleFor;
use sublet_protocol::policy::Policy;
use sublet_protocol::quotas::Quota;
use sublet_protocol::records::Record;
use sublet_protocol::requests::{Capability, Class, OnRecall, Placement, RequestSpec, Tier};
use sublet_protocol::units::{CpuMilli, GpuMilli, MiB, Millis, Seconds, Timestamp};

pub(crate) fn tenant(name: &str) -> TenantId {
    TenantId::new(name).unwrap()
}

pub(crate) fn model() -> GpuModel {
    GpuModel::new("a100").unwrap()
}

pub(crate) fn cluster() -> ClusterId {
    ClusterId::new("k").unwrap()
}

pub(crate) fn node(number: usize) -> NodeId {
    NodeId::new(&format!("n{number}")).unwrap()
}

/// GPU `device` of node `number`.
pub(crate) fn gpu(number: usize, device: usize) -> SliceId {
    let id = u128::try_from(number * 16 + device + 1).unwrap();
    SliceId { cluster: cluster(), node: node(number), device: DeviceId::new(id), part: Part::Whole }
}

pub(crate) fn operator() -> Actor {
    Actor::Operator { subject: "op".parse().unwrap(), key: KeyId::new("k").unwrap() }
}

pub(crate) fn user(name: &str) -> Actor {
    let (subject, key) = ("someone".parse().unwrap(), KeyId::new("k").unwrap());
    Actor::Tenant { tenant: tenant(name), subject, key }
}

pub(crate) fn spec(count: u32, seconds: u64) -> RequestSpec {
    RequestSpec {
        project: Project::new("p").unwrap(),
        class: Class::Experiment,
        priority: 0,
        models: vec![],
        count,
        gpu: GpuMilli::DEVICE,
        memory: MiB::new(1),
        cpu: CpuMilli::ZERO,
        host_memory: MiB::ZERO,
        placement: Placement::Cluster,
        duration: Seconds::new(seconds),
        max_price: None,
        regions: vec![],
        on_recall: OnRecall::Close,
        workload: None,
        prediction: None,
        capability: Capability::ANY,
        deferral: None,
    }
}

/// What each GPU holds.
pub(crate) fn capacity() -> Capacity {
    Capacity {
        model: model(),
        gpu: GpuMilli::DEVICE,
        memory: MiB::new(80_000),
        cpu: CpuMilli::new(8_000),
        host_memory: MiB::new(64_000),
        isolation: Isolation::Exclusive,
        island: 0,
        hardware: Hardware::UNKNOWN,
    }
}

/// The broker: state, journal and the leader's logic.
pub(crate) struct Cell {
    pub(crate) state: State,
    pub(crate) journal: Vec<Record>,
    pub(crate) leader: Leader,
    pub(crate) now: Timestamp,
    pub(crate) term: u64,
    commands: u128,
    /// What the broker's own clocks show when an agent tells its.
    pub(crate) reading: ClockReading,
    /// Agents whose clocks came to be judged otherwise.
    pub(crate) clock_changes: Vec<ClockChange>,
    /// Messages to agents that nobody has taken yet.
    pub(crate) down: Vec<(NodeId, Down)>,
}

impl Cell {
    /// A cell with tenants `t-a`, `t-b`, `t-c` and the owner, 16 GPUs of quota each.
    pub(crate) fn new() -> Cell {
        Cell::with_policy(Policy::default())
    }

    /// The same with another policy.
    pub(crate) fn with_policy(policy: Policy) -> Cell {
        Cell::founded(policy, Timestamp::new(1_772_445_600_000))
    }

    /// The same at another time.
    pub(crate) fn founded(policy: Policy, now: Timestamp) -> Cell {
        let state = State::default();
        let (leader, _) = Leader::new(1, &state, now);
        let (journal, down) = (Vec::new(), Vec::new());
        let reading = ClockReading { wall: now, monotonic: Millis::ZERO };
        let mut cell = Cell {
            state,
            journal,
            leader,
            now,
            term: 1,
            commands: 0,
            reading,
            clock_changes: Vec::new(),
            down,
        };
        let name = CellId::new("bench").unwrap();
        cell.must(operator(), Command::CreateCell { cell: name, policy });
        for name in ["t-a", "t-b", "t-c", "owner"] {
            let tenant = tenant(name);
            cell.must(operator(), Command::CreateTenant { tenant, parent: None });
            let nominal = GpuMilli::new(16_000);
            cell.must(
                operator(),
                Command::SetQuota { tenant, model: model(), quota: Quota::of(nominal) },
            );
        }
        let (owner, region) = (tenant("owner"), Region::new("eu").unwrap());
        let create = Command::CreateCluster { cluster: cluster(), owner, region, devices_max: 64 };
        cell.must(operator(), create);
        for tier in [Tier::Opportunistic, Tier::Standard, Tier::Reserved] {
            let per_gpu_hour = MicroCredits::new(1_000_000);
            cell.must(operator(), Command::SetPrice { owner, model: model(), tier, per_gpu_hour });
        }
        cell
    }

    /// Commits a command; the leader's logic hears what came of it.
    pub(crate) fn ask(
        &mut self,
        actor: Actor,
        key: Option<IdempotencyKey>,
        command: Command,
    ) -> Outcome {
        self.commands += 1;
        let id = CommandId::new(self.commands);
        let stamped = Stamped { id, actor, now: self.now, term: self.term, key, command };
        let applied = apply(&mut self.state, &stamped, self.term);
        assert_eq!(invariants::check(&self.state), vec![], "after {:?}", stamped.command);
        self.journal.extend(applied.records.iter().cloned());
        let effects = self.leader.on_records(&self.state, self.now, &applied.records);
        self.carry_out(effects);
        applied.outcome
    }

    #[track_caller]
    pub(crate) fn must(&mut self, actor: Actor, command: Command) {
        let outcome = self.ask(actor, None, command.clone());
        assert!(!matches!(outcome, Outcome::Refused { .. }), "{command:?}: {outcome:?}");
    }

    fn carry_out(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Send { to, message } => self.down.push((to.1, message)),
                Effect::Propose(command) => {
                    self.ask(Actor::Leader, None, command);
                }
                Effect::Plan => self.plan(),
            }
        }
    }

    pub(crate) fn plan(&mut self) {
        let limits = self.leader.limits(&self.state, self.now);
        let view = StateView { state: &self.state, now: self.now };
        let groups = matching::plan_within(view, &limits);
        self.ask(Actor::Leader, None, Command::CommitPlan { groups });
    }

    /// A message of an agent: as the shell does it.
    pub(crate) fn hear(&mut self, message: &UpEnvelope) -> Reply {
        match self.leader.on_up(&self.state, self.now, message) {
            Intake::Propose(command) => {
                let actor = Actor::Agent { cluster: message.cluster, node: message.node };
                let outcome = self.ask(actor, None, command);
                let (reply, effects) =
                    self.leader.after_commit(&self.state, self.now, message, &outcome);
                self.carry_out(effects);
                reply
            }
            Intake::Barrier => {
                let effects = self.leader.after_barrier(&self.state, self.now, message);
                self.carry_out(effects);
                Reply::Done
            }
            Intake::Answer(reply, effects) => {
                self.carry_out(effects);
                reply
            }
            Intake::Clock => {
                let change = self.leader.on_clock(&self.state, message, self.reading);
                self.clock_changes.extend(change);
                Reply::Done
            }
            Intake::Output => Reply::Done,
        }
    }

    pub(crate) fn later(&mut self, seconds: u64) {
        self.now = self.now.after(Seconds::new(seconds));
    }

    /// The leader's logic does what is due.
    pub(crate) fn tick(&mut self) {
        let effects = self.leader.tick(&self.state, self.now);
        self.carry_out(effects);
    }

    pub(crate) fn submit(&mut self, name: &str, number: u128, spec: RequestSpec) -> RequestId {
        let request = RequestId::new(number);
        self.must(user(name), Command::SubmitRequest { request, tenant: tenant(name), spec });
        request
    }

    /// The broker is killed and started: the state is the fold of the journal, the leader is new.
    pub(crate) fn restart(&mut self) {
        let mut state = State::default();
        for record in &self.journal {
            fold(&mut state, record);
        }
        assert_eq!(state, self.state, "INV-12");
        self.state = state;
        self.term += 1;
        self.down.clear();
        let (leader, effects) = Leader::new(self.term, &self.state, self.now);
        self.leader = leader;
        self.carry_out(effects);
    }

    /// The first member of a lease.
    pub(crate) fn member_of(&self, lease: LeaseId) -> Member {
        self.state.leases()[&lease].terms().members[0]
    }

    pub(crate) fn only_lease(&self) -> LeaseId {
        *self.state.leases().keys().next().expect("a lease")
    }
}

/// A node: the real session, with guests that only do what they are told.
pub(crate) struct Node {
    pub(crate) number: usize,
    pub(crate) session: Session,
    pub(crate) store: MemoryStore,
    config: Config,
    pub(crate) boot: u64,
    pub(crate) clock: Millis,
    sequence: u64,
    /// What waits to be sent.
    pub(crate) up: Vec<Up>,
    /// Guests that run, with their deadlines.
    pub(crate) guests: BTreeMap<GuestKey, Millis>,
    pub(crate) signalled: Vec<(Millis, GuestKey)>,
}

impl Node {
    /// A node with `devices` GPUs, started.
    pub(crate) fn new(number: usize, devices: usize) -> Node {
        Node::at(number, devices, Millis::new(1_000))
    }

    /// The same with another origin of its clock.
    pub(crate) fn at(number: usize, devices: usize, clock: Millis) -> Node {
        let capacity = capacity();
        let slices = (0..devices).map(|device| Lendable { slice: gpu(number, device), capacity });
        let hours = |hours: u64| Seconds::new(hours * 3_600);
        let config = Config {
            slices: slices.collect(),
            offer_ttl: Seconds::new(900),
            idle_for: IdleFor { p10: hours(2), p50: hours(4), p90: hours(9) },
            recall_notice: Seconds::new(120),
            inventory_every: Millis::new(30_000),
            workload_wait: Millis::new(60_000),
        };
        Node::start(number, config, MemoryStore::default(), clock)
    }

    fn start(number: usize, config: Config, mut store: MemoryStore, clock: Millis) -> Node {
        let durable = store.begin().unwrap();
        let boot = durable.boot.get();
        let (session, effects) = Session::new(config.clone(), durable, clock);
        let mut node = Node {
            number,
            session,
            store,
            config,
            boot,
            clock,
            sequence: 0,
            up: Vec::new(),
            guests: BTreeMap::new(),
            signalled: Vec::new(),
        };
        node.carry_out(effects);
        node
    }

    /// The agent starts anew, its guests are gone.
    pub(crate) fn restart(&mut self) {
        let (store, config) = (self.store.clone(), self.config.clone());
        *self = Node::start(self.number, config, store, self.clock);
    }

    pub(crate) fn carry_out(&mut self, effects: Vec<AgentEffect>) {
        for effect in effects {
            match effect {
                AgentEffect::Persist(state) => self.store.store(&state).unwrap(),
                AgentEffect::Send(message) => self.up.push(message),
                AgentEffect::Start(guest) => {
                    self.guests.insert(guest.key, guest.deadline);
                    let started = self.session.on_report(self.clock, Report::Started(guest.key));
                    self.carry_out(started);
                }
                AgentEffect::Signal(key, _) => self.signalled.push((self.clock, key)),
                AgentEffect::SetDeadline(key, deadline) => {
                    self.guests.entry(key).and_modify(|at| *at = deadline);
                }
                AgentEffect::Kill(key) => self.end_guest(key, Exit::Signal(9)),
            }
        }
    }

    /// A guest's processes end and its slice is clean.
    pub(crate) fn end_guest(&mut self, key: GuestKey, exit: Exit) {
        self.guests.remove(&key);
        for report in [Report::Exited(key, exit), Report::Clean(key)] {
            let effects = self.session.on_report(self.clock, report);
            self.carry_out(effects);
        }
    }

    pub(crate) fn see_idle(&mut self) {
        for device in self.config.slices.iter().map(|one| one.slice.device).collect::<Vec<_>>() {
            self.see(Observation::Idle(device));
        }
    }

    /// What its guests use is looked at: this, of each.
    pub(crate) fn look_at_guests(&mut self, seen: GuestUse) {
        for key in self.session.running().collect::<Vec<_>>() {
            self.session.on_use(self.clock, key, seen);
        }
    }

    /// It tells its clocks, of which the wall clock shows `wall`.
    pub(crate) fn tell_clocks(&mut self, wall: Timestamp) {
        self.up.push(Up::Clock(ClockReading { wall, monotonic: self.clock }));
    }

    pub(crate) fn see(&mut self, seen: Observation) {
        let effects = self.session.on_observation(self.clock, seen);
        self.carry_out(effects);
    }

    pub(crate) fn hear(&mut self, message: Down) {
        let effects = self.session.on_message(self.clock, message);
        self.carry_out(effects);
    }

    /// Time passes on the agent's clock; what is due is done when it is, and guards kill at the
    /// deadline.
    pub(crate) fn later(&mut self, seconds: u64) {
        self.live_until(self.clock.saturating_add(Seconds::new(seconds).as_millis()));
    }

    /// The same until its clock shows `end`.
    pub(crate) fn live_until(&mut self, end: Millis) {
        loop {
            let guards = self.guests.values().copied().min();
            let due = guards.map_or(self.session.next_due(), |at| at.min(self.session.next_due()));
            if due > end {
                break;
            }
            self.clock = self.clock.max(due);
            let effects = self.session.on_tick(self.clock);
            self.carry_out(effects);
            let over: Vec<GuestKey> =
                self.guests.iter().filter(|(_, at)| **at <= self.clock).map(|(k, _)| *k).collect();
            for key in over {
                self.end_guest(key, Exit::Signal(9));
            }
        }
        self.clock = end;
    }

    pub(crate) fn envelope(&mut self, body: Up) -> UpEnvelope {
        self.sequence += 1;
        UpEnvelope {
            cluster: cluster(),
            node: node(self.number),
            host: HostHash([u8::try_from(self.number).unwrap(); 16]),
            boot: sublet_protocol::ids::Boot::new(self.boot),
            sequence: self.sequence,
            body,
        }
    }
}

/// Delivers everything both ways until nobody has anything to say; gives what the agents said.
pub(crate) fn talk(cell: &mut Cell, nodes: &mut [&mut Node]) -> Vec<UpEnvelope> {
    let mut said = Vec::new();
    loop {
        let mut is_quiet = true;
        for one in nodes.iter_mut() {
            for body in std::mem::take(&mut one.up) {
                is_quiet = false;
                let message = one.envelope(body);
                let reply = cell.hear(&message);
                let effects = one.session.on_reply(one.clock, &message.body, &reply);
                one.carry_out(effects);
                said.push(message);
            }
        }
        cell.tick();
        for (to, message) in std::mem::take(&mut cell.down) {
            is_quiet = false;
            if let Some(one) = nodes.iter_mut().find(|one| node(one.number) == to) {
                one.hear(message);
            }
        }
        if is_quiet {
            return said;
        }
    }
}
