//! A large batch of leases is undone, and that again, in one cell.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use sublet_broker::clock::ClockKind;
use sublet_broker::rollback::{self, Found};
use sublet_broker::{Cell, Checks};
use sublet_core::RollbackStage;
use sublet_protocol::commands::Command;
use sublet_protocol::events::Event;
use sublet_protocol::ids::RollbackId;
use sublet_protocol::money::{Account, MicroCredits};
use sublet_protocol::policy::Policy;
use sublet_protocol::rollbacks::{RollbackPolicy, RollbackSelector};
use sublet_protocol::transport::in_process;
use sublet_protocol::units::Timestamp;

use crate::agent::Agent;
use crate::world::{address, config, must, operator, set_up, submit, tenant};

/// How many leases: as many as `SUBLET_ROLLBACK_LEASES` says, or the batch that the design names, or as
/// many as a slow build does in time.
fn leases() -> u64 {
    let usual = if cfg!(debug_assertions) { 400 } else { 10_000 };
    let asked = std::env::var("SUBLET_ROLLBACK_LEASES").ok();
    asked.map_or(usual, |text| text.parse().unwrap())
}

/// Longest that undoing them may take, and undoing that.
const PATIENCE: Duration = Duration::from_secs(60);

fn net(cell: &Cell, account: Account) -> i64 {
    cell.accounts().balance(account).net_debit().unwrap().get()
}

/// What acme paid, the owner earned and the platform kept.
fn money(cell: &Cell) -> [i64; 3] {
    let (acme, owner) = (tenant("acme"), tenant("owner"));
    [Account::Expense(acme), Account::Revenue(owner), Account::Fee].map(|of| net(cell, of))
}

/// Runs as many leases as asked, on 64 GPUs; each is over when the next round begins.
async fn history(cell: &Cell, leases: u64) {
    for number in 0..u128::from(leases) {
        must(cell, crate::world::user("acme"), submit(number + 1, None)).await;
    }
    let begun = Instant::now();
    while cell.counters().leases_ended.values().sum::<u64>() < leases {
        assert!(begun.elapsed() < Duration::from_secs(500), "leases take too long");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Has it done, and says what was found and how long dry run and doing it took.
async fn undo(cell: &Cell, number: u128, selector: RollbackSelector) -> (Found, [Duration; 2]) {
    let begun = Instant::now();
    let found = rollback::select(cell, &selector).unwrap();
    let digest = found.digest(&selector).unwrap();
    let dry = begun.elapsed();
    let (id, money) = (RollbackId::new(number), found.money().unwrap());
    let leases = found.leases.keys().copied().collect();
    let begun = Instant::now();
    let propose = Command::ProposeRollback { rollback: id, selector, leases, money, digest };
    must(cell, operator(), propose).await;
    let stage = |cell: &Cell| cell.read_stale(|state| state.rollbacks()[&id].stage());
    while stage(cell) != RollbackStage::Finished {
        assert!(begun.elapsed() < PATIENCE, "undoing takes too long");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    (found, [dry, begun.elapsed()])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_batch_is_undone_and_that_again_within_a_minute_and_the_books_balance() {
    // Ledger time runs faster, so that each lease takes some of it.
    let clock = ClockKind::Scaled(NonZeroU32::new(20).unwrap());
    let mut config = config(None, clock);
    let (leases_alone, money_alone) = (u32::MAX, MicroCredits::new(i64::MAX));
    let limit = RollbackPolicy { leases_alone, money_alone, ..RollbackPolicy::default() };
    config.policy = Policy { rollback: limit, requests_per_tenant: 20_000, ..Policy::default() };
    config.checks = Checks::OneIn(997);
    config.snapshot_records = 1 << 20;
    let cell = Cell::open(config).await.unwrap();
    let (hub, link) = in_process::link();
    cell.attach(link).await.unwrap();
    set_up(&cell).await;
    for number in 0..8 {
        tokio::spawn(Agent::connect(&hub, address(number), 1).run(8));
    }
    let leases = leases();
    history(&cell, leases).await;
    let before = money(&cell);
    assert!(before[0] > 0, "{before:?}");

    let all = RollbackSelector { from: Some(Timestamp::ZERO), ..RollbackSelector::default() };
    let (found, times) = undo(&cell, 1, all.clone()).await;
    println!(
        "{} of {leases} leases: dry run {:?}, undone in {:?}",
        found.leases.len(),
        times[0],
        times[1]
    );
    let charged = u64::try_from(found.leases.len()).unwrap();
    assert!(charged + u64::from(found.untouched) == leases && charged > leases / 2, "{charged}");
    assert_eq!(money(&cell), [0; 3]);
    let again = rollback::select(&cell, &all).unwrap();
    assert_eq!(again.leases.len(), 0, "nothing is left to undo");

    let back =
        RollbackSelector { rollback: Some(RollbackId::new(1)), ..RollbackSelector::default() };
    let (found, times) = undo(&cell, 2, back).await;
    println!("undo of that: dry run {:?}, undone in {:?}", times[0], times[1]);
    assert_eq!(u64::try_from(found.leases.len()).unwrap(), charged);
    assert_eq!(money(&cell), before);

    let begun = Instant::now();
    let report = cell.verify().await.unwrap();
    println!("verified {report:?} in {:?}", begun.elapsed());
    assert!(cell.accounts().is_balanced());
    assert!(cell.violations().is_empty(), "{:?}", cell.violations());
    recount(&cell);
    cell.shutdown().await;
}

/// An auditor who knows the records only computes every charge and every turn again, and the books balance
/// at each record.
fn recount(cell: &Cell) {
    let mut books = sublet_ledger::charges::Recount::new();
    let mut accounts = sublet_ledger::accounts::Accounts::new();
    let (mut next, mut turns) = (0, 0);
    loop {
        let records = cell.records(next, 1_000).unwrap();
        let Some(last) = records.last() else { break };
        next = last.index + 1;
        for record in &records {
            books.take(record).unwrap();
            accounts.post(record).unwrap();
            turns += u64::from(matches!(record.event, Event::ChargeTurned { .. }));
        }
        assert!(accounts.is_balanced(), "up to record {}", last.index);
    }
    assert_eq!(books.turns(), turns);
}
