//! What a waiting request is told: what it lacks, what would help, and what can never be.

use std::collections::BTreeMap;

use sublet_protocol::capacity::{Capacity, ComputeCapability, Hardware};
use sublet_protocol::commands::{Command, PlanGroup};
use sublet_protocol::ids::{GpuModel, Region};
use sublet_protocol::money::MicroCredits;
use sublet_protocol::offers::{IdleFor, OfferTerms};
use sublet_protocol::quotas::Quota;
use sublet_protocol::refusals::Rejection;
use sublet_protocol::requests::{Capability, Class, Placement, RequestSpec, Tier, WaitReason};
use sublet_protocol::units::{CpuMilli, GpuMilli, MiB, Seconds};

use crate::matching::{
    self, Change, Explanation, Shortfall, Unmet, WhatIfOutcome, explain, unmet_at_sight, what_if,
};
use crate::state::{State, StateView};
use crate::testing::{HOUR, World, agent, gpu, model, offer, operator, spec, tenant, user};

fn view(world: &World) -> StateView<'_> {
    StateView { state: &world.state, now: world.now }
}

/// What a request with this spec would be told.
#[track_caller]
fn told(world: &World, spec: &RequestSpec) -> Explanation {
    match what_if(view(world), tenant("acme"), spec).outcome {
        WhatIfOutcome::Wait(why) => why,
        other => panic!("it would not wait: {other:?}"),
    }
}

/// The request with the change.
fn with(change: Change, asked: &RequestSpec) -> RequestSpec {
    let mut changed = asked.clone();
    match change {
        Change::Gpu(gpu) => changed.gpu = gpu,
        Change::Memory(memory) => changed.memory = memory,
        Change::Cpu(cpu) => changed.cpu = cpu,
        Change::HostMemory(memory) => changed.host_memory = memory,
        Change::Capability(capability) => changed.capability = capability,
        Change::MaxPrice(price) => changed.max_price = Some(price),
        Change::Model(model) => changed.models.push(model),
        Change::Region(region) => changed.regions.push(region),
        Change::Placement(placement) => changed.placement = placement,
        Change::Duration(duration) => changed.duration = duration,
        Change::Count(count) => changed.count = count,
        Change::AtAnyTime => changed.deferral = None,
    }
    changed
}

/// What helps a request is true: with it the request would be granted, and nothing else changes.
#[track_caller]
fn helps(world: &World, asked: &RequestSpec, change: Change) {
    assert_eq!(told(world, asked).change, Some(change));
    let outcome = what_if(view(world), tenant("acme"), &with(change, asked)).outcome;
    assert!(matches!(outcome, WhatIfOutcome::Grant { .. }), "{change:?}: {outcome:?}");
}

/// Case D12: an H100 has 81,559 MiB, an A100 of the same label 81,920.
#[test]
fn case_d12_a_near_miss_says_how_much_it_lacks_and_what_would_match() {
    let mut world = World::new();
    world.register(0, 1);
    let memory = MiB::new(81_559);
    let h100 = offer(gpu(0), 1, 1);
    let capacity = Capacity { memory, ..h100.capacity };
    let small = Capacity { memory: MiB::new(46_068), ..h100.capacity };
    world.must(agent(gpu(0)), Command::OfferCapacity { offer: OfferTerms { capacity, ..h100 } });
    let a40 = OfferTerms { capacity: small, ..offer(gpu(1), 1, 1) };
    world.must(agent(gpu(1)), Command::OfferCapacity { offer: a40 });
    let asked = RequestSpec { memory: MiB::new(81_920), ..spec(Class::Batch, 1) };
    let why = told(&world, &asked);
    assert_eq!(why.reason, WaitReason::Memory);
    let [miss] = &why.near_misses[..] else { panic!("{why:?}") };
    assert_eq!((miss.offers, miss.example), (2, gpu(0)));
    assert_eq!(miss.short, Some(Shortfall::Memory(MiB::new(361))));
    assert_eq!(why.unmet, Some(Unmet::MemoryTooSmall(memory)));
    helps(&world, &asked, Change::Memory(memory));
    // 80 GB as its label says, decimal, are 76,294 MiB: the same GPU fits.
    let labelled = RequestSpec { memory: MiB::new(76_294), ..asked };
    let outcome = what_if(view(&world), tenant("acme"), &labelled).outcome;
    assert!(matches!(outcome, WhatIfOutcome::Grant { .. }), "{outcome:?}");
}

#[test]
fn the_change_that_helps_is_the_smallest_of_its_kind() {
    let world = World::with_nodes(2);
    let two = MicroCredits::new(2_000_000);
    let cheap = RequestSpec { max_price: Some(MicroCredits::ZERO), ..spec(Class::Batch, 1) };
    assert_eq!(told(&world, &cheap).reason, WaitReason::Price);
    helps(&world, &cheap, Change::MaxPrice(two));
    let together = RequestSpec { placement: Placement::Node, ..spec(Class::Batch, 10) };
    assert_eq!(told(&world, &together).reason, WaitReason::Topology);
    helps(&world, &together, Change::Placement(Placement::Cluster));
    // The median idle time is two hours.
    let long = RequestSpec { duration: Seconds::new(3 * 3_600), ..spec(Class::Batch, 1) };
    helps(&world, &long, Change::Duration(Seconds::new(2 * 3_600)));
    let region = Region::new("us").unwrap();
    let far = RequestSpec { regions: vec![region], ..spec(Class::Batch, 1) };
    helps(&world, &far, Change::Region(Region::new("eu").unwrap()));
    let mut busy = World::with_nodes(1);
    let first = busy.submit("owner", 1, spec(Class::Batch, 3));
    busy.activate(first, &[0, 1, 2]);
    helps(&busy, &spec(Class::Batch, 6), Change::Count(5));
    let newer = |minor| Capability {
        compute: Some(ComputeCapability { major: 9, minor }),
        ..Capability::ANY
    };
    let mut old = World::new();
    old.register(0, 1);
    let hardware = Hardware { compute: newer(0).compute, ..Hardware::UNKNOWN };
    let h100 = offer(gpu(0), 1, 1);
    let capacity = Capacity { hardware, ..h100.capacity };
    old.must(agent(gpu(0)), Command::OfferCapacity { offer: OfferTerms { capacity, ..h100 } });
    let asked = RequestSpec { capability: newer(1), ..spec(Class::Batch, 1) };
    helps(&old, &asked, Change::Capability(newer(0)));
    let both = RequestSpec { memory: MiB::new(99_000), ..cheap };
    assert_eq!(told(&world, &both).change, None, "no single change helps");
}

#[test]
fn what_is_short_is_told_in_its_unit() {
    let world = World::with_nodes(1);
    let short = |spec: &RequestSpec| told(&world, spec).near_misses[0].short;
    let long = RequestSpec { duration: Seconds::new(7_201), ..spec(Class::Batch, 1) };
    assert_eq!(short(&long), Some(Shortfall::Time(Seconds::new(1))));
    let host = RequestSpec { host_memory: MiB::new(128_001), ..spec(Class::Batch, 1) };
    assert_eq!(short(&host), Some(Shortfall::HostMemory(MiB::new(1))));
}

#[test]
fn what_nothing_known_could_meet_is_said_at_once() {
    let mut world = World::with_nodes(2);
    let on_one = |count| RequestSpec { placement: Placement::Node, ..spec(Class::Batch, count) };
    let dear =
        |cap| RequestSpec { max_price: Some(MicroCredits::new(cap)), ..spec(Class::Batch, 1) };
    let large = |mib| RequestSpec { memory: MiB::new(mib), ..spec(Class::Batch, 16) };
    let busy = world.submit("owner", 1, spec(Class::Batch, 16));
    world.activate(busy, &std::array::from_fn::<u64, 16, _>(|number| number as u64));
    // Each with its nearest neighbour, which merely waits.
    let rows = [
        (on_one(9), Some(Unmet::NodeTooSmall(8))),
        (on_one(8), None),
        (spec(Class::Batch, 65), Some(Unmet::ClusterTooSmall(64))),
        (large(80_001), Some(Unmet::MemoryTooSmall(MiB::new(80_000)))),
        (large(80_000), None),
        (dear(1_999_999), Some(Unmet::PricesAbove(MicroCredits::new(2_000_000)))),
        (dear(2_000_000), None),
    ];
    let quota = Quota::of(GpuMilli::new(100_000));
    let (acme, of) = (tenant("acme"), model());
    world.must(operator(), Command::SetQuota { tenant: acme, model: of, quota });
    for (spec, unmet) in rows {
        assert_eq!(told(&world, &spec).unmet, unmet, "{spec:?}");
        let is_of_offers = matches!(unmet, Some(Unmet::MemoryTooSmall(_)));
        let at_sight = unmet.filter(|_| !is_of_offers);
        assert_eq!(unmet_at_sight(&world.state, &spec), at_sight, "{spec:?}");
    }
    // Also of one that was submitted: it waits, as a larger node may come.
    let request = world.submit("acme", 2, on_one(9));
    assert_eq!(explain(view(&world), request).unwrap().unmet, Some(Unmet::NodeTooSmall(8)));
}

#[test]
fn a_host_larger_than_any_that_is_known_is_said() {
    let mut world = World::new();
    world.register(0, 1);
    let capacity = Capacity {
        cpu: CpuMilli::new(96_000),
        host_memory: MiB::new(1_000_000),
        ..offer(gpu(0), 1, 1).capacity
    };
    for number in 0..2 {
        let offer = OfferTerms { capacity, ..offer(gpu(number), 1, 1) };
        world.must(agent(gpu(number)), Command::OfferCapacity { offer });
    }
    let of = |cpu, memory| RequestSpec {
        cpu: CpuMilli::new(cpu),
        host_memory: MiB::new(memory),
        ..spec(Class::Batch, 1)
    };
    let (cores, memory) = (Unmet::CpuTooSmall(capacity.cpu), capacity.host_memory);
    let rows = [
        (of(96_001, 0), Some(cores)),
        (of(96_000, 1_000_000), None),
        (of(0, 1_000_001), Some(Unmet::HostMemoryTooSmall(memory))),
        (of(1_000, 1_000_001), Some(Unmet::HostMemoryTooSmall(memory))),
    ];
    // What is leased is known as well.
    let busy = world.submit("owner", 1, spec(Class::Batch, 1));
    world.activate(busy, &[0]);
    for number in [0, 1] {
        for (spec, unmet) in &rows {
            assert_eq!(matching::unmet(&world.state, spec), *unmet, "{spec:?}");
            assert_eq!(unmet_at_sight(&world.state, spec), *unmet, "{spec:?}");
        }
        if number == 0 {
            let other = world.submit("owner", 2, spec(Class::Batch, 1));
            world.activate(other, &[1]);
        }
    }
    // Little is no reason to look at everything when it is submitted.
    let mut small = World::with_nodes(1);
    let usual = of(64_000, 0);
    assert_eq!(unmet_at_sight(&small.state, &usual), None);
    assert_eq!(told(&small, &usual).unmet, Some(Unmet::CpuTooSmall(CpuMilli::new(16_000))));
    // Where GPUs share their node's host, a lease tells what was asked for: nothing is concluded.
    let asked = RequestSpec { cpu: CpuMilli::new(16_000), ..spec(Class::Batch, 1) };
    let asked = small.submit("owner", 1, asked);
    small.activate(asked, &[0]);
    assert_eq!(told(&small, &usual).unmet, None);
}

/// Price is what places are compared by last: what would be granted without a cap is not the cheapest.
#[test]
fn the_price_that_helps_is_the_lowest_that_does_and_not_that_of_the_place_taken_without_a_cap() {
    let mut world = World::new();
    for (number, name, price) in [(0, "a", 4), (1, "b", 3), (2, "c", 2)] {
        let model = GpuModel::new(name).unwrap();
        let per_gpu_hour = MicroCredits::new(price * MicroCredits::PER_UNIT);
        let (owner, tier) = (tenant("owner"), Tier::Standard);
        world.must(operator(), Command::SetPrice { owner, model, tier, per_gpu_hour });
        // Of the dear one most is asked for, so that it would be left by nobody.
        let quota = Quota::of(GpuMilli::new(if name == "c" { 0 } else { 8_000 }));
        world.must(operator(), Command::SetQuota { tenant: tenant("acme"), model, quota });
        world.register(number, 1);
        for slot in 0..=number {
            let slice = gpu(number * 8 + slot);
            let terms = offer(slice, 1, 1);
            let capacity = Capacity { model, ..terms.capacity };
            world.must(
                agent(slice),
                Command::OfferCapacity { offer: OfferTerms { capacity, ..terms } },
            );
        }
    }
    let at = |units| Some(MicroCredits::new(units * MicroCredits::PER_UNIT));
    let any = what_if(view(&world), tenant("acme"), &spec(Class::Batch, 1)).outcome;
    let WhatIfOutcome::Grant { price, .. } = any else { panic!("{any:?}") };
    assert_eq!(Some(price.per_gpu_hour), at(4), "the fullest node is taken, whatever it costs");
    // The cheapest is not in its quota.
    let cheap = RequestSpec { max_price: at(1), ..spec(Class::Batch, 1) };
    helps(&world, &cheap, Change::MaxPrice(at(3).unwrap()));
}

#[test]
fn of_a_region_without_a_cluster_it_is_said_and_of_a_cell_without_clusters_nothing_is_known() {
    let mut world = World::new();
    let mars = RequestSpec { regions: vec![Region::new("mars").unwrap()], ..spec(Class::Batch, 9) };
    assert_eq!(told(&world, &mars).unmet, Some(Unmet::NoRegion));
    assert_eq!(unmet_at_sight(&world.state, &mars), Some(Unmet::NoRegion));
    let both = [Region::new("mars").unwrap(), Region::new("eu").unwrap()];
    let both = RequestSpec { regions: both.to_vec(), ..spec(Class::Batch, 9) };
    assert_eq!(told(&world, &both).unmet, None);
    let bare = State::default();
    assert_eq!(unmet_at_sight(&bare, &mars), None, "clusters may still join");
    let h100 = GpuModel::new("h100").unwrap();
    let quota = Quota::of(GpuMilli::new(1_000));
    world.must(operator(), Command::SetQuota { tenant: tenant("acme"), model: h100, quota });
    let unpriced = RequestSpec { models: vec![h100], ..spec(Class::Batch, 1) };
    assert_eq!(told(&world, &unpriced).unmet, Some(Unmet::Unpriced));
}

#[test]
fn who_pauses_is_not_told_that_a_change_would_help_at_once() {
    let mut world = World::with_nodes(1);
    let first = world.submit("acme", 1, spec(Class::Experiment, 8));
    world.activate(first, &[0, 1, 2, 3, 4, 5, 6, 7]);
    world.later(Seconds::new(600));
    let high = world.submit("owner", 2, spec(Class::Latency, 7));
    world.plan();
    let lease = *world.state.leases().keys().next().unwrap();
    for number in 0..8 {
        let outcome = sublet_protocol::commands::GuestOutcome::Stopped;
        world.stop(lease, gpu(number), Seconds::new(600), outcome);
    }
    assert!(world.state.requests()[&high].is_waiting());
    let fresh = offer(gpu(7), 2, 1);
    world.must(agent(gpu(7)), Command::OfferCapacity { offer: fresh });
    let why = explain(view(&world), first).unwrap();
    assert_eq!((why.reason, why.change), (WaitReason::Deferred, None));
}

#[test]
fn the_place_in_the_queue_is_the_order_in_which_a_plan_serves() {
    let mut world = World::with_nodes(1);
    // `acme` holds three GPUs, `owner` none: of 16 each, they take turns once `owner` has caught up.
    let held = world.submit("acme", 1, spec(Class::Batch, 3));
    world.activate(held, &[0, 1, 2]);
    let mut ids = Vec::new();
    for (number, (name, class, priority)) in [
        ("acme", Class::Batch, 0),
        ("acme", Class::Batch, 255),
        ("owner", Class::Batch, 0),
        ("owner", Class::Training, 0),
        ("acme", Class::Latency, 0),
        ("owner", Class::Experiment, 9),
        ("owner", Class::Batch, 0),
        ("owner", Class::Batch, 0),
    ]
    .into_iter()
    .enumerate()
    {
        let spec = RequestSpec { priority, ..spec(class, 1) };
        ids.push(world.submit(name, 10 + number as u128, spec));
    }
    let place = |id| explain(view(&world), id).unwrap().position;
    // First the one of the highest tier, which moves `acme` from 3 to 4 of its 16; then all four of
    // `owner`, which has none, in the order of their submission; then `acme` by priority; last the
    // lowest tier.
    let places: Vec<u32> = ids.iter().map(|id| place(*id)).collect();
    // Five GPUs are free: a plan serves the first five in this order.
    let groups = matching::plan(view(&world));
    let served: Vec<_> = groups.iter().map(PlanGroup::request).take(5).collect();
    assert_eq!(served, [4, 2, 3, 6, 7].map(|number: usize| ids[number]));
    assert_eq!(places, [7, 6, 2, 3, 1, 8, 4, 5]);
}

/// What is told is tried out: with the change, and nothing else, the planner grants.
#[test]
fn with_the_change_that_is_named_the_planner_grants_in_hundreds_of_random_cells() {
    let mut seed = 7_u64;
    let mut draw = |most: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % most
    };
    let mut kinds: BTreeMap<String, u32> = BTreeMap::new();
    for _ in 0..500 {
        let mut world = World::new();
        for number in 0..2 {
            world.register(number, 1);
        }
        for number in (0..16).filter(|_| draw(3) > 0).collect::<Vec<u64>>() {
            let base = offer(gpu(number), 1, 1);
            let memory = MiB::new(20_000 * (1 + number / 4));
            let cpu = CpuMilli::new(4_000 * (1 + draw(4)));
            let compute = Some(ComputeCapability { major: 8, minor: (number / 8) as u8 });
            let hardware = Hardware { compute, ..Hardware::UNKNOWN };
            let capacity = Capacity { memory, cpu, hardware, ..base.capacity };
            let terms = OfferTerms { capacity, ..base };
            world.must(agent(gpu(number)), Command::OfferCapacity { offer: terms });
        }
        for number in 0..draw(4) {
            world.submit("owner", u128::from(number) + 1, spec(Class::Latency, 1 + draw(3) as u32));
            world.plan();
        }
        let compute = Some(ComputeCapability { major: 8, minor: draw(3) as u8 });
        let asked = RequestSpec {
            memory: MiB::new(10_000 * draw(10)),
            cpu: CpuMilli::new(3_000 * draw(6)),
            capability: Capability { compute: compute.filter(|_| draw(4) == 0), ..Capability::ANY },
            placement: [Placement::Cluster, Placement::Node, Placement::Island][draw(3) as usize],
            duration: Seconds::new(1_800 * (1 + draw(6))),
            max_price: Some(MicroCredits::new(3_000_000 - 500_000 * draw(5) as i64))
                .filter(|_| draw(3) == 0),
            ..spec(Class::Batch, 1 + draw(6) as u32)
        };
        let request = world.submit("acme", 100, asked.clone());
        world.plan();
        let Some(why) = explain(view(&world), request) else { continue };
        let Some(change) = why.change else { continue };
        world.must(user("acme"), Command::CancelRequest { request });
        let changed = world.submit("acme", 101, with(change, &asked));
        world.plan();
        let is_granted = !world.state.requests()[&changed].is_waiting();
        assert!(is_granted, "{change:?} did not help {asked:?}");
        let kind = format!("{change:?}");
        let kind = kind.split('(').next().unwrap_or_default().to_owned();
        *kinds.entry(kind).or_default() += 1;
    }
    for kind in ["Memory", "Cpu", "Capability", "MaxPrice", "Placement", "Duration", "Count"] {
        assert!(kinds.get(kind).is_some_and(|count| *count >= 2), "{kind} is rare: {kinds:?}");
    }
}

#[test]
fn a_model_that_nobody_knows_is_refused_by_name_and_a_known_one_waits() {
    let mut world = World::with_nodes(1);
    let of =
        |name| RequestSpec { models: vec![GpuModel::new(name).unwrap()], ..spec(Class::Batch, 1) };
    let refused = WhatIfOutcome::Refuse(Rejection::ModelUnknown);
    assert_eq!(what_if(view(&world), tenant("acme"), &of("foo")).outcome, refused);
    world.submit("acme", 1, of("foo"));
    let last = &world.journal.last().unwrap().event;
    assert!(matches!(
        last,
        sublet_protocol::events::Event::RequestRefused { rejection: Rejection::ModelUnknown, .. }
    ));
    let both = RequestSpec {
        models: vec![GpuModel::new("foo").unwrap(), GpuModel::new("a100").unwrap()],
        ..spec(Class::Batch, 1)
    };
    let outcome = what_if(view(&world), tenant("acme"), &both).outcome;
    assert!(matches!(outcome, WhatIfOutcome::Grant { .. }), "one of them is known: {outcome:?}");
}

#[test]
fn a_short_idle_time_is_no_reason_for_the_lowest_tier() {
    let mut world = World::new();
    world.register(0, 1);
    let idle_for = IdleFor { p10: HOUR, p50: HOUR, p90: HOUR };
    let brief = OfferTerms { idle_for, ..offer(gpu(0), 1, 1) };
    world.must(agent(gpu(0)), Command::OfferCapacity { offer: brief });
    let long = |class| RequestSpec { duration: Seconds::new(7_200), ..spec(class, 1) };
    assert_eq!(told(&world, &long(Class::Batch)).reason, WaitReason::Duration);
    let outcome = what_if(view(&world), tenant("acme"), &long(Class::Experiment)).outcome;
    assert!(matches!(outcome, WhatIfOutcome::Grant { .. }), "{outcome:?}");
}
