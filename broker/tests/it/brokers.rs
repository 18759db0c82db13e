//! Several brokers in one process: what a caller of any of them sees, and how a new one gets what it
//! lacks.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use sublet_broker::clock::ClockKind;
use sublet_broker::config::Peers;
use sublet_broker::raft::{Begin, Endpoint, MembersError, Security};
use sublet_broker::{Cell, Config, Error};
use sublet_protocol::commands::{Actor, Command, Outcome};
use tempfile::TempDir;

use crate::world::{config, key, must, operator, set_up, submit, tenant, user};

/// A port that was free a moment ago.
pub(crate) fn free_port() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

pub(crate) fn endpoint(listen: SocketAddr) -> Endpoint {
    Endpoint { peer: listen.to_string(), api: String::new() }
}

/// Broker `id` in `dir`. Broker 1 founds the cell.
pub(crate) fn broker(dir: &Path, id: u64, listen: SocketAddr) -> Config {
    let mut config = config(Some(dir), ClockKind::Real);
    config.node_id = id;
    config.begin = if id == 1 { Begin::Found } else { Begin::Wait };
    let endpoint = endpoint(listen);
    config.peers = Some(Peers { listen, endpoint, security: Security::Plain });
    config
}

struct Broker {
    folder: TempDir,
    id: u64,
    listen: SocketAddr,
    cell: Cell,
}

impl Broker {
    async fn start(id: u64) -> Broker {
        Broker::start_in(tempfile::tempdir().unwrap(), id, free_port()).await
    }

    async fn start_in(folder: TempDir, id: u64, listen: SocketAddr) -> Broker {
        let cell = Cell::open(broker(folder.path(), id, listen)).await.unwrap();
        Broker { folder, id, listen, cell }
    }

    async fn restart(self) -> Broker {
        self.cell.shutdown().await;
        let Broker { folder, id, listen, cell } = self;
        drop(cell);
        Broker::start_in(folder, id, listen).await
    }

    async fn add(&self, other: &Broker) {
        self.cell.add_broker(other.id, endpoint(other.listen)).await.unwrap();
    }
}

/// Waits until all have the same ledger.
async fn agree(brokers: &[&Broker]) {
    for _ in 0..1_000 {
        let heads: Vec<_> = brokers.iter().map(|broker| broker.cell.head().unwrap()).collect();
        if heads.windows(2).all(|pair| pair[0] == pair[1]) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the ledgers differ: {:?}", brokers.iter().map(|b| b.cell.head()).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_follows_has_its_leader_change_things_and_reads_them_back() {
    let (one, two) = (Broker::start(1).await, Broker::start(2).await);
    one.add(&two).await;
    set_up(&two.cell).await;
    for number in 0..20 {
        let asked = two.cell.propose(user("acme"), Some(key(number)), submit(number, None)).await;
        let Outcome::Done { first, .. } = asked.unwrap() else { panic!() };
        // What was acknowledged here can be read here, and anywhere.
        assert!(two.cell.record(first).unwrap().is_some());
        let known = one.cell.read(|state| state.requests().len()).await.unwrap();
        assert_eq!(known, usize::try_from(number).unwrap() + 1);
        let again = one.cell.propose(user("acme"), Some(key(number)), submit(number, None)).await;
        assert_eq!(again.unwrap(), Outcome::Repeated { first });
    }
    // What only the leader knows is asked of it.
    let found = two.cell.reconcile().await.unwrap();
    assert_eq!((found.leases, found.gaps, found.agents.leaks.len()), (0, 0, 0));
    // What only a leader may ask is refused to one that follows.
    let sealed = two.cell.propose(Actor::Leader, None, Command::SealTail).await;
    assert!(sealed.is_err(), "{sealed:?}");
    let brokers = two.cell.brokers().await;
    assert_eq!(brokers.len(), 2);
    assert!(brokers.iter().all(|broker| broker.health.is_some() && broker.member.is_voter));
    agree(&[&one, &two]).await;
    one.cell.shutdown().await;
    two.cell.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_comes_late_gets_snapshot_and_segments_and_the_same_ledger() {
    let one = Broker::start(1).await;
    set_up(&one.cell).await;
    for number in 0..200 {
        let command = Command::CreateTenant { tenant: tenant(&format!("t{number}")), parent: None };
        must(&one.cell, operator(), command).await;
    }
    for _ in 0..500 {
        if one.cell.status().purged.is_some() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(one.cell.status().purged.is_some(), "nothing was purged: {:?}", one.cell.status());
    let two = Broker::start(2).await;
    one.add(&two).await;
    must(&one.cell, operator(), Command::CreateTenant { tenant: tenant("last"), parent: None })
        .await;
    agree(&[&one, &two]).await;
    assert!(two.cell.status().snapshot.is_some());
    let report = two.cell.verify().await.unwrap();
    assert!(report.is_good(), "{:?}", report.first_bad);
    assert_eq!(two.cell.accounts(), one.cell.accounts());
    // It starts again from what it got, and follows on.
    let two = two.restart().await;
    must(&two.cell, operator(), Command::CreateTenant { tenant: tenant("more"), parent: None })
        .await;
    agree(&[&one, &two]).await;
    assert_eq!(one.cell.violations(), Vec::<String>::new());
    assert_eq!(two.cell.violations(), Vec::<String>::new());
    one.cell.shutdown().await;
    two.cell.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_was_replaced_leaves_and_the_cell_goes_on() {
    let one = Broker::start(1).await;
    set_up(&one.cell).await;
    let (two, three) = (Broker::start(2).await, Broker::start(3).await);
    for other in [&two, &three] {
        one.add(other).await;
    }
    let four = Broker::start(4).await;
    // Asked of any broker.
    three.add(&four).await;
    three.cell.remove_broker(2).await.unwrap();
    two.cell.shutdown().await;
    let ids: Vec<u64> =
        three.cell.brokers().await.iter().map(|broker| broker.member.node_id).collect();
    assert_eq!(ids, [1, 3, 4]);
    let command = Command::CreateTenant { tenant: tenant("after"), parent: None };
    must(&four.cell, operator(), command).await;
    agree(&[&one, &three, &four]).await;
    for broker in [one, three, four] {
        broker.cell.shutdown().await;
    }
}

/// The members of the cell as a broker knows them.
fn members(broker: &Broker) -> Vec<u64> {
    broker.cell.status().members.iter().map(|member| member.node_id).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_number_of_a_broker_that_was_taken_out_is_never_given_again() {
    let (one, two) = (Broker::start(1).await, Broker::start(2).await);
    one.add(&two).await;
    one.cell.remove_broker(2).await.unwrap();
    let other = Broker::start(2).await;
    let again = one.cell.add_broker(2, endpoint(other.listen)).await;
    assert!(matches!(again, Err(Error::Members(MembersError::Used))), "{again:?}");
    assert_eq!(members(&one), [1]);
    // A backup knows it, and so does a cell that is made of it.
    let pieces = one.cell.backup().await.unwrap();
    assert_eq!(pieces.header().brokers, [1, 2]);
    // The one that was taken out hears of it, and says so instead of looking for a leader.
    for _ in 0..600 {
        if matches!(two.cell.read(|_| ()).await, Err(Error::Removed)) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let told = two.cell.read(|_| ()).await;
    assert!(matches!(told, Err(Error::Removed)), "{told:?}");
    for broker in [one, two, other] {
        broker.cell.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_not_there_or_another_one_is_refused_before_anything_is_changed() {
    let (one, two) = (Broker::start(1).await, Broker::start(2).await);
    let absent = one.cell.add_broker(3, endpoint(free_port())).await;
    assert!(matches!(absent, Err(Error::Unmet { is_refusal: false, .. })), "{absent:?}");
    let other = one.cell.add_broker(3, endpoint(two.listen)).await;
    assert!(matches!(other, Err(Error::Unmet { broker: 3, is_refusal: true, .. })), "{other:?}");
    assert!(other.unwrap_err().to_string().contains("broker 3 was meant, but broker 2"));
    assert_eq!(members(&one), [1]);
    // That costs the right one nothing.
    one.add(&two).await;
    for broker in [one, two] {
        broker.cell.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_with_the_data_of_another_cell_of_the_same_name_is_not_taken_in() {
    let (one, two) = (Broker::start(1).await, Broker::start(2).await);
    one.add(&two).await;
    set_up(&one.cell).await;
    agree(&[&one, &two]).await;
    // Founded apart under the same name; and with it a cell that was restored.
    let apart = TempDir::new().unwrap();
    let mut config = broker(apart.path(), 7, free_port());
    config.begin = Begin::Found;
    let listen = config.peers.as_ref().unwrap().listen;
    let founded = Cell::open(config).await.unwrap();
    // With its data it stands alone, started again or not.
    let refused = one.cell.add_broker(7, endpoint(listen)).await;
    assert!(matches!(refused, Err(Error::Unmet { is_refusal: true, .. })), "{refused:?}");
    assert!(refused.unwrap_err().to_string().contains("another cell named"));
    // The other way round: a broker of a cell of two, which has no snapshot and hears of no leader.
    one.cell.shutdown().await;
    let two = two.restart().await;
    let refused = founded.add_broker(2, endpoint(two.listen)).await;
    assert!(matches!(refused, Err(Error::Unmet { is_refusal: true, .. })), "{refused:?}");
    assert_eq!(founded.status().members.len(), 1);
    two.cell.shutdown().await;
    founded.shutdown().await;
}
