//! Spans that depend on how fast lease time passes.
//!
//! The protocol's liveness spans (renewals, time-outs) bridge real delays of threads and timers.
//! When lease time runs much faster than its default of 60, they must be longer in lease time to
//! stay as long in real time; grace, notice and minimum run time are what leases are about and stay.

use std::num::NonZeroU32;

use sublet_agent::idle::IdleRule;
use sublet_protocol::policy::Policy;
use sublet_protocol::units::{Millis, Seconds};

/// Up to this speed the policy's own spans are long enough: renewals are half a second apart.
const USUAL: u32 = 60;
/// A device counts as idle after this much real time without its owner, but at most after
/// [`SETTLE_MAX`]: nobody wants to wait ten minutes for a first lease.
const SETTLE_REAL: u64 = 500;
/// The default of the idle detector: ten minutes.
const SETTLE_MAX: u64 = 600_000;
/// Devices are looked at this often in real time; a simulated owner's arrival is seen at once anyway.
const LOOK_REAL: u64 = 500;

/// How fast lease time passes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace(pub(super) NonZeroU32);

impl Pace {
    /// By how much liveness spans are stretched.
    pub(super) fn stretch(self) -> u64 {
        u64::from(self.0.get().div_ceil(USUAL).max(1))
    }

    fn lease_millis(self, real: u64) -> u64 {
        real.saturating_mul(u64::from(self.0.get()))
    }

    /// The policy at this speed.
    pub(super) fn policy(self) -> Policy {
        let usual = Policy::default();
        let stretched = |span: Seconds| Seconds::new(span.get().saturating_mul(self.stretch()));
        Policy {
            renew: stretched(usual.renew),
            lease_ttl: stretched(usual.lease_ttl),
            silence_margin: stretched(usual.silence_margin),
            offer_ttl: stretched(usual.offer_ttl),
            start_timeout: stretched(usual.start_timeout),
            pledge: stretched(usual.pledge),
            seal_interval: stretched(usual.seal_interval),
            ..usual
        }
    }

    /// A policy that was kept from a start at the speed `last`, at this one: spans that were as that
    /// start set them become those of this speed, what an operator has set stays.
    pub(super) fn kept(self, last: Pace, policy: &Policy) -> Policy {
        let (was, is) = (last.policy(), self.policy());
        let span = |of: fn(&Policy) -> Seconds| match of(policy) == of(&was) {
            true => of(&is),
            false => of(policy),
        };
        Policy {
            renew: span(|policy| policy.renew),
            lease_ttl: span(|policy| policy.lease_ttl),
            silence_margin: span(|policy| policy.silence_margin),
            offer_ttl: span(|policy| policy.offer_ttl),
            start_timeout: span(|policy| policy.start_timeout),
            pledge: span(|policy| policy.pledge),
            seal_interval: span(|policy| policy.seal_interval),
            ..policy.clone()
        }
    }

    /// When a device counts as idle.
    pub(super) fn idle_rule(self) -> IdleRule {
        let gap_max = Millis::new(self.sample_every().get().saturating_mul(4));
        let settle = Millis::new(self.lease_millis(SETTLE_REAL).min(SETTLE_MAX));
        IdleRule { settle, gap_max, ..IdleRule::default() }
    }

    /// How often devices are looked at, in lease time.
    pub(super) fn sample_every(self) -> Millis {
        Millis::new(self.lease_millis(LOOK_REAL))
    }

    /// How often an agent tells everything it offers and holds: every 30 s, but not more than every
    /// second of real time.
    pub(super) fn inventory_every(self) -> Millis {
        Millis::new(self.lease_millis(1_000).max(30_000))
    }

    /// How long an activated lease waits for its workload, in lease time: ten real seconds at least.
    pub(super) fn workload_wait(self) -> Millis {
        Millis::new(self.lease_millis(10_000).max(60_000))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kept_policy_follows_the_speed_but_for_what_an_operator_has_set() {
        let [usual, fast] = [60, 600].map(|speed| Pace(NonZeroU32::new(speed).unwrap()));
        let set =
            Policy { half_life: Seconds::new(5), pledge: Seconds::new(777), ..usual.policy() };
        assert_eq!(usual.kept(usual, &set), set);
        let kept = fast.kept(usual, &set);
        let expected =
            Policy { half_life: Seconds::new(5), pledge: Seconds::new(777), ..fast.policy() };
        assert_eq!(kept, expected);
        assert_eq!(usual.kept(fast, &kept), set, "and back");
    }

    #[test]
    fn the_policy_is_valid_at_any_speed() {
        for speed in [1, 60, 61, 3_600, 100_000] {
            let pace = Pace(NonZeroU32::new(speed).unwrap());
            assert_eq!(pace.policy().validate(), Ok(()), "{speed}");
        }
        assert_eq!(Pace(NonZeroU32::new(60).unwrap()).policy(), Policy::default());
    }
}
