//! Live leases as the state keeps them.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use sublet_protocol::capacity::SliceId;
use sublet_protocol::leases::{EndReason, LeaseTerms};
use sublet_protocol::units::{Millis, Timestamp};

/// Where a lease is in its life.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum LeaseStage {
    /// Its agents prepare it.
    Granted {
        /// When it must be active.
        start_by: Timestamp,
        /// Members that are prepared.
        confirmed: BTreeSet<SliceId>,
    },
    /// Its guests may run.
    Active {
        /// Since when.
        since: Timestamp,
        /// The bought end.
        ends_at: Timestamp,
    },
    /// Its guests must go.
    Ending {
        /// Why.
        cause: EndReason,
        /// When they are gone at the latest, while their agents are up.
        deadline: Timestamp,
        /// Since when it was active, if it ever was.
        active_since: Option<Timestamp>,
    },
}

/// A lease that has not ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    pub(crate) terms: LeaseTerms,
    pub(crate) granted_at: Timestamp,
    pub(crate) stage: LeaseStage,
    pub(crate) stopped: BTreeSet<SliceId>,
    pub(crate) used: Millis,
}

impl Lease {
    /// What was granted.
    #[must_use]
    pub const fn terms(&self) -> &LeaseTerms {
        &self.terms
    }

    /// When it was granted.
    #[must_use]
    pub const fn granted_at(&self) -> Timestamp {
        self.granted_at
    }

    /// Where it is in its life.
    #[must_use]
    pub const fn stage(&self) -> &LeaseStage {
        &self.stage
    }

    /// Members with no guest left.
    #[must_use]
    pub const fn stopped(&self) -> &BTreeSet<SliceId> {
        &self.stopped
    }

    /// Measured use so far, the largest of its members.
    #[must_use]
    pub const fn used(&self) -> Millis {
        self.used
    }

    /// Whether nobody ends it yet: it is prepared or active.
    #[must_use]
    pub const fn is_running(&self) -> bool {
        match self.stage {
            LeaseStage::Granted { .. } | LeaseStage::Active { .. } => true,
            LeaseStage::Ending { .. } => false,
        }
    }

    /// Since when it is or was active.
    #[must_use]
    pub const fn active_since(&self) -> Option<Timestamp> {
        match self.stage {
            LeaseStage::Granted { .. } => None,
            LeaseStage::Active { since, .. } => Some(since),
            LeaseStage::Ending { active_since, .. } => active_since,
        }
    }
}
