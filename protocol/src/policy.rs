//! Replicated policy of a cell: the numbers that change decisions. Set by command, never by a file.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::money::Currency;
use crate::preemption::{ByTier, PAUSES_MAX, PreemptionPolicy};
use crate::requests::Class;
use crate::rollbacks::RollbackPolicy;
use crate::units::{Permille, Seconds};

/// The policy of a cell. Defaults are those of the lease protocol.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Policy {
    /// How often an agent renews its leases.
    pub renew: Seconds,
    /// How long a renewal lasts.
    pub lease_ttl: Seconds,
    /// Added to the silence after which a lease's agent counts as lost.
    pub silence_margin: Seconds,
    /// Largest clock rate error of any node.
    pub clock_rate_error: Permille,
    /// Grace of a guest of the opportunistic tier when the owner arrives.
    pub owner_grace_opportunistic: Seconds,
    /// Grace of every other guest.
    pub owner_grace: Seconds,
    /// Notice before a planned end: the bought end, and that of a lease that uses nothing. None of a
    /// bought end that comes sooner, or if zero.
    pub end_notice: Seconds,
    /// How long an offer stands unless it is repeated.
    pub offer_ttl: Seconds,
    /// How long a granted lease may take to start.
    pub start_timeout: Seconds,
    /// How often a request whose lease failed to start is tried again.
    pub start_retries: u32,
    /// How long freed capacity is kept for the request it was freed for.
    pub pledge: Seconds,
    /// A lease is not preempted before it has run this long, nor recalled without need; what its
    /// owner takes back before costs nothing.
    pub min_run: ByTier<Seconds>,
    /// What the platform keeps of each charge.
    pub fee: Permille,
    /// The one currency of the cell.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "EUR"))]
    pub currency: Currency,
    /// Waiting and granted requests a tenant may have.
    pub requests_per_tenant: u32,
    /// Idempotency keys remembered for a tenant.
    pub keys_per_tenant: u32,
    /// How long an idempotency key is remembered, at least.
    pub key_retention: Seconds,
    /// Offers a cluster may have at once.
    pub offers_per_cluster: u32,
    /// The journal's tail is sealed at this many records.
    pub seal_records: u32,
    /// The journal's tail is sealed after this much ledger time.
    pub seal_interval: Seconds,
    /// Past use counts half after this long.
    pub half_life: Seconds,
    /// A grant counts at once as if it had been used this long.
    pub entry_penalty: Seconds,
    /// Who may be preempted, when and how often.
    pub preemption: PreemptionPolicy,
    /// A node whose agent refused this many starts in a row is left out for a while.
    pub node_refusals: u32,
    /// For how long.
    pub node_pause: Seconds,
    /// A lease whose guests have all used nothing for this long is taken back as stalled; none ever
    /// is if this is nothing. Leases of latency-critical work may idle.
    pub stalled_after: Option<Seconds>,
    /// An agent whose wall clock is off by more than this is warned of.
    pub clock_warning: Seconds,
    /// An agent whose wall clock is off by more than this gets no new leases.
    pub clock_limit: Seconds,
    /// Which rollbacks need a second operator.
    pub rollback: RollbackPolicy,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            renew: Seconds::new(30),
            lease_ttl: Seconds::new(300),
            silence_margin: Seconds::new(30),
            clock_rate_error: Permille::new(10),
            owner_grace_opportunistic: Seconds::new(30),
            owner_grace: Seconds::new(120),
            end_notice: Seconds::new(120),
            offer_ttl: Seconds::new(15 * 60),
            start_timeout: Seconds::new(5 * 60),
            start_retries: 2,
            pledge: Seconds::new(10 * 60),
            min_run: ByTier::all(Seconds::new(10 * 60)),
            fee: Permille::new(50),
            currency: Currency::EUR,
            requests_per_tenant: 10_000,
            keys_per_tenant: 100_000,
            key_retention: Seconds::new(7 * 24 * 3_600),
            offers_per_cluster: 100_000,
            seal_records: 4_096,
            seal_interval: Seconds::new(10 * 60),
            half_life: Seconds::new(7 * 24 * 3_600),
            entry_penalty: Seconds::new(5 * 60),
            preemption: PreemptionPolicy::default(),
            node_refusals: 3,
            node_pause: Seconds::new(10 * 60),
            stalled_after: Some(Seconds::new(2 * 3_600)),
            clock_warning: Seconds::new(5),
            clock_limit: Seconds::new(60),
            rollback: RollbackPolicy::default(),
        }
    }
}

/// Which relation between two fields of a policy does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum PolicyError {
    /// A lease would end while its guest still has its grace.
    #[error("lease_ttl must be longer than owner_grace + 3 × renew")]
    TtlTooShort,
    /// Zero, where zero makes no sense.
    #[error("{0} must be at least 1")]
    Zero(&'static str),
    /// More than anything in a cell lasts.
    #[error("{0} must be at most {seconds} seconds ({1} days)", seconds = u64::from(*.1) * DAY)]
    TooLong(&'static str, u16),
    /// A guest would be warned when it should have gone.
    #[error("stalled_after must be longer than end_notice")]
    StalledTooShort,
    /// New leases would stop before anybody is warned.
    #[error("clock_limit must be at least clock_warning")]
    ClockLimitBelowWarning,
    /// More than the whole.
    #[error("{0} must be at most 1000 (thousandths)")]
    OverWhole(&'static str),
    /// Freed capacity would not be kept until those who free it are gone.
    #[error("pledge must be longer than owner_grace and owner_grace_opportunistic")]
    PledgeTooShort,
    /// Too many pauses.
    #[error("preemption.pauses must list at most 16")]
    PausesTooMany,
}

/// Seconds of a day.
const DAY: u64 = 24 * 3_600;
/// Longest time for which an offer may stand, in days: a replay of years has nobody who repeats offers.
const OFFER_DAYS_MAX: u16 = 3_660;
/// Longest of all other spans of a policy, in days. Beyond it the decay of a millisecond by a half-life is too small to be
/// written exactly, and what is meant by a span of years is "never", which no other span can be.
const SPAN_DAYS_MAX: u16 = 365;

impl Policy {
    /// Checks the relations between the fields; names the one that is wrong.
    pub fn validate(&self) -> Result<(), PolicyError> {
        let grace = self.owner_grace.max(self.owner_grace_opportunistic);
        let renewals = Seconds::new(self.renew.get().saturating_mul(3));
        if self.lease_ttl <= grace.saturating_add(renewals) {
            return Err(PolicyError::TtlTooShort);
        }
        let not_zero = [
            ("renew", self.renew.get()),
            ("offer_ttl", self.offer_ttl.get()),
            ("start_timeout", self.start_timeout.get()),
            ("requests_per_tenant", self.requests_per_tenant.into()),
            ("keys_per_tenant", self.keys_per_tenant.into()),
            ("offers_per_cluster", self.offers_per_cluster.into()),
            ("seal_records", self.seal_records.into()),
            ("seal_interval", self.seal_interval.get()),
            ("half_life", self.half_life.get()),
            ("preemption.tier_gap", self.preemption.tier_gap.into()),
            ("node_refusals", self.node_refusals.into()),
            ("clock_warning", self.clock_warning.get()),
            ("rollback.approve_within", self.rollback.approve_within.get()),
        ];
        if let Some((name, _)) = not_zero.iter().find(|(_, value)| *value == 0) {
            return Err(PolicyError::Zero(name));
        }
        let is_over = |span: Seconds, days: u16| span.get() > u64::from(days) * DAY;
        if is_over(self.offer_ttl, OFFER_DAYS_MAX) {
            return Err(PolicyError::TooLong("offer_ttl", OFFER_DAYS_MAX));
        }
        let too_long = self.spans().into_iter().find(|(_, span)| is_over(*span, SPAN_DAYS_MAX));
        if let Some((name, _)) = too_long {
            return Err(PolicyError::TooLong(name, SPAN_DAYS_MAX));
        }
        if self.pledge <= grace {
            return Err(PolicyError::PledgeTooShort);
        }
        if self.preemption.pauses.len() > PAUSES_MAX {
            return Err(PolicyError::PausesTooMany);
        }
        if self.stalled_after.is_some_and(|after| after <= self.end_notice) {
            return Err(PolicyError::StalledTooShort);
        }
        if self.clock_limit < self.clock_warning {
            return Err(PolicyError::ClockLimitBelowWarning);
        }
        let parts = [("fee", self.fee), ("clock_rate_error", self.clock_rate_error)];
        match parts.iter().find(|(_, part)| part.get() > 1_000) {
            Some((name, _)) => Err(PolicyError::OverWhole(name)),
            None => Ok(()),
        }
    }

    /// Every span of time but that of offers, by the name of its field.
    fn spans(&self) -> [(&'static str, Seconds); 22] {
        let Policy { preemption, min_run, .. } = self;
        let pauses = preemption.pauses.iter().copied().max();
        [
            ("renew", self.renew),
            ("lease_ttl", self.lease_ttl),
            ("silence_margin", self.silence_margin),
            ("owner_grace_opportunistic", self.owner_grace_opportunistic),
            ("owner_grace", self.owner_grace),
            ("end_notice", self.end_notice),
            ("start_timeout", self.start_timeout),
            ("pledge", self.pledge),
            ("min_run.opportunistic", min_run.opportunistic),
            ("min_run.standard", min_run.standard),
            ("min_run.reserved", min_run.reserved),
            ("key_retention", self.key_retention),
            ("seal_interval", self.seal_interval),
            ("half_life", self.half_life),
            ("entry_penalty", self.entry_penalty),
            ("preemption.min_run_max", preemption.min_run_max),
            ("preemption.pauses", pauses.unwrap_or(Seconds::ZERO)),
            ("preemption.checkpoint_interval", preemption.checkpoint_interval),
            ("node_pause", self.node_pause),
            ("stalled_after", self.stalled_after.unwrap_or(Seconds::ZERO)),
            ("clock_limit", self.clock_limit),
            ("rollback.approve_within", self.rollback.approve_within),
        ]
    }

    /// After how long without any use a lease of this class is taken back; never, if nothing.
    #[must_use]
    pub const fn stalled_after(&self, class: Class) -> Option<Seconds> {
        match class {
            Class::Latency => None,
            Class::Training | Class::Batch | Class::Experiment => self.stalled_after,
        }
    }

    /// How long the broker waits for a silent agent before it frees its leases (rule LR2):
    /// `TTL (1 + ρ) / (1 − ρ) + margin`, rounded up to a second.
    #[must_use]
    pub fn silence(&self) -> Seconds {
        let rate = u64::from(self.clock_rate_error.get().min(999));
        let stretched = self.lease_ttl.get().saturating_mul(1_000 + rate).div_ceil(1_000 - rate);
        Seconds::new(stretched).saturating_add(self.silence_margin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_policy_is_valid() {
        assert_eq!(Policy::default().validate(), Ok(()));
    }

    #[test]
    fn a_ttl_of_exactly_grace_and_three_renewals_is_refused_and_one_more_second_is_not() {
        let at = |ttl| Policy { lease_ttl: Seconds::new(ttl), ..Policy::default() }.validate();
        assert_eq!(at(210), Err(PolicyError::TtlTooShort));
        assert_eq!(at(211), Ok(()));
    }

    #[test]
    fn a_half_life_of_nothing_or_of_more_than_a_year_is_refused() {
        let of = |half_life| {
            Policy { half_life: Seconds::new(half_life), ..Policy::default() }.validate()
        };
        assert_eq!(of(0), Err(PolicyError::Zero("half_life")));
        assert_eq!(of(1), Ok(()));
        assert_eq!(of(31_536_000), Ok(()));
        assert_eq!(of(31_536_001), Err(PolicyError::TooLong("half_life", 365)));
    }

    #[test]
    fn no_span_is_longer_than_a_year_and_its_field_is_named() {
        let year = Seconds::new(31_536_000);
        let with = |span| {
            let preemption = PreemptionPolicy {
                min_run_max: span,
                pauses: vec![Seconds::new(60), span],
                checkpoint_interval: span,
                ..PreemptionPolicy::default()
            };
            Policy {
                silence_margin: span,
                offer_ttl: span,
                start_timeout: span,
                pledge: span,
                min_run: ByTier::all(span),
                key_retention: span,
                seal_interval: span,
                node_pause: span,
                stalled_after: Some(span),
                clock_limit: span,
                preemption,
                ..Policy::default()
            }
        };
        assert_eq!(with(year).validate(), Ok(()));
        let over = with(year.saturating_add(Seconds::new(1)));
        let usual = Policy::default();
        let rows = [
            ("lease_ttl", Policy { lease_ttl: Seconds::new(u64::MAX), ..usual.clone() }),
            ("silence_margin", Policy { silence_margin: over.silence_margin, ..usual.clone() }),
            ("start_timeout", Policy { start_timeout: over.start_timeout, ..usual.clone() }),
            ("pledge", Policy { pledge: over.pledge, ..usual.clone() }),
            ("min_run.opportunistic", Policy { min_run: over.min_run, ..usual.clone() }),
            ("key_retention", Policy { key_retention: over.key_retention, ..usual.clone() }),
            ("seal_interval", Policy { seal_interval: over.seal_interval, ..usual.clone() }),
            ("preemption.min_run_max", Policy { preemption: over.preemption, ..usual.clone() }),
            ("node_pause", Policy { node_pause: over.node_pause, ..usual.clone() }),
            ("stalled_after", Policy { stalled_after: over.stalled_after, ..usual.clone() }),
            ("clock_limit", Policy { clock_limit: over.clock_limit, ..usual }),
        ];
        for (name, policy) in rows {
            assert_eq!(policy.validate(), Err(PolicyError::TooLong(name, 365)));
        }
    }

    #[test]
    fn an_offer_may_stand_for_ten_years_as_in_a_replay_of_as_many() {
        let of = |days: u64| {
            Policy { offer_ttl: Seconds::new(days * 86_400), ..Policy::default() }.validate()
        };
        assert_eq!(of(3_660), Ok(()));
        let refused = of(3_661).unwrap_err();
        assert_eq!(refused, PolicyError::TooLong("offer_ttl", 3_660));
        let text = "offer_ttl must be at most 316224000 seconds (3660 days)";
        assert_eq!(refused.to_string(), text);
    }

    #[test]
    fn equal_tiers_never_preempt_each_other_whatever_the_policy() {
        let with = |tier_gap| {
            let preemption = PreemptionPolicy { tier_gap, ..PreemptionPolicy::default() };
            Policy { preemption, ..Policy::default() }.validate()
        };
        assert_eq!(with(0), Err(PolicyError::Zero("preemption.tier_gap")));
        assert_eq!(with(1), Ok(()));
    }

    #[test]
    fn what_is_freed_is_kept_longer_than_it_takes_to_free_it() {
        let with = |pledge| Policy { pledge: Seconds::new(pledge), ..Policy::default() }.validate();
        assert_eq!(with(120), Err(PolicyError::PledgeTooShort));
        assert_eq!(with(121), Ok(()));
    }

    #[test]
    fn at_most_sixteen_pauses_are_listed() {
        let with = |count| {
            let pauses = vec![Seconds::new(1); count];
            let preemption = PreemptionPolicy { pauses, ..PreemptionPolicy::default() };
            Policy { preemption, ..Policy::default() }.validate()
        };
        assert_eq!((with(17), with(16)), (Err(PolicyError::PausesTooMany), Ok(())));
    }

    #[test]
    fn a_stalled_lease_is_warned_before_it_ends_and_a_clock_before_it_counts() {
        let stalled = |after| {
            let stalled_after = Some(Seconds::new(after));
            Policy { stalled_after, ..Policy::default() }.validate()
        };
        assert_eq!(stalled(120), Err(PolicyError::StalledTooShort));
        assert_eq!(stalled(121), Ok(()));
        let limit =
            |limit| Policy { clock_limit: Seconds::new(limit), ..Policy::default() }.validate();
        assert_eq!(limit(4), Err(PolicyError::ClockLimitBelowWarning));
        assert_eq!(limit(5), Ok(()));
    }

    #[test]
    fn latency_critical_work_may_idle() {
        let policy = Policy::default();
        let after = |class| policy.stalled_after(class);
        assert_eq!(after(Class::Latency), None);
        for class in [Class::Training, Class::Batch, Class::Experiment] {
            assert_eq!(after(class), Some(Seconds::new(7_200)), "{class:?}");
        }
    }

    #[test]
    fn silence_outlasts_the_slowest_agents_own_deadline() {
        assert_eq!(Policy::default().silence(), Seconds::new(307 + 30));
    }
}
