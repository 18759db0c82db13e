//! Rollbacks: which leases, what undoing them would do, and how far it has come.

use serde::{Deserialize, Serialize};

use super::{Money, Time};
use crate::ids::{ClusterId, CommandId, GpuModel, RollbackId, Subject, TenantId};
use crate::rollbacks::{DropCause, RollbackSelector};

/// Which leases are to be rolled back: those that everything that is named is true of. `from` or
/// `rollback` must be named.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RollbackSelect {
    /// Leases of this tenant.
    pub tenant: Option<TenantId>,
    /// Leases on this cluster.
    pub cluster: Option<ClusterId>,
    /// Leases of this GPU model.
    pub model: Option<GpuModel>,
    /// Leases that were granted at this instant or later.
    pub from: Option<Time>,
    /// Leases that were granted before this instant.
    pub until: Option<Time>,
    /// Leases whose request this subject submitted.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub requested_by: Option<Subject>,
    /// Leases that this plan granted: the `cause` of their grants in the ledger.
    pub plan: Option<CommandId>,
    /// Leases whose request came with a prediction of this version of the predictor's model.
    pub predictor: Option<u32>,
    /// Undo what this earlier rollback did.
    pub rollback: Option<RollbackId>,
}

impl From<&RollbackSelect> for RollbackSelector {
    fn from(select: &RollbackSelect) -> RollbackSelector {
        RollbackSelector {
            tenant: select.tenant,
            cluster: select.cluster,
            model: select.model,
            from: select.from.map(|time| time.0),
            until: select.until.map(|time| time.0),
            requested_by: select.requested_by.clone(),
            plan: select.plan,
            predictor: select.predictor,
            rollback: select.rollback,
        }
    }
}

/// What a rollback changes for one tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RollbackTenant {
    /// Who. It is told by the records of its leases.
    pub tenant: TenantId,
    /// Leases of it that are undone.
    pub leases: u32,
    /// How many of them live and end.
    pub live: u32,
    /// Change of its expense by ended leases: below zero is money that comes back to it, and to its budgets
    /// of the months of the grants.
    pub expense: Money,
    /// What is set aside for its live leases, which comes back.
    pub hold: Money,
    /// Change of what it earned by lending.
    pub revenue: Money,
}

/// What undoing these leases would do now. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RollbackPlan {
    /// SHA-256 over the selection and the leases, in hexadecimal digits; to be named when it is done.
    pub digest: String,
    /// How many leases are undone.
    pub leases: u32,
    /// How many of them live: they end as `rolled_back`, and their GPUs are free again when they have.
    pub live: u32,
    /// How many of those wait again, since their requests want that.
    pub requeued: u32,
    /// Leases that are selected and have nothing to undo.
    pub untouched: u32,
    /// How much money it moves at most.
    pub money: Money,
    /// Change of what the platform kept.
    pub fee: Money,
    /// Whom it concerns and how, by id.
    pub tenants: Vec<RollbackTenant>,
    /// Whether another operator must approve it.
    pub needs_approval: bool,
    /// How many records the ledger had.
    pub records: u64,
}

/// What begins a rollback, or proposes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RollbackCreate {
    /// Which leases.
    pub select: RollbackSelect,
    /// The digest that the dry run showed.
    pub digest: String,
}

/// What approves a rollback.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RollbackApprove {
    /// The digest of what was looked at.
    pub digest: String,
}

/// Where a rollback is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum RollbackState {
    /// Another operator must approve it.
    Proposed,
    /// It is being done.
    Running,
    /// It was not done.
    Dropped,
    /// All its leases were handled. Live ones may still be ending.
    Finished,
}

/// A rollback.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RollbackView {
    /// Its id.
    pub id: RollbackId,
    /// Where it is in its life.
    pub state: RollbackState,
    /// Since when.
    pub since: Time,
    /// Who proposed it.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub proposed_by: Subject,
    /// When.
    pub proposed_at: Time,
    /// Before when it must be approved, while it waits for that.
    pub approve_by: Option<Time>,
    /// Who approved it.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub approved_by: Option<Subject>,
    /// Why it was not done.
    pub dropped: Option<DropCause>,
    /// Which earlier rollback it undoes.
    pub rollback: Option<RollbackId>,
    /// How many leases it has.
    pub leases: u32,
    /// How many of them are handled.
    pub done: u32,
    /// How many of those had nothing to undo.
    pub untouched: u32,
    /// How many of those were live.
    pub live: u32,
    /// How many charges it has reversed, or charged again.
    pub turned: u32,
    /// How much money it moves at most.
    pub money: Money,
    /// The digest it was proposed with.
    pub digest: String,
}
