//! What the real planner and the real rules make of an instance.

use sublet_core::matching::{self, Limits, index::Index};
use sublet_core::{State, StateView, apply, invariants};
use sublet_protocol::capacity::{Capacity, Hardware, Isolation, Part, SliceId};
use sublet_protocol::commands::{Actor, Command, Outcome, Stamped};
use sublet_protocol::ids::{
    Boot, CellId, ClusterId, CommandId, DeviceId, GpuModel, HostHash, KeyId, NodeId, Project,
    Region, RequestId, TenantId,
};
use sublet_protocol::money::MicroCredits;
use sublet_protocol::offers::{Division, HostRoom, IdleFor, OfferTerms};
use sublet_protocol::policy::Policy;
use sublet_protocol::quotas::Quota;
use sublet_protocol::requests::{Capability, Class, OnRecall, Placement, RequestSpec, Tier};
use sublet_protocol::units::{CpuMilli, GpuMilli, MiB, Seconds, Timestamp};

use super::instance::Instance;

const NODE_GPUS: u32 = 8;
/// Requests are spread over so many tenants.
const TENANTS: usize = 5;
const HOUR: Seconds = Seconds::new(3_600);

/// When the requests of an instance are submitted, in its order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Submission {
    /// All at the same instant.
    AtOnce,
    /// A second apart.
    InTurn,
}

struct Cell {
    state: State,
    index: Index,
    commands: u128,
    now: Timestamp,
}

fn tenant(number: usize) -> TenantId {
    TenantId::new(&format!("t-{number}")).unwrap()
}

fn model(pool: usize) -> GpuModel {
    GpuModel::new(&format!("m-{pool}")).unwrap()
}

fn cluster(pool: usize) -> ClusterId {
    ClusterId::new(&format!("c-{pool}")).unwrap()
}

impl Cell {
    fn ask(&mut self, actor: Actor, command: Command) -> Outcome {
        self.commands += 1;
        let (id, now) = (CommandId::new(self.commands), self.now);
        let stamped = Stamped { id, actor, now, term: 1, key: None, command };
        let applied = apply(&mut self.state, &stamped, 1);
        for record in &applied.records {
            self.index.on_record(&self.state, record);
        }
        applied.outcome
    }

    #[track_caller]
    fn must(&mut self, actor: Actor, command: Command) {
        let said = format!("{command:?}");
        let outcome = self.ask(actor, command);
        assert!(matches!(outcome, Outcome::Done { .. }), "{said}: {outcome:?}");
    }
}

fn operator() -> Actor {
    Actor::Operator { subject: "op".parse().unwrap(), key: KeyId::new("k").unwrap() }
}

fn found() -> Cell {
    let state = State::default();
    let index = Index::of(&state);
    let mut cell = Cell { state, index, commands: 0, now: Timestamp::new(1_700_000_000_000) };
    let id = CellId::new("optimum").unwrap();
    cell.must(operator(), Command::CreateCell { cell: id, policy: Policy::default() });
    cell
}

/// Tenants, clusters and offers.
fn build(cell: &mut Cell, instance: &Instance) {
    for number in 0..TENANTS {
        cell.must(operator(), Command::CreateTenant { tenant: tenant(number), parent: None });
        for pool in 0..instance.pools.len() {
            let (tenant, model) = (tenant(number), model(pool));
            let quota = Quota::of(GpuMilli::new(1_000_000));
            cell.must(operator(), Command::SetQuota { tenant, model, quota });
        }
    }
    let (owner, region) = (tenant(0), Region::new("eu").unwrap());
    for (pool, slices) in instance.pools.iter().enumerate() {
        for tier in [Tier::Reserved, Tier::Standard, Tier::Opportunistic] {
            let per_gpu_hour = MicroCredits::new(1_000_000);
            cell.must(
                operator(),
                Command::SetPrice { owner, model: model(pool), tier, per_gpu_hour },
            );
        }
        let create =
            Command::CreateCluster { cluster: cluster(pool), owner, region, devices_max: 64 };
        cell.must(operator(), create);
        for slice in 0..*slices {
            let node = NodeId::new(&format!("n-{}", slice / NODE_GPUS)).unwrap();
            let cluster = cluster(pool);
            let agent = Actor::Agent { cluster, node };
            if slice % NODE_GPUS == 0 {
                let (boot, host) = (Boot::new(1), HostHash([0; 16]));
                cell.must(agent.clone(), Command::RegisterNode { cluster, node, boot, host });
            }
            let device =
                DeviceId::new(u128::try_from(pool * 1_000).unwrap() + u128::from(slice) + 1);
            let slice = SliceId { cluster, node, device, part: Part::Whole };
            cell.must(agent, Command::OfferCapacity { offer: offer(slice, model(pool)) });
        }
    }
}

fn offer(slice: SliceId, model: GpuModel) -> OfferTerms {
    let hours = |hours: u64| Seconds::new(hours * 3_600);
    OfferTerms {
        slice,
        generation: 1,
        boot: Boot::new(1),
        capacity: Capacity {
            model,
            gpu: GpuMilli::DEVICE,
            memory: MiB::new(80_000),
            cpu: CpuMilli::ZERO,
            host_memory: MiB::ZERO,
            isolation: Isolation::Exclusive,
            island: 0,
            hardware: Hardware::UNKNOWN,
        },
        idle_for: IdleFor { p10: hours(4), p50: hours(8), p90: hours(16) },
        recall_notice: Seconds::new(120),
        ttl: Seconds::new(900),
        division: Division::NONE,
        host: HostRoom::Slice,
    }
}

/// The weight that the planner serves, by plans until nothing is granted any more.
pub(crate) fn served(instance: &Instance, submission: Submission) -> u32 {
    let mut cell = found();
    build(&mut cell, instance);
    run(&mut cell, instance, submission);
    assert_eq!(invariants::check(&cell.state), vec![]);
    let served = cell.state.leases().values().map(|lease| {
        let number = usize::try_from(lease.terms().request.get()).unwrap();
        instance.asks[number].weight()
    });
    served.sum()
}

/// Submits the requests and plans until nothing is granted any more.
fn run(cell: &mut Cell, instance: &Instance, submission: Submission) {
    for (number, ask) in instance.asks.iter().enumerate() {
        let taken = |pool: &usize| ask.pools & (1 << pool) != 0;
        let class = match ask.tier {
            Tier::Reserved => Class::Latency,
            Tier::Standard => Class::Batch,
            Tier::Opportunistic => Class::Experiment,
        };
        let spec = RequestSpec {
            project: Project::new("p").unwrap(),
            class,
            priority: 0,
            models: (0..instance.pools.len()).filter(taken).map(model).collect(),
            count: ask.count,
            gpu: GpuMilli::DEVICE,
            memory: MiB::new(1),
            cpu: CpuMilli::ZERO,
            host_memory: MiB::ZERO,
            placement: Placement::Cluster,
            duration: HOUR,
            max_price: None,
            regions: vec![],
            capability: Capability::default(),
            deferral: None,
            on_recall: OnRecall::Requeue,
            workload: None,
            prediction: None,
        };
        let (tenant, request) =
            (tenant(number % TENANTS), RequestId::new(u128::try_from(number).unwrap()));
        let (subject, key) = ("someone".parse().unwrap(), KeyId::new("k").unwrap());
        let user = Actor::Tenant { tenant, subject, key };
        if submission == Submission::InTurn {
            cell.now = cell.now.after(Seconds::new(1));
        }
        cell.must(user, Command::SubmitRequest { request, tenant, spec });
    }
    let mut leases = usize::MAX;
    while leases != cell.state.leases().len() {
        leases = cell.state.leases().len();
        let view = StateView { state: &cell.state, now: cell.now };
        let groups = matching::plan_with(&mut cell.index, view, &Limits::NONE);
        cell.must(Actor::Leader, Command::CommitPlan { groups });
    }
}
