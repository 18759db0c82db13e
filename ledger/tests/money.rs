//! `sublet-audit replay`, `statement` and `export` as finance runs them: on folders, by exit code and
//! words.
#![allow(clippy::unwrap_used, reason = "tests")]

#[allow(dead_code, reason = "shared with the unit tests and the measurement")]
mod support;

use std::path::Path;
use std::process::{Command, Output};

use sublet_ledger::Journal;
use sublet_ledger::journal::Cursor;
use sublet_protocol::events::Event;
use sublet_protocol::money::MicroCredits;
use support::history::{HOUR, History, MARCH, Wish};
use tempfile::TempDir;

/// Two leases in March and one over its end.
fn history() -> History {
    let mut history = History::founded();
    history.lease(&Wish::new(1, MARCH, HOUR, 2_400_000));
    history.lease(&Wish::new(2, MARCH + HOUR, HOUR / 3, 1_990_000));
    history.lease(&Wish::new(3, MARCH + 31 * 24 * HOUR - HOUR, 2 * HOUR, 1_400_000));
    history
}

fn stored(history: &History) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(dir.path(), support::cell()).unwrap();
    let end = u64::try_from(history.records.len()).unwrap();
    journal.append(Cursor { log_index: 1, term: 1 }, &history.records).unwrap();
    journal.seal(end - 3).unwrap();
    journal.sync().unwrap();
    dir
}

fn audit(command: &str, dir: &Path, more: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_sublet-audit");
    Command::new(program).arg(command).arg(dir).args(more).output().unwrap()
}

#[track_caller]
fn said(output: &Output, code: i32) -> String {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{text}{errors}");
    text
}

#[track_caller]
fn json(output: &Output, code: i32) -> serde_json::Value {
    serde_json::from_str(&said(output, code)).unwrap()
}

#[test]
fn every_charge_of_a_good_ledger_is_computed_again() {
    let dir = stored(&history());
    let found = json(&audit("replay", dir.path(), &["--json"]), 0);
    assert_eq!((&found["verdict"], &found["charges"]), (&"ok".into(), &3.into()), "{found}");
    // 2.40 + a third of 1.99 + two hours at 1.40.
    assert_eq!(found["cost"], "5.863333");
    assert_eq!((&found["fee"], &found["earned"]), (&"0.293167".into(), &"5.570166".into()));
    let text = said(&audit("replay", dir.path(), &[]), 0);
    assert!(text.contains("right charges 3") && text.ends_with("verdict       ok\n"), "{text}");
}

#[test]
fn a_price_table_edited_afterwards_is_unbalanced_from_its_first_grant_on() {
    let mut history = history();
    for record in &mut history.records {
        if let Event::PriceSet { price, .. } = &mut record.event
            && price.version == 2
        {
            price.per_gpu_hour = MicroCredits::new(1_890_000);
        }
    }
    // Everything is hashed and sealed anew: only the charges tell.
    let dir = stored(&history);
    assert_eq!(audit("verify", dir.path(), &[]).status.code(), Some(0));
    let found = json(&audit("replay", dir.path(), &["--json"]), 4);
    assert_eq!(found["verdict"], "unbalanced");
    assert_eq!((&found["first_bad"]["index"], &found["charges"]), (&7.into(), &1.into()));
    let what = found["first_bad"]["what"].as_str().unwrap();
    assert!(what.contains("1.990000") && what.contains("1.890000"), "{what}");
    let refused = audit("statement", dir.path(), &["--tenant", "vision", "--month", "2026-03"]);
    assert_eq!(said(&refused, 4), "", "no statement is made of books that do not balance");
}

#[test]
fn a_statement_is_made_for_a_month_and_adds_up_with_the_next() {
    let dir = stored(&history());
    let of = |month, side| {
        let options = ["--json", "--tenant", "vision", "--month", month, "--side", side];
        json(&audit("statement", dir.path(), &options), 0)
    };
    let march = of("2026-03", "borrower");
    assert_eq!(march["total"]["amount"], "4.460000");
    assert_eq!(march["exact"]["amount"], "4.463333");
    assert_eq!(march["lines"].as_array().unwrap().len(), 3);
    assert_eq!(march["lines"][2]["end"], "2026-04-01T00:00:00.000Z");
    assert_eq!(march["closed"], false);
    assert_eq!(of("2026-04", "borrower")["exact"]["amount"], "1.400000");
    assert_eq!(of("2026-03", "lender")["lines"], serde_json::json!([]));
    let options = ["--json", "--tenant", "owner", "--month", "2026-03", "--side", "lender"];
    let lender = json(&audit("statement", dir.path(), &options), 0);
    assert_eq!(lender["exact"]["amount"], "4.240166");
    assert_eq!(lender["fee"]["amount"], "0.223167");
}

#[test]
fn a_tenant_that_no_record_names_is_told_with_those_that_there_are() {
    let dir = stored(&history());
    let options = ["--tenant", "visoin", "--month", "2026-03"];
    let refused = audit("statement", dir.path(), &options);
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{text}");
    assert!(text.contains("there are: owner, vision"), "{text}");
}

#[test]
fn the_sha256_of_a_statement_is_that_of_its_csv() {
    use sha2::{Digest, Sha256};
    let dir = stored(&history());
    let options = ["--tenant", "vision", "--month", "2026-03", "--zone", "Europe/Berlin"];
    let csv = audit("statement", dir.path(), &[&options[..], &["--csv"]].concat());
    let shown = json(&audit("statement", dir.path(), &[&options[..], &["--json"]].concat()), 0);
    let hash: String = Sha256::digest(&csv.stdout).iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(shown["sha256"], hash);
    let text = said(&audit("statement", dir.path(), &options), 0);
    assert!(text.contains(&hash) && text.contains("open: leases may still be added"), "{text}");
}

#[test]
fn a_period_that_is_none_is_refused_with_what_to_write() {
    let dir = stored(&history());
    for (options, expected) in [
        (["--month", "March"], "is not a month: write year and month, as 2026-03"),
        (["--from", "2026-03-01"], "--until"),
        (["--zone", "UTC"], "--month"),
    ] {
        let refused =
            audit("statement", dir.path(), &[&["--tenant", "vision"], &options[..]].concat());
        let text = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(1));
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn an_export_is_written_whole_or_not_at_all_and_passes_its_own_check() {
    let dir = stored(&history());
    let out = tempfile::tempdir().unwrap();
    let path = |name: &str| out.path().join(name).display().to_string();
    let focus = path("focus.csv");
    let export = |options: &[&str]| audit("export", dir.path(), options);
    let done = export(&["--layout", "focus", "--out", &focus, "--name", "vision=Zürich Vision"]);
    assert_eq!(said(&done, 0), format!("4 rows written to {focus}\n"));
    let judged = audit("focus-check", Path::new(&focus), &[]);
    assert_eq!(said(&judged, 0), "4 rows, 0 errors, 0 warnings\n");
    let again = export(&["--out", &focus]);
    assert_eq!(again.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&again.stderr).contains("exists already"));
    let month = said(&export(&["--month", "2026-04"]), 0);
    assert_eq!(month.lines().count(), 2, "a head and one row: {month}");
    let parquet = path("charges.parquet");
    said(&export(&["--format", "parquet", "--out", &parquet]), 0);
    assert_eq!(&std::fs::read(&parquet).unwrap()[..4], b"PAR1");
    // A wrong charge: no file is left behind.
    let mut wrong = history();
    if let Event::LeaseEnded { settlement, .. } = &mut wrong.records[5].event {
        settlement.fee = MicroCredits::new(1);
    }
    let (bad, left) = (stored(&wrong), path("wrong.csv"));
    said(&audit("export", bad.path(), &["--out", &left]), 4);
    assert_eq!(std::fs::read_dir(out.path()).unwrap().count(), 2);
}

#[test]
fn a_bad_focus_file_is_told_line_by_line() {
    let out = tempfile::tempdir().unwrap();
    let path = out.path().join("bad.csv");
    std::fs::write(&path, "BilledCost,x_mine\n\"1,204.80\",\n").unwrap();
    let found = json(&audit("focus-check", &path, &["--json"]), 1);
    assert_eq!((&found["rows"], &found["errors"]), (&1.into(), &21.into()), "{found}");
    let text = said(&audit("focus-check", &path, &[]), 1);
    assert!(text.contains("line 2: error: BilledCost: a number is written"), "{text}");
}

#[test]
fn what_a_node_cost_is_divided_between_leases_and_idle() {
    let dir = stored(&history());
    let options = [
        "--json",
        "--cluster",
        "hpc-west",
        "--node",
        "gpu000",
        "--gpus",
        "8",
        "--per-hour",
        "24",
        "--from",
        "2026-03-01",
        "--until",
        "2026-03-02",
    ];
    let found = json(&audit("node", dir.path(), &options), 0);
    assert_eq!(found["total"]["amount"], "576.000000");
    // An hour, and a third of an hour, of one of eight GPUs.
    assert_eq!(found["leases"][0]["cost"]["amount"], "3.000000", "{found}");
    assert_eq!(found["leases"][1]["cost"]["amount"], "1.000000");
    assert_eq!(found["idle"]["amount"], "572.000000");
    assert_eq!(found["leases"][1]["paid"]["amount"], "0.663333");
}

#[test]
fn a_closed_statement_keeps_its_hash_and_the_next_one_has_the_correction() {
    let april = MARCH + 31 * 24 * HOUR;
    let until = sublet_protocol::units::Timestamp::new(april);
    let close = Event::PeriodClosed { from: Default::default(), until };
    let first = || {
        let mut history = History::founded();
        history.lease(&Wish::new(1, MARCH, HOUR, 2_400_000));
        history
    };
    let of = |history: &History, month| {
        let dir = stored(history);
        let options = ["--json", "--tenant", "vision", "--month", month];
        json(&audit("statement", dir.path(), &options), 0)
    };
    let open = of(&first(), "2026-03");
    let mut history = first();
    history.push(april, close.clone());
    let closed = of(&history, "2026-03");
    assert_eq!((&open["closed"], &closed["closed"]), (&false.into(), &true.into()));
    // A lease over the end of March, which ended after March was closed.
    let mut history = first();
    let late = Wish::new(2, april - HOUR, 2 * HOUR, 2_400_000);
    history.lease_over(&late, Some((april, close)));
    let after = of(&history, "2026-03");
    assert_eq!((&open["sha256"], &closed["sha256"]), (&closed["sha256"], &after["sha256"]));
    assert_eq!(after["lines"].as_array().unwrap().len(), 1);
    let next = of(&history, "2026-04");
    let kinds: Vec<_> =
        next["lines"].as_array().unwrap().iter().map(|l| &l["correction"]).collect();
    assert_eq!(kinds, [true, false]);
    assert_eq!(next["lines"][0]["begin"], "2026-03-31T23:00:00.000Z");
    assert_eq!(next["total"]["amount"], "4.800000");
    let dir = stored(&history);
    let csv = said(&audit("export", dir.path(), &["--layout", "focus", "--month", "2026-04"]), 0);
    assert_eq!(csv.matches(",Correction,").count(), 1, "{csv}");
}
