//! `sublet dev --nvml-lib`: the real probe, on a driver's library that reads its devices from a file.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{Dev, Home, wait_for};

const IDLE: &str = "GPU-1f6b2f0c-93d4-4c7e-8e7a-4b8f5b9b3a01";
const BUSY: &str = "GPU-7c21ad5e-0b9f-46f3-9d60-8e6d2a1c7b02";

/// A library of its own in a folder of its own. Cargo builds it with these tests, beside them.
fn library(home: &Home) -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let built = own.parent().unwrap().join("libsublet_fake_nvml.so");
    let library = home.path().join("libnvidia-ml.so.1");
    fs::copy(&built, &library).unwrap_or_else(|error| panic!("{}: {error}", built.display()));
    library
}

fn gpu(uuid: &str, utilisation: u32, processes: &Value) -> Value {
    json!({
        "uuid": uuid, "name": "NVIDIA L40S", "memory": { "total": 46_068, "reserved": 600 },
        "utilisation": utilisation, "compute": processes, "graphics": [], "instances": [],
        "virtualisation": 0, "ecc": {}, "temperature": 30, "slowdown": 90,
    })
}

/// What the library tells from now on: the first GPU with these processes, the second at work.
fn tell(home: &Home, processes: &Value) {
    let gpus = [gpu(IDLE, 0, processes), gpu(BUSY, 97, &json!([{ "pid": 900 }]))];
    let new = home.path().join("scenario.new");
    fs::write(&new, json!({ "now": { "gpus": gpus } }).to_string()).unwrap();
    fs::rename(new, home.path().join("scenario.json")).unwrap();
}

fn offers(home: &Home) -> Value {
    home.json(&["offers"])
}

#[test]
fn this_machines_idle_gpus_are_offered_and_withdrawn_when_their_owner_uses_them() {
    let home = Home::new();
    let library = library(&home);
    tell(&home, &json!([]));
    let dev = Dev::start(&home, &["--nvml-lib", library.to_str().unwrap()]);
    let page = wait_for("an offer", || Some(offers(&home)).filter(|page| page["total"] == 1));
    // Of the two, and without what the driver and an idle GPU's context take.
    assert_eq!(
        (&page["items"][0]["model"], &page["items"][0]["memory"]),
        (&json!("l40s"), &json!(45_212))
    );
    tell(&home, &json!([{ "pid": 4_242 }]));
    let begin = Instant::now();
    wait_for("no offer", || (offers(&home)["total"] == 0).then_some(()));
    // Two looks of half a second each, and the calls that ask.
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    tell(&home, &json!([]));
    wait_for("an offer again", || (offers(&home)["total"] == 1).then_some(()));
    home.ok(&["lease", "create", "--gpus", "1", "--yes"]);
    let leases = || home.json(&["lease", "list", "--all"]).to_string().to_lowercase();
    wait_for("an active lease", || leases().contains("\"active\"").then_some(()));
    tell(&home, &json!([{ "pid": 4_243 }]));
    wait_for("the end of the lease", || leases().contains("foreign_use").then_some(()));
    assert_eq!(dev.stop(), 0);
}

#[test]
fn a_machine_without_a_driver_is_told_and_nothing_is_started() {
    let home = Home::new();
    let done = home.sublet(&["dev", "--nvml-lib", "/nonexistent/libnvidia-ml.so.1", "--for", "1s"]);
    assert_eq!(done.code, 1, "{done:#?}");
    assert!(done.err.contains("cannot be read") && done.err.contains("library"), "{done:#?}");
    let both = home.sublet(&["dev", "--nvml", "--speed", "60", "--for", "1s"]);
    assert_eq!(both.code, 2, "{both:#?}");
}
