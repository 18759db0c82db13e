//! What is free of each node, followed beside the state: which nodes are worth showing to the planner,
//! and where the owner's own work goes.

use std::collections::BTreeMap;

use sublet_core::partition::Typical;
use sublet_protocol::capacity::{Part, SliceId};
use sublet_protocol::ids::{GpuModel, NodeId};
use sublet_protocol::units::{CpuMilli, GpuMilli};

use super::baseline::{self, Room};
use super::cell::{Error, node_name, slice};
use super::load::{Pod, Workload};

/// All that the planner can tell one node from another by, but for its name.
type Look = (GpuModel, u64, u64, Vec<u64>);

/// See the module.
#[derive(Debug)]
pub(super) struct Rooms {
    rooms: Vec<Room>,
    /// By node: the number of what it looks like.
    looks: Vec<usize>,
    numbers: BTreeMap<Look, usize>,
    /// By node: its free GPU that the load could not use, if it was reckoned since it changed.
    unusable: Vec<Option<u128>>,
    nodes: BTreeMap<NodeId, usize>,
}

impl Rooms {
    /// An empty fleet.
    pub(super) fn of(workload: &Workload) -> Rooms {
        let rooms = baseline::rooms(workload);
        let count = rooms.len();
        let nodes = (0..count).filter_map(|number| Some((node_name(number).ok()?, number)));
        let mut own = Rooms {
            nodes: nodes.collect(),
            rooms,
            looks: vec![0; count],
            numbers: BTreeMap::new(),
            unusable: vec![None; count],
        };
        for number in 0..count {
            own.changed(number);
        }
        own
    }

    fn changed(&mut self, number: usize) {
        let Room { model, cpu, memory, gpus } = &self.rooms[number];
        let mut gpus = gpus.clone();
        gpus.sort_unstable();
        let fresh = self.numbers.len();
        let look = (*model, *cpu, *memory, gpus);
        self.looks[number] = *self.numbers.entry(look).or_insert(fresh);
        self.unusable[number] = None;
    }

    /// Nodes that could hold the pod, the first of those that are alike, in order.
    pub(super) fn worth_a_look(&self, pod: &Pod) -> Vec<usize> {
        let mut is_seen = vec![false; self.numbers.len()];
        let nodes = self.rooms.iter().zip(&self.looks).enumerate();
        let distinct = nodes.filter(|(_, (room, look))| {
            room.holds(pod) && !std::mem::replace(&mut is_seen[**look], true)
        });
        distinct.map(|(number, _)| number).collect()
    }

    /// A pod was granted these slices, all of one node.
    pub(super) fn take(&mut self, pod: &Pod, slices: &[SliceId]) -> Result<(), Error> {
        let Some(first) = slices.first() else { return Ok(()) };
        let number = *self.nodes.get(&first.node).ok_or(Error::TooLarge)?;
        let (cpu, memory) = pod.host_each();
        for given in slices {
            for gpu in 0..self.rooms[number].gpus.len() {
                let whole = slice(number, u32::try_from(gpu).map_err(|_| Error::TooLarge)?)?;
                if whole.device == given.device {
                    let taken = match given.part {
                        Part::Whole => 1_000,
                        Part::Mig { .. } | Part::Share { .. } => pod.gpu.get(),
                    };
                    let free = &mut self.rooms[number].gpus[gpu];
                    *free = free.saturating_sub(taken);
                }
            }
            let room = &mut self.rooms[number];
            room.cpu = room.cpu.saturating_sub(cpu.get());
            room.memory = room.memory.saturating_sub(memory.get());
        }
        self.changed(number);
        Ok(())
    }

    /// The owner's own work takes a node's host.
    pub(super) fn take_host(&mut self, number: usize, pod: &Pod) {
        let room = &mut self.rooms[number];
        room.cpu = room.cpu.saturating_sub(pod.cpu.get());
        room.memory = room.memory.saturating_sub(pod.memory.get());
        self.changed(number);
    }

    /// Where the owner puts work without a GPU: where the planner's measure says that the least is
    /// lost.
    pub(super) fn for_owner(&mut self, pod: &Pod, typical: &Typical) -> Option<usize> {
        let signed = |amount: u128| i128::try_from(amount).unwrap_or(i128::MAX);
        let mut best: Option<(i128, usize)> = None;
        for number in self.worth_a_look(pod) {
            let room = &self.rooms[number];
            let before =
                *self.unusable[number].get_or_insert_with(|| typical.unusable(&room.room()));
            let mut after = room.clone();
            after.cpu = after.cpu.saturating_sub(pod.cpu.get());
            let growth = signed(typical.unusable(&after.room())) - signed(before);
            let gpu_left = GpuMilli::new(room.gpus.iter().sum());
            let loss = typical.loss(growth, gpu_left, CpuMilli::new(after.cpu));
            if best.is_none_or(|(known, _)| loss < known) {
                best = Some((loss, number));
            }
        }
        best.map(|(_, number)| number)
    }
}
