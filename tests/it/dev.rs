//! `sublet dev` by itself: the unattended run and its summary.

use serde_json::Value;

use crate::support::{Home, text};

#[test]
fn an_unattended_run_lends_takes_back_and_balances() {
    let home = Home::new();
    let done = home.sublet(&["dev", "--for", "8s", "--speed", "600", "--json"]);
    assert_eq!(done.code, 0, "{done:#?}");
    let last = done.out.lines().last().unwrap_or_default();
    let summary: Value = serde_json::from_str(last).unwrap_or_else(|e| panic!("{e}: {done:#?}"));
    let number = |name: &str| summary[name].as_u64().unwrap_or_else(|| panic!("{name}: {summary}"));
    assert!(number("leases_granted") >= 20, "{summary}");
    assert!(number("leases_ended") >= 5, "{summary}");
    assert!(number("owner_reclaims") >= 1, "{summary}");
    assert!(number("preemptions") >= 1, "{summary}");
    assert!(number("gpu_seconds_lent") > 0, "{summary}");
    assert_eq!(summary["ledger"]["verified"], true, "{summary}");
    assert!(summary["ledger"]["records"].as_u64().unwrap() > 100, "{summary}");
    assert_eq!(text(&summary, "/ledger/root").len(), 64);
    assert_eq!(summary["accounts"]["balanced"], true, "{summary}");
    assert_eq!(summary["invariants"]["violations"], 0, "{summary}");
    let of = |name: &str| summary["invariants"][name].as_u64().unwrap();
    assert!(of("checked") >= of("commands") && of("commands") > 0, "{summary}");
    assert!(!home.profile().exists(), "the profile is removed at the end");
}

#[test]
fn what_an_operator_has_set_is_kept_over_a_restart_also_at_another_speed() {
    let home = Home::new();
    let data = home.path().join("data");
    let flags = ["--data-dir", data.to_str().unwrap()];
    let dev = crate::support::Dev::start(&home, &flags);
    home.ok(&["policy", "set", "half_life=3d", "pledge=1h"]);
    let quota = ["quota", "set", "--tenant", "acme", "--model", "l40s", "2.5", "--borrow", "0"];
    home.ok(&quota);
    let price =
        ["price", "set", "--owner", "acme", "--model", "a100-80gb", "--tier", "standard", "7"];
    home.ok(&price);
    dev.kill();
    let faster = [&flags[..], &["--speed", "600"]].concat();
    for (flags, renew) in [(&flags[..], 30), (&faster[..], 300), (&flags[..], 30)] {
        let dev = crate::support::Dev::start(&home, flags);
        let policy = home.json(&["policy", "show"]);
        assert_eq!((&policy["half_life"], &policy["pledge"]), (&259_200.into(), &3_600.into()));
        assert_eq!(policy["renew"], renew, "liveness follows the speed");
        let quotas = home.json(&["quota", "list", "--tenant", "acme"]);
        let l40s =
            quotas.as_array().unwrap().iter().find(|quota| quota["model"] == "l40s").unwrap();
        assert_eq!((&l40s["nominal"], &l40s["borrow_limit"]), (&2_500.into(), &0.into()));
        let prices = home.json(&["price", "list", "--owner", "acme", "--model", "a100-80gb"]);
        let mut prices = prices.as_array().unwrap().iter();
        let standard = prices.find(|price| price["tier"] == "standard").unwrap();
        assert_eq!(text(standard, "/per_gpu_hour/amount"), "7.000000");
        dev.kill();
    }
}

#[test]
fn a_second_one_on_the_same_folder_is_refused() {
    let home = Home::new();
    let data = home.path().join("data");
    let data = data.to_str().unwrap();
    let _first = crate::support::Dev::start(&home, &["--data-dir", data]);
    let second = home.sublet(&["dev", "--for", "1s", "--data-dir", data]);
    assert_eq!(second.code, 75, "{second:#?}");
    assert!(second.err.contains("another `sublet dev` uses"), "{second:#?}");
}

/// Jobs of the window's first hours: `rows` of submit time, seconds and GPUs, of two tenants in turn.
fn trace(home: &Home, rows: &[(&str, u32, u32)]) -> String {
    let folder = home.path().join("trace");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("philly_vc_nodes.csv"), "vc,node num\nvc1,4\nvc2,4\n").unwrap();
    let mut jobs = "timestamp,duration,num_gpus,gpu_time,cluster\n".to_owned();
    for ((time, seconds, gpus), vc) in rows.iter().zip(["vc1", "vc2"].iter().cycle()) {
        let gpu_time = seconds * gpus;
        jobs.push_str(&format!("2017-10-01 {time},{seconds},{gpus},{gpu_time},{vc}\n"));
    }
    std::fs::write(folder.join("philly_jobs.csv"), jobs).unwrap();
    folder.to_str().unwrap().to_owned()
}

#[test]
fn a_trace_drives_the_load_and_its_mapping_is_told() {
    let home = Home::new();
    let hours = ["00:20:00", "00:40:00", "01:00:00", "01:20:00", "01:40:00", "02:00:00"];
    let data = trace(&home, &hours.map(|hour| (hour, 600, 2)));
    let run = ["dev", "--trace", "philly", "--data", &data, "--rho", "0.85", "--speed", "3600"];
    let done = home.sublet(&[&run[..], &["--for", "12s", "--json"]].concat());
    assert_eq!(done.code, 0, "{done:#?}");
    assert!(done.err.contains("6 jobs of 2 tenants") && done.err.contains("vc1"), "{done:#?}");
    let last = done.out.lines().last().unwrap_or_default();
    let summary: Value = serde_json::from_str(last).unwrap();
    // A load this small keeps every job.
    assert_eq!(summary["load"]["submitted"], 6, "{summary}");
    assert!(summary["leases_granted"].as_u64().unwrap() >= 1, "{summary}");
}

#[test]
fn a_broken_trace_names_file_and_line_and_starts_nothing() {
    let home = Home::new();
    let folder = home.path().join("trace");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("philly_vc_nodes.csv"), "vc,node num\nvc1,4\n").unwrap();
    let rows = "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-03 14:05:59,x,1,1,vc1\n";
    std::fs::write(folder.join("philly_jobs.csv"), rows).unwrap();
    let folder = folder.to_str().unwrap();
    let done = home.sublet(&["dev", "--trace", "philly", "--data", folder, "--for", "1s"]);
    assert_eq!(done.code, 2, "{done:#?}");
    assert!(done.err.contains("philly_jobs.csv") && done.err.contains('2'), "{done:#?}");
    assert!(!home.profile().exists());
}
