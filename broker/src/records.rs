//! Following the journal: every record once and in order, from any index on.

use std::collections::VecDeque;
use std::sync::Arc;

use sublet_protocol::records::Record;
use tokio::sync::watch;

use crate::error::Error;
use crate::feed::Head;
use crate::machine::CellMachine;

/// Records fetched at once.
const BATCH: usize = 256;

/// Follows the journal. Made by [`Cell::subscribe`](crate::cell::Cell::subscribe).
pub struct Subscription {
    machine: Arc<CellMachine>,
    head: watch::Receiver<Head>,
    next: u64,
    fetched: VecDeque<Arc<Record>>,
}

impl std::fmt::Debug for Subscription {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subscription").field("next", &self.next).finish_non_exhaustive()
    }
}

impl Subscription {
    pub(crate) fn new(machine: Arc<CellMachine>, from: u64) -> Self {
        let head = machine.feed().watch();
        Self { machine, head, next: from, fetched: VecDeque::new() }
    }

    /// The next record, waiting for it; nothing once the cell has been shut down. Safe to drop
    /// while pending.
    ///
    /// # Errors
    /// [`Error::Ledger`] if the journal cannot be read.
    pub async fn next(&mut self) -> Option<Result<Arc<Record>, Error>> {
        loop {
            if let Some(record) = self.fetched.pop_front() {
                self.next = record.index.saturating_add(1);
                return Some(Ok(record));
            }
            let next = self.next;
            let has_moved = |head: &Head| head.next > next || head.is_closed;
            let is_closed = self.head.wait_for(has_moved).await.map_or(true, |head| head.is_closed);
            if is_closed {
                return None;
            }
            match self.fetch().await {
                Ok(records) if records.is_empty() => return None,
                Ok(records) => self.fetched = records.into(),
                Err(error) => return Some(Err(error)),
            }
        }
    }

    async fn fetch(&self) -> Result<Vec<Arc<Record>>, Error> {
        if let Some(recent) = self.machine.feed().recent(self.next, BATCH) {
            return Ok(recent);
        }
        let (machine, next) = (Arc::clone(&self.machine), self.next);
        let read = tokio::task::spawn_blocking(move || machine.records(next, BATCH));
        read.await.map_err(|_| Error::Stopped)?
    }
}
