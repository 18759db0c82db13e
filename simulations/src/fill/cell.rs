//! The arrivals through the real rules: each is submitted, planned for by the real planner and granted
//! by the real judge. Work without a GPU is the owner's own: its node's offers name less CPU from then
//! on.

use sublet_core::invariants;
use sublet_core::matching::{self, Limits, Preemption};
use sublet_core::partition::Typical;
use sublet_core::{Applied, State, StateView, apply};
use sublet_protocol::capacity::{Capacity, Hardware, Isolation, Part, SliceId};
use sublet_protocol::commands::{Actor, Command, GroupOutcome, Outcome, PlanGroup, Stamped};
use sublet_protocol::ids::{
    Boot, CellId, ClusterId, CommandId, DeviceId, GpuModel, HostHash, KeyId, NodeId, Project,
    Region, RequestId, Subject, TenantId,
};
use sublet_protocol::money::MicroCredits;
use sublet_protocol::offers::{Division, HostRoom, IdleFor, MigMode, OfferTerms, SharedBy};
use sublet_protocol::policy::Policy;
use sublet_protocol::quotas::Quota;
use sublet_protocol::refusals::Rejection;
use sublet_protocol::requests::{Capability, Class, OnRecall, Placement, RequestSpec, Tier};
use sublet_protocol::units::{GpuMilli, MiB, Seconds, Timestamp};

use super::load::{Arrivals, Pod, Workload};

const TERM: u64 = 1;
const NOW: Timestamp = Timestamp::new(1_700_000_000_000);
const BOOT: Boot = Boot::new(1);
/// Longer than a run: nothing expires.
const FOR_EVER: Seconds = Seconds::new(10 * 365 * 86_400);
/// Of each GPU. The lists say nothing of device memory; shares get their part of it.
const GPU_MEMORY: MiB = MiB::new(16 * 1_024);
/// Each pod runs for this long, which is of no consequence.
const DURATION: Seconds = Seconds::new(3_600);

/// Why a fill stopped: a bug here or in the rules.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The rules refused something that must be allowed.
    #[error("the rules refused {command}: {rejection}")]
    Refused {
        /// The command's name.
        command: &'static str,
        /// What the rules said.
        rejection: Rejection,
    },
    /// The planner proposed what the rules refuse.
    #[error("the rules refused a grant that the planner proposed: {0}")]
    Grant(Rejection),
    /// An invariant does not hold.
    #[error("INV-{}: {}", .0.invariant, .0.what)]
    Invariant(invariants::Violation),
    /// A name or number of the load cannot be written.
    #[error("the load has too many nodes or pods")]
    TooLarge,
}

/// A cell that is filled.
struct Cell<'w> {
    workload: &'w Workload,
    state: State,
    commands: u128,
    limits: Limits,
    typical: Typical,
    /// By node: CPU and memory of the owner's own work.
    owned: Vec<(u64, u64)>,
    /// By node: the generation of its offers.
    generations: Vec<u64>,
}

/// Fills the fleet through the real rules; the thousandths of GPU that were allocated, and how many
/// commands that took.
pub(super) fn place_all(
    workload: &Workload,
    arrivals: &Arrivals,
) -> Result<(GpuMilli, u128), Error> {
    let mut cell = Cell::found(workload)?;
    let mut allocated = GpuMilli::ZERO;
    for (place, number) in arrivals.order.iter().enumerate() {
        let pod = &workload.pods[*number];
        match pod.gpus {
            0 => cell.owner_takes(pod)?,
            _some if cell.request(place, pod)? => {
                allocated = allocated.saturating_add(pod.gpu_total());
            }
            _some => {}
        }
    }
    match invariants::check(&cell.state).into_iter().next() {
        Some(violation) => Err(Error::Invariant(violation)),
        None => Ok((allocated, cell.commands)),
    }
}

fn owner() -> TenantId {
    TenantId::new("fleet").expect("a literal id")
}

fn cluster() -> ClusterId {
    ClusterId::new("openb").expect("a literal id")
}

fn operator() -> Actor {
    let subject: Subject = "fill".parse().expect("a literal subject");
    Actor::Operator { subject, key: KeyId::new("fill").expect("a literal id") }
}

impl<'w> Cell<'w> {
    fn found(workload: &'w Workload) -> Result<Cell<'w>, Error> {
        let typical = workload.typical();
        let count = workload.fleet.nodes.len();
        let mut cell = Cell {
            workload,
            state: State::default(),
            commands: 0,
            limits: Limits {
                preemption: Preemption::Suspended,
                typical: Some(typical.clone()),
                ..Limits::NONE
            },
            typical,
            owned: vec![(0, 0); count],
            generations: vec![0; count],
        };
        let policy = Policy {
            offer_ttl: FOR_EVER,
            requests_per_tenant: u32::MAX,
            offers_per_cluster: u32::MAX,
            ..Policy::default()
        };
        let id = CellId::new("fill").expect("a literal id");
        cell.done(operator(), Command::CreateCell { cell: id, policy })?;
        cell.done(operator(), Command::CreateTenant { tenant: owner(), parent: None })?;
        let mut models: Vec<GpuModel> = workload.fleet.nodes.iter().map(|n| n.model).collect();
        models.sort_unstable();
        models.dedup();
        for model in models {
            let quota = Quota::of(workload.fleet.gpu());
            cell.done(operator(), Command::SetQuota { tenant: owner(), model, quota })?;
            let (tier, per_gpu_hour) = (Tier::Standard, MicroCredits::new(1));
            let price = Command::SetPrice { owner: owner(), model, tier, per_gpu_hour };
            cell.done(operator(), price)?;
        }
        let region = Region::new("openb").expect("a literal id");
        let devices_max = u32::MAX;
        let create =
            Command::CreateCluster { cluster: cluster(), owner: owner(), region, devices_max };
        cell.done(operator(), create)?;
        for number in 0..count {
            let (cluster, node) = (cluster(), node_name(number)?);
            let (boot, host) = (BOOT, HostHash([0; 16]));
            let hello = Command::RegisterNode { cluster, node, boot, host };
            cell.done(Actor::Agent { cluster, node }, hello)?;
            cell.offer(number)?;
        }
        Ok(cell)
    }

    fn apply(&mut self, actor: Actor, command: Command) -> Applied {
        self.commands += 1;
        let id = CommandId::new(self.commands);
        let stamped = Stamped { id, actor, now: NOW, term: TERM, key: None, command };
        apply(&mut self.state, &stamped, TERM)
    }

    fn done(&mut self, actor: Actor, command: Command) -> Result<Applied, Error> {
        let name = command.name();
        let applied = self.apply(actor, command);
        match applied.outcome {
            Outcome::Refused { rejection } => Err(Error::Refused { command: name, rejection }),
            Outcome::Done { .. } | Outcome::Repeated { .. } => Ok(applied),
        }
    }

    /// Offers the node's GPUs that nobody leases as a whole, with what its owner leaves of the host.
    fn offer(&mut self, number: usize) -> Result<(), Error> {
        let node = &self.workload.fleet.nodes[number];
        let (cpu, memory) = self.owned[number];
        self.generations[number] += 1;
        let capacity = Capacity {
            model: node.model,
            gpu: GpuMilli::DEVICE,
            memory: GPU_MEMORY,
            cpu: sublet_protocol::units::CpuMilli::new(node.cpu.get() - cpu),
            host_memory: MiB::new(node.memory.get() - memory),
            isolation: Isolation::Exclusive,
            island: 0,
            hardware: Hardware::UNKNOWN,
        };
        for gpu in 0..node.gpus {
            let slice = slice(number, gpu)?;
            if self.state.leased().contains_key(&slice) {
                continue;
            }
            let offer = OfferTerms {
                slice,
                generation: self.generations[number],
                boot: BOOT,
                capacity,
                idle_for: IdleFor { p10: FOR_EVER, p50: FOR_EVER, p90: FOR_EVER },
                recall_notice: Seconds::ZERO,
                ttl: FOR_EVER,
                division: Division { mig: MigMode::Off, shared: Some(SharedBy::TimeSlice) },
                host: HostRoom::Node,
            };
            let actor = Actor::Agent { cluster: slice.cluster, node: slice.node };
            self.done(actor, Command::OfferCapacity { offer })?;
        }
        Ok(())
    }

    /// Submits the pod, lets the planner look for room and commits what it proposes; whether it was
    /// granted. What finds no room is withdrawn.
    fn request(&mut self, place: usize, pod: &Pod) -> Result<bool, Error> {
        let number = u128::try_from(place).map_err(|_| Error::TooLarge)? + 1;
        let request = RequestId::new(number);
        let (tenant, spec) = (owner(), spec(pod));
        self.done(operator(), Command::SubmitRequest { request, tenant, spec })?;
        let view = StateView { state: &self.state, now: NOW };
        // A promise of a later start is not waited for: nothing ever departs.
        let is_grant = |group: &PlanGroup| matches!(group, PlanGroup::Grant { .. });
        let mut groups = matching::plan_within(view, &self.limits);
        groups.retain(is_grant);
        if groups.is_empty() {
            self.done(operator(), Command::CancelRequest { request })?;
            return Ok(false);
        }
        let applied = self.done(Actor::Leader, Command::CommitPlan { groups })?;
        match applied.outcome {
            Outcome::Done { groups, .. } => match groups.first() {
                Some(GroupOutcome::Refused { rejection }) => Err(Error::Grant(*rejection)),
                Some(GroupOutcome::Granted { .. }) => Ok(true),
                Some(GroupOutcome::Pledged | GroupOutcome::Promised) | None => Ok(false),
            },
            Outcome::Repeated { .. } | Outcome::Refused { .. } => Ok(false),
        }
    }

    /// Work without a GPU goes where it makes the least GPU unusable, then where it leaves the least
    /// CPU. What finds no room is dropped.
    fn owner_takes(&mut self, pod: &Pod) -> Result<(), Error> {
        let view = StateView { state: &self.state, now: NOW };
        let rooms = matching::rooms(view);
        let signed = |amount: u128| i128::try_from(amount).unwrap_or(i128::MAX);
        let mut best: Option<((i128, u64), usize)> = None;
        for (number, node) in self.workload.fleet.nodes.iter().enumerate() {
            let name = node_name(number)?;
            let (used_cpu, used_memory) = matching::host_use(view, cluster(), name);
            let (cpu, memory) = self.owned[number];
            let cpu = node.cpu.get() - cpu - used_cpu.get();
            let memory = node.memory.get() - memory - used_memory.get();
            if cpu < pod.cpu.get() || memory < pod.memory.get() {
                continue;
            }
            // A node with nothing on offer has nothing to lose.
            let growth = rooms.get(&(cluster(), name)).map_or(0, |room| {
                let mut after = room.clone();
                after.cpu = after.cpu.saturating_sub(pod.cpu);
                after.host_memory = after.host_memory.saturating_sub(pod.memory);
                signed(self.typical.unusable(&after)) - signed(self.typical.unusable(room))
            });
            let rank = (growth, cpu);
            if best.is_none_or(|(known, _)| rank < known) {
                best = Some((rank, number));
            }
        }
        let Some((_, number)) = best else { return Ok(()) };
        let (cpu, memory) = &mut self.owned[number];
        *cpu += pod.cpu.get();
        *memory += pod.memory.get();
        self.offer(number)
    }
}

fn node_name(number: usize) -> Result<NodeId, Error> {
    NodeId::new(&format!("n-{number:06}")).map_err(|_| Error::TooLarge)
}

fn slice(number: usize, gpu: u32) -> Result<SliceId, Error> {
    let node = u128::try_from(number).map_err(|_| Error::TooLarge)?;
    let device = DeviceId::new(node * 1_000 + u128::from(gpu) + 1);
    Ok(SliceId { cluster: cluster(), node: node_name(number)?, device, part: Part::Whole })
}

/// The pod as a request: soft sharing is allowed, and all its GPUs stand on one node.
fn spec(pod: &Pod) -> RequestSpec {
    let (cpu, host_memory) = pod.host_each();
    RequestSpec {
        project: Project::new("fill").expect("a literal id"),
        class: Class::Batch,
        priority: 0,
        models: pod.models.clone(),
        count: pod.gpus,
        gpu: pod.gpu,
        memory: MiB::ZERO,
        cpu,
        host_memory,
        placement: Placement::Node,
        duration: DURATION,
        max_price: None,
        regions: Vec::new(),
        on_recall: OnRecall::Close,
        workload: None,
        prediction: None,
        capability: Capability::ANY,
    }
}
