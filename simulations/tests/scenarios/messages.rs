//! Cases D10 and D11: messages come twice, late, out of order, from another start, from another machine.

use std::collections::BTreeSet;

use serde_json::Value;
use sublet_agent::session::Observation;
use sublet_protocol::agent::{Held, Reply, Up, UpEnvelope};
use sublet_protocol::commands::{Actor, Command, IdempotencyKey, Outcome};
use sublet_protocol::events::Event;
use sublet_protocol::ids::{Boot, HostHash, LeaseId, RequestId};
use sublet_protocol::offers::{Division, HostRoom, IdleFor, OfferTerms, RescindReason};
use sublet_protocol::policy::Policy;
use sublet_protocol::records::Record;
use sublet_protocol::refusals::Rejection;
use sublet_protocol::units::{Millis, Seconds};

use crate::bench::{Cell, Node, capacity, cluster, gpu, node, spec, talk, tenant, user};
use crate::cases::{Case, cases, instant, number, text};
use crate::pair;

/// Case D10: requests and usage are delivered again.
#[test]
fn a_redelivered_message_has_its_effect_once() {
    let (mut cell, mut one) = pair(4);
    let key = |key: u8, body: u8| Some(IdempotencyKey { key: [key; 16], body: [body; 16] });
    let ask = |number, name: &str, count| Command::SubmitRequest {
        request: RequestId::new(number),
        tenant: tenant(name),
        spec: spec(count, 3_600),
    };
    let first = cell.ask(user("t-a"), key(1, 2), ask(1, "t-a", 2));
    let Outcome::Done { first, .. } = first else { panic!("{first:?}") };
    for number in [2, 3] {
        let again = cell.ask(user("t-a"), key(1, 2), ask(number, "t-a", 2));
        assert_eq!(again, Outcome::Repeated { first });
    }
    let rejection = Rejection::KeyReused;
    assert_eq!(cell.ask(user("t-a"), key(1, 4), ask(4, "t-a", 4)), Outcome::Refused { rejection });
    assert!(matches!(cell.ask(user("t-b"), key(1, 2), ask(5, "t-b", 2)), Outcome::Done { .. }));
    talk(&mut cell, &mut [&mut one]);
    assert_eq!(cell.state.leases().len(), 2, "one for each tenant");
    // Usage is cumulative: what comes again, or late, adds nothing.
    let lease = cell.only_lease();
    for seconds in [600, 600, 1_200, 600] {
        let used = Seconds::new(seconds).as_millis();
        let entries = vec![sublet_protocol::commands::Usage { lease, used }];
        cell.must(Actor::Leader, Command::RecordUsage { entries });
    }
    assert_eq!(cell.state.leases()[&lease].used(), Seconds::new(1_200).as_millis());
}

/// Case D11: offers come out of order, from an earlier start, too late, and from another machine.
#[test]
fn an_old_offer_never_replaces_a_newer_one_and_two_machines_are_fenced() {
    let (mut cell, mut one) = pair(4);
    let offered = |cell: &Cell| cell.state.offers().len();
    let terms = *cell.state.offers()[&gpu(0, 1)].terms();
    let old = one.envelope(Up::Offer(terms));
    one.see(Observation::NotIdle(gpu(0, 1).device));
    talk(&mut cell, &mut [&mut one]);
    assert_eq!(offered(&cell), 3);
    assert_eq!(cell.hear(&old), Reply::Refused(Rejection::OfferOld));
    assert_eq!(offered(&cell), 3);
    one.restart();
    talk(&mut cell, &mut [&mut one]);
    assert_eq!(offered(&cell), 0, "a new start offers anew");
    assert_eq!(cell.hear(&old), Reply::Refused(Rejection::BootOld));
    one.see_idle();
    talk(&mut cell, &mut [&mut one]);
    assert_eq!(offered(&cell), 4);
    // Its time is over and nobody repeats it.
    cell.later(901);
    cell.tick();
    assert_eq!(offered(&cell), 0);
    one.later(901);
    talk(&mut cell, &mut [&mut one]);
    assert_eq!(offered(&cell), 4);
    // Another machine claims the node: alarm, and nothing is taken from it.
    let mut other = one.envelope(Up::Hello);
    other.host = HostHash([9; 16]);
    cell.hear(&other);
    let alarm = cell.journal.iter().any(|r| matches!(r.event, Event::NodeFenced { .. }));
    assert!(alarm, "two machines with one id raise an alarm");
    assert_eq!(offered(&cell), 0, "both are fenced");
}

/// The first 16 bytes of a text, as a hash would be.
fn hashed(text: &str) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes.iter_mut().zip(text.bytes()).for_each(|(byte, letter)| *byte = letter);
    bytes
}

/// Case D10 as a sequence of messages.
///
/// Ours differ in one thing: an agent tells the use of a lease as a running total, so a message says
/// the sum of what the files' messages up to it say. Left out: a message that cannot be read never
/// reaches the rules; the broker's mailbox refuses it once, for good.
#[test]
fn the_sequence_of_redelivered_messages_has_each_effect_once() {
    for case in cases("D10", "messages.jsonl") {
        // One node tells use, and nothing but what the files say; the other one lends.
        let mut cell = Cell::founded(Policy::default(), instant(&case.events[0], "t"));
        let (mut user_node, mut one) = (Node::new(1, 1), Node::new(0, 8));
        talk(&mut cell, &mut [&mut user_node, &mut one]);
        user_node.see_idle();
        cell.submit("t-c", 1_000, spec(1, 36_000));
        talk(&mut cell, &mut [&mut user_node]);
        let (used_lease, key) = (cell.only_lease(), crate::only_guest(&user_node));
        one.see_idle();
        talk(&mut cell, &mut [&mut one]);
        let mut outcomes: Vec<(String, Outcome)> = Vec::new();
        let body = |event: &Value| event["body"].clone();
        let total = |upto: u64| -> u64 {
            let mut parts = std::collections::BTreeMap::new();
            for event in case.events.iter().map(body).filter(|b| text(b, "type") == "usage") {
                parts.insert(number(&event, "usage_seq"), number(&event, "gpu_seconds"));
            }
            parts.range(..=upto).map(|(_, seconds)| seconds).sum()
        };
        let mut requests = 0;
        for event in &case.events {
            let body = body(event);
            while cell.now < instant(event, "t") {
                let passed = instant(event, "t").since(cell.now).min(Millis::new(30_000));
                cell.now = cell.now.after_millis(passed);
                one.live_until(one.clock.saturating_add(passed));
                talk(&mut cell, &mut [&mut one]);
            }
            if text(&body, "type") == "usage" {
                let used = Seconds::new(total(number(&body, "usage_seq"))).as_millis();
                let (lease, unused) = (used_lease, Millis::ZERO);
                let held = vec![Held { lease, slice: key.slice, token: key.token, used, unused }];
                let message = user_node.envelope(Up::Renew { nonce: Millis::new(1), held });
                assert_eq!(cell.hear(&message), Reply::Done);
                // What grew is committed once a minute.
                cell.later(60);
                one.later(60);
                cell.tick();
                continue;
            }
            requests += 1;
            let (who, request) = (text(&body, "tenant"), RequestId::new(requests));
            let count = number(&body, "gpus");
            let key = IdempotencyKey {
                key: hashed(text(&body, "key")),
                body: hashed(&count.to_string()),
            };
            let (tenant, spec) = (tenant(who), spec(u32::try_from(count).unwrap(), 36_000));
            let submit = Command::SubmitRequest { request, tenant, spec };
            let outcome = cell.ask(user(who), Some(key), submit);
            outcomes.push((text(event, "msg_id").to_owned(), outcome));
            talk(&mut cell, &mut [&mut one]);
        }
        check_messages(&case, &cell, used_lease, &outcomes);
    }
}

fn check_messages(case: &Case, cell: &Cell, used_lease: LeaseId, outcomes: &[(String, Outcome)]) {
    let granted = cell.journal.iter().filter_map(|record| match &record.event {
        Event::LeaseGranted { terms, .. } if terms.tenant != tenant("t-c") => Some(terms.tenant),
        _other => None,
    });
    let granted: Vec<_> = granted.collect();
    assert_eq!(u64::try_from(granted.len()).unwrap(), number(&case.facts, "leases_created"));
    for (of, count) in case.facts["by"].as_object().unwrap() {
        let of = tenant(of.split('/').next().unwrap());
        let its = granted.iter().filter(|tenant| **tenant == of).count();
        assert_eq!(Some(u64::try_from(its).unwrap()), count.as_u64(), "{of}");
    }
    let facts = case.facts.as_object().unwrap();
    let (_, seconds) = facts.iter().find(|(name, _)| name.starts_with("gpu_seconds")).unwrap();
    let used = cell.journal.iter().filter_map(|record| match &record.event {
        Event::UsageRecorded { lease, used } if *lease == used_lease => {
            Some(used.as_seconds_floor().get())
        }
        _other => None,
    });
    assert_eq!(used.max(), seconds.as_u64(), "each part of the use counts once");
    for (message, outcome) in outcomes {
        let is_refused = facts.get(message).is_some();
        let rejection = Rejection::KeyReused;
        let refused = Outcome::Refused { rejection };
        assert_eq!(*outcome == refused, is_refused, "{message}: {outcome:?}");
    }
}

/// Case D11 as a sequence of offers: an agent says how many of its GPUs are idle, ours offers each by
/// itself. A higher sequence is a newer generation of the offers.
///
/// Left out: an offer carries no time of its own, so one that was underway for longer than it stands
/// (`sent_s` in the files) is taken when it comes, for its whole time from then. Its agent, asked to
/// prepare a slice that is no longer idle, refuses.
#[test]
fn the_sequence_of_offers_is_taken_in_the_order_of_starts_and_generations_only() {
    for case in cases("D11", "offers.jsonl") {
        let mut cell = Cell::new();
        let begin = cell.now;
        let mut known: BTreeSet<(String, u64)> = BTreeSet::new();
        for event in &case.events {
            let step = number(event, "n").to_string();
            cell.now = begin.after(Seconds::new(number(event, "t_s")));
            if !event["sent_s"].is_null() {
                let place = &case.from;
                eprintln!("left out: {step} of {place}: offers have no time of their own");
                continue;
            }
            if event["idle"].is_number() {
                offers(&mut cell, event, &mut known);
            }
            cell.tick();
            let idle = u64::try_from(cell.state.offers().len()).unwrap();
            assert_eq!(Some(idle), case.facts["idle_after"][&step].as_u64(), "after {step}");
        }
        let is_alarm = |record: &Record| matches!(record.event, Event::NodeFenced { .. });
        assert!(cell.journal.iter().any(is_alarm), "two machines with one id raise an alarm");
    }
}

/// What an agent says with one of the files' messages: hello if it is a new start, then an offer or
/// the opposite for each of eight GPUs, all with the sequence as their generation.
fn offers(cell: &mut Cell, event: &Value, known: &mut BTreeSet<(String, u64)>) {
    let (host, boot) = (text(event, "host").to_owned(), number(event, "boot"));
    let (idle, generation) = (number(event, "idle"), number(event, "seq"));
    let envelope = |body: Up| UpEnvelope {
        cluster: cluster(),
        node: node(0),
        host: HostHash(hashed(&host)),
        boot: Boot::new(boot),
        sequence: generation,
        body,
    };
    if known.insert((host.clone(), boot)) {
        cell.hear(&envelope(Up::Hello));
    }
    for device in 0..8 {
        let slice = gpu(0, usize::try_from(device).unwrap());
        let body = if device < idle {
            let hour = Seconds::new(3_600);
            Up::Offer(OfferTerms {
                slice,
                generation,
                boot: Boot::new(boot),
                capacity: capacity(),
                idle_for: IdleFor { p10: hour, p50: hour, p90: hour },
                recall_notice: Seconds::ZERO,
                ttl: Seconds::new(number(event, "ttl_s")),
                division: Division::NONE,
                host: HostRoom::Slice,
            })
        } else {
            Up::Rescind { slice, generation, reason: RescindReason::NotIdle }
        };
        cell.hear(&envelope(body));
    }
}
