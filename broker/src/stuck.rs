//! Ends the process when the ledger's store stands still.
//!
//! An I/O error can leave sled's own threads waiting for each other for ever. A broker that stands
//! still holds up its callers, and as the leader the cell; one that has ended is started again or
//! replaced. Opening has no limit: a lost store is made anew from the archive, which takes as long as
//! it takes. It is said now and then that it still goes on.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::cell::Parts;
use crate::raft::FatalHook;

/// An entry is applied in milliseconds, a snapshot of a million requests written in seconds.
const LIMIT: Duration = Duration::from_secs(60);
/// Between two looks.
const LOOK: Duration = Duration::from_secs(5);
/// Between two words on what still goes on.
const WORD: Duration = Duration::from_secs(30);

/// Since when something is being done.
#[derive(Debug)]
pub(crate) struct Busy {
    begun: Instant,
    /// Milliseconds after `begun`, and one; zero if nothing is being done.
    since: AtomicU64,
}

impl Default for Busy {
    fn default() -> Self {
        Self { begun: Instant::now(), since: AtomicU64::new(0) }
    }
}

impl Busy {
    /// Something is being done until what this returns is dropped.
    pub(crate) fn enter(&self) -> impl Drop + use<'_> {
        self.since.store(self.elapsed().saturating_add(1), Ordering::SeqCst);
        Done(&self.since)
    }

    fn elapsed(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// For how long it has been done.
    fn lasts(&self) -> Duration {
        match self.since.load(Ordering::SeqCst) {
            0 => Duration::ZERO,
            since => Duration::from_millis(self.elapsed().saturating_sub(since - 1)),
        }
    }
}

struct Done<'a>(&'a AtomicU64);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::SeqCst);
    }
}

/// Looks whether entries are applied, as long as the cell is open.
pub(crate) fn watch(parts: &Arc<Parts>, on_fatal: FatalHook) {
    tokio::spawn(look(Arc::downgrade(parts), on_fatal));
}

async fn look(parts: Weak<Parts>, on_fatal: FatalHook) {
    loop {
        tokio::time::sleep(LOOK).await;
        let Some(parts) = parts.upgrade() else { return };
        if parts.machine.busy.lasts() >= LIMIT {
            return on_fatal.strike(&reason("an entry of the log is being applied"));
        }
    }
}

/// What an operator is told.
fn reason(what: &str) -> String {
    let seconds = LIMIT.as_secs();
    format!("{what} for {seconds} s: the ledger's store stands still; look at its disk")
}

/// Waits for the end of what closes the store, and ends the process if it does not come.
pub(crate) async fn closing(close: impl Future<Output = ()>, on_fatal: &FatalHook) {
    within(LIMIT, close, on_fatal).await;
}

async fn within(limit: Duration, close: impl Future<Output = ()>, on_fatal: &FatalHook) {
    if tokio::time::timeout(limit, close).await.is_err() {
        on_fatal.strike(&reason("the ledger is being closed"));
    }
}

/// Waits for the store to be opened, and says now and then that it still is.
pub(crate) async fn opening<T>(open: impl Future<Output = T>) -> T {
    let mut open = std::pin::pin!(open);
    let begun = Instant::now();
    loop {
        match tokio::time::timeout(WORD, &mut open).await {
            Ok(opened) => return opened,
            Err(_) => {
                let seconds = begun.elapsed().as_secs();
                tracing::warn!(seconds, "the ledger is still being opened");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn it_is_known_for_how_long_something_is_done_and_when_it_is_over() {
        let busy = Busy::default();
        assert_eq!(busy.lasts(), Duration::ZERO);
        let doing = busy.enter();
        std::thread::sleep(Duration::from_millis(30));
        assert!(busy.lasts() >= Duration::from_millis(30));
        drop(doing);
        assert_eq!(busy.lasts(), Duration::ZERO);
    }

    #[tokio::test]
    async fn what_does_not_close_ends_the_process_and_what_closes_does_not() {
        let said = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&said);
        let hook = FatalHook::new(move |reason| told.lock().unwrap().push(reason.to_owned()));
        let short = Duration::from_millis(20);
        within(short, async {}, &hook).await;
        assert!(said.lock().unwrap().is_empty());
        within(short, std::future::pending(), &hook).await;
        assert!(said.lock().unwrap()[0].contains("closed"), "{said:?}");
    }
}
