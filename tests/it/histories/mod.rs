//! What callers of three brokers see while connections are cut, held and slowed and brokers are
//! stopped and killed: it must be as if everything had happened one after the other, each thing
//! between its call and its answer.
//!
//! [`clients`] call and write down what they see, [`faults`] breaks things, [`checker`] judges. That
//! the judge notices is shown by histories that are wrong, and by the product itself where it is
//! asked for reads that may be behind.

mod checker;
mod clients;
mod faults;

use std::time::Duration;

use crate::brokers::Brokers;

use checker::{Answer, Call, Operation, Verdict, check};
use clients::{Clients, Round};
use faults::Fault;

/// For how many seconds there are faults; more in the long runs.
const SECONDS: &str = "SUBLET_HISTORIES_SECONDS";
const SECONDS_DEFAULT: u64 = 24;
/// How long a fault lasts: longer than an election takes.
const BROKEN: Duration = Duration::from_millis(4_000);
/// And how long nothing is broken after it.
const HEALED: Duration = Duration::from_millis(1_500);

#[test]
fn what_clients_of_three_brokers_see_is_linearizable_under_faults() {
    let seconds = std::env::var(SECONDS).map_or(SECONDS_DEFAULT, |text| text.parse().unwrap());
    let mut brokers = Brokers::formed();
    let clients = Clients::new(&brokers);
    let begun = std::time::Instant::now();
    let (mut rounds, mut answered, mut unanswered) = (0, 0, 0);
    while rounds == 0 || begun.elapsed() < Duration::from_secs(seconds) {
        let round = Round::new(&clients, rounds);
        std::thread::scope(|scope| {
            round.start(scope);
            let fault = Fault::of(rounds);
            fault.strike(&mut brokers, BROKEN);
            std::thread::sleep(HEALED);
            round.stop();
        });
        brokers.agree(1);
        round.look_everywhere();
        for (thing, history) in round.histories() {
            let count = history.iter().filter(|operation| operation.ended.is_some()).count();
            answered += count;
            unanswered += history.len() - count;
            let verdict = check(&history);
            let fault = Fault::of(rounds);
            assert_eq!(verdict, Verdict::Linearizable, "{thing}, {fault:?}: {history:#?}");
        }
        rounds += 1;
    }
    println!("{rounds} faults: {answered} calls answered, {unanswered} changes unanswered");
    assert!(answered > 50, "there was hardly anything to judge");
    behind_is_noticed(&brokers, &clients);
}

/// A broker that is cut off and asked for what it knows shows what is no longer so.
fn behind_is_noticed(brokers: &Brokers, clients: &Clients) {
    let round = Round::new(clients, 1_000_000);
    let leader = brokers.leader(1, None);
    let behind = brokers.other_than(&[leader]);
    round.write_register(leader, 1);
    round.read_register(behind, "");
    brokers.cut_off(behind);
    round.write_register(leader, 2);
    let verdicts = || -> Vec<Verdict> {
        round.histories().iter().map(|(_, history)| check(history)).collect()
    };
    assert_eq!(verdicts(), [Verdict::Linearizable]);
    round.read_register(behind, "?stale=true");
    assert_eq!(verdicts(), [Verdict::NotLinearizable], "{:#?}", round.histories());
    brokers.heal();
}

#[test]
fn the_checker_tells_histories_that_could_be_from_those_that_could_not() {
    use Answer::{Done, Refused, Value};
    use Call::{Cancel, Create, Read, Submit, Write};
    let at = |began, ended, call, answer| Operation { call, answer, began, ended };
    let answered = |began, ended, call, answer| at(began, Some(ended), call, Some(answer));
    let lost = |began, call| at(began, None, call, None);
    let could = |history: &[Operation]| check(history) == Verdict::Linearizable;

    assert!(could(&[]));
    let stale = |read| [answered(0, 1, Write(1), Done), answered(2, 3, Read, Value(read))];
    assert!(could(&stale(1)));
    assert!(!could(&stale(0)), "a stale read");
    assert!(!could(&stale(7)), "a value that nobody wrote");
    // A read beside a write may see it or not; a later one must not go back.
    let beside = |first, second| {
        [
            answered(0, 9, Write(1), Done),
            answered(1, 2, Read, Value(first)),
            answered(3, 4, Read, Value(second)),
        ]
    };
    assert!(could(&beside(0, 0)) && could(&beside(0, 1)) && could(&beside(1, 1)));
    assert!(!could(&beside(1, 0)), "what was seen is gone");
    // Two writes at once: any order, but one.
    let two = |first, second| {
        [
            answered(0, 9, Write(1), Done),
            answered(0, 9, Write(2), Done),
            answered(10, 11, Read, Value(first)),
            answered(12, 13, Read, Value(second)),
        ]
    };
    assert!(could(&two(1, 1)) && could(&two(2, 2)));
    assert!(!could(&two(1, 2)) && !could(&two(0, 0)), "a lost write");
    // An unanswered write may happen at any later time, once, or never.
    let unknown = |first, second| {
        could(&[
            answered(0, 1, Write(1), Done),
            lost(2, Write(2)),
            answered(20, 21, Read, Value(first)),
            answered(22, 23, Read, Value(second)),
        ])
    };
    assert!(unknown(1, 1) && unknown(1, 2) && unknown(2, 2));
    assert!(!unknown(2, 1), "it cannot be taken back");
    assert!(!could(&[answered(3, 4, Read, Value(2)), lost(5, Write(2))]), "before it was asked");

    let twice = |second| [answered(0, 1, Create, Done), answered(2, 3, Create, second)];
    assert!(could(&twice(Refused)));
    assert!(!could(&twice(Done)), "made twice");
    assert!(!could(&[answered(0, 1, Create, Refused)]), "refused, and was not there");
    let cancelled = |read| {
        [
            answered(0, 1, Submit, Done),
            answered(2, 3, Cancel, Done),
            answered(4, 5, Submit, Done),
            answered(6, 7, Read, Value(read)),
        ]
    };
    assert!(could(&cancelled(2)));
    assert!(!could(&cancelled(1)), "asked again under its key it came back");
    assert!(!could(&[answered(0, 1, Submit, Done), answered(2, 3, Read, Value(0))]), "lost");
}
