//! The arrivals through the real rules: each is submitted, planned for by the real planner and granted
//! by the real judge. Work without a GPU is the owner's own: its node's offers name less CPU from then
//! on.
//!
//! The planner is shown no node that could not hold the pod, and of nodes that are alike in everything
//! that it looks at only the first, which it would take. Its choice is the same as among all nodes
//! (a test compares them), at a tenth of the time.

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
use super::rooms::Rooms;

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
    rooms: Rooms,
}

/// Fills the fleet through the real rules; the thousandths of GPU that were allocated, and how many
/// commands that took. `shows_all` nodes to the planner, or those that the module says.
pub(super) fn place_all(
    workload: &Workload,
    arrivals: &Arrivals,
    shows_all: bool,
) -> Result<(GpuMilli, u128), Error> {
    let mut cell = Cell::found(workload)?;
    let mut allocated = GpuMilli::ZERO;
    for (place, number) in arrivals.order.iter().enumerate() {
        let pod = &workload.pods[*number];
        match pod.gpus {
            0 => cell.owner_takes(pod)?,
            _some if cell.request(place, pod, shows_all)? => {
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
            rooms: Rooms::of(workload),
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
    fn request(&mut self, place: usize, pod: &Pod, shows_all: bool) -> Result<bool, Error> {
        let nodes = self.rooms.worth_a_look(pod);
        if nodes.is_empty() && !shows_all {
            return Ok(false);
        }
        let number = u128::try_from(place).map_err(|_| Error::TooLarge)? + 1;
        let request = RequestId::new(number);
        let (tenant, spec) = (owner(), spec(pod));
        self.done(operator(), Command::SubmitRequest { request, tenant, spec })?;
        let view = StateView { state: &self.state, now: NOW };
        // A promise of a later start is not waited for: nothing ever departs.
        let is_grant = |group: &PlanGroup| matches!(group, PlanGroup::Grant { .. });
        let mut groups = match shows_all {
            true => matching::plan_within(view, &self.limits),
            false => {
                let names = nodes.into_iter().map(|n| Ok((cluster(), node_name(n)?)));
                let names: Vec<(ClusterId, NodeId)> = names.collect::<Result<_, Error>>()?;
                matching::plan_on(view, &self.limits, names)
            }
        };
        groups.retain(is_grant);
        let Some(PlanGroup::Grant { members, .. }) = groups.first() else {
            self.done(operator(), Command::CancelRequest { request })?;
            return Ok(false);
        };
        let slices: Vec<SliceId> = members.iter().map(|member| member.slice).collect();
        let applied = self.done(Actor::Leader, Command::CommitPlan { groups })?;
        let Outcome::Done { groups, .. } = applied.outcome else { return Ok(false) };
        match groups.first() {
            Some(
                GroupOutcome::Refused { rejection } | GroupOutcome::Overtaken { rejection, .. },
            ) => Err(Error::Grant(*rejection)),
            Some(GroupOutcome::Granted { .. }) => {
                self.rooms.take(pod, &slices)?;
                Ok(true)
            }
            Some(GroupOutcome::Pledged | GroupOutcome::Promised) | None => Ok(false),
        }
    }

    /// Work without a GPU goes where it makes the least GPU unusable. What finds no room is dropped.
    fn owner_takes(&mut self, pod: &Pod) -> Result<(), Error> {
        let Some(number) = self.rooms.for_owner(pod, &self.typical) else { return Ok(()) };
        self.rooms.take_host(number, pod);
        let (cpu, memory) = &mut self.owned[number];
        *cpu += pod.cpu.get();
        *memory += pod.memory.get();
        self.offer(number)
    }
}

pub(super) fn node_name(number: usize) -> Result<NodeId, Error> {
    NodeId::new(&format!("n-{number:06}")).map_err(|_| Error::TooLarge)
}

pub(super) fn slice(number: usize, gpu: u32) -> Result<SliceId, Error> {
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
        deferral: None,
    }
}
