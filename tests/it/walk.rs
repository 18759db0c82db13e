//! The second terminal: everything a person does in the first ten minutes, against one server.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::support::{Dev, Done, Home, text, wait_for};

fn server() -> (Home, Dev) {
    let home = Home::new();
    let dev = Dev::start(&home, &[]);
    dev.all_on_offer(&home);
    (home, dev)
}

#[test]
fn offers_and_plans_are_shown_as_table_and_as_json() {
    let (home, _dev) = server();
    let table = home.ok(&["offers"]);
    for part in ["a100-80gb", "h200", "l40s", "PRICE/GPU-H", "48 of 48 free slices"] {
        assert!(table.contains(part), "{part}: {table}");
    }
    let some = home.json(&["offers", "--model", "h200"]);
    assert_eq!((some["shown"].as_u64(), some["total"].as_u64()), (Some(16), Some(48)));
    assert!(home.ok(&["-o", "csv", "offers"]).starts_with("gpu,mem,share,free"));

    let plan = home.ok(&["lease", "plan", "--gpus", "1", "--memory", "20GiB"]);
    for part in ["outcome", "worst case", "declared", "policy", "preempted by", "root", "duration"]
    {
        assert!(plan.contains(part), "{part}: {plan}");
    }
    let plan = home.json(&["lease", "plan", "--gpus", "1", "--memory", "20GiB"]);
    assert_eq!(plan["outcome"]["kind"], "grant", "{plan}");
    let has = |origin: &str| {
        plan["effective"].as_array().unwrap().iter().any(|value| value["origin"] == origin)
    };
    assert!(has("declared") && has("predicted") && has("policy"), "{plan}");
}

#[test]
fn a_lease_is_made_shown_explained_and_given_back() {
    let (home, _dev) = server();
    let refused = home.sublet(&["lease", "create", "--gpus", "1"]);
    assert_eq!(refused.code, 2, "{refused:#?}");
    assert!(refused.err.contains("--yes"), "{refused:#?}");

    let made = home.json(&["lease", "create", "--gpus", "2", "--memory", "20GiB", "--yes"]);
    let lease = text(&made, "/lease/id");
    let request = text(&made, "/lease/request");
    home.ok(&["lease", "wait", &lease]);
    assert_eq!(home.json(&["lease", "show", &lease])["state"], "active");
    // By a unique beginning, with and without its letter; a request, too.
    let short = lease[..8].to_owned();
    assert_eq!(text(&home.json(&["lease", "show", &short]), "/id"), lease);
    assert_eq!(text(&home.json(&["lease", "show", &short[2..]]), "/id"), lease);
    assert_eq!(text(&home.json(&["lease", "show", &request[..9]]), "/id"), request);
    assert!(home.ok(&["lease", "list"]).contains(&lease));
    assert!(home.ok(&["why", &lease]).contains("active"));

    let saved = home.json(&["lease", "checkpoint", &lease]);
    assert!(saved["checkpoint_at"].is_string(), "{saved}");
    // Only who owns the GPUs may recall; to others the lease looks absent.
    let foreign = home.sublet(&["lease", "recall", &lease, "--in", "1h"]);
    assert_eq!(foreign.code, 3, "{foreign:#?}");

    home.ok(&["lease", "end", &lease]);
    home.ok(&["lease", "wait", &lease, "--for", "ended"]);
    let ended = home.json(&["lease", "show", &lease]);
    assert_eq!((&ended["state"], &ended["end_reason"]), (&"ended".into(), &"released".into()));
    assert_eq!(home.json(&["lease", "list"]), Value::Array(vec![]));
    assert_eq!(home.json(&["lease", "list", "--all"]).as_array().unwrap().len(), 1);
    let again = home.sublet(&["lease", "end", &lease]);
    assert_eq!(again.code, 5, "{again:#?}");
}

#[test]
fn a_request_over_the_quota_waits_and_says_why() {
    let (home, _dev) = server();
    let eight = ["lease", "create", "--gpus", "8", "--model", "h200", "--yes"];
    home.json(&eight);
    let waits = home.json(&[&eight[..], &["--wait", "1s"]].concat());
    assert_eq!(waits["lease"], Value::Null, "{waits}");
    let request = text(&waits, "/request/id");
    let why = home.json(&["why", &request]);
    assert_eq!((&why["state"], &why["code"]), (&"waiting".into(), &"quota".into()), "{why}");
    assert!(home.ok(&["why", &request]).contains("quota"));
    assert!(home.ok(&["lease", "list", "--waiting"]).contains(&request));
    let now = home.sublet(&[&eight[..], &["--now"]].concat());
    assert_eq!(now.code, 6, "{now:#?}");
    let late = home.sublet(&["lease", "wait", &request, "--timeout", "1s"]);
    assert_eq!(late.code, 124, "{late:#?}");
    home.ok(&["lease", "end", &request]);
    assert_eq!(home.json(&["lease", "show", &request])["state"], "cancelled");
}

#[test]
fn a_command_runs_on_a_lease_and_its_exit_code_comes_back() {
    let (home, _dev) = server();
    let done = home.sublet(&["lease", "run", "--gpus", "1", "--", "echo", "hi"]);
    assert_eq!((done.code, done.out.as_str()), (0, "hi\n"), "{done:#?}");
    let last = done.err.lines().last().unwrap_or_default();
    assert!(last.contains("1 GPU for") && last.contains("EUR"), "{done:#?}");

    let script = "echo out; echo err >&2; echo $COLOUR; exit 3";
    let run = ["lease", "run", "--env", "COLOUR=red", "--", "sh", "-c", script];
    let done = home.sublet(&run);
    assert_eq!((done.code, done.out.as_str()), (3, "out\nred\n"), "{done:#?}");
    assert!(done.err.contains("err\n"), "{done:#?}");

    let missing = home.sublet(&["lease", "run", "--", "no-such-program"]);
    assert_eq!(missing.code, 7, "{missing:#?}");
}

#[test]
fn ctrl_c_gives_the_lease_back() {
    let (home, _dev) = server();
    let mut run = home.command(&["lease", "run", "--", "sh", "-c", "echo up; sleep 600"]);
    let run = run.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let run = run.spawn().unwrap();
    wait_for("an active lease", || {
        let leases = home.json(&["lease", "list"]);
        (leases[0]["state"] == "active").then_some(())
    });
    // The guest has begun to print a moment after its lease is active.
    std::thread::sleep(Duration::from_millis(500));
    let id = Pid::from_raw(i32::try_from(run.id()).unwrap());
    kill(id, Signal::SIGINT).unwrap();
    let done = Done::of(&["lease run"], &run.wait_with_output().unwrap());
    assert_eq!(done.code, 130, "{done:#?}");
    assert_eq!(done.out, "up\n", "{done:#?}");
    assert_eq!(home.json(&["lease", "list"]), Value::Array(vec![]));
}

#[test]
fn the_ledger_is_verified_and_events_are_followed() {
    let (home, dev) = server();
    home.ok(&["lease", "run", "--", "true"]);
    assert!(home.ok(&["ledger", "verify"]).contains("verified  yes"));
    let verified = home.json(&["ledger", "verify"]);
    assert_eq!((&verified["verified"], &verified["balanced"]), (&true.into(), &true.into()));
    assert!(home.json(&["ledger", "state"])["size"].as_u64().unwrap() > 48);
    assert!(home.ok(&["ledger", "accounts"]).contains("initech:expense"));
    // Agents report every half second of this clock.
    wait_for("agents that have reported", || {
        let done = home.sublet(&["ledger", "reconcile"]);
        assert!([0, 75].contains(&done.code), "{done:#?}");
        (done.code == 0).then_some(())
    });
    let reconciled = home.json(&["ledger", "reconcile"]);
    assert_eq!(reconciled["leaks"], Value::Array(Vec::new()), "{reconciled}");
    assert_eq!(reconciled["books_differ"], 0, "{reconciled}");
    assert!(reconciled["nodes_reported"].as_u64().unwrap() > 0, "{reconciled}");

    let events = home.ok(&["events", "--follow", "--from", "0", "--limit", "5", "-o", "json"]);
    let indexes: Vec<u64> = events
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["index"].as_u64().unwrap())
        .collect();
    assert_eq!(indexes, [0, 1, 2, 3, 4]);
    let kinds = home.ok(&["events", "--from", "0", "--kind", "lease_ended"]);
    assert!(kinds.contains("reason=completed"), "{kinds}");
    assert_eq!(home.json(&["status"])["tenants"], 3);
    assert_eq!(dev.stop(), 0);
    assert!(!home.profile().exists());
}

#[test]
fn tenants_clusters_prices_and_quotas_are_set_up() {
    let (home, _dev) = server();
    home.ok(&["tenant", "create", "hooli"]);
    assert!(home.ok(&["tenant", "list"]).contains("hooli"));
    let twice = home.sublet(&["tenant", "create", "hooli"]);
    assert_eq!(twice.code, 5, "{twice:#?}");
    let unknown = home.sublet(&["tenant", "show", "holi"]);
    assert_eq!(unknown.code, 3, "{unknown:#?}");
    assert!(unknown.err.contains("did you mean hooli?"), "{unknown:#?}");
    home.ok(&["cluster", "create", "east", "--owner", "hooli", "--region", "eu-east"]);
    assert_eq!(home.json(&["cluster", "show", "east"])["owner"], "hooli");
    assert!(home.ok(&["cluster", "nodes", "east"]).contains("no agent"));
    let unknown = home.sublet(&["cluster", "remove-node", "east", "n1"]);
    assert!(unknown.code == 3 && unknown.err.contains("has not registered"), "{unknown:#?}");
    let clusters = home.json(&["cluster", "list"]);
    let has_nodes = |one: &&Value| one["nodes"] != 0;
    let cluster = text(clusters.as_array().unwrap().iter().find(has_nodes).unwrap(), "/id");
    let nodes = home.json(&["cluster", "nodes", &cluster]);
    let heard =
        home.sublet(&["cluster", "remove-node", &cluster, nodes[0]["id"].as_str().unwrap()]);
    assert!(heard.code == 5 && heard.err.contains("wait until"), "{heard:#?}");
    let price = ["price", "set", "--owner", "hooli", "--model", "h200", "--tier", "standard"];
    let price = home.json(&[&price[..], &["2.5"]].concat());
    assert_eq!(text(&price, "/per_gpu_hour/amount"), "2.500000");
    assert!(home.ok(&["price", "list", "--owner", "hooli"]).contains("2.50"));
    let quota = ["quota", "set", "--tenant", "hooli", "--model", "h200", "4"];
    assert_eq!(home.json(&quota)["nominal"], 4_000);
    assert!(home.ok(&["quota", "list", "--tenant", "hooli"]).contains("h200"));
    let limits = ["--borrow", "2", "--lend", "0", "--hardware"];
    let set = home.json(&[&quota[..], &limits[..]].concat());
    assert_eq!((&set["borrow_limit"], &set["lend_limit"]), (&2_000.into(), &0.into()));
    assert_eq!(text(&set, "/basis"), "hardware");
    home.ok(&["tenant", "create", "pool"]);
    assert_eq!(home.json(&["tenant", "move", "hooli", "--parent", "pool"])["parent"], "pool");
    let cycle = home.sublet(&["tenant", "move", "pool", "--parent", "hooli"]);
    assert_eq!(cycle.code, 5, "{cycle:#?}");
    let set = home.json(&["tenant", "set", "hooli", "--weight", "1.5", "--gpu-hours", "10"]);
    assert_eq!(
        (&set["weight"], &set["budget"]["gpu_seconds"]["left"]),
        (&1_500.into(), &36_000.into())
    );
    let set = home.json(&["tenant", "set", "hooli", "--budget", "99.5", "--gpu-hours", "none"]);
    assert_eq!(text(&set, "/budget/money/left/amount"), "99.500000");
    assert_eq!(
        (&set["weight"], &set["budget"]["gpu_seconds"]["limit"]),
        (&1_500.into(), &Value::Null)
    );
    let set = home.json(&["tenant", "set", "pool", "--reclaim", "lower_priority"]);
    assert_eq!((&set["reclaim"], &set["weight"]), (&"lower_priority".into(), &1_000.into()));
    let set = home.json(&["tenant", "set", "pool", "--weight", "2"]);
    assert_eq!((&set["reclaim"], &set["weight"]), (&"lower_priority".into(), &2_000.into()));
    let shown = home.ok(&["policy", "show"]);
    assert!(shown.contains("half_life") && shown.contains("7d"), "{shown}");
    let set = ["policy", "set", "entry_penalty=1m", "preemption.pauses=none", "stalled_after=3h"];
    let set = home.json(&set);
    assert_eq!((&set["entry_penalty"], &set["stalled_after"]), (&60.into(), &10_800.into()));
    assert_eq!(set["preemption"]["pauses"], Value::Array(vec![]));
    let typo = home.sublet(&["policy", "set", "half_live=1d"]);
    assert!(typo.code == 3 && typo.err.contains("did you mean half_life?"), "{typo:#?}");
    let wrong = home.sublet(&["policy", "set", "half_life=0s"]);
    assert!(wrong.code != 0 && wrong.err.contains("half_life must be at least 1"), "{wrong:#?}");
    home.ok(&["policy", "set", "half_life=3d"]);
    let history = home.json(&["policy", "history"]);
    let first = history[0]["index"].to_string();
    assert_eq!(history.as_array().unwrap().len(), 3, "{history}");
    let told = home.ok(&["policy", "history"]);
    let set = "entry_penalty=1m preemption.pauses=none stalled_after=3h";
    assert!(told.contains(set) && told.contains("half_life=3d"), "{told}");
    let back = home.json(&["policy", "revert"]);
    assert_eq!((&back["half_life"], &back["entry_penalty"]), (&604_800.into(), &60.into()));
    let founded = home.json(&["policy", "revert", &first]);
    assert_eq!((&founded["half_life"], &founded["entry_penalty"]), (&604_800.into(), &300.into()));
    let none = home.sublet(&["policy", "revert", "1"]);
    assert!(none.code == 3 && none.err.contains("record 1 set no policy"), "{none:#?}");
    let nothing = home.sublet(&["tenant", "set", "hooli"]);
    assert_eq!(nothing.code, 2, "{nothing:#?}");
    assert!(home.ok(&["tenant", "show", "hooli"]).contains("99.50 EUR left"));
}
