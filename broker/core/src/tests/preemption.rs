//! Who gives way to whom, who is spared, and how often.

use sublet_protocol::commands::{
    Actor, Command, GroupOutcome, GuestOutcome, NackReason, PlanGroup, PlanMember, Recall,
};
use sublet_protocol::events::Event;
use sublet_protocol::ids::{Boot, LeaseId, RequestId};
use sublet_protocol::leases::EndReason;
use sublet_protocol::money::MicroCredits;
use sublet_protocol::policy::Policy;
use sublet_protocol::preemption::{ByTier, PreemptionPolicy};
use sublet_protocol::refusals::Rejection;
use sublet_protocol::requests::{Class, Placement, RequestSpec, WaitReason};
use sublet_protocol::units::{GpuMilli, Seconds};

use crate::matching::{self, explain};
use crate::state::{LeaseStage, StateView};
use crate::testing::{World, agent, gpu, model, offer, operator, spec, tenant, user};

const MINUTE: u64 = 60;

fn seconds(value: u64) -> Seconds {
    Seconds::new(value)
}

fn with_policy(world: &mut World, preemption: PreemptionPolicy) {
    let policy = Policy { preemption, ..world.state.policy().clone() };
    world.must(operator(), Command::SetPolicy { policy });
}

/// `count` active leases of one GPU each, of these classes in turn, for the tenant.
fn singles(world: &mut World, name: &str, from: u64, classes: &[Class]) -> Vec<LeaseId> {
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
        Some(PlanGroup::Grant { .. }) | None => Vec::new(),
    }
}

#[track_caller]
fn reason(world: &World, request: RequestId) -> WaitReason {
    let view = StateView { state: &world.state, now: world.now };
    explain(view, request).expect("it waits").reason
}

fn high(world: &mut World, number: u128, count: u32) -> RequestId {
    world.submit(
        "owner",
        number,
        RequestSpec { duration: seconds(1_800), ..spec(Class::Latency, count) },
    )
}

/// The guests of a lease that must go are gone, and their GPUs are offered again.
fn vacate(world: &mut World, lease: LeaseId) {
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
fn start(world: &mut World, lease: LeaseId) {
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
        world.later(seconds(MINUTE));
    }
    assert_eq!(waves, [5, 10, 12]);
    for pair in preemption_times(&world).windows(6) {
        assert!(pair[5].since(pair[0]) >= seconds(3_600).as_millis(), "six in one hour: {pair:?}");
    }
}

fn preemption_times(world: &World) -> Vec<sublet_protocol::units::Timestamp> {
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
    world.plan();
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
