//! Replays a trace through the real rules under one of several policies.

mod workload;

pub use workload::{DAYS_MAX, Error, GPUS_PER_NODE, Job, Pool, TENANTS_MAX, Window, Workload};
