//! The policies that Sublet is compared with, on a plain model of the fleet.

use std::collections::BTreeMap;

use sublet_core::partition::{Free, NodeRoom, Typical};
use sublet_protocol::units::{CpuMilli, GpuMilli, MiB};

use super::load::{Arrivals, Pod, Workload};
use crate::generator::Random;

/// How a pod's node and GPUs are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Baseline {
    /// Any node that has room, any GPU that has room.
    Random,
    /// The node with the least CPU and GPU left, relative to the largest node; the fullest GPU.
    BestFit,
    /// The placement that fragments least (Weng et al.), the paper's rule by itself.
    Fgd,
}

/// A node as it fills.
#[derive(Debug, Clone)]
pub(super) struct Room {
    pub(super) model: sublet_protocol::ids::GpuModel,
    /// Free, thousandths of a core.
    pub(super) cpu: u64,
    /// Free, MiB.
    pub(super) memory: u64,
    /// What is free of each GPU, thousandths.
    pub(super) gpus: Vec<u64>,
}

/// Which GPUs of which node.
struct Place {
    node: usize,
    gpus: Vec<usize>,
}

impl Room {
    pub(super) fn holds(&self, pod: &Pod) -> bool {
        let gpus = self.gpus.iter().filter(|free| **free >= pod.gpu.get()).count();
        self.cpu >= pod.cpu.get()
            && self.memory >= pod.memory.get()
            && (pod.gpus == 0 || u32::try_from(gpus).is_ok_and(|count| count >= pod.gpus))
            && (pod.models.is_empty() || pod.models.contains(&self.model))
    }

    /// The GPUs that a pod of whole or no GPUs takes: the first that are free.
    fn whole(&self, pod: &Pod) -> Vec<usize> {
        let free = self.gpus.iter().enumerate().filter(|(_, free)| **free >= pod.gpu.get());
        free.map(|(at, _)| at).take(usize::try_from(pod.gpus).unwrap_or(0)).collect()
    }

    fn take(&mut self, pod: &Pod, gpus: &[usize]) {
        self.cpu -= pod.cpu.get();
        self.memory -= pod.memory.get();
        for gpu in gpus {
            self.gpus[*gpu] -= pod.gpu.get();
        }
    }

    /// As the core's fragmentation sees it.
    pub(super) fn room(&self) -> NodeRoom {
        // The fleet's memory is no constraint here: all shares fit.
        let memory = MiB::MAX;
        let piece = |free: &u64| match *free {
            1_000 => Free::Whole { memory },
            free => Free::Shared { gpu: GpuMilli::new(free), memory },
        };
        NodeRoom {
            model: Some(self.model),
            free: self.gpus.iter().map(piece).collect(),
            cpu: CpuMilli::new(self.cpu),
            host_memory: MiB::MAX,
        }
    }
}

/// Growth of what is unusable, by node and kind of pod; a node's entries go when it changes.
type Known = Vec<BTreeMap<usize, Option<(i128, Vec<usize>)>>>;

/// Fills the fleet; the thousandths of GPU that were allocated.
#[must_use]
pub(super) fn place_all(
    workload: &Workload,
    arrivals: &Arrivals,
    baseline: Baseline,
    seed: u64,
) -> GpuMilli {
    let mut rooms: Vec<Room> = rooms(workload);
    let mut random = Random::new(seed, 1);
    let typical = workload.typical();
    let kinds = kinds(workload);
    let mut known: Known = vec![BTreeMap::new(); rooms.len()];
    let mut allocated = 0;
    for number in &arrivals.order {
        let pod = &workload.pods[*number];
        let place = match baseline {
            Baseline::Random => anywhere(&rooms, pod, &mut random),
            Baseline::BestFit => tightest(&rooms, pod),
            Baseline::Fgd => smoothest(&rooms, (kinds[*number], pod), &typical, &mut known),
        };
        if let Some(Place { node, gpus }) = place {
            rooms[node].take(pod, &gpus);
            known[node].clear();
            allocated += pod.gpu_total().get();
        }
    }
    GpuMilli::new(allocated)
}

pub(super) fn rooms(workload: &Workload) -> Vec<Room> {
    let nodes = workload.fleet.nodes.iter().map(|node| Room {
        model: node.model,
        cpu: node.cpu.get(),
        memory: node.memory.get(),
        gpus: vec![1_000; usize::try_from(node.gpus).unwrap_or(0)],
    });
    nodes.collect()
}

/// For each pod, the first one that asks for the same.
fn kinds(workload: &Workload) -> Vec<usize> {
    let mut first = BTreeMap::new();
    let kinds = workload
        .pods
        .iter()
        .enumerate()
        .map(|(number, pod)| *first.entry((pod.kind(), pod.memory)).or_insert(number));
    kinds.collect()
}

fn anywhere(rooms: &[Room], pod: &Pod, random: &mut Random) -> Option<Place> {
    let holding: Vec<usize> = (0..rooms.len()).filter(|node| rooms[*node].holds(pod)).collect();
    let pick = |random: &mut Random, count: usize| {
        usize::try_from(random.below(u64::try_from(count).unwrap_or(0))).unwrap_or(0)
    };
    let node = *holding.get(pick(random, holding.len()))?;
    let gpus = rooms[node].whole(&Pod { gpus: u32::MAX, ..pod.clone() });
    let gpus = match pod.gpus {
        1 => vec![gpus[pick(random, gpus.len())]],
        _none_or_more => rooms[node].whole(pod),
    };
    Some(Place { node, gpus })
}

/// The GPU with the least room that suffices.
fn fullest(room: &Room, pod: &Pod) -> Vec<usize> {
    if pod.gpus != 1 {
        return room.whole(pod);
    }
    let fitting = room.gpus.iter().enumerate().filter(|(_, free)| **free >= pod.gpu.get());
    fitting.min_by_key(|(at, free)| (**free, *at)).map(|(at, _)| at).into_iter().collect()
}

fn tightest(rooms: &[Room], pod: &Pod) -> Option<Place> {
    // Relative to the largest node of the fleet, in millionths.
    let cpu_max = rooms.iter().map(|room| room.cpu).max().unwrap_or(1).max(1);
    let gpu_max = 8_000;
    let left = |room: &Room| {
        let cpu = (room.cpu - pod.cpu.get()) * 1_000_000 / cpu_max;
        let gpu = room.gpus.iter().sum::<u64>().saturating_sub(pod.gpu_total().get());
        cpu + gpu * 1_000_000 / gpu_max
    };
    let holding = rooms.iter().enumerate().filter(|(_, room)| room.holds(pod));
    let (node, room) = holding.min_by_key(|(at, room)| (left(room), *at))?;
    Some(Place { node, gpus: fullest(room, pod) })
}

fn smoothest(
    rooms: &[Room],
    (kind, pod): (usize, &Pod),
    typical: &Typical,
    known: &mut Known,
) -> Option<Place> {
    let mut best: Option<(i128, usize)> = None;
    for (node, room) in rooms.iter().enumerate() {
        let reckoned = known[node]
            .entry(kind)
            .or_insert_with(|| room.holds(pod).then(|| least(room, pod, typical)));
        let Some((growth, _)) = reckoned else { continue };
        if best.is_none_or(|(known, _)| *growth < known) {
            best = Some((*growth, node));
        }
    }
    let (_, node) = best?;
    let gpus = known[node].get(&kind).cloned().flatten()?.1;
    Some(Place { node, gpus })
}

/// The least growth on a node, and on which GPUs.
fn least(room: &Room, pod: &Pod, typical: &Typical) -> (i128, Vec<usize>) {
    let signed = |amount: u128| i128::try_from(amount).unwrap_or(i128::MAX);
    let before = signed(typical.unusable(&room.room()));
    let sets: Vec<Vec<usize>> = match pod.gpus {
        1 => room
            .whole(&Pod { gpus: u32::MAX, ..pod.clone() })
            .into_iter()
            .map(|g| vec![g])
            .collect(),
        _none_or_more => vec![room.whole(pod)],
    };
    let growths = sets.into_iter().map(|gpus| {
        let mut after = room.clone();
        after.take(pod, &gpus);
        (signed(typical.unusable(&after.room())) - before, gpus)
    });
    growths.min().unwrap_or((i128::MAX, Vec::new()))
}
