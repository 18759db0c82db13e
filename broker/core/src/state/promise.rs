//! Promised starts as the state keeps them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sublet_protocol::capacity::SliceId;
use sublet_protocol::ids::GpuModel;
use sublet_protocol::requests::PromiseCause;
use sublet_protocol::units::{GpuMilli, Timestamp};

/// Most promises that stand at once.
pub(crate) const PROMISES_MAX: usize = 1_000;

/// What has become of a slice since it was promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Whereabouts {
    /// It is offered or leased.
    There,
    /// Its lease has ended as it should, and it is not offered again yet.
    Missing {
        /// Since when.
        since: Timestamp,
    },
    /// It will not come: this is why.
    Lost(PromiseCause),
}

/// When a waiting request will start at the latest, and where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Promise {
    pub(crate) start: Timestamp,
    pub(crate) not_before: Timestamp,
    pub(crate) made_at: Timestamp,
    /// The journal index of the record that made it: promises are kept in the order in which they
    /// were made.
    pub(crate) made_by: u64,
    pub(crate) cause: PromiseCause,
    /// The model of all its slices, and how much of a GPU each is.
    pub(crate) kind: (GpuModel, GpuMilli),
    pub(crate) slices: BTreeMap<SliceId, Whereabouts>,
}

impl Promise {
    /// When it will start at the latest.
    #[must_use]
    pub const fn start(&self) -> Timestamp {
        self.start
    }

    /// Before this it could not start even if its slices were free: the tenant's quota was used up.
    #[must_use]
    pub const fn not_before(&self) -> Timestamp {
        self.not_before
    }

    /// When this was promised.
    #[must_use]
    pub const fn made_at(&self) -> Timestamp {
        self.made_at
    }

    /// The journal index of the record that made it.
    #[must_use]
    pub const fn made_by(&self) -> u64 {
        self.made_by
    }

    /// Why it was promised then.
    #[must_use]
    pub const fn cause(&self) -> PromiseCause {
        self.cause
    }

    /// The model of all its slices, and how much of a GPU each is.
    #[must_use]
    pub const fn kind(&self) -> (GpuModel, GpuMilli) {
        self.kind
    }

    /// The slices that are kept for it from its start on, and what has become of them.
    #[must_use]
    pub const fn slices(&self) -> &BTreeMap<SliceId, Whereabouts> {
        &self.slices
    }
}
