//! How long a plan takes in a full cell after one thing has happened: by the index, and by a look at
//! everything. Real state, real rules, real planner.
//!
//! Run it with `cargo bench -p sublet-simulations --bench plan_wall`. A cell of 100,000 GPUs in 16
//! clusters, a million requests of 1,024 tenants in three tiers. All but one GPU in a hundred are
//! leased, and those that are not are spread so that no gang of eight finds room on one node; the
//! models that single requests wait for are taken. Arguments: GPUs and waiting requests, in
//! thousands, for smaller cells.
#![allow(clippy::print_stdout, reason = "a measurement is told on the terminal")]

use std::time::{Duration, Instant};

use sublet_core::matching::index::Index;
use sublet_core::matching::{self, Limits};
use sublet_core::{State, StateView, apply};
use sublet_protocol::capacity::{Capacity, Hardware, Isolation, Part, SliceId};
use sublet_protocol::commands::{
    Actor, Command, GuestOutcome, Outcome, PLAN_GROUPS_MAX, PlanGroup, PlanMember, Stamped,
};
use sublet_protocol::ids::{
    Boot, CellId, ClusterId, CommandId, DeviceId, GpuModel, HostHash, KeyId, NodeId, Project,
    Region, RequestId, TenantId,
};
use sublet_protocol::money::MicroCredits;
use sublet_protocol::offers::{Division, HostRoom, IdleFor, OfferTerms};
use sublet_protocol::policy::Policy;
use sublet_protocol::quotas::Quota;
use sublet_protocol::records::Record;
use sublet_protocol::requests::{Capability, Class, OnRecall, Placement, RequestSpec, Tier};
use sublet_protocol::units::{CpuMilli, GpuMilli, MiB, Millis, Seconds, Timestamp};

const MODELS: u64 = 4;
const CLUSTERS: u64 = 4;
const NODE_GPUS: u64 = 8;
const TENANTS: u64 = 1_024;
const TERM: u64 = 1;
const EVENTS: u64 = 200;
const DAY: Seconds = Seconds::new(86_400);
const CLASSES: [Class; 3] = [Class::Latency, Class::Batch, Class::Experiment];

struct Cell {
    state: State,
    index: Option<Index>,
    commands: u128,
    requests: u64,
    now: Timestamp,
}

fn tenant(number: u64) -> TenantId {
    TenantId::new(&format!("t-{number}")).expect("a name")
}

fn model(number: u64) -> GpuModel {
    GpuModel::new(&format!("m-{number}")).expect("a name")
}

fn operator() -> Actor {
    Actor::Operator {
        subject: "op".parse().expect("a name"),
        key: KeyId::new("k").expect("a name"),
    }
}

/// Where GPU `number` is: nodes go round the models, then round the clusters of each.
fn slice(number: u64) -> (u64, SliceId) {
    let node = number / NODE_GPUS;
    let (model, cluster) = (node % MODELS, node / MODELS % CLUSTERS);
    let cluster = ClusterId::new(&format!("c-{model}-{cluster}")).expect("a name");
    let node = NodeId::new(&format!("n-{node}")).expect("a name");
    let device = DeviceId::new(u128::from(number) + 1);
    (model, SliceId { cluster, node, device, part: Part::Whole })
}

fn agent(slice: SliceId) -> Actor {
    Actor::Agent { cluster: slice.cluster, node: slice.node }
}

fn spec(class: Class, wanted: u64, count: u32) -> RequestSpec {
    RequestSpec {
        project: Project::new("p").expect("a name"),
        class,
        priority: 0,
        models: vec![model(wanted)],
        count,
        gpu: GpuMilli::DEVICE,
        memory: MiB::new(20_000),
        cpu: CpuMilli::ZERO,
        host_memory: MiB::ZERO,
        placement: Placement::Node,
        duration: Seconds::new(3_600),
        max_price: None,
        regions: vec![],
        on_recall: OnRecall::Requeue,
        workload: None,
        prediction: None,
        capability: Capability::default(),
        deferral: None,
    }
}

impl Cell {
    fn ask(&mut self, actor: Actor, command: Command) -> Vec<Record> {
        self.commands += 1;
        let (id, now) = (CommandId::new(self.commands), self.now);
        let name = command.name();
        let stamped = Stamped { id, actor, now, term: TERM, key: None, command };
        let applied = apply(&mut self.state, &stamped, TERM);
        if let Outcome::Refused { rejection } = &applied.outcome {
            panic!("{name} was refused: {rejection}");
        }
        if let Some(index) = &mut self.index {
            for record in &applied.records {
                index.on_record(&self.state, record);
            }
        }
        applied.records
    }

    fn offer(&mut self, number: u64, generation: u64) {
        let (wanted, slice) = slice(number);
        let offer = OfferTerms {
            slice,
            generation,
            boot: Boot::new(1),
            capacity: Capacity {
                model: model(wanted),
                gpu: GpuMilli::DEVICE,
                memory: MiB::new(80_000),
                cpu: CpuMilli::ZERO,
                host_memory: MiB::ZERO,
                isolation: Isolation::Exclusive,
                island: 0,
                hardware: Hardware::UNKNOWN,
            },
            idle_for: IdleFor { p10: DAY, p50: DAY, p90: DAY },
            recall_notice: Seconds::new(120),
            ttl: DAY,
            division: Division::NONE,
            host: HostRoom::Slice,
        };
        self.ask(agent(slice), Command::OfferCapacity { offer });
    }

    fn submit(&mut self, owner: u64, spec: RequestSpec) -> RequestId {
        self.requests += 1;
        // Scattered, as ids are.
        let request = RequestId::new(
            u128::from(self.requests).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835),
        );
        let (subject, key) = ("someone".parse().expect("a name"), KeyId::new("k").expect("a name"));
        let tenant = tenant(owner);
        self.ask(
            Actor::Tenant { tenant, subject, key },
            Command::SubmitRequest { request, tenant, spec },
        );
        request
    }

    fn view(&self) -> StateView<'_> {
        StateView { state: &self.state, now: self.now }
    }

    /// A plan by the index, committed; how long it took to make, and its groups.
    fn plan(&mut self) -> (Duration, usize) {
        let mut index = self.index.take().unwrap_or_else(|| Index::of(&self.state));
        let started = Instant::now();
        let groups = matching::plan_with(&mut index, self.view(), &Limits::NONE);
        let spent = started.elapsed();
        self.index = Some(index);
        let count = groups.len();
        self.ask(Actor::Leader, Command::CommitPlan { groups });
        (spent, count)
    }
}

fn found(gpus: u64) -> Cell {
    let (state, now) = (State::default(), Timestamp::new(1_700_000_000_000));
    let mut cell = Cell { state, index: None, commands: 0, requests: 0, now };
    let policy = Policy { offer_ttl: DAY, ..Policy::default() };
    cell.ask(
        operator(),
        Command::CreateCell { cell: CellId::new("full").expect("a name"), policy },
    );
    for number in 0..TENANTS {
        let tenant = tenant(number);
        cell.ask(operator(), Command::CreateTenant { tenant, parent: None });
        for wanted in 0..MODELS {
            let quota = Quota::of(GpuMilli::new(gpus * 1_000));
            cell.ask(operator(), Command::SetQuota { tenant, model: model(wanted), quota });
        }
    }
    let owner = tenant(0);
    for wanted in 0..MODELS {
        for tier in [Tier::Opportunistic, Tier::Standard, Tier::Reserved] {
            let per_gpu_hour = MicroCredits::new(1);
            cell.ask(
                operator(),
                Command::SetPrice { owner, model: model(wanted), tier, per_gpu_hour },
            );
        }
    }
    for node in 0..gpus.div_ceil(NODE_GPUS) {
        let (_, first) = slice(node * NODE_GPUS);
        let (cluster, region) = (first.cluster, Region::new("eu").expect("a name"));
        if node < MODELS * CLUSTERS {
            let devices_max = 1_000_000;
            cell.ask(operator(), Command::CreateCluster { cluster, owner, region, devices_max });
        }
        let (boot, host) = (Boot::new(1), HostHash([0; 16]));
        let register = Command::RegisterNode { cluster, node: first.node, boot, host };
        cell.ask(agent(first), register);
    }
    cell
}

/// Leases of the reserved tier on all GPUs but one in a hundred, of the model that gangs wait for.
fn fill(cell: &mut Cell, gpus: u64) -> u64 {
    let mut free = 0;
    let mut groups = Vec::new();
    for number in 0..gpus {
        cell.offer(number, 1);
        let (wanted, slice) = slice(number);
        // One GPU of every third node of model 0.
        if wanted == 0 && number.is_multiple_of(NODE_GPUS) && (number / NODE_GPUS).is_multiple_of(3)
        {
            free += 1;
            continue;
        }
        let request = cell.submit(number % TENANTS, spec(Class::Latency, wanted, 1));
        let members = vec![PlanMember { slice, generation: 1 }];
        groups.push(PlanGroup::Grant { request, members });
        if groups.len() == PLAN_GROUPS_MAX {
            cell.ask(Actor::Leader, Command::CommitPlan { groups: std::mem::take(&mut groups) });
        }
    }
    cell.ask(Actor::Leader, Command::CommitPlan { groups });
    free
}

/// Gangs wait for model 0, single GPUs for the others.
fn queue(cell: &mut Cell, waiting: u64) {
    for number in 0..waiting {
        let owner = number % TENANTS;
        let place = number / TENANTS % 3;
        let class = CLASSES[usize::try_from(place).expect("a place")];
        let wanted = (owner + place) % MODELS;
        cell.submit(owner, spec(class, wanted, if wanted == 0 { 8 } else { 1 }));
    }
}

/// A lease of GPU `number` ends, and the GPU is offered again.
fn end_lease(cell: &mut Cell, number: u64, generation: u64) {
    let (_, slice) = slice(number);
    let lease = cell.state.leased()[&slice];
    let token = cell.state.leases()[&lease].terms().token;
    let (boot, used, outcome) = (Boot::new(1), Millis::new(0), GuestOutcome::Exited { code: 0 });
    cell.ask(agent(slice), Command::ConfirmMember { lease, slice, token, boot });
    cell.ask(agent(slice), Command::ReportStopped { lease, slice, token, boot, used, outcome });
    cell.offer(number, generation);
}

fn median(mut spans: Vec<Duration>) -> Duration {
    spans.sort_unstable();
    spans[spans.len() / 2]
}

fn main() {
    let numbers: Vec<u64> = std::env::args().filter_map(|text| text.parse().ok()).collect();
    let (gpus, waiting) = match numbers[..] {
        [gpus, waiting] => (gpus * 1_000, waiting * 1_000),
        _ => (100_000, 1_000_000),
    };
    let mut cell = found(gpus);
    let free = fill(&mut cell, gpus);
    queue(&mut cell, waiting);
    let leases = cell.state.leases().len();
    println!("{gpus} GPUs, {free} of them free, {leases} leases, {waiting} requests wait");

    let started = Instant::now();
    cell.index = Some(Index::of(&cell.state));
    println!("index built anew in {:?}", started.elapsed());
    let mut plans = 0;
    while plans < 50 {
        let (spent, groups) = cell.plan();
        plans += 1;
        if plans == 1 {
            println!("first plan, all awake: {spent:?}, {groups} groups");
        }
        if groups == 0 && plans > 3 {
            break;
        }
    }
    let mut looks = Vec::new();
    for _ in 0..3 {
        let started = Instant::now();
        let groups = matching::plan_within(cell.view(), &Limits::NONE);
        looks.push(started.elapsed());
        assert!(groups.is_empty(), "nothing fits");
    }
    println!("a look at everything: {:?}", median(looks));

    let (mut ended, mut arrived, mut nothing) = (Vec::new(), Vec::new(), Vec::new());
    for event in 0..EVENTS {
        // A GPU of model 1 to 3: single requests wait for it.
        let number = (event * 4 + 1 + event % 3) * NODE_GPUS + event % NODE_GPUS;
        end_lease(&mut cell, number, 2);
        let (spent, groups) = cell.plan();
        assert_eq!(groups, 1, "whoever comes first gets it");
        ended.push(spent);
        cell.submit(event, spec(CLASSES[2], event % MODELS, 8));
        arrived.push(cell.plan().0);
        nothing.push(cell.plan().0);
    }
    println!("after a lease ended, by the index: {:?}", median(ended));
    println!("after a request of a new kind: {:?}", median(arrived));
    println!("after nothing: {:?}", median(nothing));
}
