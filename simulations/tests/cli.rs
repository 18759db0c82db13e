//! The program as its users meet it: exit codes, messages and what is printed.
#![allow(clippy::unwrap_used, clippy::as_conversions, clippy::print_stderr, reason = "tests")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

mod support;
use support::fixtures;

fn sublet_sim(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sublet-sim")).args(arguments).output().unwrap()
}

#[track_caller]
fn fails_on_input(arguments: &[&str], expected: &str) {
    let output = sublet_sim(arguments);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains(expected), "{said}");
    assert!(output.stdout.is_empty(), "nothing but messages");
}

fn replay<'a>(folder: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["replay", "--trace", "philly", "--data", folder, "--policy", "sublet"], more].concat()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_wrong_folder_says_what_to_give() {
    fails_on_input(&replay("/nonexistent", &[]), "/nonexistent is not a folder: give the folder");
    let empty = tempfile::tempdir().unwrap();
    fails_on_input(
        &replay(text(empty.path()), &[]),
        "no philly_vc_nodes.csv.xz and no philly_vc_nodes.csv in",
    );
    fails_on_input(
        &["fit", "--trace", "helios", "--data", text(empty.path())],
        "no earth_vc_minute.csv.xz",
    );
}

#[test]
fn a_broken_row_is_named() {
    let folder = tempfile::tempdir().unwrap();
    fs::copy(
        fixtures("philly").join("philly_vc_nodes.csv"),
        folder.path().join("philly_vc_nodes.csv"),
    )
    .unwrap();
    let good = fs::read_to_string(fixtures("philly").join("philly_jobs.csv")).unwrap();
    fs::write(
        folder.path().join("philly_jobs.csv"),
        good.replace(",8,57600.0,", ",eight,57600.0,"),
    )
    .unwrap();
    fails_on_input(
        &replay(text(folder.path()), &[]),
        "philly_jobs.csv:3: column num_gpus: \"eight\" is not a whole number",
    );
}

#[test]
fn loads_and_windows_out_of_range_are_usage_errors() {
    let data = fixtures("philly");
    for rho in ["0", "1.001", "-1", "0.7777", "x", ".5", "00.5", ""] {
        fails_on_input(&replay(text(&data), &["--rho", rho]), "0.001 to 1");
    }
    fails_on_input(
        &replay(text(&data), &["--days", "0"]),
        "a window of 0 days from 2017-10-01 is not",
    );
    fails_on_input(
        &replay(text(&data), &["--from", "2031-01-01"]),
        "no job was submitted in the 38 days",
    );
    fails_on_input(&replay(text(&data), &["--from", "yesterday"]), "--from");
    fails_on_input(&replay(text(&data), &["--check-every", "0"]), "--check-every");
    fails_on_input(&["replay", "--trace", "philly"], "--data");
    fails_on_input(&["replay", "--trace", "venus", "--data", "x", "--policy", "pool"], "venus");
}

#[test]
fn a_charged_replay_prints_what_lending_costs_and_is_about_lending_only() {
    let data = fixtures("philly");
    let output = sublet_sim(&replay(text(&data), &["--charged", "--staging", "0", "--json"]));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["friction"]["staging"], 0);
    assert_eq!(report["friction"]["checkpoint"], 1_800);
    assert_eq!(report["invariants"]["violations"], 0);
    let output = sublet_sim(&replay(text(&data), &["--charged", "--checkpoint", "0"]));
    assert!(String::from_utf8_lossy(&output.stdout).contains("checkpoints never"));
    let pool = ["replay", "--trace", "philly", "--data", text(&data), "--policy", "pool"];
    fails_on_input(&[&pool[..], &["--charged"]].concat(), "it goes with --policy sublet, not pool");
    fails_on_input(&replay(text(&data), &["--staging", "5"]), "they go with --charged");
}

#[test]
fn the_helios_trace_is_replayed_whole_and_charged() {
    let fixture = fs::read_to_string(fixtures("helios").join("earth_vc_minute.csv")).unwrap();
    let mut rows = format!("{}\n", fixture.lines().next().unwrap());
    for minute in 0..30 {
        let time = format!("2020-05-01 00:{minute:02}:00");
        // One lends 6 of 16 GPUs; one has 8 GPUs in use and a job of 4 that waits.
        rows += &format!("vcOne,{time},2,2,0,2,2,0,16,10,0,6,0.625,8,2,0,0,8,2,1,1,0,0,1,1\n");
        rows += &format!("vcTwo,{time},2,1,1,2,1,1,8,8,4,0,1.000,8,0,0,4,8,4,1,0,0,1,1,1\n");
    }
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("earth_vc_minute.csv"), rows).unwrap();
    let data = folder.path().to_path_buf();
    let helios = ["replay", "--trace", "helios", "--data", text(&data), "--policy"];
    let output = sublet_sim(&[&helios[..], &["sublet", "--json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["invariants"]["violations"], 0);
    assert_eq!(report["leases"], 1);
    assert_eq!(report["recovered_gpu_hours"], 1, "4 GPUs for 19 minutes");
    let output = sublet_sim(&[&helios[..], &["sublet"]].concat());
    assert!(String::from_utf8_lossy(&output.stdout).contains("of the idle time"));
    fails_on_input(&[&helios[..], &["pool"]].concat(), "helios is replayed whole");
    fails_on_input(&[&helios[..], &["sublet", "--days", "3"]].concat(), "helios is replayed whole");
    let out = ["report", "--trace", "helios", "--data", text(&data), "--out", "x.html"];
    fails_on_input(&out, "helios has no jobs");
    let gaps = fixtures("helios");
    let gaps = ["replay", "--trace", "helios", "--data", text(&gaps), "--policy", "sublet"];
    fails_on_input(&gaps, "vctwo has 1 minutes, others have 2");
}

#[test]
fn a_report_is_one_page_that_needs_nothing_and_overwrites_nothing() {
    let data = fixtures("philly");
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("report.html");
    let arguments = ["report", "--trace", "philly", "--data", text(&data), "--out", text(&out)];
    let output = sublet_sim(&arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let page = fs::read_to_string(&out).unwrap();
    assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
    assert_eq!(page.matches("<svg").count(), 5, "two of all policies, one for each staging time");
    for name in ["static-fifo", "static-sjf", "borrow", "pool", "sublet, staging 600 s"] {
        assert!(page.contains(name), "{name}");
    }
    let fetches = ["<script", "<link", "src=", "href=", "url("];
    assert!(fetches.iter().all(|fetch| !page.contains(fetch)), "the page fetches something");
    fails_on_input(&arguments, "files are not overwritten");
    assert_eq!(fs::read_to_string(&out).unwrap(), page);
}

#[test]
fn a_replay_prints_one_json_object_or_a_table() {
    let data = fixtures("philly");
    // aa11 has one node: at home its job of 8 GPUs waits 3,570 s for the one before it.
    for (policy, mean) in [
        ("static-fifo", 892.5),
        ("static-sjf", 892.5),
        ("borrow", 0.0),
        ("pool", 0.0),
        ("sublet", 0.0),
    ] {
        let arguments = ["replay", "--trace", "philly", "--data", text(&data), "--policy", policy];
        let output = sublet_sim(&[&arguments[..], &["--rho", "0.7", "--json"]].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(output.stderr.is_empty(), "no bar where there is no terminal");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["policy"], policy);
        assert_eq!(report["rho"], 0.7);
        assert_eq!((&report["gpus"], &report["jobs"]), (&Value::from(16), &Value::from(4)));
        assert_eq!(report["avg_queue_seconds"], mean);
        assert_eq!(report["invariants"]["violations"], 0);
        assert_eq!(report["accounts"]["balanced"], true);
        assert_eq!(report["tenants"].as_array().unwrap().len(), 2);
        let table = sublet_sim(&arguments);
        let table = String::from_utf8(table.stdout).unwrap();
        assert!(
            table.starts_with(&format!("{policy} at load 0.85: 16 GPUs, 4 jobs of 38 days")),
            "{table}"
        );
        assert!(table.contains("\naa11 "), "{table}");
    }
}

#[test]
fn a_made_up_trace_can_be_replayed_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("made-up");
    let generate = ["generate", "--seed", "5", "--days", "1", "--out", text(&out)];
    let output = sublet_sim(&generate);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8(output.stdout).unwrap();
    let line = said.lines().last().unwrap();
    let command = line.strip_prefix("replay them: sublet-sim ").unwrap();
    let words: Vec<&str> = command.split(' ').chain(["--json"]).collect();
    let output = sublet_sim(&words);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["jobs"].as_u64().unwrap() > 20, "{report}");
    assert_eq!(report["days"], 1);
    // The same seed gives the same bytes, and nothing is overwritten.
    fails_on_input(&generate, "files are not overwritten");
    let again = folder.path().join("again");
    sublet_sim(&["generate", "--seed", "5", "--days", "1", "--out", text(&again)]);
    let jobs = |folder: &Path| fs::read(folder.join("philly_jobs.csv")).unwrap();
    assert_eq!(jobs(&out), jobs(&again));
}

#[test]
fn chaos_prints_what_happened_and_one_seed_need_not_break_everything() {
    let output = sublet_sim(&["chaos", "--seed", "1", "--steps", "300", "--json"]);
    assert_eq!(output.status.code(), Some(0));
    let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(printed["commands"].as_u64().unwrap() > 20, "{printed}");
    assert_eq!(printed["violations"], serde_json::json!([]));
}

#[test]
fn a_set_of_seeds_that_never_broke_something_fails_and_names_it() {
    let output = sublet_sim(&["chaos", "--seeds", "2", "--steps", "50"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("faults that never occurred: ") && said.contains("suspend"), "{said}");
}

#[cfg(not(feature = "mutations"))]
#[test]
fn no_rule_can_be_taken_out_of_a_plain_build() {
    let hint = "build sublet-simulations with `--features mutations`";
    fails_on_input(&["chaos", "--mutations"], hint);
    fails_on_input(&["chaos", "--without", "Lk1Keys"], hint);
}
