//! What the matcher proposes, and what it says of those it leaves waiting.

use sublet_protocol::commands::{Command, GroupOutcome, PlanGroup};
use sublet_protocol::money::MicroCredits;
use sublet_protocol::quotas::Quota;
use sublet_protocol::refusals::Rejection;
use sublet_protocol::requests::{Class, Placement, RequestSpec, WaitReason};
use sublet_protocol::units::{GpuMilli, MiB, Seconds};

use crate::matching::{self, WhatIfOutcome, explain, what_if};
use crate::state::StateView;
use crate::testing::{World, gpu, model, operator, spec, tenant};

fn view(world: &World) -> StateView<'_> {
    StateView { state: &world.state, now: world.now }
}

#[track_caller]
fn reason(world: &World, request: sublet_protocol::ids::RequestId) -> WaitReason {
    explain(view(world), request).expect("it waits").reason
}

#[test]
fn everything_that_fits_is_granted_and_the_plan_is_the_same_each_time() {
    let mut world = World::with_nodes(2);
    for number in 0..4 {
        world.submit("acme", number, spec(Class::Batch, 3));
    }
    let plan = matching::plan(view(&world));
    assert_eq!(plan, matching::plan(view(&world)));
    let outcomes = world.plan();
    assert_eq!(outcomes.len(), 4);
    assert!(outcomes.iter().all(|o| matches!(o, GroupOutcome::Granted { .. })), "{outcomes:?}");
    assert_eq!(world.plan(), vec![], "a second plan has nothing to do");
}

#[test]
fn a_small_request_goes_where_it_leaves_the_least_room() {
    let mut world = World::with_nodes(2);
    let first = world.submit("acme", 1, spec(Class::Batch, 5));
    world.activate(first, &[8, 9, 10, 11, 12]);
    world.submit("acme", 2, spec(Class::Batch, 3));
    world.plan();
    let on_second = world.state.leased().keys().filter(|slice| slice.node == gpu(8).node);
    assert_eq!(on_second.count(), 8, "the three free GPUs of the second node are used up");
}

#[test]
fn a_higher_tier_is_served_first_and_within_a_tier_the_tenant_with_the_lower_share() {
    let mut world = World::with_nodes(1);
    let held = world.submit("acme", 1, spec(Class::Batch, 6));
    world.activate(held, &[0, 1, 2, 3, 4, 5]);
    let busy = world.submit("acme", 2, spec(Class::Batch, 1));
    let idle = world.submit("owner", 3, spec(Class::Batch, 1));
    let high = world.submit("acme", 4, spec(Class::Latency, 1));
    world.plan();
    let is_waiting = |id| world.state.requests()[&id].is_waiting();
    assert_eq!([busy, idle, high].map(is_waiting), [true, false, false]);
}

#[test]
fn within_a_tenant_priority_comes_first_then_the_earlier_submission_then_the_id() {
    let mut world = World::with_nodes(1);
    let one = spec(Class::Batch, 1);
    let second = world.submit("acme", 7, one.clone());
    let first = world.submit("acme", 5, one.clone());
    world.later(Seconds::new(1));
    let third = world.submit("acme", 3, one.clone());
    let urgent = world.submit("acme", 9, RequestSpec { priority: 1, ..one });
    let granted: Vec<_> = matching::plan(view(&world)).iter().map(PlanGroup::request).collect();
    assert_eq!(granted, [urgent, first, second, third]);
}

#[test]
fn a_gang_takes_several_nodes_only_when_no_single_one_has_room() {
    let mut world = World::with_nodes(2);
    world.submit("acme", 1, spec(Class::Batch, 10));
    world.plan();
    assert_eq!(world.state.leased().len(), 10);
    let mut world = World::with_nodes(2);
    let together = RequestSpec { placement: Placement::Node, ..spec(Class::Batch, 10) };
    let request = world.submit("acme", 1, together);
    assert_eq!(world.plan(), vec![]);
    assert_eq!(reason(&world, request), WaitReason::Topology);
}

#[test]
fn the_matcher_preempts_the_fewest_leases_it_needs() {
    let mut world = World::with_nodes(1);
    for number in 0..8 {
        let low = world.submit("acme", u128::from(number) + 1, spec(Class::Experiment, 1));
        world.activate(low, &[number]);
    }
    world.later(Seconds::new(600));
    let high = world.submit("owner", 100, spec(Class::Latency, 3));
    let plan = matching::plan(view(&world));
    let [PlanGroup::Preempt { request, victims, freed, .. }] = &plan[..] else {
        panic!("{plan:?}");
    };
    assert_eq!((*request, victims.len(), freed.len()), (high, 3, 3));
    assert_eq!(world.plan(), vec![GroupOutcome::Pledged]);
    assert_eq!(world.plan(), vec![], "what is on its way is waited for");
}

#[test]
fn a_gang_is_preempted_whole_but_a_smaller_victim_is_preferred_by_being_newest() {
    let mut world = World::with_nodes(1);
    let gang = world.submit("acme", 1, spec(Class::Batch, 6));
    world.activate(gang, &[0, 1, 2, 3, 4, 5]);
    world.later(Seconds::new(10));
    let single = world.submit("acme", 2, spec(Class::Batch, 1));
    let newest = world.activate(single, &[6]);
    world.later(Seconds::new(600));
    let short = RequestSpec { duration: Seconds::new(1_800), ..spec(Class::Latency, 2) };
    world.submit("owner", 3, short);
    let plan = matching::plan(view(&world));
    let [PlanGroup::Preempt { victims, members, .. }] = &plan[..] else { panic!("{plan:?}") };
    assert_eq!((victims, members.len()), (&vec![newest], 1), "one victim and the free GPU");
}

#[test]
fn the_lowest_tier_is_preempted_also_when_it_is_on_another_node() {
    let mut world = World::with_nodes(2);
    for number in 0..16 {
        let class = if number < 8 { Class::Batch } else { Class::Experiment };
        let low = world.submit("acme", u128::from(number) + 1, spec(class, 1));
        world.activate(low, &[number]);
    }
    world.later(Seconds::new(600));
    let near = RequestSpec { placement: Placement::Node, ..spec(Class::Latency, 2) };
    world.submit("owner", 100, near);
    let plan = matching::plan(view(&world));
    let [PlanGroup::Preempt { victims, .. }] = &plan[..] else { panic!("{plan:?}") };
    let class = |victim| world.state.leases()[victim].terms().class;
    assert!(victims.iter().all(|victim| class(victim) == Class::Experiment), "{plan:?}");
}

#[test]
fn each_reason_to_wait_is_named() {
    let rows: [(WaitReason, RequestSpec); 4] = [
        (WaitReason::Memory, RequestSpec { memory: MiB::new(80_001), ..spec(Class::Batch, 1) }),
        (
            WaitReason::Duration,
            RequestSpec { duration: Seconds::new(7_201), ..spec(Class::Batch, 1) },
        ),
        (
            WaitReason::Price,
            RequestSpec { max_price: Some(MicroCredits::new(1)), ..spec(Class::Batch, 1) },
        ),
        (WaitReason::Host, RequestSpec { host_memory: MiB::new(128_001), ..spec(Class::Batch, 1) }),
    ];
    let mut world = World::with_nodes(1);
    for (number, (expected, spec)) in rows.into_iter().enumerate() {
        let request = world.submit("acme", number as u128 + 1, spec);
        assert_eq!(reason(&world, request), expected);
    }
    let mut empty = World::new();
    let request = empty.submit("acme", 1, spec(Class::Batch, 1));
    assert_eq!(reason(&empty, request), WaitReason::NoCapacity);
}

#[test]
fn a_request_over_what_is_left_of_the_quota_waits_for_it() {
    let mut world = World::with_nodes(2);
    let nominal = GpuMilli::new(8_000);
    world.must(
        operator(),
        Command::SetQuota { tenant: tenant("acme"), model: model(), quota: Quota::of(nominal) },
    );
    let first = world.submit("acme", 1, spec(Class::Batch, 7));
    world.activate(first, &[0, 1, 2, 3, 4, 5, 6]);
    let second = world.submit("acme", 2, spec(Class::Batch, 2));
    // The first of its tenant is told when its own leases will have given the quota back.
    assert_eq!(world.plan(), vec![GroupOutcome::Promised]);
    let third = world.submit("acme", 3, spec(Class::Batch, 2));
    assert_eq!(world.plan(), vec![], "more than one would keep from others what it cannot use");
    assert_eq!(reason(&world, third), WaitReason::Quota);
    let why = explain(view(&world), second).unwrap();
    assert_eq!((why.reason, why.quota_left), (WaitReason::Quota, GpuMilli::new(1_000)));
}

#[test]
fn what_if_says_what_a_submission_would_do_and_leaves_no_trace() {
    let mut world = World::with_nodes(1);
    let before = world.state.clone();
    let answer = what_if(view(&world), tenant("acme"), &spec(Class::Batch, 2));
    assert!(matches!(&answer.outcome, WhatIfOutcome::Grant { members, .. } if members.len() == 2));
    assert_eq!(answer.hold, Some(MicroCredits::new(4_000_000)));
    let large = what_if(view(&world), tenant("acme"), &spec(Class::Batch, 17));
    assert_eq!(large.outcome, WhatIfOutcome::Refuse(Rejection::QuotaTooSmall));
    let wide = what_if(view(&world), tenant("acme"), &spec(Class::Batch, 9));
    assert!(matches!(wide.outcome, WhatIfOutcome::Wait(_)), "{wide:?}");
    assert_eq!(world.state, before);
    world.submit("acme", 1, spec(Class::Batch, 2));
    assert!(matches!(world.plan()[..], [GroupOutcome::Granted { .. }]));
}

#[test]
fn a_shorter_request_is_tried_after_a_longer_one_of_its_kind_found_no_room() {
    let mut world = World::with_nodes(1);
    let long = RequestSpec { duration: Seconds::new(7_201), ..spec(Class::Batch, 1) };
    world.submit("acme", 1, long.clone());
    let short = world.submit("acme", 2, spec(Class::Batch, 1));
    world.submit("acme", 3, long);
    assert!(matches!(world.plan()[..], [GroupOutcome::Granted { .. }]));
    assert!(!world.state.requests()[&short].is_waiting());
}
