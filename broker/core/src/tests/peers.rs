//! What went wrong with the peers' preemption, each as a named scenario of the matching design.

use sublet_protocol::commands::{Command, GroupOutcome, NackReason, PlanGroup, PlanMember};
use sublet_protocol::events::Event;
use sublet_protocol::ids::{Boot, LeaseId, RequestId};
use sublet_protocol::leases::EndReason;
use sublet_protocol::preemption::PreemptionPolicy;
use sublet_protocol::refusals::Rejection;
use sublet_protocol::requests::{Class, Placement, RequestSpec, WaitReason};
use sublet_protocol::units::GpuMilli;

use super::preemption::{
    high, preemption_times, reason, seconds, singles, start, vacate, with_policy,
};
use crate::state::LeaseStage;
use crate::testing::{World, agent, gpu, model, spec, tenant};

/// Scenario 17 (KAI#1579): a mass of preemptions is done in waves within the budgets.
#[test]
fn scenario_17_a_mass_of_preemptions_goes_in_waves_within_the_hours_budget() {
    let mut world = World::with_nodes(2);
    let budget = PreemptionPolicy { per_cluster_hour: 5, ..PreemptionPolicy::default() };
    with_policy(&mut world, budget);
    singles(&mut world, "acme", 0, &[Class::Experiment; 16]);
    world.later(seconds(600));
    for number in 0..12 {
        high(&mut world, 100 + number, 1);
    }
    let preempted = |world: &World| {
        let ends = world.journal.iter().filter(|record| {
            matches!(record.event, Event::LeaseEnding { cause: EndReason::Preempted, .. })
        });
        ends.count()
    };
    let mut waves = Vec::new();
    for _ in 0..150 {
        world.plan();
        let count = preempted(&world);
        if waves.last() != Some(&count) {
            waves.push(count);
            let waiting = world.state.requests().iter().filter(|(_, request)| {
                matches!(request.stage(), crate::state::RequestStage::Waiting)
            });
            let waiting: Vec<RequestId> = waiting.map(|(id, _)| *id).collect();
            for id in waiting.into_iter().filter(|id| id.get() >= 100) {
                assert_eq!(reason(&world, id), WaitReason::PreemptionBudget);
            }
        }
        world.later(seconds(60));
    }
    assert_eq!(waves, [5, 10, 12]);
    for pair in preemption_times(&world).windows(6) {
        assert!(pair[5].since(pair[0]) >= seconds(3_600).as_millis(), "six in one hour: {pair:?}");
    }
}

/// Scenario 5 (volcano#5994): one GPU is needed and ten leases could give it.
#[test]
fn scenario_05_one_gpu_of_ten_candidates_ends_exactly_one_lease() {
    let mut world = World::with_nodes(2);
    singles(&mut world, "acme", 0, &[Class::Experiment; 10]);
    let rest = world.submit("acme", 50, spec(Class::Training, 6));
    world.activate(rest, &[10, 11, 12, 13, 14, 15]);
    world.later(seconds(600));
    high(&mut world, 100, 1);
    assert_eq!(world.plan(), [GroupOutcome::Pledged]);
    assert_eq!(preemption_times(&world).len(), 1);
    for _ in 0..5 {
        world.later(seconds(30));
        assert_eq!(world.plan(), []);
    }
    assert_eq!(preemption_times(&world).len(), 1);
}

/// Scenario 3 (kueue#13797): victims end at different times.
#[test]
fn scenario_03_what_is_freed_early_stays_pledged_until_the_last_victim_is_gone() {
    let mut world = World::with_nodes(1);
    let all = singles(&mut world, "acme", 0, &[Class::Experiment; 8]);
    world.later(seconds(600));
    let request = high(&mut world, 100, 2);
    assert_eq!(world.plan(), [GroupOutcome::Pledged]);
    let ending: Vec<LeaseId> =
        all.into_iter().filter(|lease| !world.state.leases()[lease].is_running()).collect();
    let [first, second] = ending[..] else { panic!("two must go: {ending:?}") };
    vacate(&mut world, first);
    // Others of a higher place in every order come meanwhile; none may have the freed GPU.
    let rival = world.submit("acme", 200, RequestSpec { priority: 255, ..spec(Class::Latency, 1) });
    let small = world.submit("acme", 201, spec(Class::Batch, 1));
    world.later(seconds(90));
    let outcomes = world.plan();
    let is_refused = |outcome: &GroupOutcome| matches!(outcome, GroupOutcome::Refused { .. });
    assert!(!outcomes.iter().any(is_refused), "nobody is planned for it: {outcomes:?}");
    let is_waiting = |world: &World, id| world.state.requests()[&id].is_waiting();
    assert!(is_waiting(&world, small) && is_waiting(&world, request));
    let granted = world.state.leases().values().any(|lease| lease.terms().request == rival);
    assert!(!granted, "the freed GPU is kept");
    vacate(&mut world, second);
    world.plan();
    assert!(!is_waiting(&world, request), "it has both");
}

/// Scenario 4 (volcano#4947): the evicted tenant's share falls to nothing, so it is first again.
#[test]
fn scenario_04_an_evicted_tenant_with_no_share_left_does_not_come_back_first() {
    let mut world = World::with_nodes(1);
    let low =
        world.submit("acme", 1, RequestSpec { duration: seconds(7_200), ..spec(Class::Batch, 8) });
    let lease = world.activate(low, &[0, 1, 2, 3, 4, 5, 6, 7]);
    let own =
        world.submit("owner", 2, RequestSpec { duration: seconds(900), ..spec(Class::Latency, 8) });
    world.later(seconds(600));
    assert_eq!(world.plan(), [GroupOutcome::Pledged]);
    vacate(&mut world, lease);
    assert_eq!(world.state.tenants()[&tenant("acme")].held(model()), GpuMilli::ZERO);
    for _ in 0..20 {
        world.plan();
        let fresh: Vec<LeaseId> = world.state.leases().keys().copied().collect();
        for lease in fresh {
            if matches!(world.stage(lease), Some(LeaseStage::Granted { .. })) {
                start(&mut world, lease);
            }
        }
        world.later(seconds(30));
    }
    assert_eq!(preemption_times(&world).len(), 1, "one eviction, then it is stable");
    assert!(!world.state.requests()[&own].is_waiting());
    assert!(world.state.requests()[&low].is_waiting());
}

/// Scenario 8 (kueue#14570): two plans grant the same GPU 16 ms apart.
#[test]
fn scenario_08_the_second_of_two_plans_for_one_gpu_is_refused() {
    let mut world = World::with_nodes(1);
    let first = world.submit("acme", 1, spec(Class::Batch, 1));
    let second = world.submit("owner", 2, spec(Class::Batch, 1));
    let members: Vec<PlanMember> = vec![world.member(gpu(0))];
    let plan = |request| PlanGroup::Grant { request, members: members.clone() };
    assert!(matches!(world.commit(plan(first)), GroupOutcome::Granted { .. }));
    world.now = world.now.after_millis(sublet_protocol::units::Millis::new(16));
    let rejection = Rejection::OfferMissing;
    assert_eq!(world.commit(plan(second)), GroupOutcome::Refused { rejection });
    assert_eq!(world.state.leases().len(), 1);
}

/// Scenario 22 (nomad#25808): a node refuses what it is planned for, again and again.
#[test]
fn scenario_22_a_node_that_keeps_refusing_is_left_out_for_a_while() {
    let mut world = World::with_nodes(2);
    let near = |number: u128, world: &mut World| {
        let one = RequestSpec { placement: Placement::Node, ..spec(Class::Batch, 1) };
        world.submit("acme", number, one)
    };
    let refuse = |world: &mut World, request, number: u64, reason| {
        let lease = world.grant(request, &[number]);
        let (slice, token, boot) = (gpu(number), world.token(lease), Boot::new(1));
        world.must(agent(slice), Command::RefuseMember { lease, slice, token, boot, reason });
    };
    for (number, reason) in [(0, NackReason::OwnerBusy), (1, NackReason::Workload)] {
        let request = near(u128::from(number) + 1, &mut world);
        refuse(&mut world, request, number, reason);
    }
    for number in 2..4 {
        let request = near(u128::from(number) + 1, &mut world);
        refuse(&mut world, request, number, NackReason::StartFailed);
    }
    let last = near(10, &mut world);
    let member = world.member(gpu(4));
    let grant = |request| PlanGroup::Grant { request, members: vec![member] };
    refuse(&mut world, last, 5, NackReason::StartFailed);
    let rejection = Rejection::SliceUnfit;
    let more = near(11, &mut world);
    assert_eq!(world.commit(grant(more)), GroupOutcome::Refused { rejection });
    world.plan();
    let leased: Vec<_> = world.state.leased().keys().map(|slice| slice.node).collect();
    assert!(!leased.is_empty() && leased.iter().all(|node| *node == gpu(8).node), "{leased:?}");
    let large = world.submit("acme", 12, spec(Class::Batch, 4));
    world.plan();
    assert_eq!(reason(&world, large), WaitReason::Breaker);
    world.later(seconds(600));
    assert!(matches!(
        world.commit(grant(large)),
        GroupOutcome::Refused { rejection: Rejection::PlanCount }
    ));
    let after = near(13, &mut world);
    assert!(matches!(world.commit(grant(after)), GroupOutcome::Granted { .. }), "its time is over");
}
