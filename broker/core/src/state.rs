//! The replicated state: only what is live. It is the fold of the journal and nothing else.
//!
//! Fields can be read through accessors; only [`evolve`](crate::evolve()) writes them. What has
//! ended is not here: it is read back from the journal.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use sublet_protocol::capacity::{Capacity, Part, SliceId};
use sublet_protocol::ids::{
    Boot, CellId, ClusterId, DeviceId, GpuModel, HostHash, LeaseId, NodeId, Region, RequestId,
    TenantId,
};
use sublet_protocol::leases::{EndReason, LeaseTerms};
use sublet_protocol::money::{MicroCredits, Price};
use sublet_protocol::offers::OfferTerms;
use sublet_protocol::policy::Policy;
use sublet_protocol::requests::{RequestSpec, Tier};
use sublet_protocol::units::{GpuMilli, Millis, Timestamp};

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

/// A set of nodes of one owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cluster {
    pub(crate) owner: TenantId,
    pub(crate) region: Region,
    pub(crate) devices_max: u32,
    pub(crate) devices: BTreeMap<DeviceId, NodeId>,
    pub(crate) open_offers: u32,
    pub(crate) created_at: Timestamp,
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

    /// When its newest start registered.
    #[must_use]
    pub const fn registered_at(&self) -> Timestamp {
        self.registered_at
    }
}

/// Capacity that can be leased now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    pub(crate) terms: OfferTerms,
    pub(crate) offered_at: Timestamp,
    pub(crate) expires_at: Timestamp,
}

impl Offer {
    /// What the agent said.
    #[must_use]
    pub const fn terms(&self) -> &OfferTerms {
        &self.terms
    }

    /// How much it holds.
    #[must_use]
    pub const fn capacity(&self) -> &Capacity {
        &self.terms.capacity
    }

    /// When it was last repeated.
    #[must_use]
    pub const fn offered_at(&self) -> Timestamp {
        self.offered_at
    }

    /// Until when it stands. At this instant it no longer does.
    #[must_use]
    pub const fn expires_at(&self) -> Timestamp {
        self.expires_at
    }
}

/// Where a request is in its life.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum RequestStage {
    /// It waits.
    Waiting,
    /// It waits, and these slices are kept for it until then.
    Pledged {
        /// What is kept.
        slices: BTreeSet<SliceId>,
        /// Until when.
        until: Timestamp,
    },
    /// This lease serves it.
    Granted {
        /// Which lease.
        lease: LeaseId,
    },
}

/// An open request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    pub(crate) tenant: TenantId,
    pub(crate) spec: RequestSpec,
    pub(crate) submitted_at: Timestamp,
    pub(crate) since: Timestamp,
    pub(crate) stage: RequestStage,
    pub(crate) attempts: u32,
    pub(crate) failed_starts: u32,
    pub(crate) recalls: u32,
}

impl Request {
    /// Whose it is.
    #[must_use]
    pub const fn tenant(&self) -> TenantId {
        self.tenant
    }

    /// What is asked.
    #[must_use]
    pub const fn spec(&self) -> &RequestSpec {
        &self.spec
    }

    /// When it was first submitted; kept when it waits again.
    #[must_use]
    pub const fn submitted_at(&self) -> Timestamp {
        self.submitted_at
    }

    /// Since when it is in its stage.
    #[must_use]
    pub const fn since(&self) -> Timestamp {
        self.since
    }

    /// Where it is in its life.
    #[must_use]
    pub const fn stage(&self) -> &RequestStage {
        &self.stage
    }

    /// How many leases it has had.
    #[must_use]
    pub const fn attempts(&self) -> u32 {
        self.attempts
    }

    /// How many of them were taken away.
    #[must_use]
    pub const fn recalls(&self) -> u32 {
        self.recalls
    }

    /// Whether it waits, with or without a pledge.
    #[must_use]
    pub const fn is_waiting(&self) -> bool {
        match self.stage {
            RequestStage::Waiting | RequestStage::Pledged { .. } => true,
            RequestStage::Granted { .. } => false,
        }
    }
}

/// Where a lease is in its life.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum LeaseStage {
    /// Its agents prepare it.
    Granted {
        /// When it must be active.
        start_by: Timestamp,
        /// Members that are prepared.
        confirmed: BTreeSet<SliceId>,
    },
    /// Its guests may run.
    Active {
        /// Since when.
        since: Timestamp,
        /// The bought end.
        ends_at: Timestamp,
    },
    /// Its guests must go.
    Ending {
        /// Why.
        cause: EndReason,
        /// When they are gone at the latest, while their agents are up.
        deadline: Timestamp,
        /// Since when it was active, if it ever was.
        active_since: Option<Timestamp>,
    },
}

/// A lease that has not ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    pub(crate) terms: LeaseTerms,
    pub(crate) granted_at: Timestamp,
    pub(crate) stage: LeaseStage,
    pub(crate) stopped: BTreeSet<SliceId>,
    pub(crate) used: Millis,
}

impl Lease {
    /// What was granted.
    #[must_use]
    pub const fn terms(&self) -> &LeaseTerms {
        &self.terms
    }

    /// When it was granted.
    #[must_use]
    pub const fn granted_at(&self) -> Timestamp {
        self.granted_at
    }

    /// Where it is in its life.
    #[must_use]
    pub const fn stage(&self) -> &LeaseStage {
        &self.stage
    }

    /// Members with no guest left.
    #[must_use]
    pub const fn stopped(&self) -> &BTreeSet<SliceId> {
        &self.stopped
    }

    /// Measured use so far, the largest of its members.
    #[must_use]
    pub const fn used(&self) -> Millis {
        self.used
    }

    /// Whether nobody ends it yet: it is prepared or active.
    #[must_use]
    pub const fn is_running(&self) -> bool {
        match self.stage {
            LeaseStage::Granted { .. } | LeaseStage::Active { .. } => true,
            LeaseStage::Ending { .. } => false,
        }
    }

    /// Since when it is or was active.
    #[must_use]
    pub const fn active_since(&self) -> Option<Timestamp> {
        match self.stage {
            LeaseStage::Granted { .. } => None,
            LeaseStage::Active { since, .. } => Some(since),
            LeaseStage::Ending { active_since, .. } => active_since,
        }
    }
}

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
}

/// The replicated state of a cell.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct State {
    pub(crate) cell: Option<(CellId, u32)>,
    pub(crate) policy: Policy,
    pub(crate) now: Timestamp,
    pub(crate) next_index: u64,
    pub(crate) unsealed_from: u64,
    pub(crate) sealed_at: Timestamp,
    pub(crate) tokens: u64,
    pub(crate) tenants: BTreeMap<TenantId, Tenant>,
    pub(crate) clusters: BTreeMap<ClusterId, Cluster>,
    pub(crate) prices: BTreeMap<(TenantId, GpuModel, Tier), Price>,
    pub(crate) nodes: BTreeMap<(ClusterId, NodeId), Node>,
    pub(crate) offers: BTreeMap<SliceId, Offer>,
    pub(crate) requests: BTreeMap<RequestId, Request>,
    pub(crate) waiting: BTreeSet<RequestId>,
    pub(crate) leases: BTreeMap<LeaseId, Lease>,
    pub(crate) leased: BTreeMap<SliceId, LeaseId>,
    pub(crate) pledged: BTreeMap<SliceId, RequestId>,
    pub(crate) keys: BTreeMap<(KeyScope, [u8; 16]), KeyEntry>,
    pub(crate) keys_by_time: BTreeSet<(Timestamp, KeyScope, [u8; 16])>,
    pub(crate) operator_keys: u32,
    pub(crate) due: BTreeSet<(Timestamp, Due)>,
    /// A rule that is left out; no part of the state.
    #[cfg(feature = "mutations")]
    #[serde(skip)]
    pub(crate) mutation: Option<crate::mutation::Mutation>,
}

impl State {
    /// The cell's name and how often it was restored from a backup; nothing before it was founded.
    #[must_use]
    pub const fn cell(&self) -> Option<(CellId, u32)> {
        self.cell
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
