//! Scenarios that went wrong elsewhere, each with real rules and sessions: the peers' incidents of the
//! matching design (numbers in the names' comments), and the lease cases, as fixtures of our own
//! written after them.
#![allow(clippy::unwrap_used, reason = "tests")]

mod bench;

use bench::{Cell, Node, gpu, spec, talk, tenant, user};
use sublet_agent::driver::{Exit, GuestKey, Report};
use sublet_agent::session::Observation;
use sublet_core::LeaseStage;
use sublet_protocol::agent::{Down, GrantTerms, Reply, Up, UpEnvelope};
use sublet_protocol::commands::{
    Actor, Command, GroupOutcome, IdempotencyKey, NackReason, Outcome, PlanGroup, PlanMember,
};
use sublet_protocol::events::Event;
use sublet_protocol::ids::{HostHash, RequestId};
use sublet_protocol::leases::EndReason;
use sublet_protocol::refusals::Rejection;
use sublet_protocol::units::{GpuMilli, Millis, Seconds};

/// A cell and one node with `devices` idle GPUs on offer.
fn pair(devices: usize) -> (Cell, Node) {
    let (mut cell, mut one) = (Cell::new(), Node::new(0, devices));
    talk(&mut cell, &mut [&mut one]);
    one.see_idle();
    talk(&mut cell, &mut [&mut one]);
    assert_eq!(cell.state.offers().len(), devices);
    (cell, one)
}

/// The same with one active lease of `t-a` on each GPU of a request for `count`.
fn leased(devices: usize, count: u32, seconds: u64) -> (Cell, Node) {
    let (mut cell, mut one) = pair(devices);
    cell.submit("t-a", 1, spec(count, seconds));
    talk(&mut cell, &mut [&mut one]);
    assert_eq!(one.guests.len(), usize::try_from(count).unwrap());
    (cell, one)
}

fn ends(cell: &Cell) -> Vec<(EndReason, Millis)> {
    let ends = cell.journal.iter().filter_map(|record| match &record.event {
        Event::LeaseEnded { reason, settlement, .. } => Some((*reason, settlement.billed)),
        _other => None,
    });
    ends.collect()
}

fn held(cell: &Cell, name: &str) -> GpuMilli {
    cell.state.tenants()[&tenant(name)].held(bench::model())
}

fn only_guest(one: &Node) -> GuestKey {
    *one.guests.keys().next().unwrap()
}

fn both_later(cell: &mut Cell, one: &mut Node, seconds: u64) {
    cell.later(seconds);
    one.later(seconds);
}

/// Scenario 8 (kueue#14570): the same node granted twice 16 ms apart.
#[test]
fn two_plans_for_one_gpu_make_one_lease() {
    let (mut cell, _one) = pair(1);
    cell.submit("t-a", 1, spec(1, 600));
    cell.submit("t-b", 2, spec(1, 600));
    let generation = cell.state.offers()[&gpu(0, 0)].terms().generation;
    let members = vec![PlanMember { slice: gpu(0, 0), generation }];
    let plan =
        |number| PlanGroup::Grant { request: RequestId::new(number), members: members.clone() };
    let mut commit =
        |group| match cell.ask(Actor::Leader, None, Command::CommitPlan { groups: vec![group] }) {
            Outcome::Done { mut groups, .. } => groups.remove(0),
            other => panic!("{other:?}"),
        };
    assert!(matches!(commit(plan(1)), GroupOutcome::Granted { .. }));
    let rejection = Rejection::OfferMissing;
    assert_eq!(commit(plan(2)), GroupOutcome::Refused { rejection });
}

/// Scenario 9 (HAMi#3096): a lock expires and its old holder comes late.
#[test]
fn a_grant_with_an_old_token_is_refused_by_the_agent() {
    let (mut cell, mut one) = leased(1, 1, 600);
    let first = only_guest(&one);
    let member = cell.member_of(cell.only_lease());
    let terms = GrantTerms {
        lease: cell.only_lease(),
        slice: first.slice,
        token: first.token,
        boot: sublet_protocol::ids::Boot::new(one.boot),
        tenant: tenant("t-a"),
        ttl: Seconds::new(300),
        renew: Seconds::new(30),
        grace: Seconds::new(30),
        duration: Seconds::new(600),
        workload: None,
        is_first: true,
        capacity: member.capacity,
        origin: member.origin,
    };
    one.end_guest(first, Exit::Code(0));
    talk(&mut cell, &mut [&mut one]);
    cell.submit("t-b", 2, spec(1, 600));
    talk(&mut cell, &mut [&mut one]);
    let second = only_guest(&one);
    assert!(second.token > first.token);
    one.hear(Down::Grant(terms));
    let reason = NackReason::StaleToken;
    assert!(matches!(&one.up[..], [Up::Nack { reason: r, .. }] if *r == reason));
    talk(&mut cell, &mut [&mut one]);
    assert_eq!(only_guest(&one), second, "the new holder is untouched");
}

/// Scenario 15 (gpushare#35): after a reboot nothing is granted until the node has said what is so.
#[test]
fn after_a_reboot_nothing_is_granted_before_the_node_offers_anew() {
    let (mut cell, mut one) = leased(2, 1, 3_600);
    one.restart();
    cell.submit("t-b", 2, spec(1, 600));
    talk(&mut cell, &mut [&mut one]);
    assert_eq!(ends(&cell)[0].0, EndReason::AgentLost);
    assert!(cell.state.offers().is_empty() && cell.state.leases().is_empty());
    one.see_idle();
    talk(&mut cell, &mut [&mut one]);
    assert_eq!(cell.state.leases().len(), 1);
}

/// Scenario 19 (armada#315): all agents silent at once is the broker's fault.
#[test]
fn when_every_agent_is_silent_nothing_is_expired() {
    let mut cell = Cell::new();
    let mut nodes: Vec<Node> = (0..3).map(|number| Node::new(number, 1)).collect();
    let mut all: Vec<&mut Node> = nodes.iter_mut().collect();
    talk(&mut cell, &mut all);
    for one in &mut all {
        one.see_idle();
    }
    talk(&mut cell, &mut all);
    cell.submit("t-a", 1, spec(3, 36_000));
    talk(&mut cell, &mut all);
    assert_eq!(cell.state.leases().len(), 1);
    for _ in 0..100 {
        cell.later(30);
        cell.tick();
    }
    assert_eq!(ends(&cell), [], "nothing is expired while all are silent");
}

/// Scenario 20 (akash#515): the word of the end is lost.
#[test]
fn an_end_that_was_lost_is_said_again_within_two_cycles() {
    let (mut cell, mut one) = leased(1, 1, 3_600);
    let lease = cell.only_lease();
    cell.must(user("t-a"), Command::ReleaseLease { lease });
    let lost = std::mem::take(&mut cell.down);
    assert!(matches!(lost[..], [(_, Down::Stop { .. })]));
    both_later(&mut cell, &mut one, 5);
    cell.tick();
    let key = only_guest(&one);
    for (_, message) in std::mem::take(&mut cell.down) {
        one.hear(message);
    }
    one.end_guest(key, Exit::Code(0));
    one.up.retain(|message| !matches!(message, Up::Stopped { .. }));
    both_later(&mut cell, &mut one, 5);
    talk(&mut cell, &mut [&mut one]);
    assert_eq!(ends(&cell)[0].0, EndReason::Released);
}

/// Scenario 21 (dstack#1551): "terminated", but alive.
#[test]
fn a_slice_is_not_free_before_it_is_proven_empty() {
    let (mut cell, mut one) = leased(1, 1, 3_600);
    let (lease, key) = (cell.only_lease(), only_guest(&one));
    cell.must(user("t-a"), Command::ReleaseLease { lease });
    talk(&mut cell, &mut [&mut one]);
    for report in [Report::Exited(key, Exit::Signal(9)), Report::NotClean(key)] {
        let effects = one.session.on_report(one.clock, report);
        one.carry_out(effects);
    }
    one.see_idle();
    talk(&mut cell, &mut [&mut one]);
    assert!(matches!(cell.state.leases()[&lease].stage(), LeaseStage::Ending { .. }));
    assert!(cell.state.offers().is_empty(), "what is not clean is not offered");
    let effects = one.session.on_report(one.clock, Report::Clean(key));
    one.carry_out(effects);
    talk(&mut cell, &mut [&mut one]);
    assert_eq!((ends(&cell).len(), cell.state.offers().len()), (1, 1));
}

/// Scenario 23 (nats-server#8036): every old message comes again.
#[test]
fn a_full_replay_of_old_messages_changes_no_state_and_bills_nothing_twice() {
    let (mut cell, mut one) = pair(2);
    let mut said = Vec::new();
    cell.submit("t-a", 1, spec(1, 600));
    said.extend(talk(&mut cell, &mut [&mut one]));
    both_later(&mut cell, &mut one, 100);
    let key = only_guest(&one);
    one.end_guest(key, Exit::Code(0));
    said.extend(talk(&mut cell, &mut [&mut one]));
    cell.submit("t-b", 2, spec(1, 600));
    said.extend(talk(&mut cell, &mut [&mut one]));
    let (before, records) = (cell.state.clone(), cell.journal.len());
    assert!(said.len() > 5);
    for message in &said {
        cell.hear(message);
    }
    assert_eq!(cell.journal.len(), records, "no record was made");
    assert_eq!(cell.state, before);
}

/// Scenario 24 (etcd#12291): the holder stops before the taker starts, whatever the clocks.
#[test]
fn a_silent_holder_is_dead_before_its_gpu_is_granted_again() {
    let (mut cell, mut one) = leased(2, 1, 36_000);
    // The agent is cut off. Its clock is 1 % slow, the leader's 1 % fast: what the policy allows.
    let gone_after = Seconds::new(300).as_millis().get() * 100 / 99;
    let silent_after = cell.state.policy().silence().as_millis().get() * 100 / 101;
    assert!(gone_after < silent_after);
    let begin = one.clock;
    while !one.guests.is_empty() {
        one.later(1);
    }
    let alive = (one.clock.get() - begin.get()) * 100 / 99;
    assert!(alive < silent_after, "dead after {alive} ms, taken after {silent_after} ms");
    cell.later(337 + 10);
    cell.tick();
    assert_eq!(ends(&cell)[0].0, EndReason::AgentLost);
}

/// A dead job holds no GPU: what scenario 7 (kueue#14811) can be without a detector of stalled ones.
#[test]
fn a_dead_job_gives_its_gpu_back_at_once_and_no_job_outlives_its_bought_time() {
    let (mut cell, mut one) = leased(1, 1, 3_600);
    let key = only_guest(&one);
    one.end_guest(key, Exit::Signal(11));
    talk(&mut cell, &mut [&mut one]);
    assert_eq!(ends(&cell)[0].0, EndReason::GuestFailed);
    cell.submit("t-b", 2, spec(1, 3_600));
    talk(&mut cell, &mut [&mut one]);
    for _ in 0..130 {
        both_later(&mut cell, &mut one, 30);
        talk(&mut cell, &mut [&mut one]);
    }
    assert!(one.guests.is_empty());
    assert_eq!(ends(&cell)[1].0, EndReason::Expired);
}

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

/// Case D05: durations are of the agent's monotonic clock; order is the journal's.
#[test]
fn clocks_that_disagree_change_neither_order_nor_durations() {
    let (mut cell, mut one) = leased(1, 1, 7_200);
    for _ in 0..60 {
        both_later(&mut cell, &mut one, 10);
        talk(&mut cell, &mut [&mut one]);
    }
    // A new leader's clock is 95 s behind the journal: time stands still until it has caught up.
    let behind = cell.now.get() - 95_000;
    cell.now = sublet_protocol::units::Timestamp::new(behind);
    let key = only_guest(&one);
    one.end_guest(key, Exit::Code(0));
    talk(&mut cell, &mut [&mut one]);
    assert_eq!(ends(&cell), [(EndReason::Completed, Seconds::new(600).as_millis())]);
    let times: Vec<_> = cell.journal.iter().map(|record| (record.index, record.time)).collect();
    assert!(times.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1));
}

/// Case D06: ten leases end in ten ways; the quota comes back each time, once.
#[test]
fn quota_comes_back_from_every_kind_of_end() {
    let (mut cell, mut one) = pair(16);
    let mut number = 0_u128;
    let mut begin = |cell: &mut Cell, count| {
        number += 1;
        let request = cell.submit("t-a", number, spec(count, 600));
        cell.tick();
        request
    };
    let lease_of = |cell: &Cell, request: RequestId| {
        let its = cell.state.leases().values().find(|lease| lease.terms().request == request);
        its.map(|lease| (lease.terms().lease, lease.terms().token, lease.terms().members[0].slice))
    };
    // Cancelled while it waits, and while it is granted but not confirmed.
    let pending = begin(&mut cell, 4);
    cell.must(user("t-a"), Command::CancelRequest { request: pending });
    talk(&mut cell, &mut [&mut one]);
    // Refused at the start: the owner is there.
    one.see(Observation::OwnerArrived(gpu(0, 0).device));
    begin(&mut cell, 1);
    talk(&mut cell, &mut [&mut one]);
    // The start times out; the late confirmation is answered with a stop and never billed.
    let late = begin(&mut cell, 2);
    cell.down.clear();
    let (lease, token, slice) = lease_of(&cell, late).unwrap();
    cell.later(301);
    cell.tick();
    let confirm = one.envelope(Up::Confirm { lease, slice, token, nonce: Millis::new(5) });
    assert_eq!(cell.hear(&confirm), Reply::Refused(Rejection::LeaseEnding));
    assert!(cell.down.iter().any(|(_, message)| matches!(message, Down::Stop { .. })));
    one.see_idle();
    talk(&mut cell, &mut [&mut one]);
    assert!(ends(&cell).iter().all(|(_, billed)| *billed == Millis::ZERO), "{:?}", ends(&cell));
    // Released twice, finished, taken back by the owner, expired.
    for kind in 0..4 {
        let request = begin(&mut cell, 1);
        talk(&mut cell, &mut [&mut one]);
        let Some((lease, token, slice)) = lease_of(&cell, request) else { continue };
        assert!(held(&cell, "t-a") <= GpuMilli::new(16_000));
        let key = GuestKey { slice, token };
        match kind {
            0 => {
                for _ in 0..2 {
                    cell.ask(user("t-a"), None, Command::ReleaseLease { lease });
                }
                talk(&mut cell, &mut [&mut one]);
                one.end_guest(key, Exit::Code(0));
            }
            1 => one.end_guest(key, Exit::Code(0)),
            2 => {
                one.see(Observation::OwnerArrived(slice.device));
                one.end_guest(key, Exit::Code(0));
            }
            _expired => both_later(&mut cell, &mut one, 700),
        }
        talk(&mut cell, &mut [&mut one]);
    }
    // The broker is killed between grant and message; then the node is lost.
    begin(&mut cell, 1);
    cell.restart();
    talk(&mut cell, &mut [&mut one]);
    assert!(held(&cell, "t-a") > GpuMilli::ZERO);
    cell.later(700);
    cell.tick();
    cell.tick();
    cell.down.clear();
    assert_eq!(held(&cell, "t-a"), GpuMilli::ZERO, "{:?}", cell.state.leases());
    let kinds: std::collections::BTreeSet<EndReason> =
        ends(&cell).iter().map(|(reason, _)| *reason).collect();
    assert!(kinds.len() >= 5, "{kinds:?}");
}

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

/// Rule LE3.
#[test]
fn a_stop_for_a_grant_that_is_still_underway_keeps_it_out() {
    let (mut cell, mut one) = pair(1);
    cell.submit("t-a", 1, spec(1, 600));
    cell.tick();
    let late = std::mem::take(&mut cell.down);
    let lease = cell.only_lease();
    cell.must(user("t-a"), Command::ReleaseLease { lease });
    talk(&mut cell, &mut [&mut one]);
    assert_eq!(ends(&cell), [(EndReason::Released, Millis::ZERO)]);
    for (_, message) in late {
        one.hear(message);
    }
    assert!(!one.up.iter().any(|message| matches!(message, Up::Confirm { .. })));
    assert!(one.guests.is_empty());
}
