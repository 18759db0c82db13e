//! Open requests as the state keeps them.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use sublet_protocol::capacity::SliceId;
use sublet_protocol::ids::{LeaseId, TenantId};
use sublet_protocol::requests::RequestSpec;
use sublet_protocol::units::Timestamp;

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

    /// Whether it is not tried yet: it was preempted lately, or waits for better hours.
    #[must_use]
    pub fn is_paused(&self, now: Timestamp) -> bool {
        self.opens_at(now) > now
    }

    /// The first instant from `at` on at which it may start. What was freed for it, it may have at
    /// any time.
    #[must_use]
    pub fn opens_at(&self, at: Timestamp) -> Timestamp {
        match self.stage {
            RequestStage::Pledged { .. } => at,
            RequestStage::Waiting | RequestStage::Granted { .. } => {
                self.spec.opens_at(at.max(self.paused_until.unwrap_or(Timestamp::ZERO)))
            }
        }
    }

    /// Until when it may start if it may at `at`: for ever if nothing is named.
    #[must_use]
    pub fn closes_at(&self, at: Timestamp) -> Option<Timestamp> {
        match self.stage {
            RequestStage::Pledged { .. } => None,
            RequestStage::Waiting | RequestStage::Granted { .. } => self.spec.closes_at(at),
        }
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
