//! A random walk over everything that can happen, against the rules that must hold whatever
//! happens.

use std::collections::BTreeMap;

use super::*;

/// What the outside of the session sees: which guests have a process, and until when at the
/// longest.
#[derive(Default)]
struct Outside {
    guests: BTreeMap<GuestKey, Millis>,
    newest: BTreeMap<SliceId, Token>,
    kept: DurableState,
    owner_since: BTreeMap<DeviceId, u64>,
}

impl Outside {
    fn carry_out(&mut self, now: u64, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Persist(state) => self.kept = state,
                Effect::Start(guest) => self.start(&guest, now),
                Effect::SetDeadline(key, at) => {
                    self.guests.entry(key).and_modify(|deadline| *deadline = at);
                }
                Effect::Kill(key) => {
                    self.guests.entry(key).and_modify(|deadline| *deadline = Millis::new(now));
                }
                Effect::Send(Up::Stopped { slice, token, .. }) => {
                    let key = GuestKey { slice, token };
                    assert!(!self.guests.contains_key(&key), "stopped, and yet it runs");
                }
                Effect::Send(Up::Offer(terms)) => {
                    let same = |key: &GuestKey| key.slice == terms.slice;
                    assert!(!self.guests.keys().any(same), "offered, and yet in use");
                    assert!(!self.owner_since.contains_key(&terms.slice.device));
                }
                Effect::Send(Up::Confirm { slice, token, .. }) => {
                    assert!(self.kept.newest_on_slice(&slice) >= token, "told before kept");
                }
                Effect::Send(_) | Effect::Signal(..) => {}
            }
        }
    }

    fn start(&mut self, guest: &Guest, now: u64) {
        let same = |key: &GuestKey| key.slice == guest.key.slice;
        assert!(!self.guests.keys().any(same), "two guests on one slice (INV 1)");
        let newest = self.newest.entry(guest.key.slice).or_insert(Token::NONE);
        assert!(guest.key.token > *newest, "tokens rise (INV 6)");
        *newest = guest.key.token;
        assert!(!self.owner_since.contains_key(&guest.key.slice.device), "the owner is there");
        assert!(guest.deadline.get() > now);
        self.guests.insert(guest.key, guest.deadline);
    }

    /// INV 7: the owner waits for nobody longer than the grace.
    fn check(&self, now: u64) {
        for (device, since) in &self.owner_since {
            let there = self.guests.keys().any(|key| key.slice.device == *device);
            assert!(!there || now - since <= GRACE, "a guest outstays the owner's grace");
        }
    }
}

struct Dice(u64);

impl Dice {
    fn below(&mut self, sides: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// One message, observation or report, of the kinds that the world may come up with, wrong ones
/// too.
fn step(bench: &mut Bench, outside: &mut Outside, dice: &mut Dice, issued: &mut u64) {
    let device = u128::from(dice.below(2) + 1);
    let id = DeviceId::new(device);
    let recent = issued.saturating_sub(dice.below(4)).max(1);
    let nonce = bench.now.saturating_sub(dice.below(120_000));
    let effects = match dice.below(12) {
        0 | 1 => {
            *issued += 1;
            bench.hear(Down::Grant(grant(device, *issued)))
        }
        2 => bench.hear(Down::Grant(grant(device, recent))),
        3 | 4 => bench.hear(activated(device, recent, nonce)),
        5 => bench.hear(renewed(device, recent, nonce, dice.below(DURATION))),
        6 => bench.hear(stop(device, recent, dice.below(120_000))),
        7 => bench.hear(Down::Ended { slice: slice(device), token: token(recent) }),
        8 => {
            outside.owner_since.entry(id).or_insert(bench.now);
            bench.see(Observation::OwnerArrived(id))
        }
        9 | 10 => {
            outside.owner_since.remove(&id);
            bench.see(Observation::Idle(id))
        }
        _ => {
            let running: Vec<GuestKey> = outside.guests.keys().copied().collect();
            let chosen = usize::try_from(dice.below(4)).unwrap();
            match running.get(chosen) {
                Some(key) => {
                    outside.guests.remove(key);
                    let mut effects = bench.report(Report::Started(*key));
                    effects.extend(bench.report(Report::Exited(*key, Exit::Code(0))));
                    effects.extend(bench.report(Report::Clean(*key)));
                    effects
                }
                None => Vec::new(),
            }
        }
    };
    outside.carry_out(bench.now, effects);
}

/// Lets time pass: ticks when due, guests die at their deadlines.
fn pass(bench: &mut Bench, outside: &mut Outside, millis: u64) {
    let end = bench.now + millis;
    loop {
        let tick = bench.session.next_due().get();
        let death = outside.guests.values().min().map_or(u64::MAX, |at| at.get());
        let next = tick.min(death).max(bench.now);
        if next > end {
            break;
        }
        bench.now = next;
        let dead = outside.guests.iter().find(|(_, at)| at.get() <= next).map(|(key, _)| *key);
        let effects = match dead {
            Some(key) => {
                outside.guests.remove(&key);
                let mut effects = bench.report(Report::Exited(key, Exit::Signal(9)));
                effects.extend(bench.report(Report::Clean(key)));
                effects
            }
            None => bench.tick(),
        };
        outside.carry_out(bench.now, effects);
        outside.check(bench.now);
    }
    bench.now = end;
}

#[test]
fn whatever_happens_the_rules_of_the_gate_hold() {
    let mut started = 0;
    for seed in 0..200 {
        let mut dice = Dice(seed);
        let mut bench = Bench::idle();
        let mut outside = Outside { kept: bench.session.durable.clone(), ..Outside::default() };
        let mut issued = 0;
        for _ in 0..300 {
            step(&mut bench, &mut outside, &mut dice, &mut issued);
            let millis = [0, 10, 5_000, 40_000][usize::try_from(dice.below(4)).unwrap()];
            pass(&mut bench, &mut outside, millis);
            outside.check(bench.now);
        }
        started += outside.newest.len();
        // With nobody speaking to it any more, the node empties itself (LA2).
        pass(&mut bench, &mut outside, TTL);
        assert!(outside.guests.is_empty(), "seed {seed}");
        assert!(bench.session.held.is_empty(), "seed {seed}: {:?}", bench.session.held);
    }
    assert!(started > 200, "the walk hardly starts a guest: {started}");
}
