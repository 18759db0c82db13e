//! Rollbacks: what an operator undoes, and how far that has come. Nothing is deleted: a rollback adds
//! records that compensate.

use serde::{Deserialize, Serialize};

use crate::ids::{ClusterId, CommandId, GpuModel, LeaseId, RollbackId, Subject, TenantId};
use crate::money::MicroCredits;
use crate::units::{Seconds, Timestamp};

/// Most leases of one rollback.
pub const ROLLBACK_LEASES_MAX: usize = 16_384;
/// Most leases that one step of a rollback handles.
pub const ROLLBACK_STEP: usize = 64;

/// Which leases are to be rolled back: those that everything that is named here is true of.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RollbackSelector {
    /// Leases of this tenant.
    pub tenant: Option<TenantId>,
    /// Leases on this cluster.
    pub cluster: Option<ClusterId>,
    /// Leases of this GPU model.
    pub model: Option<GpuModel>,
    /// Leases that were granted at this instant or later.
    pub from: Option<Timestamp>,
    /// Leases that were granted before this instant.
    pub until: Option<Timestamp>,
    /// Leases whose request this subject submitted.
    pub requested_by: Option<Subject>,
    /// Leases that this plan granted: the command that caused their grants.
    pub plan: Option<CommandId>,
    /// Leases whose request came with a prediction of this version of the predictor's model.
    pub predictor: Option<u32>,
    /// What this earlier rollback did is undone: charges that it reversed stand again.
    pub rollback: Option<RollbackId>,
}

/// How a charge stands behind a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum ChargeStanding {
    /// It is reversed: the borrower pays nothing, nobody earns.
    Reversed,
    /// It counts.
    Charged,
}

impl ChargeStanding {
    /// The other one.
    #[must_use]
    pub const fn turned(self) -> ChargeStanding {
        match self {
            ChargeStanding::Reversed => ChargeStanding::Charged,
            ChargeStanding::Charged => ChargeStanding::Reversed,
        }
    }

    /// The word for it, as in the JSON form.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            ChargeStanding::Reversed => "reversed",
            ChargeStanding::Charged => "charged",
        }
    }
}

/// Why a rollback that waited for its approval will not be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum DropCause {
    /// An operator rejected it.
    Rejected,
    /// Nobody approved it in time.
    Expired,
}

/// Which rollbacks one operator may not do alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RollbackPolicy {
    /// With more leases than this, another operator must approve it.
    pub leases_alone: u32,
    /// With more money than this, in micro-units, another operator must approve it.
    #[cfg_attr(feature = "openapi", schema(value_type = i64))]
    pub money_alone: MicroCredits,
    /// A rollback that nobody has approved for this long is dropped.
    pub approve_within: Seconds,
}

impl Default for RollbackPolicy {
    fn default() -> RollbackPolicy {
        RollbackPolicy {
            leases_alone: 100,
            money_alone: MicroCredits::new(1_000 * MicroCredits::PER_UNIT),
            approve_within: Seconds::new(24 * 3_600),
        }
    }
}

/// Whether the leases are in ascending order, none twice, at least one and at most
/// [`ROLLBACK_LEASES_MAX`].
#[must_use]
pub fn is_list(leases: &[LeaseId]) -> bool {
    let is_ascending = leases.windows(2).all(|pair| pair[0] < pair[1]);
    (1..=ROLLBACK_LEASES_MAX).contains(&leases.len()) && is_ascending
}
