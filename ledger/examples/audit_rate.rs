//! Measures the auditor on this machine: a whole check against a bare loop of SHA-256 over the same
//! records, and the time and size of a proof.
//!
//! `cargo run --release -p sublet-ledger --example audit_rate [RECORDS [DIR]]`; with a folder the
//! ledger stays there, for `sublet-audit verify`.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement for the terminal")]

#[path = "../tests/support/mod.rs"]
#[allow(dead_code, reason = "shared with the tests")]
mod support;

use std::path::Path;
use std::time::Instant;

use sublet_ledger::Journal;
use sublet_ledger::audit::{Audit, Folder, Prover, Trust};
use sublet_ledger::journal::Cursor;
use sublet_ledger::merkle::{Frontier, Hash};
use sublet_ledger::note::{Kind, PrivateKey};
use sublet_ledger::proof::Proof;
use sublet_protocol::codec::encode_record;

const SEAL_EVERY: u64 = 4_096;

fn main() {
    let records = std::env::args().nth(1).map_or(200_000, |text| text.parse().unwrap());
    let given = std::env::args().nth(2);
    let made = tempfile::tempdir().unwrap();
    let dir = given.as_deref().map_or(made.path(), Path::new);
    let key = PrivateKey::new("example.org/berlin", Kind::Log, &[7; 32]).unwrap();
    fill(dir, records, &key);

    let mut tree = Frontier::new();
    let leaves: Vec<Vec<u8>> =
        (0..records).map(|index| encode_record(&support::record(index)).unwrap()).collect();
    let start = Instant::now();
    leaves.iter().for_each(|bytes| tree.append(Hash::of_leaf(bytes)));
    let bare = start.elapsed();
    drop(leaves);

    let folder = Folder::find(dir).unwrap();
    let trust = Trust { key: Some(key.public().clone()), ..Trust::default() };
    let start = Instant::now();
    let outcome = Audit::new(&folder).trusting(trust).run(|_| ()).unwrap();
    let whole = start.elapsed();
    assert!(outcome.first_bad.is_none() && outcome.root == tree.root());
    println!("{records} records: hashes alone {bare:?}, whole check {whole:?}");

    let start = Instant::now();
    let mut prover = Prover::new(&folder, None).unwrap();
    println!("prover ready after {:?}", start.elapsed());
    let start = Instant::now();
    let proof = prover.inclusion(records / 3).unwrap();
    let made = start.elapsed();
    let start = Instant::now();
    proof.check(key.public(), None).unwrap();
    let checked = start.elapsed();
    let bytes = Proof::Inclusion(proof).to_string().len();
    println!("a proof of {bytes} bytes: made in {made:?}, checked in {checked:?}");

    let journal = Journal::open(dir, support::cell()).unwrap();
    let start = Instant::now();
    while !journal.prepare_proofs(SEAL_EVERY).unwrap() {}
    println!("an open journal: proofs prepared in {:?}", start.elapsed());
    let start = Instant::now();
    let size = journal.last_seal().unwrap().end();
    journal.inclusion_proof(records / 3, size).unwrap().unwrap();
    println!("a proof from it in {:?}", start.elapsed());
}

fn fill(dir: &Path, records: u64, key: &PrivateKey) {
    let mut journal = Journal::open(dir, support::cell()).unwrap();
    journal.sign_with(key.clone()).unwrap();
    let mut next = journal.size();
    while next < records {
        let end = (next + 256).min(records).min((next / SEAL_EVERY + 1) * SEAL_EVERY);
        let cursor = Cursor { log_index: end, term: 1 };
        journal.append(cursor, &support::records(next..end)).unwrap();
        if end.is_multiple_of(SEAL_EVERY) || end == records {
            journal.seal(end - 1).unwrap();
        }
        next = end;
    }
    journal.sync().unwrap();
}
