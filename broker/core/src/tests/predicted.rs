//! What `docs/matching.md` lets its reader predict, at the edges where two of its rules meet.

use sublet_protocol::commands::{Command, GroupOutcome, PlanGroup};
use sublet_protocol::ids::{GpuModel, RequestId};
use sublet_protocol::money::MicroCredits;
use sublet_protocol::policy::Policy;
use sublet_protocol::preemption::ByTier;
use sublet_protocol::quotas::Quota;
use sublet_protocol::refusals::Rejection;
use sublet_protocol::requests::{Class, Placement, RequestSpec, Tier, WaitReason};
use sublet_protocol::units::{GpuMilli, Seconds};

use super::preemption::{high, reason, seconds, singles, vacate};
use super::quotas::{create, join, pool, quota, set};
use crate::matching::{self, Change, WhatIf, WhatIfOutcome, explain, what_if};
use crate::state::{LeaseStage, StateView};
use crate::testing::{HOUR, World, agent, gpu, model, offer, operator, spec, tenant};

fn view(world: &World) -> StateView<'_> {
    StateView { state: &world.state, now: world.now }
}

fn dry(world: &World, name: &str, spec: &RequestSpec) -> WhatIf {
    what_if(view(world), tenant(name), spec)
}

fn is_granted(world: &World, request: RequestId) -> bool {
    !world.state.requests()[&request].is_waiting()
}

/// Who is granted one GPU, in the order of the plan.
fn served(world: &World) -> Vec<RequestId> {
    let plan = matching::plan(view(world));
    let granted = plan.iter().filter(|group| matches!(group, PlanGroup::Grant { .. }));
    granted.map(PlanGroup::request).collect()
}

const TOO_SMALL: WhatIfOutcome = WhatIfOutcome::Refuse(Rejection::QuotaTooSmall);

#[test]
fn who_lends_nothing_leaves_its_group_nothing_and_borrowers_are_refused_at_once() {
    let mut world = pool(1);
    set(&mut world, "owner", quota(8_000, None, Some(0)));
    assert_eq!(dry(&world, "acme", &spec(Class::Batch, 1)).outcome, TOO_SMALL);
    assert_eq!(dry(&world, "owner", &spec(Class::Batch, 9)).outcome, TOO_SMALL);
    let all = world.submit("owner", 1, spec(Class::Batch, 8));
    assert_eq!(served(&world), [all], "its own is all there for itself");
    // One thousandth that is lent is less than a GPU: still nothing.
    set(&mut world, "owner", quota(8_000, None, Some(999)));
    assert_eq!(dry(&world, "acme", &spec(Class::Batch, 1)).outcome, TOO_SMALL);
    set(&mut world, "owner", quota(8_000, None, Some(1_000)));
    assert!(matches!(
        dry(&world, "acme", &spec(Class::Batch, 1)).outcome,
        WhatIfOutcome::Grant { .. }
    ));
}

#[test]
fn who_may_borrow_nothing_waits_for_its_own_and_is_refused_what_is_more_than_that() {
    let mut world = pool(1);
    set(&mut world, "acme", quota(2_000, Some(0), None));
    let own = world.submit("acme", 1, spec(Class::Batch, 2));
    world.activate(own, &[0, 1]);
    let third = world.submit("acme", 2, spec(Class::Batch, 1));
    assert_eq!((served(&world), reason(&world, third)), (vec![], WaitReason::BorrowLimit));
    assert_eq!(dry(&world, "acme", &spec(Class::Batch, 3)).outcome, TOO_SMALL);
}

/// Only what is submitted is refused: a request that waits goes on waiting.
#[test]
fn a_quota_that_is_cut_below_what_waits_closes_nothing_and_one_that_is_raised_serves_it() {
    let mut world = World::with_nodes(1);
    set(&mut world, "acme", quota(4_000, None, None));
    let busy = world.submit("acme", 1, spec(Class::Batch, 2));
    world.activate(busy, &[0, 1]);
    let four = world.submit("acme", 2, spec(Class::Batch, 4));
    set(&mut world, "acme", quota(1_000, None, None));
    assert_eq!((served(&world), reason(&world, four)), (vec![], WaitReason::Quota));
    assert_eq!(dry(&world, "acme", &spec(Class::Batch, 4)).outcome, TOO_SMALL, "a new one is");
    set(&mut world, "acme", quota(6_000, None, None));
    assert_eq!(served(&world), [four]);
}

/// Priority and time are compared within a tenant only.
#[test]
fn of_tenants_that_stand_alike_the_one_with_the_first_id_is_served_and_then_they_take_turns() {
    let one = |priority| RequestSpec { priority, ..spec(Class::Batch, 1) };
    let mut world = World::with_nodes(1);
    let busy = world.submit("owner", 1, spec(Class::Batch, 6));
    world.activate(busy, &[0, 1, 2, 3, 4, 5]);
    create_alone(&mut world, &["beta", "zeta"]);
    let zeta = [10, 11].map(|id| world.submit("zeta", id, one(255)));
    world.later(seconds(1));
    let beta = [20, 21].map(|id| world.submit("beta", id, one(0)));
    assert_eq!(served(&world), [beta[0], zeta[0]]);
}

fn create_alone(world: &mut World, names: &[&str]) {
    for name in names {
        let tenant = tenant(name);
        world.must(operator(), Command::CreateTenant { tenant, parent: None });
        set(world, name, quota(8_000, None, None));
    }
}

/// One GPU that two members of a group own on paper. Whenever it is free neither uses anything, so both
/// stand alike: what the one that comes second by its name was promised keeps it from starving.
#[test]
fn who_comes_second_by_name_gets_every_second_turn_also_where_both_use_only_their_own() {
    let mut world = World::new();
    world.register(0, 1);
    world.must(operator(), Command::CreateTenant { tenant: tenant("pool"), parent: None });
    for name in ["acme", "owner"] {
        set(&mut world, name, quota(1_000, Some(0), Some(0)));
        join(&mut world, name, Some("pool"));
    }
    let hour = |name: &str, world: &mut World, id| world.submit(name, id, spec(Class::Batch, 1));
    for id in 0..4 {
        hour("acme", &mut world, 10 + id);
        hour("owner", &mut world, 20 + id);
    }
    let mut turns = Vec::new();
    for generation in 1..=6 {
        let terms = offer(gpu(0), generation, 1);
        world.must(agent(gpu(0)), Command::OfferCapacity { offer: terms });
        world.plan();
        let lease = *world.state.leases().keys().next().expect("the GPU is never left free");
        turns.push(world.state.leases()[&lease].terms().tenant);
        super::preemption::start(&mut world, lease);
        world.plan();
        world.later(HOUR);
        let outcome = sublet_protocol::commands::GuestOutcome::Exited { code: 0 };
        world.stop(lease, gpu(0), HOUR, outcome);
    }
    let [acme, owner] = ["acme", "owner"].map(tenant);
    assert_eq!(turns, [acme, owner, acme, owner, acme, owner]);
}

#[test]
fn of_what_a_tenant_submits_at_one_instant_the_largest_is_served_first_and_of_equals_the_lower_id()
{
    let mut world = World::with_nodes(1);
    let [small, late, early, large] = [(4, 1), (3, 2), (2, 2), (1, 3)]
        .map(|(id, count)| world.submit("acme", id, spec(Class::Batch, count)));
    assert_eq!(served(&world), [large, early, late, small]);
}

/// The first rule that holds names the reason.
#[test]
fn of_two_reasons_the_one_that_is_looked_at_first_is_told() {
    let mut world = World::with_nodes(2);
    let cheap = Some(MicroCredits::new(1));
    let of = |world: &World, spec: &RequestSpec| match dry(world, "acme", spec).outcome {
        WhatIfOutcome::Wait(why) => (why.reason, why.change),
        other => panic!("{other:?}"),
    };
    let apart =
        RequestSpec { placement: Placement::Node, max_price: cheap, ..spec(Class::Batch, 9) };
    assert_eq!(of(&world, &apart), (WaitReason::Price, None), "before topology");
    let large = RequestSpec { memory: sublet_protocol::units::MiB::new(90_000), ..apart };
    assert_eq!(of(&world, &large).0, WaitReason::Memory, "before price");
    let busy = world.submit("acme", 1, spec(Class::Batch, 8));
    world.activate(busy, &[0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(of(&world, &large).0, WaitReason::Quota, "before memory");
}

/// An island of four on a node of eight.
#[test]
fn a_gang_that_is_larger_than_an_island_waits_for_topology_and_a_node_would_do() {
    let mut world = World::new();
    world.register(0, 1);
    for number in 0..8 {
        let terms = offer(gpu(number), 1, 1);
        let island = u8::from(number >= 4).into();
        let capacity = sublet_protocol::capacity::Capacity { island, ..terms.capacity };
        let offer = sublet_protocol::offers::OfferTerms { capacity, ..terms };
        world.must(agent(gpu(number)), Command::OfferCapacity { offer });
    }
    let linked = |count| RequestSpec { placement: Placement::Island, ..spec(Class::Batch, count) };
    assert!(matches!(dry(&world, "acme", &linked(4)).outcome, WhatIfOutcome::Grant { .. }));
    let five = world.submit("acme", 1, linked(5));
    let why = explain(view(&world), five).unwrap();
    assert_eq!(
        (why.reason, why.change),
        (WaitReason::Topology, Some(Change::Placement(Placement::Node)))
    );
    assert_eq!(served(&world), []);
}

#[test]
fn a_lease_is_spared_from_its_start_and_not_from_its_grant_to_the_second() {
    let mut world = World::with_nodes(1);
    let requests: Vec<RequestId> =
        (0..8).map(|number| world.submit("acme", number + 1, spec(Class::Batch, 1))).collect();
    let leases: Vec<_> = requests
        .iter()
        .zip(0..)
        .map(|(request, number)| world.grant(*request, &[number]))
        .collect();
    world.later(seconds(200));
    for lease in leases {
        super::preemption::start(&mut world, lease);
    }
    let wanted = high(&mut world, 100, 1);
    let preempts = |world: &World| {
        let plan = matching::plan(view(world));
        plan.iter()
            .any(|group| matches!(group, PlanGroup::Preempt { request, .. } if *request == wanted))
    };
    world.later(seconds(599));
    assert!(!preempts(&world));
    world.later(seconds(1));
    assert!(preempts(&world));
}

/// Protection that is raised afterwards gives nothing back, and what is freed stays promised.
#[test]
fn a_policy_that_is_changed_while_victims_go_changes_nothing_for_them_nor_for_the_pledge() {
    let mut world = World::with_nodes(1);
    let leases = singles(&mut world, "acme", 0, &[Class::Batch; 8]);
    world.later(seconds(600));
    let wanted = high(&mut world, 100, 1);
    assert_eq!(world.plan(), vec![GroupOutcome::Pledged]);
    let lower = ByTier::all(Seconds::new(7_200));
    let policy = Policy { min_run: lower, pledge: seconds(130), ..world.state.policy().clone() };
    world.must(operator(), Command::SetPolicy { policy });
    let going = leases
        .iter()
        .find(|lease| matches!(world.stage(**lease), Some(LeaseStage::Ending { .. })))
        .unwrap();
    world.later(seconds(120));
    vacate(&mut world, *going);
    // Another of the same tier that came first in time and priority does not get it.
    let other = RequestSpec { priority: 255, duration: seconds(600), ..spec(Class::Latency, 1) };
    let other = world.submit("acme", 101, other);
    world.plan();
    assert!(is_granted(&world, wanted) && !is_granted(&world, other));
}

#[test]
fn what_costs_nothing_is_granted_at_a_cap_of_nothing_and_within_a_budget_of_nothing() {
    let mut world = World::with_nodes(1);
    let (owner, tier) = (tenant("owner"), Tier::Standard);
    let per_gpu_hour = MicroCredits::ZERO;
    world.must(operator(), Command::SetPrice { owner, model: model(), tier, per_gpu_hour });
    let budget =
        sublet_protocol::quotas::Budget { gpu_time: None, money: Some(MicroCredits::ZERO) };
    let terms = sublet_protocol::quotas::TenantTerms { budget, ..Default::default() };
    world.must(operator(), Command::SetTerms { tenant: tenant("acme"), terms });
    let free = RequestSpec { max_price: Some(MicroCredits::ZERO), ..spec(Class::Batch, 1) };
    let dry_run = dry(&world, "acme", &free);
    assert!(matches!(dry_run.outcome, WhatIfOutcome::Grant { .. }));
    assert_eq!(dry_run.hold, Some(MicroCredits::ZERO));
    let paid = world.submit("acme", 1, spec(Class::Experiment, 1));
    assert_eq!((served(&world), reason(&world, paid)), (vec![], WaitReason::Budget));
}

/// Half of a GPU is asked for and only whole ones are on offer: all of it is held, counted and paid.
#[test]
fn who_gets_a_whole_gpu_for_the_half_that_it_asked_for_pays_and_counts_the_whole() {
    let world = World::with_nodes(1);
    let half = RequestSpec { gpu: GpuMilli::new(500), ..spec(Class::Batch, 2) };
    let WhatIf { outcome: WhatIfOutcome::Grant { gpu, members, .. }, hold } =
        dry(&world, "acme", &half)
    else {
        panic!("it would be granted")
    };
    assert_eq!((gpu, members.len()), (GpuMilli::DEVICE, 2));
    assert_eq!(hold, Some(MicroCredits::new(4_000_000)), "two GPUs for an hour at 2");
    let mut world = world;
    set(&mut world, "acme", quota(1_000, None, None));
    let waits = world.submit("acme", 1, half);
    assert_eq!((served(&world), reason(&world, waits)), (vec![], WaitReason::Quota));
}

/// A tenant that is moved keeps what runs; what is more than its new group has is named and ends by itself.
#[test]
fn who_is_moved_while_it_borrows_is_over_in_the_new_group_and_gets_nothing_more_there() {
    let mut world = pool(1);
    let borrowed = singles(&mut world, "acme", 0, &[Class::Batch; 3]);
    world.must(operator(), Command::CreateTenant { tenant: tenant("poor"), parent: None });
    create(&mut world, "other", "poor");
    set(&mut world, "other", quota(2_000, None, None));
    let events = join(&mut world, "acme", Some("poor"));
    let over = |event: &sublet_protocol::events::Event| event.name() == "tenant_over_admitted";
    assert!(events.iter().any(over), "{events:?}");
    let more = world.submit("acme", 50, spec(Class::Batch, 1));
    let own = world.submit("other", 51, spec(Class::Batch, 1));
    let freed = world.submit("owner", 52, spec(Class::Batch, 5));
    // What it left behind is free again for its old group; in the new one even `other` gets nothing, as
    // it keeps nothing for itself and all that the group has is held.
    assert_eq!(served(&world), [freed]);
    assert_eq!((reason(&world, more), reason(&world, own)), (WaitReason::Quota, WaitReason::Quota));
    assert!(
        borrowed.iter().all(|lease| matches!(world.stage(*lease), Some(LeaseStage::Active { .. })))
    );
}

#[test]
fn a_model_with_a_price_but_without_a_quota_is_refused_to_who_has_none() {
    let mut world = World::with_nodes(1);
    let h100 = GpuModel::new("h100").unwrap();
    let (owner, tier) = (tenant("owner"), Tier::Standard);
    let per_gpu_hour = MicroCredits::new(1);
    world.must(operator(), Command::SetPrice { owner, model: h100, tier, per_gpu_hour });
    let asked = RequestSpec { models: vec![h100], duration: HOUR, ..spec(Class::Batch, 1) };
    assert_eq!(dry(&world, "acme", &asked).outcome, TOO_SMALL);
    let quota = Quota::of(GpuMilli::DEVICE);
    world.must(operator(), Command::SetQuota { tenant: tenant("acme"), model: h100, quota });
    let WhatIfOutcome::Wait(why) = dry(&world, "acme", &asked).outcome else {
        panic!("none is on offer")
    };
    assert_eq!(why.reason, WaitReason::Model);
}
