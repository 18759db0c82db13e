//! Whether ledger, broker and agents agree: what the leader's logic knows of agents and GPUs, and the
//! holds of the books against those of the leases. Nothing is mended by it: a person is told.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sublet_core::leader::{LeakKind, Reconciliation};
use sublet_core::{Lease, State};
use sublet_ledger::accounts::Accounts;
use sublet_protocol::ids::LeaseId;
use sublet_protocol::units::Timestamp;
use tokio::sync::{Notify, oneshot};

use crate::behind::may_be_behind;
use crate::cell::{Cell, Parts};
use crate::error::Error;
use crate::forward::{Answer, Question};
use crate::metrics;

/// How long the leader's logic may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Gaps of the books that are listed; all of them are counted.
const GAPS_MAX: usize = 1_000;

/// A lease whose hold in the books is not what its terms set aside, in micro-units. Nothing stands
/// for what one of the two does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BookGap {
    /// Which lease.
    pub lease: LeaseId,
    /// What the ledger holds for it.
    pub ledger: Option<i128>,
    /// What the broker's state set aside for it.
    pub broker: Option<i128>,
}

/// Ledger, broker and agents held against each other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reconciled {
    /// Broker, agents and GPUs, as the leader knows them.
    pub agents: Reconciliation,
    /// Leases that live.
    pub leases: u64,
    /// How many holds of the books are not those of the leases.
    pub gaps: u64,
    /// The first of them, by lease.
    pub books: Vec<BookGap>,
}

/// Who waits for the leader's logic to say what it knows.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    waiting: Mutex<Vec<oneshot::Sender<Reconciliation>>>,
    bell: Notify,
}

impl Asked {
    /// Returns once somebody has asked.
    pub(crate) async fn heard(&self) {
        self.bell.notified().await;
    }

    /// Those who have asked, each to be answered or dropped.
    pub(crate) fn take(&self) -> Vec<oneshot::Sender<Reconciliation>> {
        std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn ask(&self) -> oneshot::Receiver<Reconciliation> {
        let (sender, receiver) = oneshot::channel();
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(sender);
        self.bell.notify_one();
        receiver
    }
}

/// Holds of the books against those of the leases.
pub(crate) fn gaps(state: &State, accounts: &Accounts) -> Vec<BookGap> {
    let booked: BTreeMap<LeaseId, i128> = accounts.open_holds().collect();
    // A lease that is free sets nothing aside, and the books do not know of it.
    let hold = |lease: &Lease| Some(i128::from(lease.terms().hold.get())).filter(|hold| *hold != 0);
    let leased = state.leases().iter().filter_map(|(id, lease)| {
        let (ledger, broker) = (booked.get(id).copied(), hold(lease));
        (ledger != broker).then_some(BookGap { lease: *id, ledger, broker })
    });
    let ended = booked.iter().filter(|(id, _)| !state.leases().contains_key(*id));
    let mut gaps: Vec<BookGap> = leased
        .chain(ended.map(|(id, hold)| BookGap { lease: *id, ledger: Some(*hold), broker: None }))
        .collect();
    gaps.sort_unstable_by_key(|gap| gap.lease);
    gaps
}

impl Parts {
    /// What this broker knows, as the leader.
    ///
    /// # Errors
    /// [`Error::NotLeader`].
    pub(crate) async fn reconcile_here(&self) -> Result<Reconciled, Error> {
        let asked = self.asked.ask();
        match tokio::time::timeout(PATIENCE, asked).await {
            Ok(Ok(agents)) => Ok(self.with_books(agents)),
            Ok(Err(_)) | Err(_) => Err(Error::NotLeader { leader: None }),
        }
    }

    /// What a broker that does not lead knows by itself: its books, and of no agent anything.
    fn reconcile_behind(&self, at: Timestamp) -> Reconciled {
        let unknown = self.machine.read(|state| state.nodes().keys().copied().collect());
        self.with_books(Reconciliation { at, reported: 0, unknown, leaks: Vec::new() })
    }

    fn with_books(&self, agents: Reconciliation) -> Reconciled {
        // What was committed meanwhile is settled for both.
        let (leases, mut books) =
            self.machine.read_booked(|state, books| (state.leases().len(), gaps(state, books)));
        let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        let (leases, gaps) = (count(leases), count(books.len()));
        books.truncate(GAPS_MAX);
        Reconciled { agents, leases, gaps, books }
    }
}

impl Cell {
    /// Ledger, broker and agents held against each other, as the leader knows them.
    ///
    /// # Errors
    /// [`Error::NotLeader`]: there is no leader, or it has just begun. [`Error::Unknown`]: it did not
    /// answer. Within [`behind`](crate::behind) neither is an error: of agents nothing is known then.
    pub async fn reconcile(&self) -> Result<Reconciled, Error> {
        let parts = self.parts();
        let leadership = *parts.raft.leadership().borrow();
        if leadership.is_leader || self.listens().is_none() {
            return parts.reconcile_here().await;
        }
        if may_be_behind() {
            return Ok(parts.reconcile_behind(self.now()));
        }
        match parts.ask_leader(&Question::Reconcile).await? {
            Answer::Reconciled(found) => Ok(found),
            _other => Err(Error::Unknown),
        }
    }
}

/// Shows the counts of what the leader knows.
pub(crate) fn show(found: &Reconciliation) {
    for kind in LeakKind::ALL {
        metrics::leaks_are(kind, found.leaks.iter().filter(|leak| leak.kind == kind).count());
    }
    metrics::nodes_unknown(found.unknown.len());
}

/// This broker leads no longer: what it knew gets old.
pub(crate) fn clear() {
    for kind in LeakKind::ALL {
        metrics::leaks_are(kind, 0);
    }
    metrics::nodes_unknown(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_a_broker_that_does_not_answer_is_not_kept_waiting_by_those_before() {
        let asked = Asked::default();
        let (first, second) = (asked.ask(), asked.ask());
        assert_eq!(asked.take().len(), 2);
        assert!(asked.take().is_empty());
        drop((first, second));
    }
}
