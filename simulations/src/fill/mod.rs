//! `sublet-sim fill`: how full a fleet gets before requests no longer fit.
//!
//! The protocol of FGD (Weng et al., USENIX ATC'23): the pods of a list, topped up by sampling until
//! they ask for 130 % of the fleet's GPUs and shuffled by a seed, arrive one by one; none departs; one
//! that finds no place is dropped. What counts is the share of all GPU that is then allocated.
//!
//! `load` makes the arrivals; `cell` sends them through the real rules and the real planner; `baseline`
//! places them by the policies they are compared with; `rooms` follows what is free; `report` holds the
//! figures.

mod baseline;
mod cell;
mod load;
mod report;
mod rooms;
mod run;

pub use baseline::Baseline;
pub use cell::Error;
pub use load::{Arrivals, Fleet, LoadError, Pod, Workload};
pub use report::{Policy, Report, Summary};
pub use run::{FillError, Options, fill};

/// How much the arrivals ask for, in thousandths of the fleet's GPU.
pub const TARGET_PERMILLE: u64 = 1_300;
