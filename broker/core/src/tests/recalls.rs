//! The owner takes back what is lent: by plan, in an emergency, by coming.

use sublet_protocol::commands::{Actor, Command, GuestOutcome, Recall};
use sublet_protocol::events::Event;
use sublet_protocol::ids::Boot;
use sublet_protocol::leases::EndReason;
use sublet_protocol::money::MicroCredits;
use sublet_protocol::preemption::PreemptionPolicy;
use sublet_protocol::refusals::Rejection;
use sublet_protocol::requests::Class;

use super::preemption::{seconds, singles, with_policy};
use crate::testing::{World, agent, gpu, user};

#[test]
fn an_owner_recalls_by_plan_not_before_the_notice_nor_the_minimum_run_time() {
    let mut world = World::with_nodes(1);
    let lease = singles(&mut world, "acme", 0, &[Class::Training])[0];
    world.later(seconds(100));
    let at = |world: &World, span| Recall::Planned { by: world.now.after(seconds(span)) };
    let recall = |recall| Command::RecallLease { lease, recall };
    let soon = recall(at(&world, 499));
    world.refuse(user("owner"), soon, Rejection::RecallTooSoon);
    world.refuse(user("acme"), recall(at(&world, 500)), Rejection::LeaseMissing);
    world.later(seconds(450));
    world.refuse(user("owner"), recall(at(&world, 119)), Rejection::RecallTooSoon);
    let by = world.now.after(seconds(120));
    let events = world.must(user("owner"), recall(Recall::Planned { by }));
    assert_eq!(events, [Event::LeaseRecalled { lease, by }]);
    assert_eq!(world.must(user("owner"), recall(Recall::Planned { by })), []);
    assert_eq!(world.state.leases()[&lease].recalled_by(), Some(by));
    world.later(seconds(119));
    assert_eq!(world.must(Actor::Leader, Command::Sweep), [], "it is not forced before");
    world.later(seconds(1));
    let deadline = world.now.after(seconds(120));
    let forced = Event::LeaseEnding { lease, cause: EndReason::Reclaimed, deadline };
    assert_eq!(world.must(Actor::Leader, Command::Sweep), [forced]);
    world.refuse(user("owner"), recall(at(&world, 9_999)), Rejection::LeaseEnding);
    let ended = world.stop(lease, gpu(0), seconds(670), GuestOutcome::Stopped);
    let Some(Event::LeaseEnded { settlement, .. }) =
        ended.iter().find(|event| matches!(event, Event::LeaseEnded { .. }))
    else {
        panic!("{ended:?}");
    };
    assert!(settlement.cost > MicroCredits::ZERO, "it ran longer than the minimum");
}

#[test]
fn a_recall_in_an_emergency_is_at_once_and_costs_the_borrower_nothing_before_the_minimum() {
    let mut world = World::with_nodes(1);
    let lease = singles(&mut world, "acme", 0, &[Class::Training])[0];
    world.later(seconds(100));
    let recall = Command::RecallLease { lease, recall: Recall::Emergency };
    let deadline = world.now.after(seconds(120));
    let events = world.must(user("owner"), recall);
    assert_eq!(events, [Event::LeaseEnding { lease, cause: EndReason::Reclaimed, deadline }]);
    let ended = world.stop(lease, gpu(0), seconds(110), GuestOutcome::Stopped);
    let free = ended.iter().any(|event| {
        matches!(event, Event::LeaseEnded { settlement, .. } if settlement.cost == MicroCredits::ZERO)
    });
    assert!(free, "{ended:?}");
}

#[test]
fn a_recall_is_forgotten_when_the_lease_ends_before_and_may_be_put_off() {
    let mut world = World::with_nodes(1);
    let lease = singles(&mut world, "acme", 0, &[Class::Training])[0];
    world.later(seconds(600));
    let by = world.now.after(seconds(600));
    let later = by.after(seconds(600));
    for by in [by, later] {
        world.must(user("owner"), Command::RecallLease { lease, recall: Recall::Planned { by } });
    }
    world.later(seconds(700));
    world.must(Actor::Leader, Command::Sweep);
    assert!(world.state.leases()[&lease].is_running(), "it was put off");
    world.must(user("acme"), Command::ReleaseLease { lease });
    world.stop(lease, gpu(0), seconds(1_300), GuestOutcome::Stopped);
    assert_eq!(world.state.next_due(), None, "nothing is due any more");
}

#[test]
fn the_owner_who_comes_is_bound_by_no_protection_and_no_budget() {
    let mut world = World::with_nodes(1);
    let none = PreemptionPolicy { per_cell_hour: 0, per_request: 0, ..PreemptionPolicy::default() };
    with_policy(&mut world, none);
    let lease = singles(&mut world, "acme", 0, &[Class::Latency])[0];
    let (slice, token, boot) = (gpu(0), world.token(lease), Boot::new(1));
    let cause = sublet_protocol::commands::ReclaimCause::OwnerArrived;
    let events = world.must(agent(slice), Command::ReclaimSlice { slice, token, boot, cause });
    assert!(matches!(events[..], [Event::LeaseEnding { cause: EndReason::Reclaimed, .. }]));
}
