//! Refusals: why a command was not done. A closed list with stable codes, shown to tenants.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::requests::SpecError;

/// Why a command was refused. Nothing changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rejection {
    /// Same idempotency key, other content.
    #[error("this idempotency key was used for another body")]
    KeyReused,
    /// Too many keys are remembered.
    #[error("too many idempotency keys are in use: wait until older ones are forgotten")]
    KeysExhausted,
    /// The command is not for this kind of caller.
    #[error("this caller may not do that")]
    NotAllowed,
    /// A leader's command from another term.
    #[error("the command was made in another term")]
    OtherTerm,
    /// Before the cell was founded.
    #[error("the cell has not been created")]
    CellMissing,
    /// The cell was founded before.
    #[error("the cell exists already")]
    CellExists,
    /// A field of the policy is wrong.
    #[error("the policy contradicts itself")]
    PolicyInvalid,
    /// No such tenant.
    #[error("there is no such tenant")]
    TenantMissing,
    /// The tenant exists.
    #[error("the tenant exists already")]
    TenantExists,
    /// No such cluster.
    #[error("there is no such cluster")]
    ClusterMissing,
    /// The cluster exists.
    #[error("the cluster exists already")]
    ClusterExists,
    /// A price below zero, or one that no charge could be written with.
    #[error("the price is out of range")]
    PriceInvalid,
    /// A quota that is out of range.
    #[error("the quota is out of range")]
    QuotaInvalid,
    /// The node has not registered.
    #[error("the node has not registered")]
    NodeMissing,
    /// The agent's start is not the newest.
    #[error("a newer start of this agent is registered")]
    BootOld,
    /// Two machines claim one node id.
    #[error("another machine registered with this node id and start")]
    HostConflict,
    /// The offer names another cluster or node than its sender.
    #[error("the slice belongs to another cluster or node")]
    SliceForeign,
    /// The offer is not newer than what is known.
    #[error("a newer offer of this slice is known")]
    OfferOld,
    /// The offer's numbers make no sense.
    #[error("the offer is out of range")]
    OfferInvalid,
    /// A cap on offers or on the cluster's inventory.
    #[error("the cluster offers more than it may")]
    OffersExhausted,
    /// The slice, or one that overlaps it, is offered.
    #[error("an overlapping slice is offered")]
    OfferOverlaps,
    /// The slice, or one that overlaps it, is leased.
    #[error("the slice is leased")]
    SliceLeased,
    /// No such offer.
    #[error("there is no such offer")]
    OfferMissing,
    /// The offer is past its time.
    #[error("the offer has expired")]
    OfferExpired,
    /// A field of the request is out of range.
    #[error(transparent)]
    SpecInvalid(SpecError),
    /// The request's id is taken.
    #[error("the request exists already")]
    RequestExists,
    /// No such request.
    #[error("there is no such request")]
    RequestMissing,
    /// The request does not wait.
    #[error("the request does not wait")]
    RequestNotWaiting,
    /// Too many open requests.
    #[error("the tenant has as many open requests as it may")]
    RequestsExhausted,
    /// More than the quota could ever allow.
    #[error("the request is larger than the tenant's quota for every allowed model")]
    QuotaTooSmall,
    /// The quota is used up now.
    #[error("the tenant's quota for this model is used up")]
    QuotaExceeded,
    /// The owner has posted no price.
    #[error("the owner has posted no price for this model and tier")]
    PriceMissing,
    /// The posted price is above the cap.
    #[error("the posted price is above the request's cap")]
    PriceTooHigh,
    /// The hold cannot be written as money.
    #[error("the worst-case cost is too large to be written")]
    CostTooLarge,
    /// The plan gives another number of slices than asked.
    #[error("the plan gives another number of slices than asked")]
    PlanCount,
    /// The plan is larger than a plan may be, or names a thing twice.
    #[error("the plan is malformed")]
    PlanMalformed,
    /// A slice does not meet the request.
    #[error("a slice does not meet the request")]
    SliceUnfit,
    /// The slice is kept for another request.
    #[error("the slice is kept for another request")]
    SlicePledged,
    /// A victim is not of a lower tier, or is protected.
    #[error("a victim is not of a lower tier, or is protected")]
    VictimProtected,
    /// What the victims free does not serve the request.
    #[error("what the victims free does not serve the request")]
    VictimsUseless,
    /// The lease's id is taken.
    #[error("the lease exists already")]
    LeaseExists,
    /// No such lease.
    #[error("there is no such lease")]
    LeaseMissing,
    /// Not the lease's token.
    #[error("the token is not that of the lease")]
    TokenMismatch,
    /// Not a member of the lease.
    #[error("the slice is not a member of the lease")]
    MemberMissing,
    /// The lease is in another stage.
    #[error("the lease is ending already")]
    LeaseEnding,
    /// The lease runs: a refusal comes too late.
    #[error("the lease is active")]
    LeaseActive,
    /// Nothing to seal.
    #[error("the journal's tail is empty")]
    TailEmpty,
    /// Too many entries in one command.
    #[error("too many entries in one command")]
    TooMany,
    /// Ids or counters are used up.
    #[error("a counter is used up")]
    CounterExhausted,
    /// No such part can be carved out of such a GPU.
    #[error("no such part can be carved out of the GPU")]
    PartIllegal,
    /// Leases or pledges on the GPU leave no room for the part.
    #[error("what is on the GPU leaves no room for the part")]
    DeviceTaken,
    /// No more may be borrowed now.
    #[error("the tenant, or a group it is in, borrows as much of this model as it may")]
    BorrowLimitReached,
    /// The budget of the month does not cover the worst case.
    #[error("the budget of the month does not cover the worst case")]
    BudgetExceeded,
    /// Terms that are out of range.
    #[error("the tenant's terms are out of range")]
    TermsInvalid,
    /// A tenant would be below itself.
    #[error("a tenant cannot be below itself")]
    TenantCycle,
    /// The tree would be deeper than it may be.
    #[error("the tree of tenants may be at most 8 levels deep")]
    TenantTooDeep,
    /// More preemptions than the hour's budget allows.
    #[error("too many leases were preempted in the last hour")]
    PreemptionsExhausted,
    /// The request was preempted and pauses.
    #[error("the request was preempted and pauses before it is tried again")]
    RequestPaused,
    /// A checkpoint was reported just before.
    #[error("the lease reported a checkpoint just before: report less often")]
    CheckpointTooSoon,
    /// No guest of the lease runs yet.
    #[error("the lease is not active yet")]
    LeaseInactive,
    /// A recall that breaks the promised notice or the minimum run time.
    #[error("the recall is sooner than the promised notice or the minimum run time allow")]
    RecallTooSoon,
    /// Its guests used something, may idle, or not for long enough.
    #[error("the lease is not one that has used nothing for long enough")]
    LeaseNotStalled,
    /// A promise that lies in the past, changes nothing, or names what cannot be kept.
    #[error("the promise cannot be kept")]
    PromiseInvalid,
    /// None of the models that are asked for is known to the cell.
    #[error("no GPU model of that name is known")]
    ModelUnknown,
    /// Off-peak hours without a day or a length, or too many of them.
    #[error("the off-peak hours need a day and a length, and must be at most 16")]
    CalendarInvalid,
    /// The node's agent is heard, so the node is not gone.
    #[error("the node's agent is heard: stop it, and wait until the node is silent")]
    NodeHeard,
    /// Leases on the node have not ended.
    #[error("leases on the node have not ended yet")]
    NodeInUse,
    /// A period that is not over cannot be closed.
    #[error("the period is not over yet: close it when its last instant has passed")]
    PeriodNotOver,
    /// The books are closed further already.
    #[error("the books are closed beyond that already, and a close cannot be undone")]
    PeriodClosed,
    /// No such rollback.
    #[error("there is no such rollback, or it is over long since")]
    RollbackMissing,
    /// The rollback's id is taken.
    #[error("the rollback exists already")]
    RollbackExists,
    /// No leases, too many, or not in order.
    #[error("a rollback must have 1 to 16384 leases, in order, each once")]
    RollbackMalformed,
    /// Too many rollbacks wait or run.
    #[error("too many rollbacks wait for approval or run: finish or reject one first")]
    RollbacksExhausted,
    /// The rollback does not wait for an approval, or does not any longer.
    #[error("the rollback does not wait for an approval")]
    RollbackNotWaiting,
    /// Who proposed a rollback cannot approve it.
    #[error("another operator than the one who proposed the rollback must approve it")]
    ApproverIsProposer,
    /// What would be undone is not what was shown.
    #[error("what would be undone has changed: make the dry run again")]
    RollbackChanged,
    /// Nobody looked up what the leases cost.
    #[error("the ledger was not asked what the leases cost")]
    PastUnknown,
}

impl Rejection {
    /// The stable code, as in problem documents and metrics.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Rejection::KeyReused => "KEY_REUSED",
            Rejection::KeysExhausted => "KEYS_EXHAUSTED",
            Rejection::NotAllowed => "NOT_ALLOWED",
            Rejection::OtherTerm => "OTHER_TERM",
            Rejection::CellMissing => "CELL_MISSING",
            Rejection::CellExists => "CELL_EXISTS",
            Rejection::PolicyInvalid => "POLICY_INVALID",
            Rejection::TenantMissing => "TENANT_MISSING",
            Rejection::TenantExists => "TENANT_EXISTS",
            Rejection::ClusterMissing => "CLUSTER_MISSING",
            Rejection::ClusterExists => "CLUSTER_EXISTS",
            Rejection::PriceInvalid => "PRICE_INVALID",
            Rejection::QuotaInvalid => "QUOTA_INVALID",
            Rejection::NodeMissing => "NODE_MISSING",
            Rejection::BootOld => "BOOT_OLD",
            Rejection::HostConflict => "HOST_CONFLICT",
            Rejection::SliceForeign => "SLICE_FOREIGN",
            Rejection::OfferOld => "OFFER_OLD",
            Rejection::OfferInvalid => "OFFER_INVALID",
            Rejection::OffersExhausted => "OFFERS_EXHAUSTED",
            Rejection::OfferOverlaps => "OFFER_OVERLAPS",
            Rejection::SliceLeased => "SLICE_LEASED",
            Rejection::OfferMissing => "OFFER_MISSING",
            Rejection::OfferExpired => "OFFER_EXPIRED",
            Rejection::SpecInvalid(_) => "SPEC_INVALID",
            Rejection::RequestExists => "REQUEST_EXISTS",
            Rejection::RequestMissing => "REQUEST_MISSING",
            Rejection::RequestNotWaiting => "REQUEST_NOT_WAITING",
            Rejection::RequestsExhausted => "REQUESTS_EXHAUSTED",
            Rejection::QuotaTooSmall => "QUOTA_TOO_SMALL",
            Rejection::QuotaExceeded => "QUOTA_EXCEEDED",
            Rejection::PriceMissing => "PRICE_MISSING",
            Rejection::PriceTooHigh => "PRICE_TOO_HIGH",
            Rejection::CostTooLarge => "COST_TOO_LARGE",
            Rejection::PlanCount => "PLAN_COUNT",
            Rejection::PlanMalformed => "PLAN_MALFORMED",
            Rejection::SliceUnfit => "SLICE_UNFIT",
            Rejection::SlicePledged => "SLICE_PLEDGED",
            Rejection::VictimProtected => "VICTIM_PROTECTED",
            Rejection::VictimsUseless => "VICTIMS_USELESS",
            Rejection::LeaseExists => "LEASE_EXISTS",
            Rejection::LeaseMissing => "LEASE_MISSING",
            Rejection::TokenMismatch => "TOKEN_MISMATCH",
            Rejection::MemberMissing => "MEMBER_MISSING",
            Rejection::LeaseEnding => "LEASE_ENDING",
            Rejection::LeaseActive => "LEASE_ACTIVE",
            Rejection::TailEmpty => "TAIL_EMPTY",
            Rejection::TooMany => "TOO_MANY",
            Rejection::CounterExhausted => "COUNTER_EXHAUSTED",
            Rejection::PartIllegal => "PART_ILLEGAL",
            Rejection::DeviceTaken => "DEVICE_TAKEN",
            Rejection::BorrowLimitReached => "BORROW_LIMIT_REACHED",
            Rejection::BudgetExceeded => "BUDGET_EXCEEDED",
            Rejection::TermsInvalid => "TERMS_INVALID",
            Rejection::TenantCycle => "TENANT_CYCLE",
            Rejection::TenantTooDeep => "TENANT_TOO_DEEP",
            Rejection::PreemptionsExhausted => "PREEMPTIONS_EXHAUSTED",
            Rejection::RequestPaused => "REQUEST_PAUSED",
            Rejection::CheckpointTooSoon => "CHECKPOINT_TOO_SOON",
            Rejection::LeaseInactive => "LEASE_INACTIVE",
            Rejection::RecallTooSoon => "RECALL_TOO_SOON",
            Rejection::LeaseNotStalled => "LEASE_NOT_STALLED",
            Rejection::PromiseInvalid => "PROMISE_INVALID",
            Rejection::ModelUnknown => "MODEL_UNKNOWN",
            Rejection::CalendarInvalid => "CALENDAR_INVALID",
            Rejection::NodeHeard => "NODE_HEARD",
            Rejection::NodeInUse => "NODE_IN_USE",
            Rejection::PeriodNotOver => "PERIOD_NOT_OVER",
            Rejection::PeriodClosed => "PERIOD_CLOSED",
            Rejection::RollbackMissing => "ROLLBACK_MISSING",
            Rejection::RollbackExists => "ROLLBACK_EXISTS",
            Rejection::RollbackMalformed => "ROLLBACK_MALFORMED",
            Rejection::RollbacksExhausted => "ROLLBACKS_EXHAUSTED",
            Rejection::RollbackNotWaiting => "ROLLBACK_NOT_WAITING",
            Rejection::ApproverIsProposer => "APPROVER_IS_PROPOSER",
            Rejection::RollbackChanged => "ROLLBACK_CHANGED",
            Rejection::PastUnknown => "PAST_UNKNOWN",
        }
    }
}
