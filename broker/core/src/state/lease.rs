//! Live leases as the state keeps them.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use sublet_protocol::capacity::SliceId;
use sublet_protocol::ids::{LeaseId, RollbackId};
use sublet_protocol::leases::{EndReason, LeaseTerms};
use sublet_protocol::rollbacks::ChargeStanding;
use sublet_protocol::units::{Millis, Timestamp};

use super::Due;
use crate::quota::Spend;

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

/// What the tenant was told of an end to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndNotice {
    /// Why it would end.
    pub cause: EndReason,
    /// When its guest would be told to go.
    pub at: Timestamp,
    /// When it was told.
    pub given_at: Timestamp,
}

/// A lease that has not ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    pub(crate) terms: LeaseTerms,
    pub(crate) granted_at: Timestamp,
    /// The journal index of the record that granted it.
    pub(crate) granted_by: u64,
    pub(crate) stage: LeaseStage,
    pub(crate) stopped: BTreeSet<SliceId>,
    pub(crate) used: Millis,
    /// The most that is billed, if a budget was cut below its worst case.
    pub(crate) billed_max: Option<Millis>,
    pub(crate) checkpoint_at: Option<Timestamp>,
    pub(crate) recalled_by: Option<Timestamp>,
    /// When the tenant is to be told of the bought end, until it is.
    pub(crate) notice_at: Option<Timestamp>,
    pub(crate) notice: Option<EndNotice>,
    /// The newest rollback of it, and how its charge will stand.
    pub(crate) rolled_back: Option<(RollbackId, ChargeStanding)>,
}

impl Lease {
    /// What was granted.
    #[must_use]
    pub const fn terms(&self) -> &LeaseTerms {
        &self.terms
    }

    /// Which rollback came to it last while it lived, if any, and how its charge will stand.
    #[must_use]
    pub const fn rolled_back(&self) -> Option<(RollbackId, ChargeStanding)> {
        self.rolled_back
    }

    /// When it was granted.
    #[must_use]
    pub const fn granted_at(&self) -> Timestamp {
        self.granted_at
    }

    /// The journal index of the record that granted it.
    #[must_use]
    pub const fn granted_by(&self) -> u64 {
        self.granted_by
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

    /// The most that will be billed: the bought time, or less if a budget was cut.
    #[must_use]
    pub fn billed_max(&self) -> Millis {
        let bought = self.terms.duration.as_millis();
        self.billed_max.map_or(bought, |most| most.min(bought))
    }

    /// What it may cost at most. Nothing only if that could not be written, which the grant checked.
    pub(crate) fn worst(&self) -> Spend {
        let terms = &self.terms;
        Spend::of(terms.price, terms.gpu_total(), self.billed_max()).unwrap_or_default()
    }

    /// What its tenant was told last of an end to come.
    #[must_use]
    pub const fn notice(&self) -> Option<EndNotice> {
        self.notice
    }

    /// What becomes due of it next, and when: its start, the notice of its bought end, the end of what
    /// its budget covers less its grace, or the end of its bought time.
    pub(crate) fn due(&self, id: LeaseId) -> Option<(Timestamp, Due)> {
        match self.stage {
            LeaseStage::Granted { start_by, .. } => Some((start_by, Due::Start(id))),
            LeaseStage::Active { since, ends_at } => {
                let line = self.billed_max.map(|most| {
                    let grace = self.terms.grace.as_millis();
                    since.after_millis(most.saturating_sub(grace))
                });
                let end = match line.filter(|line| *line < ends_at) {
                    Some(line) => (line, Due::Budget(id)),
                    None => (ends_at, Due::End(id)),
                };
                let notice = self.notice_at.filter(|at| *at < end.0);
                Some(notice.map_or(end, |at| (at, Due::Notice(id))))
            }
            LeaseStage::Ending { .. } => None,
        }
    }

    /// When its program last said that its work is saved.
    #[must_use]
    pub const fn checkpoint_at(&self) -> Option<Timestamp> {
        self.checkpoint_at
    }

    /// When its owner wants it to be gone, if that was said.
    #[must_use]
    pub const fn recalled_by(&self) -> Option<Timestamp> {
        self.recalled_by
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
