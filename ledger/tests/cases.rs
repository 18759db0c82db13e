//! Cases D16, D18, D20 and D26 from their own files, where those are at hand: below
//! `$SUBLET_SHARED/cases`, else `../shared/cases` beside the workspace. Without them each test says what
//! it left out; tests of the library hold the same facts in small.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

use std::fs;
use std::path::PathBuf;

use sublet_ledger::export::check::{Severity, check};
use sublet_ledger::periods::Period;
use sublet_ledger::rounding::{apportion, round_half_even};
use sublet_protocol::ids::LeaseId;
use sublet_protocol::money::{Currency, MicroCredits, Price, cost_half_even};
use sublet_protocol::units::{GpuMilli, Millis, Timestamp};

/// A folder of a case, if it is at hand.
fn case(name: &str) -> Option<PathBuf> {
    let shared = std::env::var_os("SUBLET_SHARED").map(PathBuf::from);
    let shared =
        shared.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared"));
    let folder = shared.join("cases").join(name);
    let is_there = folder.is_dir();
    if !is_there {
        eprintln!("left out: case {name}, which is not in {}", folder.display());
    }
    is_there.then_some(folder)
}

fn table(folder: &std::path::Path, file: &str) -> Vec<Vec<String>> {
    let mut reader = csv::Reader::from_path(folder.join(file)).unwrap();
    reader.records().map(|row| row.unwrap().iter().map(str::to_owned).collect()).collect()
}

fn expected(folder: &std::path::Path) -> serde_json::Value {
    let text = fs::read_to_string(folder.join("expected.json")).unwrap();
    serde_json::from_str::<serde_json::Value>(&text).unwrap()["facts"].clone()
}

fn price(text: &str) -> Price {
    Price { per_gpu_hour: text.parse().unwrap(), version: 1 }
}

fn cents(amount: MicroCredits) -> i64 {
    assert_eq!(amount.get() % 10_000, 0);
    amount.get() / 10_000
}

#[test]
fn case_d16_days_of_23_and_25_hours_are_charged_by_what_clocks_ran() {
    let Some(folder) = case("D16") else { return };
    let facts = expected(&folder);
    for row in table(&folder, "leases.csv") {
        let [name, start, end] = [&row[0], &row[1], &row[2]];
        let period = Period::between(start, end, "Europe/Berlin").unwrap();
        assert_eq!((&period.local(period.from()), &period.local(period.until())), (start, end));
        let span = period.until().since(period.from());
        let leases = facts["leases"].as_array().unwrap();
        if let Some(fact) = leases.iter().find(|fact| fact["lease"] == **name) {
            assert_eq!(span.get() / 1_000, fact["seconds"].as_u64().unwrap(), "{name}");
            let cost = cost_half_even(price("2.40"), GpuMilli::DEVICE, span).unwrap();
            assert_eq!(cents(cost).to_string(), fact["amount_cents"].as_str().unwrap(), "{name}");
        }
        if let Some(days) = facts[format!("{name}_by_local_day_s")].as_object() {
            let found = period.days(period.from(), period.until()).unwrap();
            assert_eq!(found.len(), days.len());
            for day in found {
                let seconds = day.until.since(day.from).get() / 1_000;
                assert_eq!(days[&day.day.to_string()], seconds, "{name} {}", day.day);
            }
        }
    }
}

#[test]
fn case_d18_81_lines_add_up_to_a_total_that_was_rounded_once() {
    let Some(folder) = case("D18") else { return };
    let facts = expected(&folder);
    let lines: Vec<(LeaseId, MicroCredits)> = table(&folder, "usage.csv")
        .iter()
        .map(|row| {
            let lease = LeaseId::new(row[0].strip_prefix("l-").unwrap().parse().unwrap());
            let span = Millis::new(row[1].parse::<u64>().unwrap() * 1_000);
            (lease, cost_half_even(price(&row[2]), GpuMilli::DEVICE, span).unwrap())
        })
        .collect();
    let sum = lines.iter().map(|(_, amount)| i128::from(amount.get())).sum();
    let total = cents(round_half_even(sum, Currency::EUR).unwrap());
    assert_eq!(facts["total_cents"], total);
    let amounts = apportion(&lines, Currency::EUR).unwrap();
    assert_eq!(amounts.iter().map(|amount| cents(*amount)).sum::<i64>(), total);
    let up = lines.iter().zip(&amounts).filter(|((_, exact), amount)| *amount > exact).count();
    assert_eq!(facts["lines_rounded_up"], up);
    for (name, amount) in facts["lines_cents_by_largest_remainder"].as_object().unwrap() {
        let lease = LeaseId::new(name.strip_prefix("l-").unwrap().parse().unwrap());
        let place = lines.iter().position(|(found, _)| *found == lease).unwrap();
        assert_eq!(*amount, cents(amounts[place]), "{name}");
    }
    for text in fs::read_to_string(folder.join("floats.txt")).unwrap().lines() {
        let refused = text.parse::<MicroCredits>().unwrap_err();
        assert!(refused.to_string().contains("at most six places"), "{text}");
    }
}

#[test]
fn case_d20_costs_and_idle_are_the_cost_of_the_node() {
    let Some(folder) = case("D20") else { return };
    let facts = expected(&folder);
    let text = fs::read_to_string(folder.join("hour.json")).unwrap();
    let hour: serde_json::Value = serde_json::from_str(&text).unwrap();
    let ratio = |text: &serde_json::Value| {
        let (a, b) = text.as_str().unwrap().split_once('/').unwrap();
        (a.parse::<u64>().unwrap(), b.parse::<u64>().unwrap())
    };
    let milli = |(part, whole): (u64, u64)| part * 1_000 / whole;
    let gpus = hour["gpus"].as_u64().unwrap();
    let total = hour["node_cost_per_hour_cents"].as_i64().unwrap() * 10_000;
    // The rule of the case: the larger of compute and memory.
    let lines = hour["leases"].as_array().unwrap().iter().map(|lease| {
        let share = if lease.get("mig").is_some() {
            milli(ratio(&lease["compute_slices"])).max(milli(ratio(&lease["memory_slices"])))
        } else if let Some(memory) = lease["memory_mib"].as_u64() {
            let cores = lease["cores_pct"].as_u64().unwrap() * 10;
            milli((memory, lease["of_mib"].as_u64().unwrap())).max(cores)
        } else {
            lease["gpus"].as_u64().unwrap() * 1_000
        };
        let used = share * lease["minutes"].as_u64().unwrap();
        let cost = i128::from(total) * i128::from(used) / i128::from(gpus * 1_000 * 60);
        (lease["lease"].as_str().unwrap().to_owned(), MicroCredits::new(cost.try_into().unwrap()))
    });
    let mut lines: Vec<_> = lines.collect();
    let spent: i64 = lines.iter().map(|(_, amount)| amount.get()).sum();
    lines.push(("idle".to_owned(), MicroCredits::new(total - spent)));
    let amounts = apportion(&lines, Currency::EUR).unwrap();
    for ((name, _), amount) in lines.iter().zip(&amounts) {
        assert_eq!(facts[name], cents(*amount), "{name}");
    }
    assert_eq!(facts["sum"], amounts.iter().map(|amount| cents(*amount)).sum::<i64>());
}

#[test]
fn case_d26_each_row_of_the_file_is_judged_as_it_must_be() {
    let Some(folder) = case("D26") else { return };
    let facts = expected(&folder);
    let rows = table(&folder, "focus-bad.csv");
    let mut findings = Vec::new();
    let file = fs::File::open(folder.join("focus-bad.csv")).unwrap();
    let checked = check(file, |finding| findings.push(finding)).unwrap();
    assert_eq!(checked.rows, 14);
    for (row, line) in rows.iter().zip(2_u64..) {
        let name = row.last().unwrap();
        let fact = facts["bad_rows"][name].as_str().unwrap();
        let here: Vec<_> = findings.iter().filter(|finding| finding.line == line).collect();
        let severity = here.iter().map(|finding| finding.severity).max();
        let wanted = match fact {
            "ok" => None,
            text if text.contains("warning") => Some(Severity::Warning),
            _ => Some(Severity::Error),
        };
        assert_eq!(severity, wanted, "{name} ({fact}): {here:?}");
        let said = here.iter().map(|it| format!("{} {}", it.column, it.rule)).collect::<String>();
        let word = match fact {
            "ok" => "",
            "number format" => "a number is written",
            "time not UTC Z" => "a time is written in UTC",
            "period end must be exclusive" => "first instant behind it",
            "currency code" => "ISO 4217",
            "ChargeCategory" | "ServiceCategory" => fact,
            "ChargeClass (null or Correction)" => "ChargeClass null or Correction",
            "PricingQuantity null" => "PricingQuantity must not be null",
            text if text.contains("outside billing period") => "outside the billing period",
            text if text.contains("negative") => "below zero",
            other => panic!("an unknown fact: {other}"),
        };
        assert!(said.contains(word), "{name} ({fact}): {said}");
    }
    let mandatory: Vec<_> = sublet_ledger::export::MANDATORY.to_vec();
    assert_eq!(facts["mandatory_columns"], serde_json::json!(mandatory));
}

#[test]
fn a_time_before_1970_is_no_period() {
    assert!(Period::between("1969-12-31", "1970-01-02", "UTC").is_err());
    let first = Period::between("1970-01-01", "1970-01-02", "UTC").unwrap();
    assert_eq!(first.from(), Timestamp::ZERO);
}
