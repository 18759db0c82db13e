//! Dry runs and reasons: what would happen, and why something waits.

use serde::{Deserialize, Serialize};

use super::{FieldError, Money, Time};
use crate::ids::{ClusterId, GpuModel, LeaseId};
use crate::requests::{OnRecall, Tier, WaitReason};

/// Where a value of a request comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Origin {
    /// The body gives it.
    Declared,
    /// The body leaves it out.
    Default,
    /// The predictor says it.
    Predicted,
    /// The cell's policy says it.
    Policy,
    /// It follows from the posted prices.
    Price,
}

/// One value that would be used, and where it comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EffectiveValue {
    /// The name of the field.
    pub field: String,
    /// Its value as text, with its unit.
    pub value: String,
    /// Where it comes from.
    pub origin: Origin,
}

/// What would happen to a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum PlanOutcome {
    /// It would be granted at once.
    Grant {
        /// Where.
        cluster: ClusterId,
        /// On which GPU model.
        model: GpuModel,
        /// At which price per GPU-hour.
        per_gpu_hour: Money,
        /// How many slices.
        slices: u32,
        /// How much of a GPU each is, in thousandths: what was asked for or, where no smaller part is
        /// on offer, more. That is what is paid, and what counts for quotas and budgets.
        gpu: u64,
    },
    /// It would be granted once leases of a lower tier have ended for it.
    Preempt {
        /// How many leases would end.
        victims: u32,
        /// Those of them that are the caller's own.
        own: Vec<LeaseId>,
    },
    /// It would wait.
    Wait {
        /// Why.
        why: WhyView,
    },
    /// It would be refused.
    Refuse {
        /// The stable code.
        code: String,
        /// One sentence for a person.
        text: String,
        /// Which fields are the cause, if it can be said.
        errors: Vec<FieldError>,
    },
}

/// When and how a lease of this request could be taken away.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PreemptionTerms {
    /// Its rank.
    pub tier: Tier,
    /// Ranks that may preempt it.
    pub preempted_by: Vec<Tier>,
    /// It is not preempted before it has run this long, in seconds. The owner may always come.
    pub min_run: u64,
    /// Grace of the guest when it must go, in seconds.
    pub grace: u64,
    /// What happens to the request then.
    pub on_recall: OnRecall,
    /// One sentence for a person.
    pub text: String,
}

/// What would happen if the request were sent now. Nothing is changed or kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PlanView {
    /// What would happen.
    pub outcome: PlanOutcome,
    /// One sentence for a person.
    pub text: String,
    /// Every value that would be used, with its origin.
    pub effective: Vec<EffectiveValue>,
    /// The worst case: what would be set aside for the whole duration. None if no price is known.
    pub hold: Option<Money>,
    /// When and how the lease could be taken away.
    pub preemption: PreemptionTerms,
    /// The ledger time of the state that was asked.
    pub at: Time,
}

/// Why a request waits, or why a request or lease is in its state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WhyView {
    /// Which request or lease; none in a dry run.
    pub id: Option<String>,
    /// Its state.
    pub state: String,
    /// A stable code, lower case; of a waiting request its [`WaitReason`].
    pub code: String,
    /// The reason a person reads.
    pub text: String,
    /// Since when it is in its state; none in a dry run.
    pub since: Option<Time>,
    /// Its place in the queue, 1 for the first; none unless it waits, and none while it is deferred.
    pub position: Option<u32>,
    /// How many requests are before it; none unless it has a place in the queue.
    pub ahead: Option<u32>,
    /// What nearly fits, and what stands in the way.
    pub near_misses: Vec<NearMissView>,
    /// What the tenant could change, if something would help. A change with a number was tried out:
    /// with it the request would start now.
    pub change: Option<String>,
    /// When it will start at the latest, as it was promised. Later only with a reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promised_start: Option<Time>,
    /// When it will start if leases end as early as predicted; none if that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub earliest_start: Option<Time>,
    /// When it will start if every lease lasts as long as was bought; none if that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latest_start: Option<Time>,
    /// Why it cannot start as it is, if nothing that is known could meet it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
}

/// Offers that would fit but for one thing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NearMissView {
    /// What stands in the way.
    pub reason: WaitReason,
    /// How many offers.
    pub offers: u32,
    /// The cluster of one of them.
    pub cluster: Option<ClusterId>,
    /// What is the matter with that one, if there is more to say than the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}
