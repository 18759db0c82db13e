//! The matcher's memory between plans: indexes that are kept up with events instead of being built
//! anew for each plan.
//!
//! [`Index`] is all of it for one cell, fed with records. [`Queue`] holds the waiting requests in classes of those that ask for the same, [`Shelves`] the
//! free slices by how many of a kind stand together and how long they last, [`Leases`] the running
//! leases by who gives way first. Names become ordinals
//! on the way in: inside, everything is a `u32` and an array. Nothing here decides: an index says
//! where to look, and what it says is never less than what is there.

mod families;
mod known;
mod leases;
mod lots;
mod memory;
mod promises;
mod queue;
mod ranked;
mod running;
mod shelves;
mod table;
mod tournament;
mod walk;
mod wheel;

pub(crate) use known::Known;
pub use leases::{Leases, Standing};
pub use lots::{Kind, window};
pub use memory::Index;
pub use queue::{ClassKey, Queue};
pub(crate) use running::{PoolKey, Running, is_preempted};
pub use shelves::Shelves;
pub use tournament::{Key, Tournament};
pub(crate) use walk::plan_with;

/// No ordinal.
const NONE: u32 = u32::MAX;

/// An ordinal as a place in an array.
pub(super) fn at(ordinal: u32) -> usize {
    usize::try_from(ordinal).unwrap_or(usize::MAX)
}

macro_rules! ordinals {
    ($($(#[$doc:meta])* $name:ident),*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub struct $name(pub u32);

        impl $name {
            #[allow(dead_code, reason = "not every ordinal is a place in an array")]
            fn at(self) -> usize {
                at(self.0)
            }
        }
    )*};
}

ordinals!(
    /// A tenant's ordinal.
    TenantNo,
    /// The ordinal of requests that ask for the same, but for how long and with what priority.
    FamilyNo,
    /// The ordinal of a class of identical requests.
    ClassNo,
    /// A node's ordinal.
    NodeNo,
    /// The ordinal of a kind of slice in a cluster.
    LotNo,
    /// The ordinal of an offered slice.
    SlotNo,
    /// The ordinal of leases that compete for giving way.
    PoolNo
);
