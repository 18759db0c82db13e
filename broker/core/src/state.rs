//! The replicated state: only what is live. It is the fold of the journal and nothing else.
//!
//! Fields can be read through accessors; only [`evolve`](crate::evolve()) writes them. What has
//! ended is not here: it is read back from the journal.

mod cluster;
mod lease;
mod offer;
mod promise;
mod request;
mod rollback;
mod tenant;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use sublet_protocol::capacity::{Part, SliceId};
use sublet_protocol::ids::{
    CellId, ClusterId, CommandId, DeviceId, GpuModel, LeaseId, NodeId, RequestId, RollbackId,
    TenantId,
};
use sublet_protocol::money::Price;
use sublet_protocol::policy::Policy;
use sublet_protocol::requests::Tier;
use sublet_protocol::units::Timestamp;

use crate::quota::{Moment, Standing, Tree, standing};

pub(crate) use cluster::LastHour;
pub use cluster::{Cluster, Node};
pub use lease::{EndNotice, Lease, LeaseStage};
pub use offer::Offer;
pub(crate) use promise::PROMISES_MAX;
pub use promise::{Promise, Whereabouts};
pub use request::{Request, RequestStage};
pub(crate) use rollback::{OPEN_MAX, OVER_MAX};
pub use rollback::{Rollback, RollbackStage};
pub use tenant::Tenant;

/// The level of a cell that was never raised.
const FEATURE_LEVEL_FIRST: u16 = 1;
/// What this program can do. One more with each behaviour that a replica of an older program would
/// not share: it must then ask [`State::feature_level`] first.
pub const FEATURE_LEVEL: u16 = FEATURE_LEVEL_FIRST;

/// A remembered idempotency key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeyEntry {
    pub(crate) body: [u8; 16],
    pub(crate) first: u64,
    pub(crate) used_at: Timestamp,
}

/// Whose key: a tenant's, or an operator's.
pub(crate) type KeyScope = Option<TenantId>;

/// What becomes due at an instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Due {
    /// An offer's time is over.
    Offer(SliceId),
    /// A pledge's time is over.
    Pledge(RequestId),
    /// A granted lease has not started.
    Start(LeaseId),
    /// A lease's bought time is over.
    End(LeaseId),
    /// A lease comes to the end of what its budget covers.
    Budget(LeaseId),
    /// A lease's owner wanted it to be gone by now.
    Recall(LeaseId),
    /// The tenant is to be told that a lease's bought time is nearly over.
    Notice(LeaseId),
    /// A rollback was not approved in time.
    Approval(RollbackId),
}

/// The replicated state of a cell.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct State {
    pub(crate) cell: Option<(CellId, u32)>,
    pub(crate) origin: Option<CommandId>,
    pub(crate) brokers: BTreeSet<u64>,
    pub(crate) feature_level: u16,
    pub(crate) policy: Policy,
    pub(crate) now: Timestamp,
    pub(crate) next_index: u64,
    pub(crate) unsealed_from: u64,
    pub(crate) sealed_at: Timestamp,
    pub(crate) tokens: u64,
    pub(crate) tenants: BTreeMap<TenantId, Tenant>,
    pub(crate) tree: Tree,
    pub(crate) clusters: BTreeMap<ClusterId, Cluster>,
    pub(crate) prices: BTreeMap<(TenantId, GpuModel, Tier), Price>,
    pub(crate) nodes: BTreeMap<(ClusterId, NodeId), Node>,
    pub(crate) offers: BTreeMap<SliceId, Offer>,
    pub(crate) requests: BTreeMap<RequestId, Request>,
    pub(crate) waiting: BTreeSet<RequestId>,
    pub(crate) leases: BTreeMap<LeaseId, Lease>,
    pub(crate) leased: BTreeMap<SliceId, LeaseId>,
    pub(crate) pledged: BTreeMap<SliceId, RequestId>,
    pub(crate) promises: BTreeMap<RequestId, Promise>,
    pub(crate) promised: BTreeMap<SliceId, BTreeSet<RequestId>>,
    pub(crate) keys: BTreeMap<(KeyScope, [u8; 16]), KeyEntry>,
    pub(crate) keys_by_time: BTreeSet<(Timestamp, KeyScope, [u8; 16])>,
    pub(crate) operator_keys: u32,
    pub(crate) due: BTreeSet<(Timestamp, Due)>,
    pub(crate) preempted: LastHour,
    pub(crate) closed_until: Timestamp,
    pub(crate) rollbacks: BTreeMap<RollbackId, Rollback>,
    /// Rules that are left out; no part of the state.
    #[cfg(feature = "mutations")]
    #[serde(skip)]
    pub(crate) mutations: &'static [crate::mutation::Mutation],
}

impl State {
    /// The cell's name and how often it was restored from a backup; nothing before it was founded.
    #[must_use]
    pub const fn cell(&self) -> Option<(CellId, u32)> {
        self.cell
    }

    /// The command that founded or last restored the cell. It is random, so two cells of one name, or
    /// two restored from one backup, are told apart by it.
    #[must_use]
    pub const fn origin(&self) -> Option<CommandId> {
        self.origin
    }

    /// Every number that a broker with a vote ever had, but for those of a cell whose members never
    /// changed. None is given to another broker.
    #[must_use]
    pub const fn brokers(&self) -> &BTreeSet<u64> {
        &self.brokers
    }

    /// What the cell may use. Behaviour that a replica of an older program would not share asks for
    /// this first.
    #[must_use]
    pub fn feature_level(&self) -> u16 {
        self.feature_level.max(FEATURE_LEVEL_FIRST)
    }

    /// The cell's policy.
    #[must_use]
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The time of the last record.
    #[must_use]
    pub const fn now(&self) -> Timestamp {
        self.now
    }

    /// The journal index of the next record, which is the number of records.
    #[must_use]
    pub const fn next_index(&self) -> u64 {
        self.next_index
    }

    /// The first instant whose books are open; the beginning of time if nothing was closed yet.
    #[must_use]
    pub const fn closed_until(&self) -> Timestamp {
        self.closed_until
    }

    /// Rollbacks that wait or run, and the newest that are over.
    #[must_use]
    pub const fn rollbacks(&self) -> &BTreeMap<RollbackId, Rollback> {
        &self.rollbacks
    }

    /// The rollback whose next step is to be done; of several the one with the least id.
    #[must_use]
    pub fn rollback_due(&self) -> Option<(RollbackId, &Rollback)> {
        let mut running =
            self.rollbacks.iter().filter(|(_, rollback)| rollback.stage == RollbackStage::Running);
        running.next().map(|(id, rollback)| (*id, rollback))
    }

    /// The first record that no segment holds.
    #[must_use]
    pub const fn unsealed_from(&self) -> u64 {
        self.unsealed_from
    }

    /// The tenants.
    #[must_use]
    pub const fn tenants(&self) -> &BTreeMap<TenantId, Tenant> {
        &self.tenants
    }

    /// The tree that the tenants stand in, with their quotas, terms and sums.
    #[must_use]
    pub const fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Where a tenant stands among those who want capacity now; the lowest is served first.
    #[must_use]
    pub fn standing(&self, tenant: TenantId, now: Timestamp) -> Standing {
        standing(&self.tree, tenant, (now, self.policy.half_life))
    }

    /// By what a change of the tree is counted at the time of the last record.
    pub(crate) const fn moment(&self) -> Moment {
        Moment {
            now: self.now,
            half_life: self.policy.half_life,
            entry_penalty: self.policy.entry_penalty,
            tokens: self.tokens,
        }
    }

    /// The clusters.
    #[must_use]
    pub const fn clusters(&self) -> &BTreeMap<ClusterId, Cluster> {
        &self.clusters
    }

    /// Posted prices by owner, model and tier.
    #[must_use]
    pub const fn prices(&self) -> &BTreeMap<(TenantId, GpuModel, Tier), Price> {
        &self.prices
    }

    /// The agents.
    #[must_use]
    pub const fn nodes(&self) -> &BTreeMap<(ClusterId, NodeId), Node> {
        &self.nodes
    }

    /// Open offers.
    #[must_use]
    pub const fn offers(&self) -> &BTreeMap<SliceId, Offer> {
        &self.offers
    }

    /// Requests that wait or are granted.
    #[must_use]
    pub const fn requests(&self) -> &BTreeMap<RequestId, Request> {
        &self.requests
    }

    /// Requests that wait.
    #[must_use]
    pub const fn waiting(&self) -> &BTreeSet<RequestId> {
        &self.waiting
    }

    /// Leases that have not ended.
    #[must_use]
    pub const fn leases(&self) -> &BTreeMap<LeaseId, Lease> {
        &self.leases
    }

    /// Slices of leases that have not ended.
    #[must_use]
    pub const fn leased(&self) -> &BTreeMap<SliceId, LeaseId> {
        &self.leased
    }

    /// Slices that are kept for a request.
    #[must_use]
    pub const fn pledged(&self) -> &BTreeMap<SliceId, RequestId> {
        &self.pledged
    }

    /// Whom a slice, or a part of the same hardware, was promised to.
    pub(crate) fn promised_on(&self, slice: SliceId) -> impl Iterator<Item = RequestId> + '_ {
        let device = SliceId { part: Part::Whole, ..slice };
        let on_device = self.promised.range(device..).take_while(move |(other, _)| {
            (other.cluster, other.node, other.device) == (slice.cluster, slice.node, slice.device)
        });
        let same = on_device.filter(move |(other, _)| other.part.overlaps(slice.part));
        same.flat_map(|(_, requests)| requests).copied()
    }

    /// What waiting requests were promised.
    #[must_use]
    pub const fn promises(&self) -> &BTreeMap<RequestId, Promise> {
        &self.promises
    }

    /// The earliest instant at which a sweep has something to do.
    #[must_use]
    pub fn next_due(&self) -> Option<Timestamp> {
        let things = self.due.first().map(|(at, _)| *at);
        let retention = self.policy.key_retention;
        let keys = self.keys_by_time.first().map(|(at, _, _)| at.after(retention));
        things.into_iter().chain(keys).min()
    }

    /// Whether the journal's tail is long or old enough to be sealed at `now`.
    #[must_use]
    pub fn is_seal_due(&self, now: Timestamp) -> bool {
        let tail = self.next_index.saturating_sub(self.unsealed_from);
        let is_long = tail >= u64::from(self.policy.seal_records);
        let is_old = now.since(self.sealed_at) >= self.policy.seal_interval.as_millis();
        // The record of the last seal is itself unsealed: alone it is not worth a segment.
        tail > 1 && (is_long || is_old)
    }

    /// Whether an operator's change under this idempotency key is remembered.
    #[must_use]
    pub fn has_operator_key(&self, key: [u8; 16]) -> bool {
        self.keys.contains_key(&(None, key))
    }

    /// Leases with a member on a node, in ascending order.
    pub fn leases_on(
        &self,
        cluster: ClusterId,
        node: NodeId,
    ) -> impl Iterator<Item = (LeaseId, SliceId)> + '_ {
        let first = SliceId { cluster, node, device: DeviceId::new(0), part: Part::Whole };
        self.leased
            .range(first..)
            .take_while(move |(slice, _)| slice.cluster == cluster && slice.node == node)
            .map(|(slice, lease)| (*lease, *slice))
    }
}

/// A state as seen at an instant: what the matcher works on.
#[derive(Debug, Clone, Copy)]
pub struct StateView<'a> {
    /// The state.
    pub state: &'a State,
    /// The ledger time.
    pub now: Timestamp,
}

impl sublet_protocol::codec::Format for State {
    const WHAT: &'static str = "state";
    const VERSION: u8 = 1;
    /// 10⁶ waiting requests and 10⁵ leases take about 300 MiB.
    const MAX: usize = 1_024 * 1_024 * 1_024;
}
