//! Who gives way to whom, who is spared, and how often.

use std::collections::BTreeSet;

use sublet_protocol::capacity::{Part, SliceId};
use sublet_protocol::commands::{Actor, Command, GroupOutcome, GuestOutcome, PlanGroup};
use sublet_protocol::events::Event;
use sublet_protocol::ids::{
    Boot, ClusterId, DeviceId, HostHash, LeaseId, NodeId, Region, RequestId,
};
use sublet_protocol::leases::EndReason;
use sublet_protocol::policy::Policy;
use sublet_protocol::preemption::{ByTier, PreemptionPolicy};
use sublet_protocol::refusals::Rejection;
use sublet_protocol::requests::{Class, RequestSpec, WaitReason};
use sublet_protocol::units::Seconds;

use crate::matching::{self, explain};
use crate::state::StateView;
use crate::testing::{World, agent, gpu, offer, operator, spec, tenant, user};

pub(super) fn seconds(value: u64) -> Seconds {
    Seconds::new(value)
}

pub(super) fn with_policy(world: &mut World, preemption: PreemptionPolicy) {
    let policy = Policy { preemption, ..world.state.policy().clone() };
    world.must(operator(), Command::SetPolicy { policy });
}

/// `count` active leases of one GPU each, of these classes in turn, for the tenant.
pub(super) fn singles(world: &mut World, name: &str, from: u64, classes: &[Class]) -> Vec<LeaseId> {
    let each = classes.iter().zip(from..);
    let lease = |world: &mut World, (class, number): (&Class, u64)| {
        let request = world.submit(name, u128::from(number) + 1, spec(*class, 1));
        world.activate(request, &[number])
    };
    each.map(|one| lease(world, one)).collect()
}

/// Whom the plan ends for `request`.
#[track_caller]
fn victims(world: &World, request: RequestId) -> Vec<LeaseId> {
    let plan = matching::plan(StateView { state: &world.state, now: world.now });
    let of_it = plan.into_iter().find(|group| group.request() == request);
    match of_it {
        Some(PlanGroup::Preempt { victims, .. }) => victims,
        Some(PlanGroup::Grant { .. } | PlanGroup::Promise { .. } | PlanGroup::Withdraw { .. })
        | None => Vec::new(),
    }
}

#[track_caller]
pub(super) fn reason(world: &World, request: RequestId) -> WaitReason {
    let view = StateView { state: &world.state, now: world.now };
    explain(view, request).expect("it waits").reason
}

pub(super) fn high(world: &mut World, number: u128, count: u32) -> RequestId {
    world.submit(
        "owner",
        number,
        RequestSpec { duration: seconds(1_800), ..spec(Class::Latency, count) },
    )
}

/// The guests of a lease that must go are gone, and their GPUs are offered again.
pub(super) fn vacate(world: &mut World, lease: LeaseId) {
    let lease_terms = world.state.leases()[&lease].terms().clone();
    for member in &lease_terms.members {
        world.stop(lease, member.slice, seconds(600), GuestOutcome::Stopped);
    }
    for member in lease_terms.members {
        let offer = offer(member.slice, member.generation + 1, 1);
        world.must(agent(member.slice), Command::OfferCapacity { offer });
    }
}

/// Confirms every member of a lease.
pub(super) fn start(world: &mut World, lease: LeaseId) {
    let terms = world.state.leases()[&lease].terms().clone();
    for member in terms.members {
        let (token, boot) = (terms.token, Boot::new(1));
        world.must(
            agent(member.slice),
            Command::ConfirmMember { lease, slice: member.slice, token, boot },
        );
    }
}

#[test]
fn a_request_preempts_only_across_the_gap_that_the_policy_asks() {
    for (gap, class, is_preempted) in [
        (1, Class::Batch, true),
        (1, Class::Experiment, true),
        (2, Class::Batch, false),
        (2, Class::Experiment, true),
        (3, Class::Experiment, false),
    ] {
        let mut world = World::with_nodes(1);
        with_policy(&mut world, PreemptionPolicy { tier_gap: gap, ..PreemptionPolicy::default() });
        singles(&mut world, "acme", 0, &[class; 8]);
        world.later(seconds(600));
        let request = high(&mut world, 100, 1);
        assert_eq!(!victims(&world, request).is_empty(), is_preempted, "gap {gap}, {class:?}");
    }
}

#[test]
fn a_lease_is_spared_for_the_minimum_run_time_of_its_own_tier() {
    let mut world = World::with_nodes(1);
    let min_run =
        ByTier { opportunistic: seconds(60), standard: seconds(900), reserved: seconds(900) };
    let policy = Policy { min_run, ..Policy::default() };
    world.must(operator(), Command::SetPolicy { policy });
    singles(&mut world, "acme", 0, &[Class::Batch; 7]);
    let low = singles(&mut world, "acme", 7, &[Class::Experiment])[0];
    let request = high(&mut world, 100, 2);
    world.later(seconds(899));
    assert_eq!(victims(&world, request), [], "one may go, two are needed");
    world.later(seconds(1));
    assert!(victims(&world, request).contains(&low));
}

#[test]
fn a_lease_that_is_still_being_prepared_is_not_preempted() {
    let mut world = World::with_nodes(1);
    let low = world.submit("acme", 1, spec(Class::Experiment, 8));
    let lease = world.grant(low, &[0, 1, 2, 3, 4, 5, 6, 7]);
    let request = high(&mut world, 100, 1);
    let (victims_given, freed) = (vec![lease], vec![gpu(0)]);
    let group = PlanGroup::Preempt { request, victims: victims_given, freed, members: vec![] };
    let rejection = Rejection::VictimProtected;
    assert_eq!(world.commit(group), GroupOutcome::Refused { rejection });
    assert_eq!(victims(&world, request), []);
}

#[test]
fn among_equals_the_lease_with_the_least_work_since_its_checkpoint_goes() {
    let mut world = World::with_nodes(1);
    let all = singles(&mut world, "acme", 0, &[Class::Batch; 8]);
    // Saved after 100, 200, … 800 seconds; the fourth saved last.
    for (number, lease) in all.iter().enumerate() {
        world.later(seconds(100));
        if number != 3 {
            world.must(user("acme"), Command::ReportCheckpoint { lease: *lease });
        }
    }
    world.later(seconds(10));
    world.must(user("acme"), Command::ReportCheckpoint { lease: all[3] });
    let request = high(&mut world, 100, 1);
    assert_eq!(victims(&world, request), [all[3]]);
    let two = high(&mut world, 101, 2);
    world.must(user("owner"), Command::CancelRequest { request });
    assert_eq!(victims(&world, two), [all[3], all[7]]);
}

#[test]
fn who_never_reports_a_checkpoint_counts_as_the_median_of_those_who_do() {
    let mut world = World::with_nodes(1);
    let silent = &singles(&mut world, "acme", 0, &[Class::Batch])[0];
    world.later(seconds(1));
    let saved = &singles(&mut world, "acme", 1, &[Class::Batch; 7])[..];
    // Seven report, 70 seconds after each other: losses of 0, 70, … 420 seconds, the median is 210.
    world.later(seconds(600));
    for lease in saved {
        world.later(seconds(70));
        world.must(user("acme"), Command::ReportCheckpoint { lease: *lease });
    }
    let request = high(&mut world, 100, 4);
    let mut gone = victims(&world, request);
    gone.sort();
    let mut expected = vec![saved[3], saved[4], saved[5], saved[6]];
    expected.sort();
    // The silent one ties with the fourth, which is newer.
    assert_eq!(gone, expected);
    world.must(user("owner"), Command::CancelRequest { request });
    let request = high(&mut world, 101, 5);
    assert!(victims(&world, request).contains(silent), "it goes before those that lose more");
}

#[test]
fn a_checkpoint_is_reported_by_its_tenant_while_it_runs_and_not_too_often() {
    let mut world = World::with_nodes(1);
    let request = world.submit("acme", 1, spec(Class::Training, 1));
    let lease = world.grant(request, &[0]);
    let report = Command::ReportCheckpoint { lease };
    world.refuse(user("acme"), report.clone(), Rejection::LeaseInactive);
    start(&mut world, lease);
    world.refuse(user("owner"), report.clone(), Rejection::LeaseMissing);
    world.refuse(agent(gpu(0)), report.clone(), Rejection::NotAllowed);
    let events = world.must(user("acme"), report.clone());
    assert_eq!(events, [Event::CheckpointReported { lease }]);
    world.later(seconds(29));
    world.refuse(user("acme"), report.clone(), Rejection::CheckpointTooSoon);
    world.later(seconds(1));
    world.must(user("acme"), report.clone());
    assert_eq!(world.state.leases()[&lease].checkpoint_at(), Some(world.now));
    // The last word of a guest that must go is taken, once.
    world.later(seconds(1));
    world.must(user("acme"), Command::ReleaseLease { lease });
    world.must(user("acme"), report.clone());
    world.refuse(user("acme"), report.clone(), Rejection::CheckpointTooSoon);
    let missing = Command::ReportCheckpoint { lease: LeaseId::new(9) };
    world.refuse(user("acme"), missing, Rejection::LeaseMissing);
}

#[test]
fn a_plan_that_ends_more_than_it_needs_is_refused_also_when_each_gives_something() {
    let mut world = World::with_nodes(1);
    let gang = |world: &mut World, number, gpus: &[u64]| {
        let request = world.submit("acme", number, spec(Class::Batch, 3));
        world.activate(request, gpus)
    };
    let (a, b) = (gang(&mut world, 1, &[0, 1, 2]), gang(&mut world, 2, &[3, 4, 5]));
    world.later(seconds(600));
    let request =
        world.submit("owner", 3, RequestSpec { duration: seconds(900), ..spec(Class::Latency, 4) });
    let members = vec![world.member(gpu(6))];
    let both = PlanGroup::Preempt {
        request,
        victims: vec![a, b],
        freed: vec![gpu(0), gpu(1), gpu(3), gpu(4)],
        members: vec![],
    };
    let rejection = Rejection::VictimsUseless;
    assert_eq!(world.commit(both), GroupOutcome::Refused { rejection }, "two GPUs are free");
    let one = PlanGroup::Preempt {
        request,
        victims: vec![a],
        freed: vec![gpu(0), gpu(1), gpu(2)],
        members,
    };
    assert_eq!(world.commit(one), GroupOutcome::Pledged);
}

#[test]
fn after_each_preemption_a_request_is_spared_twice_as_long_and_after_two_for_good() {
    let mut world = World::with_nodes(1);
    let low = world.submit(
        "acme",
        1,
        RequestSpec { duration: seconds(36_000), ..spec(Class::Experiment, 8) },
    );
    let mut spared_for = Vec::new();
    for round in 0..2_u128 {
        let mut asked = seconds(0);
        world.plan();
        let lease = *world.state.leases().keys().next().expect("it was granted");
        start(&mut world, lease);
        let request = high(&mut world, 100 + round, 1);
        while victims(&world, request).is_empty() {
            world.later(seconds(60));
            asked = asked.saturating_add(seconds(60));
        }
        spared_for.push(asked.get());
        world.plan();
        vacate(&mut world, lease);
        world.must(user("owner"), Command::CancelRequest { request });
        assert_eq!(world.plan(), vec![], "it pauses");
        assert_eq!(reason(&world, low), WaitReason::Deferred);
        world.later(seconds([60, 120][usize::try_from(round).unwrap()] - 1));
        assert_eq!(world.plan(), vec![]);
        world.later(seconds(1));
    }
    assert_eq!(spared_for, [600, 1_200]);
    assert_eq!(world.state.requests()[&low].preemptions(), 2);
    world.plan();
    let lease = *world.state.leases().keys().next().expect("it was granted");
    start(&mut world, lease);
    world.later(seconds(7_200));
    let request = high(&mut world, 200, 1);
    assert_eq!(victims(&world, request), []);
    let group =
        PlanGroup::Preempt { request, victims: vec![lease], freed: vec![gpu(0)], members: vec![] };
    let rejection = Rejection::VictimProtected;
    assert_eq!(world.commit(group), GroupOutcome::Refused { rejection });
}

#[test]
fn a_request_that_pauses_is_not_granted_by_any_plan() {
    let mut world = World::with_nodes(1);
    let lease = singles(&mut world, "acme", 0, &[Class::Experiment; 8])[0];
    let low = world.state.leases()[&lease].terms().request;
    world.later(seconds(600));
    let request = high(&mut world, 100, 8);
    world.plan();
    let all: Vec<LeaseId> = world.state.leases().keys().copied().collect();
    for lease in all {
        vacate(&mut world, lease);
    }
    world.must(user("owner"), Command::CancelRequest { request });
    let members = vec![world.member(gpu(0))];
    let grant = PlanGroup::Grant { request: low, members };
    let rejection = Rejection::RequestPaused;
    assert_eq!(world.commit(grant.clone()), GroupOutcome::Refused { rejection });
    world.later(seconds(60));
    assert!(matches!(world.commit(grant), GroupOutcome::Granted { .. }));
}

#[test]
fn a_preempted_request_keeps_its_submit_time_and_its_failure_budget() {
    let mut world = World::with_nodes(1);
    let lease = singles(&mut world, "acme", 0, &[Class::Experiment; 8])[0];
    let low = world.state.leases()[&lease].terms().request;
    let before = world.state.requests()[&low].clone();
    world.later(seconds(600));
    high(&mut world, 100, 8);
    world.plan();
    vacate(&mut world, lease);
    let after = &world.state.requests()[&low];
    assert_eq!(after.submitted_at(), before.submitted_at());
    assert_eq!(after.failed_starts, before.failed_starts);
    assert_eq!((after.preemptions(), after.recalls()), (1, 1));
}

pub(super) fn preemption_times(world: &World) -> Vec<sublet_protocol::units::Timestamp> {
    let ends = world.journal.iter().filter(|record| {
        matches!(record.event, Event::LeaseEnding { cause: EndReason::Preempted, .. })
    });
    ends.map(|record| record.time).collect()
}

#[test]
fn a_plan_over_the_hours_budget_is_refused_and_one_within_it_is_not() {
    for (per_cell_hour, per_cluster_hour, is_done) in
        [(2, 9, true), (9, 2, true), (1, 9, false), (9, 1, false)]
    {
        let mut world = World::with_nodes(1);
        with_policy(
            &mut world,
            PreemptionPolicy { per_cell_hour, per_cluster_hour, ..PreemptionPolicy::default() },
        );
        let all = singles(&mut world, "acme", 0, &[Class::Experiment; 8]);
        world.later(seconds(600));
        let request = high(&mut world, 100, 2);
        let (freed, members) = (vec![gpu(0), gpu(1)], vec![]);
        let group = PlanGroup::Preempt { request, victims: all[..2].to_vec(), freed, members };
        let rejection = Rejection::PreemptionsExhausted;
        let expected = match is_done {
            true => GroupOutcome::Pledged,
            false => GroupOutcome::Refused { rejection },
        };
        assert_eq!(world.commit(group), expected, "{per_cell_hour} and {per_cluster_hour}");
    }
}

/// The example of `docs/matching.md`.
#[test]
fn the_worked_example_of_preemption_holds() {
    let mut world = World::with_nodes(1);
    let start = |world: &mut World, number, gpus: &[u64]| {
        let count = u32::try_from(gpus.len()).unwrap();
        let request = world.submit("acme", number, spec(Class::Batch, count));
        world.later(seconds(1));
        world.activate(request, gpus)
    };
    let a = start(&mut world, 1, &[0, 1]);
    let b = start(&mut world, 2, &[2]);
    let c = start(&mut world, 3, &[3]);
    let d = start(&mut world, 4, &[4, 5, 6, 7]);
    world.later(seconds(600));
    for (lease, pause) in [(d, 600), (a, 480), (b, 120)] {
        world.must(user("acme"), Command::ReportCheckpoint { lease });
        world.later(seconds(pause));
    }
    let order = crate::preemption::Order::of(&world.state, world.now);
    let loss = |id: LeaseId| order.place(&world.state.leases()[&id]).loss / 1_000_000;
    assert_eq!([a, b, c, d].map(loss), [1_200, 120, 1_200, 4_800]);
    let request = high(&mut world, 100, 3);
    let mut gone = victims(&world, request);
    let mut expected = vec![a, b];
    gone.sort();
    expected.sort();
    assert_eq!(gone, expected);
    let ended = world.state.leases()[&b].terms().request;
    world.plan();
    vacate(&mut world, b);
    let paused = world.state.requests()[&ended].paused_until();
    assert_eq!(paused, Some(world.now.after(seconds(60))));
    let spared =
        crate::preemption::spared(&world.state, sublet_protocol::requests::Tier::Standard, 1);
    assert_eq!(spared, seconds(1_200));
}

/// Row M10: a request that could preempt in three clusters does so in one (KEP-8303).
#[test]
fn one_request_preempts_in_one_of_three_clusters_only() {
    let mut world = World::new();
    let owner = tenant("owner");
    let mut number = 0;
    for name in ["x1", "x2", "x3"] {
        let (cluster, region) = (ClusterId::new(name).unwrap(), Region::new("eu").unwrap());
        let create = Command::CreateCluster { cluster, owner, region, devices_max: 4 };
        world.must(operator(), create);
        let (node, boot) = (NodeId::new("n").unwrap(), Boot::new(1));
        let hello = Command::RegisterNode { cluster, node, boot, host: HostHash([0; 16]) };
        world.must(Actor::Agent { cluster, node }, hello);
        for _ in 0..4 {
            number += 1;
            let device = DeviceId::new(number);
            let slice = SliceId { cluster, node, device, part: Part::Whole };
            world.must(agent(slice), Command::OfferCapacity { offer: offer(slice, 1, 1) });
            world.submit("acme", number, spec(Class::Experiment, 1));
        }
    }
    world.plan();
    let all: Vec<LeaseId> = world.state.leases().keys().copied().collect();
    assert_eq!(all.len(), 12);
    for lease in all {
        start(&mut world, lease);
    }
    world.later(seconds(600));
    high(&mut world, 100, 2);
    for _ in 0..5 {
        world.plan();
        world.later(seconds(30));
    }
    let ending = world.state.leases().values().filter(|lease| !lease.is_running());
    let clusters: BTreeSet<ClusterId> = ending.map(|lease| lease.terms().cluster).collect();
    assert_eq!((clusters.len(), preemption_times(&world).len()), (1, 2));
}
