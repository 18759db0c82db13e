//! Reads the sealed segments again, one after the other, for as long as the cell is open.
//!
//! A disk forgets quietly. A segment that is read once in a while is found bad while its replicas and
//! backups are still good. It is said loudly and nothing is done about it: the same file of any other
//! broker of the cell, put in its place, mends it.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::cell::Parts;
use crate::error::{Chain, Error};
use crate::metrics;

/// Between two segments. One of 4,096 records takes some milliseconds, so that a year of them, sealed
/// every ten minutes, is read within three weeks.
const PAUSE: Duration = Duration::from_secs(30);

/// Reads as long as the cell is open.
pub(crate) fn watch(parts: &Arc<Parts>) {
    tokio::spawn(scrub(Arc::downgrade(parts)));
}

async fn scrub(parts: Weak<Parts>) {
    let mut number = 0;
    loop {
        tokio::time::sleep(PAUSE).await;
        let Some(parts) = parts.upgrade() else { return };
        let read = tokio::task::spawn_blocking(move || one(&parts, number)).await;
        number = read.unwrap_or(0);
    }
}

/// Reads a segment again; the number of the next one, 0 behind the last.
pub(crate) fn one(parts: &Parts, number: u32) -> u32 {
    match parts.journal(|journal| journal.scrub(number)) {
        Ok(true) => {
            metrics::segment_read(true);
            number.saturating_add(1)
        }
        // There is no such segment: begin again.
        Ok(false) | Err(Error::Stopped) => 0,
        Err(error) => {
            metrics::segment_read(false);
            tracing::error!(
                segment = number, error = %Chain(&error),
                "a sealed segment is damaged on the disk: put the same file of another broker or of \
                 a backup in its place"
            );
            number.saturating_add(1)
        }
    }
}

#[cfg(test)]
mod tests {
    use sublet_protocol::commands::{Actor, Command};
    use sublet_protocol::ids::CellId;

    use super::*;
    use crate::Cell;
    use crate::config::Config;

    #[tokio::test]
    async fn a_segment_that_goes_bad_is_found_and_the_next_one_is_read_all_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::new(CellId::new("berlin").unwrap());
        config.data_dir = Some(folder.path().to_owned());
        let cell = Cell::open(config).await.unwrap();
        for _ in 0..2 {
            cell.propose(Actor::Leader, None, Command::SealTail).await.unwrap();
        }
        let file = folder.path().join("ledger/archive/0000000000.seg");
        let good = std::fs::read(&file).unwrap();
        let scrub = |number| cell.parts().journal(|journal| journal.scrub(number));
        assert!(scrub(0).unwrap() && scrub(1).unwrap() && !scrub(2).unwrap());
        let mut bad = good.clone();
        bad[150] ^= 1;
        std::fs::write(&file, bad).unwrap();
        let error = scrub(0).unwrap_err();
        assert!(Chain(&error).to_string().contains("0000000000.seg"), "{}", Chain(&error));
        assert_eq!([one(cell.parts(), 0), one(cell.parts(), 1), one(cell.parts(), 2)], [1, 2, 0]);
        std::fs::write(&file, good).unwrap();
        assert!(scrub(0).unwrap(), "mended");
        cell.shutdown().await;
        assert_eq!(one(cell.parts(), 1), 0);
    }
}
