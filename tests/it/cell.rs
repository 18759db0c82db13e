//! A cell of three brokers as its operator sees it.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::brokers::Brokers;
use crate::support::wait_for;

/// Creates a tenant through broker `id`, asking again as long as there is no leader.
fn create(brokers: &Brokers, id: u64, tenant: &str) -> Duration {
    let begun = Instant::now();
    wait_for("a change", || {
        let done = brokers.sublet(id, &["tenant", "create", tenant]);
        // The tenant is there: an earlier try was done, and its answer lost.
        (done.code == 0 || done.err.contains("TENANT_EXISTS")).then_some(())
    });
    begun.elapsed()
}

#[test]
fn three_brokers_go_on_when_their_leader_is_killed_or_stands_still() {
    let mut brokers = Brokers::formed();
    let mut known = Vec::new();
    for (number, id) in (0..6).zip([1, 2, 3].into_iter().cycle()) {
        let tenant = format!("t{number}");
        brokers.ok(id, &["tenant", "create", &tenant]);
        known.push(tenant);
        // Each broker sees what was acknowledged by another.
        let seen = brokers.tenants(brokers.other_than(&[id]));
        assert!(known.iter().all(|tenant| seen.contains(tenant)), "{known:?} {seen:?}");
    }
    brokers.agree(1);

    let leader = brokers.leader(1, None);
    let other = brokers.other_than(&[leader]);
    brokers.kill(leader);
    let took = create(&brokers, other, "after-kill");
    println!("after kill -9 of the leader the next change took {took:?}");
    let new = brokers.leader(other, Some(leader));
    brokers.start(leader);
    brokers.agree(other);
    let seen = brokers.tenants(leader);
    assert!(seen.contains("after-kill") && known.iter().all(|tenant| seen.contains(tenant)));

    brokers.signal(new, Signal::SIGSTOP);
    let other = brokers.other_than(&[new]);
    let took = create(&brokers, other, "after-stop");
    println!("after the leader stood still the next change took {took:?}");
    brokers.signal(new, Signal::SIGCONT);
    brokers.agree(other);
    assert!(brokers.tenants(new).contains("after-stop"));
}

#[test]
fn a_leader_that_is_cut_off_acknowledges_nothing_and_the_others_go_on() {
    let brokers = Brokers::formed();
    brokers.ok(1, &["tenant", "create", "before"]);
    let leader = brokers.leader(1, None);
    let other = brokers.other_than(&[leader]);
    brokers.cut_off(leader);
    create(&brokers, other, "majority");
    // It may still take itself for the leader; it neither changes nor reads.
    for arguments in [&["tenant", "create", "minority"][..], &["tenant", "list"]] {
        let done = brokers.sublet(leader, arguments);
        assert_eq!(done.code, 75, "{done:#?}");
    }
    // What it knows it says, and how old that may be.
    let behind = brokers.sublet(leader, &["--stale", "tenant", "list"]);
    assert_eq!(behind.code, 0, "{behind:#?}");
    assert!(behind.out.contains("before") && !behind.out.contains("majority"), "{behind:#?}");
    assert!(behind.err.contains("as of "), "{behind:#?}");
    let seen = brokers.status(other);
    let cut = seen["brokers"].as_array().unwrap().iter().find(|broker| broker["id"] == leader);
    assert_eq!(cut.unwrap()["reached"], false);
    brokers.heal();
    brokers.agree(other);
    let seen = brokers.tenants(leader);
    assert!(seen.contains("before") && seen.contains("majority"), "{seen:?}");
}

#[test]
fn a_cell_is_founded_once_and_a_server_without_one_waits() {
    let mut brokers = Brokers::new();
    brokers.start(2);
    let waiting = brokers.status(2);
    assert_eq!(
        (&waiting["cell"], &waiting["leader"]),
        (&serde_json::Value::Null, &waiting["cell"])
    );
    assert_eq!(waiting["brokers"].as_array().unwrap().len(), 0);
    let done = brokers.sublet(2, &["tenant", "list"]);
    assert_eq!(done.code, 75, "{done:#?}");
    brokers.found(0);
    brokers.found(5);
}

#[test]
fn a_running_cell_is_backed_up_and_restored_on_a_broker_with_a_new_number() {
    let mut brokers = Brokers::new();
    brokers.found(0);
    brokers.start(1);
    brokers.ok(1, &["tenant", "create", "kept"]);
    let file = brokers.file("berlin.backup");
    let out = brokers.ok(1, &["--output", "json", "backup", "--to", &file]);
    let kept: serde_json::Value = serde_json::from_str(&out).unwrap();
    brokers.ok(1, &["tenant", "create", "lost"]);
    assert_eq!(brokers.sublet(1, &["backup", "--to", &file]).code, 2, "written over");
    let out = brokers.ok(1, &["--output", "json", "backup", "--check", &file]);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&out).unwrap(), kept);
    brokers.kill(1);

    let done = brokers.restore(1, &file, "data-2");
    assert_eq!(done.code, 5, "{done:#?}");
    assert!(done.err.contains("broker 1 was one of the old cell"), "{done:#?}");
    let done = brokers.restore(2, &file, "data-1");
    assert_eq!(done.code, 5, "{done:#?}");
    assert!(done.err.contains("is not empty"), "{done:#?}");
    let good = std::fs::read(&file).unwrap();
    let mut bytes = good.clone();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    let bad = brokers.file("bad.backup");
    std::fs::write(&bad, bytes).unwrap();
    let done = brokers.restore(2, &bad, "data-2");
    assert_eq!(done.code, 1, "{done:#?}");
    assert!(done.err.contains("bad.backup is damaged at"), "{done:#?}");
    // What stops the rules half-way is an answer, not a panic: ledger time that goes back.
    let mut told = 0;
    for (at, bit) in (150..good.len().min(1_200)).flat_map(|at| [(at, 1), (at, 128)]) {
        let mut bytes = good.clone();
        bytes[at] ^= bit;
        std::fs::write(&bad, bytes).unwrap();
        let Err(error) = sublet_broker::backup::check(std::path::Path::new(&bad)) else { panic!() };
        if !format!("{error:?}").contains("Impossible") {
            continue;
        }
        let done = brokers.sublet(1, &["backup", "--check", &bad]);
        assert_eq!(done.code, 1, "{done:#?}");
        assert!(done.err.contains("bad.backup is damaged at record"), "{done:#?}");
        assert!(!done.err.contains("panicked"), "{done:#?}");
        told += 1;
        if told == 3 {
            break;
        }
    }
    assert!(told > 0, "no flip stops the rules");

    let done = brokers.restore(2, &file, "data-2");
    assert_eq!(done.code, 0, "{done:#?}");
    brokers.start(2);
    let tenants = wait_for("the restored cell", || {
        let done = brokers.sublet(2, &["tenant", "list"]);
        (done.code == 0).then_some(done.out)
    });
    assert!(tenants.contains("kept") && !tenants.contains("lost"), "{tenants}");
    let status = brokers.status(2);
    let broker = &status["brokers"][0];
    assert_eq!((&status["leader"], &broker["id"]), (&2.into(), &2.into()), "{status}");
    assert_eq!(broker["disk"]["free_bytes"].as_u64().map(|free| free > 0), Some(true), "{status}");
    assert_eq!((&status["feature_level"], &broker["feature_level"]), (&1.into(), &1.into()));
    assert!(broker["records"].as_u64() > kept["records"].as_u64());
    brokers.ok(2, &["ledger", "verify"]);
    brokers.ok(2, &["cell", "raise"]);
    brokers.ok(2, &["tenant", "create", "after"]);
}
