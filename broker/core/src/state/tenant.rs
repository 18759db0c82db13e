//! Tenants as the state keeps them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sublet_protocol::ids::{GpuModel, TenantId};
use sublet_protocol::money::MicroCredits;
use sublet_protocol::units::{GpuMilli, Timestamp};

/// The most a tenant may hold of one model, and which grants it has bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Quota {
    pub(crate) nominal: GpuMilli,
    /// The token counter when it was set: later grants were made under it.
    pub(crate) binds_after: u64,
}

/// Who pays or earns, with what it holds now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tenant {
    pub(crate) parent: Option<TenantId>,
    pub(crate) quotas: BTreeMap<GpuModel, Quota>,
    pub(crate) held: BTreeMap<GpuModel, GpuMilli>,
    pub(crate) open_requests: u32,
    pub(crate) keys: u32,
    pub(crate) hold: MicroCredits,
    pub(crate) created_at: Timestamp,
}

impl Tenant {
    /// The group it belongs to.
    #[must_use]
    pub const fn parent(&self) -> Option<TenantId> {
        self.parent
    }

    /// The most it may hold of each model; models that are not listed have a quota of zero.
    pub fn quotas(&self) -> impl Iterator<Item = (GpuModel, GpuMilli)> + '_ {
        self.quotas.iter().map(|(model, quota)| (*model, quota.nominal))
    }

    /// What its leases that have not ended hold of each model; models with nothing are left out.
    #[must_use]
    pub const fn holdings(&self) -> &BTreeMap<GpuModel, GpuMilli> {
        &self.held
    }

    /// Its quota for one model.
    #[must_use]
    pub fn quota(&self, model: GpuModel) -> GpuMilli {
        self.quotas.get(&model).map(|quota| quota.nominal).unwrap_or_default()
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

    /// When it was added.
    #[must_use]
    pub const fn created_at(&self) -> Timestamp {
        self.created_at
    }
}
