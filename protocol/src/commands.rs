//! Commands: what someone asks the cell to do. The raft log carries them stamped.
//!
//! New variants are added at the end only, with a golden file; none is ever reordered or changed.

use serde::{Deserialize, Serialize};

use crate::calendar::Calendar;
use crate::capacity::SliceId;
use crate::ids::{
    Boot, CellId, ClusterId, CommandId, GpuModel, HostHash, KeyId, LeaseId, NodeId, Region,
    RequestId, RollbackId, Subject, TenantId, Token,
};
use crate::leases::EndReason;
use crate::money::MicroCredits;
use crate::names::DisplayName;
use crate::offers::{OfferTerms, RescindReason};
use crate::policy::Policy;
use crate::quotas::{Quota, TenantTerms};
use crate::requests::{PromiseCause, RequestSpec, Tier};
use crate::rollbacks::RollbackSelector;
use crate::units::{Millis, Timestamp};

/// On whose behalf a command is proposed; set by the broker from a verified token or signature.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Actor {
    /// A tenant's user or program.
    Tenant {
        /// Whose rights it has.
        tenant: TenantId,
        /// Who it is.
        subject: Subject,
        /// Which key signed its token.
        key: KeyId,
    },
    /// An operator of the cell.
    Operator {
        /// Who it is.
        subject: Subject,
        /// Which key signed its token.
        key: KeyId,
    },
    /// An agent.
    Agent {
        /// Its cluster.
        cluster: ClusterId,
        /// Its node.
        node: NodeId,
    },
    /// The leader of the cell, by the rules.
    Leader,
}

/// A mutation's idempotency key, hashed, with the hash of the canonical body it came with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdempotencyKey {
    /// First 16 bytes of the SHA-256 of the key.
    pub key: [u8; 16],
    /// First 16 bytes of the SHA-256 of the canonical body with its route.
    pub body: [u8; 16],
}

/// A command as it stands in the raft log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stamped {
    /// Which command.
    pub id: CommandId,
    /// On whose behalf.
    pub actor: Actor,
    /// The leader's ledger time when it was proposed.
    pub now: Timestamp,
    /// The leader's term when it was proposed. A command of [`Actor::Leader`] is refused in
    /// another term.
    pub term: u64,
    /// The idempotency key of a mutation through the API.
    pub key: Option<IdempotencyKey>,
    /// What is asked.
    pub command: Command,
}

/// Why an agent does not start a granted member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NackReason {
    /// The token is not newer than the newest the agent has seen.
    StaleToken,
    /// The grant is for another start of the agent.
    OtherBoot,
    /// The owner's work is there.
    OwnerBusy,
    /// The slice is not empty.
    NotEmpty,
    /// The device is gone or sick.
    DeviceFault,
    /// The driver could not prepare or start the guest.
    StartFailed,
    /// The agent is being drained.
    Draining,
    /// The workload never came or does not match its hash.
    Workload,
}

/// How a guest ended on one member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum GuestOutcome {
    /// It never ran.
    NeverStarted,
    /// It finished by itself with this exit code.
    Exited {
        /// 0 is success.
        code: i32,
    },
    /// It was stopped.
    Stopped,
}

/// What the owner's side says when it takes a slice back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReclaimCause {
    /// The owner's work arrived.
    OwnerArrived,
    /// A process that neither owner nor guest accounts for.
    ForeignUse,
    /// The device is gone or sick.
    DeviceFault,
}

impl ReclaimCause {
    /// The end reason of a lease that is taken back for this cause.
    #[must_use]
    pub const fn end_reason(self) -> EndReason {
        match self {
            ReclaimCause::OwnerArrived => EndReason::Reclaimed,
            ReclaimCause::ForeignUse => EndReason::ForeignUse,
            ReclaimCause::DeviceFault => EndReason::DeviceFault,
        }
    }
}

/// A slice that a plan picks, with the generation of the offer it was seen in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanMember {
    /// Which slice.
    pub slice: SliceId,
    /// The offer's generation.
    pub generation: u64,
}

/// What a plan wants for one request. It is done whole or refused whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum PlanGroup {
    /// Grant these slices now.
    Grant {
        /// For which request.
        request: RequestId,
        /// One slice for each member.
        members: Vec<PlanMember>,
    },
    /// End these leases and keep what they free, with these offers, for the request.
    Preempt {
        /// For which request.
        request: RequestId,
        /// Leases of a lower tier, each needed.
        victims: Vec<LeaseId>,
        /// Slices of the victims that the request will use.
        freed: Vec<SliceId>,
        /// Free slices that the request needs besides.
        members: Vec<PlanMember>,
    },
    /// Keep these slices for a request that finds no room, from the instant at which it will start
    /// at the latest. In place of what was promised to it before.
    Promise {
        /// For which request.
        request: RequestId,
        /// When it will start at the latest.
        start: Timestamp,
        /// It could not start before this even if its slices were free.
        not_before: Timestamp,
        /// One slice for each member, offered or leased now.
        slices: Vec<SliceId>,
        /// Why now.
        cause: PromiseCause,
    },
    /// No start can be promised to a request any longer.
    Withdraw {
        /// To which request.
        request: RequestId,
        /// Why.
        cause: PromiseCause,
    },
}

impl PlanGroup {
    /// The request it is for.
    #[must_use]
    pub const fn request(&self) -> RequestId {
        match self {
            PlanGroup::Grant { request, .. }
            | PlanGroup::Preempt { request, .. }
            | PlanGroup::Promise { request, .. }
            | PlanGroup::Withdraw { request, .. } => *request,
        }
    }
}

/// Guest time of a lease as measured by its agents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Usage {
    /// Which lease.
    pub lease: LeaseId,
    /// Since activation, cumulative, the largest of its members.
    pub used: Millis,
}

/// Most groups in one plan.
pub const PLAN_GROUPS_MAX: usize = 256;
/// Most entries in one [`Command::RecordUsage`].
pub const USAGE_ENTRIES_MAX: usize = 1_024;

/// What can be asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Command {
    /// Found the cell. The first command of every journal.
    CreateCell {
        /// Its name.
        cell: CellId,
        /// Its policy.
        policy: Policy,
    },
    /// Replace the cell's policy.
    SetPolicy {
        /// The new one.
        policy: Policy,
    },
    /// Add a tenant.
    CreateTenant {
        /// Its id.
        tenant: TenantId,
        /// The group it belongs to.
        parent: Option<TenantId>,
    },
    /// Set how much of one GPU model a tenant may hold, borrow and lend.
    SetQuota {
        /// Whose quota.
        tenant: TenantId,
        /// For which model.
        model: GpuModel,
        /// The quota.
        quota: Quota,
    },
    /// Add a cluster.
    CreateCluster {
        /// Its id.
        cluster: ClusterId,
        /// Who owns it and earns.
        owner: TenantId,
        /// Where it stands.
        region: Region,
        /// Most devices its agents may offer.
        devices_max: u32,
    },
    /// Post a price.
    SetPrice {
        /// Who posts it.
        owner: TenantId,
        /// For which model.
        model: GpuModel,
        /// For which tier.
        tier: Tier,
        /// Micro-units per GPU-hour.
        per_gpu_hour: MicroCredits,
    },
    /// An agent has started.
    RegisterNode {
        /// Its cluster.
        cluster: ClusterId,
        /// Its node.
        node: NodeId,
        /// Which start.
        boot: Boot,
        /// Which machine.
        host: HostHash,
    },
    /// Idle capacity can be leased.
    OfferCapacity {
        /// What and how long.
        offer: OfferTerms,
    },
    /// An offer is no longer true.
    RescindOffer {
        /// Which slice.
        slice: SliceId,
        /// Every offer up to this generation.
        generation: u64,
        /// The agent's start that speaks.
        boot: Boot,
        /// Why.
        reason: RescindReason,
    },
    /// An agent has prepared a granted member.
    ConfirmMember {
        /// Which lease.
        lease: LeaseId,
        /// Which member.
        slice: SliceId,
        /// The grant's token.
        token: Token,
        /// The agent's start that speaks.
        boot: Boot,
    },
    /// An agent refuses a granted member.
    RefuseMember {
        /// Which lease.
        lease: LeaseId,
        /// Which member.
        slice: SliceId,
        /// The grant's token.
        token: Token,
        /// The agent's start that speaks.
        boot: Boot,
        /// Why.
        reason: NackReason,
    },
    /// No guest is left on a member and the slice is clean.
    ReportStopped {
        /// Which lease.
        lease: LeaseId,
        /// Which member.
        slice: SliceId,
        /// The grant's token.
        token: Token,
        /// The agent's start that speaks.
        boot: Boot,
        /// How long the guest ran.
        used: Millis,
        /// How it ended.
        outcome: GuestOutcome,
    },
    /// The owner's side takes a leased slice back: its guest is being stopped already.
    ReclaimSlice {
        /// Which slice.
        slice: SliceId,
        /// The token of the guest that is being stopped.
        token: Token,
        /// The agent's start that speaks.
        boot: Boot,
        /// Why.
        cause: ReclaimCause,
    },
    /// A tenant asks for capacity.
    SubmitRequest {
        /// The id it will have.
        request: RequestId,
        /// For whom.
        tenant: TenantId,
        /// What.
        spec: RequestSpec,
    },
    /// A tenant no longer wants what it asked for.
    CancelRequest {
        /// Which request.
        request: RequestId,
    },
    /// A tenant gives a lease back.
    ReleaseLease {
        /// Which lease.
        lease: LeaseId,
    },
    /// An operator ends a lease.
    RevokeLease {
        /// Which lease.
        lease: LeaseId,
    },
    /// The leader's plan.
    CommitPlan {
        /// One entry per request, in the order to be tried.
        groups: Vec<PlanGroup>,
    },
    /// The leader writes down what agents measured.
    RecordUsage {
        /// At most [`USAGE_ENTRIES_MAX`].
        entries: Vec<Usage>,
    },
    /// An agent was silent for so long that its guests are gone by their own deadlines (LR2).
    DeclareSilent {
        /// Its cluster.
        cluster: ClusterId,
        /// Its node.
        node: NodeId,
        /// The start that fell silent.
        boot: Boot,
    },
    /// Do what is due by time.
    Sweep,
    /// Seal the journal's tail into a segment.
    SealTail,
    /// Set a tenant's weight and budgets.
    SetTerms {
        /// Whose.
        tenant: TenantId,
        /// The new terms.
        terms: TenantTerms,
    },
    /// Move a tenant, with all below it, to another group.
    MoveTenant {
        /// Which tenant.
        tenant: TenantId,
        /// Its new group; none puts it beside the groups.
        parent: Option<TenantId>,
    },
    /// A tenant's program has saved its work: what ran before is no longer lost with the lease.
    ReportCheckpoint {
        /// Which lease.
        lease: LeaseId,
    },
    /// The owner wants a lease to be gone by an instant.
    RecallLease {
        /// Which lease.
        lease: LeaseId,
        /// By plan, or at once.
        recall: Recall,
    },
    /// Every guest of a lease has used nothing for this long, as all its agents say.
    DeclareStalled {
        /// Which lease.
        lease: LeaseId,
        /// For how long, the least of its members.
        unused: Millis,
    },
    /// Set when it is off-peak for a tenant, and for all below it that have no hours of their own.
    SetCalendar {
        /// Whose.
        tenant: TenantId,
        /// The hours; none takes those of its group.
        calendar: Option<Calendar>,
    },
    /// Forget a node that is no more, so that its id can be given to another machine.
    RemoveNode {
        /// Its cluster.
        cluster: ClusterId,
        /// Its node.
        node: NodeId,
    },
    /// Let the cell use what needs this feature level. There is no way back.
    RaiseFeatureLevel {
        /// The level. Every broker can do it: the broker that proposes this has asked.
        level: u16,
    },
    /// Close the books up to an instant: what is settled later and falls before it is a correction of
    /// what comes behind it.
    ClosePeriod {
        /// The first instant that stays open.
        until: Timestamp,
    },
    /// Set what a tenant is called, or erase it. The name stands in the log until it is purged, and in
    /// no record.
    NameTenant {
        /// Whose.
        tenant: TenantId,
        /// The name; none erases it.
        name: Option<DisplayName>,
    },
    /// Remember that a broker's number was used, before the broker gets a vote.
    EnlistBroker {
        /// The number.
        broker: u64,
    },
    /// Undo a batch of leases. It begins at once, or waits for another operator to approve it.
    ProposeRollback {
        /// The id it will have.
        rollback: RollbackId,
        /// How its leases were chosen.
        selector: RollbackSelector,
        /// Which leases, in ascending order: at most
        /// [`ROLLBACK_LEASES_MAX`](crate::rollbacks::ROLLBACK_LEASES_MAX).
        leases: Vec<LeaseId>,
        /// How much money it moves at most: their charges, and the holds of those that live.
        money: MicroCredits,
        /// SHA-256 of what the dry run showed.
        digest: [u8; 32],
    },
    /// Let a rollback that another operator proposed begin.
    ApproveRollback {
        /// Which.
        rollback: RollbackId,
        /// The digest it was proposed with: what is approved is what was seen.
        digest: [u8; 32],
    },
    /// Drop a rollback that waits for its approval.
    RejectRollback {
        /// Which.
        rollback: RollbackId,
    },
    /// The leader does the next step of a rollback. Each broker looks up in its own ledger what the
    /// leases of the step cost.
    AdvanceRollback {
        /// Which.
        rollback: RollbackId,
        /// How many of its leases are done: another number makes it a step of the past.
        done: u32,
    },
}

/// How an owner recalls a lease through the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Recall {
    /// Its guests may run until then; the notice and the minimum run time are kept.
    Planned {
        /// When they must go.
        by: Timestamp,
    },
    /// They must go now. What ran for less than the minimum run time costs the borrower nothing.
    Emergency,
}

impl Command {
    /// The command's name, as in metrics.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Command::CreateCell { .. } => "create_cell",
            Command::SetPolicy { .. } => "set_policy",
            Command::CreateTenant { .. } => "create_tenant",
            Command::SetQuota { .. } => "set_quota",
            Command::CreateCluster { .. } => "create_cluster",
            Command::SetPrice { .. } => "set_price",
            Command::RegisterNode { .. } => "register_node",
            Command::OfferCapacity { .. } => "offer_capacity",
            Command::RescindOffer { .. } => "rescind_offer",
            Command::ConfirmMember { .. } => "confirm_member",
            Command::RefuseMember { .. } => "refuse_member",
            Command::ReportStopped { .. } => "report_stopped",
            Command::ReclaimSlice { .. } => "reclaim_slice",
            Command::SubmitRequest { .. } => "submit_request",
            Command::CancelRequest { .. } => "cancel_request",
            Command::ReleaseLease { .. } => "release_lease",
            Command::RevokeLease { .. } => "revoke_lease",
            Command::CommitPlan { .. } => "commit_plan",
            Command::RecordUsage { .. } => "record_usage",
            Command::DeclareSilent { .. } => "declare_silent",
            Command::Sweep => "sweep",
            Command::SealTail => "seal_tail",
            Command::SetTerms { .. } => "set_terms",
            Command::MoveTenant { .. } => "move_tenant",
            Command::ReportCheckpoint { .. } => "report_checkpoint",
            Command::RecallLease { .. } => "recall_lease",
            Command::DeclareStalled { .. } => "declare_stalled",
            Command::SetCalendar { .. } => "set_calendar",
            Command::RemoveNode { .. } => "remove_node",
            Command::RaiseFeatureLevel { .. } => "raise_feature_level",
            Command::ClosePeriod { .. } => "close_period",
            Command::NameTenant { .. } => "name_tenant",
            Command::EnlistBroker { .. } => "enlist_broker",
            Command::ProposeRollback { .. } => "propose_rollback",
            Command::ApproveRollback { .. } => "approve_rollback",
            Command::RejectRollback { .. } => "reject_rollback",
            Command::AdvanceRollback { .. } => "advance_rollback",
        }
    }
}

/// What came of one group of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum GroupOutcome {
    /// The lease that was granted.
    Granted {
        /// Its id.
        lease: LeaseId,
    },
    /// Victims are ending; what they free is kept for the request.
    Pledged,
    /// Stale or not allowed; nothing happened for this group.
    Refused {
        /// Why.
        rejection: crate::refusals::Rejection,
    },
    /// A start was promised, or a promise withdrawn.
    Promised,
    /// Nothing happened for this group, because something else came first.
    Overtaken {
        /// Why it was refused.
        rejection: crate::refusals::Rejection,
        /// The journal index of the record that has what it wanted: the grant or pledge of its request,
        /// or of its slices to another.
        by: u64,
    },
}

impl GroupOutcome {
    /// Why nothing happened for the group, if nothing did.
    #[must_use]
    pub const fn refusal(&self) -> Option<crate::refusals::Rejection> {
        match self {
            GroupOutcome::Granted { .. } | GroupOutcome::Pledged | GroupOutcome::Promised => None,
            GroupOutcome::Refused { rejection } | GroupOutcome::Overtaken { rejection, .. } => {
                Some(*rejection)
            }
        }
    }
}

/// What the log answers to a stamped command once it is committed and applied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Outcome {
    /// Done, by these records.
    Done {
        /// Journal index of the first record it made.
        first: u64,
        /// How many records it made; 0 if nothing had to change.
        count: u32,
        /// One entry per group of a plan, else empty.
        groups: Vec<GroupOutcome>,
    },
    /// Done before under the same idempotency key: the answer is rebuilt from that record.
    Repeated {
        /// Journal index of the first record it made then.
        first: u64,
    },
    /// Refused; nothing changed.
    Refused {
        /// Why.
        rejection: crate::refusals::Rejection,
    },
}
