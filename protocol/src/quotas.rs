//! Terms of a tenant: quotas for each GPU model, its weight, and its budgets for a month.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::money::MicroCredits;
use crate::units::{GpuMilli, GpuTime};

/// What a quota's nominal amount rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Basis {
    /// It counts as it was set.
    #[default]
    Allowance,
    /// It counts as far as the tenant's own clusters have it on offer or on lease now.
    Hardware,
}

/// How much of one GPU model a tenant may hold, borrow and lend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quota {
    /// Guaranteed to the tenant, and what it brings to its group.
    pub nominal: GpuMilli,
    /// The most it may borrow from its group; none means no limit. Without a group nothing is
    /// borrowed.
    pub borrow_limit: Option<GpuMilli>,
    /// The most of its own that its group may lend to others; none means all.
    pub lend_limit: Option<GpuMilli>,
    /// What the nominal amount rests on.
    pub basis: Basis,
}

/// Why terms are refused. The text names the field and its range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum TermsError {
    /// More than any quota may be.
    #[error("{0} must be at most 1000000000000 thousandths of a GPU")]
    Amount(&'static str),
    /// A weight out of range.
    #[error("weight must be at most 1000000 (thousandths)")]
    Weight,
    /// A budget below zero.
    #[error("budget must not be negative")]
    Budget,
}

impl Quota {
    /// Most that an amount of a quota can be: 10⁹ GPUs, so that sums never overflow.
    pub const MAX: GpuMilli = GpuMilli::new(1_000_000_000_000);

    /// A quota of exactly this much, with no limit on what its group borrows and lends.
    #[must_use]
    pub const fn of(nominal: GpuMilli) -> Quota {
        Quota { nominal, borrow_limit: None, lend_limit: None, basis: Basis::Allowance }
    }

    /// Checks that every amount is in its range; the first that is not is named.
    pub fn validate(&self) -> Result<(), TermsError> {
        let amounts = [
            ("nominal", Some(self.nominal)),
            ("borrow_limit", self.borrow_limit),
            ("lend_limit", self.lend_limit),
        ];
        let large = amounts.iter().find(|(_, amount)| amount.is_some_and(|a| a > Quota::MAX));
        large.map_or(Ok(()), |(name, _)| Err(TermsError::Amount(name)))
    }
}

/// How much a tenant counts when capacity is shared, in thousandths: 1,000 is the usual weight, 2,000
/// is entitled to twice as much, 0 borrows only what nobody else wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Weight(u32);

impl Weight {
    /// The usual weight.
    pub const ONE: Weight = Weight(1_000);
    /// The largest: a thousand times the usual.
    pub const MAX: Weight = Weight(1_000_000);

    /// This many thousandths.
    #[must_use]
    pub const fn new(thousandths: u32) -> Weight {
        Weight(thousandths)
    }

    /// How many thousandths.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl Default for Weight {
    fn default() -> Weight {
        Weight::ONE
    }
}

/// What a tenant may spend in a calendar month (UTC), with all tenants below it; none means no
/// limit. A lease counts whole for the month in which it was granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// GPU time.
    pub gpu_time: Option<GpuTime>,
    /// Money, zero or more.
    pub money: Option<MicroCredits>,
}

/// What members of a group may take back of what they have lent to each other, by ending leases that
/// rest on it. It is set for the group, and says nothing of what groups within it do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Reclaim {
    /// Nothing: leases are ended across a gap of tiers only.
    #[default]
    Never,
    /// What requests of a lower tier, or of the same tier and a lower priority, were granted.
    LowerPriority,
    /// All that was lent, whoever has it; and nobody who borrows ends a lease that rests on what is
    /// its tenant's own, whatever the tiers.
    Any,
}

/// What an operator sets for a tenant besides its quotas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TenantTerms {
    /// How much it counts when capacity is shared.
    pub weight: Weight,
    /// What it may spend in a month.
    pub budget: Budget,
    /// What those that belong to it may take back of what they have lent to each other.
    pub reclaim: Reclaim,
}

impl TenantTerms {
    /// Checks that every amount is in its range.
    pub fn validate(&self) -> Result<(), TermsError> {
        if self.weight > Weight::MAX {
            return Err(TermsError::Weight);
        }
        match self.budget.money.is_some_and(|money| money < MicroCredits::ZERO) {
            true => Err(TermsError::Budget),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_amount_of_a_quota_may_be_the_largest_and_no_more() {
        let most = Quota {
            borrow_limit: Some(Quota::MAX),
            lend_limit: Some(Quota::MAX),
            ..Quota::of(Quota::MAX)
        };
        assert_eq!(most.validate(), Ok(()));
        let over = Quota::MAX.saturating_add(GpuMilli::new(1));
        let rows = [
            ("nominal", Quota { nominal: over, ..most }),
            ("borrow_limit", Quota { borrow_limit: Some(over), ..most }),
            ("lend_limit", Quota { lend_limit: Some(over), ..most }),
        ];
        for (name, quota) in rows {
            assert_eq!(quota.validate(), Err(TermsError::Amount(name)));
        }
    }

    #[test]
    fn a_weight_of_zero_and_an_empty_budget_are_terms_and_less_than_nothing_is_not() {
        let terms = |weight, money| TenantTerms {
            weight: Weight::new(weight),
            budget: Budget { gpu_time: None, money: Some(MicroCredits::new(money)) },
            reclaim: Reclaim::Never,
        };
        assert_eq!(terms(0, 0).validate(), Ok(()));
        assert_eq!(terms(1_000_000, 0).validate(), Ok(()));
        assert_eq!(terms(1_000_001, 0).validate(), Err(TermsError::Weight));
        assert_eq!(terms(0, -1).validate(), Err(TermsError::Budget));
    }
}
