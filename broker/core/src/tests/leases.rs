//! The life of a lease: confirmed, used, ended, paid.

use sublet_protocol::commands::{Command, GuestOutcome, NackReason, ReclaimCause, Usage};
use sublet_protocol::events::Event;
use sublet_protocol::ids::{Boot, LeaseId, Token};
use sublet_protocol::leases::EndReason;
use sublet_protocol::money::{Account, MicroCredits};
use sublet_protocol::refusals::Rejection;
use sublet_protocol::requests::{Class, OnRecall, RequestSpec};
use sublet_protocol::units::Seconds;

use sublet_protocol::commands::Actor;

use crate::state::{LeaseStage, RequestStage};
use crate::testing::{World, agent, gpu, millis, spec, tenant, user};

fn world_with_lease() -> (World, LeaseId) {
    let mut world = World::with_nodes(1);
    let request = world.submit("acme", 1, spec(Class::Batch, 1));
    let lease = world.activate(request, &[0]);
    (world, lease)
}

#[track_caller]
fn ended(events: &[Event]) -> (EndReason, i64, i64) {
    let over = events.iter().find_map(|event| match event {
        Event::LeaseEnded { reason, settlement, .. } => {
            Some((*reason, settlement.cost.get(), settlement.fee.get()))
        }
        _other => None,
    });
    over.expect("the lease ended")
}

#[test]
fn a_lease_becomes_active_when_the_last_member_confirms() {
    let mut world = World::with_nodes(1);
    let request = world.submit("acme", 1, spec(Class::Batch, 2));
    let lease = world.grant(request, &[0, 1]);
    let (token, boot) = (world.token(lease), Boot::new(1));
    let confirm = |slice| Command::ConfirmMember { lease, slice, token, boot };
    world.must(agent(gpu(0)), confirm(gpu(0)));
    assert!(matches!(world.stage(lease), Some(LeaseStage::Granted { .. })));
    assert_eq!(world.must(agent(gpu(0)), confirm(gpu(0))), vec![], "again is not an error");
    world.must(agent(gpu(1)), confirm(gpu(1)));
    assert!(matches!(world.stage(lease), Some(LeaseStage::Active { .. })));
}

#[test]
fn a_confirmation_needs_the_token_the_member_and_the_boot_of_the_grant() {
    let mut world = World::with_nodes(1);
    let request = world.submit("acme", 1, spec(Class::Batch, 1));
    let lease = world.grant(request, &[0]);
    let (token, boot, slice) = (world.token(lease), Boot::new(1), gpu(0));
    let old = Token { counter: token.counter - 1, ..token };
    let rows = [
        (Command::ConfirmMember { lease, slice, token: old, boot }, Rejection::TokenMismatch),
        (Command::ConfirmMember { lease, slice: gpu(1), token, boot }, Rejection::MemberMissing),
        (Command::ConfirmMember { lease, slice, token, boot: Boot::new(2) }, Rejection::BootOld),
        (
            Command::ConfirmMember { lease: LeaseId::new(9), slice, token, boot },
            Rejection::LeaseMissing,
        ),
    ];
    for (command, rejection) in rows {
        world.refuse(agent(slice), command, rejection);
    }
    let good = Command::ConfirmMember { lease, slice, token, boot };
    world.refuse(user("acme"), good.clone(), Rejection::NotAllowed);
    world.must(agent(slice), good);
}

#[test]
fn a_finished_guest_pays_for_what_it_ran_and_frees_the_slice() {
    let (mut world, lease) = world_with_lease();
    world.later(Seconds::new(1_800));
    let events = world.stop(lease, gpu(0), Seconds::new(1_800), GuestOutcome::Exited { code: 0 });
    assert_eq!(ended(&events), (EndReason::Completed, 1_000_000, 50_000));
    assert!(world.state.leases().is_empty() && world.state.requests().is_empty());
    assert_eq!(world.state.tenants()[&tenant("acme")].hold(), MicroCredits::ZERO);
    let lines = events.iter().flat_map(Event::lines);
    let revenue = lines.filter(|line| line.account == Account::Revenue(tenant("owner")));
    assert_eq!(revenue.map(|line| line.credit.get()).sum::<i64>(), 950_000);
}

#[test]
fn a_charge_is_never_for_more_than_the_time_since_activation_nor_the_bought_time() {
    let (mut world, lease) = world_with_lease();
    world.later(Seconds::new(900));
    let lie = Seconds::new(3_000);
    let events = world.stop(lease, gpu(0), lie, GuestOutcome::Exited { code: 0 });
    assert_eq!(ended(&events).1, 500_000, "a quarter of an hour at 2 per hour");

    let (mut world, lease) = world_with_lease();
    world.later(Seconds::new(7_200));
    let events = world.stop(lease, gpu(0), Seconds::new(7_200), GuestOutcome::Exited { code: 0 });
    assert_eq!(ended(&events).1, 2_000_000, "the bought hour");
}

#[test]
fn a_guest_that_fails_is_paid_for_and_its_request_is_closed() {
    let (mut world, lease) = world_with_lease();
    world.later(Seconds::new(60));
    let events = world.stop(lease, gpu(0), Seconds::new(60), GuestOutcome::Exited { code: 3 });
    assert_eq!(ended(&events).0, EndReason::GuestFailed);
    assert!(world.state.requests().is_empty());
}

#[test]
fn an_owner_that_comes_back_ends_the_lease_and_the_request_waits_again() {
    let (mut world, lease) = world_with_lease();
    let first_submitted = world.state.requests().values().next().unwrap().submitted_at();
    world.later(Seconds::new(1_200));
    let (slice, token, boot) = (gpu(0), world.token(lease), Boot::new(1));
    let cause = ReclaimCause::OwnerArrived;
    world.must(agent(slice), Command::ReclaimSlice { slice, token, boot, cause });
    let Some(LeaseStage::Ending { cause, deadline, .. }) = world.stage(lease) else {
        panic!("the lease is ending");
    };
    assert_eq!((*cause, *deadline), (EndReason::Reclaimed, world.now.after(Seconds::new(120))));
    let events = world.stop(lease, slice, Seconds::new(1_200), GuestOutcome::Stopped);
    assert_eq!(ended(&events).0, EndReason::Reclaimed);
    let request = world.state.requests().values().next().unwrap();
    assert_eq!(request.stage(), &RequestStage::Waiting);
    assert_eq!((request.submitted_at(), request.recalls()), (first_submitted, 1));
}

#[test]
fn a_reclaim_before_the_minimum_run_time_costs_the_borrower_nothing() {
    for (seconds, cost) in [(599, 0), (600, 333_333)] {
        let (mut world, lease) = world_with_lease();
        world.later(Seconds::new(seconds));
        let (slice, token, boot) = (gpu(0), world.token(lease), Boot::new(1));
        let cause = ReclaimCause::OwnerArrived;
        world.must(agent(slice), Command::ReclaimSlice { slice, token, boot, cause });
        let events = world.stop(lease, slice, Seconds::new(seconds), GuestOutcome::Stopped);
        assert_eq!(ended(&events).1, cost, "after {seconds} s");
    }
}

#[test]
fn a_request_that_does_not_want_to_wait_again_is_closed_by_a_recall() {
    let mut world = World::with_nodes(1);
    let once = RequestSpec { on_recall: OnRecall::Close, ..spec(Class::Batch, 1) };
    let request = world.submit("acme", 1, once);
    let lease = world.activate(request, &[0]);
    let (slice, token, boot) = (gpu(0), world.token(lease), Boot::new(1));
    let cause = ReclaimCause::ForeignUse;
    world.must(agent(slice), Command::ReclaimSlice { slice, token, boot, cause });
    let events = world.stop(lease, slice, Seconds::ZERO, GuestOutcome::Stopped);
    assert_eq!(ended(&events).0, EndReason::ForeignUse);
    assert!(world.state.requests().is_empty());
}

#[test]
fn a_refused_member_ends_the_gang_unpaid_and_it_is_tried_again_twice() {
    let mut world = World::with_nodes(1);
    let request = world.submit("acme", 1, spec(Class::Batch, 1));
    for attempt in 0..3_u64 {
        let lease = world.grant(request, &[attempt]);
        let (slice, token, boot) = (gpu(attempt), world.token(lease), Boot::new(1));
        let reason = NackReason::NotEmpty;
        let refuse = Command::RefuseMember { lease, slice, token, boot, reason };
        let events = world.must(agent(slice), refuse);
        assert_eq!(ended(&events), (EndReason::StartFailed, 0, 0));
        assert_eq!(world.state.requests().contains_key(&request), attempt < 2);
    }
}

#[test]
fn a_refusal_of_an_active_member_comes_too_late() {
    let (mut world, lease) = world_with_lease();
    let (slice, token, boot) = (gpu(0), world.token(lease), Boot::new(1));
    let reason = NackReason::OwnerBusy;
    let refuse = Command::RefuseMember { lease, slice, token, boot, reason };
    world.refuse(agent(slice), refuse.clone(), Rejection::LeaseActive);
    world.must(user("acme"), Command::ReleaseLease { lease });
    world.refuse(agent(slice), refuse, Rejection::LeaseActive);
}

#[test]
fn a_later_start_of_the_agent_settles_what_the_earlier_ran_and_nothing_else() {
    let (mut world, lease) = world_with_lease();
    world.later(Seconds::new(900));
    let (slice, token, boot) = (gpu(0), world.token(lease), Boot::new(2));
    world.refuse(
        agent(slice),
        Command::ConfirmMember { lease, slice, token, boot },
        Rejection::BootOld,
    );
    let (used, outcome) = (Seconds::new(900).as_millis(), GuestOutcome::Stopped);
    let report = Command::ReportStopped { lease, slice, token, boot, used, outcome };
    let events = world.must(agent(slice), report);
    assert_eq!(ended(&events), (EndReason::AgentLost, 500_000, 25_000));
    world.register(0, 2);
}

#[test]
fn a_lease_that_does_not_start_in_time_is_ended_by_the_sweep() {
    let mut world = World::with_nodes(1);
    let request = world.submit("acme", 1, spec(Class::Batch, 1));
    let lease = world.grant(request, &[0]);
    world.later(Seconds::new(299));
    world.must(Actor::Leader, Command::Sweep);
    assert!(matches!(world.stage(lease), Some(LeaseStage::Granted { .. })));
    world.later(Seconds::new(1));
    world.must(Actor::Leader, Command::Sweep);
    let stage = world.stage(lease);
    assert!(matches!(stage, Some(LeaseStage::Ending { cause: EndReason::StartFailed, .. })));
}

#[test]
fn a_lease_ends_when_its_bought_time_is_over() {
    let (mut world, lease) = world_with_lease();
    world.later(Seconds::new(3_600));
    world.must(Actor::Leader, Command::Sweep);
    let events = world.stop(lease, gpu(0), Seconds::new(3_650), GuestOutcome::Stopped);
    assert_eq!(ended(&events), (EndReason::Expired, 2_000_000, 100_000));
}

#[test]
fn a_released_lease_ends_and_its_request_is_closed() {
    let (mut world, lease) = world_with_lease();
    world.refuse(user("owner"), Command::ReleaseLease { lease }, Rejection::LeaseMissing);
    world.later(Seconds::new(60));
    world.must(user("acme"), Command::ReleaseLease { lease });
    assert_eq!(world.must(user("acme"), Command::ReleaseLease { lease }), vec![]);
    let events = world.stop(lease, gpu(0), Seconds::new(60), GuestOutcome::Stopped);
    assert_eq!(ended(&events).0, EndReason::Released);
    assert!(world.state.requests().is_empty());
}

#[test]
fn measured_use_only_grows() {
    let (mut world, lease) = world_with_lease();
    world.later(Seconds::new(60));
    let usage = |used| Command::RecordUsage { entries: vec![Usage { lease, used: millis(used) }] };
    assert_eq!(world.must(Actor::Leader, usage(50_000)).len(), 1);
    assert_eq!(world.must(Actor::Leader, usage(40_000)), vec![]);
    assert_eq!(world.state.leases()[&lease].used(), millis(50_000));
}

#[test]
fn a_silent_agents_lease_ends_with_what_was_last_measured_and_a_late_report_changes_nothing() {
    let (mut world, lease) = world_with_lease();
    world.later(Seconds::new(1_800));
    let entries = vec![Usage { lease, used: millis(1_200_000) }];
    world.must(Actor::Leader, Command::RecordUsage { entries });
    let token = world.token(lease);
    let (slice, boot) = (gpu(0), Boot::new(1));
    let silent = Command::DeclareSilent { cluster: slice.cluster, node: slice.node, boot };
    let events = world.must(Actor::Leader, silent.clone());
    assert_eq!(ended(&events), (EndReason::AgentLost, 666_667, 33_333));
    assert!(world.state.offers().is_empty(), "a silent agent offers nothing");
    assert_eq!(world.must(Actor::Leader, silent), vec![]);
    let outcome = GuestOutcome::Exited { code: 0 };
    let used = millis(1_800_000);
    let late = Command::ReportStopped { lease, slice, token, boot, used, outcome };
    world.refuse(agent(slice), late, Rejection::LeaseMissing);
}

#[test]
fn a_newer_start_of_the_agent_ends_what_ran_under_the_earlier_one() {
    let (mut world, lease) = world_with_lease();
    world.later(Seconds::new(60));
    world.register(0, 2);
    assert_eq!(world.stage(lease), None);
    assert!(world.state.offers().is_empty(), "it must offer again");
    assert!(world.state.waiting().len() == 1, "the request waits again");
}

#[test]
fn a_command_of_a_leader_of_another_term_is_refused() {
    let (mut world, _) = world_with_lease();
    let sweep = sublet_protocol::commands::Stamped {
        id: sublet_protocol::ids::CommandId::new(0),
        actor: Actor::Leader,
        now: world.now,
        term: 1,
        key: None,
        command: Command::Sweep,
    };
    let outcome = crate::apply(&mut world.state, &sweep, 2).outcome;
    let rejection = Rejection::OtherTerm;
    assert_eq!(outcome, sublet_protocol::commands::Outcome::Refused { rejection });
}
