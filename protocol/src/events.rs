//! Events: facts. The journal is their sequence and the state is their fold.
//!
//! New variants are added at the end only, with a golden file; none is ever reordered or changed.

use serde::{Deserialize, Serialize};

use crate::calendar::Calendar;
use crate::capacity::SliceId;
use crate::commands::{GuestOutcome, IdempotencyKey, NackReason};
use crate::ids::{
    Boot, CellId, ClusterId, GpuModel, HostHash, LeaseId, NodeId, Region, RequestId, RollbackId,
    Subject, TenantId,
};
use crate::leases::{EndReason, LeaseTerms};
use crate::money::{Line, MicroCredits, Price};
use crate::offers::{OfferTerms, RescindReason};
use crate::policy::Policy;
use crate::quotas::{Quota, TenantTerms};
use crate::refusals::Rejection;
use crate::requests::{PromiseCause, RequestSpec, Tier};
use crate::rollbacks::{ChargeStanding, DropCause, RollbackSelector};
use crate::units::{GpuMilli, Millis, Timestamp};

/// What a lease cost, and where its hold went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settlement {
    /// What is charged for: the least of measured use, time since activation and bought time.
    pub billed: Millis,
    /// What the borrower pays.
    pub cost: MicroCredits,
    /// What of it the platform keeps; the rest is the owner's.
    pub fee: MicroCredits,
}

/// A charge that a rollback turns: what it was, and what is posted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChargeTurn {
    /// By which rollback.
    pub rollback: RollbackId,
    /// The record that it turns: that of the lease's end or, if the charge was turned before, the
    /// newest that did. No record is ever turned twice.
    pub of: u64,
    /// How the charge stands from here on.
    pub standing: ChargeStanding,
    /// Which lease.
    pub lease: LeaseId,
    /// Which request it served.
    pub request: RequestId,
    /// Who paid.
    pub tenant: TenantId,
    /// Who earned.
    pub owner: TenantId,
    /// When the lease was granted: the month whose budget it counts for.
    pub granted_at: Timestamp,
    /// The share of GPUs of all its members together.
    pub gpu: GpuMilli,
    /// The price frozen at the grant.
    pub price: Price,
    /// The charge.
    pub settlement: Settlement,
    /// The lines of the charge the other way round, or as they were.
    pub lines: Vec<Line>,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Event {
    /// The cell was founded.
    CellCreated {
        /// Its name.
        cell: CellId,
        /// How often it was restored from a backup.
        epoch: u32,
        /// Its policy.
        policy: Policy,
    },
    /// The policy was replaced.
    PolicySet {
        /// The new one.
        policy: Policy,
    },
    /// A tenant was added.
    TenantCreated {
        /// Its id.
        tenant: TenantId,
        /// The group it belongs to.
        parent: Option<TenantId>,
    },
    /// A quota was set.
    QuotaSet {
        /// Whose.
        tenant: TenantId,
        /// For which model.
        model: GpuModel,
        /// The quota.
        quota: Quota,
    },
    /// A cluster was added.
    ClusterCreated {
        /// Its id.
        cluster: ClusterId,
        /// Who owns it.
        owner: TenantId,
        /// Where it stands.
        region: Region,
        /// Most devices it may offer.
        devices_max: u32,
    },
    /// A price was posted.
    PriceSet {
        /// By whom.
        owner: TenantId,
        /// For which model.
        model: GpuModel,
        /// For which tier.
        tier: Tier,
        /// The price with its version.
        price: Price,
    },
    /// An agent started and stopped whatever ran under its earlier start.
    NodeRegistered {
        /// Its cluster.
        cluster: ClusterId,
        /// Its node.
        node: NodeId,
        /// Which start.
        boot: Boot,
        /// Which machine.
        host: HostHash,
    },
    /// An agent was silent for so long that its guests are gone.
    NodeSilenced {
        /// Its cluster.
        cluster: ClusterId,
        /// Its node.
        node: NodeId,
        /// The start that fell silent.
        boot: Boot,
    },
    /// Capacity can be leased.
    CapacityOffered {
        /// What.
        offer: OfferTerms,
        /// Until when, unless repeated.
        expires_at: Timestamp,
    },
    /// An offer ended without a grant.
    OfferRescinded {
        /// Which slice.
        slice: SliceId,
        /// Its generation.
        generation: u64,
        /// Why.
        reason: RescindReason,
    },
    /// A request waits.
    RequestSubmitted {
        /// Its id.
        request: RequestId,
        /// Whose.
        tenant: TenantId,
        /// What.
        spec: RequestSpec,
    },
    /// A request can never run and was not queued.
    RequestRefused {
        /// Its id.
        request: RequestId,
        /// Whose.
        tenant: TenantId,
        /// What.
        spec: RequestSpec,
        /// Why.
        rejection: Rejection,
    },
    /// Its tenant withdrew it.
    RequestCancelled {
        /// Which request.
        request: RequestId,
        /// Whose.
        tenant: TenantId,
    },
    /// It waits again, with its first submit time.
    RequestRequeued {
        /// Which request.
        request: RequestId,
        /// Whose.
        tenant: TenantId,
        /// Why its lease ended.
        reason: EndReason,
    },
    /// It was served, or will not be tried again.
    RequestClosed {
        /// Which request.
        request: RequestId,
        /// Whose.
        tenant: TenantId,
        /// Why its lease ended.
        reason: EndReason,
    },
    /// Capacity that others free is kept for a request.
    CapacityPledged {
        /// For which request.
        request: RequestId,
        /// Which slices.
        slices: Vec<SliceId>,
        /// Until when.
        until: Timestamp,
    },
    /// The pledge is over: used, expired or no longer wanted.
    PledgeEnded {
        /// For which request.
        request: RequestId,
    },
    /// A lease was granted; its offers are consumed.
    LeaseGranted {
        /// What was granted.
        terms: LeaseTerms,
        /// The hold.
        lines: Vec<Line>,
    },
    /// A member is prepared.
    MemberConfirmed {
        /// Which lease.
        lease: LeaseId,
        /// Which member.
        slice: SliceId,
    },
    /// A member will not start.
    MemberRefused {
        /// Which lease.
        lease: LeaseId,
        /// Which member.
        slice: SliceId,
        /// Why.
        reason: NackReason,
    },
    /// All members are prepared: the bought time runs.
    LeaseActivated {
        /// Which lease.
        lease: LeaseId,
        /// The bought end.
        ends_at: Timestamp,
    },
    /// Use so far, as measured.
    UsageRecorded {
        /// Which lease.
        lease: LeaseId,
        /// Cumulative.
        used: Millis,
    },
    /// The guest must go.
    LeaseEnding {
        /// Which lease.
        lease: LeaseId,
        /// Why.
        cause: EndReason,
        /// When it is gone at the latest.
        deadline: Timestamp,
    },
    /// No guest is left on a member and the slice is clean.
    MemberStopped {
        /// Which lease.
        lease: LeaseId,
        /// Which member.
        slice: SliceId,
        /// How long the guest ran.
        used: Millis,
        /// How it ended.
        outcome: GuestOutcome,
    },
    /// The lease is over: its slices are free and its charge is final.
    LeaseEnded {
        /// Which lease.
        lease: LeaseId,
        /// Which request it served.
        request: RequestId,
        /// Who pays.
        tenant: TenantId,
        /// Who earns.
        owner: TenantId,
        /// Why.
        reason: EndReason,
        /// What it cost.
        settlement: Settlement,
        /// The hold given back and the cost posted.
        lines: Vec<Line>,
    },
    /// Everything before this record is sealed into a segment.
    TailSealed {
        /// The first record of the segment.
        first: u64,
    },
    /// An idempotency key was used.
    KeyUsed {
        /// By a user of which tenant; none for an operator.
        tenant: Option<TenantId>,
        /// The hashed key and body.
        key: IdempotencyKey,
        /// The first record the mutation made.
        first: u64,
    },
    /// Keys that were remembered long enough are forgotten.
    KeysForgotten {
        /// All that were used before this instant.
        before: Timestamp,
    },
    /// Two machines claim one node id: nothing is taken from it until its known machine's agent
    /// starts anew, or the node is removed.
    NodeFenced {
        /// Its cluster.
        cluster: ClusterId,
        /// Its node.
        node: NodeId,
        /// The machine that is not the known one.
        other: HostHash,
    },
    /// A tenant's weight and budgets were set.
    TermsSet {
        /// Whose.
        tenant: TenantId,
        /// The new terms.
        terms: TenantTerms,
    },
    /// A tenant went to another group, with all below it.
    TenantMoved {
        /// Which tenant.
        tenant: TenantId,
        /// Its new group.
        parent: Option<TenantId>,
    },
    /// A change of the tree left a tenant or group with more than it may have: it is granted nothing
    /// more until leases have ended.
    TenantOverAdmitted {
        /// Who.
        tenant: TenantId,
        /// Of which model.
        model: GpuModel,
        /// By how much.
        excess: GpuMilli,
    },
    /// A budget was cut below what the lease may still cost: no more than this is billed.
    LeaseCapped {
        /// Which lease.
        lease: LeaseId,
        /// The most that is billed, since activation.
        billed_max: Millis,
    },
    /// The work of a lease up to now is saved.
    CheckpointReported {
        /// Which lease.
        lease: LeaseId,
    },
    /// The owner wants the lease to be gone by an instant.
    LeaseRecalled {
        /// Which lease.
        lease: LeaseId,
        /// When its guests must go.
        by: Timestamp,
    },
    /// Its tenant is warned: unless something changes, the guest must go at a known moment.
    LeaseEndAnnounced {
        /// Which lease.
        lease: LeaseId,
        /// Why it would end.
        cause: EndReason,
        /// When its guest would be told to go.
        at: Timestamp,
    },
    /// A request that found no room was told when it will start at the latest, and where.
    StartPromised {
        /// Which request.
        request: RequestId,
        /// Whose.
        tenant: TenantId,
        /// When it will start at the latest.
        start: Timestamp,
        /// It could not start before this even if its slices were free.
        not_before: Timestamp,
        /// The slices that are kept for it from then on.
        slices: Vec<SliceId>,
        /// Why now.
        cause: PromiseCause,
    },
    /// What was promised to a request cannot be kept, and no other start is known.
    PromiseWithdrawn {
        /// Which request.
        request: RequestId,
        /// Whose.
        tenant: TenantId,
        /// Why.
        cause: PromiseCause,
    },
    /// When it is off-peak for a tenant was set.
    CalendarSet {
        /// Whose.
        tenant: TenantId,
        /// The hours; none takes those of its group.
        calendar: Option<Calendar>,
    },
    /// A node was forgotten: the next agent that says hello under its id registers anew.
    NodeRemoved {
        /// Its cluster.
        cluster: ClusterId,
        /// Its node.
        node: NodeId,
    },
    /// The cell was made anew from a backup. Everything before this record is from the old cell.
    CellRestored {
        /// How often it has been restored now: the epoch of every token from here on.
        epoch: u32,
    },
    /// The cell may use what needs this feature level.
    FeatureLevelRaised {
        /// The level.
        level: u16,
    },
    /// The books are closed up to an instant: charges that are settled behind this record and fall
    /// before it count at it, as corrections.
    PeriodClosed {
        /// What was open first until now; the beginning of time at the first close.
        from: Timestamp,
        /// The first instant that stays open.
        until: Timestamp,
    },
    /// What a tenant is called was set or erased. The name itself is in no record.
    TenantNamed {
        /// Whose.
        tenant: TenantId,
        /// Whether it has one now.
        is_named: bool,
    },
    /// A broker's number was used: it is never given to another one.
    BrokerEnlisted {
        /// The number.
        broker: u64,
    },
    /// A batch of leases is to be undone.
    RollbackProposed {
        /// Its id.
        rollback: RollbackId,
        /// Which operator wants it.
        proposed_by: Subject,
        /// How its leases were chosen.
        selector: RollbackSelector,
        /// Which leases, in ascending order.
        leases: Vec<LeaseId>,
        /// How much money it moves at most.
        money: MicroCredits,
        /// SHA-256 of what the dry run showed.
        digest: [u8; 32],
        /// Until when another operator must approve it; none if it begins at once.
        approve_by: Option<Timestamp>,
    },
    /// Another operator approved a rollback: it begins.
    RollbackApproved {
        /// Which.
        rollback: RollbackId,
        /// Which operator approved it.
        approved_by: Subject,
    },
    /// A rollback will not be done.
    RollbackDropped {
        /// Which.
        rollback: RollbackId,
        /// Why.
        cause: DropCause,
    },
    /// A rollback has come to a lease that has not ended: how its charge will stand when it has.
    LeaseRolledBack {
        /// Which rollback.
        rollback: RollbackId,
        /// Which lease.
        lease: LeaseId,
        /// Who pays.
        tenant: TenantId,
        /// How its charge will stand.
        standing: ChargeStanding,
    },
    /// A charge was reversed, or stands again.
    ChargeTurned {
        /// Which, and how.
        turn: ChargeTurn,
    },
    /// A rollback has handled more of its leases.
    RollbackAdvanced {
        /// Which.
        rollback: RollbackId,
        /// How many are handled now, from the first on.
        done: u32,
        /// How many of them had nothing to undo: they cost nothing, or were undone before.
        untouched: u32,
    },
    /// A rollback has handled all of its leases. Those that live end by themselves from here on.
    RollbackFinished {
        /// Which.
        rollback: RollbackId,
    },
}

impl Event {
    /// The event's name, as in the JSON form and in metrics.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Event::CellCreated { .. } => "cell_created",
            Event::PolicySet { .. } => "policy_set",
            Event::TenantCreated { .. } => "tenant_created",
            Event::QuotaSet { .. } => "quota_set",
            Event::ClusterCreated { .. } => "cluster_created",
            Event::PriceSet { .. } => "price_set",
            Event::NodeRegistered { .. } => "node_registered",
            Event::NodeSilenced { .. } => "node_silenced",
            Event::CapacityOffered { .. } => "capacity_offered",
            Event::OfferRescinded { .. } => "offer_rescinded",
            Event::RequestSubmitted { .. } => "request_submitted",
            Event::RequestRefused { .. } => "request_refused",
            Event::RequestCancelled { .. } => "request_cancelled",
            Event::RequestRequeued { .. } => "request_requeued",
            Event::RequestClosed { .. } => "request_closed",
            Event::CapacityPledged { .. } => "capacity_pledged",
            Event::PledgeEnded { .. } => "pledge_ended",
            Event::LeaseGranted { .. } => "lease_granted",
            Event::MemberConfirmed { .. } => "member_confirmed",
            Event::MemberRefused { .. } => "member_refused",
            Event::LeaseActivated { .. } => "lease_activated",
            Event::UsageRecorded { .. } => "usage_recorded",
            Event::LeaseEnding { .. } => "lease_ending",
            Event::MemberStopped { .. } => "member_stopped",
            Event::LeaseEnded { .. } => "lease_ended",
            Event::TailSealed { .. } => "tail_sealed",
            Event::KeyUsed { .. } => "key_used",
            Event::KeysForgotten { .. } => "keys_forgotten",
            Event::NodeFenced { .. } => "node_fenced",
            Event::TermsSet { .. } => "terms_set",
            Event::TenantMoved { .. } => "tenant_moved",
            Event::TenantOverAdmitted { .. } => "tenant_over_admitted",
            Event::LeaseCapped { .. } => "lease_capped",
            Event::CheckpointReported { .. } => "checkpoint_reported",
            Event::LeaseRecalled { .. } => "lease_recalled",
            Event::LeaseEndAnnounced { .. } => "lease_end_announced",
            Event::StartPromised { .. } => "start_promised",
            Event::PromiseWithdrawn { .. } => "promise_withdrawn",
            Event::CalendarSet { .. } => "calendar_set",
            Event::NodeRemoved { .. } => "node_removed",
            Event::CellRestored { .. } => "cell_restored",
            Event::FeatureLevelRaised { .. } => "feature_level_raised",
            Event::PeriodClosed { .. } => "period_closed",
            Event::TenantNamed { .. } => "tenant_named",
            Event::BrokerEnlisted { .. } => "broker_enlisted",
            Event::RollbackProposed { .. } => "rollback_proposed",
            Event::RollbackApproved { .. } => "rollback_approved",
            Event::RollbackDropped { .. } => "rollback_dropped",
            Event::LeaseRolledBack { .. } => "lease_rolled_back",
            Event::ChargeTurned { .. } => "charge_turned",
            Event::RollbackAdvanced { .. } => "rollback_advanced",
            Event::RollbackFinished { .. } => "rollback_finished",
        }
    }

    /// The posting of the event; empty if it moves no money.
    #[must_use]
    pub fn lines(&self) -> &[Line] {
        match self {
            Event::LeaseGranted { lines, .. } | Event::LeaseEnded { lines, .. } => lines,
            Event::ChargeTurned { turn } => &turn.lines,
            _moves_no_money => &[],
        }
    }

    /// The tenant whose business the event is, where the event itself names one.
    #[must_use]
    pub const fn tenant(&self) -> Option<TenantId> {
        self.names().tenant
    }

    /// The lease the event is about.
    #[must_use]
    pub const fn lease(&self) -> Option<LeaseId> {
        self.names().lease
    }

    /// The request the event is about.
    #[must_use]
    pub const fn request(&self) -> Option<RequestId> {
        self.names().request
    }

    /// The rollback the event is about or was caused by.
    #[must_use]
    pub const fn rollback(&self) -> Option<RollbackId> {
        match self {
            Event::RollbackProposed { rollback, .. }
            | Event::RollbackApproved { rollback, .. }
            | Event::RollbackDropped { rollback, .. }
            | Event::LeaseRolledBack { rollback, .. }
            | Event::RollbackAdvanced { rollback, .. }
            | Event::RollbackFinished { rollback } => Some(*rollback),
            Event::ChargeTurned { turn } => Some(turn.rollback),
            _no_rollback => None,
        }
    }

    const fn names(&self) -> Names {
        match self {
            Event::TenantCreated { tenant, .. }
            | Event::QuotaSet { tenant, .. }
            | Event::TermsSet { tenant, .. }
            | Event::CalendarSet { tenant, .. }
            | Event::TenantMoved { tenant, .. }
            | Event::TenantNamed { tenant, .. }
            | Event::TenantOverAdmitted { tenant, .. } => Names::of(Some(*tenant), None, None),
            Event::ClusterCreated { owner, .. } | Event::PriceSet { owner, .. } => {
                Names::of(Some(*owner), None, None)
            }
            Event::KeyUsed { tenant, .. } => Names::of(*tenant, None, None),
            Event::RequestSubmitted { request, tenant, .. }
            | Event::RequestRefused { request, tenant, .. }
            | Event::RequestCancelled { request, tenant }
            | Event::RequestRequeued { request, tenant, .. }
            | Event::RequestClosed { request, tenant, .. }
            | Event::StartPromised { request, tenant, .. }
            | Event::PromiseWithdrawn { request, tenant, .. } => {
                Names::of(Some(*tenant), None, Some(*request))
            }
            Event::CapacityPledged { request, .. } | Event::PledgeEnded { request } => {
                Names::of(None, None, Some(*request))
            }
            Event::LeaseGranted { terms, .. } => {
                Names::of(Some(terms.tenant), Some(terms.lease), Some(terms.request))
            }
            Event::ChargeTurned { turn } => {
                Names::of(Some(turn.tenant), Some(turn.lease), Some(turn.request))
            }
            Event::LeaseRolledBack { lease, tenant, .. } => {
                Names::of(Some(*tenant), Some(*lease), None)
            }
            Event::LeaseEnded { lease, request, tenant, .. } => {
                Names::of(Some(*tenant), Some(*lease), Some(*request))
            }
            Event::MemberConfirmed { lease, .. }
            | Event::MemberRefused { lease, .. }
            | Event::LeaseActivated { lease, .. }
            | Event::UsageRecorded { lease, .. }
            | Event::LeaseEnding { lease, .. }
            | Event::LeaseCapped { lease, .. }
            | Event::CheckpointReported { lease }
            | Event::LeaseRecalled { lease, .. }
            | Event::LeaseEndAnnounced { lease, .. }
            | Event::MemberStopped { lease, .. } => Names::of(None, Some(*lease), None),
            Event::CellCreated { .. }
            | Event::CellRestored { .. }
            | Event::BrokerEnlisted { .. }
            | Event::FeatureLevelRaised { .. }
            | Event::PolicySet { .. }
            | Event::NodeRegistered { .. }
            | Event::NodeSilenced { .. }
            | Event::NodeFenced { .. }
            | Event::NodeRemoved { .. }
            | Event::PeriodClosed { .. }
            | Event::RollbackProposed { .. }
            | Event::RollbackApproved { .. }
            | Event::RollbackDropped { .. }
            | Event::RollbackAdvanced { .. }
            | Event::RollbackFinished { .. }
            | Event::CapacityOffered { .. }
            | Event::OfferRescinded { .. }
            | Event::TailSealed { .. }
            | Event::KeysForgotten { .. } => Names::of(None, None, None),
        }
    }
}

/// Whom an event names.
struct Names {
    tenant: Option<TenantId>,
    lease: Option<LeaseId>,
    request: Option<RequestId>,
}

impl Names {
    const fn of(
        tenant: Option<TenantId>,
        lease: Option<LeaseId>,
        request: Option<RequestId>,
    ) -> Names {
        Names { tenant, lease, request }
    }
}
