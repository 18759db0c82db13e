//! `sublet-audit` as an auditor runs it: on folders, by its exit code and its words.
#![allow(clippy::unwrap_used, reason = "tests")]

#[allow(dead_code, reason = "shared with the unit tests and the measurement")]
mod support;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use sublet_ledger::Journal;
use sublet_ledger::journal::Cursor;
use tempfile::TempDir;

/// A ledger of 300 records, 250 of them sealed in three segments, as a stopped broker leaves it.
fn ledger() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(dir.path(), support::cell()).unwrap();
    for (from, end) in [(0, 100), (100, 200), (200, 250)] {
        journal.append(Cursor { log_index: end, term: 1 }, &support::records(from..end)).unwrap();
        journal.seal(end - 1).unwrap();
    }
    journal.append(Cursor { log_index: 300, term: 1 }, &support::records(250..300)).unwrap();
    journal.sync().unwrap();
    dir
}

fn audit(arguments: &[&str], dir: &Path) -> Output {
    let program = env!("CARGO_BIN_EXE_sublet-audit");
    Command::new(program).args(arguments).arg(dir).output().unwrap()
}

/// Exit code and the JSON of `verify`.
fn verify(dir: &Path) -> (i32, serde_json::Value) {
    let output = audit(&["verify", "--json"], dir);
    let said = serde_json::from_slice(&output.stdout).unwrap_or_default();
    (output.status.code().unwrap(), said)
}

fn segment(dir: &Path, number: u32) -> std::path::PathBuf {
    dir.join("archive").join(format!("{number:010}.seg"))
}

/// Every file below a folder with its bytes.
fn contents(dir: &Path) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(contents(&path));
        } else {
            found.push((path.clone(), fs::read(path).unwrap()));
        }
    }
    found.sort();
    found
}

#[test]
fn a_good_ledger_is_verified_to_its_last_record_and_nothing_in_it_changes() {
    let dir = ledger();
    let before = contents(dir.path());
    let (code, said) = verify(dir.path());
    assert_eq!(contents(dir.path()), before, "the auditor only reads");
    assert_eq!(code, 0, "{said}");
    assert_eq!((&said["verdict"], &said["records"]), (&"ok".into(), &300.into()), "{said}");
    assert_eq!((&said["sealed"], &said["segments"]), (&250.into(), &3.into()), "{said}");
    assert_eq!((&said["cell"], &said["unsealed"]), (&"berlin".into(), &"checked".into()));
    let root = Journal::open(dir.path(), support::cell()).unwrap().root().to_string();
    assert_eq!(said["root"], root);
}

#[test]
fn the_ledger_is_found_below_the_data_folder_of_a_broker_and_of_a_demonstration() {
    let ledger = ledger();
    for place in ["ledger", "cell/ledger"] {
        let data = tempfile::tempdir().unwrap();
        let inside = data.path().join(place);
        fs::create_dir_all(inside.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(ledger.path(), &inside).unwrap();
        let (code, said) = verify(data.path());
        assert_eq!((code, &said["ledger"]), (0, &inside.to_string_lossy().into()), "{said}");
    }
}

#[test]
fn the_archive_itself_may_be_named() {
    let ledger = ledger();
    let (code, said) = verify(&ledger.path().join("archive"));
    assert_eq!((code, &said["records"], &said["sealed"]), (0, &300.into(), &250.into()), "{said}");
}

#[test]
fn a_ledger_in_use_is_verified_as_far_as_it_is_sealed() {
    let dir = ledger();
    let journal = Journal::open(dir.path(), support::cell()).unwrap();
    let (code, said) = verify(dir.path());
    assert_eq!((code, &said["unsealed"]), (0, &"in_use".into()), "{said}");
    assert_eq!(said["records"], 250);
    assert_eq!(journal.size(), 300);
}

#[test]
fn a_copy_of_the_archive_alone_is_verified() {
    let dir = ledger();
    fs::remove_dir_all(dir.path().join("sled")).unwrap();
    let (code, said) = verify(dir.path());
    assert_eq!((code, &said["unsealed"]), (0, &"no_store".into()), "{said}");
    assert_eq!(said["records"], 250);
}

#[test]
fn a_flipped_bit_is_damage_and_its_record_is_named() {
    let dir = ledger();
    let path = segment(dir.path(), 1);
    let mut bytes = fs::read(&path).unwrap();
    // The bytes of the last record but a few: behind it stand three peaks, the root and the sum.
    let place = bytes.len() - 4 - 32 - 3 * 32 - 5;
    bytes[place] ^= 0x10;
    fs::write(&path, bytes).unwrap();
    let (code, said) = verify(dir.path());
    assert_eq!((code, &said["verdict"]), (2, &"damaged".into()), "{said}");
    assert_eq!(said["first_bad"]["index"], 199, "{said}");
    assert_eq!(said["records"], 100, "{said}");
    let words = String::from_utf8(audit(&["verify"], dir.path()).stdout).unwrap();
    assert!(words.contains("first bad     record 199: archive segment"), "{words}");
}

#[test]
fn a_missing_segment_is_damage_wherever_it_is_missing() {
    for (number, index) in [(0, 0), (1, 100), (2, 200)] {
        let dir = ledger();
        fs::remove_file(segment(dir.path(), number)).unwrap();
        let (code, said) = verify(dir.path());
        assert_eq!((code, &said["first_bad"]["index"]), (2, &index.into()), "{said}");
    }
}

#[test]
fn a_segment_of_a_newer_format_is_not_called_damage() {
    let dir = ledger();
    let path = segment(dir.path(), 2);
    let mut bytes = fs::read(&path).unwrap();
    bytes[8] = 2;
    let body = bytes.len() - 4;
    let sum = crc32fast::hash(&bytes[..body]);
    bytes[body..].copy_from_slice(&sum.to_le_bytes());
    fs::write(&path, bytes).unwrap();
    let (code, said) = verify(dir.path());
    assert_eq!((code, &said["first_bad"]["index"]), (5, &200.into()), "{said}");
}

/// sled takes a page of its log that does not have its sum for the torn end of a crash and forgets
/// it. What is not sealed is proven by nothing here: the broker's log brings it back.
#[test]
fn a_flipped_bit_of_the_store_is_damage_or_costs_unsealed_records_only() {
    let dir = ledger();
    let db = dir.path().join("sled").join("db");
    let good = fs::read(&db).unwrap();
    let record = sublet_protocol::codec::encode_record(&support::record(299)).unwrap();
    let at = good.windows(record.len()).rposition(|window| window == record).unwrap();
    let mut bad = good;
    bad[at + record.len() - 1] ^= 1;
    fs::write(&db, bad).unwrap();
    let (code, said) = verify(dir.path());
    let whole = Journal::open_or_rebuild(dir.path(), support::cell()).unwrap().journal;
    assert!((code == 0 && said["records"] == 250) || code == 2, "{said}");
    assert_eq!(whole.seals().len(), 3);
}

#[test]
fn a_folder_without_a_ledger_is_told_with_the_places_that_were_looked_at() {
    let dir = tempfile::tempdir().unwrap();
    let output = audit(&["verify"], dir.path());
    assert_eq!(output.status.code(), Some(1));
    let words = String::from_utf8(output.stderr).unwrap();
    assert!(words.contains("there is no ledger in") && words.contains("cell/ledger"), "{words}");
    let output = Command::new(env!("CARGO_BIN_EXE_sublet-audit")).arg("verfy").output().unwrap();
    assert_eq!(output.status.code(), Some(1), "wrong usage is not damage");
}
