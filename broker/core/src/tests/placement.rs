//! Where a lease is placed among what fits: fragmentation, promises, prices, islands; and that a gang
//! is there as a whole or not at all.

use std::collections::BTreeMap;

use sublet_protocol::capacity::{ComputeCapability, DriverVersion, Hardware, Part, SliceId};
use sublet_protocol::commands::{Command, GroupOutcome, PlanGroup};
use sublet_protocol::ids::{ClusterId, RequestId};
use sublet_protocol::money::MicroCredits;
use sublet_protocol::offers::{Division, HostRoom, IdleFor, MigMode, OfferTerms, SharedBy};
use sublet_protocol::refusals::Rejection;
use sublet_protocol::requests::{Capability, Class, Placement, RequestSpec, WaitReason};
use sublet_protocol::units::{GpuMilli, MiB, Seconds};

use crate::matching::{self, explain};
use crate::partition::{Kind, Typical};
use crate::state::{State, StateView};
use crate::testing::{World, agent, gpu, model, offer, operator, spec, tenant};
use crate::{evolve, matching::Limits};

fn world_with(terms: impl IntoIterator<Item = OfferTerms>) -> World {
    let mut world = World::new();
    for number in 0..4 {
        world.register(number, 1);
    }
    for offer in terms {
        world.must(agent(offer.slice), Command::OfferCapacity { offer });
    }
    world
}

/// A GPU that may be shared.
fn sharable(number: u64) -> OfferTerms {
    let division = Division { mig: MigMode::Off, shared: Some(SharedBy::Mps) };
    OfferTerms { division, ..offer(gpu(number), 1, 1) }
}

fn share(milli: u64) -> RequestSpec {
    RequestSpec { gpu: GpuMilli::new(milli), memory: MiB::ZERO, ..spec(Class::Experiment, 1) }
}

/// Submits and plans one request after the other; where each stands.
fn placed(world: &mut World, specs: &[RequestSpec]) -> Vec<Vec<SliceId>> {
    let places = specs.iter().zip(1_u128..).map(|(spec, number)| {
        let request = world.submit("acme", number, spec.clone());
        world.plan();
        slices_of(&world.state, request)
    });
    places.collect()
}

fn slices_of(state: &State, request: RequestId) -> Vec<SliceId> {
    let lease = state.leases().values().find(|lease| lease.terms().request == request);
    let members = lease.map_or(&[][..], |lease| &lease.terms().members);
    members.iter().map(|member| member.slice).collect()
}

fn device(slice: &SliceId) -> SliceId {
    SliceId { part: Part::Whole, ..*slice }
}

/// Worked example of docs/matching.md: the third share opens no second GPU, the fourth has to.
#[test]
fn shares_fill_a_gpu_that_is_shared_before_they_break_another() {
    let mut world = world_with([sharable(0), sharable(1)]);
    let places = placed(&mut world, &[share(500), share(250), share(250), share(250)]);
    let devices: Vec<SliceId> = places.iter().map(|slices| device(&slices[0])).collect();
    assert_eq!(devices, [gpu(0), gpu(0), gpu(0), gpu(1)]);
}

/// Worked example: 400 are asked for, 500 and 400 are left on two GPUs. Halves are typical: the GPU that
/// can still take one is kept.
#[test]
fn the_gpu_whose_rest_a_typical_request_could_not_use_is_taken_first() {
    let mut world = world_with([sharable(0), sharable(1)]);
    let typical = Typical::new([(Kind::of(&share(500)), 1)]);
    let grant = |world: &mut World, number: u128, milli: u64, on: u64| {
        let request = world.submit("acme", number, share(milli));
        let slice = SliceId { part: Part::Share { index: 0 }, ..gpu(on) };
        let member = sublet_protocol::commands::PlanMember { slice, generation: 1 };
        world.commit(PlanGroup::Grant { request, members: vec![member] });
    };
    grant(&mut world, 1, 500, 0);
    grant(&mut world, 2, 600, 1);
    let request = world.submit("acme", 3, share(400));
    let limits = Limits { typical: Some(typical), ..Limits::NONE };
    let view = StateView { state: &world.state, now: world.now };
    let plan = matching::plan_within(view, &limits);
    let [PlanGroup::Grant { members, .. }] = &plan[..] else { panic!("{plan:?}") };
    assert_eq!(device(&members[0].slice), gpu(1), "500 stay for a half on GPU 0");
    assert!(matches!(world.commit(plan[0].clone()), GroupOutcome::Granted { .. }));
    assert_eq!(slices_of(&world.state, request).len(), 1);
}

/// Whoever asks for a part gets no whole GPU only because nobody typical could use the rest.
#[test]
fn a_share_takes_no_whole_gpu_even_if_nothing_typical_fits_beside_it() {
    for (host, price) in [(HostRoom::Slice, 1), (HostRoom::Node, 1), (HostRoom::Node, 0)] {
        let mut world = world_with([OfferTerms { host, ..sharable(0) }]);
        let per_gpu_hour = MicroCredits::new(price);
        let (owner, model, tier) = (tenant("owner"), model(), Class::Batch.tier());
        world.must(operator(), Command::SetPrice { owner, model, tier, per_gpu_hour });
        world.submit("acme", 1, RequestSpec { class: Class::Batch, ..share(460) });
        let typical = Typical::new([(Kind::of(&spec(Class::Batch, 1)), 1)]);
        let limits = Limits { typical: Some(typical), ..Limits::NONE };
        let view = StateView { state: &world.state, now: world.now };
        let plan = matching::plan_within(view, &limits);
        let [PlanGroup::Grant { members, .. }] = &plan[..] else { panic!("{plan:?}") };
        assert_eq!(members[0].slice.part, Part::Share { index: 0 }, "{host:?} {price}");
        assert!(matches!(world.commit(plan[0].clone()), GroupOutcome::Granted { .. }));
    }
}

#[test]
fn among_equals_the_longest_promise_is_taken_then_the_smallest_id() {
    let lasting = |number: u64, hours: u64| {
        let (p10, p50) = (Seconds::new(3_600), Seconds::new(hours * 3_600));
        OfferTerms { idle_for: IdleFor { p10, p50, p90: p50 }, ..offer(gpu(number), 1, 1) }
    };
    // One GPU on each of three nodes, so that fragmentation is the same.
    let mut world = world_with([lasting(0, 2), lasting(8, 5), lasting(16, 3)]);
    let places = placed(&mut world, &[spec(Class::Batch, 1), spec(Class::Batch, 1)]);
    assert_eq!(places, [vec![gpu(8)], vec![gpu(16)]]);
    let mut world = world_with([lasting(16, 3), lasting(0, 3), lasting(8, 3)]);
    assert_eq!(placed(&mut world, &[spec(Class::Batch, 1)]), [vec![gpu(0)]]);
}

/// Row S8: NVLink islands of two, two and four GPUs on one node.
#[test]
fn four_gpus_that_must_be_linked_never_land_on_pairs() {
    let on_island = |number: u64| {
        let mut terms = offer(gpu(number), 1, 1);
        terms.capacity.island = [0, 0, 1, 1, 2, 2, 2, 2][usize::try_from(number).unwrap()];
        terms
    };
    let four = RequestSpec { placement: Placement::Island, ..spec(Class::Training, 4) };
    let mut world = world_with((0..8).map(on_island));
    let request = world.submit("acme", 1, four.clone());
    let across = [0, 1, 2, 3].map(|number| world.member(gpu(number))).to_vec();
    let refused = GroupOutcome::Refused { rejection: Rejection::SliceUnfit };
    assert_eq!(world.commit(PlanGroup::Grant { request, members: across }), refused);
    world.plan();
    assert_eq!(slices_of(&world.state, request), [4, 5, 6, 7].map(gpu));
    // A pair takes a pair and leaves the four alone.
    let mut world = world_with((0..8).map(on_island));
    let pair = RequestSpec { placement: Placement::Node, ..spec(Class::Training, 2) };
    assert_eq!(placed(&mut world, &[pair]), [[0, 1].map(gpu).to_vec()]);
    // Without its island it waits, and says why.
    let mut world = world_with((0..7).map(on_island));
    let request = world.submit("acme", 1, four);
    assert_eq!(world.plan(), vec![]);
    let why = explain(StateView { state: &world.state, now: world.now }, request).unwrap();
    assert_eq!(why.reason, WaitReason::Topology);
}

#[test]
fn driver_and_compute_capability_must_be_known_and_new_enough() {
    let driver = |major, minor| Some(DriverVersion { major, minor });
    let compute = |major, minor| Some(ComputeCapability { major, minor });
    let has = Hardware { driver: driver(535, 104), compute: compute(8, 0), ..Hardware::UNKNOWN };
    let rows = [
        (Capability::ANY, true),
        (Capability { driver: driver(535, 104), compute: None }, true),
        (Capability { driver: driver(535, 105), compute: None }, false),
        (Capability { driver: driver(470, 999), compute: compute(8, 0) }, true),
        (Capability { driver: None, compute: compute(8, 6) }, false),
    ];
    for (capability, fits) in rows {
        let mut terms = offer(gpu(0), 1, 1);
        terms.capacity.hardware = has;
        let mut world = world_with([terms]);
        let request = world.submit("acme", 1, RequestSpec { capability, ..spec(Class::Batch, 1) });
        let members = vec![world.member(gpu(0))];
        let seen = world.commit(PlanGroup::Grant { request, members });
        assert_eq!(matches!(seen, GroupOutcome::Granted { .. }), fits, "{capability:?}: {seen:?}");
    }
    // What an agent does not say meets no demand.
    let mut world = world_with([offer(gpu(0), 1, 1)]);
    let capability = Capability { driver: driver(1, 0), compute: None };
    let request = world.submit("acme", 1, RequestSpec { capability, ..spec(Class::Batch, 1) });
    assert_eq!(world.plan(), vec![]);
    let why = explain(StateView { state: &world.state, now: world.now }, request).unwrap();
    assert_eq!(why.reason, WaitReason::Capability);
}

/// Row M8.
#[test]
fn of_a_gang_of_n_there_are_none_or_n_leases_at_every_index_of_the_journal() {
    let mut world =
        world_with((0..16).map(|n| if n % 2 == 0 { sharable(n) } else { offer(gpu(n), 1, 1) }));
    let gangs =
        [spec(Class::Batch, 3), spec(Class::Training, 5), share(250), spec(Class::Latency, 2)];
    for (spec, number) in gangs.into_iter().zip(1_u128..) {
        let count = if spec.gpu < GpuMilli::DEVICE { 4 } else { spec.count };
        world.submit("acme", number, RequestSpec { count, ..spec });
    }
    world.plan();
    world.must(crate::testing::user("acme"), Command::CancelRequest { request: RequestId::new(1) });
    let mut state = State::default();
    let mut seen = 0;
    for record in &world.journal {
        evolve(&mut state, record.time, &record.event);
        let mut held: BTreeMap<RequestId, u32> = BTreeMap::new();
        for lease in state.leased().values() {
            *held.entry(state.leases()[lease].terms().request).or_default() += 1;
        }
        for (request, count) in held {
            assert_eq!(count, state.requests()[&request].spec().count);
            seen += 1;
        }
    }
    assert!(seen >= 4, "gangs were granted");
}

#[test]
fn a_gang_keeps_to_one_cluster() {
    let mut terms = [offer(gpu(0), 1, 1), offer(gpu(1), 1, 1)];
    terms[1].slice.cluster = ClusterId::new("c2").unwrap();
    let mut world = world_with([terms[0]]);
    let request = world.submit("acme", 1, spec(Class::Batch, 2));
    assert_eq!(world.plan(), vec![]);
    let members =
        terms.map(|t| sublet_protocol::commands::PlanMember { slice: t.slice, generation: 1 });
    let seen = world.commit(PlanGroup::Grant { request, members: members.to_vec() });
    assert_eq!(seen, GroupOutcome::Refused { rejection: Rejection::OfferMissing });
}
