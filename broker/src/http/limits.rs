//! How often one caller may call, and how many streams it may hold open: counted for each tenant,
//! whoever of it calls, so that one cannot keep out the others.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::auth::{Caller, RateOwner};

/// Calls per second that a tenant may make on and on.
const RATE: u64 = 200;
/// Calls that it may make at once after a pause.
const BURST: u64 = 1_000;
/// Callers that are remembered; a bucket that is full again is forgotten first.
const BUCKETS_MAX: usize = 10_000;

/// Streams that a tenant may hold open at once.
const STREAMS_EACH_MAX: usize = 64;

/// A call costs this much; a bucket gains [`RATE`] of it in a millisecond.
const COST: u64 = 1_000;

/// The buckets of all callers.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    buckets: Mutex<BTreeMap<RateOwner, Bucket>>,
    streams: Mutex<BTreeMap<RateOwner, usize>>,
}

/// One open stream of a caller; given back when dropped.
#[derive(Debug)]
pub(crate) struct Held {
    limits: Arc<Limits>,
    owner: RateOwner,
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut streams = self.limits.streams.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = streams.get_mut(&self.owner) {
            *open -= 1;
            if *open == 0 {
                streams.remove(&self.owner);
            }
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Bucket {
    /// Thousandths of a call.
    left: u64,
    at: Instant,
}

impl Bucket {
    fn refilled(self, now: Instant) -> Bucket {
        let millis = now.saturating_duration_since(self.at).as_millis();
        let gained = u64::try_from(millis).unwrap_or(u64::MAX).saturating_mul(RATE);
        let left = self.left.saturating_add(gained).min(BURST * COST);
        // What a part of a millisecond would gain is not lost: the clock moves on with a gain only.
        if gained == 0 { self } else { Bucket { left, at: now } }
    }
}

impl Limits {
    /// Room for one more stream of this caller, if it holds fewer than it may.
    pub(crate) fn stream(self: &Arc<Self>, owner: RateOwner) -> Option<Held> {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        let open = streams.entry(owner.clone()).or_default();
        if *open >= STREAMS_EACH_MAX {
            return None;
        }
        *open += 1;
        Some(Held { limits: Arc::clone(self), owner })
    }

    /// Whether the caller may call once more now.
    pub(crate) fn admits(&self, caller: &Caller, now: Instant) -> bool {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let owner = caller.rate_owner();
        if buckets.len() >= BUCKETS_MAX && !buckets.contains_key(&owner) {
            buckets.retain(|_, bucket| bucket.refilled(now).left < BURST * COST);
            if buckets.len() >= BUCKETS_MAX {
                return false;
            }
        }
        let full = Bucket { left: BURST * COST, at: now };
        let bucket = buckets.entry(owner).or_insert(full);
        *bucket = bucket.refilled(now);
        match bucket.left.checked_sub(COST) {
            Some(left) => {
                bucket.left = left;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::auth::testing::{token, verifier};

    #[test]
    fn a_tenant_with_too_many_streams_gets_no_more_until_it_ends_one() {
        let caller = |tenant| verifier().verify(&token(&["tenant"], Some(tenant))).unwrap();
        let (acme, other) = (caller("acme").rate_owner(), caller("b").rate_owner());
        let limits = Arc::new(Limits::default());
        let open = || limits.stream(acme.clone());
        let mut held: Vec<Held> = (0..STREAMS_EACH_MAX).map(|_| open().unwrap()).collect();
        assert!(open().is_none());
        assert!(limits.stream(other).is_some());
        held.pop();
        held.push(open().unwrap());
        assert!(open().is_none());
        drop(held);
        assert!(limits.streams.lock().unwrap().is_empty());
    }

    #[test]
    fn a_tenant_that_calls_too_often_waits_and_nobody_else_does() {
        let caller = |roles: &[&str], tenant| verifier().verify(&token(roles, tenant)).unwrap();
        let (acme, other) = (caller(&["tenant"], Some("acme")), caller(&["tenant"], Some("b")));
        let auditor = caller(&["auditor"], Some("acme"));
        let (limits, now) = (Limits::default(), Instant::now());
        let admitted = (0..2_000).filter(|_| limits.admits(&acme, now)).count();
        assert_eq!(u64::try_from(admitted).unwrap(), BURST);
        assert!(!limits.admits(&auditor, now), "another role of the same tenant");
        assert!(limits.admits(&other, now));
        assert!(limits.admits(&caller(&["operator"], None), now));
        let later = now + Duration::from_secs(1);
        let admitted = (0..2_000).filter(|_| limits.admits(&acme, later)).count();
        assert_eq!(u64::try_from(admitted).unwrap(), RATE);
    }
}
