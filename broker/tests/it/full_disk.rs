//! What a cell does while its disk fills up, and when there is room again.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sublet_broker::clock::ClockKind;
use sublet_broker::space::{Probe, Room, Settings, Space};
use sublet_broker::{Cell, Error};
use sublet_protocol::agent::{Down, Up};
use sublet_protocol::commands::{Command, GuestOutcome, Outcome};
use sublet_protocol::transport::in_process;
use sublet_protocol::units::Millis;

use crate::agent::Agent;
use crate::world::{address, config, gpu, key, offer, set_up, submit, user};

const MIB: u64 = 1024 * 1024;

/// A cell on a disk of 1,000 MiB with what the test says free.
async fn world(dir: &Path) -> (Cell, Arc<AtomicU64>) {
    let free = Arc::new(AtomicU64::new(500 * MIB));
    let told = Arc::clone(&free);
    let probe =
        Probe::new(move |_| Ok(Space { free: told.load(Ordering::SeqCst), total: 1_000 * MIB }));
    let mut config = config(Some(dir), ClockKind::Real);
    let interval = Duration::from_millis(10);
    config.space =
        Some(Settings { reserve_bytes: 4 * MIB, interval, probe, ..Settings::default() });
    let cell = Cell::open(config).await.unwrap();
    set_up(&cell).await;
    (cell, free)
}

async fn room(cell: &Cell) -> Option<Room> {
    cell.brokers().await.first()?.health.as_ref()?.disk.map(|(_, room)| room)
}

async fn until(cell: &Cell, wanted: Room) {
    for _ in 0..1_000 {
        if room(cell).await == Some(wanted) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the disk is still {:?}, not {wanted:?}", room(cell).await);
}

async fn leases(cell: &Cell) -> usize {
    cell.read(|state| state.leases().len()).await.unwrap()
}

async fn ask(cell: &Cell, number: u128) -> Result<Outcome, Error> {
    cell.propose(user("acme"), Some(key(number)), submit(number, None)).await
}

async fn offering(cell: &Cell) -> Agent {
    let (hub, link) = in_process::link();
    cell.attach(link).await.unwrap();
    let mut agent = Agent::connect(&hub, address(0), 1);
    agent.must(Up::Hello).await;
    let slice = gpu(agent.address, 0);
    agent.must(Up::Offer(offer(slice, 1, agent.boot))).await;
    agent
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_stops_grants_then_all_but_ends_and_goes_on_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let reserve = dir.path().join("reserve");
    let (cell, free) = world(dir.path()).await;
    let mut agent = offering(&cell).await;

    free.store(99 * MIB, Ordering::SeqCst);
    until(&cell, Room::Low).await;
    assert!(matches!(ask(&cell, 1).await, Ok(Outcome::Done { .. })));
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(leases(&cell).await, 0, "granted with too little room");

    free.store(500 * MIB, Ordering::SeqCst);
    let grant = agent.expect(|message| match message {
        Down::Grant(grant) => Some((grant.lease, grant.slice, grant.token)),
        _other => None,
    });
    let (lease, slice, token) = grant.await;
    agent.must(Up::Confirm { lease, slice, token, nonce: Millis::new(1) }).await;

    free.store(MIB, Ordering::SeqCst);
    until(&cell, Room::Full).await;
    assert!(!reserve.exists(), "the reserve was kept");
    assert!(matches!(ask(&cell, 2).await, Err(Error::NoSpace)));
    assert_eq!(leases(&cell).await, 1, "reads go on");
    let release = Command::ReleaseLease { lease };
    assert!(matches!(
        cell.propose(user("acme"), Some(key(3)), release).await,
        Ok(Outcome::Done { .. })
    ));
    let (used, outcome) = (Millis::new(1_000), GuestOutcome::Stopped);
    agent.must(Up::Stopped { lease, slice, token, used, outcome }).await;
    assert_eq!(leases(&cell).await, 0, "the lease has not ended");
    assert!(matches!(ask(&cell, 4).await, Err(Error::NoSpace)));

    free.store(500 * MIB, Ordering::SeqCst);
    until(&cell, Room::Plenty).await;
    assert!(reserve.exists(), "the reserve was not made anew");
    assert!(matches!(ask(&cell, 4).await, Ok(Outcome::Done { .. })));
    assert_eq!(cell.violations(), Vec::<String>::new());
    assert!(cell.verify().await.unwrap().is_good());
    cell.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_disk_that_fills_up_stops_new_work_and_loses_nothing() {
    let Some(disk) = std::env::var_os("SUBLET_SMALL_DISK") else {
        println!(
            "left out: SUBLET_SMALL_DISK names no folder on a file system of 100 to 1,000 MiB"
        );
        return;
    };
    let dir = tempfile::tempdir_in(&disk).unwrap();
    let mut config = config(Some(dir.path()), ClockKind::Real);
    let interval = Duration::from_millis(50);
    config.space = Some(Settings { reserve_bytes: 16 * MIB, interval, ..Settings::default() });
    let cell = Cell::open(config).await.unwrap();
    set_up(&cell).await;
    assert_eq!(room(&cell).await, Some(Room::Plenty));
    assert!(matches!(ask(&cell, 1).await, Ok(Outcome::Done { .. })));

    // Somebody else fills it to the last byte.
    let ballast = dir.path().join("ballast");
    let mut file = std::fs::File::create(&ballast).unwrap();
    let block = vec![7; usize::try_from(MIB).unwrap()];
    while std::io::Write::write_all(&mut file, &block).is_ok() {}
    until(&cell, Room::Full).await;
    assert!(matches!(ask(&cell, 2).await, Err(Error::NoSpace)));
    let cancel = |request| Command::CancelRequest { request };
    let request = sublet_protocol::ids::RequestId::new(1);
    let cancelled = cell.propose(user("acme"), Some(key(5)), cancel(request)).await;
    assert!(matches!(cancelled, Ok(Outcome::Done { .. })), "{cancelled:?}");

    // A file that is open keeps its room.
    drop(file);
    std::fs::remove_file(&ballast).unwrap();
    until(&cell, Room::Plenty).await;
    assert!(matches!(ask(&cell, 2).await, Ok(Outcome::Done { .. })));
    assert!(cell.verify().await.unwrap().is_good());
    cell.shutdown().await;
}
