//! Replays a trace through the real rules under one of several policies.
//!
//! Tenants own clusters of 8-GPU nodes and offer every GPU; each job is a request; grants come only
//! from plans that `sublet_core::apply` judged; agents answer at once. The baselines differ from
//! Sublet in nothing but their planner.

mod baseline;
pub(crate) mod cell;
pub(crate) mod policy;
mod report;
mod room;
pub(crate) mod run;
mod shaping;
mod workload;

pub use cell::{Error, Tally};
pub use policy::Policy;
pub(crate) use report::Waits;
pub use report::{Books, Invariants, Report, TenantReport};
pub use run::{Options, Replayed, replay};
pub use shaping::{Demand, Shaped, Shaping, shape};
pub use workload::{
    DAYS_MAX, GPUS_MAX, GPUS_PER_NODE, Job, Pool, TENANTS_MAX, Window, Workload, WorkloadError,
};
