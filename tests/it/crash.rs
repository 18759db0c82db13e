//! A power cut with a live lease: what was acknowledged is there afterwards, also without the store.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

use serde_json::{Value, json};
use sublet_broker::{Cell, Config};
use sublet_protocol::ids::CellId;

use crate::support::{Dev, Home, text};

/// Sends a request under a key; the answer's status and body.
fn submit(home: &Home, dev: &Dev, key: &str) -> (u16, Value) {
    let token = home.ok(&["token", "--role", "tenant"]);
    let config = ureq::Agent::config_builder().http_status_as_error(false).build();
    let agent = ureq::Agent::from(config);
    let request = agent
        .post(format!("{}/v1/requests", dev.server))
        .header("authorization", format!("Bearer {}", token.trim()))
        .header("idempotency-key", key);
    let body = json!({ "duration": 600, "count": 8, "models": ["h200"] });
    let mut response = request.send_json(body).unwrap();
    let text = response.body_mut().read_to_string().unwrap();
    (response.status().as_u16(), serde_json::from_str(&text).unwrap())
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &target),
            false => {
                fs::copy(entry.path(), target).unwrap();
            }
        }
    }
}

/// Size and root of the ledger that a cell finds in `data`.
fn head(data: &Path) -> (u64, String) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut config = Config::new(CellId::new("dev").unwrap());
        config.data_dir = Some(data.join("cell"));
        let cell = Cell::open(config).await.unwrap();
        let head = cell.head().unwrap();
        assert!(cell.verify().await.unwrap().is_good());
        cell.shutdown().await;
        (head.size, head.root.to_string())
    })
}

fn sled(data: &Path) -> std::path::PathBuf {
    let ledger = data.join("cell/ledger");
    let folders = fs::read_dir(&ledger).unwrap().map(|entry| entry.unwrap().path());
    let holds_db = |folder: &std::path::PathBuf| folder.join("db").exists();
    folders.filter(|path| path.is_dir()).find(holds_db).expect("a folder of sled")
}

#[test]
fn a_power_cut_loses_nothing_that_was_acknowledged() {
    let home = Home::new();
    let data = home.path().join("data");
    let flags = ["--data-dir", data.to_str().unwrap()];
    let dev = Dev::start(&home, &flags);
    dev.all_on_offer(&home);
    // A lease that has ended and was charged, one that lives, and a request with a key of its own.
    home.ok(&["lease", "run", "--", "true"]);
    let charged = home.json(&["lease", "list", "--all"])[0].clone();
    assert_eq!(charged["state"], "ended");
    let made = home.json(&["lease", "create", "--gpus", "2", "--yes"]);
    let (lease, request) = (text(&made, "/lease/id"), text(&made, "/lease/request"));
    let (status, submitted) = submit(&home, &dev, "my-key");
    assert_eq!(status, 201, "{submitted}");
    let records = home.json(&["ledger", "state"])["size"].as_u64().unwrap();
    dev.kill();

    let (whole, without) = (home.path().join("whole"), home.path().join("without"));
    copy(&data, &whole);
    copy(&data, &without);
    fs::remove_dir_all(sled(&without)).unwrap();
    let found = head(&whole);
    assert!(found.0 >= records, "{found:?} after {records} records");
    assert_eq!(found, head(&without), "rebuilt from archive and log");

    for remove in [false, true] {
        if remove {
            fs::remove_dir_all(sled(&data)).unwrap();
        }
        let dev = Dev::start(&home, &flags);
        let again = home.json(&["lease", "show", &text(&charged, "/id")]);
        assert_eq!((&again["cost"], &again["used"]), (&charged["cost"], &charged["used"]));
        assert_eq!(text(&home.json(&["lease", "show", &lease]), "/request"), request);
        assert_eq!(text(&home.json(&["lease", "show", &request]), "/id"), request);
        let (status, repeated) = submit(&home, &dev, "my-key");
        assert!(status == 200 || status == 201, "{status}: {repeated}");
        assert_eq!(repeated["id"], submitted["id"], "the key was forgotten");
        let verified = home.json(&["ledger", "verify"]);
        assert_eq!((&verified["verified"], &verified["balanced"]), (&true.into(), &true.into()));
        assert!(verified["records"].as_u64().unwrap() >= records);
        dev.kill();
    }
}

#[test]
fn who_follows_events_misses_none_while_the_server_restarts() {
    let home = Home::new();
    let data = home.path().join("data");
    // Free a moment ago; a server that is started again needs the same one.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let listen = format!("127.0.0.1:{port}");
    let flags = ["--data-dir", data.to_str().unwrap(), "--listen", &listen];
    let dev = Dev::start(&home, &flags);
    dev.all_on_offer(&home);
    let before = home.json(&["ledger", "state"])["size"].as_u64().unwrap();
    // Every agent registers and offers again after the restart.
    let limit = before + 40;
    let limit_text = limit.to_string();
    let follow = ["events", "--follow", "--from", "0", "--limit", &limit_text, "-o", "json"];
    let mut follower = home.command(&follow);
    let mut follower = follower.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    dev.kill();
    let _again = Dev::start(&home, &flags);
    let rest = lines.map(Result::unwrap);
    let index = |line: String| serde_json::from_str::<Value>(&line).unwrap()["index"].as_u64();
    let indexes: Vec<u64> = std::iter::once(first).chain(rest).filter_map(index).collect();
    assert_eq!(indexes, (0..limit).collect::<Vec<_>>());
    assert_eq!(follower.wait().unwrap().code(), Some(0));
}
