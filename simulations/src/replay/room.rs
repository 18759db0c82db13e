//! Free GPUs by node, as the baselines see them: whole nodes, and a best fit for what is left.

use std::ops::Range;

use sublet_core::State;
use sublet_protocol::commands::PlanMember;
use sublet_protocol::ids::{ClusterId, NodeId};

use super::GPUS_PER_NODE;

/// What is free at one moment, less what was taken since.
#[derive(Debug, Default)]
pub(super) struct Room {
    members: Vec<PlanMember>,
    nodes: Vec<FreeNode>,
    /// The nodes of each pool.
    pools: Vec<Range<usize>>,
}

/// The free GPUs of one node: a range of the room's members, of which the first are taken first.
#[derive(Debug)]
struct FreeNode {
    free: Range<usize>,
}

impl FreeNode {
    fn count(&self) -> u32 {
        u32::try_from(self.free.len()).expect("at most the GPUs of a node")
    }
}

impl Room {
    /// Reads the open offers anew; `clusters` are the pools by number.
    pub(super) fn read(&mut self, state: &State, clusters: &[ClusterId]) {
        self.members.clear();
        self.nodes.clear();
        self.pools.clear();
        self.pools.resize(clusters.len(), 0..0);
        let mut last: Option<(ClusterId, NodeId)> = None;
        let mut pool: Option<usize> = None;
        // Offers come in the order of cluster, node and device.
        for (slice, offer) in state.offers() {
            let here = (slice.cluster, slice.node);
            if last != Some(here) {
                if last.is_none_or(|(cluster, _)| cluster != slice.cluster) {
                    pool = clusters.iter().position(|cluster| *cluster == slice.cluster);
                    let first = self.nodes.len();
                    pool.into_iter().for_each(|pool| self.pools[pool] = first..first);
                }
                last = Some(here);
                self.nodes.push(FreeNode { free: self.members.len()..self.members.len() });
                pool.into_iter().for_each(|pool| self.pools[pool].end += 1);
            }
            let generation = offer.terms().generation;
            self.members.push(PlanMember { slice: *slice, generation });
            let node = self.nodes.last_mut().expect("pushed for the first offer of a node");
            node.free.end += 1;
        }
    }

    /// Free GPUs of a pool.
    pub(super) fn free(&self, pool: usize) -> u32 {
        self.nodes[self.pools[pool].clone()].iter().map(FreeNode::count).sum()
    }

    /// Takes `gpus` GPUs of a pool, if they are there: up to one node's worth where the fewest stay
    /// free, more as whole nodes and a best fit of the rest. The first of equal nodes is taken.
    pub(super) fn take(&mut self, pool: usize, gpus: u32) -> Option<Vec<PlanMember>> {
        let (whole, rest) = match gpus {
            ..=GPUS_PER_NODE => (0, gpus),
            more => (more / GPUS_PER_NODE, more % GPUS_PER_NODE),
        };
        let whole = usize::try_from(whole).expect("GPUs of a job fit memory");
        let is_empty = |node: &usize| self.nodes[*node].count() == GPUS_PER_NODE;
        let mut chosen: Vec<(usize, u32)> = self.pools[pool]
            .clone()
            .filter(is_empty)
            .take(whole)
            .map(|node| (node, GPUS_PER_NODE))
            .collect();
        if chosen.len() < whole {
            return None;
        }
        if rest > 0 {
            let is_chosen = |node: &usize| chosen.iter().any(|(other, _)| other == node);
            let fits = |node: &usize| self.nodes[*node].count() >= rest && !is_chosen(node);
            let best = self.pools[pool].clone().filter(fits);
            let best = best.min_by_key(|node| (self.nodes[*node].count(), *node))?;
            chosen.push((best, rest));
        }
        let mut taken = Vec::new();
        for (node, count) in chosen {
            let free = &mut self.nodes[node].free;
            let until = free.start + usize::try_from(count).expect("at most a node's GPUs");
            taken.extend_from_slice(&self.members[free.start..until]);
            free.start = until;
        }
        Some(taken)
    }
}
