//! Rules of quotas, budgets, promises and the order of victims at their edges: each is here because taking
//! it out was noticed by no other test.

use sublet_protocol::commands::{Command, GroupOutcome, GuestOutcome, PlanGroup};
use sublet_protocol::events::Event;
use sublet_protocol::ids::{LeaseId, RequestId};
use sublet_protocol::money::MicroCredits;
use sublet_protocol::policy::Policy;
use sublet_protocol::quotas::{Basis, Budget, Quota, TenantTerms};
use sublet_protocol::refusals::Rejection;
use sublet_protocol::requests::{Class, Placement, PromiseCause, RequestSpec, Tier};
use sublet_protocol::units::{GpuMilli, GpuTime, Millis, Seconds, Timestamp};

use super::preemption::{seconds, singles};
use super::quotas::{create, join, pool, quota, set};
use crate::quota::{Moment, check};
use crate::state::{State, StateView};
use crate::testing::{HOUR, World, agent, gpu, model, offer, operator, spec, tenant};
use crate::{invariants, matching};

fn allow(world: &mut World, name: &str, budget: Budget) -> Vec<Event> {
    let terms = TenantTerms { budget, ..TenantTerms::default() };
    world.must(operator(), Command::SetTerms { tenant: tenant(name), terms })
}

fn money(units: i64) -> Budget {
    Budget { gpu_time: None, money: Some(MicroCredits::new(units * MicroCredits::PER_UNIT)) }
}

fn gpu_hours(hours: u64) -> Budget {
    Budget { gpu_time: Some(GpuTime::new(hours * 3_600_000_000)), money: None }
}

fn hours(count: u32, hours: u64) -> RequestSpec {
    RequestSpec { duration: Seconds::new(hours * 3_600), ..spec(Class::Experiment, count) }
}

/// Offers have a time to live: what is free is offered again.
fn offer_again(world: &mut World) {
    for slice in (0..8)
        .map(gpu)
        .filter(|slice| !world.state.leased().contains_key(slice))
        .collect::<Vec<_>>()
    {
        world.must(agent(slice), Command::OfferCapacity { offer: offer(slice, 9, 1) });
    }
}

fn is_waiting(world: &World, request: RequestId) -> bool {
    world.state.requests()[&request].is_waiting()
}

/// The next grant's moment.
fn next(state: &State) -> Moment {
    let moment = state.moment();
    Moment { tokens: moment.tokens + 1, ..moment }
}

/// A grant that nobody judged, of so many GPUs to acme; whether INV-2 names it.
fn is_found(world: &World, gpus: u64) -> bool {
    let mut state = world.state.clone();
    let moment = next(&state);
    state.tree.take(tenant("acme"), model(), GpuMilli::new(gpus * 1_000), &moment);
    check::sums(&state).iter().any(|found| found.contains("was granted"))
}

/// INV-2: no grant was made over a quota. What is over by a cut is not a grant's fault.
#[test]
fn a_grant_over_a_quota_is_found_and_one_within_it_or_a_cut_is_not() {
    let mut world = World::with_nodes(1);
    let request = world.submit("acme", 1, spec(Class::Batch, 4));
    world.activate(request, &[0, 1, 2, 3]);
    assert!(!is_found(&world, 12) && is_found(&world, 13));
    set(&mut world, "acme", quota(10_000, None, None));
    assert!(!is_found(&world, 6) && is_found(&world, 7), "a cut that leaves enough hides nothing");
    set(&mut world, "acme", quota(3_000, None, None));
    assert_eq!(invariants::check(&world.state), vec![], "nobody granted what the cut left over");
    assert!(is_found(&world, 1));
}

#[test]
fn of_equals_those_go_first_who_borrow_or_are_over_their_quota() {
    // In a group: owner's leases are newer, acme borrows.
    let mut world = pool(1);
    let borrowed = singles(&mut world, "acme", 0, &[Class::Experiment; 4]);
    world.later(seconds(1));
    singles(&mut world, "owner", 4, &[Class::Experiment; 4]);
    assert!(goes(&mut world, &borrowed), "acme borrows");
    // Without a group: nobody borrows, but acme's quota was cut.
    let mut world = World::with_nodes(1);
    let over = singles(&mut world, "acme", 0, &[Class::Experiment; 4]);
    world.later(seconds(1));
    let newer = singles(&mut world, "owner", 4, &[Class::Experiment; 4]);
    let before = world.state.clone();
    set(&mut world, "acme", quota(3_000, None, None));
    assert!(goes(&mut world, &over), "acme has one too many");
    world.state = before;
    let order = crate::preemption::Order::of(&world.state, world.now);
    let least = world.state.leases().values().min_by_key(|lease| order.place(lease)).unwrap();
    assert!(newer.contains(&least.terms().lease), "else the newest goes");
}

/// Whether one of these is ended for a request of the highest tier.
fn goes(world: &mut World, leases: &[LeaseId]) -> bool {
    world.must(operator(), Command::CreateTenant { tenant: tenant("high"), parent: None });
    set(world, "high", quota(8_000, None, None));
    world.later(seconds(600));
    let one = RequestSpec { duration: seconds(600), ..spec(Class::Latency, 1) };
    world.submit("high", 100, one);
    let plan = matching::plan(StateView { state: &world.state, now: world.now });
    let victims = plan.into_iter().find_map(|group| match group {
        PlanGroup::Preempt { victims, .. } => Some(victims),
        PlanGroup::Grant { .. } | PlanGroup::Promise { .. } | PlanGroup::Withdraw { .. } => None,
    });
    victims.is_some_and(|victims| victims.iter().all(|victim| leases.contains(victim)))
}

#[test]
fn what_ended_leases_cost_is_not_spent_again() {
    let mut world = World::with_nodes(1);
    allow(&mut world, "acme", money(10));
    let request = world.submit("acme", 1, hours(2, 2));
    let lease = world.activate(request, &[0, 1]);
    world.later(Seconds::new(5_400));
    for slice in [gpu(0), gpu(1)] {
        world.stop(lease, slice, Seconds::new(5_400), GuestOutcome::Exited { code: 0 });
    }
    offer_again(&mut world);
    // Six are used: four are left.
    let large = world.submit("acme", 2, hours(1, 3));
    let small = world.submit("acme", 3, hours(1, 2));
    world.later(Seconds::new(60));
    world.plan();
    assert!(is_waiting(&world, large) && !is_waiting(&world, small));
    // Cut to seven, one is left for what runs: half an hour.
    let running = *world.state.leases().keys().next().unwrap();
    super::preemption::start(&mut world, running);
    let events = allow(&mut world, "acme", money(7));
    let billed_max = Millis::new(1_800_000);
    assert!(events.contains(&Event::LeaseCapped { lease: running, billed_max }), "{events:?}");
}

#[test]
fn a_budget_of_gpu_hours_that_is_cut_caps_by_time_also_where_gpus_are_free_of_charge() {
    for per_gpu_hour in [0, 2_000_000] {
        let mut world = World::with_nodes(1);
        let (owner, per_gpu_hour) = (tenant("owner"), MicroCredits::new(per_gpu_hour));
        let tier = Tier::Opportunistic;
        let set = Command::SetPrice { owner, model: model(), tier, per_gpu_hour };
        world.must(operator(), set);
        let request = world.submit("acme", 1, hours(2, 3));
        let lease = world.activate(request, &[0, 1]);
        // Money covers it: nothing is capped, not even by a budget of nothing where nothing is paid.
        let enough = if per_gpu_hour == MicroCredits::ZERO { money(0) } else { money(12) };
        assert_eq!(allow(&mut world, "acme", enough).len(), 1);
        let both = Budget { gpu_time: gpu_hours(4).gpu_time, ..enough };
        let events = allow(&mut world, "acme", both);
        let billed_max = Millis::new(2 * 3_600_000);
        assert!(events.contains(&Event::LeaseCapped { lease, billed_max }), "{events:?}");
    }
}

#[test]
fn a_shorter_request_passes_a_longer_one_that_the_budget_of_their_group_does_not_cover() {
    let mut world = pool(1);
    allow(&mut world, "pool", gpu_hours(1));
    let long = world.submit("acme", 1, hours(1, 2));
    let short = world.submit("acme", 2, hours(1, 1));
    world.plan();
    assert!(is_waiting(&world, long) && !is_waiting(&world, short));
}

#[test]
fn what_was_used_this_month_goes_with_a_tenant_that_moves() {
    let mut world = World::with_nodes(1);
    for name in ["old", "new"] {
        world.must(operator(), Command::CreateTenant { tenant: tenant(name), parent: None });
        set(&mut world, name, Quota::of(GpuMilli::new(8_000)));
    }
    create(&mut world, "other", "old");
    join(&mut world, "acme", Some("old"));
    let request = world.submit("acme", 1, hours(2, 1));
    let lease = world.activate(request, &[0, 1]);
    world.later(HOUR);
    for slice in [gpu(0), gpu(1)] {
        world.stop(lease, slice, HOUR, GuestOutcome::Exited { code: 0 });
    }
    let used = |world: &World, name: &str| {
        let node = world.state.tree().node(tenant(name)).unwrap();
        node.spending(world.now).used().money() / i128::from(MicroCredits::PER_UNIT)
    };
    assert_eq!((used(&world, "old"), used(&world, "new")), (4, 0));
    offer_again(&mut world);
    join(&mut world, "acme", Some("new"));
    assert_eq!((used(&world, "old"), used(&world, "new")), (0, 4));
    allow(&mut world, "new", money(5));
    let more = world.submit("acme", 2, hours(1, 1));
    let members = vec![world.member(gpu(2))];
    let outcome = world.commit(PlanGroup::Grant { request: more, members });
    let rejection = Rejection::BudgetExceeded;
    assert_eq!(
        outcome,
        GroupOutcome::Refused { rejection },
        "one is left of five, it may cost two"
    );
}

#[test]
fn a_group_that_a_move_brings_over_its_budget_is_not_blamed_for_it() {
    let mut world = World::with_nodes(1);
    world.must(operator(), Command::CreateTenant { tenant: tenant("new"), parent: None });
    set(&mut world, "new", quota(8_000, None, None));
    create(&mut world, "other", "new");
    let request = world.submit("acme", 1, hours(2, 1));
    world.activate(request, &[0, 1]);
    allow(&mut world, "new", money(3));
    let request = world.submit("other", 2, hours(1, 1));
    world.activate(request, &[2]);
    // Two and four are more than three; the world looks at the invariants after each command.
    join(&mut world, "acme", Some("new"));
    let more = world.submit("other", 3, hours(1, 1));
    let members = vec![world.member(gpu(3))];
    let outcome = world.commit(PlanGroup::Grant { request: more, members });
    let rejection = Rejection::BudgetExceeded;
    assert_eq!(outcome, GroupOutcome::Refused { rejection });
}

#[test]
fn a_share_is_of_what_is_really_there_to_be_lent() {
    let mut world = pool(1);
    let hardware = Quota { basis: Basis::Hardware, ..quota(80_000, None, None) };
    set(&mut world, "owner", hardware);
    let request = world.submit("acme", 1, spec(Class::Batch, 2));
    world.activate(request, &[0, 1]);
    let share = crate::quota::share(world.state.tree(), tenant("acme"));
    assert_eq!(share, 250, "two of eight that are there, not of eighty that were set");
}

#[test]
fn a_tenant_that_moves_takes_its_past_along() {
    let mut world = pool(2);
    create(&mut world, "beta", "pool");
    let request = world.submit("acme", 1, RequestSpec { duration: HOUR, ..spec(Class::Batch, 8) });
    let lease = world.activate(request, &[0, 1, 2, 3, 4, 5, 6, 7]);
    world.later(HOUR);
    // It leaves the pool and comes back at once: what it borrowed for an hour is not forgotten.
    join(&mut world, "acme", None);
    join(&mut world, "acme", Some("pool"));
    for number in 0..8 {
        world.stop(lease, gpu(number), HOUR, GuestOutcome::Exited { code: 0 });
    }
    let at = (world.now, world.state.policy().half_life);
    let stands = |name: &str| crate::quota::standing(world.state.tree(), tenant(name), at);
    assert!(stands("beta") < stands("acme"));
}

#[test]
fn who_is_over_is_told_once_and_a_quota_that_is_set_again_is_no_event() {
    let mut world = World::with_nodes(1);
    let request = world.submit("acme", 1, spec(Class::Batch, 4));
    world.activate(request, &[0, 1, 2, 3]);
    let over = |events: &[Event]| {
        events.iter().filter(|event| matches!(event, Event::TenantOverAdmitted { .. })).count()
    };
    assert_eq!(over(&set(&mut world, "acme", quota(3_000, None, None))), 1);
    assert_eq!(over(&set(&mut world, "owner", quota(9_000, None, None))), 0, "acme was told");
    assert_eq!(over(&set(&mut world, "acme", quota(2_000, None, None))), 1, "it is worse now");
    assert_eq!(set(&mut world, "acme", quota(2_000, None, None)), vec![]);
}

#[test]
fn a_cut_caps_leases_of_its_tenant_and_month_that_are_not_ending_and_cost_more_than_is_left() {
    let mut world = World::with_nodes(1);
    let lease = |world: &mut World, name: &str, number: u64| {
        let request = world.submit(name, u128::from(number) + 1, hours(1, 2));
        let lease = world.activate(request, &[number]);
        world.later(Seconds::new(1));
        lease
    };
    let first = lease(&mut world, "acme", 0);
    let ending = lease(&mut world, "acme", 1);
    let last = lease(&mut world, "acme", 2);
    lease(&mut world, "owner", 3);
    world.must(crate::testing::user("acme"), Command::ReleaseLease { lease: ending });
    // The first costs four at most, and the one that ends next to nothing.
    let events = allow(&mut world, "acme", money(6));
    let capped = events.iter().filter_map(|event| match event {
        Event::LeaseCapped { lease, .. } => Some(*lease),
        _other => None,
    });
    assert_eq!(capped.collect::<Vec<_>>(), [last], "not {first} nor {ending}");
    // What is left ends within its grace: it is asked to go at once.
    world.later(Seconds::new(1_790));
    let events = allow(&mut world, "acme", money(5));
    let ends = |event: &Event| matches!(event, Event::LeaseEnding { lease, .. } if *lease == last);
    assert!(events.iter().any(ends), "{events:?}");
}

#[test]
fn a_lease_of_last_month_is_not_capped_by_this_months_budget() {
    let mut world = World::with_nodes(1);
    // 2023-11-30 23:30 UTC.
    world.now = Timestamp::new(1_701_387_000_000);
    offer_again(&mut world);
    let request = world.submit("acme", 1, hours(1, 2));
    world.activate(request, &[0]);
    world.later(Seconds::new(3_600));
    assert_eq!(allow(&mut world, "acme", money(0)).len(), 1, "only the terms are set");
}

#[test]
fn a_policy_that_does_not_hold_together_is_refused() {
    let mut world = World::new();
    let with = |half_life| Policy { half_life: Seconds::new(half_life), ..Policy::default() };
    let set = |policy| Command::SetPolicy { policy };
    world.refuse(operator(), set(with(0)), Rejection::PolicyInvalid);
    world.refuse(operator(), set(with(u64::MAX)), Rejection::PolicyInvalid);
    world.refuse(crate::testing::user("acme"), set(with(1)), Rejection::NotAllowed);
    assert_eq!(world.must(operator(), set(with(1))).len(), 1);
    assert_eq!(world.must(operator(), set(with(1))), vec![], "it is so already");
}

#[test]
fn a_request_has_one_pledge_at_a_time() {
    let mut world = World::with_nodes(1);
    let all = singles(&mut world, "acme", 0, &[Class::Experiment; 8]);
    world.later(seconds(600));
    let one = RequestSpec { duration: seconds(900), ..spec(Class::Latency, 1) };
    let request = world.submit("owner", 100, one);
    let ends = |number: u64| {
        let victims = vec![all[usize::try_from(number).unwrap()]];
        PlanGroup::Preempt { request, victims, freed: vec![gpu(number)], members: vec![] }
    };
    assert_eq!(world.commit(ends(0)), GroupOutcome::Pledged);
    let rejection = Rejection::RequestNotWaiting;
    assert_eq!(world.commit(ends(1)), GroupOutcome::Refused { rejection });
    let (start, not_before) = (world.now.after(HOUR), world.now);
    let (slices, cause) = (vec![gpu(1)], PromiseCause::Queued);
    let promise = PlanGroup::Promise { request, start, not_before, slices, cause };
    assert_eq!(world.commit(promise), GroupOutcome::Refused { rejection }, "nor a promise");
}

#[test]
fn a_promise_is_of_slices_that_stand_as_asked_and_not_before_it_can_be() {
    let mut world = World::with_nodes(2);
    let one_node = RequestSpec { placement: Placement::Node, ..spec(Class::Batch, 2) };
    let request = world.submit("acme", 1, one_node);
    let (start, cause) = (world.now.after(HOUR), PromiseCause::Queued);
    let mut promised = |gpus: [u64; 2], not_before| {
        let slices = gpus.map(gpu).to_vec();
        world.commit(PlanGroup::Promise { request, start, not_before, slices, cause })
    };
    let rejection = Rejection::SliceUnfit;
    assert_eq!(promised([7, 8], start), GroupOutcome::Refused { rejection }, "on two nodes");
    let rejection = Rejection::PromiseInvalid;
    let later = start.after(Seconds::new(1));
    assert_eq!(promised([6, 7], later), GroupOutcome::Refused { rejection });
    assert_eq!(promised([6, 7], start), GroupOutcome::Promised);
}
