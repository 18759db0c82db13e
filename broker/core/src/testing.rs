//! A small world for tests: a cell with two tenants, a cluster and the agents of its nodes. After
//! every command it checks the invariants, that the state is the fold of the journal as decoded from
//! its bytes, and that each posting balances.
#![allow(clippy::needless_pass_by_value, reason = "tests are data: they hand commands over")]

use sublet_protocol::capacity::{Capacity, Hardware, Isolation, Part, SliceId};
use sublet_protocol::codec;
use sublet_protocol::commands::{Actor, Command, GuestOutcome, IdempotencyKey, Outcome, Stamped};
use sublet_protocol::commands::{GroupOutcome, PlanGroup, PlanMember};
use sublet_protocol::events::Event;
use sublet_protocol::ids::{
    Boot, CellId, ClusterId, CommandId, DeviceId, GpuModel, HostHash, KeyId, LeaseId, NodeId,
    Project, Region, RequestId, Subject, TenantId, Token,
};
use sublet_protocol::money::MicroCredits;
use sublet_protocol::offers::{Division, HostRoom, IdleFor, OfferTerms};
use sublet_protocol::policy::Policy;
use sublet_protocol::quotas::Quota;
use sublet_protocol::records::Record;
use sublet_protocol::refusals::Rejection;
use sublet_protocol::requests::{Capability, Class, OnRecall, Placement, RequestSpec, Tier};
use sublet_protocol::units::{CpuMilli, GpuMilli, MiB, Millis, Seconds, Timestamp};

use crate::past::{Past, wanted};
use crate::state::{LeaseStage, State, StateView};
use crate::{apply_knowing, fold, invariants, matching};

pub(crate) const TERM: u64 = 1;
pub(crate) const HOUR: Seconds = Seconds::new(3_600);

pub(crate) fn tenant(name: &str) -> TenantId {
    TenantId::new(name).unwrap()
}

pub(crate) fn model() -> GpuModel {
    GpuModel::new("a100").unwrap()
}

pub(crate) fn cluster() -> ClusterId {
    ClusterId::new("c1").unwrap()
}

pub(crate) fn node(number: u64) -> NodeId {
    NodeId::new(&format!("n{number}")).unwrap()
}

pub(crate) fn operator() -> Actor {
    Actor::Operator { subject: subject(), key: KeyId::new("k").unwrap() }
}

fn subject() -> Subject {
    "someone".parse().unwrap()
}

pub(crate) fn user(name: &str) -> Actor {
    Actor::Tenant { tenant: tenant(name), subject: subject(), key: KeyId::new("k").unwrap() }
}

pub(crate) fn agent(of: SliceId) -> Actor {
    Actor::Agent { cluster: of.cluster, node: of.node }
}

/// GPU `number` of the cluster; eight to a node.
pub(crate) fn gpu(number: u64) -> SliceId {
    let device = DeviceId::new(u128::from(number) + 1);
    SliceId { cluster: cluster(), node: node(number / 8), device, part: Part::Whole }
}

pub(crate) fn offer(slice: SliceId, generation: u64, boot: u64) -> OfferTerms {
    OfferTerms {
        slice,
        generation,
        boot: Boot::new(boot),
        capacity: Capacity {
            model: model(),
            gpu: GpuMilli::DEVICE,
            memory: MiB::new(80_000),
            cpu: CpuMilli::new(16_000),
            host_memory: MiB::new(128_000),
            isolation: Isolation::Exclusive,
            island: 0,
            hardware: Hardware::UNKNOWN,
        },
        idle_for: IdleFor { p10: HOUR, p50: Seconds::new(7_200), p90: Seconds::new(36_000) },
        recall_notice: Seconds::new(120),
        ttl: Seconds::new(900),
        division: Division::NONE,
        host: HostRoom::Slice,
    }
}

pub(crate) fn spec(class: Class, count: u32) -> RequestSpec {
    RequestSpec {
        project: Project::new("p").unwrap(),
        class,
        priority: 0,
        models: vec![],
        count,
        gpu: GpuMilli::DEVICE,
        memory: MiB::new(20_000),
        cpu: CpuMilli::ZERO,
        host_memory: MiB::ZERO,
        placement: Placement::Cluster,
        duration: HOUR,
        max_price: None,
        regions: vec![],
        on_recall: OnRecall::Requeue,
        workload: None,
        prediction: None,
        capability: Capability::ANY,
        deferral: None,
    }
}

/// A cell in which `owner` owns cluster `c1` and `acme` borrows; both have a quota of 16 GPUs.
pub(crate) struct World {
    pub(crate) state: State,
    pub(crate) journal: Vec<Record>,
    pub(crate) now: Timestamp,
    replica: State,
    commands: u128,
}

impl World {
    pub(crate) fn new() -> World {
        let mut world = World {
            state: State::default(),
            journal: Vec::new(),
            now: Timestamp::new(1_700_000_000_000),
            replica: State::default(),
            commands: 0,
        };
        let cell = CellId::new("test").unwrap();
        world.must(operator(), Command::CreateCell { cell, policy: Policy::default() });
        for name in ["owner", "acme"] {
            let id = tenant(name);
            world.must(operator(), Command::CreateTenant { tenant: id, parent: None });
            let nominal = GpuMilli::new(16_000);
            world.must(
                operator(),
                Command::SetQuota { tenant: id, model: model(), quota: Quota::of(nominal) },
            );
        }
        let (owner, region) = (tenant("owner"), Region::new("eu").unwrap());
        let create = Command::CreateCluster { cluster: cluster(), owner, region, devices_max: 64 };
        world.must(operator(), create);
        for tier in [Tier::Opportunistic, Tier::Standard, Tier::Reserved] {
            let per_gpu_hour = MicroCredits::new(2_000_000);
            let set = Command::SetPrice { owner, model: model(), tier, per_gpu_hour };
            world.must(operator(), set);
        }
        world
    }

    /// With `nodes` registered and all their GPUs on offer.
    pub(crate) fn with_nodes(nodes: u64) -> World {
        let mut world = World::new();
        for number in 0..nodes {
            world.register(number, 1);
            for slice in (number * 8..number * 8 + 8).map(gpu) {
                world.must(agent(slice), Command::OfferCapacity { offer: offer(slice, 1, 1) });
            }
        }
        world
    }

    pub(crate) fn register(&mut self, number: u64, boot: u64) {
        let (cluster, node) = (cluster(), node(number));
        let (boot, host) = (Boot::new(boot), HostHash([0; 16]));
        let hello = Command::RegisterNode { cluster, node, boot, host };
        self.must(Actor::Agent { cluster, node }, hello);
    }

    pub(crate) fn later(&mut self, span: Seconds) {
        self.now = self.now.after(span);
    }

    pub(crate) fn ask(
        &mut self,
        actor: Actor,
        key: Option<IdempotencyKey>,
        command: Command,
    ) -> Outcome {
        self.commands += 1;
        let id = CommandId::new(self.commands);
        let stamped = Stamped { id, actor, now: self.now, term: TERM, key, command };
        let before = self.state.clone();
        let past = self.past(&stamped.command);
        let applied = apply_knowing(&mut self.state, &stamped, TERM, &past);
        if applied.records.is_empty() {
            assert_eq!(self.state, before, "a command without records leaves no trace");
        }
        for record in applied.records {
            let bytes = codec::encode_record(&record).unwrap();
            let decoded = codec::decode_record(&bytes).unwrap();
            assert_eq!(decoded, record);
            fold(&mut self.replica, &decoded);
            assert_balanced(&record);
            self.journal.push(record);
        }
        assert_eq!(self.state, self.replica, "INV-12: the state is the fold of the journal");
        assert_eq!(invariants::check(&self.state), vec![], "after {:?}", stamped.command);
        applied.outcome
    }

    /// What the journal says of the leases that a command wants to know of.
    fn past(&self, command: &Command) -> Past {
        let mut past = Past::default();
        for lease in wanted(&self.state, command) {
            let of_lease = self.journal.iter().filter(|r| r.event.lease() == Some(lease));
            past.add(lease, &of_lease.cloned().collect::<Vec<_>>());
        }
        past
    }

    /// Does what must be accepted; returns the events.
    #[track_caller]
    pub(crate) fn must(&mut self, actor: Actor, command: Command) -> Vec<Event> {
        let from = self.journal.len();
        match self.ask(actor, None, command.clone()) {
            Outcome::Done { .. } | Outcome::Repeated { .. } => {}
            Outcome::Refused { rejection } => panic!("{command:?} was refused: {rejection}"),
        }
        self.journal[from..].iter().map(|record| record.event.clone()).collect()
    }

    #[track_caller]
    pub(crate) fn refuse(&mut self, actor: Actor, command: Command, rejection: Rejection) {
        assert_eq!(self.ask(actor, None, command), Outcome::Refused { rejection });
    }

    pub(crate) fn submit(&mut self, name: &str, number: u128, spec: RequestSpec) -> RequestId {
        let (request, tenant) = (RequestId::new(number), tenant(name));
        self.must(user(name), Command::SubmitRequest { request, tenant, spec });
        request
    }

    pub(crate) fn plan(&mut self) -> Vec<GroupOutcome> {
        let groups = matching::plan(StateView { state: &self.state, now: self.now });
        match self.ask(Actor::Leader, None, Command::CommitPlan { groups }) {
            Outcome::Done { groups, .. } => groups,
            other => panic!("the plan came to {other:?}"),
        }
    }

    /// Grants these GPUs to the request and confirms every member.
    #[track_caller]
    pub(crate) fn activate(&mut self, request: RequestId, gpus: &[u64]) -> LeaseId {
        let lease = self.grant(request, gpus);
        for slice in gpus.iter().copied().map(gpu) {
            let (token, boot) = (self.token(lease), Boot::new(1));
            self.must(agent(slice), Command::ConfirmMember { lease, slice, token, boot });
        }
        lease
    }

    #[track_caller]
    pub(crate) fn grant(&mut self, request: RequestId, gpus: &[u64]) -> LeaseId {
        let members = gpus.iter().map(|number| self.member(gpu(*number))).collect();
        match self.commit(PlanGroup::Grant { request, members }) {
            GroupOutcome::Granted { lease } => lease,
            other => panic!("the grant came to {other:?}"),
        }
    }

    pub(crate) fn member(&self, slice: SliceId) -> PlanMember {
        let generation =
            self.state.offers().get(&slice).map_or(1, |offer| offer.terms().generation);
        PlanMember { slice, generation }
    }

    /// What comes of a group of a plan. A refusal is told without who came first, which
    /// [`World::outcome_of`] says.
    pub(crate) fn commit(&mut self, group: PlanGroup) -> GroupOutcome {
        let outcome = self.outcome_of(group);
        outcome.refusal().map_or(outcome, |rejection| GroupOutcome::Refused { rejection })
    }

    pub(crate) fn outcome_of(&mut self, group: PlanGroup) -> GroupOutcome {
        match self.ask(Actor::Leader, None, Command::CommitPlan { groups: vec![group] }) {
            Outcome::Done { mut groups, .. } => groups.remove(0),
            other => panic!("the plan came to {other:?}"),
        }
    }

    pub(crate) fn token(&self, lease: LeaseId) -> Token {
        self.state.leases()[&lease].terms().token
    }

    #[track_caller]
    pub(crate) fn stop(
        &mut self,
        lease: LeaseId,
        slice: SliceId,
        used: Seconds,
        outcome: GuestOutcome,
    ) -> Vec<Event> {
        let (token, boot, used) = (self.token(lease), Boot::new(1), used.as_millis());
        let report = Command::ReportStopped { lease, slice, token, boot, used, outcome };
        self.must(agent(slice), report)
    }

    pub(crate) fn stage(&self, lease: LeaseId) -> Option<&LeaseStage> {
        self.state.leases().get(&lease).map(crate::state::Lease::stage)
    }
}

fn assert_balanced(record: &Record) {
    let sum = |side: fn(&sublet_protocol::money::Line) -> MicroCredits| -> i64 {
        record.lines().iter().map(|line| side(line).get()).sum()
    };
    assert_eq!(sum(|l| l.debit), sum(|l| l.credit), "INV-4: record {} balances", record.index);
}

/// A span of use in milliseconds, for reports that are not whole seconds.
pub(crate) const fn millis(value: u64) -> Millis {
    Millis::new(value)
}
