//! Budgets of a month: what is held, what is posted, and what a cut does.

use sublet_protocol::commands::{Actor, Command, GroupOutcome, GuestOutcome, PlanGroup};
use sublet_protocol::events::Event;
use sublet_protocol::ids::{LeaseId, RequestId};
use sublet_protocol::leases::EndReason;
use sublet_protocol::money::MicroCredits;
use sublet_protocol::quotas::{Budget, Quota, Reclaim, TenantTerms, Weight};
use sublet_protocol::refusals::Rejection;
use sublet_protocol::requests::{Class, RequestSpec, WaitReason};
use sublet_protocol::units::{GpuMilli, GpuTime, Millis, Seconds, Timestamp};

use super::quotas::{create, join, set};
use crate::matching::explain;
use crate::state::StateView;
use crate::testing::{HOUR, World, gpu, operator, spec, tenant, user};

/// One unit of money, or one GPU-hour at a price of two.
const UNIT: i64 = 1_000_000;

fn money(units: i64) -> Budget {
    Budget { gpu_time: None, money: Some(MicroCredits::new(units * UNIT)) }
}

fn gpu_hours(hours: u64) -> Budget {
    Budget { gpu_time: Some(GpuTime::new(hours * 3_600_000_000)), money: None }
}

fn allow(world: &mut World, name: &str, budget: Budget) -> Vec<Event> {
    let terms = TenantTerms { budget, ..TenantTerms::default() };
    world.must(operator(), Command::SetTerms { tenant: tenant(name), terms })
}

/// Money used and held this month, in whole units.
fn spent(world: &World, name: &str) -> (i128, i128) {
    let spending = world.state.tree().node(tenant(name)).unwrap().spending(world.now);
    let unit = i128::from(UNIT);
    (spending.used().money() / unit, spending.held().money() / unit)
}

fn grant(world: &World, request: RequestId, gpus: &[u64]) -> PlanGroup {
    let members = gpus.iter().map(|number| world.member(gpu(*number))).collect();
    PlanGroup::Grant { request, members }
}

fn reason(world: &World, request: RequestId) -> WaitReason {
    explain(StateView { state: &world.state, now: world.now }, request).unwrap().reason
}

fn hours(count: u32, hours: u64) -> RequestSpec {
    RequestSpec { duration: Seconds::new(hours * 3_600), ..spec(Class::Experiment, count) }
}

#[test]
fn a_grant_holds_its_worst_case_and_the_end_posts_what_it_cost() {
    let mut world = World::with_nodes(1);
    allow(&mut world, "acme", money(10));
    let request = world.submit("acme", 1, hours(2, 2));
    let lease = world.activate(request, &[0, 1]);
    assert_eq!(spent(&world, "acme"), (0, 8), "two GPUs for two hours at 2");
    let more = world.submit("acme", 2, hours(2, 1));
    let rejection = Rejection::BudgetExceeded;
    assert_eq!(world.commit(grant(&world, more, &[2, 3])), GroupOutcome::Refused { rejection });
    assert_eq!((world.plan(), reason(&world, more)), (vec![], WaitReason::Budget));
    // It used half an hour: 2 are posted and the rest is free again.
    world.later(HOUR);
    for slice in [gpu(0), gpu(1)] {
        world.stop(lease, slice, Seconds::new(1_800), GuestOutcome::Exited { code: 0 });
    }
    assert_eq!(spent(&world, "acme"), (2, 0));
    let outcome = world.commit(grant(&world, more, &[2, 3]));
    assert!(!matches!(outcome, GroupOutcome::Refused { rejection: Rejection::BudgetExceeded }));
}

#[test]
fn a_worst_case_of_exactly_the_budget_is_granted_and_one_micro_unit_more_is_not() {
    let mut world = World::with_nodes(1);
    let request = world.submit("acme", 1, hours(1, 1));
    let short = Budget { gpu_time: None, money: Some(MicroCredits::new(2 * UNIT - 1)) };
    allow(&mut world, "acme", short);
    let rejection = Rejection::BudgetExceeded;
    assert_eq!(world.commit(grant(&world, request, &[0])), GroupOutcome::Refused { rejection });
    allow(&mut world, "acme", gpu_hours(0));
    assert_eq!(world.commit(grant(&world, request, &[0])), GroupOutcome::Refused { rejection });
    let exact = Budget { money: Some(MicroCredits::new(2 * UNIT)), ..gpu_hours(1) };
    allow(&mut world, "acme", exact);
    world.grant(request, &[0]);
}

#[test]
fn requests_in_one_plan_and_tenants_of_one_group_share_its_budget() {
    let mut world = World::with_nodes(1);
    world.must(operator(), Command::CreateTenant { tenant: tenant("org"), parent: None });
    set(&mut world, "org", Quota::of(GpuMilli::new(8_000)));
    for name in ["red", "blue"] {
        create(&mut world, name, "org");
    }
    allow(&mut world, "org", gpu_hours(3));
    for number in 0..4 {
        world.submit("red", number + 1, hours(1, 1));
        world.submit("blue", number + 11, hours(1, 1));
    }
    let outcomes = world.plan();
    assert_eq!(outcomes.len(), 3, "the plan knows: {outcomes:?}");
    assert!(outcomes.iter().all(|o| matches!(o, GroupOutcome::Granted { .. })), "{outcomes:?}");
    assert_eq!(spent(&world, "org"), (0, 6));
}

#[test]
fn a_shorter_request_is_not_kept_waiting_by_a_longer_one_that_the_budget_does_not_cover() {
    let mut world = World::with_nodes(1);
    allow(&mut world, "acme", gpu_hours(1));
    let long = world.submit("acme", 1, hours(1, 2));
    let short = world.submit("acme", 2, hours(1, 1));
    world.plan();
    let is_waiting = |id| world.state.requests()[&id].is_waiting();
    assert_eq!([long, short].map(is_waiting), [true, false]);
}

#[test]
fn a_new_month_has_a_new_budget_and_a_lease_counts_for_the_month_of_its_grant() {
    let mut world = World::with_nodes(1);
    // 2023-11-30 23:30 UTC.
    world.now = Timestamp::new(1_701_387_000_000);
    for number in 0..8 {
        let slice = gpu(number);
        let offer = crate::testing::offer(slice, 2, 1);
        world.must(crate::testing::agent(slice), Command::OfferCapacity { offer });
    }
    allow(&mut world, "acme", money(2));
    let request = world.submit("acme", 1, hours(1, 1));
    let lease = world.activate(request, &[0]);
    let waits = world.submit("acme", 2, hours(1, 1));
    assert_eq!((world.plan(), reason(&world, waits)), (vec![], WaitReason::Budget));
    // 30 minutes and one millisecond short of midnight; then midnight.
    world.now = Timestamp::new(1_701_388_799_999);
    assert_eq!(spent(&world, "acme"), (0, 2));
    for number in 1..8 {
        let slice = gpu(number);
        let offer = crate::testing::offer(slice, 3, 1);
        world.must(crate::testing::agent(slice), Command::OfferCapacity { offer });
    }
    assert_eq!(world.plan(), vec![]);
    world.now = Timestamp::new(1_701_388_800_000);
    assert_eq!(spent(&world, "acme"), (0, 0));
    assert_eq!(world.plan().len(), 1, "the budget of December");
    assert_eq!(spent(&world, "acme"), (0, 2));
    world.stop(lease, gpu(0), Seconds::new(1_800), GuestOutcome::Exited { code: 0 });
    assert_eq!(spent(&world, "acme"), (0, 2), "what November granted is November's");
}

#[test]
fn spending_goes_with_a_tenant_that_moves() {
    let mut world = World::with_nodes(1);
    for name in ["old", "new"] {
        world.must(operator(), Command::CreateTenant { tenant: tenant(name), parent: None });
        set(&mut world, name, Quota::of(GpuMilli::new(8_000)));
    }
    join(&mut world, "acme", Some("old"));
    let request = world.submit("acme", 1, hours(2, 1));
    let lease = world.activate(request, &[0, 1]);
    assert_eq!(spent(&world, "old"), (0, 4));
    join(&mut world, "acme", Some("new"));
    assert_eq!((spent(&world, "old"), spent(&world, "new")), ((0, 0), (0, 4)));
    world.later(HOUR);
    for slice in [gpu(0), gpu(1)] {
        world.stop(lease, slice, HOUR, GuestOutcome::Exited { code: 0 });
    }
    assert_eq!((spent(&world, "old"), spent(&world, "new")), ((0, 0), (4, 0)));
}

#[test]
fn terms_that_make_no_sense_are_refused_with_their_code() {
    let mut world = World::new();
    let terms = |weight, money| TenantTerms {
        reclaim: Reclaim::Never,
        weight: Weight::new(weight),
        budget: Budget { gpu_time: None, money: Some(MicroCredits::new(money)) },
    };
    let set = |name: &str, terms| Command::SetTerms { tenant: tenant(name), terms };
    for bad in [terms(1_000_001, 0), terms(1, -1)] {
        world.refuse(operator(), set("acme", bad), Rejection::TermsInvalid);
    }
    world.refuse(operator(), set("nobody", terms(1, 1)), Rejection::TenantMissing);
    world.refuse(user("acme"), set("acme", terms(1, 1)), Rejection::NotAllowed);
    assert_eq!(world.must(operator(), set("acme", terms(0, 0))).len(), 1);
    assert_eq!(world.must(operator(), set("acme", terms(0, 0))), vec![], "it is so already");
}

/// The end of a lease: why, how long was billed, and what it cost in micro-units.
fn end_of(events: &[Event]) -> (EndReason, Millis, i64) {
    let mut ends = events.iter().filter_map(|event| match event {
        Event::LeaseEnded { reason, settlement, .. } => {
            Some((*reason, settlement.billed, settlement.cost.get()))
        }
        _other => None,
    });
    ends.next_back().unwrap()
}

/// Scenario 25 (kueue#6587): the budget runs out in mid-run.
///
/// It cannot by itself, because the worst case is held. It can when an operator cuts it: the lease
/// then ends at the line, and what is spent stays within what the budget is now.
#[test]
fn scenario_25_a_lease_ends_at_the_budget_line_and_never_below_zero() {
    let mut world = World::with_nodes(1);
    allow(&mut world, "acme", money(16));
    let old = world.submit("acme", 1, hours(1, 4));
    let old = world.activate(old, &[0]);
    world.later(Seconds::new(60));
    let young = world.submit("acme", 2, hours(1, 4));
    let young = world.activate(young, &[1]);
    assert_eq!(spent(&world, "acme"), (0, 16));
    // An hour later it is cut to 10: the older keeps its 8, 2 are left for the younger, which has
    // used them up by now but for its grace of 30 s.
    world.later(Seconds::new(3_500));
    world.must(Actor::Leader, Command::Sweep);
    let events = allow(&mut world, "acme", money(10));
    let billed_max = HOUR.as_millis();
    assert!(events.contains(&Event::LeaseCapped { lease: young, billed_max }), "{events:?}");
    assert_eq!(spent(&world, "acme"), (0, 10));
    assert!(ends_for_budget(&world, young).is_none(), "70 s before the line nothing ends");
    assert_eq!(world.state.next_due(), Some(world.now.after(Seconds::new(70))));
    world.later(Seconds::new(70));
    let due = world.must(Actor::Leader, Command::Sweep);
    assert!(matches!(due[..], [Event::LeaseEnding { cause: EndReason::Budget, .. }]), "{due:?}");
    // Its guest uses all of its grace, and more than that: nothing behind the line is billed.
    world.later(Seconds::new(90));
    let events = world.stop(young, gpu(1), Seconds::new(3_660), GuestOutcome::Stopped);
    assert_eq!(end_of(&events), (EndReason::Budget, HOUR.as_millis(), 2 * UNIT));
    assert_eq!(spent(&world, "acme"), (2, 8));
    assert!(world.state.leases()[&old].is_running(), "the older runs on");
}

fn ends_for_budget(world: &World, lease: LeaseId) -> Option<EndReason> {
    (!world.state.leases()[&lease].is_running()).then_some(EndReason::Budget)
}

#[test]
fn a_budget_that_is_cut_below_what_was_spent_ends_all_and_is_exceeded_by_no_more_than_that() {
    let mut world = World::with_nodes(1);
    let request = world.submit("acme", 1, hours(1, 4));
    let lease = world.activate(request, &[0]);
    let waiting = world.submit("acme", 2, hours(1, 4));
    let granted = world.grant(waiting, &[1]);
    world.later(Seconds::new(1_800));
    let events = allow(&mut world, "acme", money(0));
    let ending = |id| {
        events.iter().any(|event| {
            matches!(event, Event::LeaseEnding { lease, cause, .. }
            if *lease == id && *cause == EndReason::Budget)
        })
    };
    assert!(ending(lease) && ending(granted), "{events:?}");
    world.later(Seconds::new(30));
    let events = world.stop(lease, gpu(0), Seconds::new(1_830), GuestOutcome::Stopped);
    assert_eq!(end_of(&events), (EndReason::Budget, Millis::new(1_800_000), UNIT));
    let events = world.stop(granted, gpu(1), Seconds::ZERO, GuestOutcome::NeverStarted);
    assert_eq!(end_of(&events), (EndReason::Budget, Millis::ZERO, 0));
    assert_eq!(spent(&world, "acme"), (1, 0));
}

#[test]
fn a_budget_that_is_raised_again_serves_new_grants_and_lifts_no_cap() {
    let mut world = World::with_nodes(1);
    let request = world.submit("acme", 1, hours(1, 4));
    let lease = world.activate(request, &[0]);
    allow(&mut world, "acme", money(4));
    allow(&mut world, "acme", money(100));
    assert_eq!(world.state.leases()[&lease].billed_max(), Millis::new(2 * 3_600_000));
    assert_eq!(spent(&world, "acme"), (0, 4));
    world.later(Seconds::new(2 * 3_600 - 30));
    let due = world.must(Actor::Leader, Command::Sweep);
    let is_end =
        |event: &Event| matches!(event, Event::LeaseEnding { cause: EndReason::Budget, .. });
    assert!(due.iter().any(is_end), "{due:?}");
}
