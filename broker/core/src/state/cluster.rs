//! Clusters and their nodes as the state keeps them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sublet_protocol::capacity::Part;
use sublet_protocol::ids::{Boot, DeviceId, HostHash, NodeId, Region, TenantId};
use sublet_protocol::units::Timestamp;

/// What happened in the last hour, counted by the minute.
///
/// A thing counts until 61 whole minutes after the minute in which it happened, so that no hour,
/// wherever it begins, has more than what was allowed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct LastHour(BTreeMap<u64, u32>);

impl LastHour {
    const MINUTE: u64 = 60_000;
    const MINUTES: u64 = 60;

    /// One more happened.
    pub(crate) fn add(&mut self, now: Timestamp) {
        let minute = now.get() / Self::MINUTE;
        self.0.retain(|at, _| at + Self::MINUTES >= minute);
        let count = self.0.entry(minute).or_default();
        *count = count.saturating_add(1);
    }

    /// How many happened.
    pub(crate) fn count(&self, now: Timestamp) -> u32 {
        let minute = now.get() / Self::MINUTE;
        let last = self.0.range(minute.saturating_sub(Self::MINUTES)..);
        last.fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }
}

/// A set of nodes of one owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cluster {
    pub(crate) owner: TenantId,
    pub(crate) region: Region,
    pub(crate) devices_max: u32,
    pub(crate) devices: BTreeMap<DeviceId, NodeId>,
    pub(crate) open_offers: u32,
    pub(crate) created_at: Timestamp,
    pub(crate) preempted: LastHour,
}

impl Cluster {
    /// Who earns.
    #[must_use]
    pub const fn owner(&self) -> TenantId {
        self.owner
    }

    /// Where it stands.
    #[must_use]
    pub const fn region(&self) -> Region {
        self.region
    }

    /// Most devices its agents may offer.
    #[must_use]
    pub const fn devices_max(&self) -> u32 {
        self.devices_max
    }

    /// Devices it has ever offered, with the node they are in.
    #[must_use]
    pub const fn devices(&self) -> &BTreeMap<DeviceId, NodeId> {
        &self.devices
    }

    /// When it was added.
    #[must_use]
    pub const fn created_at(&self) -> Timestamp {
        self.created_at
    }
}

/// One machine's agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    pub(crate) boot: Boot,
    pub(crate) host: HostHash,
    pub(crate) is_silent: bool,
    pub(crate) is_fenced: bool,
    pub(crate) generations: BTreeMap<(DeviceId, Part), u64>,
    pub(crate) registered_at: Timestamp,
    /// Starts refused in a row.
    pub(crate) refusals: u32,
    pub(crate) paused_until: Option<Timestamp>,
}

impl Node {
    /// Its newest start.
    #[must_use]
    pub const fn boot(&self) -> Boot {
        self.boot
    }

    /// The machine of that start.
    #[must_use]
    pub const fn host(&self) -> HostHash {
        self.host
    }

    /// Whether another machine claimed its id since it registered.
    #[must_use]
    pub const fn is_fenced(&self) -> bool {
        self.is_fenced
    }

    /// Whether it was declared silent and has not offered since.
    #[must_use]
    pub const fn is_silent(&self) -> bool {
        self.is_silent
    }

    /// Whether it refused so many starts lately that nothing is granted there yet.
    #[must_use]
    pub fn is_paused(&self, now: Timestamp) -> bool {
        self.paused_until.is_some_and(|until| now < until)
    }

    /// When its newest start registered.
    #[must_use]
    pub const fn registered_at(&self) -> Timestamp {
        self.registered_at
    }
}
