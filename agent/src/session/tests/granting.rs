//! From a grant to a start: every refusal with its neighbour, repetitions, workloads.

use sha2::{Digest, Sha256};

use super::*;

#[test]
fn a_grant_is_kept_durably_before_it_is_confirmed() {
    let mut bench = Bench::idle();
    let effects = bench.hear(Down::Grant(grant(1, 7)));
    let [Effect::Persist(state), second] = effects.as_slice() else { panic!("{effects:?}") };
    assert_eq!(state.newest_on_slice(&slice(1)), token(7));
    assert_eq!(state.newest_on_device(DeviceId::new(1)), token(7));
    assert_eq!(*second, confirm(1, 7, bench.now));
}

#[test]
fn each_reason_not_to_start_and_its_nearest_neighbour() {
    type Given = fn(&mut Bench);
    let rows: [(NackReason, Given, Given); 6] = [
        (NackReason::OtherBoot, |_| {}, |_| {}),
        (
            NackReason::StaleToken,
            |b| {
                b.hear(stop(1, 7, 0));
            },
            |b| {
                b.hear(stop(1, 6, 0));
            },
        ),
        (
            NackReason::OwnerBusy,
            |b| {
                b.see(Observation::OwnerArrived(DeviceId::new(1)));
            },
            |b| {
                b.see(Observation::OwnerArrived(DeviceId::new(2)));
            },
        ),
        (
            NackReason::OwnerBusy,
            |b| {
                b.see(Observation::NotIdle(DeviceId::new(1)));
            },
            |b| {
                b.see(Observation::NotIdle(DeviceId::new(1)));
                b.see(Observation::Idle(DeviceId::new(1)));
            },
        ),
        (
            NackReason::DeviceFault,
            |b| {
                b.see(Observation::DeviceLost(DeviceId::new(1)));
            },
            |_| {},
        ),
        (NackReason::NotEmpty, |b| b.run(1, 6), |b| b.run(2, 6)),
    ];
    for (reason, bad, good) in rows {
        let (mut refusing, mut accepting) = (Bench::idle(), Bench::idle());
        bad(&mut refusing);
        good(&mut accepting);
        let other_boot = reason == NackReason::OtherBoot;
        let boot = if other_boot { Boot::new(3) } else { BOOT };
        let terms = GrantTerms { boot, ..grant(1, 7) };
        let answer = told(refusing.hear(Down::Grant(terms)));
        assert_eq!(answer, [nack(1, 7, reason)]);
        let answer = told(accepting.hear(Down::Grant(grant(1, 7))));
        assert_eq!(answer, [confirm(1, 7, accepting.now)], "neighbour of {reason:?}");
    }
}

#[test]
fn a_grant_that_comes_again_is_confirmed_again_with_a_fresh_nonce() {
    let mut bench = Bench::idle();
    bench.hear(Down::Grant(grant(1, 7)));
    let effects = bench.pass(1_000).hear(Down::Grant(grant(1, 7)));
    assert_eq!(effects, [confirm(1, 7, bench.now)]);
}

#[test]
fn a_grant_that_comes_again_for_a_running_guest_changes_nothing() {
    let mut bench = Bench::running(7);
    assert_eq!(bench.hear(Down::Grant(grant(1, 7))), []);
}

#[test]
fn a_refused_grant_stays_refused_in_the_same_words_when_the_reason_has_gone() {
    let mut bench = Bench::idle();
    bench.see(Observation::OwnerArrived(DeviceId::new(1)));
    bench.hear(Down::Grant(grant(1, 7)));
    bench.see(Observation::Idle(DeviceId::new(1)));
    let again = told(bench.hear(Down::Grant(grant(1, 7))));
    assert_eq!(again, [nack(1, 7, NackReason::OwnerBusy)]);
    let next = told(bench.hear(Down::Grant(grant(1, 8))));
    assert_eq!(next, [confirm(1, 8, bench.now)]);
}

#[test]
fn a_refused_grant_stays_refused_after_another_was_refused_on_its_slice() {
    let mut bench = Bench::idle();
    bench.see(Observation::OwnerArrived(DeviceId::new(1)));
    bench.hear(Down::Grant(grant(1, 7)));
    bench.hear(Down::Grant(grant(1, 8)));
    bench.see(Observation::Idle(DeviceId::new(1)));
    let late = told(bench.hear(Down::Grant(grant(1, 7))));
    assert_eq!(late, [nack(1, 7, NackReason::StaleToken)]);
}

#[test]
fn a_grant_of_a_lease_that_has_ended_is_answered_as_stopped() {
    let mut bench = Bench::running(7);
    bench.pass(500).end_guest(1, 7, Exit::Code(0));
    let again = bench.hear(Down::Grant(grant(1, 7)));
    assert_eq!(again, [stopped(1, 7, 500, GuestOutcome::Exited { code: 0 })]);
}

#[test]
fn members_of_one_gang_on_one_device_share_its_token() {
    let mut session = shared();
    assert!(grant_share(&mut session, 0, 7));
    assert!(!grant_share(&mut session, 1, 6), "an older token on the same device");
    assert!(grant_share(&mut session, 1, 7));
}

#[test]
fn a_member_that_has_ended_does_not_come_back_while_its_sibling_lives() {
    let mut session = shared();
    assert!(grant_share(&mut session, 0, 7) && grant_share(&mut session, 1, 7));
    let (now, slice, token) = (Millis::ZERO, share(1), token(7));
    let (grace, cause) = (Millis::ZERO, EndReason::Released);
    let stop = Down::Stop { lease: lease(7), slice, token, grace, cause };
    let _ = session.on_message(now, stop);
    let _ = session.on_message(now, Down::Ended { slice, token });
    assert!(!grant_share(&mut session, 1, 7), "late, doubled, and of a lease that has ended");
}

fn share(index: u8) -> SliceId {
    SliceId { part: Part::Share { index }, ..slice(1) }
}

/// A device of two shares, idle.
fn shared() -> Session {
    let mut config = config();
    let capacity = Capacity { isolation: Isolation::Mps, ..config.slices[0].capacity };
    config.slices = [0, 1].map(|index| Lendable { slice: share(index), capacity }).into();
    let durable = DurableState { boot: BOOT, ..DurableState::default() };
    let (mut session, _) = Session::new(config, durable, Millis::ZERO);
    let _ = session.on_observation(Millis::ZERO, Observation::Idle(DeviceId::new(1)));
    session
}

/// Whether the grant of a share is confirmed.
fn grant_share(session: &mut Session, index: u8, counter: u64) -> bool {
    let terms = GrantTerms { slice: share(index), ..grant(1, counter) };
    let answer = told(session.on_message(Millis::ZERO, Down::Grant(terms)));
    matches!(answer[0], Effect::Send(Up::Confirm { .. }))
}

#[test]
fn an_activation_that_was_lost_is_asked_for_when_a_renewal_shows_the_lease_active() {
    let mut bench = Bench::idle();
    bench.hear(Down::Grant(grant(1, 7)));
    bench.live(RENEW);
    let effects = bench.hear(renewed(1, 7, bench.now, DURATION));
    assert_eq!(effects, [confirm(1, 7, bench.now)]);
    assert!(matches!(told(bench.activate(1, 7))[..], [Effect::Start(_)]));
}

#[test]
fn a_guest_starts_only_if_enough_life_is_left_since_the_nonce() {
    // LG3: now < nonce + TTL − grace.
    for (waited, starts) in [(TTL - GRACE - 1, true), (TTL - GRACE, false)] {
        let mut bench = Bench::idle();
        let nonce = bench.now;
        bench.hear(Down::Grant(grant(1, 7)));
        let effects = told(bench.pass(waited).hear(activated(1, 7, nonce)));
        if starts {
            let [Effect::Start(guest)] = effects.as_slice() else { panic!("{effects:?}") };
            assert_eq!(guest.deadline.get(), nonce + TTL - GRACE + GRACE / 5 * 4);
            assert_eq!(guest.devices, [DeviceId::new(1)]);
            assert_eq!(guest.left, Millis::new(DURATION));
        } else {
            assert_eq!(effects, [confirm(1, 7, bench.now)], "a fresh nonce is asked for");
            let effects = told(bench.activate(1, 7));
            assert!(matches!(effects[..], [Effect::Start(_)]), "{effects:?}");
        }
    }
}

#[test]
fn an_activation_with_a_nonce_that_was_never_sent_starts_nothing() {
    let mut bench = Bench::idle();
    bench.hear(Down::Grant(grant(1, 7)));
    assert_eq!(bench.hear(activated(1, 7, bench.now + 1)), []);
}

#[test]
fn a_second_activation_starts_nothing() {
    let mut bench = Bench::running(7);
    assert_eq!(bench.activate(1, 7), []);
}

#[test]
fn an_activation_of_a_grant_that_was_refused_is_answered_as_stopped() {
    let mut bench = Bench::idle();
    bench.see(Observation::OwnerArrived(DeviceId::new(1)));
    bench.hear(Down::Grant(grant(1, 7)));
    let effects = bench.hear(activated(1, 7, bench.now));
    assert_eq!(effects, [stopped(1, 7, 0, GuestOutcome::NeverStarted)]);
}

#[test]
fn a_grant_that_is_never_activated_is_given_up_in_time_and_offered_again() {
    let mut bench = Bench::idle();
    let granted = bench.now;
    bench.hear(Down::Grant(grant(1, 7)));
    let effects = told_at(bench.live(TTL));
    let given_up = stopped(1, 7, 0, GuestOutcome::NeverStarted);
    assert_eq!(effects[0], (granted + TTL - GRACE, given_up));
    assert!(matches!(&effects[1].1, Effect::Send(Up::Offer(o)) if o.generation == 2));
}

#[test]
fn the_first_member_of_a_gang_sees_the_devices_of_all() {
    let mut bench = Bench::idle();
    bench.hear(Down::Grant(grant(2, 7)));
    bench.hear(Down::Grant(GrantTerms { is_first: false, ..grant(1, 7) }));
    let effects = told(bench.activate(2, 7));
    let [Effect::Start(guest)] = effects.as_slice() else { panic!("{effects:?}") };
    assert_eq!(guest.devices, [DeviceId::new(1), DeviceId::new(2)]);
}

const WORKLOAD: &[u8] = br#"{"argv":["echo","hi"]}"#;

fn with_workload(device: u128, counter: u64, is_first: bool) -> GrantTerms {
    let size = u32::try_from(WORKLOAD.len()).unwrap();
    let workload = Some(WorkloadRef { sha256: Sha256::digest(WORKLOAD).into(), size });
    GrantTerms { workload, is_first, ..grant(device, counter) }
}

fn workload(counter: u64, bytes: &[u8]) -> Down {
    Down::Workload { lease: lease(counter), token: token(counter), bytes: bytes.to_vec() }
}

/// The three messages a start needs, in every order the network may choose.
#[test]
fn a_workload_may_come_before_the_grant_or_after_the_activation() {
    for order in [[0, 1, 2], [1, 0, 2], [1, 2, 0]] {
        let mut bench = Bench::idle();
        let steps = [
            workload(7, WORKLOAD),
            Down::Grant(with_workload(1, 7, true)),
            activated(1, 7, bench.now),
        ];
        let effects: Vec<Effect> =
            order.iter().flat_map(|step| bench.hear(steps[*step].clone())).collect();
        let started = effects.iter().find_map(|effect| match effect {
            Effect::Start(guest) => guest.workload.clone(),
            _ => None,
        });
        assert_eq!(started.map(|w| w.argv), Some(vec!["echo".into(), "hi".into()]), "{order:?}");
    }
}

#[test]
fn a_workload_whose_hash_differs_is_refused_before_and_after_activation() {
    let other = br#"{"argv":["echo","ho"]}"#;
    let mut bench = Bench::idle();
    bench.hear(Down::Grant(with_workload(1, 7, true)));
    let effects = told(bench.hear(workload(7, other)));
    assert_eq!(effects[0], nack(1, 7, NackReason::Workload));
    let effects = bench.hear(activated(1, 7, bench.now));
    assert_eq!(effects, [stopped(1, 7, 0, GuestOutcome::NeverStarted)]);

    let mut bench = Bench::idle();
    bench.hear(Down::Grant(with_workload(1, 7, true)));
    assert_eq!(bench.activate(1, 7), []);
    let effects = told(bench.hear(workload(7, other)));
    assert_eq!(effects[0], stopped(1, 7, 0, GuestOutcome::NeverStarted));
}

#[test]
fn bytes_with_the_right_hash_that_are_no_workload_are_refused() {
    let bytes = b"not json";
    let mut bench = Bench::idle();
    let declared = WorkloadRef { sha256: Sha256::digest(bytes).into(), size: 8 };
    let terms = GrantTerms { workload: Some(declared), ..grant(1, 7) };
    bench.hear(Down::Grant(terms));
    let effects = told(bench.hear(workload(7, bytes)));
    assert_eq!(effects[0], nack(1, 7, NackReason::Workload));
}

#[test]
fn a_workload_that_never_comes_ends_the_lease_without_use() {
    let mut bench = Bench::idle();
    bench.hear(Down::Grant(with_workload(1, 7, true)));
    bench.activate(1, 7);
    let activated = bench.now;
    let effects = told_at(bench.live(70_000));
    let given_up = stopped(1, 7, 0, GuestOutcome::NeverStarted);
    assert_eq!(effects[0], (activated + 60_000, given_up));
}

#[test]
fn members_that_do_not_run_the_workload_need_not_wait_for_it() {
    let mut bench = Bench::idle();
    bench.hear(Down::Grant(with_workload(1, 7, false)));
    let effects = told(bench.activate(1, 7));
    assert!(matches!(&effects[..], [Effect::Start(g)] if g.workload.is_none()), "{effects:?}");
}

#[test]
fn a_guest_that_does_not_start_is_said_so_to_its_tenant_and_never_billed() {
    let mut bench = Bench::idle();
    bench.hear(Down::Grant(grant(1, 7)));
    bench.activate(1, 7);
    let failure = StartFailure::ProgramMissing { program: "nosuch".into() };
    let effects = told(bench.pass(9_000).report(Report::NotStarted(key(1, 7), failure)));
    let [Effect::Send(Up::Output { bytes, .. }), stop, Effect::Send(Up::Offer(_))] =
        effects.as_slice()
    else {
        panic!("{effects:?}")
    };
    assert_eq!(bytes, b"sublet: there is no program \"nosuch\"\n");
    assert_eq!(*stop, stopped(1, 7, 0, GuestOutcome::NeverStarted));
}

#[test]
fn a_confirmation_that_the_broker_refuses_frees_the_slice() {
    let mut bench = Bench::idle();
    let effects = bench.hear(Down::Grant(grant(1, 7)));
    let Some(Effect::Send(asked)) = effects.last() else { panic!("{effects:?}") };
    let effects = told(bench.refused(asked));
    assert_eq!(effects[0], stopped(1, 7, 0, GuestOutcome::NeverStarted));
    assert!(matches!(effects[1], Effect::Send(Up::Offer(_))));
}
