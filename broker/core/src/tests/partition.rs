//! Parts of a GPU that is offered whole: which are granted, what they exclude, when it is whole again.

use sublet_protocol::agent::Down;
use sublet_protocol::capacity::{Hardware, Isolation, Origin, Part, PciDevice, SliceId};
use sublet_protocol::commands::{
    Command, GroupOutcome, GuestOutcome, NackReason, PlanGroup, PlanMember, ReclaimCause,
};
use sublet_protocol::events::Event;
use sublet_protocol::ids::{Boot, LeaseId, RequestId};
use sublet_protocol::leases::Member;
use sublet_protocol::offers::{Division, HostRoom, MigMode, OfferTerms, RescindReason, SharedBy};
use sublet_protocol::refusals::Rejection;
use sublet_protocol::requests::{Class, RequestSpec};
use sublet_protocol::units::{CpuMilli, GpuMilli, MiB, Seconds};

use crate::leader::{Effect, Leader};
use crate::testing::{World, agent, gpu, offer, spec};

const H100: PciDevice = PciDevice::new(0x2330);

/// A GPU of 80,000 MiB that may be divided into MIG instances and MPS shares.
fn divisible(number: u64, generation: u64) -> OfferTerms {
    let mut terms = offer(gpu(number), generation, 1);
    terms.division = Division { mig: MigMode::On, shared: Some(SharedBy::Mps) };
    terms.capacity.hardware = Hardware { pci: Some(H100), ..Hardware::UNKNOWN };
    terms
}

fn put(world: &mut World, terms: OfferTerms) {
    world.must(agent(terms.slice), Command::OfferCapacity { offer: terms });
}

fn world_with(terms: impl IntoIterator<Item = OfferTerms>) -> World {
    let mut world = World::new();
    world.register(0, 1);
    for terms in terms {
        put(&mut world, terms);
    }
    world
}

fn sized(class: Class, gpu: u64, memory: u64) -> RequestSpec {
    RequestSpec { gpu: GpuMilli::new(gpu), memory: MiB::new(memory), ..spec(class, 1) }
}

const fn mig(profile: u8, start: u8) -> Part {
    Part::Mig { profile, start }
}

const fn share(index: u8) -> Part {
    Part::Share { index }
}

fn part_of(number: u64, part: Part) -> SliceId {
    SliceId { part, ..gpu(number) }
}

/// Commits a grant of these parts of GPU `number` at the generation of its open offer.
fn try_grant(world: &mut World, request: RequestId, slices: &[SliceId]) -> GroupOutcome {
    let member = |slice: &SliceId| {
        let whole = SliceId { part: Part::Whole, ..*slice };
        let generation = world.state.offers().get(&whole).map_or(1, |o| o.terms().generation);
        PlanMember { slice: *slice, generation }
    };
    let members = slices.iter().map(member).collect();
    world.commit(PlanGroup::Grant { request, members })
}

#[track_caller]
fn granted(outcome: GroupOutcome) -> LeaseId {
    match outcome {
        GroupOutcome::Granted { lease } => lease,
        other => panic!("the grant came to {other:?}"),
    }
}

fn refused(rejection: Rejection) -> GroupOutcome {
    GroupOutcome::Refused { rejection }
}

fn members(world: &World) -> Vec<Member> {
    world.state.leases().values().flat_map(|lease| lease.terms().members.clone()).collect()
}

/// The planner serves each of these in turn; says which parts were given.
fn served(world: &mut World, specs: &[RequestSpec]) -> Vec<Option<Part>> {
    let parts = specs.iter().zip(1_000_u128..).map(|(spec, number)| {
        let request = world.submit("acme", number, spec.clone());
        world.plan();
        let lease = world.state.leases().values().find(|l| l.terms().request == request);
        lease.map(|lease| lease.terms().members[0].slice.part)
    });
    parts.collect()
}

#[test]
fn mig_instances_are_placed_so_that_the_largest_hole_is_kept() {
    let mut world = world_with([divisible(0, 1)]);
    let small = sized(Class::Training, 142, 9_000);
    let large = sized(Class::Training, 428, 30_000);
    let parts = served(&mut world, &[small.clone(), large.clone(), small]);
    assert_eq!(parts, [Some(mig(19, 6)), Some(mig(9, 0)), Some(mig(19, 5))]);
    assert!(members(&world).iter().all(|member| member.origin == Origin::Carved));
    assert!(world.state.offers().contains_key(&gpu(0)), "the offer stands for the rest");
    // Lease amounts are those of the instance.
    let gpus: Vec<u64> = members(&world).iter().map(|m| m.capacity.gpu.get()).collect();
    assert_eq!(gpus, [142, 428, 142]);
}

#[test]
fn an_illegal_or_taken_mig_placement_is_refused_and_its_legal_neighbour_is_granted() {
    // (given, asked, outcome)
    let rows: [(Option<Part>, Part, Result<(), Rejection>); 9] = [
        (None, mig(9, 2), Err(Rejection::PartIllegal)),
        (None, mig(9, 4), Ok(())),
        (None, mig(14, 6), Err(Rejection::PartIllegal)),
        (None, mig(99, 0), Err(Rejection::PartIllegal)),
        (Some(mig(9, 4)), mig(14, 4), Err(Rejection::DeviceTaken)),
        (Some(mig(9, 4)), mig(14, 2), Ok(())),
        (Some(mig(9, 0)), mig(5, 0), Err(Rejection::DeviceTaken)),
        (Some(mig(9, 4)), mig(5, 0), Ok(())),
        (Some(mig(0, 0)), mig(19, 6), Err(Rejection::DeviceTaken)),
    ];
    for (given, asked, outcome) in rows {
        let mut world = world_with([divisible(0, 1)]);
        let first = world.submit("acme", 1, sized(Class::Batch, 100, 5_000));
        let second = world.submit("acme", 2, sized(Class::Batch, 100, 5_000));
        if let Some(given) = given {
            granted(try_grant(&mut world, first, &[part_of(0, given)]));
        }
        let seen = try_grant(&mut world, second, &[part_of(0, asked)]);
        match outcome {
            Ok(()) => drop(granted(seen)),
            Err(rejection) => assert_eq!(seen, refused(rejection), "{asked:?} after {given:?}"),
        }
    }
}

#[test]
fn one_isolation_class_is_on_a_gpu_at_a_time_and_the_whole_excludes_all() {
    let parts = [Part::Whole, mig(19, 6), share(0)];
    for first in parts {
        for second in parts.into_iter().chain([mig(19, 0), share(1)]) {
            let mut world = world_with([divisible(0, 1)]);
            let one = world.submit("acme", 1, sized(Class::Batch, 100, 5_000));
            let two = world.submit("acme", 2, sized(Class::Batch, 100, 5_000));
            granted(try_grant(&mut world, one, &[part_of(0, first)]));
            let seen = try_grant(&mut world, two, &[part_of(0, second)]);
            let is_alike = matches!(
                (first, second),
                (Part::Mig { start: 6, .. }, Part::Mig { start: 0, .. })
                    | (Part::Share { index: 0 }, Part::Share { index: 1 })
            );
            let is_granted = matches!(seen, GroupOutcome::Granted { .. });
            assert_eq!(is_granted, is_alike, "{second:?} beside {first:?}: {seen:?}");
        }
    }
}

#[test]
fn mps_and_time_slices_never_mix_also_when_the_agent_changes_its_mind() {
    let mut world = world_with([divisible(0, 1)]);
    let one = world.submit("acme", 1, sized(Class::Batch, 100, 5_000));
    granted(try_grant(&mut world, one, &[part_of(0, share(0))]));
    let mut sliced = divisible(0, 2);
    sliced.division.shared = Some(SharedBy::TimeSlice);
    let change = Command::OfferCapacity { offer: sliced };
    world.refuse(agent(gpu(0)), change, Rejection::SliceLeased);
    put(&mut world, divisible(0, 2));
    let two = world.submit("acme", 2, sized(Class::Batch, 100, 5_000));
    granted(try_grant(&mut world, two, &[part_of(0, share(1))]));
    assert!(members(&world).iter().all(|m| m.capacity.isolation == Isolation::Mps));
}

/// Scenario 16 (KAI#416): fractions are integers, sums never exceed the GPU; the 24th waits.
#[test]
fn scenario_16_the_24th_share_of_a_24_gib_gpu_waits() {
    let mut terms = divisible(0, 1);
    // 24,576 MiB, of which the driver keeps 512 and the margin is 738: room for 23,326.
    terms.capacity.memory = MiB::new(24_064);
    terms.capacity.hardware.memory_total = Some(MiB::new(24_576));
    let mut world = world_with([terms]);
    let specs: Vec<RequestSpec> = (0..24).map(|_| sized(Class::Experiment, 41, 1_000)).collect();
    let parts = served(&mut world, &specs);
    let given = parts.iter().flatten().count();
    assert_eq!((given, parts[23]), (23, None), "23 × 1,000 MiB fit into 23,326, 24 do not");
    let memory: u64 = members(&world).iter().map(|m| m.capacity.memory.get()).sum();
    assert_eq!(memory, 23_000);
    // The neighbour: with 971 MiB each, 24 × 971 = 23,304 fit, and 24 × 41 = 984 thousandths.
    let mut world = world_with([terms]);
    let specs: Vec<RequestSpec> = (0..25).map(|_| sized(Class::Experiment, 41, 971)).collect();
    assert_eq!(served(&mut world, &specs).iter().flatten().count(), 24);
    // And by compute: 42 thousandths fit 23 times into 1,000.
    let mut world = world_with([terms]);
    let specs: Vec<RequestSpec> = (0..24).map(|_| sized(Class::Experiment, 42, 100)).collect();
    assert_eq!(served(&mut world, &specs).iter().flatten().count(), 23);
}

#[test]
fn a_share_that_asks_for_no_memory_gets_its_part_and_a_tenth_share_of_a_tenth_fits() {
    let mut world = world_with([divisible(0, 1)]);
    let specs: Vec<RequestSpec> = (0..11).map(|_| sized(Class::Batch, 100, 0)).collect();
    let specs: Vec<RequestSpec> =
        specs.into_iter().map(|spec| RequestSpec { class: Class::Experiment, ..spec }).collect();
    assert_eq!(served(&mut world, &specs).iter().flatten().count(), 10);
    // (80,000 − 2,400) / 10 each.
    assert!(members(&world).iter().all(|m| m.capacity.memory == MiB::new(7_760)));
}

/// Row G10: no class that is owed hardware of its own is put on a soft share.
#[test]
fn latency_and_training_are_never_placed_on_a_soft_share() {
    for class in [Class::Latency, Class::Training] {
        let mut world = world_with([divisible(0, 1)]);
        let request = world.submit("acme", 1, sized(class, 100, 5_000));
        let seen = try_grant(&mut world, request, &[part_of(0, share(0))]);
        assert_eq!(seen, refused(Rejection::SliceUnfit), "{class:?}");
        world.plan();
        assert_eq!(members(&world)[0].capacity.isolation, Isolation::Mig, "{class:?}");
    }
    // Where only shares are possible, they get the whole GPU; an experiment shares it first.
    for (class, isolation) in [
        (Class::Latency, Isolation::Exclusive),
        (Class::Training, Isolation::Exclusive),
        (Class::Experiment, Isolation::Mps),
    ] {
        let mut terms = divisible(0, 1);
        terms.division.mig = MigMode::Off;
        let mut world = world_with([terms]);
        world.submit("acme", 1, sized(class, 100, 5_000));
        world.plan();
        assert_eq!(members(&world)[0].capacity.isolation, isolation, "{class:?}");
    }
    let mut world = world_with([divisible(0, 1)]);
    world.submit("acme", 1, sized(Class::Experiment, 100, 5_000));
    world.plan();
    assert_eq!(members(&world)[0].capacity.isolation, Isolation::Mps, "soft share first");
}

#[test]
fn a_gpu_is_whole_again_when_its_last_part_has_ended() {
    let mut world = world_with([divisible(0, 1)]);
    let leases: Vec<LeaseId> = (0..2_u8)
        .map(|index| {
            let request =
                world.submit("acme", u128::from(index) + 1, sized(Class::Experiment, 100, 5_000));
            granted(try_grant(&mut world, request, &[part_of(0, share(index))]))
        })
        .collect();
    let whole = world.submit("acme", 9, spec(Class::Latency, 1));
    for (lease, index) in leases.into_iter().zip(0_u8..) {
        let seen = try_grant(&mut world, whole, &[gpu(0)]);
        assert_eq!(seen, refused(Rejection::DeviceTaken));
        world.stop(lease, part_of(0, share(index)), Seconds::ZERO, GuestOutcome::NeverStarted);
    }
    granted(try_grant(&mut world, whole, &[gpu(0)]));
    assert!(world.state.offers().is_empty(), "a lease of the whole consumes the offer");
}

#[test]
fn the_offer_may_be_repeated_or_expire_while_parts_are_leased() {
    let mut world = world_with([divisible(0, 1)]);
    let first = world.submit("acme", 1, sized(Class::Experiment, 100, 5_000));
    granted(try_grant(&mut world, first, &[part_of(0, share(0))]));
    put(&mut world, divisible(0, 2));
    // An offer of the same GPU that may not be divided, or of a fixed part of it, would overlap.
    let fixed = offer(gpu(0), 3, 1);
    world.refuse(agent(gpu(0)), Command::OfferCapacity { offer: fixed }, Rejection::SliceLeased);
    world.later(Seconds::new(900));
    world.must(sublet_protocol::commands::Actor::Leader, Command::Sweep);
    assert!(world.state.offers().is_empty());
    let second = world.submit("acme", 2, sized(Class::Experiment, 100, 5_000));
    let seen = try_grant(&mut world, second, &[part_of(0, share(1))]);
    assert_eq!(seen, refused(Rejection::OfferMissing));
    put(&mut world, divisible(0, 3));
    granted(try_grant(&mut world, second, &[part_of(0, share(1))]));
    assert_eq!(world.state.leases().len(), 1 + usize::from(world.state.leased().len() == 2));
}

#[test]
fn an_owner_who_takes_back_one_part_takes_the_gpu() {
    let mut world = world_with([divisible(0, 1), divisible(1, 1)]);
    let lease = |world: &mut World, number: u128, slice: SliceId| {
        let request = world.submit("acme", number, sized(Class::Experiment, 100, 5_000));
        granted(try_grant(world, request, &[slice]))
    };
    let first = lease(&mut world, 1, part_of(0, share(0)));
    let second = lease(&mut world, 2, part_of(0, share(1)));
    let elsewhere = lease(&mut world, 3, part_of(1, share(0)));
    let (token, boot) = (world.token(first), Boot::new(1));
    let (slice, cause) = (part_of(0, share(0)), ReclaimCause::OwnerArrived);
    let reclaim = Command::ReclaimSlice { slice, token, boot, cause };
    let events = world.must(agent(slice), reclaim.clone());
    let ending: Vec<LeaseId> = events
        .iter()
        .filter_map(|event| match event {
            Event::LeaseEnding { lease, .. } => Some(*lease),
            _other => None,
        })
        .collect();
    assert_eq!(ending.len(), 2);
    assert!(ending.contains(&first) && ending.contains(&second) && !ending.contains(&elsewhere));
    let reason = RescindReason::Owner;
    assert!(events.contains(&Event::OfferRescinded { slice: gpu(0), generation: 1, reason }));
    assert_eq!(world.must(agent(slice), reclaim), vec![], "said again, it changes nothing");
}

#[test]
fn a_part_that_the_agent_cannot_make_is_undone_and_no_other_is_carved_until_it_offers_again() {
    let mut world = world_with([divisible(0, 1)]);
    let request = world.submit("acme", 1, sized(Class::Training, 142, 9_000));
    let slice = part_of(0, mig(19, 6));
    let lease = granted(try_grant(&mut world, request, &[slice]));
    let (token, boot, reason) = (world.token(lease), Boot::new(1), NackReason::StartFailed);
    world.must(agent(slice), Command::RefuseMember { lease, slice, token, boot, reason });
    assert!(world.state.leases().is_empty() && world.state.leased().is_empty());
    assert!(world.state.offers().is_empty());
    assert_eq!(world.plan(), vec![], "not granted again at once");
    put(&mut world, divisible(0, 2));
    assert!(matches!(world.plan()[..], [GroupOutcome::Granted { .. }]));
}

#[test]
fn the_agent_is_told_the_part_exactly() {
    let rows = [
        (sized(Class::Training, 200, 15_000), mig(14, 4), 285, 19_456),
        (sized(Class::Experiment, 77, 1_234), share(0), 77, 1_234),
    ];
    for (spec, part, milli, memory) in rows {
        let mut world = world_with([divisible(0, 1)]);
        let spec = RequestSpec { cpu: CpuMilli::new(2_500), ..spec };
        world.submit("acme", 1, spec);
        let (mut leader, _) = Leader::new(1, &world.state, world.now);
        let from = world.journal.len();
        world.plan();
        let effects = leader.on_records(&world.state, world.now, &world.journal[from..]);
        let grant = effects.iter().find_map(|effect| match effect {
            Effect::Send { message: Down::Grant(terms), .. } => Some(terms),
            _other => None,
        });
        let grant = grant.expect("the agent is told");
        assert_eq!((grant.slice, grant.origin), (part_of(0, part), Origin::Carved));
        let capacity = grant.capacity;
        assert_eq!((capacity.gpu.get(), capacity.memory.get()), (milli, memory));
        assert_eq!(capacity.cpu, CpuMilli::new(2_500));
    }
}

#[test]
fn shares_of_a_gpu_divide_its_host_room_and_leases_of_a_node_its_nodes() {
    // The GPU brings 16 cores: three shares of 6 cores do not fit it.
    let cores = |cpu: u64| RequestSpec {
        cpu: CpuMilli::new(cpu * 1_000),
        ..sized(Class::Experiment, 100, 1_000)
    };
    let mut world = world_with([divisible(0, 1)]);
    let parts = served(&mut world, &[cores(6), cores(6), cores(6), cores(4)]);
    assert_eq!(parts.iter().map(Option::is_some).collect::<Vec<_>>(), [true, true, false, true]);
    // Two GPUs whose node has 16 cores in all.
    let pooled = |number| OfferTerms { host: HostRoom::Node, ..divisible(number, 1) };
    let mut world = world_with([pooled(0), pooled(1)]);
    let whole = RequestSpec { cpu: CpuMilli::new(10_000), ..spec(Class::Latency, 1) };
    let parts = served(&mut world, &[whole.clone(), whole, cores(6), cores(1)]);
    assert_eq!(parts.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false, true, false]);
    // A gang on one node is judged as a whole.
    let mut world = world_with([pooled(0), pooled(1)]);
    let gang = RequestSpec { cpu: CpuMilli::new(9_000), ..spec(Class::Latency, 2) };
    let request = world.submit("acme", 1, gang);
    let seen = try_grant(&mut world, request, &[gpu(0), gpu(1)]);
    assert_eq!(seen, refused(Rejection::SliceUnfit));
    assert_eq!(world.plan(), vec![]);
}

#[test]
fn the_members_of_a_gang_take_a_physical_gpu_each() {
    let mut world = world_with([divisible(0, 1), divisible(1, 1)]);
    let gang = RequestSpec { count: 2, ..sized(Class::Experiment, 100, 5_000) };
    let request = world.submit("acme", 1, gang);
    let seen = try_grant(&mut world, request, &[part_of(0, share(0)), part_of(0, share(1))]);
    assert_eq!(seen, refused(Rejection::SliceUnfit));
    granted(try_grant(&mut world, request, &[part_of(0, share(0)), part_of(1, share(0))]));
}

#[test]
fn a_part_freed_by_a_victim_is_kept_for_the_request_it_was_freed_for() {
    let mut terms = divisible(0, 1);
    terms.division.mig = MigMode::Off;
    let mut world = world_with([terms]);
    let low = world.submit("acme", 1, sized(Class::Experiment, 900, 70_000));
    let lease = granted(try_grant(&mut world, low, &[part_of(0, share(0))]));
    let (token, boot) = (world.token(lease), Boot::new(1));
    let slice = part_of(0, share(0));
    world.must(agent(slice), Command::ConfirmMember { lease, slice, token, boot });
    world.later(Seconds::new(600));
    let high = world.submit("owner", 2, sized(Class::Batch, 500, 40_000));
    assert_eq!(world.plan(), vec![GroupOutcome::Pledged]);
    // What is left beside the pledge is for anyone; what is pledged is not.
    world.stop(lease, slice, Seconds::new(600), GuestOutcome::Stopped);
    let thief = world.submit("acme", 3, sized(Class::Experiment, 600, 1_000));
    let seen = try_grant(&mut world, thief, &[part_of(0, share(1))]);
    assert_eq!(seen, refused(Rejection::DeviceTaken));
    assert_eq!(try_grant(&mut world, thief, &[slice]), refused(Rejection::SlicePledged));
    world.plan();
    let lease = world.state.leases().values().find(|l| l.terms().request == high).unwrap();
    assert_eq!(lease.terms().members[0].capacity.gpu, GpuMilli::new(500));
}

#[test]
fn a_gpu_that_the_table_does_not_have_is_not_partitioned() {
    let mut terms = divisible(0, 1);
    terms.capacity.hardware.pci = None;
    terms.division.shared = None;
    let mut world = world_with([terms]);
    let request = world.submit("acme", 1, sized(Class::Training, 142, 9_000));
    let seen = try_grant(&mut world, request, &[part_of(0, mig(19, 6))]);
    assert_eq!(seen, refused(Rejection::PartIllegal));
    world.plan();
    assert_eq!(members(&world)[0].slice.part, Part::Whole);
}

#[test]
fn an_offer_of_a_mig_instance_must_be_one_that_its_gpu_can_have() {
    let fixed = |profile, start| {
        let mut terms = divisible(0, 1);
        terms.slice.part = mig(profile, start);
        terms.division = Division::NONE;
        terms.capacity.gpu = GpuMilli::new(285);
        terms.capacity.isolation = Isolation::Mig;
        Command::OfferCapacity { offer: terms }
    };
    let mut world = world_with([]);
    world.refuse(agent(gpu(0)), fixed(14, 6), Rejection::OfferInvalid);
    world.must(agent(gpu(0)), fixed(14, 4));
    world.refuse(agent(gpu(0)), fixed(19, 5), Rejection::OfferOverlaps);
    world.must(agent(gpu(0)), fixed(19, 6));
    // Only a whole GPU can be divided, and none holds more than it has.
    let mut terms = divisible(1, 1);
    terms.capacity.hardware.memory_total = Some(MiB::new(79_999));
    let too_much = Command::OfferCapacity { offer: terms };
    world.refuse(agent(gpu(1)), too_much, Rejection::OfferInvalid);
    terms.capacity.hardware.memory_total = Some(MiB::new(80_000));
    put(&mut world, terms);
}
