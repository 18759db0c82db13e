//! The baselines: strict queues whose head blocks, each tenant's own or one for all.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use sublet_core::StateView;
use sublet_protocol::commands::{PLAN_GROUPS_MAX, PlanGroup, PlanMember};
use sublet_protocol::ids::{ClusterId, RequestId};
use sublet_protocol::units::Seconds;

use super::policy::Planner;
use super::room::Room;
use super::{Job, Workload};

/// In which order a queue is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// First come, first served.
    Submission,
    /// The shortest job first, by its true duration.
    Shortest,
}

/// Where a tenant's jobs may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    /// In its own pool.
    Own,
    /// In its own pool, else in pools whose tenants wait for nothing, most free GPUs first.
    Borrow,
    /// In the one pool of all, through one queue.
    OnePool,
}

/// A waiting job: queues are ordered by the first field, which is zero where submission decides.
type Waiting = (Seconds, RequestId, u32);

/// Queues and what is free.
pub(super) struct Baseline {
    order: Order,
    reach: Reach,
    clusters: Vec<ClusterId>,
    /// The pools in the order in which equally free ones are asked.
    lenders: Vec<usize>,
    queues: Vec<BTreeSet<Waiting>>,
    /// The queue that the round has come to. Each is served once in a round: a lender whose queue
    /// empties late in it lends from the next one on.
    turn: usize,
    room: Room,
}

impl Baseline {
    /// Without anyone waiting.
    pub(super) fn new(
        order: Order,
        reach: Reach,
        workload: &Workload,
        clusters: &[ClusterId],
    ) -> Self {
        let queues = match reach {
            Reach::OnePool => 1,
            Reach::Own | Reach::Borrow => workload.pools.len(),
        };
        let queues = vec![BTreeSet::new(); queues];
        let mut lenders: Vec<usize> = (0..clusters.len()).collect();
        lenders.sort_by_key(|pool| workload.pools[*pool].listed);
        Self {
            order,
            reach,
            clusters: clusters.to_vec(),
            lenders,
            queues,
            turn: 0,
            room: Room::default(),
        }
    }

    /// GPUs for the head of a queue: at home, else where it may borrow.
    fn place(&mut self, queue: usize, gpus: u32) -> Option<Vec<PlanMember>> {
        if let Some(members) = self.room.take(queue, gpus) {
            return Some(members);
        }
        if self.reach != Reach::Borrow {
            return None;
        }
        let is_lender = |pool: &usize| *pool != queue && self.queues[*pool].is_empty();
        let mut lenders: Vec<usize> = self.lenders.iter().copied().filter(is_lender).collect();
        // Stable: equally free ones stay in their order.
        lenders.sort_by_key(|pool| Reverse(self.room.free(*pool)));
        lenders.into_iter().find_map(|pool| self.room.take(pool, gpus))
    }
}

impl Planner for Baseline {
    fn on_submitted(&mut self, request: RequestId, job: &Job) {
        let queue = match self.reach {
            Reach::OnePool => 0,
            Reach::Own | Reach::Borrow => job.owner,
        };
        let rank = match self.order {
            Order::Submission => Seconds::ZERO,
            Order::Shortest => job.duration,
        };
        self.queues[queue].insert((rank, request, job.gpus));
    }

    fn begin_round(&mut self) {
        self.turn = 0;
    }

    fn plan(&mut self, view: StateView<'_>) -> Vec<PlanGroup> {
        let mut groups = Vec::new();
        if self.queues[self.turn..].iter().all(BTreeSet::is_empty) {
            return groups;
        }
        self.room.read(view.state, &self.clusters);
        while self.turn < self.queues.len() {
            let queue = self.turn;
            while let Some((_, request, gpus)) = self.queues[queue].first().copied() {
                if groups.len() == PLAN_GROUPS_MAX {
                    return groups;
                }
                let Some(members) = self.place(queue, gpus) else { break };
                self.queues[queue].pop_first();
                groups.push(PlanGroup::Grant { request, members });
            }
            self.turn += 1;
        }
        groups
    }
}
