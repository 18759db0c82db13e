//! Tells readers which records are in the journal, and keeps the newest at hand.
//!
//! A reader asks for records from an index on and waits for the head to move. So it sees every
//! record once and in order, however slow it is, and costs no memory while it is.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use sublet_protocol::records::Record;
use tokio::sync::watch;

/// Records kept at hand; older ones are read from the journal.
pub(crate) const RECENT_MAX: usize = 4_096;

/// How far the journal goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    /// The index of the next record.
    pub(crate) next: u64,
    /// Whether no record will follow in this process.
    pub(crate) is_closed: bool,
}

/// The newest records.
#[derive(Debug)]
pub(crate) struct Feed {
    recent: Mutex<VecDeque<Arc<Record>>>,
    head: watch::Sender<Head>,
}

impl Feed {
    pub(crate) fn new() -> Self {
        let head = Head { next: 0, is_closed: false };
        Self { recent: Mutex::default(), head: watch::Sender::new(head) }
    }

    /// Tells of records that are in the journal now. `next` is the index that follows them.
    pub(crate) fn publish(&self, records: Vec<Record>, next: u64) {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.extend(records.into_iter().map(Arc::new));
        let surplus = recent.len().saturating_sub(RECENT_MAX);
        recent.drain(..surplus);
        drop(recent);
        self.head.send_modify(|head| head.next = next);
    }

    /// Begins again at `next` with nothing at hand: a snapshot was restored.
    pub(crate) fn reset(&self, next: u64) {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.head.send_modify(|head| head.next = next);
    }

    /// No record will follow.
    pub(crate) fn close(&self) {
        self.head.send_modify(|head| head.is_closed = true);
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Head> {
        self.head.subscribe()
    }

    /// At most `limit` records from `from` on, if `from` is at hand.
    pub(crate) fn recent(&self, from: u64, limit: usize) -> Option<Vec<Arc<Record>>> {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let first = recent.front()?.index;
        let skip = usize::try_from(from.checked_sub(first)?).ok()?;
        Some(recent.iter().skip(skip).take(limit).map(Arc::clone).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sublet_protocol::commands::Actor;
    use sublet_protocol::events::Event;
    use sublet_protocol::ids::CommandId;
    use sublet_protocol::units::Timestamp;

    fn record(index: u64) -> Record {
        let event = Event::TailSealed { first: 0 };
        let (time, cause) = (Timestamp::ZERO, CommandId::new(1));
        Record { index, term: 1, time, cause, actor: Actor::Leader, event }
    }

    #[test]
    fn the_newest_records_are_at_hand_and_older_ones_are_not() {
        let feed = Feed::new();
        let count = u64::try_from(RECENT_MAX).unwrap() + 10;
        for index in 0..count {
            feed.publish(vec![record(index)], index + 1);
        }
        assert_eq!(feed.watch().borrow().next, count);
        assert!(feed.recent(9, 5).is_none());
        let got = feed.recent(count - 3, 2).unwrap();
        assert_eq!(
            got.iter().map(|record| record.index).collect::<Vec<_>>(),
            [count - 3, count - 2]
        );
        assert_eq!(feed.recent(count, 2), Some(vec![]));
    }
}
