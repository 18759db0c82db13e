//! Requests that wait for better hours: when they start, what they are told, and what they hold.

use sublet_protocol::calendar::{Calendar, Day, OffPeak, Zone};
use sublet_protocol::commands::{Command, GroupOutcome, GuestOutcome, PlanGroup};
use sublet_protocol::deferral::{Deferral, Window};
use sublet_protocol::events::Event;
use sublet_protocol::ids::{Boot, RequestId};
use sublet_protocol::offers::{IdleFor, OfferTerms, RescindReason};
use sublet_protocol::refusals::Rejection;
use sublet_protocol::requests::{Class, RequestSpec, SpecError, WaitReason};
use sublet_protocol::units::{Seconds, Timestamp};

use crate::matching::{Change, Explanation, WhatIfOutcome, explain, what_if};
use crate::state::StateView;
use crate::testing::{HOUR, World, agent, gpu, offer, operator, spec, tenant, user};

fn view(world: &World) -> StateView<'_> {
    StateView { state: &world.state, now: world.now }
}

fn told(world: &World, request: RequestId) -> Explanation {
    explain(view(world), request).expect("it waits")
}

fn is_waiting(world: &World, request: RequestId) -> bool {
    world.state.requests()[&request].is_waiting()
}

/// Windows in hours from now, and the hour from which on it may start at any time.
fn deferred(now: Timestamp, hours: &[(u64, u64)], start_by: u64) -> Box<Deferral> {
    let at = |hour: u64| now.after(Seconds::new(hour * 3_600));
    let windows = hours.iter().map(|(from, until)| Window { from: at(*from), until: at(*until) });
    Box::new(Deferral {
        not_before: None,
        deadline: None,
        windows: windows.collect(),
        start_by: at(start_by),
    })
}

/// What an agent says of a GPU that stays idle all day.
fn idle(number: u64, generation: u64) -> OfferTerms {
    let day = Seconds::new(86_400);
    let idle_for = IdleFor { p10: day, p50: day, p90: day };
    OfferTerms { idle_for, ttl: day, ..offer(gpu(number), generation, 1) }
}

fn give(world: &mut World, number: u64, generation: u64) {
    let offer = idle(number, generation);
    world.must(agent(gpu(number)), Command::OfferCapacity { offer });
}

/// Time passes, and agents offer anew what is still idle: offers end when nobody repeats them.
fn pass(world: &mut World, span: Seconds) {
    world.later(span);
    let open: Vec<OfferTerms> = world.state.offers().values().map(|offer| *offer.terms()).collect();
    for terms in open {
        let offer = OfferTerms { generation: terms.generation + 1, ..terms };
        world.must(agent(terms.slice), Command::OfferCapacity { offer });
    }
}

/// One node with eight GPUs that are idle all day.
fn world() -> World {
    let mut world = World::new();
    world.register(0, 1);
    for number in 0..8 {
        give(&mut world, number, 1);
    }
    world
}

#[test]
fn a_request_starts_in_its_window_and_not_before() {
    let mut world = world();
    let deferral = Some(deferred(world.now, &[(1, 2)], 4));
    let wanted = RequestSpec { deferral, ..spec(Class::Batch, 1) };
    let opens = world.now.after(HOUR);
    match what_if(view(&world), tenant("acme"), &wanted).outcome {
        WhatIfOutcome::Wait(why) => assert_eq!(why.reason, WaitReason::Deferred),
        other => panic!("{other:?}"),
    }
    let request = world.submit("acme", 1, wanted);
    assert_eq!(told(&world, request).reason, WaitReason::Deferred, "it will be promised a start");
    assert_eq!(world.plan(), vec![GroupOutcome::Promised]);
    let why = told(&world, request);
    assert_eq!((why.reason, why.deferred_until), (WaitReason::Deferred, Some(opens)));
    assert_eq!(why.promised, Some(opens));
    let eta = why.eta.unwrap();
    assert_eq!((eta.earliest, eta.latest), (opens, opens));
    assert_eq!(why.change, Some(Change::AtAnyTime), "it would start now but for its own wish");
    pass(&mut world, Seconds::new(3_599));
    let grant = PlanGroup::Grant { request, members: vec![world.member(gpu(0))] };
    let refused = GroupOutcome::Refused { rejection: Rejection::RequestPaused };
    assert_eq!(world.commit(grant), refused, "the rules judge it, too");
    pass(&mut world, Seconds::new(1));
    assert!(matches!(world.plan()[..], [GroupOutcome::Granted { .. }]));
}

#[test]
fn a_window_that_passes_without_room_closes_and_in_the_end_it_starts_at_any_time() {
    let mut world = world();
    let leases: Vec<_> = (0..8)
        .map(|number| {
            // They are over before its last chance.
            let long = RequestSpec { duration: Seconds::new(11 * 1_800), ..spec(Class::Batch, 1) };
            let busy = world.submit("owner", 20 + u128::from(number), long);
            world.activate(busy, &[number])
        })
        .collect();
    let deferral = Some(deferred(world.now, &[(1, 2), (4, 5)], 6));
    let [first, second, last] = [1, 2, 3].map(|number| {
        let wanted = RequestSpec { deferral: deferral.clone(), ..spec(Class::Batch, 1) };
        world.submit("acme", 10 + number, wanted)
    });
    let begin = world.now;
    let at = |hours: u64| begin.after(Seconds::new(hours * 3_600));
    world.plan();
    assert_eq!(told(&world, first).promised, Some(at(6)), "no window has room");
    pass(&mut world, HOUR);
    world.plan();
    assert!(is_waiting(&world, first), "its window is open and there is no room");
    assert_ne!(told(&world, first).reason, WaitReason::Deferred);
    pass(&mut world, HOUR);
    // One GPU comes free just when the window has closed.
    world.stop(leases[0], gpu(0), HOUR, GuestOutcome::Exited { code: 0 });
    give(&mut world, 0, 9);
    world.plan();
    assert!(is_waiting(&world, first), "the window is over");
    assert_eq!(told(&world, first).deferred_until, Some(at(4)));
    pass(&mut world, Seconds::new(2 * 3_600));
    world.plan();
    assert!(!is_waiting(&world, first) && is_waiting(&world, second), "the next window");
    pass(&mut world, HOUR);
    world.stop(leases[1], gpu(1), HOUR, GuestOutcome::Exited { code: 0 });
    give(&mut world, 1, 9);
    world.plan();
    assert!(is_waiting(&world, second));
    pass(&mut world, HOUR);
    world.plan();
    assert!(!is_waiting(&world, second) && is_waiting(&world, last), "from the sixth hour on");
    assert_eq!(told(&world, last).deferred_until, None);
}

#[test]
fn what_is_promised_to_it_is_in_one_of_its_windows() {
    let mut world = world();
    let busy = world.submit("owner", 1, spec(Class::Batch, 8));
    world.activate(busy, &[0, 1, 2, 3, 4, 5, 6, 7]);
    // The leases end with the first hour, when the first window has closed.
    let begin = world.now;
    let minutes = |count: u64| begin.after(Seconds::new(60 * count));
    let windows = [(0, 30), (90, 120)]
        .map(|(from, until)| Window { from: minutes(from), until: minutes(until) });
    let deferral = Deferral { windows: windows.into(), ..*deferred(begin, &[], 4) };
    let wanted = RequestSpec { deferral: Some(Box::new(deferral)), ..spec(Class::Batch, 1) };
    let request = world.submit("acme", 2, wanted);
    let plain = world.submit("acme", 3, spec(Class::Batch, 1));
    world.plan();
    assert_eq!(told(&world, request).promised, Some(minutes(90)));
    assert_eq!(told(&world, plain).promised, Some(minutes(60)));
    // It keeps the promise while its window is closed.
    pass(&mut world, Seconds::new(45 * 60));
    world.plan();
    let why = told(&world, request);
    assert_eq!((why.reason, why.promised), (WaitReason::Deferred, Some(minutes(90))));
    let withdrawn =
        world.journal.iter().any(|record| matches!(record.event, Event::PromiseWithdrawn { .. }));
    assert!(!withdrawn);
}

#[test]
fn what_is_freed_for_it_it_may_have_when_its_window_has_closed() {
    let mut world = world();
    let low = world.submit(
        "owner",
        1,
        RequestSpec { duration: Seconds::new(9 * 3_600), ..spec(Class::Experiment, 8) },
    );
    let lease = world.activate(low, &[0, 1, 2, 3, 4, 5, 6, 7]);
    let deferral = Some(deferred(world.now, &[(1, 2)], 9));
    let high = world.submit("acme", 2, RequestSpec { deferral, ..spec(Class::Latency, 8) });
    pass(&mut world, Seconds::new(7_190));
    assert_eq!(world.plan(), vec![GroupOutcome::Pledged]);
    pass(&mut world, Seconds::new(20));
    for number in 0..8 {
        world.stop(lease, gpu(number), HOUR, GuestOutcome::Stopped);
    }
    for number in 0..8 {
        give(&mut world, number, 2);
    }
    world.plan();
    assert!(!is_waiting(&world, high), "nothing was ended for nothing");
}

#[test]
fn who_cannot_be_promised_a_start_in_time_is_like_any_other_at_once() {
    let mut world = world();
    let leases: Vec<_> = (0..8)
        .map(|number| {
            let long = RequestSpec { duration: Seconds::new(8 * 3_600), ..spec(Class::Batch, 1) };
            let busy = world.submit("owner", 20 + u128::from(number), long);
            world.activate(busy, &[number])
        })
        .collect();
    let begin = world.now;
    // Its last chance is long before the leases end.
    let deferral = Some(deferred(begin, &[(1, 2)], 4));
    let request = world.submit("acme", 1, RequestSpec { deferral, ..spec(Class::Batch, 1) });
    world.plan();
    let why = told(&world, request);
    assert_eq!(why.promised, Some(begin.after(Seconds::new(8 * 3_600))), "later than it asked");
    assert_eq!((why.reason, why.deferred_until), (WaitReason::NoCapacity, None));
    // The first room that there is is its, whatever the hour.
    world.later(Seconds::new(600));
    world.stop(leases[0], gpu(0), Seconds::new(600), GuestOutcome::Exited { code: 0 });
    give(&mut world, 0, 9);
    world.plan();
    assert!(!is_waiting(&world, request));
}

#[test]
fn who_relies_on_what_is_sure_does_not_wait_for_what_is_not() {
    // The GPUs stay idle for an hour for sure, and likely for two: then its hours begin.
    for (class, waits) in [(Class::Latency, false), (Class::Batch, true)] {
        let mut world = World::with_nodes(1);
        let deferral = Some(deferred(world.now, &[(1, 2)], 4));
        let wanted = RequestSpec { deferral, ..spec(class, 1) };
        match what_if(view(&world), tenant("acme"), &wanted).outcome {
            WhatIfOutcome::Wait(why) => assert!(waits && why.reason == WaitReason::Deferred),
            WhatIfOutcome::Grant { .. } => assert!(!waits),
            other => panic!("{other:?}"),
        }
        let request = world.submit("acme", 1, wanted);
        world.plan();
        assert_eq!(is_waiting(&world, request), waits, "{class:?}");
    }
}

#[test]
fn who_rests_keeps_its_place_from_those_who_would_still_be_there() {
    let mut world = world();
    let deferral = Some(deferred(world.now, &[(1, 2)], 4));
    let first = world.submit("acme", 1, RequestSpec { deferral, ..spec(Class::Batch, 8) });
    assert_eq!(world.plan(), vec![GroupOutcome::Promised]);
    let [short, long] = [(2, 3_300), (3, 3_301)].map(|(number, seconds)| {
        let duration = Seconds::new(seconds);
        world.submit("owner", number, RequestSpec { duration, ..spec(Class::Batch, 1) })
    });
    world.plan();
    assert!(!is_waiting(&world, short), "it has given back by then");
    assert!(is_waiting(&world, long) && is_waiting(&world, first));
}

#[test]
fn who_loses_what_it_rests_for_is_like_any_other_at_once() {
    let mut world = world();
    let deferral = Some(deferred(world.now, &[(1, 2)], 4));
    let request = world.submit("acme", 1, RequestSpec { deferral, ..spec(Class::Batch, 8) });
    world.plan();
    let slice = gpu(0);
    let (reason, boot) = (RescindReason::Owner, Boot::new(1));
    world.must(agent(slice), Command::RescindOffer { slice, generation: 1, boot, reason });
    world.plan();
    let why = told(&world, request);
    assert_eq!((why.promised, why.deferred_until), (None, None), "eight are not known any more");
    give(&mut world, 0, 2);
    world.plan();
    assert_eq!(told(&world, request).reason, WaitReason::Deferred, "there is a start again");
}

#[test]
fn windows_that_are_out_of_order_are_refused() {
    let mut world = world();
    let submit = |hours: &[(u64, u64)], world: &World| {
        let deferral = Some(deferred(world.now, hours, 9));
        let spec = RequestSpec { deferral, ..spec(Class::Batch, 1) };
        Command::SubmitRequest { request: RequestId::new(1), tenant: tenant("acme"), spec }
    };
    let (bad, good) = (submit(&[(3, 4), (1, 2)], &world), submit(&[(1, 2), (3, 4)], &world));
    world.refuse(user("acme"), bad, Rejection::SpecInvalid(SpecError::Deferral));
    world.must(user("acme"), good);
}

#[test]
fn an_operator_sets_off_peak_hours_and_nobody_else() {
    let mut world = World::new();
    let zone = Zone::new("Europe/Berlin").unwrap();
    let (from, until) = ("22:00".parse().unwrap(), "06:00".parse().unwrap());
    let hours = |days: &[Day]| OffPeak { days: days.iter().copied().collect(), from, until };
    let set = |name: &str, hours: OffPeak| {
        let calendar = Some(Calendar { zone: zone.clone(), off_peak: vec![hours] });
        Command::SetCalendar { tenant: tenant(name), calendar }
    };
    let nights = set("acme", hours(&Day::ALL));
    world.refuse(user("acme"), nights.clone(), Rejection::NotAllowed);
    world.refuse(operator(), set("nobody", hours(&Day::ALL)), Rejection::TenantMissing);
    world.refuse(operator(), set("acme", hours(&[])), Rejection::CalendarInvalid);
    assert_eq!(world.must(operator(), nights.clone()).len(), 1);
    assert_eq!(world.must(operator(), nights).len(), 0, "what it is already needs no record");
    assert!(world.state.tenants()[&tenant("acme")].calendar().is_some());
    let none = Command::SetCalendar { tenant: tenant("acme"), calendar: None };
    world.must(operator(), none);
    assert_eq!(world.state.tenants()[&tenant("acme")].calendar(), None);
}
