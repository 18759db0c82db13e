//! Case D01: a broker restarts, and old messages come again.

use sublet_protocol::agent::{Reply, Up, UpEnvelope};
use sublet_protocol::commands::{Command, IdempotencyKey, Outcome};
use sublet_protocol::events::Event;
use sublet_protocol::ids::RequestId;
use sublet_protocol::refusals::Rejection;

use crate::bench::{Cell, Node, gpu, spec, talk, tenant, user};
use crate::cases::{Case, cases, number, text};
use crate::{only_guest, pair};

/// Case D01: a broker is killed, restarts, and an old offer comes again.
#[test]
fn a_restart_of_the_broker_after_any_step_grants_no_gpu_twice() {
    for killed_after in 0..5 {
        let (mut cell, mut one) = pair(2);
        let mut step = 0;
        let mut perhaps_kill = |cell: &mut Cell| {
            if step == killed_after {
                cell.restart();
            }
            step += 1;
        };
        perhaps_kill(&mut cell);
        cell.submit("t-a", 1, spec(1, 3_600));
        cell.tick();
        perhaps_kill(&mut cell);
        let said = talk(&mut cell, &mut [&mut one]);
        let first = only_guest(&one);
        perhaps_kill(&mut cell);
        let old_offers = cell.journal.iter().find_map(|record| match &record.event {
            Event::CapacityOffered { offer, .. } if offer.slice == first.slice => Some(*offer),
            _other => None,
        });
        let again =
            UpEnvelope { sequence: 900, body: Up::Offer(old_offers.unwrap()), ..said[0].clone() };
        assert_eq!(cell.hear(&again), Reply::Refused(Rejection::OfferOld), "killed {killed_after}");
        perhaps_kill(&mut cell);
        cell.submit("t-b", 9, spec(1, 3_600));
        talk(&mut cell, &mut [&mut one]);
        perhaps_kill(&mut cell);
        cell.submit("t-c", 10, spec(1, 3_600));
        talk(&mut cell, &mut [&mut one]);
        let grants = cell.journal.iter().filter_map(|record| match &record.event {
            Event::LeaseGranted { terms, .. } => {
                Some((terms.request.get(), terms.members[0].slice))
            }
            _other => None,
        });
        let grants: Vec<_> = grants.collect();
        assert_eq!(grants.len(), 2, "killed {killed_after}: {grants:?}");
        assert_ne!(grants[0].1, grants[1].1);
        assert_eq!((grants[0].0, grants[1].0), (1, 9));
        assert!(cell.state.waiting().contains(&RequestId::new(10)), "no capacity");
    }
}

/// What a file's event does; whether a grant is expected at once is in the facts.
struct Restarts<'a> {
    case: &'a Case,
    cell: Cell,
    one: Node,
    /// Requests by their key.
    requests: Vec<(String, RequestId)>,
}

impl Restarts<'_> {
    fn step(&mut self, event: &serde_json::Value) {
        match text(event, "ev") {
            "agent_offer" => {
                self.one.see_idle();
                talk(&mut self.cell, &mut [&mut self.one]);
            }
            "lease_request" => {
                let who = text(event, "tenant");
                let key = text(event, "key").to_owned();
                let request = RequestId::new(u128::from(number(event, "n")));
                let hashed = |text: &str| {
                    let mut bytes = [0; 16];
                    let text = text.as_bytes();
                    bytes[..text.len()].copy_from_slice(text);
                    bytes
                };
                let idempotency = IdempotencyKey { key: hashed(&key), body: [1; 16] };
                let count = u32::try_from(number(event, "gpus")).unwrap();
                let (tenant, spec) = (tenant(who), spec(count, 3_600));
                let submit = Command::SubmitRequest { request, tenant, spec };
                let outcome = self.cell.ask(user(who), Some(idempotency), submit);
                assert!(matches!(outcome, Outcome::Done { .. }), "{outcome:?}");
                self.requests.push((key, request));
                self.cell.tick();
            }
            // After a kill nothing is granted before the agent has reported.
            "lease_granted" if self.cell.state.leases().is_empty() => {
                talk(&mut self.cell, &mut [&mut self.one]);
                assert_eq!(self.cell.state.leases().len(), 1, "{}", self.case.from);
            }
            "lease_granted" => assert_eq!(self.cell.state.leases().len(), 1, "{}", self.case.from),
            "agent_ack" | "agent_inventory" => {
                talk(&mut self.cell, &mut [&mut self.one]);
                self.cell.later(10);
                self.one.later(10);
            }
            // Log and journal are read again; an old snapshot only makes the log to be read longer.
            "broker_kill_9" => self.cell.restart(),
            "broker_start" => {}
            "redelivered_offer" => self.redeliver(),
            other => panic!("{other} in {}", self.case.from),
        }
    }

    /// The first offers of all slices come again, as they were.
    fn redeliver(&mut self) {
        let offers = self.cell.journal.iter().filter_map(|record| match &record.event {
            Event::CapacityOffered { offer, .. } if offer.generation == 1 => Some(*offer),
            _other => None,
        });
        for offer in offers.collect::<Vec<_>>() {
            let is_open = self.cell.state.offers().contains_key(&offer.slice);
            let message: UpEnvelope = self.one.envelope(Up::Offer(offer));
            let reply = self.cell.hear(&message);
            let expected = if is_open { Reply::Done } else { Reply::Refused(Rejection::OfferOld) };
            assert_eq!(reply, expected, "what is leased is not offered again");
        }
    }

    /// Which request each GPU was granted to, ever.
    fn grants(&self) -> Vec<(usize, String)> {
        let place = |slice| (0..2).find(|device| gpu(0, *device) == slice).unwrap();
        let key_of = |request| {
            self.requests.iter().find(|(_, id)| *id == request).map(|(key, _)| key.clone())
        };
        let grants = self.cell.journal.iter().filter_map(|record| match &record.event {
            Event::LeaseGranted { terms, .. } => {
                Some((place(terms.members[0].slice), key_of(terms.request).unwrap()))
            }
            _other => None,
        });
        grants.collect()
    }
}

/// Case D01 as a sequence of events, with a further kill after each of them.
#[test]
fn the_sequence_of_a_restart_comes_out_the_same_whatever_step_is_followed_by_a_kill() {
    for case in cases("D01", "sequence.jsonl") {
        let mut all = Vec::new();
        for killed_after in 0..=case.events.len() {
            let (cell, one) = (Cell::new(), Node::new(0, 2));
            let mut run = Restarts { case: &case, cell, one, requests: Vec::new() };
            talk(&mut run.cell, &mut [&mut run.one]);
            for (step, event) in case.events.iter().enumerate() {
                run.step(event);
                if step == killed_after {
                    run.cell.restart();
                }
            }
            talk(&mut run.cell, &mut [&mut run.one]);
            check_restarts(&run);
            all.push(run.grants());
        }
        assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "{all:?}");
    }
}

fn check_restarts(run: &Restarts<'_>) {
    let (grants, facts) = (run.grants(), &run.case.facts);
    assert_eq!(grants.len(), 2, "{grants:?}");
    for (place, owner) in grants.iter().map(|(place, key)| (place, key)) {
        let fact = text(&facts["active_after"], &format!("gpu-{place}"));
        let (_, request) = run.requests.iter().find(|(key, _)| key == owner).unwrap();
        let tenant = run.cell.state.requests()[request].tenant().to_string();
        assert!(fact.contains(&tenant), "gpu-{place}: {fact}, not {tenant}");
    }
    let owners = grants.iter().filter(|(place, _)| *place == 0).count();
    assert_eq!(u64::try_from(owners).unwrap(), number(facts, "gpu-0_owners_ever"));
    for (key, request) in &run.requests {
        let is_out = facts[key.as_str()].as_str().is_some_and(|fact| fact == "no capacity");
        assert_eq!(run.cell.state.waiting().contains(request), is_out, "{key}");
    }
}
