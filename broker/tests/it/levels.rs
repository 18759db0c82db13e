//! Programs of two feature levels in one cell: upgrade, downgrade, and the point of no return.
//!
//! The older program is a twin: this one, told that it can do less.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sublet_broker::raft::FatalHook;
use sublet_broker::{Cell, Error};
use sublet_protocol::commands::{Command, Outcome};
use tempfile::TempDir;

use crate::brokers::{broker, endpoint, free_port};
use crate::world::{key, must, operator, set_up, submit, tenant, user};

const OLD: u16 = 1;
const NEW: u16 = 2;

struct Broker {
    folder: TempDir,
    id: u64,
    listen: SocketAddr,
    cell: Cell,
}

impl Broker {
    async fn open(
        folder: &TempDir,
        id: u64,
        listen: SocketAddr,
        level: u16,
    ) -> Result<Cell, Error> {
        let mut config = broker(folder.path(), id, listen);
        config.feature_level = level;
        Cell::open(config).await
    }

    async fn start(id: u64, level: u16) -> Broker {
        let (folder, listen) = (tempfile::tempdir().unwrap(), free_port());
        let cell = Broker::open(&folder, id, listen, level).await.unwrap();
        Broker { folder, id, listen, cell }
    }

    /// Stops it and starts another program on its data.
    async fn become_level(self, level: u16) -> Broker {
        let Broker { folder, id, listen, cell } = self;
        cell.shutdown().await;
        drop(cell);
        let cell = Broker::open(&folder, id, listen, level).await.unwrap();
        Broker { folder, id, listen, cell }
    }
}

/// Has `count` requests submitted through `cell`, as a caller does who tries again.
async fn work(cell: &Cell, from: u128, count: u128) {
    for number in from..from + count {
        let mut tries = 0;
        loop {
            let asked = cell.propose(user("acme"), Some(key(number)), submit(number, None)).await;
            match asked {
                Ok(Outcome::Done { .. } | Outcome::Repeated { .. }) => break,
                Ok(other) => panic!("{other:?}"),
                Err(error) => {
                    tries += 1;
                    assert!(tries < 200, "{error:?}");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }
}

/// Raises the cell; a broker that has just started may not answer yet.
async fn raise(cell: &Cell, level: u16) -> Result<Outcome, Error> {
    let mut last = None;
    for _ in 0..100 {
        match cell.raise_level(operator(), None, level).await {
            Err(error @ (Error::NotLeader { .. } | Error::Level { can: None, .. })) => {
                last = Some(error);
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            raised => return raised,
        }
    }
    Err(last.unwrap())
}

/// What the old program says on the data of a cell that was raised, at its start or as soon as it
/// applies what it has.
async fn refusal(folder: &TempDir, id: u64, listen: SocketAddr) -> String {
    let said = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&said);
    let mut config = broker(folder.path(), id, listen);
    config.feature_level = OLD;
    config.on_fatal = FatalHook::new(move |reason| told.lock().unwrap().push(reason.to_owned()));
    let cell = match Cell::open(config).await {
        Ok(cell) => cell,
        Err(error) => return chain(&error),
    };
    for _ in 0..400 {
        let text = said.lock().unwrap().first().cloned();
        if let Some(text) = text {
            cell.shutdown().await;
            return text;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the old program goes on: {:?}", cell.status());
}

fn chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {}", chain(cause)),
        None => error.to_string(),
    }
}

async fn level(cell: &Cell) -> u16 {
    cell.read(sublet_core::State::feature_level).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_is_upgraded_and_downgraded_under_load_and_raised_once_all_can_follow() {
    let one = Broker::start(1, OLD).await;
    set_up(&one.cell).await;
    let (two, three) = (Broker::start(2, OLD).await, Broker::start(3, OLD).await);
    for other in [&two, &three] {
        one.cell.add_broker(other.id, endpoint(other.listen)).await.unwrap();
    }
    work(&one.cell, 0, 5).await;
    // One after the other gets the new program; each serves meanwhile.
    let three = three.become_level(NEW).await;
    work(&three.cell, 100, 5).await;
    let two = two.become_level(NEW).await;
    work(&two.cell, 200, 5).await;
    let refused = raise(&two.cell, NEW).await;
    let said = Error::Level { broker: 1, can: Some(OLD), level: NEW }.to_string();
    assert_eq!(refused.unwrap_err().to_string(), said);
    assert_eq!(level(&two.cell).await, OLD);
    // Back, and forth again: nothing was decided that the old program would not have.
    let three = three.become_level(OLD).await;
    work(&three.cell, 300, 5).await;
    let three = three.become_level(NEW).await;
    let one = one.become_level(NEW).await;
    work(&one.cell, 400, 5).await;
    assert_eq!(level(&one.cell).await, OLD, "a new program alone raises nothing");

    assert!(matches!(raise(&three.cell, NEW).await, Ok(Outcome::Done { .. })));
    for broker in [&one, &two, &three] {
        assert_eq!(level(&broker.cell).await, NEW);
    }
    work(&one.cell, 500, 5).await;
    // Lower it cannot get, and the old program is refused, on its own data as well as by snapshot.
    must(&one.cell, operator(), Command::RaiseFeatureLevel { level: OLD }).await;
    assert_eq!(level(&one.cell).await, NEW);
    three.cell.shutdown().await;
    let Broker { folder, id, listen, cell } = three;
    drop(cell);
    let text = refusal(&folder, id, listen).await;
    assert!(text.contains("feature level 2, this program can do 1"), "{text}");
    let cell = Broker::open(&folder, id, listen, NEW).await.unwrap();
    let create = Command::CreateTenant { tenant: tenant("after"), parent: None };
    must(&one.cell, operator(), create).await;
    assert_eq!(level(&cell).await, NEW);
    for cell in [cell, one.cell, two.cell] {
        assert_eq!(cell.violations(), Vec::<String>::new());
        cell.shutdown().await;
    }
}
