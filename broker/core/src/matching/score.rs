//! How good a placement is: what it fragments, what it rests on, what it costs.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use sublet_protocol::capacity::{Capacity, Isolation, Part, SliceId};

use sublet_protocol::offers::HostRoom;
use sublet_protocol::requests::RequestSpec;
use sublet_protocol::units::{CpuMilli, GpuMilli, MiB, Millis};

use super::place::Seat;
use super::problem::{NodeSlots, Problem, Slot};
use crate::fit::{self, Candidate};
use crate::partition::{self, Free, NodeRoom, Typical};

/// Lower is better: what the class prefers, what is lost on the nodes ([`Typical::loss`]), how long the
/// promise lasts beyond the need, the cost, the first slice.
pub(super) type Rank = (u8, i128, Reverse<Millis>, i128, Option<SliceId>);

/// How long a slice is promised to stay idle from now: the median. None for what a victim frees.
pub(super) fn promise(problem: &Problem<'_>, candidate: &Candidate) -> Option<Millis> {
    let (idle, said_at) = candidate.idle?;
    Some(idle.p50.as_millis().saturating_sub(problem.view.now.since(said_at)))
}

/// Scores for one request: what is known of a node is reckoned once.
pub(super) struct Scores<'p, 'v> {
    problem: &'p Problem<'v>,
    spec: &'p RequestSpec,
    before: BTreeMap<usize, (NodeRoom, Vec<Option<usize>>, u128)>,
}

impl<'p, 'v> Scores<'p, 'v> {
    pub(super) fn new(problem: &'p Problem<'v>, spec: &'p RequestSpec) -> Scores<'p, 'v> {
        Scores { problem, spec, before: BTreeMap::new() }
    }

    /// The rank of serving the request with these seats.
    pub(super) fn rank(&mut self, preference: u8, seats: &[(usize, Seat)], cost: i128) -> Rank {
        let needed = fit::needed(self.spec);
        let left = seats.iter().map(|(_, seat)| {
            promise(self.problem, &seat.candidate)
                .map_or(Millis::ZERO, |p| p.saturating_sub(needed))
        });
        let idle = left.min().unwrap_or_default();
        let slice = seats.iter().map(|(_, seat)| seat.candidate.slice).min();
        (preference, self.loss(seats), Reverse(idle), cost, slice)
    }

    /// What the seats lose: what they hold beyond what was asked can be used by nobody.
    fn loss(&mut self, seats: &[(usize, Seat)]) -> i128 {
        let typical = self.problem.typical();
        let (mut gpu_left, mut cpu_left) = (GpuMilli::ZERO, CpuMilli::ZERO);
        let mut growth = 0_i128;
        let mut rest = seats;
        while let Some((node, _)) = rest.first() {
            let here = rest.iter().take_while(|(other, _)| other == node).count();
            let (grown, after) = self.growth_on(typical, *node, &rest[..here]);
            growth += grown;
            let gpu = after.free.iter().map(|free| free.gpu().get()).sum();
            gpu_left = gpu_left.saturating_add(GpuMilli::new(gpu));
            cpu_left = cpu_left.saturating_add(after.cpu);
            rest = &rest[here..];
        }
        // No node is the fuller for what is given beyond what was asked.
        let given = seats.iter().map(|(_, seat)| &seat.candidate.capacity);
        let mut wasted = GpuMilli::ZERO;
        for capacity in given {
            wasted = wasted.saturating_add(capacity.gpu.saturating_sub(self.spec.gpu));
            cpu_left = cpu_left.saturating_add(capacity.cpu.saturating_sub(self.spec.cpu));
        }
        gpu_left = gpu_left.saturating_add(wasted);
        growth += i128::from(wasted.get()) * signed(typical.weight());
        // Far less than a thousandth of a CPU is worth, and yet a part wins against the whole.
        typical.loss(growth, gpu_left, cpu_left).saturating_add(i128::from(wasted.get()))
    }

    /// By how much the seats of one node make the free GPU grow that a typical load could not use, and
    /// what is left of the node.
    fn growth_on(
        &mut self,
        typical: &Typical,
        node: usize,
        seats: &[(usize, Seat)],
    ) -> (i128, NodeRoom) {
        let slots = &self.problem.nodes[node];
        let (room, places, before) = self.before.entry(node).or_insert_with(|| {
            let (room, places) = room_of(self.problem, slots);
            let unusable = typical.unusable(&room);
            (room, places, unusable)
        });
        let mut after = room.clone();
        for (_, seat) in seats {
            let capacity = &seat.candidate.capacity;
            after.cpu = after.cpu.saturating_sub(capacity.cpu);
            after.host_memory = after.host_memory.saturating_sub(capacity.host_memory);
            if let Some(place) = places.get(seat.slot).copied().flatten() {
                let whole = &slots.slots[seat.slot].candidate.capacity;
                after.free[place] = without(after.free[place], whole, &seat.candidate);
            }
        }
        (signed(typical.unusable(&after)) - signed(*before), after)
    }
}

fn signed(amount: u128) -> i128 {
    i128::try_from(amount).unwrap_or(i128::MAX)
}

/// Nothing is left of it.
const NOTHING: Free = Free::Instance { gpu: GpuMilli::ZERO, memory: MiB::ZERO };

/// What is left of a GPU without what the candidate takes.
fn without(free: Free, whole: &Capacity, candidate: &Candidate) -> Free {
    let taken = &candidate.capacity;
    match (candidate.slice.part, free) {
        (Part::Mig { profile, start }, Free::Whole { .. } | Free::Partitioned { .. }) => {
            let layout = match free {
                Free::Partitioned { layout, .. } => layout,
                Free::Whole { .. } | Free::Shared { .. } | Free::Instance { .. } => {
                    partition::mig::Layout::default()
                }
            };
            let geometry = whole.hardware.pci.and_then(partition::mig::Geometry::of);
            geometry.map_or(NOTHING, |geometry| Free::Partitioned {
                layout: layout.with(profile, start),
                geometry,
            })
        }
        (Part::Share { .. }, Free::Whole { .. }) => Free::Shared {
            gpu: GpuMilli::DEVICE.saturating_sub(taken.gpu),
            memory: partition::room_for_shares(whole).saturating_sub(taken.memory),
        },
        (Part::Share { .. }, Free::Shared { gpu, memory }) => Free::Shared {
            gpu: gpu.saturating_sub(taken.gpu),
            memory: memory.saturating_sub(taken.memory),
        },
        (Part::Whole | Part::Mig { .. } | Part::Share { .. }, _) => NOTHING,
    }
}

/// What is free of a node, and the place of each slot in it.
fn room_of(problem: &Problem<'_>, node: &NodeSlots) -> (NodeRoom, Vec<Option<usize>>) {
    let mut free = Vec::new();
    let mut places = Vec::with_capacity(node.slots.len());
    let (mut cpu, mut host_memory) = (CpuMilli::ZERO, MiB::ZERO);
    let mut pool: Option<(CpuMilli, MiB)> = None;
    for slot in &node.slots {
        let capacity = &slot.candidate.capacity;
        if slot.host == HostRoom::Node {
            let left = (
                capacity.cpu.saturating_sub(node.host.cpu),
                capacity.host_memory.saturating_sub(node.host.memory),
            );
            pool = Some(pool.map_or(left, |known| known.min(left)));
        }
        let piece = if slot.is_taken { None } else { Some(free_of(problem, slot)) };
        if piece.is_some() && slot.host == HostRoom::Slice {
            cpu = cpu.saturating_add(capacity.cpu);
            host_memory = host_memory.saturating_add(capacity.host_memory);
        }
        places.push(piece.is_some().then_some(free.len()));
        free.extend(piece);
    }
    if let Some((pooled_cpu, pooled_memory)) = pool {
        cpu = cpu.saturating_add(pooled_cpu);
        host_memory = host_memory.saturating_add(pooled_memory);
    }
    let model = node.slots.first().map(|slot| slot.candidate.capacity.model);
    (NodeRoom { model, free, cpu, host_memory }, places)
}

fn free_of(problem: &Problem<'_>, slot: &Slot) -> Free {
    let Capacity { gpu, memory, isolation, .. } = slot.candidate.capacity;
    let undivided = || match isolation {
        Isolation::Exclusive => Free::Whole { memory },
        Isolation::Mig => Free::Instance { gpu, memory },
        Isolation::Mps | Isolation::TimeSlice => Free::Shared { gpu, memory },
    };
    let offer = problem.view.state.offers.get(&slot.candidate.slice);
    let Some((divided, offer)) = slot.divided.as_ref().zip(offer) else { return undivided() };
    divided.room.free(offer.terms()).unwrap_or_else(undivided)
}
