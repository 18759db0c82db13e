//! Tests of statements, case D16 among them.

use sublet_protocol::api::StatementSide;
use sublet_protocol::leases::EndReason;
use sublet_protocol::money::{Currency, MicroCredits};
use sublet_protocol::units::Timestamp;

use super::{Party, Statement, StatementBuilder, safe};
use crate::charges::Charge;
use crate::charges::tests::{HOUR, MARCH, Wish, borrower, charges, lender};
use crate::periods::Period;

const DAY: u64 = 24 * HOUR;

fn statement(side: StatementSide, charges: &[Charge], period: Period) -> Statement {
    let tenant = match side {
        StatementSide::Borrower => borrower(),
        StatementSide::Lender => lender(),
    };
    let mut builder = StatementBuilder::new(Party { tenant, side }, period, Currency::EUR);
    charges.iter().for_each(|charge| builder.add(charge).unwrap());
    builder.finish().unwrap()
}

fn owed(charges: &[Charge], period: Period) -> Statement {
    statement(StatementSide::Borrower, charges, period)
}

fn cents(amount: MicroCredits) -> i64 {
    assert_eq!(amount.get() % 10_000, 0);
    amount.get() / 10_000
}

fn month(month: &str, zone: &str) -> Period {
    Period::month(month, zone).unwrap()
}

fn csv(statement: &Statement) -> String {
    let mut bytes = Vec::new();
    statement.write_csv(&mut bytes).unwrap();
    String::from_utf8(bytes).unwrap()
}

#[track_caller]
fn adds_up(statement: &Statement) {
    let lines: i64 = statement.lines().iter().map(|line| cents(line.amount)).sum();
    let days: i64 = statement.days().iter().map(|day| cents(day.amount)).sum();
    assert_eq!((lines, days), (cents(statement.total()), cents(statement.total())));
}

#[test]
fn lines_that_are_thirds_of_a_cent_add_up_to_the_total() {
    // Three leases of a third of an hour at a cent per hour each.
    let wishes = [1, 2, 3].map(|lease| Wish::new(lease, MARCH + HOUR, HOUR / 3, 10_000));
    let found = owed(&charges(&wishes), month("2026-03", "UTC"));
    assert_eq!(found.exact(), MicroCredits::new(9_999));
    let amounts: Vec<_> = found.lines().iter().map(|line| cents(line.amount)).collect();
    assert_eq!(amounts, [1, 0, 0], "the tie goes to the first lease");
    adds_up(&found);
}

#[test]
fn a_lease_that_crosses_a_month_is_split_at_the_border() {
    // 2026-03-31T23:00:00Z to 01:00:00Z at three sevenths of a GPU (429 thousandths).
    let begin = MARCH + 31 * DAY - HOUR;
    let wish = Wish { gpu: 429, ..Wish::new(2, begin, 2 * HOUR, 1_400_000) };
    let all = charges(&[wish]);
    let [march, april] = ["2026-03", "2026-04"].map(|name| owed(&all, month(name, "UTC")));
    assert_eq!((march.lines().len(), april.lines().len()), (1, 1));
    assert_eq!(march.lines()[0].end, Timestamp::new(MARCH + 31 * DAY));
    assert_eq!(april.lines()[0].begin, Timestamp::new(MARCH + 31 * DAY));
    let sum = march.exact().get() + april.exact().get();
    assert_eq!((march.exact().get(), sum), (600_600, all[0].settlement.cost.get()));
}

#[test]
fn days_of_23_and_25_hours_are_charged_by_what_clocks_ran() {
    // From midnight to midnight two days later, over the change of the clocks.
    let [spring, autumn] = [
        Period::between("2026-03-28", "2026-03-30", "Europe/Berlin").unwrap(),
        Period::between("2026-10-24", "2026-10-26", "Europe/Berlin").unwrap(),
    ];
    for (period, hours, total) in [(spring, [24, 23], 11_280), (autumn, [24, 25], 11_760)] {
        let span = period.until().since(period.from()).get();
        let wish = Wish::new(1, period.from().get(), span, 2_400_000);
        let found = owed(&charges(&[wish]), period);
        let days = found.days().iter().map(|day| day.billed.get() / HOUR);
        assert_eq!(days.collect::<Vec<_>>(), hours);
        assert_eq!(cents(found.total()), total);
        adds_up(&found);
    }
}

#[test]
fn months_of_29_and_31_days_are_whole() {
    for (name, days) in [("2028-02", 29_u64), ("2026-12", 31)] {
        let period = month(name, "UTC");
        let wish = Wish::new(1, period.from().get(), days * DAY, 1_000_000);
        let found = owed(&charges(&[wish]), period);
        let count = u64::try_from(found.days().len()).unwrap();
        assert_eq!((count, found.total().get()), (days, i64::try_from(days).unwrap() * 24_000_000));
    }
}

#[test]
fn leases_that_cost_nothing_are_shown_and_add_nothing() {
    let excused =
        Wish { reason: EndReason::Reclaimed, ..Wish::new(2, MARCH + HOUR, 60_000, 2_400_000) };
    let none = Wish::new(1, MARCH, 0, 2_400_000);
    let found = owed(&charges(&[none, excused]), month("2026-03", "UTC"));
    assert_eq!((found.lines().len(), found.total()), (2, MicroCredits::ZERO));
    assert_eq!(found.lines()[1].excused.get(), 60_000);
    adds_up(&found);
    let before = owed(&charges(&[none]), month("2026-02", "UTC"));
    assert!(before.lines().is_empty(), "an instant is in one period only");
}

#[test]
fn what_the_borrower_owes_is_what_the_lender_gets_and_the_fee() {
    let wishes = [(1, 2_400_000), (2, 1_990_000), (3, 850_000)].map(|(lease, price)| {
        let begin = MARCH + 31 * DAY - HOUR + u64::try_from(lease).unwrap();
        Wish::new(lease, begin, 7 * HOUR / 3, price)
    });
    let all = charges(&wishes);
    for name in ["2026-03", "2026-04"] {
        let borrower = owed(&all, month(name, "UTC"));
        let lender = statement(StatementSide::Lender, &all, month(name, "UTC"));
        assert_eq!(borrower.exact().get(), lender.exact().get() + lender.fee.get());
        assert!(lender.fee > MicroCredits::ZERO);
        adds_up(&borrower);
        adds_up(&lender);
    }
}

#[test]
fn a_closed_period_does_not_change_and_what_comes_late_is_a_correction() {
    let (april, hour) = (Timestamp::new(MARCH + 31 * DAY), 2_400_000);
    let early = Wish::new(1, MARCH, HOUR, hour);
    let late = Wish::new(2, MARCH + 31 * DAY - HOUR, 2 * HOUR, hour);
    let mut all = charges(&[early, late]);
    let before = owed(&all[..1], month("2026-03", "UTC"));
    // March was closed when the second lease was settled.
    all[1].closed_until = april;
    let march = owed(&all, month("2026-03", "UTC"));
    assert_eq!(march.sha256().unwrap(), before.sha256().unwrap());
    let found = owed(&all, month("2026-04", "UTC"));
    let shown: Vec<_> =
        found.lines().iter().map(|l| (l.is_correction, l.begin, cents(l.amount))).collect();
    assert_eq!(shown, [(true, Timestamp::new(MARCH + 31 * DAY - HOUR), 240), (false, april, 240)]);
    adds_up(&found);
}

#[test]
fn the_table_of_a_statement_is_stable() {
    let wish = Wish::new(7, MARCH + 28 * DAY - HOUR, 2 * HOUR, 2_400_000);
    let found = owed(&charges(&[wish]), month("2026-03", "Europe/Berlin"));
    let expected = "\
kind,lease,request,project,model,gpu_milli,begin_utc,end_utc,begin_local,end_local,billed_ms,\
excused_ms,price_per_gpu_hour,reason,exact,amount,currency
lease,l-00000000000000000000000007,r-00000000000000000000000007,vision,a100-80gb,1000,\
2026-03-28T23:00:00.000Z,2026-03-29T01:00:00.000Z,2026-03-29T00:00:00+01:00,\
2026-03-29T03:00:00+02:00,7200000,0,2.400000,completed,4.800000,4.80,EUR
day,,,,,,,,2026-03-29,,7200000,,,,4.800000,4.80,EUR
total,vision,borrower,,,,2026-02-28T23:00:00.000Z,2026-03-31T22:00:00.000Z,\
2026-03-01T00:00:00+01:00,2026-04-01T00:00:00+02:00,,,,,4.800000,4.80,EUR
";
    assert_eq!(csv(&found), expected.replace('\n', "\r\n"));
}

#[test]
fn no_cell_is_taken_for_a_formula() {
    for text in ["=1+1", "+1", "@SUM(A1)", "-2+3", "\tx", "-"] {
        assert_eq!(safe(text), format!("'{text}"));
    }
    for text in ["", "vision", "-4.80", "4.80", "Zürich"] {
        assert_eq!(safe(text), text);
    }
}

#[test]
fn a_hundred_thousand_lines_add_up() {
    let one = charges(&[Wish::new(1, MARCH, HOUR / 7, 1_990_000)]).remove(0);
    let party = Party { tenant: borrower(), side: StatementSide::Borrower };
    let mut builder = StatementBuilder::new(party, month("2026-03", "UTC"), Currency::EUR);
    for _ in 0..100_000 {
        builder.add(&one).unwrap();
    }
    assert_eq!(builder.len(), 100_000);
    let found = builder.finish().unwrap();
    assert_eq!(found.exact().get(), one.settlement.cost.get() * 100_000);
    adds_up(&found);
}
