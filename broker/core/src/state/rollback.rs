//! Rollbacks as the state keeps them: those that wait or run, with what is left to do, and a few that
//! are over.

use serde::{Deserialize, Serialize};
use sublet_protocol::ids::{LeaseId, Subject};
use sublet_protocol::money::MicroCredits;
use sublet_protocol::rollbacks::{DropCause, ROLLBACK_STEP, RollbackSelector};
use sublet_protocol::units::Timestamp;

/// Most rollbacks that wait or run.
pub(crate) const OPEN_MAX: usize = 4;
/// Most rollbacks that are over and still known; older ones are read back from the journal.
pub(crate) const OVER_MAX: usize = 32;

/// Where a rollback is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RollbackStage {
    /// Another operator must approve it.
    Proposed {
        /// Before this instant.
        approve_by: Timestamp,
    },
    /// It is being done.
    Running,
    /// It was not done.
    Dropped {
        /// Why.
        cause: DropCause,
    },
    /// All its leases were handled.
    Finished,
}

/// A rollback.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rollback {
    pub(crate) selector: RollbackSelector,
    pub(crate) proposed_by: Subject,
    pub(crate) proposed_at: Timestamp,
    pub(crate) approved_by: Option<Subject>,
    pub(crate) since: Timestamp,
    pub(crate) money: MicroCredits,
    pub(crate) digest: [u8; 32],
    pub(crate) stage: RollbackStage,
    /// In ascending order; empty once it is over.
    pub(crate) leases: Vec<LeaseId>,
    pub(crate) total: u32,
    pub(crate) done: u32,
    pub(crate) untouched: u32,
    pub(crate) live: u32,
    pub(crate) turned: u32,
}

impl Rollback {
    /// How its leases were chosen.
    #[must_use]
    pub const fn selector(&self) -> &RollbackSelector {
        &self.selector
    }

    /// Who proposed it.
    #[must_use]
    pub const fn proposed_by(&self) -> &Subject {
        &self.proposed_by
    }

    /// When it was proposed.
    #[must_use]
    pub const fn proposed_at(&self) -> Timestamp {
        self.proposed_at
    }

    /// Who approved it, if that was needed and done.
    #[must_use]
    pub const fn approved_by(&self) -> Option<&Subject> {
        self.approved_by.as_ref()
    }

    /// Since when it is in its stage.
    #[must_use]
    pub const fn since(&self) -> Timestamp {
        self.since
    }

    /// How much money it moves at most, in micro-units.
    #[must_use]
    pub const fn money(&self) -> MicroCredits {
        self.money
    }

    /// SHA-256 of what the dry run showed.
    #[must_use]
    pub const fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    /// Where it is in its life.
    #[must_use]
    pub const fn stage(&self) -> RollbackStage {
        self.stage
    }

    /// How many leases it has.
    #[must_use]
    pub const fn total(&self) -> u32 {
        self.total
    }

    /// How many of them are handled.
    #[must_use]
    pub const fn done(&self) -> u32 {
        self.done
    }

    /// How many of those had nothing to undo.
    #[must_use]
    pub const fn untouched(&self) -> u32 {
        self.untouched
    }

    /// How many of those were live then.
    #[must_use]
    pub const fn live(&self) -> u32 {
        self.live
    }

    /// How many charges it has turned so far; those of live leases follow when they have ended.
    #[must_use]
    pub const fn turned(&self) -> u32 {
        self.turned
    }

    /// Whether it waits or runs.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        match self.stage {
            RollbackStage::Proposed { .. } | RollbackStage::Running => true,
            RollbackStage::Dropped { .. } | RollbackStage::Finished => false,
        }
    }

    /// The leases of its next step.
    pub(crate) fn step(&self) -> impl Iterator<Item = &LeaseId> {
        let done = usize::try_from(self.done).unwrap_or(usize::MAX);
        self.leases.iter().skip(done).take(ROLLBACK_STEP)
    }
}
