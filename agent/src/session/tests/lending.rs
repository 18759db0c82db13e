//! Offers, inventories and renewals.

use super::*;

type Seen = fn(DeviceId) -> Observation;

fn offers(effects: &[Effect]) -> Vec<(u128, u64)> {
    let one = |effect: &Effect| match effect {
        Effect::Send(Up::Offer(terms)) => Some((terms.slice.device.get(), terms.generation)),
        _ => None,
    };
    effects.iter().filter_map(one).collect()
}

fn rescind(device: u128, generation: u64, reason: RescindReason) -> Effect {
    Effect::Send(Up::Rescind { slice: slice(device), generation, reason })
}

#[test]
fn nothing_is_offered_before_it_was_seen_idle() {
    let durable = DurableState { boot: BOOT, ..DurableState::default() };
    let (mut bench, effects) = Bench::starting(durable);
    assert_eq!(effects[0], Effect::Send(Up::Hello));
    assert_eq!(offers(&effects), []);
    let later: Vec<Effect> = bench.live(TTL).into_iter().map(|(_, effect)| effect).collect();
    assert_eq!(offers(&later), []);
    assert_eq!(offers(&bench.see(Observation::Idle(DeviceId::new(2)))), [(2, 1)]);
    assert_eq!(offers(&bench.see(Observation::Idle(DeviceId::new(2)))), [], "once");
}

#[test]
fn an_offer_is_repeated_with_a_higher_generation_before_its_time_is_over() {
    let mut bench = Bench::idle();
    let effects = told_at(bench.live(900_000));
    let times: Vec<u64> = effects.iter().map(|(at, _)| *at - 1_000_000).collect();
    assert_eq!(times, [450_000, 450_000, 900_000, 900_000]);
    let all: Vec<Effect> = effects.into_iter().map(|(_, effect)| effect).collect();
    assert_eq!(offers(&all), [(1, 2), (2, 2), (1, 3), (2, 3)]);
}

#[test]
fn an_offer_that_is_no_longer_true_is_rescinded_with_its_reason_once() {
    let rows: [(Seen, RescindReason); 4] = [
        (Observation::NotIdle, RescindReason::NotIdle),
        (Observation::OwnerArrived, RescindReason::Owner),
        (Observation::ForeignUse, RescindReason::ForeignUse),
        (Observation::DeviceLost, RescindReason::DeviceFault),
    ];
    for (seen, reason) in rows {
        let mut bench = Bench::idle();
        let effects = bench.see(seen(DeviceId::new(1)));
        assert_eq!(effects, [rescind(1, 1, reason)]);
        assert_eq!(bench.see(seen(DeviceId::new(1))), []);
        assert_eq!(offers(&bench.see(Observation::Idle(DeviceId::new(1)))), [(1, 2)]);
    }
}

#[test]
fn a_granted_slice_is_not_offered_and_its_offer_is_not_rescinded() {
    let mut bench = Bench::running(7);
    let effects: Vec<Effect> = bench.live(240_000).into_iter().map(|(_, effect)| effect).collect();
    assert_eq!(offers(&effects), []);
    let effects = bench.see(Observation::OwnerArrived(DeviceId::new(1)));
    let is_rescind = |effect: &Effect| matches!(effect, Effect::Send(Up::Rescind { .. }));
    assert!(!effects.iter().any(is_rescind));
}

#[test]
fn an_offer_that_the_broker_refuses_is_tried_again_later() {
    let mut bench = Bench::idle();
    let effects = bench.pass(450_000).tick();
    let asked = effects.iter().find_map(|effect| match effect {
        Effect::Send(message @ Up::Offer(_)) => Some(message.clone()),
        _ => None,
    });
    bench.refused(&asked.unwrap());
    let effects = told_at(bench.live(40_000));
    assert_eq!(effects.len(), 1);
    assert_eq!(offers(&[effects[0].1.clone()]), [(1, 3)]);
    assert_eq!(effects[0].0, 1_000_000 + 450_000 + 30_000);
}

#[test]
fn a_slice_of_a_gang_is_offered_again_as_soon_as_the_whole_lease_has_ended() {
    let mut bench = Bench::running(7);
    let effects = bench.end_guest(1, 7, Exit::Code(0));
    assert_eq!(offers(&effects), [(1, 2)]);
    let Some(Effect::Send(asked)) = effects.last() else { panic!("{effects:?}") };
    bench.refused(asked);
    let effects = bench.hear(Down::Ended { slice: slice(1), token: token(7) });
    assert_eq!(offers(&effects), [(1, 3)]);
}

#[test]
fn a_refusal_of_an_older_offer_does_not_touch_the_newer_one() {
    let mut bench = Bench::idle();
    let first = bench.pass(450_000).tick();
    bench.pass(450_000).tick();
    let asked = first.iter().find_map(|effect| match effect {
        Effect::Send(message @ Up::Offer(_)) => Some(message.clone()),
        _ => None,
    });
    bench.refused(&asked.unwrap());
    assert_eq!(told_at(bench.live(40_000)), []);
}

#[test]
fn everything_offered_and_held_is_told_every_period_and_when_asked() {
    let mut bench = Bench::running(7);
    let inventories = |effects: &[Effect]| -> Vec<Up> {
        let one = |effect: &Effect| match effect {
            Effect::Send(message @ Up::Inventory { .. }) => Some(message.clone()),
            _ => None,
        };
        effects.iter().filter_map(one).collect()
    };
    let regular: Vec<Effect> = bench.live(90_000).into_iter().map(|(_, effect)| effect).collect();
    assert_eq!(inventories(&regular).len(), 3);
    let (used, unused) = (Millis::new(90_000), Millis::ZERO);
    let held = HeldWord { lease: lease(7), slice: slice(1), token: token(7), used, unused };
    let expected = Up::Inventory { offered: vec![(slice(2), 1)], held: vec![held] };
    let asked = bench.hear(Down::Resync);
    assert_eq!(inventories(&asked), [expected]);
    assert!(asked.iter().any(|effect| matches!(effect, Effect::Send(Up::Renew { .. }))));
}

#[test]
fn what_lapsed_at_the_broker_is_offered_anew_if_it_still_holds() {
    let mut bench = Bench::idle();
    let lapsed = |generation| Down::OfferAgain { slice: slice(1), generation };
    assert_eq!(offers(&bench.hear(lapsed(1))), [(1, 2)]);
    assert_eq!(bench.hear(lapsed(1)), [], "that one was replaced");
    bench.see(Observation::OwnerArrived(DeviceId::new(1)));
    assert_eq!(bench.hear(lapsed(2)), [], "the owner is there");
}

#[test]
fn use_is_kept_before_it_is_told_and_never_falls() {
    let mut bench = Bench::running(7);
    let mut last = Millis::ZERO;
    for _ in 0..5 {
        let effects = bench.live(RENEW);
        let renewal = effects.iter().position(|(_, e)| matches!(e, Effect::Send(Up::Renew { .. })));
        let renewal = renewal.unwrap();
        let Effect::Persist(state) = &effects[renewal - 1].1 else { panic!("{effects:?}") };
        let Effect::Send(Up::Renew { held, .. }) = &effects[renewal].1 else { panic!() };
        assert_eq!(state.usage_of(&slice(1), token(7)).unwrap().used, held[0].used);
        assert!(held[0].used > last);
        last = held[0].used;
        bench.hear(renewed(1, 7, bench.now, DURATION));
    }
}

/// How long the guest of device 1 has used nothing, as the next renewal says.
fn unused(bench: &mut Bench) -> u64 {
    let effects = bench.live(RENEW);
    let renewal = effects.iter().find_map(|(_, effect)| match effect {
        Effect::Send(Up::Renew { held, .. }) => Some(held[0].unused.get()),
        _ => None,
    });
    bench.hear(renewed(1, 7, bench.now, DURATION));
    renewal.unwrap()
}

#[test]
fn a_guest_that_uses_nothing_is_told_of_with_each_renewal_and_any_use_or_doubt_ends_that() {
    let mut bench = Bench::running(7);
    let see = |bench: &mut Bench, seen| {
        let now = bench.now();
        bench.session.on_use(now, key(1, 7), seen);
    };
    assert_eq!(unused(&mut bench), 0, "nobody has looked");
    for looks in 0..3 {
        see(&mut bench, GuestUse::Nothing);
        assert_eq!(unused(&mut bench), looks * RENEW);
    }
    for seen in [GuestUse::Some, GuestUse::Unknown] {
        see(&mut bench, seen);
        assert_eq!(unused(&mut bench), 0, "{seen:?}");
        see(&mut bench, GuestUse::Nothing);
        see(&mut bench, GuestUse::Nothing);
        assert_eq!(unused(&mut bench), 0, "it begins anew");
        see(&mut bench, GuestUse::Nothing);
        assert_eq!(unused(&mut bench), RENEW);
    }
    // One that is told to go, or whose token is another, rests no longer.
    bench.session.on_use(bench.now(), key(1, 8), GuestUse::Some);
    assert_eq!(bench.session.running().collect::<Vec<_>>(), [key(1, 7)]);
    bench.hear(stop(1, 7, GRACE));
    assert_eq!(bench.session.running().count(), 0);
    assert_eq!(unused(&mut bench), 0);
}

#[test]
fn an_agent_that_holds_nothing_renews_nothing() {
    let mut bench = Bench::idle();
    let effects = bench.live(10 * RENEW);
    assert!(!effects.iter().any(|(_, e)| matches!(e, Effect::Send(Up::Renew { .. }))));
}
