//! What somebody may do to a ledger behind its back; every one of these must be found (F2).
//!
//! The ledger has 256 records, two of which move money, in one segment or in four. An *accident*
//! changes bytes. An *editor* knows the format and repairs check sums; a *forger* recomputes every
//! hash, too, and so needs the key or leaves old signatures behind.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use sublet_protocol::codec::{decode_record, encode_record};
use sublet_protocol::events::Event;
use sublet_protocol::ids::CommandId;
use sublet_protocol::money::MicroCredits;
use sublet_protocol::records::Record;
use tempfile::TempDir;

use super::{Audit, Class, Folder, Outcome, Trust, check};
use crate::checkpoint::Checkpoint;
use crate::merkle::Frontier;
use crate::note::{Kind, PrivateKey};
use crate::segment::{CHECK, HEADER, Segment, SegmentBuilder};
use crate::support;

const RECORDS: u64 = 256;
/// Whole sweeps instead of samples; for the nightly run.
const ALL: &str = "SUBLET_TAMPER_ALL";

fn key(seed: u8) -> PrivateKey {
    PrivateKey::new("example.org/berlin", Kind::Log, &[seed; 32]).unwrap()
}

/// A grant, its end, and small records.
fn record(index: u64) -> Record {
    let of = match index {
        10 => 16,
        200 => 64,
        _ => 32 + index % 8,
    };
    let time = support::record(index).time;
    Record { index, time, cause: CommandId::new(u128::from(index)), ..support::record(of) }
}

fn history() -> Vec<Vec<u8>> {
    (0..RECORDS).map(|index| encode_record(&record(index)).unwrap()).collect()
}

/// An archive of these records in segments of `each`, with or without checkpoints.
struct Archive {
    dir: TempDir,
}

impl Archive {
    fn new(records: &[Vec<u8>], each: usize, signer: Option<&PrivateKey>) -> Self {
        let archive = Self { dir: tempfile::tempdir().unwrap() };
        fs::create_dir(archive.dir.path().join("archive")).unwrap();
        let mut before = Frontier::new();
        for (number, chunk) in (0..).zip(records.chunks(each)) {
            let mut builder = SegmentBuilder::new(support::cell(), number, &before);
            for bytes in chunk {
                // A time for the header; what is no record has that of the history.
                let time = decode_record(bytes).map_or(record(0).time, |record| record.time);
                builder.push(time, bytes);
            }
            let (bytes, seal, after) = builder.finish();
            fs::write(archive.file(number, "seg"), bytes).unwrap();
            if let Some(signer) = signer {
                let head = crate::merkle::TreeHead { size: seal.end(), root: seal.root };
                let checkpoint = Checkpoint::sign(head, signer).to_string();
                fs::write(archive.file(number, "ckpt"), checkpoint).unwrap();
            }
            before = after;
        }
        archive
    }

    fn file(&self, number: u32, ending: &str) -> PathBuf {
        self.dir.path().join("archive").join(format!("{number:010}.{ending}"))
    }

    fn check(&self) -> Outcome {
        check(&Folder::find(self.dir.path()).unwrap()).unwrap()
    }

    /// Checked with the right key pinned.
    fn check_signed(&self, against: Vec<Checkpoint>) -> Outcome {
        let folder = Folder::find(self.dir.path()).unwrap();
        let key = Some(key(1).public().clone());
        Audit::new(&folder)
            .trusting(Trust { key, against, ..Trust::default() })
            .run(|_| ())
            .unwrap()
    }

    fn checkpoint(&self, number: u32) -> Checkpoint {
        fs::read_to_string(self.file(number, "ckpt")).unwrap().parse().unwrap()
    }
}

#[track_caller]
fn found(outcome: &Outcome, class: Class, index: u64) {
    let bad = outcome.first_bad.as_ref().expect("nothing was found");
    assert_eq!((bad.finding.class(), bad.index), (class, index), "{}", bad.finding);
}

/// Which record byte `at` of a segment belongs to, its length included; the first record for what
/// stands before and behind them.
fn owners(segment: &[u8]) -> Vec<u64> {
    let mut owners = vec![0; segment.len()];
    let mut at = HEADER;
    for index in 0..RECORDS {
        let length = u32::from_le_bytes(segment[at..at + 4].try_into().unwrap());
        let end = at + 4 + usize::try_from(length).unwrap();
        owners[at..end].fill(index);
        at = end;
    }
    owners
}

fn repair(segment: &mut [u8]) {
    let body = segment.len() - CHECK;
    let sum = crc32fast::hash(&segment[..body]);
    segment[body..].copy_from_slice(&sum.to_le_bytes());
}

#[test]
fn the_history_that_is_tampered_with_is_good() {
    for each in [64, 256] {
        let archive = Archive::new(&history(), each, Some(&key(1)));
        let outcome = archive.check_signed(vec![]);
        assert!(outcome.first_bad.is_none(), "{:?}", outcome.first_bad);
        assert_eq!((outcome.records, outcome.accounts.trial_balance().count()), (RECORDS, 4));
    }
}

/// Every bit is turned; whether the place is told right is looked at in a sample of them.
#[test]
fn each_single_flipped_bit_of_256_records_is_found_and_its_record_named() {
    let archive = Archive::new(&history(), 256, None);
    let path = archive.file(0, "seg");
    let good = fs::read(&path).unwrap();
    let (owners, file) = (owners(&good), fs::File::options().write(true).open(&path).unwrap());
    let stride = if std::env::var_os(ALL).is_some() { 1 } else { 499 };
    let head = Frontier::new().head();
    let mut bad = good.clone();
    for bit in 0..good.len() * 8 {
        let (at, mask) = (bit / 8, 1 << (bit % 8));
        bad[at] ^= mask;
        let parsed = Segment::parse(bad.clone(), support::cell(), 0, head);
        assert!(parsed.is_err(), "bit {bit}");
        if bit % stride == 0 {
            file.write_all_at(&[bad[at]], u64::try_from(at).unwrap()).unwrap();
            // The cell's name is read from the file, so a flip in it leaves none to go by.
            let index = owners[at];
            found(&archive.check(), Class::Damaged, index);
            file.write_all_at(&[good[at]], u64::try_from(at).unwrap()).unwrap();
        }
        bad[at] ^= mask;
    }
    assert!(archive.check().first_bad.is_none(), "it was put back");
}

/// One bit of each byte, the check sum repaired: hashes and contents have to tell.
#[test]
fn each_byte_that_an_editor_changes_is_found() {
    let archive = Archive::new(&history(), 256, Some(&key(1)));
    let path = archive.file(0, "seg");
    let good = fs::read(&path).unwrap();
    let step = if std::env::var_os(ALL).is_some() { 1 } else { 41 };
    let body = good.len() - CHECK;
    for at in (0..HEADER).chain((HEADER..body).step_by(step)) {
        let mut bad = good.clone();
        bad[at] ^= 1 << (at % 8);
        repair(&mut bad);
        fs::write(&path, &bad).unwrap();
        let outcome = archive.check_signed(vec![]);
        let class = outcome.class();
        // Of a newer format, so it says; that is no damage, and not good either.
        let is_version = (8..10).contains(&at) && class == Some(Class::Version);
        // The name of another cell, which nothing in these records contradicts but the signature
        // does not cover: the origin is the key's.
        let is_name = (10..42).contains(&at);
        assert!(class == Some(Class::Damaged) || is_version || is_name, "byte {at}: {class:?}");
    }
}

#[test]
fn a_last_segment_cut_at_any_byte_is_found_with_the_record_that_is_cut() {
    let archive = Archive::new(&history(), 64, None);
    let path = archive.file(3, "seg");
    let good = fs::read(&path).unwrap();
    let step = if std::env::var_os(ALL).is_some() { 1 } else { 23 };
    // Where each record ends.
    let (mut at, mut ends) = (HEADER, Vec::new());
    for _ in 192..RECORDS {
        let length = u32::from_le_bytes(good[at..at + 4].try_into().unwrap());
        at += 4 + usize::try_from(length).unwrap();
        ends.push(at);
    }
    for length in (0..good.len()).step_by(step) {
        fs::write(&path, &good[..length]).unwrap();
        let whole = ends.iter().filter(|end| **end <= length).count();
        // Without a header, or with all records and a cut trailer, it is the segment that is bad.
        let index = if length < HEADER || whole == ends.len() { 192 } else { 192 + whole };
        let outcome = archive.check();
        found(&outcome, Class::Damaged, u64::try_from(index).unwrap());
        assert_eq!(outcome.records, 192);
    }
    fs::remove_file(&path).unwrap();
    let outcome = archive.check();
    assert!(outcome.first_bad.is_none(), "without its file only a checkpoint knows of it");
    let signed = Archive::new(&history(), 64, Some(&key(1)));
    let newest = signed.checkpoint(3);
    fs::remove_file(signed.file(3, "seg")).unwrap();
    found(&signed.check_signed(vec![newest]), Class::Damaged, 192);
}

/// What is done to the records, and where it begins.
type Edit = (&'static str, fn(&mut Vec<Vec<u8>>), u64);

/// Records taken out, doubled, exchanged and moved, the segments put together anew.
#[test]
fn records_removed_doubled_exchanged_or_moved_are_found_where_it_begins() {
    for each in [64, 256] {
        let whole = Archive::new(&history(), each, Some(&key(1)));
        let edits: [Edit; 5] = [
            ("removed", |records| drop(records.remove(70)), 70),
            ("doubled", |records| records.insert(71, records[70].clone()), 71),
            ("exchanged", |records| records.swap(70, 90), 70),
            (
                "moved back",
                |records| {
                    let one = records.remove(150);
                    records.insert(70, one);
                },
                70,
            ),
            (
                "moved on",
                |records| {
                    let one = records.remove(70);
                    records.insert(150, one);
                },
                70,
            ),
        ];
        for (what, edit, index) in edits {
            let mut records = history();
            edit(&mut records);
            // All hashes recomputed: what the records say tells.
            let forged = Archive::new(&records, each, None);
            let outcome = forged.check();
            assert_eq!(outcome.class(), Some(Class::Damaged), "{what}");
            found(&outcome, Class::Damaged, index);
            // With the old signatures it is found as well, from the last good one on.
            for number in 0..u32::try_from(256 / each).unwrap() {
                fs::copy(whole.file(number, "ckpt"), forged.file(number, "ckpt")).unwrap();
            }
            let first = u64::try_from(70 / each * each).unwrap();
            found(&forged.check_signed(vec![]), Class::Damaged, first);
        }
    }
}

/// Another valid record in the place of one, every hash recomputed: only a signature can tell.
#[test]
fn another_valid_record_in_its_place_is_found_by_signatures() {
    for (at, each, index) in [(70, 64, 64), (0, 64, 0), (255, 64, 192), (70, 256, 0)] {
        let whole = Archive::new(&history(), each, Some(&key(1)));
        let mut records = history();
        let other = Record { cause: CommandId::new(0xbad), ..record(u64::try_from(at).unwrap()) };
        records[at] = encode_record(&other).unwrap();
        let forged = Archive::new(&records, each, None);
        assert!(forged.check().first_bad.is_none(), "by itself it is a good ledger");
        found(&forged.check_signed(vec![]), Class::Damaged, 0);
        for number in 0..u32::try_from(256 / each).unwrap() {
            fs::copy(whole.file(number, "ckpt"), forged.file(number, "ckpt")).unwrap();
        }
        found(&forged.check_signed(vec![]), Class::Damaged, index);
        // A stolen key signs anything; an earlier checkpoint does not go away.
        let resigned = Archive::new(&records, each, Some(&key(1)));
        assert!(resigned.check_signed(vec![]).first_bad.is_none());
        let newest = whole.checkpoint(u32::try_from(256 / each - 1).unwrap());
        let outcome = resigned.check_signed(vec![newest]);
        assert_eq!(outcome.class(), Some(Class::Fork), "{:?}", outcome.first_bad);
        // Signed with a key of the forger's own.
        let foreign = Archive::new(&records, each, Some(&key(2)));
        found(&foreign.check_signed(vec![]), Class::Damaged, 0);
    }
}

/// Amounts changed afterwards, with every hash recomputed and the key stolen: the books tell where
/// they do not fit together any more.
#[test]
fn amounts_that_do_not_balance_are_the_books_and_not_damage() {
    let mut records = history();
    let mut ended = record(200);
    let Event::LeaseEnded { lines, .. } = &mut ended.event else { panic!("another record") };
    lines[2].credit = MicroCredits::new(lines[2].credit.get() + 1);
    records[200] = encode_record(&ended).unwrap();
    for each in [64, 256] {
        let forged = Archive::new(&records, each, Some(&key(1)));
        found(&forged.check_signed(vec![]), Class::Books, 200);
    }
    // Where the record was changed and nothing else, it is damage: the books are not even looked at.
    let whole = Archive::new(&history(), 256, Some(&key(1)));
    let mut bytes = fs::read(whole.file(0, "seg")).unwrap();
    let old = encode_record(&record(200)).unwrap();
    let at = bytes.windows(old.len()).position(|window| window == old).unwrap();
    assert_eq!(records[200].len(), old.len());
    bytes[at..at + old.len()].copy_from_slice(&records[200]);
    repair(&mut bytes);
    fs::write(whole.file(0, "seg"), bytes).unwrap();
    assert_eq!(whole.check().class(), Some(Class::Damaged));
}

#[test]
fn a_record_of_a_newer_version_is_no_damage_but_a_flipped_version_is() {
    let mut records = history();
    records[100][0] = 99;
    found(&Archive::new(&records, 64, None).check(), Class::Version, 100);
    let archive = Archive::new(&history(), 64, None);
    let mut bytes = fs::read(archive.file(1, "seg")).unwrap();
    let old = encode_record(&record(100)).unwrap();
    let at = bytes.windows(old.len()).position(|window| window == old).unwrap();
    bytes[at] = 99;
    fs::write(archive.file(1, "seg"), &bytes).unwrap();
    found(&archive.check(), Class::Damaged, 100);
    repair(&mut bytes);
    fs::write(archive.file(1, "seg"), &bytes).unwrap();
    found(&archive.check(), Class::Damaged, 100);
}

#[test]
fn segments_exchanged_repeated_or_of_another_ledger_are_found() {
    let archive = Archive::new(&history(), 64, None);
    let read = |number| fs::read(archive.file(number, "seg")).unwrap();
    let good: Vec<Vec<u8>> = (0..4).map(read).collect();
    fs::write(archive.file(1, "seg"), &good[2]).unwrap();
    fs::write(archive.file(2, "seg"), &good[1]).unwrap();
    found(&archive.check(), Class::Damaged, 64);
    fs::write(archive.file(1, "seg"), &good[1]).unwrap();
    found(&archive.check(), Class::Damaged, 128);
    let mut records = history();
    records[5] = encode_record(&Record { cause: CommandId::new(9), ..record(5) }).unwrap();
    let foreign = Archive::new(&records, 64, None);
    fs::write(archive.file(2, "seg"), &good[2]).unwrap();
    fs::copy(foreign.file(2, "seg"), archive.file(2, "seg")).unwrap();
    found(&archive.check(), Class::Damaged, 128);
}

/// Records and flips of the random sweep; the nightly run has 10⁶ and 10⁵.
fn sizes() -> (u64, u64) {
    let number =
        |name: &str, otherwise| std::env::var(name).map_or(otherwise, |text| text.parse().unwrap());
    (number("SUBLET_TAMPER_RECORDS", 8_192), number("SUBLET_TAMPER_FLIPS", 400))
}

#[test]
fn random_flips_anywhere_in_a_long_ledger_are_found() {
    let (count, flips) = sizes();
    let records: Vec<Vec<u8>> =
        (0..count).map(|index| encode_record(&support::record(index)).unwrap()).collect();
    let archive = Archive::new(&records, 4_096, None);
    drop(records);
    let segments = u32::try_from(count.div_ceil(4_096)).unwrap();
    // Where each segment begins, and the tree before it.
    let (mut befores, mut before) = (Vec::new(), Frontier::new());
    for number in 0..segments {
        let bytes = fs::read(archive.file(number, "seg")).unwrap();
        let segment = Segment::parse(bytes, support::cell(), number, before.head()).unwrap();
        befores.push(before);
        before = segment.frontier().clone();
    }
    // Flips go through the segments in turn, so that each is read once for many of them.
    let mut state = 0x5eed_u64;
    let mut random = |below: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut found = 0;
    for number in 0..segments {
        let path = archive.file(number, "seg");
        let good = fs::read(&path).unwrap();
        let head = befores[usize::try_from(number).unwrap()].head();
        let share = flips / u64::from(segments)
            + u64::from(u64::from(number) < flips % u64::from(segments));
        for flip in 0..share {
            let bit = random(u64::try_from(good.len()).unwrap() * 8);
            let mut bad = good.clone();
            bad[usize::try_from(bit / 8).unwrap()] ^= 1 << (bit % 8);
            if flip == 0 && number % 8 == 0 {
                // The whole program on some of them.
                fs::write(&path, &bad).unwrap();
                let outcome = archive.check();
                assert_eq!(outcome.class(), Some(Class::Damaged), "bit {bit} of segment {number}");
                let index = outcome.first_bad.unwrap().index;
                let segment = u64::from(number) * 4_096..u64::from(number + 1) * 4_096;
                assert!(segment.contains(&index), "record {index} of segment {number}");
                fs::write(&path, &good).unwrap();
            }
            assert!(Segment::parse(bad, support::cell(), number, head).is_err(), "bit {bit}");
            found += 1;
        }
    }
    assert_eq!(found, flips);
}
