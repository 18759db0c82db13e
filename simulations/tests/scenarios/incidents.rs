//! Incidents of the peers that the matching design lists, by their numbers there, and rule LE3.

use sublet_agent::driver::{Exit, Report};
use sublet_core::LeaseStage;
use sublet_protocol::agent::{Down, GrantTerms, Up};
use sublet_protocol::commands::{
    Actor, Command, GroupOutcome, NackReason, Outcome, PlanGroup, PlanMember,
};
use sublet_protocol::ids::RequestId;
use sublet_protocol::leases::EndReason;
use sublet_protocol::refusals::Rejection;
use sublet_protocol::units::{Millis, Seconds};

use crate::bench::{Cell, Node, gpu, spec, talk, tenant, user};
use crate::{both_later, ends, leased, only_guest, pair};

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
    let GroupOutcome::Overtaken { rejection: told, by } = commit(plan(2)) else {
        panic!("it is told who came first");
    };
    assert_eq!(told, rejection);
    let lease = cell.state.leases().values().next().unwrap();
    assert_eq!((lease.terms().request, lease.granted_by()), (RequestId::new(1), by));
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
