//! The journal in memory and on disk, side by side, and the journal after losses.

use std::fs;
use std::ops::Range;
use std::path::Path;

use sublet_protocol::codec::encode_record;
use sublet_protocol::records::Record;

use super::*;
use crate::accounts::Accounts;
use crate::error::{Damage, Error, Refusal, SegmentFault};
use crate::merkle::{Frontier, is_consistent, is_included};
use crate::support::{self, cell, record, records};
use crate::verify::{Finding, Verifier, verify, verify_dir};

const SEAL_EVERY: u64 = 200;

fn cursor(log_index: u64) -> Cursor {
    Cursor { log_index, term: 1 }
}

/// Appends the records in `range`, seven to a raft entry, and seals as the history says.
fn feed(journal: &mut Journal, range: Range<u64>) {
    let mut next = range.start;
    while next < range.end {
        let end = (next + 7).min(range.end).min((next / SEAL_EVERY + 1) * SEAL_EVERY);
        journal.append(cursor(end), &records(next..end)).unwrap();
        if end.is_multiple_of(SEAL_EVERY) {
            journal.seal(end - 1).unwrap();
        }
        next = end;
    }
}

fn root_of(range: Range<u64>) -> Hash {
    let mut tree = Frontier::new();
    range.for_each(|index| tree.append(Hash::of_leaf(&encode_record(&record(index)).unwrap())));
    tree.root()
}

fn open(dir: &Path) -> Journal {
    Journal::open(dir, cell()).unwrap()
}

/// A journal on disk with 3 segments and a tail of 50.
fn on_disk() -> (tempfile::TempDir, Hash) {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(dir.path());
    feed(&mut journal, 0..650);
    let root = journal.root();
    journal.sync().unwrap();
    (dir, root)
}

fn segment(dir: &Path, number: u32) -> std::path::PathBuf {
    dir.join("archive").join(format!("{number:010}.seg"))
}

/// Every read, against the history itself.
#[track_caller]
fn check_reads(journal: &Journal, size: u64) {
    assert_eq!((journal.size(), journal.root()), (size, root_of(0..size)));
    assert_eq!(journal.range(0, usize::MAX).unwrap(), records(0..size));
    assert_eq!(journal.range(size / 2, 9).unwrap(), records(size / 2..(size / 2 + 9).min(size)));
    assert_eq!(journal.record(size).unwrap(), None);
    for index in [0, size / 3, size - 1] {
        assert_eq!(journal.record(index).unwrap(), Some(record(index)));
    }
    let all = records(0..size);
    let of = |keep: &dyn Fn(&Record) -> bool| -> Vec<Record> {
        all.iter().filter(|record| keep(record)).cloned().collect()
    };
    for life in [0, 5, 17, 63] {
        let (lease, request) = (support::lease(life), support::request(life));
        assert_eq!(journal.by_lease(lease).unwrap(), of(&|r| r.event.lease() == Some(lease)));
        let found = journal.by_request(request).unwrap();
        assert_eq!(found, of(&|r| r.event.request() == Some(request)));
    }
    let tenant = support::borrower(3);
    let theirs = of(&|r| r.tenant() == Some(tenant));
    assert_eq!(journal.by_tenant(tenant, None, usize::MAX).unwrap(), theirs);
    let mut paged: Vec<Record> = Vec::new();
    loop {
        let after = paged.last().map(|record| record.index);
        let page = journal.by_tenant(tenant, after, 4).unwrap();
        assert!(page.len() <= 4);
        if page.is_empty() {
            break;
        }
        paged.extend(page);
    }
    assert_eq!(paged, theirs);
    for index in [0, 1, 199, 200, size - 1] {
        let time = record(index).time;
        assert_eq!(journal.at_time(time).unwrap(), Some(index));
        assert_eq!(journal.at_time(Timestamp::new(time.get() - 1)).unwrap(), index.checked_sub(1));
    }
}

#[test]
fn a_journal_in_memory_reads_back_what_was_appended() {
    let mut journal = Journal::in_memory(cell());
    feed(&mut journal, 0..650);
    check_reads(&journal, 650);
    assert_eq!((journal.seals().len(), journal.tail_records()), (3, 50));
    assert!(verify(&journal).unwrap().is_good());
}

#[test]
fn a_journal_on_disk_reads_the_same_before_and_after_it_is_reopened() {
    let (dir, root) = on_disk();
    let journal = open(dir.path());
    assert_eq!((journal.root(), journal.cursor()), (root, Some(cursor(650))));
    check_reads(&journal, 650);
    let report = verify(&journal).unwrap();
    assert!(report.is_good(), "{report:?}");
    assert_eq!((report.records, report.segments, report.root), (650, 3, root));
}

#[test]
fn an_empty_journal_is_good_and_has_no_answers() {
    let journal = Journal::in_memory(cell());
    assert_eq!((journal.size(), journal.root()), (0, Hash::of_nothing()));
    assert_eq!(journal.at_time(Timestamp::new(5)).unwrap(), None);
    assert_eq!(journal.range(0, 5).unwrap(), []);
    assert_eq!(journal.by_lease(support::lease(1)).unwrap(), []);
    assert!(verify(&journal).unwrap().is_good());
}

#[test]
fn replaying_the_log_changes_nothing() {
    let (dir, root) = on_disk();
    let mut journal = open(dir.path());
    feed(&mut journal, 0..650);
    check_reads(&journal, 650);
    assert_eq!((journal.root(), journal.seals().len()), (root, 3));
    let again = journal.append(cursor(700), &records(645..655)).unwrap();
    assert_eq!((again.skipped, again.added, again.leaves.len()), (5, 5, 10));
    assert_eq!(again.head.root, root_of(0..655));
}

#[test]
fn a_record_that_differs_from_the_journalled_one_stops_the_replay() {
    let (dir, root) = on_disk();
    let mut journal = open(dir.path());
    for index in [3, 630] {
        let mut other = record(index);
        other.term = 9;
        let refused = journal.append(cursor(651), &[other]);
        assert!(matches!(refused, Err(Error::Diverged { index: at, .. }) if at == index));
    }
    assert_eq!(journal.root(), root);
}

#[test]
fn records_that_do_not_follow_are_refused_and_nothing_is_written() {
    let mut journal = Journal::in_memory(cell());
    feed(&mut journal, 0..20);
    let root = journal.root();
    #[track_caller]
    fn check(journal: &mut Journal, records: &[Record], why: Refusal) {
        match journal.append(cursor(99), records) {
            Err(Error::Refused { why: found, .. }) => assert_eq!(found, why),
            other => panic!("{other:?}"),
        }
    }
    check(&mut journal, &records(21..23), Refusal::Gap { expected: 20 });
    check(&mut journal, &[record(20), record(22)], Refusal::Gap { expected: 21 });
    let late = Record { time: Timestamp::new(7), ..record(21) };
    check(&mut journal, &[record(20), late], Refusal::TimeWentBack);
    let mut wrong = record(16 + 80);
    wrong.index = 20;
    let sublet_protocol::events::Event::LeaseGranted { lines, .. } = &mut wrong.event else {
        panic!("record 16 of a block grants a lease")
    };
    lines.pop();
    check(&mut journal, &[wrong], Refusal::Unbalanced);
    assert_eq!((journal.size(), journal.root()), (20, root));
    assert!(matches!(
        journal.seal(20),
        Err(Error::Refused { index: 20, why: Refusal::SealPastEnd })
    ));
}

#[test]
fn a_seal_that_ends_elsewhere_is_refused() {
    let (dir, _) = on_disk();
    let mut journal = open(dir.path());
    assert_eq!(journal.seal(399).unwrap().number, 1);
    assert!(matches!(journal.seal(398), Err(Error::SealDiverged { upto: 398, segment: 1 })));
}

#[test]
fn a_seal_may_end_inside_a_page() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(dir.path());
    journal.append(cursor(1), &records(0..250)).unwrap();
    journal.seal(236).unwrap();
    check_reads(&journal, 250);
    journal.append(cursor(2), &records(250..260)).unwrap();
    journal.sync().unwrap();
    drop(journal);
    check_reads(&open(dir.path()), 260);
}

#[test]
fn segments_are_equal_however_the_records_were_batched() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut journal = open(one.path());
    journal.append(cursor(1), &records(0..200)).unwrap();
    journal.seal(199).unwrap();
    let mut journal = open(two.path());
    (0..200).for_each(|n| drop(journal.append(cursor(n), &records(n..n + 1)).unwrap()));
    journal.seal(199).unwrap();
    let bytes = |dir: &tempfile::TempDir| fs::read(segment(dir.path(), 0)).unwrap();
    assert_eq!(bytes(&one), bytes(&two));
}

/// A lease of 1,024 members: about 100 KiB, seven chunks.
#[test]
fn a_record_larger_than_a_page_is_kept_sealed_and_found() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(dir.path());
    let mut large = record(16);
    large.index = 1;
    let sublet_protocol::events::Event::LeaseGranted { terms, .. } = &mut large.event else {
        panic!("record 16 grants a lease")
    };
    let lease = terms.lease;
    terms.members = vec![terms.members[0]; 1_024];
    let small = Record { index: 2, ..record(17) };
    let all = [record(0), large.clone(), small];
    journal.append(cursor(1), &all).unwrap();
    journal.sync().unwrap();
    drop(journal);
    let mut journal = open(dir.path());
    assert_eq!(journal.range(0, 9).unwrap(), all);
    journal.seal(1).unwrap();
    assert_eq!(journal.by_lease(lease).unwrap(), [large]);
    assert_eq!(journal.range(0, 9).unwrap(), all);
    drop(journal);
    assert!(verify(&open(dir.path())).unwrap().is_good());
}

#[test]
fn a_deleted_store_is_rebuilt_and_the_log_brings_it_to_the_same_root() {
    let (dir, root) = on_disk();
    fs::remove_dir_all(dir.path().join("sled")).unwrap();
    let mut journal = open(dir.path());
    assert_eq!((journal.size(), journal.cursor()), (600, None));
    assert_eq!(journal.root(), root_of(0..600));
    feed(&mut journal, 600..650);
    assert_eq!(journal.root(), root);
    check_reads(&journal, 650);
    assert!(verify(&journal).unwrap().is_good());
}

#[test]
fn a_store_from_before_the_last_seals_is_brought_up_to_the_archive() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(dir.path());
    feed(&mut journal, 0..250);
    journal.sync().unwrap();
    drop(journal);
    let old = dir.path().join("old");
    fs::create_dir(&old).unwrap();
    for file in fs::read_dir(dir.path().join("sled")).unwrap().map(Result::unwrap) {
        if file.file_type().unwrap().is_file() {
            fs::copy(file.path(), old.join(file.file_name())).unwrap();
        }
    }
    feed(&mut open(dir.path()), 250..650);
    fs::remove_dir_all(dir.path().join("sled")).unwrap();
    fs::rename(&old, dir.path().join("sled")).unwrap();
    let mut journal = open(dir.path());
    assert_eq!((journal.size(), journal.tail_records()), (600, 0));
    feed(&mut journal, 240..650);
    check_reads(&journal, 650);
}

#[test]
fn a_store_that_is_no_database_is_set_aside_and_made_anew() {
    let (dir, root) = on_disk();
    for file in fs::read_dir(dir.path().join("sled")).unwrap().map(Result::unwrap) {
        if file.file_type().unwrap().is_file() {
            fs::write(file.path(), vec![0x5a; 300_000]).unwrap();
        }
    }
    assert!(matches!(Journal::open(dir.path(), cell()), Err(Error::Damaged(_))));
    let report = verify_dir(dir.path(), cell()).unwrap();
    assert!(matches!(report.first_bad.unwrap().finding, Finding::StoreDamaged(_)));
    let Opened { mut journal, rebuilt } = Journal::open_or_rebuild(dir.path(), cell()).unwrap();
    assert!(rebuilt.is_some());
    assert!(dir.path().join("sled.damaged/db").exists());
    feed(&mut journal, 600..650);
    assert_eq!(journal.root(), root);
    drop(journal);
    assert!(Journal::open_or_rebuild(dir.path(), cell()).unwrap().rebuilt.is_none());
}

/// Flips in sled's own file: sled may lose records or panic, the journal may not lie.
#[test]
fn a_flipped_bit_in_the_stores_file_costs_at_most_a_replay() {
    let (dir, root) = on_disk();
    let file = dir.path().join("sled/db");
    let good = fs::read(&file).unwrap();
    let used: Vec<usize> = (0..good.len()).filter(|at| good[*at] != 0).collect();
    let (mut rebuilt, mut short, mut misled) = (0, 0, 0);
    for flip in 0..=32 {
        let at = used[flip * 7_919 % used.len()];
        let mut bad = good.clone();
        // The first round is the control: the copy alone costs nothing.
        bad[at] ^= if flip == 0 { 0 } else { 1 << (flip % 8) };
        let copy = tempfile::tempdir().unwrap();
        for part in ["archive", "sled"] {
            fs::create_dir(copy.path().join(part)).unwrap();
            for from in fs::read_dir(dir.path().join(part)).unwrap().map(Result::unwrap) {
                if from.file_type().unwrap().is_file() {
                    fs::copy(from.path(), copy.path().join(part).join(from.file_name())).unwrap();
                }
            }
        }
        fs::write(copy.path().join("sled/db"), bad).unwrap();
        let opened = Journal::open_or_rebuild(copy.path(), cell()).unwrap();
        let mut journal = opened.journal;
        assert_eq!(journal.root(), root_of(0..journal.size()), "byte {at}");
        rebuilt += u32::from(opened.rebuilt.is_some());
        short += u32::from(journal.size() < 650);
        assert!(flip > 0 || (opened.rebuilt.is_none() && journal.size() == 650));
        feed(&mut journal, 600..650);
        assert_eq!(journal.root(), root, "byte {at}");
        // An index that lost a value is found by the verifier, not at every start.
        if let Some(bad) = verify(&journal).unwrap().first_bad {
            assert!(matches!(bad.finding, Finding::NotIndexed), "byte {at}: {bad:?}");
            misled += 1;
        }
    }
    println!("32 flips: {rebuilt} rebuilt, {short} short, {misled} with an index to be rebuilt");
}

#[test]
fn a_journal_may_be_shared_between_threads() {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<Journal>();
}

#[test]
fn a_missing_segment_is_named_and_nothing_is_opened_short() {
    for (lost, keep_store) in [(0, true), (1, true), (2, true), (1, false)] {
        let (dir, _) = on_disk();
        fs::remove_file(segment(dir.path(), lost)).unwrap();
        if !keep_store {
            fs::remove_dir_all(dir.path().join("sled")).unwrap();
        }
        match Journal::open_or_rebuild(dir.path(), cell()).map(|opened| opened.journal.size()) {
            Err(Error::Segment { file, first_index, fault }) => {
                assert_eq!(file, segment(dir.path(), lost));
                assert_eq!(first_index, u64::from(lost) * SEAL_EVERY);
                let is_last = lost == 2;
                assert_eq!(is_last, matches!(fault, SegmentFault::Fewer { known: 3, found: 2 }));
                assert_eq!(!is_last, matches!(fault, SegmentFault::Missing));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_damaged_segment_is_named_when_the_journal_is_opened_or_verified() {
    let (dir, _) = on_disk();
    let path = segment(dir.path(), 1);
    let good = fs::read(&path).unwrap();
    for at in (0..good.len()).step_by(977) {
        let mut bad = good.clone();
        bad[at] ^= 0x04;
        fs::write(&path, bad).unwrap();
        match Journal::open(dir.path(), cell()).map(|journal| journal.size()) {
            Err(Error::Segment { file, first_index: 200, .. }) => assert_eq!(file, path),
            other => panic!("byte {at}: {other:?}"),
        }
    }
    let bad = verify_dir(dir.path(), cell()).unwrap().first_bad.unwrap();
    assert!(matches!(bad.finding, Finding::SegmentDamaged { .. }));
    assert_eq!(bad.index, 200);
}

#[test]
fn a_segment_of_a_newer_version_is_refused_as_such_and_not_as_damaged() {
    let (dir, _) = on_disk();
    let path = segment(dir.path(), 1);
    let mut bytes = fs::read(&path).unwrap();
    bytes[8] += 1;
    let body = bytes.len() - 4;
    let sum = crc32fast::hash(&bytes[..body]);
    bytes[body..].copy_from_slice(&sum.to_le_bytes());
    fs::write(&path, &bytes).unwrap();
    let newer = |error: Error| matches!(&error, Error::Newer { path: p, .. } if *p == path);
    assert!(newer(Journal::open(dir.path(), cell()).err().unwrap()));
    assert!(newer(Journal::open_or_rebuild(dir.path(), cell()).err().unwrap()));
    assert!(newer(verify_dir(dir.path(), cell()).unwrap_err()));
    bytes[8] = 0;
    fs::write(&path, &bytes).unwrap();
    let damaged = Journal::open(dir.path(), cell()).err().unwrap();
    assert!(matches!(damaged, Error::Segment { fault: SegmentFault::CheckSum, .. }));
}

#[test]
fn a_journal_may_be_appended_to_and_sealed_between_two_steps_of_the_verifier() {
    let (dir, _) = on_disk();
    let mut journal = open(dir.path());
    let (mut verifier, mut size) = (Verifier::default(), 650);
    let report = loop {
        if let Some(report) = verifier.step(&journal).unwrap() {
            break report;
        }
        if size < 850 {
            feed(&mut journal, size..size + 50);
            size += 50;
        }
    };
    assert!(report.is_good(), "{report:?}");
    assert_eq!((report.records, report.segments, report.root), (850, 4, root_of(0..850)));
}

#[test]
fn a_segment_changed_under_an_open_journal_is_found_by_the_verifier() {
    let (dir, _) = on_disk();
    let journal = open(dir.path());
    assert!(verify(&journal).unwrap().is_good());
    let path = segment(dir.path(), 2);
    let mut bytes = fs::read(&path).unwrap();
    bytes[5_000] ^= 1;
    fs::write(&path, bytes).unwrap();
    let report = verify(&journal).unwrap();
    assert!(matches!(report.first_bad.unwrap().finding, Finding::SegmentDamaged { .. }));
    assert_eq!((report.records, report.segments), (400, 2));
}

/// Each bit of each value of the store's tail, by writing the flipped page into the store.
#[test]
fn every_flipped_bit_of_the_tail_is_found_with_the_page_it_is_in() {
    let mut journal = Journal::in_memory(cell());
    for end in [7, 10] {
        journal.append(cursor(end), &records(journal.size()..end)).unwrap();
        journal.flush().unwrap();
    }
    for page in journal.tail.pages.clone() {
        let key = [page.first.to_be_bytes().as_slice(), &[0, 0]].concat();
        let good = journal.store.get(crate::store::Tree::Records, &key).unwrap().unwrap();
        let put = |journal: &mut Journal, bytes: Vec<u8>| {
            let mut batch = crate::store::Batch::default();
            batch.put(crate::store::Tree::Records, key.clone(), bytes);
            journal.store.commit(batch).unwrap();
        };
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            put(&mut journal, bad);
            let found = verify(&journal).unwrap().first_bad.expect("found");
            assert!((page.first..page.end).contains(&found.index), "bit {bit}: {found:?}");
        }
        put(&mut journal, good);
        assert!(verify(&journal).unwrap().is_good());
    }
}

/// Another valid record with all its sums right: only the root can tell.
#[test]
fn an_exchanged_record_of_the_tail_is_found_by_the_root() {
    let mut journal = Journal::in_memory(cell());
    feed(&mut journal, 0..205);
    journal.flush().unwrap();
    feed(&mut journal, 205..210);
    journal.flush().unwrap();
    let mut page = crate::page::PageBuilder::new(205);
    for index in 205..210 {
        let term = if index == 208 { 2 } else { 1 };
        page.push(&encode_record(&Record { term, ..record(index) }).unwrap());
    }
    let mut batch = crate::store::Batch::default();
    tail::put_page(&mut batch, page);
    journal.store.commit(batch).unwrap();
    let bad = verify(&journal).unwrap().first_bad.unwrap();
    assert!(matches!(bad.finding, Finding::Root { .. }), "{bad:?}");
    assert_eq!(bad.index, 200);
}

#[test]
fn a_page_lost_by_the_store_is_damage_when_the_journal_is_opened() {
    for lost in [0, 2] {
        let (dir, _) = on_disk();
        let mut journal = open(dir.path());
        for end in [660, 670] {
            journal.append(cursor(end), &records(journal.size()..end)).unwrap();
            journal.sync().unwrap();
        }
        let page = journal.tail.pages[lost];
        let mut batch = crate::store::Batch::default();
        tail::remove_page(&mut batch, &page);
        journal.store.commit(batch).unwrap();
        drop(journal);
        match Journal::open(dir.path(), cell()).map(|journal| journal.size()) {
            Err(Error::Damaged(Damage::Missing { index })) => assert_eq!(index, page.first),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn an_index_entry_that_was_lost_is_found_by_the_verifier() {
    let mut journal = Journal::in_memory(cell());
    feed(&mut journal, 0..400);
    let tree = crate::store::Tree::BySubject;
    let (key, _) = journal.store.last_until(tree, &[0xff]).unwrap().unwrap();
    let mut batch = crate::store::Batch::default();
    batch.remove(tree, key);
    journal.store.commit(batch).unwrap();
    let bad = verify(&journal).unwrap().first_bad.unwrap();
    assert!(matches!(bad.finding, Finding::NotIndexed));
    assert!((200..400).contains(&bad.index));
}

#[test]
fn a_journal_is_opened_once_and_only_by_its_cell() {
    let (dir, _) = on_disk();
    let journal = open(dir.path());
    assert!(matches!(Journal::open(dir.path(), cell()), Err(Error::InUse { .. })));
    assert!(matches!(Journal::open_or_rebuild(dir.path(), cell()), Err(Error::InUse { .. })));
    drop(journal);
    let paris = CellId::new("paris").unwrap();
    assert!(matches!(
        Journal::open(dir.path(), paris),
        Err(Error::Segment { fault: SegmentFault::OtherCell, .. })
    ));
    let tail_only = tempfile::tempdir().unwrap();
    let mut journal = open(tail_only.path());
    feed(&mut journal, 0..5);
    journal.sync().unwrap();
    drop(journal);
    assert!(matches!(Journal::open(tail_only.path(), paris), Err(Error::OtherCell)));
}

#[test]
fn an_unfinished_segment_of_a_crash_is_forgotten() {
    let (dir, root) = on_disk();
    let torn = dir.path().join("archive/0000000003.seg.tmp");
    fs::write(&torn, b"SUBLETSG and then the power failed").unwrap();
    assert_eq!(open(dir.path()).root(), root);
    assert!(!torn.exists());
}

#[test]
fn proofs_from_the_journal_convince_who_has_only_the_roots() {
    let mut journal = Journal::in_memory(cell());
    feed(&mut journal, 0..450);
    let head = journal.head();
    for index in [0, 199, 200, 431, 449] {
        let leaf = Hash::of_leaf(&encode_record(&record(index)).unwrap());
        let proof = journal.inclusion_proof(index, 450).unwrap().unwrap();
        assert!(is_included(&leaf, index, &head, &proof));
    }
    for old in [1, 200, 333, 450] {
        let root = journal.root_at(old).unwrap().unwrap();
        let proof = journal.consistency_proof(old, 450).unwrap().unwrap();
        assert!(is_consistent(&TreeHead { size: old, root }, &head, &proof));
    }
    assert_eq!(journal.inclusion_proof(450, 450).unwrap(), None);
    assert_eq!(journal.inclusion_proof(0, 451).unwrap(), None);
    assert_eq!(journal.consistency_proof(2, 451).unwrap(), None);
    assert_eq!(journal.root_at(451).unwrap(), None);
}

#[test]
fn the_books_balance_and_an_ended_lease_leaves_no_hold() {
    let mut journal = Journal::in_memory(cell());
    feed(&mut journal, 0..80 + 40);
    let accounts = verify(&journal).unwrap().accounts;
    assert!(accounts.is_balanced());
    let mut live: Vec<_> =
        (8..16).map(|life| (support::lease(life), support::HOLD.into())).collect();
    live.sort();
    assert_eq!(accounts.open_holds().collect::<Vec<_>>(), live);
    let revenue = accounts.balance(sublet_protocol::money::Account::Revenue(support::owner()));
    assert_eq!(revenue.credit, i128::from(8 * (support::COST - support::FEE)));
    assert_eq!(revenue.net_debit().unwrap().get(), -8 * (support::COST - support::FEE));
}

#[test]
fn a_posting_that_overdraws_a_hold_is_refused_by_the_books() {
    let mut accounts = Accounts::new();
    records(0..16).iter().for_each(|record| accounts.post(record).unwrap());
    let end = record(64);
    let error = accounts.post(&end).unwrap_err();
    let by = i128::from(support::HOLD);
    assert_eq!(
        error,
        crate::accounts::PostingError::HoldOverdrawn { lease: support::lease(0), by }
    );
    assert_eq!(accounts, {
        let mut same = Accounts::new();
        records(0..16).iter().for_each(|record| same.post(record).unwrap());
        same
    });
}
