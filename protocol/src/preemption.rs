//! The part of a policy that says who may be preempted, when and how often.

use serde::{Deserialize, Serialize};

use crate::requests::Tier;
use crate::units::Seconds;

/// One value for each tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ByTier<T> {
    /// Of the lowest tier.
    pub opportunistic: T,
    /// Of the usual tier.
    pub standard: T,
    /// Of the highest tier.
    pub reserved: T,
}

impl<T: Copy> ByTier<T> {
    /// The same for every tier.
    #[must_use]
    pub const fn all(value: T) -> ByTier<T> {
        ByTier { opportunistic: value, standard: value, reserved: value }
    }

    /// That of one tier.
    #[must_use]
    pub const fn of(&self, tier: Tier) -> T {
        match tier {
            Tier::Opportunistic => self.opportunistic,
            Tier::Standard => self.standard,
            Tier::Reserved => self.reserved,
        }
    }
}

/// Longest list of pauses after preemptions.
pub const PAUSES_MAX: usize = 16;

/// Who may be preempted, when and how often. The owner who takes a GPU back is bound by none of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PreemptionPolicy {
    /// How many tiers a request must be above a lease to preempt it; at least 1.
    pub tier_gap: u8,
    /// How much longer a lease is spared after each preemption of its request is bounded by this:
    /// the minimum run time is doubled each time, up to this or, if that is longer, the minimum.
    pub min_run_max: Seconds,
    /// A request that was preempted this often is not preempted again.
    pub per_request: u32,
    /// How long a request pauses after its first, second, … preemption; the last value counts for
    /// all further ones. At most [`PAUSES_MAX`]; empty means no pause.
    pub pauses: Vec<Seconds>,
    /// Leases that may be preempted in one cluster in any hour.
    pub per_cluster_hour: u32,
    /// Leases that may be preempted in the whole cell in any hour.
    pub per_cell_hour: u32,
    /// Shortest time between two reports of a checkpoint by one lease.
    pub checkpoint_interval: Seconds,
}

impl Default for PreemptionPolicy {
    fn default() -> PreemptionPolicy {
        PreemptionPolicy {
            tier_gap: 1,
            min_run_max: Seconds::new(4 * 3_600),
            per_request: 2,
            pauses: vec![Seconds::new(60), Seconds::new(120), Seconds::new(240)],
            per_cluster_hour: 240,
            per_cell_hour: 1_000,
            checkpoint_interval: Seconds::new(30),
        }
    }
}

impl PreemptionPolicy {
    /// How long a request pauses after its `count`th preemption.
    #[must_use]
    pub fn pause(&self, count: u32) -> Seconds {
        let place = usize::try_from(count.saturating_sub(1)).unwrap_or(usize::MAX);
        let pause = self.pauses.get(place).or(self.pauses.last());
        if count == 0 { Seconds::ZERO } else { pause.copied().unwrap_or_default() }
    }

    /// How long a lease with the minimum run time `base` is spared when its request was preempted
    /// `count` times: `base × 2^count`, at most [`PreemptionPolicy::min_run_max`], at least `base`.
    #[must_use]
    pub fn spared(&self, base: Seconds, count: u32) -> Seconds {
        let factor = 1_u64.checked_shl(count).unwrap_or(u64::MAX);
        let doubled = Seconds::new(base.get().saturating_mul(factor));
        doubled.min(self.min_run_max).max(base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_preemption_doubles_how_long_the_next_lease_is_spared_up_to_the_cap() {
        let policy = PreemptionPolicy::default();
        let spared = |count| policy.spared(Seconds::new(600), count).get();
        assert_eq!([0, 1, 2, 3, 4].map(spared), [600, 1_200, 2_400, 4_800, 9_600]);
        assert_eq!([5, 6, 63, 64, u32::MAX].map(spared), [14_400; 5]);
        let long = Seconds::new(20_000);
        assert_eq!(policy.spared(long, 3), long, "a cap below the minimum does not shorten it");
    }

    #[test]
    fn the_pause_after_a_preemption_grows_along_the_list_and_stays_at_its_end() {
        let pause = |count| PreemptionPolicy::default().pause(count).get();
        assert_eq!([0, 1, 2, 3, 4, u32::MAX].map(pause), [0, 60, 120, 240, 240, 240]);
        let none = PreemptionPolicy { pauses: Vec::new(), ..PreemptionPolicy::default() };
        assert_eq!(none.pause(2), Seconds::ZERO);
    }
}
