//! Measures appends on this machine: events per second and bytes per event on the disk, at
//! several sizes of a raft entry, against one sled insert per event.
//!
//! `cargo run --release -p sublet-ledger --example append_rate [EVENTS]`
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement for the terminal")]
#![allow(clippy::as_conversions, clippy::cast_precision_loss, reason = "rates for the terminal")]

#[path = "../tests/support/mod.rs"]
#[allow(dead_code, reason = "shared with the tests")]
mod support;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use sled::transaction::{ConflictableTransactionError, Transactional};
use sublet_ledger::Journal;
use sublet_ledger::journal::Cursor;
use sublet_ledger::verify::verify;
use sublet_protocol::codec::encode_record;

const SEAL_EVERY: u64 = 4_096;

fn main() {
    let events = std::env::args().nth(1).map_or(200_000, |text| text.parse().unwrap());
    for per_entry in [1, 4, 16, 64, 256] {
        measure(events, per_entry);
    }
    per_event_inserts(events, Yardstick::Plain);
    per_event_inserts(events, Yardstick::Indexed);
}

/// How a journal without pages would use sled.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Yardstick {
    /// Each event's bytes under its index, nothing else.
    Plain,
    /// In one transaction also an entry for each id it is found by, and the cursor.
    Indexed,
}

/// What `sublet_ledger` does with raft entries of `per_entry` events.
fn measure(events: u64, per_entry: u64) {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(dir.path(), support::cell()).unwrap();
    let (mut appending, mut sealing, mut longest) =
        (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    let mut next = 0;
    while next < events {
        let seal_at = (next / SEAL_EVERY + 1) * SEAL_EVERY;
        let end = (next + per_entry).min(events).min(seal_at);
        let records = support::records(next..end);
        let cursor = Cursor { log_index: end, term: 1 };
        let start = Instant::now();
        journal.append(cursor, &records).unwrap();
        appending += start.elapsed();
        if end == seal_at {
            let start = Instant::now();
            journal.seal(end - 1).unwrap();
            sealing += start.elapsed();
            longest = longest.max(start.elapsed());
        }
        next = end;
    }
    journal.sync().unwrap();
    let start = Instant::now();
    assert!(verify(&journal).unwrap().is_good());
    let verified = start.elapsed();
    drop(journal);
    let start = Instant::now();
    drop(Journal::open(dir.path(), support::cell()).unwrap());
    let opened = start.elapsed();
    let rate = |spent: Duration| events as f64 / spent.as_secs_f64();
    let size = |part: &str| disk(&dir.path().join(part)) as f64 / events as f64;
    println!(
        "{per_entry:>4} per entry: {:>7.0} events/s (without seals {:>7.0}; longest seal {} ms), \
         {:.0} bytes/event (archive {:.0}, sled {:.0}), open {} ms, verify {} ms",
        rate(appending + sealing),
        rate(appending),
        longest.as_millis(),
        size("archive") + size("sled"),
        size("archive"),
        size("sled"),
        opened.as_millis(),
        verified.as_millis(),
    );
}

/// One insert or transaction per event.
fn per_event_inserts(events: u64, yardstick: Yardstick) {
    let dir = tempfile::tempdir().unwrap();
    let db = sled::Config::new().path(dir.path()).cache_capacity(32 << 20).open().unwrap();
    let trees = ["records", "subjects", "tenants", "times", "meta"];
    let trees = trees.map(|name| db.open_tree(name).unwrap());
    let (mut spent, mut bytes) = (Duration::ZERO, 0);
    for index in 0..events {
        let record = support::record(index);
        let encoded = encode_record(&record).unwrap();
        bytes += encoded.len();
        let at = index.to_be_bytes();
        let start = Instant::now();
        let written = trees[..].transaction(|views| {
            views[0].insert(&at, encoded.as_slice())?;
            if yardstick == Yardstick::Indexed {
                for subject in record.subjects() {
                    views[1].insert([subject.to_be_bytes().as_slice(), &at].concat(), &[])?;
                }
                if let Some(tenant) = record.tenant() {
                    views[2].insert([tenant.as_str().as_bytes(), &at].concat(), &[])?;
                }
                let time = record.time.get().to_be_bytes();
                views[3].insert([time, at].concat(), &[])?;
                views[4].insert(b"cursor", &at)?;
            }
            Ok::<(), ConflictableTransactionError<()>>(())
        });
        written.unwrap();
        spent += start.elapsed();
    }
    db.flush().unwrap();
    println!(
        "sled, one transaction per event, {yardstick:?}: {:.0} events/s, {:.0} bytes/event; a \
         record has {} bytes",
        events as f64 / spent.as_secs_f64(),
        disk(dir.path()) as f64 / events as f64,
        bytes as u64 / events,
    );
}

/// Bytes that a directory's files take on the disk.
fn disk(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).unwrap().map(Result::unwrap);
    let size = |entry: fs::DirEntry| match entry.metadata().unwrap() {
        metadata if metadata.is_dir() => disk(&entry.path()),
        metadata => metadata.blocks() * 512,
    };
    entries.map(size).sum()
}
