//! Tests of the recount and of charges, on made-up histories.

use std::collections::BTreeSet;

use proptest::prelude::*;
use sublet_protocol::events::{ChargeTurn, Event, Settlement};
use sublet_protocol::ids::{LeaseId, TenantId};
use sublet_protocol::leases::EndReason;
use sublet_protocol::money::{Account, Line, MicroCredits};
use sublet_protocol::policy::Policy;
use sublet_protocol::records::Record;
use sublet_protocol::rollbacks::ChargeStanding;
use sublet_protocol::units::{Millis, Permille, Timestamp};

use super::{Charge, ChargeError, Recount};
use crate::accounts::Accounts;
pub(crate) use crate::support::history::{HOUR, History, MARCH, Wish, borrower, lender};

/// The charges of a history, or what is wrong with it first.
fn recount(history: &History) -> Result<Vec<Charge>, (u64, ChargeError)> {
    let (mut recount, mut charges) = (Recount::new(), Vec::new());
    for record in &history.records {
        charges.extend(recount.take(record).map_err(|error| (record.index, error))?);
    }
    Ok(charges)
}

/// The charges of leases that are as they must be, each with a history of its own: they may go on
/// at the same time.
pub(crate) fn charges(wishes: &[Wish]) -> Vec<Charge> {
    let charge = |wish: &Wish| {
        let mut history = History::founded();
        history.lease(wish);
        recount(&history).unwrap().remove(0)
    };
    wishes.iter().map(charge).collect()
}

fn two_leases() -> History {
    let mut history = History::founded();
    history.lease(&Wish::new(1, MARCH, HOUR, 2_400_000));
    history.lease(&Wish::new(2, MARCH + HOUR, HOUR / 2, 3_000_001));
    history
}

#[track_caller]
fn edited(edit: impl Fn(&mut Event)) -> (u64, ChargeError) {
    let mut history = two_leases();
    history.records.iter_mut().for_each(|record| edit(&mut record.event));
    recount(&history).unwrap_err()
}

#[test]
fn charges_that_are_time_times_price_are_recounted() {
    let found = recount(&two_leases()).unwrap();
    let costs: Vec<_> = found.iter().map(|charge| charge.settlement.cost.get()).collect();
    assert_eq!(costs, [2_400_000, 1_500_000]);
    assert_eq!(found[1].terms.price.version, 2);
    assert_eq!(found[1].settlement.fee.get(), 75_000);
}

#[test]
fn a_price_that_was_edited_afterwards_is_found_at_the_grant() {
    let (index, error) = edited(|event| {
        if let Event::PriceSet { price, .. } = event
            && price.version == 2
        {
            price.per_gpu_hour = MicroCredits::new(3_500_000);
        }
    });
    // Cell, price, four records of a lease, the edited price, and the grant that names the old one.
    assert_eq!(index, 7);
    assert!(matches!(error, ChargeError::Price { .. }), "{error}");
    assert_eq!(
        error.to_string(),
        "l-00000000000000000000000002 was granted at 3.000001 per GPU-hour (version 2), the price \
         posted was 3.500000 (version 2)"
    );
}

#[test]
fn a_price_that_was_left_out_is_found() {
    let mut history = two_leases();
    history.records.retain(
        |record| !matches!(&record.event, Event::PriceSet { price, .. } if price.version == 1),
    );
    assert!(matches!(recount(&history), Err((2, ChargeError::Price { posted: None, .. }))));
}

#[test]
fn a_price_edited_with_its_grant_is_found_by_the_hold() {
    let (index, error) = edited(|event| match event {
        Event::PriceSet { price, .. } => price.per_gpu_hour = MicroCredits::new(9),
        Event::LeaseGranted { terms, .. } => terms.price.per_gpu_hour = MicroCredits::new(9),
        _other => {}
    });
    assert_eq!(index, 2);
    assert!(matches!(error, ChargeError::Amount { what: "hold", .. }), "{error}");
}

#[test]
fn each_edit_of_money_is_found_at_its_record() {
    type Edit = fn(&mut Settlement, &mut Vec<Line>, &mut TenantId);
    let more = |amount: &mut MicroCredits| *amount = MicroCredits::new(amount.get() + 1);
    let rows: [(&str, Edit); 5] = [
        ("billed", |settlement, _, _| settlement.billed = Millis::new(1)),
        ("cost", |settlement, _, _| settlement.cost = MicroCredits::new(1)),
        ("fee", |settlement, _, _| settlement.fee = MicroCredits::new(1)),
        ("lines", |_, lines, _| lines.truncate(1)),
        ("owner", |_, _, owner| *owner = TenantId::new("thief").unwrap()),
    ];
    for (what, edit) in rows {
        let (index, error) = edited(|event| {
            if let Event::LeaseEnded { settlement, lines, owner, .. } = event {
                edit(settlement, lines, owner);
            }
        });
        assert_eq!(index, 5, "{what}: {error}");
    }
    let (index, error) = edited(|event| {
        if let Event::LeaseGranted { lines, .. } = event {
            lines.iter_mut().for_each(|line| {
                more(&mut line.debit);
                more(&mut line.credit);
            });
        }
    });
    assert_eq!((index, matches!(error, ChargeError::Posting { .. })), (2, true));
    let (index, _) = edited(|event| {
        if let Event::MemberStopped { used, .. } = event {
            *used = Millis::new(used.get() - 1);
        }
    });
    assert_eq!(index, 5, "less was measured than billed");
}

#[test]
fn what_the_owner_takes_back_before_the_minimum_run_time_costs_nothing() {
    let reclaimed =
        |used| Wish { reason: EndReason::Reclaimed, ..Wish::new(1, MARCH, used, 2_400_000) };
    let early = &charges(&[reclaimed(599_999)])[0];
    assert_eq!(
        (early.settlement.cost, early.excused()),
        (MicroCredits::ZERO, Millis::new(599_999))
    );
    let late = &charges(&[reclaimed(600_000)])[0];
    assert_eq!((late.settlement.cost.get(), late.excused()), (400_000, Millis::ZERO));
}

#[test]
fn a_lease_is_billed_no_longer_than_it_was_active_or_may_cost() {
    let mut history = History::founded();
    history.lease(&Wish::new(1, MARCH, HOUR, 2_400_000));
    for record in &mut history.records {
        if let Event::LeaseActivated { .. } = record.event {
            record.time = Timestamp::new(MARCH + 1);
        }
    }
    let error = recount(&history).unwrap_err();
    let (lease, found) = (LeaseId::new(1), Millis::new(HOUR));
    let expected = Millis::new(HOUR - 1);
    assert_eq!(error, (5, ChargeError::Billed { lease, found, expected }));
    let mut history = History::founded();
    history.lease(&Wish::new(1, MARCH, HOUR, 2_400_000));
    let (lease, billed_max) = (LeaseId::new(1), Millis::new(7));
    history.records[4].event = Event::LeaseCapped { lease, billed_max };
    let error = recount(&history).unwrap_err();
    assert!(matches!(error, (5, ChargeError::Billed { expected: Millis::ZERO, .. })), "{error:?}");
}

#[test]
fn money_that_moves_out_of_order_is_refused() {
    let mut twice = two_leases();
    let grant = twice.records[2].event.clone();
    twice.push(MARCH, grant.clone());
    twice.push(MARCH, grant);
    // The first repeats a grant at a price that has been replaced.
    assert!(matches!(recount(&twice), Err((11, ChargeError::Price { .. }))));
    let mut history = History::default();
    history.push(MARCH, two_leases().records[2].event.clone());
    assert_eq!(recount(&history).unwrap_err(), (0, ChargeError::NoPolicy));
    let mut history = History::founded();
    history.push(MARCH, two_leases().records[5].event.clone());
    let lease = LeaseId::new(1);
    assert_eq!(recount(&history).unwrap_err(), (1, ChargeError::NotLive { lease }));
}

#[test]
fn the_policy_that_counts_is_that_of_the_end() {
    let mut history = two_leases();
    let policy = Policy { fee: Permille::new(100), ..Policy::default() };
    let Event::LeaseActivated { .. } = history.records[3].event else { panic!("it activates") };
    history
        .records
        .insert(3, Record { event: Event::PolicySet { policy }, ..history.records[3].clone() });
    let (_, error) = recount(&history).unwrap_err();
    assert!(matches!(error, ChargeError::Amount { what: "fee", .. }), "{error}");
}

#[test]
fn what_is_settled_after_a_close_knows_that_its_time_was_closed() {
    let mut history = History::founded();
    history.lease(&Wish::new(1, MARCH, HOUR, 2_400_000));
    let [april, may] = [31, 61].map(|days| Timestamp::new(MARCH + days * 24 * HOUR));
    let close = Event::PeriodClosed { from: Timestamp::ZERO, until: april };
    let late = Wish::new(2, april.get() - HOUR, 2 * HOUR, 2_400_000);
    history.lease_over(&late, Some((april.get(), close)));
    let found = recount(&history).unwrap();
    assert_eq!((found[0].closed_until, found[1].closed_until), (Timestamp::ZERO, april));
    // As the records of the lease alone tell it.
    let of_lease = |record: &&Record| record.event.lease() == Some(LeaseId::new(2));
    let records: Vec<Record> = history.records.iter().filter(of_lease).cloned().collect();
    assert_eq!(Charge::of_lease(&records, april).as_ref(), Some(&found[1]));
    assert_eq!(Charge::of_lease(&records[..records.len() - 1], april), None);
    for (from, until) in [(Timestamp::ZERO, may), (april, april), (april, may)] {
        let mut wrong = History::founded();
        wrong.records.clone_from(&history.records);
        wrong.push(april.get(), Event::PeriodClosed { from, until });
        let error = recount(&wrong).unwrap_err().1;
        assert_eq!(error, ChargeError::Close { from, until }, "{error}");
    }
}

/// Two leases; the charge of the first is reversed, charged again and reversed once more.
fn turned() -> History {
    let mut history = two_leases();
    for _ in 0..3 {
        history.turn(MARCH + 10 * HOUR, 1);
    }
    history
}

#[test]
fn a_charge_that_is_turned_is_recounted_with_its_sign_and_knows_its_records() {
    let history = turned();
    let found = recount(&history).unwrap();
    let signs: Vec<_> = found.iter().map(|charge| (charge.turn, charge.sign())).collect();
    let [reversed, again] = [ChargeStanding::Reversed, ChargeStanding::Charged].map(Some);
    assert_eq!(signs, [(None, 1), (None, 1), (reversed, -1), (again, 1), (reversed, -1)]);
    let sums = |of: &[Charge]| -> i64 {
        of.iter().map(|charge| charge.signed(charge.settlement.cost).get()).sum()
    };
    assert_eq!(sums(&found), 1_500_000, "only the second lease is paid");
    let mut accounts = Accounts::new();
    for record in &history.records {
        accounts.post(record).unwrap();
        assert!(accounts.is_balanced());
    }
    let paid = accounts.balance(Account::Expense(borrower())).net_debit().unwrap();
    assert_eq!(paid.get(), 1_500_000);
    // As the records of the lease alone tell it.
    let of_lease = |record: &&Record| record.event.lease() == Some(LeaseId::new(1));
    let records: Vec<Record> = history.records.iter().filter(of_lease).cloned().collect();
    let told = Charge::of_turn(&records, found[2].index, Timestamp::ZERO);
    assert_eq!(told.as_ref(), Some(&found[2]));
    assert_eq!(Charge::of_turn(&records, found[0].index, Timestamp::ZERO), None);
    // Of a ledger in which no charge of it was to be turned, the charge was not kept.
    let mut blind = Recount::keeping(BTreeSet::new());
    let error = history.records.iter().find_map(|record| blind.take(record).err());
    assert_eq!(error, Some(ChargeError::NotEnded { lease: LeaseId::new(1) }));
    let mut sighted = Recount::keeping(BTreeSet::from([LeaseId::new(1)]));
    assert!(history.records.iter().all(|record| sighted.take(record).is_ok()));
    assert_eq!((sighted.leases(), sighted.turns()), (2, 3));
}

#[test]
fn each_edit_of_a_turn_is_found_at_its_record() {
    type Edit = fn(&mut ChargeTurn);
    let rows: [(&str, Edit); 8] = [
        ("of", |turn| turn.of -= 1),
        ("standing", |turn| turn.standing = turn.standing.turned()),
        ("tenant", |turn| turn.tenant = TenantId::new("thief").unwrap()),
        ("owner", |turn| turn.owner = TenantId::new("thief").unwrap()),
        ("cost", |turn| turn.settlement.cost = MicroCredits::new(1)),
        ("lines", |turn| turn.lines.truncate(1)),
        ("granted at", |turn| turn.granted_at = Timestamp::ZERO),
        ("lease", |turn| turn.lease = LeaseId::new(9)),
    ];
    for (what, edit) in rows {
        let mut history = turned();
        let place = history.records.len() - 2;
        let Event::ChargeTurned { turn } = &mut history.records[place].event else {
            panic!("the second turn stands there")
        };
        edit(turn);
        let (index, error) = recount(&history).unwrap_err();
        assert_eq!(index, u64::try_from(place).unwrap(), "{what}: {error}");
    }
    // A reversal that is doubled.
    let mut history = turned();
    let last = history.records.last().unwrap().event.clone();
    history.push(MARCH + 11 * HOUR, last);
    let (_, error) = recount(&history).unwrap_err();
    assert!(matches!(error, ChargeError::TurnedTwice { .. }), "{error}");
}

#[test]
fn the_reversal_of_a_closed_month_is_a_correction_behind_its_close() {
    let mut history = History::founded();
    history.lease(&Wish::new(1, MARCH, HOUR, 2_400_000));
    let april = MARCH + 31 * 24 * HOUR;
    let until = Timestamp::new(april);
    history.push(april, Event::PeriodClosed { from: Timestamp::ZERO, until });
    history.turn(april + HOUR, 1);
    let found = recount(&history).unwrap();
    let in_april = found[1].parts(until, Timestamp::MAX);
    assert_eq!(found[1].parts(Timestamp::ZERO, until), vec![], "March does not change");
    assert_eq!(in_april.len(), 1);
    assert!(in_april[0].is_correction());
    let amounts = (in_april[0].cost.get(), in_april[0].fee.get(), in_april[0].earned().get());
    assert_eq!(amounts, (-2_400_000, -120_000, -2_280_000));
    assert_eq!(found[0].parts(Timestamp::ZERO, until)[0].cost.get(), 2_400_000);
}

fn wishes() -> impl Strategy<Value = Vec<Wish>> {
    let reason = prop::sample::select(vec![
        EndReason::Completed,
        EndReason::Reclaimed,
        EndReason::Preempted,
        EndReason::Revoked,
    ]);
    let one = (1_u64..8_000, 0_i64..5_000_000, 0_u64..100 * HOUR, reason, 0_u64..HOUR);
    prop::collection::vec(one, 1..20).prop_map(|all| {
        let mut begin = MARCH;
        let wishes =
            all.into_iter().zip(1_u128..).map(|((gpu, price, used, reason, gap), lease)| {
                let wish = Wish { lease, gpu, price, begin, used, reason };
                begin += used + gap;
                wish
            });
        wishes.collect()
    })
}

proptest! {
    #[test]
    fn what_borrowers_pay_is_what_lenders_and_platform_get_at_every_record(wishes in wishes()) {
        let mut history = History::founded();
        wishes.iter().for_each(|wish| history.lease(wish));
        let (mut accounts, mut recount) = (Accounts::new(), Recount::new());
        for record in &history.records {
            accounts.post(record).unwrap();
            recount.take(record).unwrap();
            let net = |account| accounts.balance(account).net_debit().unwrap().get();
            let spent = net(Account::Expense(borrower())) + net(Account::Hold(borrower()));
            prop_assert_eq!(spent, -net(Account::Revenue(lender())) - net(Account::Fee));
            prop_assert!(accounts.is_balanced());
        }
        prop_assert!(accounts.open_holds().next().is_none());
    }

    #[test]
    fn parts_of_spans_that_meet_add_up_to_the_charge(
        wishes in wishes(),
        borders in prop::collection::btree_set(0_u64..2_000 * HOUR, 0..12),
        closed in 0_u64..200 * HOUR,
    ) {
        for mut charge in charges(&wishes) {
            charge.closed_until = Timestamp::new(MARCH + closed);
            let mut edges = vec![Timestamp::ZERO];
            edges.extend(borders.iter().map(|border| Timestamp::new(MARCH + border)));
            edges.push(Timestamp::MAX);
            let spans = edges.windows(2).flat_map(|edge| charge.parts(edge[0], edge[1]));
            let parts: Vec<_> = spans.collect();
            let sum = |of: fn(&super::Part) -> i64| parts.iter().map(of).sum::<i64>();
            prop_assert_eq!(sum(|part| part.cost.get()), charge.settlement.cost.get());
            prop_assert_eq!(sum(|part| part.fee.get()), charge.settlement.fee.get());
            let billed: u64 = parts.iter().map(|part| part.billed.get()).sum();
            prop_assert_eq!(billed, charge.settlement.billed.get());
            prop_assert!(!parts.is_empty());
            for part in &parts {
                prop_assert!(part.earned() >= MicroCredits::ZERO && part.fee >= MicroCredits::ZERO);
                prop_assert!(part.booked_at >= charge.closed_until);
            }
        }
    }
}
