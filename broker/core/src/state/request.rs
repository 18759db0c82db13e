//! Open requests as the state keeps them.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use sublet_protocol::capacity::SliceId;
use sublet_protocol::deferral::Deferral;
use sublet_protocol::ids::{LeaseId, RequestId, TenantId};
use sublet_protocol::requests::RequestSpec;
use sublet_protocol::units::Timestamp;

use super::State;

/// Where a request is in its life.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum RequestStage {
    /// It waits.
    Waiting,
    /// It waits, and these slices are kept for it until then.
    Pledged {
        /// What is kept.
        slices: BTreeSet<SliceId>,
        /// Until when.
        until: Timestamp,
        /// The journal index of the record that keeps them.
        by: u64,
    },
    /// This lease serves it.
    Granted {
        /// Which lease.
        lease: LeaseId,
    },
}

/// An open request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    pub(crate) tenant: TenantId,
    pub(crate) spec: RequestSpec,
    pub(crate) submitted_at: Timestamp,
    pub(crate) since: Timestamp,
    pub(crate) stage: RequestStage,
    pub(crate) attempts: u32,
    pub(crate) failed_starts: u32,
    pub(crate) recalls: u32,
    pub(crate) preemptions: u32,
    pub(crate) paused_until: Option<Timestamp>,
}

impl Request {
    /// Whose it is.
    #[must_use]
    pub const fn tenant(&self) -> TenantId {
        self.tenant
    }

    /// What is asked.
    #[must_use]
    pub const fn spec(&self) -> &RequestSpec {
        &self.spec
    }

    /// When it was first submitted; kept when it waits again.
    #[must_use]
    pub const fn submitted_at(&self) -> Timestamp {
        self.submitted_at
    }

    /// Since when it is in its stage.
    #[must_use]
    pub const fn since(&self) -> Timestamp {
        self.since
    }

    /// Where it is in its life.
    #[must_use]
    pub const fn stage(&self) -> &RequestStage {
        &self.stage
    }

    /// How many leases it has had.
    #[must_use]
    pub const fn attempts(&self) -> u32 {
        self.attempts
    }

    /// How many of them were taken away.
    #[must_use]
    pub const fn recalls(&self) -> u32 {
        self.recalls
    }

    /// How many of them were taken away by rank.
    #[must_use]
    pub const fn preemptions(&self) -> u32 {
        self.preemptions
    }

    /// Until when it is not tried again, if it was ever preempted.
    #[must_use]
    pub const fn paused_until(&self) -> Option<Timestamp> {
        self.paused_until
    }

    /// Whether it waits, with or without a pledge.
    #[must_use]
    pub const fn is_waiting(&self) -> bool {
        match self.stage {
            RequestStage::Waiting | RequestStage::Pledged { .. } => true,
            RequestStage::Granted { .. } => false,
        }
    }
}

/// When a waiting request is tried. It *rests* while it holds a promise of a start that it asked to
/// wait for; one that wishes to wait and was promised no such start is like any other.
impl State {
    /// What the request waits for, if it rests.
    fn rest<'r>(&self, id: RequestId, request: &'r Request) -> Option<&'r Deferral> {
        let (promise, deferral) = (self.promises.get(&id)?, request.spec.deferral.as_deref()?);
        let is_waiting = matches!(request.stage, RequestStage::Waiting);
        Some(deferral).filter(|deferral| is_waiting && deferral.asks_for(promise.start()))
    }

    /// Whether the request holds a promise of a start that it asked to wait for.
    #[must_use]
    pub fn rests(&self, id: RequestId, request: &Request) -> bool {
        self.rest(id, request).is_some()
    }

    /// Whether the request is not tried yet: it was preempted lately, is not to start so early, or
    /// rests until better hours.
    #[must_use]
    pub fn is_paused(&self, id: RequestId, request: &Request, now: Timestamp) -> bool {
        self.opens_at(id, request, now) > now
    }

    /// The first instant from `at` on at which the request may start, by what it was promised. What
    /// was freed for it, it may have at any time.
    #[must_use]
    pub fn opens_at(&self, id: RequestId, request: &Request, at: Timestamp) -> Timestamp {
        match request.stage {
            RequestStage::Pledged { .. } => at,
            RequestStage::Waiting | RequestStage::Granted { .. } => {
                let spared = request.paused_until.unwrap_or(Timestamp::ZERO);
                let at = at.max(spared).max(request.spec.not_before());
                self.rest(id, request).map_or(at, |deferral| deferral.opens_at(at))
            }
        }
    }

    /// Until when the request may start if it may at `at`: for ever if nothing is named.
    #[must_use]
    pub fn closes_at(&self, id: RequestId, request: &Request, at: Timestamp) -> Option<Timestamp> {
        self.rest(id, request).and_then(|deferral| deferral.closes_at(at))
    }
}
