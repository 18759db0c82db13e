//! Tenants as the state keeps them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sublet_protocol::calendar::Calendar;
use sublet_protocol::ids::GpuModel;
use sublet_protocol::money::MicroCredits;
use sublet_protocol::units::{GpuMilli, Timestamp};

/// Who pays or earns, with what it holds now. Its place, quotas and terms are in the
/// [`Tree`](crate::quota::Tree).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tenant {
    pub(crate) held: BTreeMap<GpuModel, GpuMilli>,
    pub(crate) open_requests: u32,
    pub(crate) keys: u32,
    pub(crate) hold: MicroCredits,
    pub(crate) created_at: Timestamp,
    pub(crate) calendar: Option<Calendar>,
}

impl Tenant {
    /// What its leases that have not ended hold of each model; models with nothing are left out.
    #[must_use]
    pub const fn holdings(&self) -> &BTreeMap<GpuModel, GpuMilli> {
        &self.held
    }

    /// What its leases that have not ended hold of one model.
    #[must_use]
    pub fn held(&self, model: GpuModel) -> GpuMilli {
        self.held.get(&model).copied().unwrap_or_default()
    }

    /// Its requests that wait or are granted.
    #[must_use]
    pub const fn open_requests(&self) -> u32 {
        self.open_requests
    }

    /// The sum of the holds of its leases that have not ended.
    #[must_use]
    pub const fn hold(&self) -> MicroCredits {
        self.hold
    }

    /// When it is off-peak for it, if it has hours of its own; else those of its group count.
    #[must_use]
    pub const fn calendar(&self) -> Option<&Calendar> {
        self.calendar.as_ref()
    }

    /// When it was added.
    #[must_use]
    pub const fn created_at(&self) -> Timestamp {
        self.created_at
    }
}
