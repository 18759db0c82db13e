//! A cell that is opened again is the one that was closed, whatever became of the ledger's store.

use std::fs;
use std::path::Path;
use std::time::Duration;

use sublet_broker::clock::ClockKind;
use sublet_broker::{Cell, Error};
use sublet_core::State;
use sublet_ledger::merkle::TreeHead;
use sublet_ledger::verify::verify_dir;
use sublet_protocol::commands::{Command, Outcome};
use sublet_protocol::ids::CellId;
use sublet_protocol::transport::in_process;

use crate::agent::Agent;
use crate::world::{address, cell_id, config, key, must, operator, set_up, submit, tenant, user};

async fn open(dir: &Path) -> Cell {
    Cell::open(config(Some(dir), ClockKind::Real)).await.unwrap()
}

/// Lends until `leases` have ended.
async fn busy(cell: &Cell, boot: u64, leases: u128) {
    let (hub, link) = in_process::link();
    cell.attach(link).await.unwrap();
    let agent = tokio::spawn(Agent::connect(&hub, address(0), boot).run(4));
    let before = cell.counters().leases_ended_total();
    for number in 0..leases {
        let number = u128::from(boot) * 1_000 + number;
        let outcome = cell.propose(user("acme"), Some(key(number)), submit(number, None)).await;
        assert!(matches!(outcome, Ok(Outcome::Done { .. })), "{outcome:?}");
    }
    let goal = before + u64::try_from(leases).unwrap();
    let done = async {
        while cell.counters().leases_ended_total() < goal {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), done).await.expect("leases do not end");
    agent.abort();
}

/// Shuts down and says what the ledger on the disk holds.
async fn close(cell: Cell, dir: &Path) -> (State, TreeHead) {
    cell.shutdown().await;
    let state = cell.read_stale(State::clone);
    let report = verify_dir(&dir.join("ledger"), cell_id()).unwrap();
    assert!(report.is_good(), "{:?}", report.first_bad);
    (state, TreeHead { size: report.records, root: report.root })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_opened_again_is_the_one_that_was_closed() {
    let dir = tempfile::tempdir().unwrap();
    let cell = open(dir.path()).await;
    set_up(&cell).await;
    busy(&cell, 1, 20).await;
    let (mut state, mut head) = close(cell, dir.path()).await;
    for (boot, lose_store) in [(2, false), (3, true), (4, true)] {
        if lose_store {
            fs::remove_dir_all(dir.path().join("ledger/sled")).unwrap();
        }
        let cell = open(dir.path()).await;
        let root = cell.journal(|journal| journal.root_at(head.size)).unwrap();
        assert_eq!(root, Some(head.root));
        assert_eq!(cell.read_stale(|now| now.tenants().clone()), *state.tenants());
        assert_eq!(cell.read_stale(State::cell), state.cell());
        let repeated = cell.propose(user("acme"), Some(key(1_000)), submit(1_000, None)).await;
        assert!(matches!(repeated, Ok(Outcome::Repeated { .. })), "{repeated:?}");
        busy(&cell, boot, 20).await;
        assert_eq!(cell.violations(), Vec::<String>::new());
        (state, head) = close(cell, dir.path()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_without_anything_new_changes_nothing_but_the_seal() {
    let dir = tempfile::tempdir().unwrap();
    let cell = open(dir.path()).await;
    set_up(&cell).await;
    let (before, head) = close(cell, dir.path()).await;
    let cell = open(dir.path()).await;
    assert_eq!(cell.read_stale(State::clone), before);
    assert_eq!(cell.head().unwrap(), head);
    cell.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn data_of_another_cell_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let cell = open(dir.path()).await;
    cell.shutdown().await;
    let mut other = config(Some(dir.path()), ClockKind::Real);
    other.cell = CellId::new("paris").unwrap();
    let refused = Cell::open(other).await;
    assert!(matches!(refused, Err(Error::Ledger(_) | Error::Raft(_))), "{refused:?}");
    open(dir.path()).await.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_without_a_folder_leaves_nothing_behind() {
    let cell = Cell::open(config(None, ClockKind::Real)).await.unwrap();
    let create = Command::CreateTenant { tenant: tenant("x"), parent: None };
    must(&cell, operator(), create.clone()).await;
    cell.shutdown().await;
    let refused = cell.propose(operator(), None, create).await;
    assert!(matches!(refused, Err(Error::Stopped | Error::NotLeader { .. })), "{refused:?}");
    assert!(matches!(cell.head(), Err(Error::Stopped)));
    cell.shutdown().await;
}
