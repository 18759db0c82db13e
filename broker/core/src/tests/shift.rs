//! Grants of a plan that move aside for a request that fits nowhere else, and what never moves.

use sublet_protocol::capacity::SliceId;
use sublet_protocol::commands::{Command, GroupOutcome, PlanGroup};
use sublet_protocol::ids::{GpuModel, RequestId};
use sublet_protocol::money::MicroCredits;
use sublet_protocol::offers::{HostRoom, OfferTerms};
use sublet_protocol::quotas::Quota;
use sublet_protocol::requests::{Class, Placement, RequestSpec};
use sublet_protocol::units::{CpuMilli, GpuMilli, MiB, Seconds};

use crate::matching::{self, Limits, index::Index};
use crate::partition::{Kind, Typical};
use crate::state::StateView;
use crate::testing::{World, agent, gpu, offer, operator, spec, tenant};

/// One GPU of each model, on a node of its own.
const MODELS: [&str; 5] = ["m0", "m1", "m2", "m3", "m4"];

fn model(number: usize) -> GpuModel {
    GpuModel::new(MODELS[number]).unwrap()
}

/// The `place`-th GPU of a model: all of a model are on one node.
fn slot(model: usize, place: u64) -> SliceId {
    gpu(u64::try_from(model).unwrap() * 8 + place)
}

fn price(world: &mut World, number: usize, micros: i64) {
    for tier in [Class::Latency, Class::Batch, Class::Experiment].map(Class::tier) {
        let per_gpu_hour = MicroCredits::new(micros);
        let (owner, model) = (tenant("owner"), model(number));
        world.must(operator(), Command::SetPrice { owner, model, tier, per_gpu_hour });
    }
}

/// So many GPUs of each model.
fn world_of(counts: &[u64]) -> World {
    world_with(counts, |terms| terms)
}

fn world_with(counts: &[u64], terms: impl Fn(OfferTerms) -> OfferTerms) -> World {
    let mut world = World::new();
    for (number, count) in counts.iter().enumerate() {
        for name in ["owner", "acme"] {
            quota(&mut world, name, number, 16_000);
        }
        price(&mut world, number, 1_000_000);
        world.register(u64::try_from(number).unwrap(), 1);
        for place in 0..*count {
            let mut given = offer(slot(number, place), 1, 1);
            given.capacity.model = model(number);
            let command = Command::OfferCapacity { offer: terms(given) };
            world.must(agent(given.slice), command);
        }
    }
    world
}

fn quota(world: &mut World, name: &str, number: usize, milli: u64) {
    let (tenant, model, quota) = (tenant(name), model(number), Quota::of(GpuMilli::new(milli)));
    world.must(operator(), Command::SetQuota { tenant, model, quota });
}

fn wants(models: &[usize], count: u32) -> RequestSpec {
    let models = models.iter().map(|number| model(*number)).collect();
    RequestSpec { models, ..spec(Class::Batch, count) }
}

/// What a plan grants, by request; placements are scored as if nothing in particular were typical, so
/// that the first slice is taken of those that are alike. The index must plan the same.
fn plan(world: &World) -> Vec<(RequestId, Vec<SliceId>)> {
    let typical = Some(Typical::new([(Kind::of(&wants(&[], 1)), 1)]));
    let limits = Limits { typical, ..Limits::NONE };
    let view = StateView { state: &world.state, now: world.now };
    let groups = matching::plan_within(view, &limits);
    let by_index = matching::plan_with(&mut Index::of(&world.state), view, &limits);
    assert_eq!(groups, by_index);
    let grants = groups.into_iter().filter_map(|group| match group {
        PlanGroup::Grant { request, members } => {
            Some((request, members.iter().map(|member| member.slice).collect()))
        }
        PlanGroup::Preempt { .. } | PlanGroup::Promise { .. } | PlanGroup::Withdraw { .. } => None,
    });
    grants.collect()
}

/// The plan, committed: every grant is accepted.
fn commit(world: &mut World) -> Vec<(RequestId, Vec<SliceId>)> {
    let grants = plan(world);
    for (request, slices) in &grants {
        let members = slices.iter().map(|slice| world.member(*slice)).collect();
        let group = PlanGroup::Grant { request: *request, members };
        let outcome = world.commit(group);
        assert!(matches!(outcome, GroupOutcome::Granted { .. }), "{outcome:?}");
    }
    grants
}

/// Submits the requests a second apart; equal in all but time, so their order is that of the list.
fn submit(world: &mut World, specs: &[RequestSpec]) -> Vec<RequestId> {
    let ids = specs.iter().zip(1_u128..).map(|(spec, number)| {
        world.later(Seconds::new(1));
        world.submit("acme", number, spec.clone())
    });
    ids.collect()
}

/// Worked example of docs/matching.md.
#[test]
fn a_grant_moves_aside_for_one_that_fits_nowhere_else() {
    let mut world = world_of(&[1, 1]);
    let ids = submit(&mut world, &[wants(&[0, 1], 1), wants(&[0], 1)]);
    let expected = [(ids[0], vec![slot(1, 0)]), (ids[1], vec![slot(0, 0)])];
    assert_eq!(commit(&mut world), expected);
}

#[test]
fn without_anyone_in_need_the_first_of_equal_places_is_taken() {
    let mut world = world_of(&[1, 1]);
    let ids = submit(&mut world, &[wants(&[0, 1], 1)]);
    assert_eq!(commit(&mut world), [(ids[0], vec![slot(0, 0)])]);
}

#[test]
fn grants_move_one_for_the_other_up_to_three_in_a_chain() {
    let mut world = world_of(&[1, 1, 1, 1]);
    let ids = submit(
        &mut world,
        &[wants(&[0, 1], 1), wants(&[1, 2], 1), wants(&[2, 3], 1), wants(&[0], 1)],
    );
    let places = [1, 2, 3, 0].map(|number| vec![slot(number, 0)]);
    let expected: Vec<_> = ids.into_iter().zip(places).collect();
    assert_eq!(commit(&mut world), expected);
}

#[test]
fn a_chain_of_four_is_not_looked_for() {
    let mut world = world_of(&[1, 1, 1, 1, 1]);
    let chain = [[0, 1], [1, 2], [2, 3], [3, 4]].map(|models| wants(&models, 1));
    let mut specs = chain.to_vec();
    specs.push(wants(&[0], 1));
    let ids = submit(&mut world, &specs);
    let places = [0, 1, 2, 3].map(|number| vec![slot(number, 0)]);
    let expected: Vec<_> = ids.into_iter().zip(places).collect();
    assert_eq!(commit(&mut world), expected, "all stand where they stood");
}

#[test]
fn several_small_grants_move_aside_for_a_gang() {
    let mut world = world_of(&[4, 4]);
    let any = wants(&[0, 1], 1);
    let mut specs = vec![any.clone(), any.clone(), any];
    specs.push(wants(&[0], 4));
    let ids = submit(&mut world, &specs);
    let grants = commit(&mut world);
    assert_eq!(grants.len(), 4);
    let of_gang = grants.iter().find(|(id, _)| *id == ids[3]).unwrap();
    assert_eq!(of_gang.1, (0..4).map(|place| slot(0, place)).collect::<Vec<_>>());
}

#[test]
fn a_gang_that_needs_one_node_gets_one_cleared() {
    let same = |mut terms: OfferTerms| {
        terms.capacity.model = model(0);
        terms
    };
    let mut world = world_with(&[2, 3], same);
    let node = RequestSpec { placement: Placement::Node, ..wants(&[0], 2) };
    let ids = submit(&mut world, &[wants(&[0], 1), node.clone(), node]);
    let expected = [
        (ids[0], vec![slot(1, 2)]),
        (ids[1], vec![slot(1, 0), slot(1, 1)]),
        (ids[2], vec![slot(0, 0), slot(0, 1)]),
    ];
    assert_eq!(commit(&mut world), expected);
}

#[test]
fn what_is_committed_never_moves() {
    let mut world = world_of(&[1, 1]);
    submit(&mut world, &[wants(&[0, 1], 1)]);
    commit(&mut world);
    world.submit("acme", 9, wants(&[0], 1));
    assert_eq!(plan(&world), []);
}

#[test]
fn nobody_moves_to_a_dearer_place() {
    for (micros, served) in [(1_000_001, 1), (1_000_000, 2), (999_999, 2)] {
        let mut world = world_of(&[1, 1]);
        // The one that is in need pays anything; the other has the cheaper place.
        price(&mut world, 1, micros);
        let ids = submit(&mut world, &[wants(&[0, 1], 1), wants(&[0], 1)]);
        let grants = commit(&mut world);
        assert_eq!(grants.len(), served, "{micros}");
        assert_eq!(grants[0].0, ids[0]);
    }
}

#[test]
fn quotas_go_with_a_grant_that_moves() {
    // The first can move only if there is quota for it there, and the third gets what it leaves.
    for (milli, served) in [(0, 1), (1_000, 2), (2_000, 3)] {
        let mut world = world_of(&[1, 2]);
        quota(&mut world, "acme", 1, milli);
        let ids = submit(&mut world, &[wants(&[0, 1], 1), wants(&[0], 1), wants(&[1], 1)]);
        let grants = commit(&mut world);
        let granted: Vec<RequestId> = grants.into_iter().map(|(id, _)| id).collect();
        assert_eq!(granted, ids[..served], "{milli}");
    }
}

#[test]
fn what_a_grant_moves_away_from_counts_no_more_for_its_quota() {
    let mut world = world_of(&[1, 2]);
    quota(&mut world, "acme", 0, 1_000);
    // The second may have its GPU only if the first does not hold one of the model any more.
    let ids = submit(&mut world, &[wants(&[0, 1], 1), wants(&[0], 1)]);
    let granted: Vec<RequestId> = commit(&mut world).into_iter().map(|(id, _)| id).collect();
    assert_eq!(granted, ids);
}

#[test]
fn nobody_moves_in_the_way_of_a_reservation_even_of_a_lower_tier() {
    // An experiment waits for both GPUs of the second model, of which one is leased for an hour. The
    // grant that could move to the other one would run for longer than that, or not.
    for (minutes, served) in [(61, 1), (30, 2)] {
        let mut world = world_of(&[1, 2]);
        let running = world.submit("owner", 90, wants(&[1], 1));
        world.activate(running, &[9]);
        let both = RequestSpec { class: Class::Experiment, ..wants(&[1], 2) };
        let waits = world.submit("owner", 91, both);
        world.plan();
        assert!(world.state.promises().contains_key(&waits));
        let duration = Seconds::new(minutes * 60);
        let first = RequestSpec { duration, ..wants(&[0, 1], 1) };
        submit(&mut world, &[first, wants(&[0], 1)]);
        assert_eq!(plan(&world).len(), served, "{minutes}");
    }
}

#[test]
fn the_room_of_a_shared_host_goes_with_a_grant_that_moves() {
    let host = |terms| OfferTerms { host: HostRoom::Node, ..terms };
    let mut world = world_with(&[2, 2], host);
    let asks = |models: &[usize], cpu| RequestSpec {
        cpu: CpuMilli::new(cpu),
        host_memory: MiB::new(1),
        ..wants(models, 1)
    };
    // The second needs all of the first node's CPU.
    let specs = [asks(&[0, 1], 8_000), asks(&[0], 16_000)];
    let ids = submit(&mut world, &specs);
    let grants = commit(&mut world);
    let served: Vec<RequestId> = grants.iter().map(|(id, _)| *id).collect();
    assert_eq!(served, ids);
    assert_eq!(grants[0].1, [slot(1, 0)]);
}

#[test]
fn of_requests_submitted_at_once_the_larger_is_served_first() {
    for (apart, served) in [(0, 2), (1, 1)] {
        let mut world = world_of(&[4]);
        world.submit("acme", 1, wants(&[0], 1));
        world.later(Seconds::new(apart));
        world.submit("acme", 2, wants(&[0], 4));
        let grants = plan(&world);
        assert_eq!(grants.len(), 1);
        assert_eq!(grants[0].0, RequestId::new(served), "{apart} s apart");
    }
}
