//! The policies: who decides which waiting job gets which free GPUs.

use std::fmt;

use sublet_core::matching::index::Index;
use sublet_core::matching::{self, Limits};
use sublet_core::{State, StateView};
use sublet_protocol::commands::PlanGroup;
use sublet_protocol::ids::{ClusterId, RequestId, TenantId};
use sublet_protocol::records::Record;

use super::baseline::{Baseline, Order, Reach};
use super::{Job, Workload};

/// Which policy is replayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Policy {
    /// Each tenant has its own pool, first come first served, the head blocks.
    StaticFifo,
    /// Each tenant has its own pool, shortest true duration first, the head blocks.
    StaticSjf,
    /// As static FIFO, and a head that finds no room at home may use pools whose tenants wait for
    /// nothing.
    Borrow,
    /// All GPUs are one pool with one queue, first come first served, the head blocks.
    Pool,
    /// Sublet's own planner.
    Sublet,
}

impl Policy {
    /// All of them.
    pub const ALL: [Policy; 5] =
        [Policy::StaticFifo, Policy::StaticSjf, Policy::Borrow, Policy::Pool, Policy::Sublet];

    /// The name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Policy::StaticFifo => "static-fifo",
            Policy::StaticSjf => "static-sjf",
            Policy::Borrow => "borrow",
            Policy::Pool => "pool",
            Policy::Sublet => "sublet",
        }
    }

    /// Whether every tenant's GPUs are a cluster of its own.
    pub(super) const fn has_clusters_per_tenant(self) -> bool {
        match self {
            Policy::StaticFifo | Policy::StaticSjf | Policy::Borrow | Policy::Sublet => true,
            Policy::Pool => false,
        }
    }

    /// Whether a job that outgrows its tenant's pool is left out.
    pub(super) const fn drops_outgrown(self) -> bool {
        self.has_clusters_per_tenant()
    }

    /// Its planner for the clusters of `workload`.
    pub(super) fn planner(self, workload: &Workload, clusters: &[ClusterId]) -> Box<dyn Planner> {
        let baseline = |order, reach| -> Box<dyn Planner> {
            Box::new(Baseline::new(order, reach, workload, clusters))
        };
        match self {
            Policy::StaticFifo => baseline(Order::Submission, Reach::Own),
            Policy::StaticSjf => baseline(Order::Shortest, Reach::Own),
            Policy::Borrow => baseline(Order::Submission, Reach::Borrow),
            Policy::Pool => baseline(Order::Submission, Reach::OnePool),
            Policy::Sublet => Box::new(Core::default()),
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Proposes grants; the rules judge them.
pub(super) trait Planner {
    /// `request` waits for `job`; requests come in the order of their numbers.
    fn on_submitted(&mut self, request: RequestId, job: &Job);

    /// These records were folded into the state.
    fn on_records(&mut self, _state: &State, _records: &[Record]) {}

    /// Something happened: a new round of planning begins.
    fn begin_round(&mut self) {}

    /// What to propose now; empty if the round is over. Asked again until it is empty.
    fn plan(&mut self, view: StateView<'_>) -> Vec<PlanGroup>;
}

/// The planner of production, with its memory.
#[derive(Default)]
struct Core {
    index: Option<Index>,
}

impl Planner for Core {
    fn on_submitted(&mut self, _request: RequestId, _job: &Job) {}

    fn on_records(&mut self, state: &State, records: &[Record]) {
        if let Some(index) = &mut self.index {
            for record in records {
                index.on_record(state, record);
            }
        }
    }

    fn plan(&mut self, view: StateView<'_>) -> Vec<PlanGroup> {
        let index = self.index.get_or_insert_with(|| Index::of(view.state));
        matching::plan_with(index, view, &Limits::NONE)
    }
}

/// The cluster that stands for a pool.
pub(crate) fn cluster_of(tenant: TenantId) -> ClusterId {
    ClusterId::new(tenant.as_str()).expect("tenants' and clusters' ids have one form")
}
