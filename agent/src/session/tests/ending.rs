//! How guests end: told, by themselves, by time, by the owner, by a restart.

use super::*;

type Seen = fn(DeviceId) -> Observation;

fn signal(device: u128, counter: u64) -> Effect {
    Effect::Signal(key(device, counter), StopSignal::Terminate)
}

fn deadline(device: u128, counter: u64, at: u64) -> Effect {
    Effect::SetDeadline(key(device, counter), Millis::new(at))
}

#[test]
fn a_stop_signals_at_once_and_kills_at_eighty_percent_of_the_grace() {
    let mut bench = Bench::running(7);
    let effects = bench.hear(stop(1, 7, 100_000));
    let kill_at = bench.now + 80_000;
    assert_eq!(effects, [signal(1, 7), deadline(1, 7, kill_at)]);
    let effects = told_at(bench.live(100_000));
    assert_eq!(effects, [(kill_at, Effect::Kill(key(1, 7)))]);
}

#[test]
fn a_long_grace_does_not_outlast_the_leases_life() {
    let mut bench = Bench::running(7);
    let nonce = bench.now;
    let effects = bench.pass(TTL - GRACE - 1).hear(stop(1, 7, 10 * TTL));
    assert_eq!(effects, [signal(1, 7), deadline(1, 7, nonce + TTL - GRACE / 5)]);
}

#[test]
fn a_second_stop_can_hasten_the_end_and_never_delays_it() {
    let mut bench = Bench::running(7);
    bench.hear(stop(1, 7, 100_000));
    assert_eq!(bench.hear(stop(1, 7, 200_000)), []);
    assert_eq!(bench.hear(stop(1, 7, 50_000)), [deadline(1, 7, bench.now + 40_000)]);
    assert_eq!(bench.hear(renewed(1, 7, bench.now, DURATION)), [], "nor does a renewal");
}

#[test]
fn stopped_is_said_only_when_the_slice_is_clean_after_it_is_kept() {
    let mut bench = Bench::running(7);
    bench.pass(2_000).hear(stop(1, 7, 100_000));
    assert_eq!(bench.pass(1_000).report(Report::Exited(key(1, 7), Exit::Code(0))), []);
    let effects = bench.pass(9_000).report(Report::Clean(key(1, 7)));
    let [Effect::Persist(state), told, Effect::Send(Up::Offer(offer))] = effects.as_slice() else {
        panic!("{effects:?}")
    };
    assert_eq!(*told, stopped(1, 7, 3_000, GuestOutcome::Stopped), "cleaning is not billed");
    let kept = state.usage_of(&slice(1), token(7)).unwrap();
    assert_eq!((kept.used, kept.outcome), (Millis::new(3_000), Some(GuestOutcome::Stopped)));
    assert_eq!(offer.generation, 2);
}

#[test]
fn what_cannot_be_proved_clean_is_neither_reported_as_stopped_nor_offered() {
    let mut bench = Bench::running(7);
    let mut effects = bench.report(Report::Exited(key(1, 7), Exit::Code(0)));
    effects.extend(bench.report(Report::NotClean(key(1, 7))));
    effects.extend(bench.live(3 * TTL).into_iter().map(|(_, effect)| effect));
    effects.extend(bench.see(Observation::Idle(DeviceId::new(1))));
    let on_it = |effect: &Effect| match effect {
        Effect::Send(Up::Stopped { .. }) => true,
        Effect::Send(Up::Offer(offer)) => offer.slice == slice(1),
        _ => false,
    };
    assert!(!effects.iter().any(on_it), "{effects:?}");
    assert_eq!(told(bench.hear(Down::Grant(grant(1, 8)))), [nack(1, 8, NackReason::NotEmpty)]);
}

#[test]
fn a_guest_that_ends_by_itself_is_reported_with_its_code() {
    let rows = [(Exit::Code(0), 0), (Exit::Code(3), 3), (Exit::Signal(11), 139)];
    for (exit, code) in rows {
        let mut bench = Bench::running(7);
        let effects = told(bench.pass(60_000).end_guest(1, 7, exit));
        assert_eq!(effects[0], stopped(1, 7, 60_000, GuestOutcome::Exited { code }));
    }
}

#[test]
fn a_stop_for_an_unknown_token_keeps_a_late_grant_out() {
    let mut bench = Bench::idle();
    let effects = bench.hear(stop(1, 7, GRACE));
    let [Effect::Persist(state), told_stopped] = effects.as_slice() else { panic!("{effects:?}") };
    assert_eq!(state.newest_on_slice(&slice(1)), token(7));
    assert_eq!(*told_stopped, stopped(1, 7, 0, GuestOutcome::NeverStarted));
    let late = told(bench.hear(Down::Grant(grant(1, 7))));
    assert_eq!(late, [nack(1, 7, NackReason::StaleToken)]);
}

#[test]
fn a_stop_for_a_confirmed_member_ends_it_without_a_guest() {
    let mut bench = Bench::idle();
    bench.hear(Down::Grant(grant(1, 7)));
    let effects = told(bench.hear(stop(1, 7, GRACE)));
    assert_eq!(effects[0], stopped(1, 7, 0, GuestOutcome::NeverStarted));
    assert_eq!(bench.hear(activated(1, 7, bench.now)), [effects[0].clone()], "nothing starts");
}

#[test]
fn a_stop_that_comes_again_is_answered_with_the_same_use_until_the_books_are_closed() {
    let mut bench = Bench::running(7);
    bench.pass(500).end_guest(1, 7, Exit::Code(0));
    let answer = stopped(1, 7, 500, GuestOutcome::Exited { code: 0 });
    assert_eq!(bench.pass(9_000).hear(stop(1, 7, GRACE)), [answer]);
    let effects = bench.hear(Down::Ended { slice: slice(1), token: token(7) });
    assert!(matches!(&effects[..], [Effect::Persist(state)] if state.usage.is_empty()));
}

#[test]
fn a_guest_whose_lease_the_broker_has_closed_is_ended() {
    let mut bench = Bench::running(7);
    let effects = bench.hear(Down::Ended { slice: slice(1), token: token(7) });
    assert_eq!(effects[0], signal(1, 7));
}

#[test]
fn without_an_answer_the_agent_stops_its_guest_by_itself_before_its_life_ends() {
    let mut bench = Bench::running(7);
    let nonce = bench.now;
    let effects = told_at(bench.live(TTL));
    let (stop_at, kill_at) = (nonce + TTL - GRACE, nonce + TTL - GRACE / 5);
    assert_eq!(
        effects[..3],
        [
            (stop_at, signal(1, 7)),
            (stop_at, deadline(1, 7, kill_at)),
            (kill_at, Effect::Kill(key(1, 7))),
        ]
    );
    assert!(kill_at < nonce + TTL);
}

#[test]
fn with_answers_it_lives_on_and_each_answer_moves_the_dead_mans_switch() {
    let mut bench = Bench::running(7);
    for _ in 0..20 {
        let effects = bench.live(RENEW);
        let nonce = effects.iter().find_map(|(at, effect)| match effect {
            Effect::Send(Up::Renew { nonce, .. }) if nonce.get() == *at => Some(*nonce),
            _ => None,
        });
        let nonce = nonce.expect("a renewal every interval").get();
        // The answer is underway for a while; life counts from the sending all the same (LR1).
        let effects = bench.pass(7_000).hear(renewed(1, 7, nonce, DURATION));
        let expected = nonce + TTL - GRACE + GRACE / 5 * 4;
        assert_eq!(effects, [deadline(1, 7, expected)]);
    }
}

#[test]
fn a_late_answer_to_an_older_renewal_does_not_shorten_life() {
    let mut bench = Bench::running(7);
    bench.live(2 * RENEW);
    let newest = bench.now;
    bench.hear(renewed(1, 7, newest, DURATION));
    assert_eq!(bench.hear(renewed(1, 7, newest - RENEW, DURATION)), []);
}

#[test]
fn an_answer_to_a_renewal_that_was_never_sent_gives_no_life() {
    let mut bench = Bench::running(7);
    assert_eq!(bench.hear(renewed(1, 7, bench.now + 100_000, DURATION)), []);
}

#[test]
fn a_lease_that_the_answer_leaves_out_is_not_renewed() {
    let mut bench = Bench::running(7);
    let nonce = bench.now;
    for _ in 0..8 {
        bench.live(RENEW);
        bench.hear(Down::Renewed { nonce: bench.now(), alive: vec![] });
    }
    let effects = told_at(bench.live(2 * RENEW));
    assert_eq!(effects[0], (nonce + TTL - GRACE, signal(1, 7)));
}

#[test]
fn at_the_bought_end_the_guest_is_told_to_go() {
    let mut bench = Bench::running(7);
    let ends_at = bench.now + 100_000;
    bench.live(RENEW);
    bench.hear(renewed(1, 7, bench.now, ends_at - bench.now));
    let effects = told_at(bench.live(100_000));
    assert_eq!(effects[0], (ends_at, signal(1, 7)));
    assert_eq!(effects[1], (ends_at, deadline(1, 7, ends_at + GRACE / 5 * 4)));
}

#[test]
fn a_bought_end_only_comes_nearer() {
    let mut bench = Bench::running(7);
    let sent = bench.now;
    bench.hear(renewed(1, 7, sent, 100_000));
    let ends_at = bench.now + 100_000;
    // The same answer, delayed by 50 s, would mean a later end.
    bench.pass(50_000).hear(renewed(1, 7, sent, 100_000));
    let effects = told_at(bench.live(100_000));
    assert_eq!(effects[0], (ends_at, signal(1, 7)));
}

#[test]
fn each_way_of_losing_a_device_ends_its_guest_first_and_is_told_after() {
    let rows: [(Seen, ReclaimCause); 3] = [
        (Observation::OwnerArrived, ReclaimCause::OwnerArrived),
        (Observation::ForeignUse, ReclaimCause::ForeignUse),
        (Observation::DeviceLost, ReclaimCause::DeviceFault),
    ];
    for (seen, cause) in rows {
        let mut bench = Bench::running(7);
        let effects = bench.see(seen(DeviceId::new(1)));
        let kill_at = bench.now + GRACE / 5 * 4;
        let expected = [signal(1, 7), deadline(1, 7, kill_at), reclaim(1, 7, cause)];
        assert_eq!(effects, expected);
        assert!(kill_at < bench.now + GRACE, "gone within the owner's grace");
        assert_eq!(bench.see(seen(DeviceId::new(1))), [], "told once");
        let effects = told(bench.pass(5_000).end_guest(1, 7, Exit::Code(0)));
        assert_eq!(effects, [stopped(1, 7, 5_000, GuestOutcome::Stopped)], "and not offered");
    }
}

#[test]
fn a_device_that_is_merely_not_idle_keeps_its_guest() {
    let mut bench = Bench::running(7);
    assert_eq!(bench.see(Observation::NotIdle(DeviceId::new(1))), []);
}

#[test]
fn an_owner_who_comes_before_the_start_keeps_the_guest_out() {
    let mut bench = Bench::idle();
    bench.hear(Down::Grant(grant(1, 7)));
    let effects = told(bench.see(Observation::OwnerArrived(DeviceId::new(1))));
    let over = stopped(1, 7, 0, GuestOutcome::NeverStarted);
    assert_eq!(effects, [reclaim(1, 7, ReclaimCause::OwnerArrived), over.clone()]);
    assert_eq!(bench.hear(activated(1, 7, bench.now)), [over]);
}

#[test]
fn an_owner_on_one_device_ends_a_gangs_members_on_all() {
    let mut bench = Bench::idle();
    bench.hear(Down::Grant(grant(1, 7)));
    bench.hear(Down::Grant(grant(2, 7)));
    bench.activate(1, 7);
    bench.activate(2, 7);
    let effects = bench.see(Observation::OwnerArrived(DeviceId::new(2)));
    assert!(effects.contains(&signal(1, 7)) && effects.contains(&signal(2, 7)));
    let told: Vec<_> =
        effects.iter().filter(|e| matches!(e, Effect::Send(Up::Reclaim { .. }))).collect();
    assert_eq!(told, [&reclaim(2, 7, ReclaimCause::OwnerArrived)]);
}

#[test]
fn a_guest_killed_by_its_guard_at_the_deadline_was_stopped() {
    let mut bench = Bench::running(7);
    // The agent slept through everything; its guard did not.
    let effects = told(bench.pass(TTL).end_guest(1, 7, Exit::Signal(9)));
    assert_eq!(effects[0], stopped(1, 7, TTL, GuestOutcome::Stopped));
}

#[test]
fn a_restart_settles_what_the_earlier_start_ran_before_it_says_hello() {
    let mut bench = Bench::running(7);
    let mut kept = DurableState::default();
    for (_, effect) in bench.live(2 * RENEW) {
        if let Effect::Persist(state) = effect {
            kept = state;
        }
    }
    kept.boot = BOOT.next();
    let (mut bench, effects) = Bench::starting(kept);
    let told = told(effects);
    let used = 2 * RENEW;
    assert_eq!(told, [stopped(1, 7, used, GuestOutcome::Stopped), Effect::Send(Up::Hello)]);
    let Effect::Send(asked) = &told[0] else { panic!() };
    assert_eq!(bench.refused(asked), [], "only the broker's books settle it (LB3)");
    let GuestKey { slice, token } = key(1, 7);
    let effects = bench.hear(Down::Ended { slice, token });
    assert!(matches!(&effects[..], [Effect::Persist(state)] if state.usage.is_empty()));
    bench.see(Observation::Idle(DeviceId::new(1)));
    let terms = GrantTerms { boot: BOOT.next(), ..grant(1, 7) };
    let effects = bench.hear(Down::Grant(terms));
    assert_eq!(effects, [nack(1, 7, NackReason::StaleToken)], "tokens outlive a restart");
}

#[test]
fn use_that_nobody_settles_is_bounded() {
    let mut bench = Bench::idle();
    for counter in 1..1_000 {
        bench.run(1, counter);
        bench.pass(10).end_guest(1, counter, Exit::Code(0));
    }
    let last = bench.hear(stop(1, 999, GRACE));
    assert_eq!(last, [stopped(1, 999, 10, GuestOutcome::Exited { code: 0 })]);
    assert_eq!(bench.session.durable.usage.len(), USAGE_MAX);
}
