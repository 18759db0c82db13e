//! Case D07: two tenants with equal rights want a whole node, and a third comes again and again with a
//! small request of a higher tier. Real rules, leader's logic and agent session, in virtual time.

use std::collections::BTreeMap;

use sublet_agent::driver::Exit;
use sublet_core::LeaseStage;
use sublet_protocol::events::Event;
use sublet_protocol::ids::{LeaseId, RequestId, TenantId};
use sublet_protocol::leases::EndReason;
use sublet_protocol::requests::{Class, OnRecall, RequestSpec};
use sublet_protocol::units::Seconds;

use crate::bench::{Cell, Node, spec, talk, tenant};
use crate::support::shared_case;

/// Virtual seconds between two looks at everything.
const STEP: u64 = 10;

/// Who asks for what, when: seconds, tenant, GPUs, seconds of work, and whether it ranks higher.
#[derive(Debug, Clone)]
struct Arrival {
    at: u64,
    tenant: &'static str,
    gpus: u32,
    work: u64,
    is_high: bool,
}

/// What came of it.
#[derive(Debug, Default)]
struct Story {
    /// When a lease was preempted, whose, and for whom.
    preemptions: Vec<(u64, RequestId, TenantId, TenantId)>,
    /// When each request's work was done.
    finished: BTreeMap<RequestId, u64>,
}

fn play(arrivals: &[Arrival], until: u64) -> Story {
    let (mut cell, mut one) = (Cell::new(), Node::new(0, 8));
    talk(&mut cell, &mut [&mut one]);
    one.see_idle();
    talk(&mut cell, &mut [&mut one]);
    let (start, mut next, mut heard) = (cell.now, 0, 0);
    let mut story = Story::default();
    let mut clock = 0;
    while clock <= until {
        while let Some(arrival) = arrivals.get(next).filter(|arrival| arrival.at <= clock) {
            next += 1;
            let class = if arrival.is_high { Class::Latency } else { Class::Training };
            let wanted = spec(arrival.gpus, arrival.work + 600);
            let wanted = RequestSpec { class, on_recall: OnRecall::Requeue, ..wanted };
            cell.submit(arrival.tenant, u128::try_from(next).unwrap(), wanted);
        }
        talk(&mut cell, &mut [&mut one]);
        end_guests(&mut cell, &mut one, arrivals);
        one.see_idle();
        talk(&mut cell, &mut [&mut one]);
        hear(&cell, &mut heard, start, &mut story);
        clock += STEP;
        cell.later(STEP);
        one.later(STEP);
    }
    story
}

/// Guests whose work is done end well; those that were told to go obey. Nothing is saved: who is
/// preempted begins anew.
fn end_guests(cell: &mut Cell, one: &mut Node, arrivals: &[Arrival]) {
    let mut over = Vec::new();
    for lease in cell.state.leases().values() {
        let terms = lease.terms();
        let arrival = usize::try_from(terms.request.get()).unwrap() - 1;
        let exit = match lease.stage() {
            LeaseStage::Active { since, .. } => {
                let ran = cell.now.since(*since).as_seconds_floor();
                (ran >= Seconds::new(arrivals[arrival].work)).then_some(Exit::Code(0))
            }
            LeaseStage::Ending { .. } => Some(Exit::Signal(15)),
            LeaseStage::Granted { .. } => None,
        };
        over.extend(exit.map(|exit| (terms.token, exit)));
    }
    for (token, exit) in over {
        let keys: Vec<_> = one.guests.keys().filter(|key| key.token == token).copied().collect();
        for key in keys {
            one.end_guest(key, exit);
        }
    }
}

fn hear(
    cell: &Cell,
    heard: &mut usize,
    start: sublet_protocol::units::Timestamp,
    story: &mut Story,
) {
    let mut victims: Vec<LeaseId> = Vec::new();
    for record in &cell.journal[*heard..] {
        let at = record.time.since(start).as_seconds_floor().get();
        match &record.event {
            Event::LeaseEnding { lease, cause: EndReason::Preempted, .. } => victims.push(*lease),
            Event::CapacityPledged { request, .. } => {
                let by = tenant_of(cell, *request);
                for victim in victims.drain(..) {
                    let request = request_of(cell, victim);
                    story.preemptions.push((at, request, tenant_of(cell, request), by));
                }
            }
            Event::LeaseEnded { request, reason: EndReason::Completed, .. } => {
                story.finished.insert(*request, at);
            }
            _other => {}
        }
    }
    *heard = cell.journal.len();
}

fn request_of(cell: &Cell, lease: LeaseId) -> RequestId {
    let granted = cell.journal.iter().find_map(|record| match &record.event {
        Event::LeaseGranted { terms, .. } if terms.lease == lease => Some(terms.request),
        _other => None,
    });
    granted.unwrap()
}

fn tenant_of(cell: &Cell, request: RequestId) -> TenantId {
    let submitted = cell.journal.iter().find_map(|record| match &record.event {
        Event::RequestSubmitted { request: id, tenant, .. } if *id == request => Some(*tenant),
        _other => None,
    });
    submitted.unwrap()
}

/// What must hold: equals never preempt each other, nobody before the minimum run time or more than
/// twice, and both large requests are done within four hours.
fn check(arrivals: &[Arrival]) -> Story {
    let story = play(arrivals, 4 * 3_600);
    let large: Vec<RequestId> = (1..)
        .zip(arrivals)
        .filter(|(_, arrival)| !arrival.is_high)
        .map(|(number, _)| RequestId::new(number))
        .collect();
    let c = tenant("t-c");
    let by_equals = story.preemptions.iter().filter(|(.., by)| *by != c).count();
    assert_eq!(by_equals, 0, "{:?}", story.preemptions);
    let first = story.preemptions.first().map(|(at, ..)| *at).unwrap();
    assert!(first >= 600, "the first preemption is at {first} s");
    for request in large {
        let count = story.preemptions.iter().filter(|(_, victim, ..)| *victim == request).count();
        assert!(count <= 2, "{request} was preempted {count} times");
        let finished = story.finished.get(&request);
        assert!(finished.is_some_and(|at| *at <= 4 * 3_600), "{request} ended at {finished:?}");
    }
    let done = story.finished.len();
    assert_eq!(done, arrivals.len(), "everybody is served in the end");
    story
}

/// A fixture of our own: other times and sizes than the public case.
fn made_up() -> Vec<Arrival> {
    let large = |at, tenant| Arrival { at, tenant, gpus: 8, work: 3_000, is_high: false };
    let small = |number: u64| Arrival {
        at: 90 + 150 * number,
        tenant: "t-c",
        gpus: 1,
        work: 40,
        is_high: true,
    };
    [large(0, "t-a"), large(10, "t-b")].into_iter().chain((0..24).map(small)).collect()
}

#[test]
fn case_d07_two_equals_do_not_swap_and_a_third_does_not_starve_them() {
    let story = check(&made_up());
    assert!(story.preemptions.len() <= 4, "{:?}", story.preemptions);
}

/// The public case itself, if the public cases are there.
#[test]
fn case_d07_as_it_was_published() {
    let Some(folder) = shared_case("D07") else { return };
    let text = std::fs::read_to_string(folder.join("arrivals.jsonl")).unwrap();
    let arrivals: Vec<Arrival> = text.lines().map(arrival).collect();
    assert!(arrivals.len() > 10);
    check(&arrivals);
}

fn arrival(line: &str) -> Arrival {
    let line: serde_json::Value = serde_json::from_str(line).unwrap();
    let whole = |name: &str| line[name].as_u64().unwrap();
    let tenant = match line["tenant"].as_str().unwrap() {
        "A" => "t-a",
        "B" => "t-b",
        "C" => "t-c",
        other => panic!("{other} is nobody"),
    };
    Arrival {
        at: whole("t_s"),
        tenant,
        gpus: u32::try_from(whole("gpus")).unwrap(),
        work: whole("want_s"),
        is_high: line["priority"] == "high",
    }
}
