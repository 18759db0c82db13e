//! Case D03: the bought end comes while the broker is away.

use sublet_protocol::events::Event;
use sublet_protocol::leases::EndReason;
use sublet_protocol::policy::Policy;
use sublet_protocol::units::{Millis, Seconds, Timestamp};

use crate::bench::{Cell, Node, spec, talk};
use crate::cases::{cases, instant, number, text};
use crate::{both_later, ends, leased, only_guest};

/// Case D03: the bought end comes while the broker is away and the guest ignores its signal.
#[test]
fn a_guest_that_outlives_its_bought_time_is_killed_without_the_broker_and_not_billed_for_it() {
    let (mut cell, mut one) = leased(1, 1, 3_600);
    for _ in 0..118 {
        both_later(&mut cell, &mut one, 30);
        talk(&mut cell, &mut [&mut one]);
    }
    // The link is down from here: 60 s before the end.
    let key = only_guest(&one);
    both_later(&mut cell, &mut one, 60);
    assert_eq!(one.signalled.last().map(|(_, key)| *key), Some(key), "told to stop at the end");
    assert!(!one.guests.is_empty(), "it ignores the signal");
    both_later(&mut cell, &mut one, 30);
    assert!(one.guests.is_empty(), "killed within its grace");
    both_later(&mut cell, &mut one, 1_170);
    assert!(matches!(cell.state.leases().len(), 1), "not free before the agent or W says so");
    talk(&mut cell, &mut [&mut one]);
    assert_eq!(ends(&cell), [(EndReason::Expired, Seconds::new(3_600).as_millis())]);
}

/// When the tenant was told of the end to come.
fn announced_at(cell: &Cell) -> Option<Timestamp> {
    cell.journal.iter().find_map(|record| match &record.event {
        Event::LeaseEndAnnounced { cause: EndReason::Expired, .. } => Some(record.time),
        _other => None,
    })
}

/// Case D03 as a sequence of events.
///
/// The files tell of a guest that is killed after its whole grace and gone two seconds later. Ours is
/// killed at four fifths of it (LE2), so what the files say of its end holds as an upper bound: an
/// overrun of at most so long, a GPU free at the agent at the latest then. What is billed holds exactly.
#[test]
fn the_sequence_of_an_overrun_is_killed_sooner_billed_exactly_and_not_extended() {
    for case in cases("D03", "sequence.jsonl") {
        let event = |name: &str| {
            let found = case.events.iter().find(|event| text(event, "ev") == name);
            found.unwrap_or_else(|| panic!("{name} in {}", case.from))
        };
        let (begin, active) = (instant(event("lease_active"), "t"), event("lease_active"));
        let after = |name: &str| instant(event(name), "t").since(begin).as_seconds_floor().get();
        let bought = instant(active, "ends").since(begin).as_seconds_floor();
        let grace = Seconds::new(number(active, "grace_s"));
        let policy = Policy { owner_grace_opportunistic: grace, ..Policy::default() };
        let (mut cell, mut one) = (Cell::with_policy(policy), Node::new(0, 1));
        cell.now = begin;
        talk(&mut cell, &mut [&mut one]);
        one.see_idle();
        cell.submit("t-a", 1, spec(1, bought.get()));
        talk(&mut cell, &mut [&mut one]);
        let (key, began) = (only_guest(&one), one.clock);
        let mut passed = 0;
        while passed < after("link_down") {
            let step = (after("link_down") - passed).min(30);
            both_later(&mut cell, &mut one, step);
            talk(&mut cell, &mut [&mut one]);
            passed += step;
        }
        let is_told = announced_at(&cell).is_some_and(|at| at < begin.after(bought));
        assert_eq!(is_told, case.facts["warning_to_tenant_before_end"].as_bool().unwrap());
        // The broker is away; the agent goes on by itself, and its guest ignores the signal.
        one.later(after("lease_end_local") - passed);
        assert_eq!(one.signalled.last().map(|(_, guest)| *guest), Some(key), "told at the end");
        assert!(!one.guests.is_empty());
        let killed = after("lease_end_local") + grace.get() * 4 / 5;
        one.later(killed - 1 - after("lease_end_local"));
        assert!(!one.guests.is_empty(), "not before four fifths of its grace");
        one.later(1);
        assert!(one.guests.is_empty(), "the files have it until {} s", after("pid_gone"));
        let free_by = instant(&case.facts, "gpu_free_at_agent").since(begin);
        assert!(one.clock.saturating_sub(began) <= free_by);
        // The broker comes back with what it knew: the lease counts as active, but not for longer.
        one.later(after("link_up") - killed);
        assert!(cell.state.offers().is_empty(), "not offered before the first report");
        cell.now = begin.after(Seconds::new(after("link_up")));
        cell.restart();
        talk(&mut cell, &mut [&mut one]);
        let billed = Seconds::new(number(&case.facts, "billed_seconds")).as_millis();
        assert_eq!(ends(&cell), [(EndReason::Expired, billed)]);
        let used = cell.journal.iter().find_map(|record| match &record.event {
            Event::MemberStopped { used, .. } => Some(*used),
            _other => None,
        });
        let overrun = used.unwrap().saturating_sub(billed);
        let most = Seconds::new(number(&case.facts, "overrun_seconds")).as_millis();
        assert!(overrun > Millis::ZERO && overrun <= most, "overrun of {overrun} ms is on record");
        assert_eq!(cell.state.offers().len(), 1, "offered again after the report");
    }
}

/// The other half of D03: only the link is down. The broker frees the lease at W and charges what it
/// knew; the agent's report comes too late to be billed, and is never more than was bought.
#[test]
fn a_lease_that_ended_while_its_agent_was_cut_off_is_charged_for_what_was_known() {
    let (mut cell, mut one) = leased(1, 1, 3_600);
    for _ in 0..118 {
        both_later(&mut cell, &mut one, 30);
        talk(&mut cell, &mut [&mut one]);
    }
    for _ in 0..60 {
        both_later(&mut cell, &mut one, 20);
        cell.tick();
    }
    let [(EndReason::Expired, billed)] = ends(&cell)[..] else { panic!("{:?}", ends(&cell)) };
    assert!(billed >= Seconds::new(3_420).as_millis(), "{billed} ms, two commits before the end");
    assert!(billed <= Seconds::new(3_540).as_millis(), "{billed} ms, of the last renewal at most");
    talk(&mut cell, &mut [&mut one]);
    assert_eq!(ends(&cell).len(), 1, "its report changes nothing");
    assert!(one.store.stored().usage.is_empty(), "and it may forget it");
}
