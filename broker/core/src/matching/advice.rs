//! What would help a request that waits: the smallest single change with which it would start now,
//! tried out on the same view before it is said; and what of it nothing that is known could meet.

use std::collections::{BTreeMap, BTreeSet};

use sublet_protocol::capacity::Capacity;
use sublet_protocol::ids::{ClusterId, GpuModel, NodeId, Region, RequestId, TenantId};
use sublet_protocol::money::MicroCredits;
use sublet_protocol::requests::{Capability, Placement, RequestSpec, WaitReason};
use sublet_protocol::units::{CpuMilli, GpuMilli, MiB, Seconds};

use super::place;
use super::problem::Problem;
use super::solve::Spent;
use crate::fit::{self, Candidate};
use crate::state::{Cluster, Request, RequestStage, State};

/// Most slices looked at while changes are tried out: a plan is not kept waiting by a question.
const STEPS_MAX: usize = 500_000;

/// One change of a request, with which it would start now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Ask for this share of a GPU.
    Gpu(GpuMilli),
    /// Ask for this much device memory.
    Memory(MiB),
    /// Ask for this much CPU.
    Cpu(CpuMilli),
    /// Ask for this much host memory.
    HostMemory(MiB),
    /// Ask for no more than this of driver and code.
    Capability(Capability),
    /// Allow this price per GPU-hour.
    MaxPrice(MicroCredits),
    /// Allow this model, too.
    Model(GpuModel),
    /// Allow this region, too.
    Region(Region),
    /// Let the slices stand farther apart.
    Placement(Placement),
    /// Ask for this long.
    Duration(Seconds),
    /// Ask for this many slices.
    Count(u32),
    /// Do not wait for better hours.
    AtAnyTime,
}

/// What an offer lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shortfall {
    /// Share of a GPU.
    Gpu(GpuMilli),
    /// Device memory.
    Memory(MiB),
    /// CPU.
    Cpu(CpuMilli),
    /// Host memory.
    HostMemory(MiB),
    /// Time for which it will stay idle.
    Time(Seconds),
}

/// What nothing that is known could meet, so that the request cannot start before the cell grows or
/// its terms change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmet {
    /// No node has ever offered that many GPUs; the most that one has.
    NodeTooSmall(u32),
    /// No cluster may offer that many GPUs; the most that one may.
    ClusterTooSmall(u32),
    /// No GPU on offer or on lease has that much memory; the most that one has.
    MemoryTooSmall(MiB),
    /// No GPU on offer or on lease comes with that much CPU; the most that one does.
    CpuTooSmall(CpuMilli),
    /// No GPU on offer or on lease comes with that much host memory; the most that one does.
    HostMemoryTooSmall(MiB),
    /// No cluster in an allowed region has a price posted for an allowed model and this tier.
    Unpriced,
    /// There are clusters, but none in an allowed region.
    NoRegion,
    /// Every price posted for an allowed model and this tier is above the cap; the lowest.
    PricesAbove(MicroCredits),
}

/// How much the candidate lacks of what the reason names.
pub(super) fn shortfall(
    problem: &Problem<'_>,
    spec: &RequestSpec,
    candidate: &Candidate,
    reason: WaitReason,
) -> Option<Shortfall> {
    let capacity = &candidate.capacity;
    match reason {
        WaitReason::Memory if capacity.gpu < spec.gpu => {
            Some(Shortfall::Gpu(spec.gpu.saturating_sub(capacity.gpu)))
        }
        WaitReason::Memory => Some(Shortfall::Memory(spec.memory.checked_sub(capacity.memory)?)),
        WaitReason::Host if capacity.cpu < spec.cpu => {
            Some(Shortfall::Cpu(spec.cpu.saturating_sub(capacity.cpu)))
        }
        WaitReason::Host => {
            Some(Shortfall::HostMemory(spec.host_memory.checked_sub(capacity.host_memory)?))
        }
        WaitReason::Duration => {
            let (idle, said_at) = candidate.idle?;
            let whole = fit::promised(idle, spec.class.tier())?.as_millis();
            let left = whole.saturating_sub(problem.view.now.since(said_at));
            let short = fit::needed(spec).saturating_sub(left).get().div_ceil(1_000);
            Some(Shortfall::Time(Seconds::new(short)))
        }
        _other => None,
    }
}

/// What of the request nothing that is known could meet; nothing if all could be met, or if too little
/// is known.
///
/// It looks at every device that was ever offered if more GPUs are asked for on one node than
/// [`NODE_USUAL`], and at all that is on offer or on lease.
#[must_use]
pub fn unmet(state: &State, spec: &RequestSpec) -> Option<Unmet> {
    let memory = || {
        let offered = state.offers.values().map(|offer| offer.terms.capacity.memory);
        let members = state.leases.values().flat_map(|lease| &lease.terms.members);
        let most = offered.chain(members.map(|member| member.capacity.memory)).max()?;
        (spec.memory > most).then_some(Unmet::MemoryTooSmall(most))
    };
    unmet_at_sight(state, spec).or_else(memory).or_else(|| unhosted(state, spec))
}

/// Whether nothing on offer or on lease comes with that much of a host.
///
/// A lease on a node whose GPUs share the host tells what was asked for, not what there is: beside one
/// that looks like it too little is known.
fn unhosted(state: &State, spec: &RequestSpec) -> Option<Unmet> {
    let (mut cpu, mut memory) = (None, None);
    let mut see = |capacity: &Capacity| {
        cpu = cpu.max(Some(capacity.cpu));
        memory = memory.max(Some(capacity.host_memory));
    };
    state.offers.values().for_each(|offer| see(&offer.terms.capacity));
    for lease in state.leases.values() {
        let asked = &state.requests.get(&lease.terms.request)?.spec;
        for member in &lease.terms.members {
            let Capacity { cpu, host_memory, .. } = member.capacity;
            if cpu == asked.cpu || host_memory == asked.host_memory {
                return None;
            }
            see(&member.capacity);
        }
    }
    let (cpu, memory) = (cpu?, memory?);
    match spec.cpu > cpu {
        true => Some(Unmet::CpuTooSmall(cpu)),
        false => (spec.host_memory > memory).then_some(Unmet::HostMemoryTooSmall(memory)),
    }
}

/// This many GPUs on one node are nothing unusual: that they could ever be had is not checked when a
/// request is submitted.
pub const NODE_USUAL: u32 = 8;
/// This much CPU and host memory for a GPU is nothing unusual, likewise: 64 cores and 512 GiB, the
/// eighth of the largest machines with eight GPUs, times two to four.
pub const HOST_USUAL: (CpuMilli, MiB) = (CpuMilli::new(64_000), MiB::new(524_288));

/// As [`unmet`], as far as it costs no look at what is on offer and on lease, which only what is unusual
/// ([`NODE_USUAL`], [`HOST_USUAL`]) is worth: cheap enough to be told with each submission.
#[must_use]
pub fn unmet_at_sight(state: &State, spec: &RequestSpec) -> Option<Unmet> {
    if let Some(unmet) = unpriced(state, spec) {
        return Some(unmet);
    }
    let each = u32::try_from(spec.gpu.get()).ok().filter(|gpu| *gpu > 0)?;
    let per_device = (1_000 / each).max(1);
    let devices = spec.count.div_ceil(per_device);
    let most = clusters(state, spec).map(|(_, cluster)| cluster.devices_max).max()?;
    if devices > most {
        return Some(Unmet::ClusterTooSmall(most));
    }
    let is_usual = spec.cpu <= HOST_USUAL.0 && spec.host_memory <= HOST_USUAL.1;
    if let Some(unmet) = (!is_usual).then(|| unhosted(state, spec)).flatten() {
        return Some(unmet);
    }
    if spec.placement == Placement::Cluster || devices <= NODE_USUAL {
        return None;
    }
    let mut nodes: BTreeMap<(ClusterId, NodeId), u32> = BTreeMap::new();
    for (id, cluster) in clusters(state, spec) {
        for node in cluster.devices.values() {
            *nodes.entry((id, *node)).or_default() += 1;
        }
    }
    let most = nodes.into_values().max()?;
    (devices > most).then_some(Unmet::NodeTooSmall(most))
}

/// The clusters in allowed regions.
fn clusters<'a>(
    state: &'a State,
    spec: &'a RequestSpec,
) -> impl Iterator<Item = (ClusterId, &'a Cluster)> {
    let all = state.clusters.iter().map(|(id, cluster)| (*id, cluster));
    all.filter(|(_, cluster)| spec.regions.is_empty() || spec.regions.contains(&cluster.region))
}

/// Whether there is no cluster where it may run, or no posted price that could serve the request, in a
/// cell that has clusters.
fn unpriced(state: &State, spec: &RequestSpec) -> Option<Unmet> {
    let owners: BTreeSet<TenantId> =
        clusters(state, spec).map(|(_, cluster)| cluster.owner).collect();
    if owners.is_empty() {
        return (!state.clusters.is_empty()).then_some(Unmet::NoRegion);
    }
    let is_allowed = |model: &GpuModel| spec.models.is_empty() || spec.models.contains(model);
    let tier = spec.class.tier();
    let posted = state.prices.iter().filter(|((owner, model, of), _)| {
        *of == tier && owners.contains(owner) && is_allowed(model)
    });
    let lowest = posted.map(|(_, price)| price.per_gpu_hour).min();
    let Some(lowest) = lowest else { return Some(Unmet::Unpriced) };
    spec.max_price.is_some_and(|cap| cap < lowest).then_some(Unmet::PricesAbove(lowest))
}

/// The change that helps, if one alone does: what is asked of the hardware first, then what it may
/// cost and where it may stand, last how long and how many. Nothing helps at once who pauses, and who
/// has slices freed for it needs no help.
pub(super) fn change(problem: &Problem<'_>, id: RequestId, request: &Request) -> Option<Change> {
    let now = problem.view.now;
    let is_spared = request.paused_until.is_some_and(|until| now < until);
    if is_spared || request.stage != RequestStage::Waiting {
        return None;
    }
    let slots = problem.nodes.iter().map(|node| node.slots.len()).sum::<usize>();
    let mut trial = Trial { problem, id, request, left: STEPS_MAX / slots.max(1) };
    let is_paused = problem.view.state.is_paused(id, request, now);
    if is_paused || problem.reservations.would_rest(id, request).is_some() {
        return trial.first(std::iter::once(Change::AtAnyTime));
    }
    let capacities = || {
        let slots = problem.nodes.iter().flat_map(|node| &node.slots);
        slots.map(|slot| slot.candidate.capacity)
    };
    let spec = &request.spec;
    let gpu = below(capacities().map(|capacity| capacity.gpu), spec.gpu);
    let memory = below(capacities().map(|capacity| capacity.memory), spec.memory);
    let cpu = below(capacities().map(|capacity| capacity.cpu), spec.cpu);
    let host = below(capacities().map(|capacity| capacity.host_memory), spec.host_memory);
    let models: BTreeSet<GpuModel> = capacities().map(|capacity| capacity.model).collect();
    let regions: BTreeSet<Region> =
        problem.view.state.clusters.values().map(|cluster| cluster.region).collect();
    let wider = [Placement::Node, Placement::Cluster].into_iter();
    let wider = wider.filter(|wider| is_wider(*wider, spec.placement));
    trial
        .first(gpu.into_iter().map(Change::Gpu))
        .or_else(|| trial.first(memory.into_iter().map(Change::Memory)))
        .or_else(|| trial.first(cpu.into_iter().map(Change::Cpu)))
        .or_else(|| trial.first(host.into_iter().map(Change::HostMemory)))
        .or_else(|| {
            trial.first(lesser(problem, spec.capability).into_iter().map(Change::Capability))
        })
        .or_else(|| trial.price())
        .or_else(|| trial.first(wider.map(Change::Placement)))
        .or_else(|| {
            let others = models.into_iter().filter(|model| !spec.models.contains(model));
            let others = others.filter(|_| !spec.models.is_empty());
            trial.first(others.map(Change::Model))
        })
        .or_else(|| {
            let others = regions.into_iter().filter(|region| !spec.regions.contains(region));
            let others = others.filter(|_| !spec.regions.is_empty());
            trial.first(others.map(Change::Region))
        })
        .or_else(|| {
            trial.most(spec.duration.get() / 60, |m| Change::Duration(Seconds::new(m * 60)))
        })
        .or_else(|| {
            let count = |count| Change::Count(u32::try_from(count).unwrap_or(u32::MAX));
            trial.most(u64::from(spec.count).saturating_sub(1), count)
        })
}

/// What there is on offer of driver and compute capability where less than that is asked for: the
/// nearest first.
fn lesser(problem: &Problem<'_>, asked: Capability) -> Vec<Capability> {
    let slots = problem.nodes.iter().flat_map(|node| &node.slots);
    let hardware = slots.map(|slot| slot.candidate.capacity.hardware);
    let lesser: BTreeSet<Capability> = hardware
        .map(|has| Capability {
            driver: asked.driver.and_then(|least| has.driver.map(|driver| driver.min(least))),
            compute: asked.compute.and_then(|least| has.compute.map(|has| has.min(least))),
        })
        .collect();
    lesser.into_iter().rev().filter(|lesser| *lesser != asked).collect()
}

const fn is_wider(wider: Placement, asked: Placement) -> bool {
    match (asked, wider) {
        (Placement::Island, Placement::Node | Placement::Cluster)
        | (Placement::Node, Placement::Cluster) => true,
        (Placement::Island, Placement::Island)
        | (Placement::Node, Placement::Node | Placement::Island)
        | (Placement::Cluster, Placement::Cluster | Placement::Node | Placement::Island) => false,
    }
}

/// What is on offer below what is asked, the nearest first.
fn below<T: Ord + Copy>(offered: impl Iterator<Item = T>, asked: T) -> Vec<T> {
    let distinct: BTreeSet<T> = offered.filter(|one| *one < asked).collect();
    distinct.into_iter().rev().collect()
}

/// Changes that are tried out.
struct Trial<'a> {
    problem: &'a Problem<'a>,
    id: RequestId,
    request: &'a Request,
    /// How many more may be tried.
    left: usize,
}

impl Trial<'_> {
    /// Whether the request would start now with the change.
    fn starts(&mut self, change: Change) -> bool {
        let Some(left) = self.left.checked_sub(1) else { return false };
        self.left = left;
        let mut changed = self.request.clone();
        apply(change, &mut changed.spec);
        changed.spec.validate().is_ok()
            && place::pick(self.problem, &Spent::default(), self.id, &changed).is_some()
    }

    fn first(&mut self, mut changes: impl Iterator<Item = Change>) -> Option<Change> {
        changes.find(|change| self.starts(*change))
    }

    /// The lowest posted price at which it would start: with a higher cap it may do all that it may
    /// with a lower one. What it would be granted without a cap says less, as price is what places are
    /// compared by last.
    fn price(&mut self) -> Option<Change> {
        let cap = self.request.spec.max_price?;
        let tier = self.request.spec.class.tier();
        let prices = self.problem.view.state.prices.iter();
        let posted =
            prices.filter(|((_, _, of), _)| *of == tier).map(|(_, price)| price.per_gpu_hour);
        let above: BTreeSet<MicroCredits> = posted.filter(|price| *price > cap).collect();
        let above: Vec<MicroCredits> = above.into_iter().collect();
        let lowest = above.partition_point(|price| !self.starts(Change::MaxPrice(*price)));
        let change = above.get(lowest).copied().map(Change::MaxPrice)?;
        self.starts(change).then_some(change)
    }

    /// The largest number up to `most` with which it would start: less always fits where more does.
    fn most(&mut self, most: u64, change: impl Fn(u64) -> Change) -> Option<Change> {
        let (mut low, mut high) = (0, most);
        while low < high {
            let middle = high - (high - low) / 2;
            match self.starts(change(middle)) {
                true => low = middle,
                false => high = middle - 1,
            }
        }
        (low > 0).then(|| change(low)).filter(|found| self.starts(*found))
    }
}

/// The request with the change.
fn apply(change: Change, spec: &mut RequestSpec) {
    match change {
        Change::Gpu(gpu) => spec.gpu = gpu,
        Change::Memory(memory) => spec.memory = memory,
        Change::Capability(capability) => spec.capability = capability,
        Change::Cpu(cpu) => spec.cpu = cpu,
        Change::HostMemory(memory) => spec.host_memory = memory,
        Change::MaxPrice(price) => spec.max_price = Some(price),
        Change::Model(model) => spec.models.push(model),
        Change::Region(region) => spec.regions.push(region),
        Change::Placement(placement) => spec.placement = placement,
        Change::Duration(duration) => spec.duration = duration,
        Change::Count(count) => spec.count = count,
        Change::AtAnyTime => spec.deferral = None,
    }
}
