//! `statement --proof` and `check-proof`: a statement is complete, or it is found out.
#![allow(clippy::unwrap_used, reason = "tests")]

#[allow(dead_code, reason = "shared with the unit tests and the measurement")]
mod support;

use std::fs;
use std::path::Path;
use std::process::Command;

use sublet_ledger::Journal;
use sublet_ledger::journal::Cursor;
use sublet_ledger::note::{Kind, PrivateKey};
use sublet_protocol::events::Event;
use sublet_protocol::leases::EndReason;
use sublet_protocol::units::Timestamp;
use support::history::{HOUR, History, MARCH, Wish};
use tempfile::TempDir;

const DAY: u64 = 24 * HOUR;
const APRIL: u64 = MARCH + 31 * DAY;

fn key(seed: u8) -> PrivateKey {
    PrivateKey::new("example.org/berlin", Kind::Log, &[seed; 32]).unwrap()
}

/// Leases in February, March and April, one over each border, one that cost nothing; March is closed
/// on the third of April, and one of March ends behind that.
fn history() -> History {
    let mut history = History::founded();
    history.lease(&Wish::new(4, MARCH - 6 * DAY, HOUR, 2_400_000));
    history.lease(&Wish::new(1, MARCH - 5 * DAY, HOUR, 2_400_000));
    history.lease(&Wish::new(2, MARCH - HOUR, 2 * HOUR, 1_000_000));
    for n in 0..5_u64 {
        let wish = Wish::new(
            10 + u128::from(n),
            MARCH + n * DAY + 12 * HOUR,
            HOUR + n * 61_000,
            1_990_000,
        );
        history.lease(&wish);
    }
    let reason = EndReason::Reclaimed;
    history.lease(&Wish { reason, ..Wish::new(20, MARCH + 6 * DAY, 60_000, 1_990_000) });
    history.lease(&Wish::new(21, APRIL - 5 * HOUR, 2 * HOUR, 1_400_000));
    let close = Event::PeriodClosed { from: Timestamp::ZERO, until: Timestamp::new(APRIL) };
    let late = Wish::new(22, APRIL - 2 * HOUR, 4 * DAY, 1_400_000);
    history.lease_over(&late, Some((APRIL + 2 * DAY, close)));
    history.lease(&Wish::new(30, APRIL + 9 * DAY, HOUR, 1_400_000));
    history
}

/// The history, sealed and signed after each `each` records.
fn stored(history: &History, each: usize) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(dir.path(), support::cell()).unwrap();
    journal.sign_with(key(1)).unwrap();
    for (at, chunk) in (1..).zip(history.records.chunks(each)) {
        journal.append(Cursor { log_index: at, term: 1 }, chunk).unwrap();
        journal.seal(journal.size() - 1).unwrap();
    }
    journal.sync().unwrap();
    dir
}

/// Exit code, standard output and error.
fn audit(dir: &Path, arguments: &[&str]) -> (i32, String, String) {
    let program = env!("CARGO_BIN_EXE_sublet-audit");
    let output = Command::new(program).args(arguments).current_dir(dir).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// A folder with a statement in both forms and its proof.
struct Office {
    dir: TempDir,
    csv: String,
    json: String,
    proof: String,
}

impl Office {
    fn of(ledger: &Path, tenant: &str, side: &str, span: &[&str]) -> Office {
        let dir = tempfile::tempdir().unwrap();
        let public = key(1).public().to_string();
        let ledger = ledger.to_str().unwrap();
        let fixed = ["statement", ledger, "--key", &public, "--tenant", tenant, "--side", side];
        let make = |more: &[&str]| {
            let (code, out, error) = audit(dir.path(), &[&fixed, span, more].concat());
            assert_eq!(code, 0, "{error}");
            out
        };
        let csv = make(&["--csv", "--proof", "proof"]);
        let json = make(&["--json", "--proof", "again"]);
        let read = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
        let proof = read("proof");
        assert_eq!(proof, read("again"), "a proof is the same each time");
        Office { dir, csv, json, proof }
    }

    /// Exit code and words of `check-proof`.
    fn check(&self, statement: &str, proof: &str, more: &[&str]) -> (i32, String) {
        fs::write(self.dir.path().join("s"), statement).unwrap();
        fs::write(self.dir.path().join("p"), proof).unwrap();
        let public = key(1).public().to_string();
        let fixed = ["check-proof", "s", "p", "--key", &public];
        let (code, out, error) = audit(self.dir.path(), &[&fixed[..], more].concat());
        (code, out + &error)
    }

    #[track_caller]
    fn refuses(&self, statement: &str, proof: &str, words: &str) {
        let (code, said) = self.check(statement, proof, &[]);
        assert_eq!(code, 2, "{said}");
        assert!(said.contains("NOT PROVEN") && said.contains(words), "{words}: {said}");
    }
}

fn march(ledger: &Path) -> Office {
    Office::of(ledger, "vision", "borrower", &["--month", "2026-03"])
}

fn rows(csv: &str) -> Vec<String> {
    csv.split_inclusive("\r\n").map(str::to_owned).collect()
}

#[test]
fn a_statement_is_proven_complete_wherever_the_seals_fall_and_for_both_sides() {
    let history = history();
    for each in [1_000, 17, 5, 1] {
        let ledger = stored(&history, each);
        for (tenant, side) in [("vision", "borrower"), ("owner", "lender")] {
            for month in ["2026-02", "2026-03"] {
                let office = Office::of(ledger.path(), tenant, side, &["--month", month]);
                for statement in [&office.csv, &office.json] {
                    let (code, said) = office.check(statement, &office.proof, &[]);
                    assert_eq!(code, 0, "{each} {side} {month}: {said}");
                    assert!(said.contains("proven      the statement of"), "{said}");
                }
                // What is proven is what the auditor computes from all records.
                let plain = ["statement", ledger.path().to_str().unwrap(), "--csv"];
                let of = ["--tenant", tenant, "--side", side, "--month", month];
                let (_, computed, _) = audit(ledger.path(), &[&plain[..], &of].concat());
                assert_eq!(computed, office.csv, "{each} {side} {month}");
            }
        }
    }
}

/// F2, G13: a statement with one line left out must fail.
#[test]
fn a_statement_with_one_line_left_out_is_found_whichever_line_it_is() {
    let ledger = stored(&history(), 17);
    let office = march(ledger.path());
    let rows = rows(&office.csv);
    let leases = rows.iter().filter(|row| row.starts_with("lease,")).count();
    assert_eq!(leases, 8, "{}", office.csv);
    for at in 1..rows.len() {
        let mut fewer = rows.clone();
        fewer.remove(at);
        office.refuses(&fewer.concat(), &office.proof, "a line was left out");
    }
    let shown: serde_json::Value = serde_json::from_str(&office.json).unwrap();
    for at in 0..leases {
        let mut fewer = shown.clone();
        fewer["lines"].as_array_mut().unwrap().remove(at);
        office.refuses(&fewer.to_string(), &office.proof, "a line was left out");
    }
}

#[test]
fn a_line_that_was_added_changed_or_moved_is_found() {
    let ledger = stored(&history(), 17);
    let office = march(ledger.path());
    let good = rows(&office.csv);
    let mut added = good.clone();
    added.insert(3, good[3].replace("l-", "l-f"));
    office.refuses(&added.concat(), &office.proof, "a line was added");
    let mut doubled = good.clone();
    doubled.insert(3, good[3].clone());
    office.refuses(&doubled.concat(), &office.proof, "a line");
    let mut moved = good.clone();
    moved.swap(2, 4);
    office.refuses(&moved.concat(), &office.proof, "a line");
    for (from, to) in
        [("1.990000", "1.890000"), ("EUR", "USD"), ("completed", "released"), (",1000,", ",999,")]
    {
        let changed = office.csv.replacen(from, to, 1);
        assert_ne!(changed, office.csv, "{from}");
        office.refuses(&changed, &office.proof, "a line says other than the ledger");
    }
    let sum = good.len() - 1;
    let mut wrong = good.clone();
    let total = good[sum].split(',').nth(15).unwrap();
    wrong[sum] = good[sum].replace(&format!(",{total},"), ",9.99,");
    assert_ne!(wrong[sum], good[sum], "{}", good[sum]);
    office.refuses(&wrong.concat(), &office.proof, "a line says other");
    let mut shown: serde_json::Value = serde_json::from_str(&office.json).unwrap();
    shown["total"]["amount"] = "1.000000".into();
    office.refuses(&shown.to_string(), &office.proof, "as its total");
    office.refuses("no statement", &office.proof, "it is not a statement");
    office.refuses("{}", &office.proof, "it is not a statement");
}

#[test]
fn a_statement_of_another_tenant_side_or_period_is_not_the_proven_one() {
    let ledger = stored(&history(), 17);
    let own = march(ledger.path());
    let lender = Office::of(ledger.path(), "owner", "lender", &["--month", "2026-03"]);
    let february = Office::of(ledger.path(), "vision", "borrower", &["--month", "2026-02"]);
    own.refuses(&lender.csv, &own.proof, "a line");
    own.refuses(&own.csv, &lender.proof, "a line");
    own.refuses(&february.csv, &own.proof, "a line");
    own.refuses(&own.csv, &february.proof, "a line");
    let zone = ["--month", "2026-03", "--zone", "Europe/Berlin"];
    let berlin = Office::of(ledger.path(), "vision", "borrower", &zone);
    own.refuses(&berlin.json, &own.proof, "");
    // The proof itself rewritten to another period: the first charge then lies in it.
    let (from, until) = (MARCH - 8 * DAY, APRIL);
    let wider = own.proof.replace(&format!("period {MARCH} "), &format!("period {from} "));
    assert_ne!(wider, own.proof);
    own.refuses(&own.csv, &wider, "charges from before the first one are missing");
    let other = own.proof.replace(&format!(" {until} "), &format!(" {} ", until + 5 * DAY));
    own.refuses(&own.csv, &other, "a line");
    for (from, to) in [("tenant vision", "tenant other"), ("side borrower", "side lender")] {
        let other = own.proof.replacen(from, to, 1);
        own.refuses(&own.csv, &other, "");
    }
}

/// A lying maker of proofs, who can compute every hash but has not the key.
#[test]
fn a_proof_from_which_a_charge_was_taken_proves_nothing() {
    let ledger = stored(&history(), 17);
    let office = march(ledger.path());
    let lines: Vec<&str> = office.proof.split_inclusive('\n').collect();
    let links: Vec<usize> =
        (0..lines.len()).filter(|at| lines[*at].starts_with("{\"count\"")).collect();
    assert!(links.len() >= 8);
    let count = format!("links {}\n", links.len());
    let fewer = format!("links {}\n", links.len() - 1);
    for at in &links {
        let mut cut = lines.clone();
        cut.remove(*at);
        let cut = cut.concat().replace(&count, &fewer);
        office.refuses(&office.csv, &cut, "");
    }
    let mut swapped = lines.clone();
    swapped.swap(links[2], links[3]);
    office.refuses(&office.csv, &swapped.concat(), "does not follow");
    // A chain that begins anew behind the charge that was taken: the start is made up.
    let link: serde_json::Value = serde_json::from_str(lines[links[1]]).unwrap();
    let start = lines.iter().position(|line| line.starts_with("start ")).unwrap();
    let made_up = format!("start {} {} {}\n", link["count"], link["balance"], "ab".repeat(32));
    let mut late = lines.clone();
    late[start] = &made_up;
    late.drain(links[0]..=links[1]);
    let late = late.concat().replace(&count, &format!("links {}\n", links.len() - 2));
    office.refuses(&office.csv, &late, "");
    // No link at all, as if the tenant had none in the period.
    let mut none = lines.clone();
    none.drain(links[0]..=links[links.len() - 1]);
    let none = none.concat().replace(&count, "links 0\n");
    office.refuses(&office.csv, &none, "");
}

#[test]
fn no_changed_byte_of_a_statements_proof_proves_anything() {
    let ledger = stored(&history(), 17);
    let office = march(ledger.path());
    let good = office.proof.as_bytes();
    let (key, fixed) = (key(1).public().clone(), office.csv.clone());
    for at in 0..good.len() {
        let mut bad = good.to_vec();
        bad[at] ^= 1;
        let Ok(text) = String::from_utf8(bad) else { continue };
        let proof = text.parse::<sublet_ledger::chains::StatementProof>();
        let proven = proof.ok().and_then(|proof| proof.check(&key).ok());
        // Only the frame of the statement is not hashed: then it is another statement.
        let is_same = proven.is_some_and(|made| made.difference(&fixed).unwrap().is_none());
        let was = String::from_utf8_lossy(&good[at.saturating_sub(20)..(at + 20).min(good.len())]);
        assert!(!is_same, "byte {at} in {was:?}");
    }
}

#[test]
fn only_the_key_and_only_a_closed_period_are_taken() {
    let ledger = stored(&history(), 17);
    let office = march(ledger.path());
    fs::write(office.dir.path().join("s"), &office.csv).unwrap();
    fs::write(office.dir.path().join("p"), &office.proof).unwrap();
    let other = key(2).public().to_string();
    let (code, said, _) = audit(office.dir.path(), &["check-proof", "s", "p", "--key", &other]);
    assert!(code == 2 && said.contains("nothing that the key signed"), "{said}");
    // By itself a proof tells the statement that it proves.
    let own = key(1).public().to_string();
    let (code, said, _) = audit(office.dir.path(), &["check-proof", "p", "--key", &own]);
    assert!(
        code == 0 && said.contains("a statement of vision") && said.contains("8 lines"),
        "{said}"
    );
    let april = Office::of(ledger.path(), "vision", "borrower", &["--month", "2026-04"]);
    let (code, said) = april.check(&april.csv, &april.proof, &[]);
    assert!(code == 2 && said.contains("was not closed"), "{said}");
    let (code, said) = april.check(&april.csv, &april.proof, &["--open"]);
    assert!(code == 0 && said.contains("NOT FINAL"), "{said}");
}

#[test]
fn the_statement_of_a_lender_shows_nothing_of_a_borrower() {
    let ledger = stored(&history(), 17);
    let office = Office::of(ledger.path(), "owner", "lender", &["--month", "2026-03"]);
    assert!(!office.proof.contains("vision"), "{}", office.proof);
    assert!(office.proof.contains("\"project\":null"));
}

#[test]
fn chains_are_the_same_after_a_start_and_after_a_rebuild_of_the_store() {
    let ledger = stored(&history(), 5);
    let before = Journal::open(ledger.path(), support::cell()).unwrap();
    let (head, newest) = (before.chains().head(), before.chains().clone());
    drop(before);
    let store = ledger.path().join("sled");
    fs::remove_dir_all(&store).unwrap();
    let rebuilt = Journal::open(ledger.path(), support::cell()).unwrap();
    assert_eq!((rebuilt.chains().head(), rebuilt.chains()), (head, &newest));
    assert!(head.size == 2 && newest.account(support::owner()).unwrap().1.lender.count == 12);
}

/// Signed with the key, and not what the records say: `verify` computes it again.
#[test]
fn charges_that_the_key_signed_and_the_records_do_not_have_are_found_by_verify() {
    use sublet_ledger::checkpoint::Checkpoint;
    let ledger = stored(&history(), 17);
    let file = ledger.path().join("archive/0000000001.ckpt");
    let good: Checkpoint = fs::read_to_string(&file).unwrap().parse().unwrap();
    let mut charges = good.charges().unwrap();
    charges.root = sublet_ledger::merkle::Hash::of_leaf(b"another");
    let lie = Checkpoint::sign_with_charges(good.head(), charges, &key(1)).to_string();
    fs::write(&file, &lie).unwrap();
    let own = key(1).public().to_string();
    let (code, said, _) = audit(ledger.path(), &["verify", ".", "--key", &own]);
    assert!(code == 4 && said.contains("names other charges"), "{said}");
    // Shown to somebody and then put right: the kept one tells.
    fs::write(&file, good.to_string()).unwrap();
    fs::write(ledger.path().join("kept"), lie).unwrap();
    assert_eq!(audit(ledger.path(), &["verify", ".", "--key", &own]).0, 0);
    let against = ["verify", ".", "--key", &own, "--against", "kept"];
    let (code, said, _) = audit(ledger.path(), &against);
    assert!(code == 4 && said.contains("names other charges"), "{said}");
}
