//! Parts of one physical GPU: which are legal, what is taken, what is left.
//!
//! `mig` is NVIDIA's placement table; `share` the arithmetic of shares and their memory; `device` what
//! leases and pledges take of a GPU that is offered whole and may be divided; `host` the CPU and memory
//! that the leases of a node share; `gradient` how much of a node a typical load cannot use. Judge and
//! matcher both ask here. Nothing here talks to a GPU: the agent is the only gate.

mod device;
mod gradient;
mod host;
pub mod mig;
mod share;

pub(crate) use device::{DeviceRoom, Kept, carve, is_legal, overlap};
pub use gradient::{Free, Kind, NodeRoom, Typical};
pub(crate) use host::{HostUse, host_seats, host_use};
pub(crate) use share::room_for_shares;
pub use share::{SHARES_MAX, memory_margin};
