//! What the journal says of leases that have ended, for the commands that need it.
//!
//! The state holds only what lives, and the rules read nothing. Whoever applies a command asks
//! [`wanted`] which leases it is about, looks their records up in the journal up to the state's last
//! record, and hands them over. Every replica has the same journal up to there, so all decide the same.

use std::collections::BTreeMap;

use sublet_protocol::commands::Command;
use sublet_protocol::events::{Event, Settlement};
use sublet_protocol::ids::{LeaseId, RollbackId};
use sublet_protocol::leases::LeaseTerms;
use sublet_protocol::records::Record;
use sublet_protocol::rollbacks::ChargeStanding;
use sublet_protocol::units::Timestamp;

use crate::state::State;

/// The leases whose pasts must be looked up before `command` is applied to `state`; at most
/// [`ROLLBACK_STEP`](sublet_protocol::rollbacks::ROLLBACK_STEP), and none for most commands.
#[must_use]
pub fn wanted(state: &State, command: &Command) -> Vec<LeaseId> {
    let Command::AdvanceRollback { rollback, .. } = command else { return Vec::new() };
    let next = state.rollbacks.get(rollback).into_iter().flat_map(|rollback| rollback.step());
    next.filter(|lease| !state.leases.contains_key(lease)).copied().collect()
}

/// The records of leases, as looked up.
#[derive(Debug, Clone, Default)]
pub struct Past {
    leases: BTreeMap<LeaseId, Option<PastLease>>,
}

impl Past {
    /// Nothing was looked up.
    pub const NONE: &Past = &Past { leases: BTreeMap::new() };

    /// Adds what was found of a lease: all its records in order, or none if there are none.
    pub fn add(&mut self, lease: LeaseId, records: &[Record]) {
        self.leases.insert(lease, PastLease::of(records));
    }

    /// What was found of a lease: nothing if it was not looked up, and `Some(None)` if it has not ended.
    pub(crate) fn of(&self, lease: LeaseId) -> Option<Option<&PastLease>> {
        self.leases.get(&lease).map(Option::as_ref)
    }
}

/// A lease that has ended, and how its charge stands.
#[derive(Debug, Clone)]
pub(crate) struct PastLease {
    pub(crate) terms: LeaseTerms,
    pub(crate) granted_at: Timestamp,
    pub(crate) settlement: Settlement,
    pub(crate) standing: ChargeStanding,
    /// The newest record that says how the charge stands: the next turn is of it.
    pub(crate) newest: u64,
    /// Which rollback that was, if any.
    pub(crate) turned_by: Option<RollbackId>,
}

impl PastLease {
    fn of(records: &[Record]) -> Option<PastLease> {
        let granted = records.iter().find_map(|record| match &record.event {
            Event::LeaseGranted { terms, .. } => Some((terms.clone(), record.time)),
            _other => None,
        });
        let (terms, granted_at) = granted?;
        let mut found: Option<PastLease> = None;
        for record in records {
            match (&record.event, &mut found) {
                (Event::LeaseEnded { settlement, .. }, None) => {
                    found = Some(PastLease {
                        terms: terms.clone(),
                        granted_at,
                        settlement: *settlement,
                        standing: ChargeStanding::Charged,
                        newest: record.index,
                        turned_by: None,
                    });
                }
                (Event::ChargeTurned { turn }, Some(lease)) => {
                    lease.standing = turn.standing;
                    lease.newest = record.index;
                    lease.turned_by = Some(turn.rollback);
                }
                _other => {}
            }
        }
        found
    }
}
