//! A walk that tries everything, sensible or not, in any order: whatever is asked, the invariants
//! hold, the state is the fold of the journal, and the books balance (the world checks each step).

use proptest::prelude::*;
use sublet_protocol::capacity::{Part, PciDevice, SliceId};
use sublet_protocol::commands::{
    Actor, Command, GuestOutcome, NackReason, PlanGroup, PlanMember, Recall, ReclaimCause,
};
use sublet_protocol::deferral::{Deferral, Window};
use sublet_protocol::events::Event;
use sublet_protocol::ids::{Boot, LeaseId, RequestId, Token};
use sublet_protocol::money::MicroCredits;
use sublet_protocol::offers::{Division, HostRoom, MigMode, OfferTerms, RescindReason, SharedBy};
use sublet_protocol::quotas::{Basis, Budget, Quota, Reclaim, TenantTerms, Weight};
use sublet_protocol::requests::{Class, RequestSpec};
use sublet_protocol::units::{CpuMilli, GpuMilli, GpuTime, MiB, Seconds, Timestamp};

use crate::matching::index::Index;
use crate::matching::{self, Limits, Preemption};
use crate::state::StateView;
use crate::testing::{
    World, agent, cluster, gpu, model, node, offer, operator, spec, tenant, user,
};

const GPUS: u64 = 16;

#[derive(Debug, Clone)]
enum Step {
    Later(u64),
    Offer { gpu: u64, generation: u64 },
    Rescind { gpu: u64 },
    Submit { number: u128, tenant: bool, class: u8, count: u32, hours: u64 },
    Plan,
    GrantAnything { request: u128, gpus: Vec<u64> },
    PreemptAnything { request: u128, lease: usize, gpus: Vec<u64> },
    Confirm { lease: usize },
    Refuse { lease: usize },
    Reclaim { lease: usize, cause: u8 },
    Stop { lease: usize, used: u64, code: Option<i32> },
    Release { lease: usize, is_owner: bool },
    Checkpoint { lease: usize },
    Recall { lease: usize, after: u64 },
    Cancel { number: u128 },
    Sweep,
    Silence { node: u64 },
    Reboot { node: u64 },
    Quota { who: usize, gpus: u64, borrow: Option<u64>, lend: Option<u64>, is_hardware: bool },
    Terms { who: usize, weight: u32, hours: Option<u64>, money: Option<i64> },
    Move { who: usize, to: Option<usize> },
    Seal,
}

fn step() -> impl Strategy<Value = Step> {
    let lease = 0_usize..8;
    prop_oneof![
        3 => (1_u64..900).prop_map(Step::Later),
        4 => (0..GPUS, 1_u64..40).prop_map(|(gpu, generation)| Step::Offer { gpu, generation }),
        1 => (0..GPUS).prop_map(|gpu| Step::Rescind { gpu }),
        4 => (1_u128..60, any::<bool>(), 0_u8..4, 1_u32..6, 1_u64..3).prop_map(
            |(number, tenant, class, count, hours)| Step::Submit {
                number, tenant, class, count, hours
            }
        ),
        5 => Just(Step::Plan),
        2 => (1_u128..60, prop::collection::vec(0..3 * GPUS, 0..4))
            .prop_map(|(request, gpus)| Step::GrantAnything { request, gpus }),
        1 => (1_u128..60, lease.clone(), prop::collection::vec(0..GPUS, 0..4))
            .prop_map(|(request, lease, gpus)| Step::PreemptAnything { request, lease, gpus }),
        6 => lease.clone().prop_map(|lease| Step::Confirm { lease }),
        1 => lease.clone().prop_map(|lease| Step::Refuse { lease }),
        1 => (lease.clone(), 0_u8..3).prop_map(|(lease, cause)| Step::Reclaim { lease, cause }),
        4 => (lease.clone(), 0_u64..9_000, proptest::option::of(-1_i32..2))
            .prop_map(|(lease, used, code)| Step::Stop { lease, used, code }),
        1 => lease.clone().prop_map(|lease| Step::Checkpoint { lease }),
        1 => (lease.clone(), 0_u64..2_000)
            .prop_map(|(lease, after)| Step::Recall { lease, after }),
        1 => (lease, any::<bool>()).prop_map(|(lease, is_owner)| Step::Release { lease, is_owner }),
        1 => (1_u128..60).prop_map(|number| Step::Cancel { number }),
        3 => Just(Step::Sweep),
        1 => (0_u64..2).prop_map(|node| Step::Silence { node }),
        1 => (0_u64..2).prop_map(|node| Step::Reboot { node }),
        1 => (0_u64..20).prop_map(|gpus| Step::Quota {
            who: 1, gpus, borrow: None, lend: None, is_hardware: false
        }),
        1 => Just(Step::Seal),
    ]
}

/// Steps that change the tree, quotas with limits, weights and budgets, among the others.
fn tree_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        40 => step(),
        1 => (0..NAMES.len(), 0_u64..20, few(12), few(12), any::<bool>()).prop_map(
            |(who, gpus, borrow, lend, is_hardware)| {
                Step::Quota { who, gpus, borrow, lend, is_hardware }
            }
        ),
        1 => (0..NAMES.len(), 0_u32..3_000, allowed(), allowed()).prop_map(
            |(who, weight, hours, money)| {
                let money = money.map(|money| i64::try_from(money).unwrap());
                Step::Terms { who, weight, hours, money }
            }
        ),
        1 => (0..NAMES.len(), proptest::option::of(0..NAMES.len()))
            .prop_map(|(who, to)| Step::Move { who, to }),
    ]
}

/// A budget: none, nothing, little or much.
fn allowed() -> impl Strategy<Value = Option<u64>> {
    prop_oneof![3 => Just(None), 1 => Just(Some(0)), 1 => few(40), 2 => Just(Some(1_000))]
}

/// A limit, as often none.
fn few(end: u64) -> impl Strategy<Value = Option<u64>> {
    proptest::option::of(0..end)
}

/// Tenants that quotas, terms and moves are for; the last two are groups at first.
const NAMES: [&str; 4] = ["owner", "acme", "pool", "org"];

fn world() -> World {
    let mut world = World::with_nodes(2);
    for name in &NAMES[2..] {
        let create = Command::CreateTenant { tenant: tenant(name), parent: None };
        world.must(operator(), create);
    }
    world
}

/// The lease at this place among the live ones, with its first member that has not stopped.
fn lease_at(world: &World, place: usize) -> Option<(LeaseId, SliceId, Token)> {
    let (id, lease) = world.state.leases().iter().nth(place)?;
    let mut members = lease.terms().members.iter().map(|member| member.slice);
    let open = members.find(|slice| !lease.stopped().contains(slice))?;
    Some((*id, open, lease.terms().token))
}

fn boot_of(world: &World, slice: SliceId) -> Boot {
    world.state.nodes().get(&(slice.cluster, slice.node)).map_or(Boot::new(1), |n| n.boot())
}

/// What the agent of a GPU says of it: whole only, or in parts, and sometimes otherwise than before.
fn any_offer(number: u64, generation: u64, boot: Boot) -> OfferTerms {
    let mut terms = offer(gpu(number), generation, boot.get());
    terms.capacity.hardware.pci = Some(PciDevice::new(0x2330));
    terms.division = match (number % 4, generation % 5) {
        (0, _) | (_, 0) => Division::NONE,
        (1, _) => Division { mig: MigMode::On, shared: None },
        (2, _) => Division { mig: MigMode::Off, shared: Some(SharedBy::TimeSlice) },
        (_, _) => Division { mig: MigMode::On, shared: Some(SharedBy::Mps) },
    };
    if number < 8 {
        terms.host = HostRoom::Node;
    }
    terms
}

/// A GPU of the plan, a MIG instance of it or a share, legal or not.
fn any_member(world: &World, number: u64) -> PlanMember {
    let whole = world.member(gpu(number % GPUS));
    let low = u8::try_from(number % 7).unwrap();
    let part = match number / GPUS {
        0 => Part::Whole,
        1 => Part::Mig { profile: [19, 14, 9, 5, 0, 1, 15][usize::from(low)], start: low },
        _more => Part::Share { index: low },
    };
    PlanMember { slice: SliceId { part, ..whole.slice }, ..whole }
}

/// Two windows in the hours to come, and any time after them.
fn two_windows(now: Timestamp) -> Deferral {
    let at = |minutes: u64| now.after(Seconds::new(60 * minutes));
    let windows =
        [(10, 40), (90, 120)].map(|(from, until)| Window { from: at(from), until: at(until) });
    Deferral {
        not_before: Some(at(20)),
        deadline: None,
        windows: windows.into(),
        start_by: at(180),
    }
}

fn take(world: &mut World, step: Step) {
    match step {
        Step::Later(seconds) => world.later(Seconds::new(seconds)),
        Step::Offer { gpu: number, generation } => {
            let boot = boot_of(world, gpu(number));
            let offer = any_offer(number, generation, boot);
            world.ask(agent(gpu(number)), None, Command::OfferCapacity { offer });
        }
        Step::Rescind { gpu: number } => {
            let (slice, boot) = (gpu(number), boot_of(world, gpu(number)));
            let generation = world.state.offers().get(&slice).map_or(1, |o| o.terms().generation);
            let reason = RescindReason::Owner;
            let rescind = Command::RescindOffer { slice, generation, boot, reason };
            world.ask(agent(slice), None, rescind);
        }
        Step::Submit { number, tenant: is_acme, class, count, hours } => {
            let name = if is_acme { "acme" } else { "owner" };
            let classes = [Class::Latency, Class::Training, Class::Batch, Class::Experiment];
            let class = classes[usize::from(class)];
            let duration = Seconds::new(hours * 3_600);
            let (gpu, memory, cpu) = [(1_000, 20_000, 0), (142, 9_000, 2_000), (300, 0, 6_000)]
                [usize::try_from(number % 3).unwrap()];
            let (gpu, memory, cpu) = (GpuMilli::new(gpu), MiB::new(memory), CpuMilli::new(cpu));
            let deferral = (number % 5 == 4).then(|| Box::new(two_windows(world.now)));
            let spec = RequestSpec { duration, gpu, memory, cpu, deferral, ..spec(class, count) };
            let request = RequestId::new(number);
            let submit = Command::SubmitRequest { request, tenant: tenant(name), spec };
            world.ask(user(name), None, submit);
        }
        Step::Plan => {
            world.plan();
        }
        Step::GrantAnything { request, gpus } => {
            let members = gpus.into_iter().map(|number| any_member(world, number)).collect();
            world.commit(PlanGroup::Grant { request: RequestId::new(request), members });
        }
        Step::PreemptAnything { request, lease, gpus } => {
            let victims = lease_at(world, lease).map(|(id, ..)| id).into_iter().collect();
            let freed = gpus.into_iter().map(gpu).collect();
            let request = RequestId::new(request);
            world.commit(PlanGroup::Preempt { request, victims, freed, members: vec![] });
        }
        Step::Sweep => {
            world.ask(Actor::Leader, None, Command::Sweep);
        }
        Step::Silence { node: number } => {
            let (cluster, node, boot) = (cluster(), node(number), boot_of(world, gpu(number * 8)));
            world.ask(Actor::Leader, None, Command::DeclareSilent { cluster, node, boot });
        }
        Step::Reboot { node: number } => {
            let next = boot_of(world, gpu(number * 8)).next();
            world.register(number, next.get());
        }
        Step::Quota { who, gpus, borrow, lend, is_hardware } => {
            let milli = |gpus: u64| GpuMilli::new(gpus * 1_000);
            let quota = Quota {
                nominal: milli(gpus),
                borrow_limit: borrow.map(milli),
                lend_limit: lend.map(milli),
                basis: if is_hardware { Basis::Hardware } else { Basis::Allowance },
            };
            let set = Command::SetQuota { tenant: tenant(NAMES[who]), model: model(), quota };
            world.ask(operator(), None, set);
        }
        Step::Terms { who, weight, hours, money } => {
            let budget = Budget {
                gpu_time: hours.map(|hours| GpuTime::new(hours * 3_600_000_000)),
                money: money.map(|units| MicroCredits::new(units * MicroCredits::PER_UNIT)),
            };
            let reclaims = [Reclaim::Any, Reclaim::LowerPriority, Reclaim::Never];
            let reclaim = reclaims[weight as usize % 3];
            let terms = TenantTerms { weight: Weight::new(weight), budget, reclaim };
            world.ask(operator(), None, Command::SetTerms { tenant: tenant(NAMES[who]), terms });
        }
        Step::Move { who, to } => {
            let parent = to.map(|to| tenant(NAMES[to]));
            world.ask(operator(), None, Command::MoveTenant { tenant: tenant(NAMES[who]), parent });
        }
        Step::Seal => {
            world.ask(Actor::Leader, None, Command::SealTail);
        }
        Step::Cancel { number } => {
            let request = RequestId::new(number);
            world.ask(user("acme"), None, Command::CancelRequest { request });
        }
        Step::Confirm { .. }
        | Step::Refuse { .. }
        | Step::Reclaim { .. }
        | Step::Stop { .. }
        | Step::Checkpoint { .. }
        | Step::Recall { .. }
        | Step::Release { .. } => on_lease(world, step),
    }
}

fn on_lease(world: &mut World, step: Step) {
    let (Step::Confirm { lease: place }
    | Step::Refuse { lease: place }
    | Step::Reclaim { lease: place, .. }
    | Step::Stop { lease: place, .. }
    | Step::Checkpoint { lease: place }
    | Step::Recall { lease: place, .. }
    | Step::Release { lease: place, .. }) = step
    else {
        return;
    };
    let Some((lease, slice, token)) = lease_at(world, place) else { return };
    let boot = boot_of(world, slice);
    let (actor, command) = match step {
        Step::Confirm { .. } => {
            let members: Vec<SliceId> =
                world.state.leases()[&lease].terms().members.iter().map(|m| m.slice).collect();
            for slice in members {
                let boot = boot_of(world, slice);
                let confirm = Command::ConfirmMember { lease, slice, token, boot };
                world.ask(agent(slice), None, confirm);
            }
            return;
        }
        Step::Refuse { .. } => {
            let reason = NackReason::StartFailed;
            (agent(slice), Command::RefuseMember { lease, slice, token, boot, reason })
        }
        Step::Reclaim { cause, .. } => {
            let causes =
                [ReclaimCause::OwnerArrived, ReclaimCause::ForeignUse, ReclaimCause::DeviceFault];
            let cause = causes[usize::from(cause)];
            (agent(slice), Command::ReclaimSlice { slice, token, boot, cause })
        }
        Step::Stop { used, code, .. } => {
            let outcome = code.map_or(GuestOutcome::Stopped, |code| GuestOutcome::Exited { code });
            let used = Seconds::new(used).as_millis();
            (agent(slice), Command::ReportStopped { lease, slice, token, boot, used, outcome })
        }
        Step::Release { is_owner, .. } => {
            let name = if is_owner { "owner" } else { "acme" };
            (user(name), Command::ReleaseLease { lease })
        }
        Step::Checkpoint { .. } => (user("acme"), Command::ReportCheckpoint { lease }),
        Step::Recall { after, .. } => {
            let by = world.now.after(Seconds::new(after));
            let recall = if after == 0 { Recall::Emergency } else { Recall::Planned { by } };
            (user("owner"), Command::RecallLease { lease, recall })
        }
        _other => return,
    };
    world.ask(actor, None, command);
}

/// Mostly no limits; else a node that was not heard of yet, or no preemption.
fn whims(world: &World, whim: u8) -> Limits {
    let mut limits = Limits::NONE;
    match whim {
        0 => limits.closed.extend(world.state.nodes().keys().next().copied()),
        1 => limits.preemption = Preemption::Suspended,
        _ => {}
    }
    limits
}

/// Follows a world with an index, as a leader's shell does.
#[derive(Clone)]
pub(super) struct Follower {
    index: Index,
    heard: usize,
    /// How many first starts were found, and sets of victims.
    starts: usize,
    victims: usize,
}

impl Follower {
    pub(super) fn of(world: &World) -> Follower {
        let (index, heard) = (Index::of(&world.state), world.journal.len());
        Follower { index, heard, starts: 0, victims: 0 }
    }

    pub(super) fn catch_up(&mut self, world: &World) {
        for record in &world.journal[self.heard..] {
            self.index.on_record(&world.state, record);
        }
        let heard = &world.journal[self.heard..];
        // Budgets decide which requests are alike: then the next plan builds it anew.
        let is_rebuilt = heard.iter().any(|record| {
            matches!(record.event, Event::TermsSet { .. } | Event::TenantMoved { .. })
        });
        self.heard = world.journal.len();
        if is_rebuilt {
            assert!(!self.index.is_of(&world.state), "it says that it is not in step");
            self.index = Index::of(&world.state);
        }
        assert!(self.index.is_of(&world.state), "it has heard of everything");
    }

    /// The index is that of the state, and its plan is the one of a look at everything.
    pub(super) fn check(&mut self, world: &World, limits: &Limits) -> Vec<PlanGroup> {
        let view = StateView { state: &world.state, now: world.now };
        let mut fresh = Index::of(&world.state);
        let plain = matching::plan_within(view, limits);
        assert_eq!(matching::plan_with(&mut fresh, view, limits), plain, "as built anew");
        assert_eq!(matching::plan_with(&mut self.index, view, limits), plain, "as followed");
        assert_eq!(self.index.contents(), fresh.contents());
        self.starts += matching::starts_are_those_of_a_look_at_everything(view);
        self.victims += matching::victims_are_those_of_a_look_at_everything(view);
        plain
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn an_index_that_follows_plans_as_a_look_at_everything_does(
        steps in prop::collection::vec((tree_step(), 0_u8..8), 1..120)
    ) {
        let mut world = world();
        let mut follower = Follower::of(&world);
        for (step, whim) in steps {
            let is_plan = matches!(step, Step::Plan);
            if !is_plan {
                take(&mut world, step);
            }
            follower.catch_up(&world);
            let limits = whims(&world, whim);
            if is_plan {
                let groups = follower.check(&world, &limits);
                world.ask(Actor::Leader, None, Command::CommitPlan { groups });
            } else {
                // What is not proposed leaves no trace in the index that goes on.
                let mut aside = follower.clone();
                aside.check(&world, &limits);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_asked_in_whatever_order_the_invariants_hold(
        steps in prop::collection::vec(tree_step(), 1..120)
    ) {
        let mut world = world();
        for step in steps {
            take(&mut world, step);
        }
    }
}

#[test]
fn a_long_walk_grants_ends_and_preempts_and_an_index_follows_it() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let mut world = world();
    let mut follower = Follower::of(&world);
    for _ in 0..2_500 {
        let step = step().new_tree(&mut runner).unwrap().current();
        follower.catch_up(&world);
        if matches!(step, Step::Plan) {
            let groups = follower.check(&world, &Limits::NONE);
            world.ask(Actor::Leader, None, Command::CommitPlan { groups });
        } else {
            take(&mut world, step);
        }
    }
    let count = |name: &str| world.journal.iter().filter(|r| r.event.name() == name).count();
    let seen = ["lease_granted", "lease_activated", "lease_ended", "capacity_pledged"].map(count);
    assert!(seen.iter().all(|number| *number >= 3), "the walk reaches everything: {seen:?}");
    let looks = [follower.starts, follower.victims];
    assert!(looks.iter().all(|number| *number >= 5), "and so do looks ahead: {looks:?}");
    let members = world.journal.iter().filter_map(|record| match &record.event {
        Event::LeaseGranted { terms, .. } => Some(terms.members.iter()),
        _other => None,
    });
    let parts: Vec<Part> = members.flatten().map(|member| member.slice.part).collect();
    let count = |is: fn(&Part) -> bool| parts.iter().filter(|part| is(part)).count();
    let seen = [
        count(|part| matches!(part, Part::Whole)),
        count(|part| matches!(part, Part::Mig { .. })),
        count(|part| matches!(part, Part::Share { .. })),
    ];
    assert!(seen.iter().all(|number| *number >= 3), "it carves everything: {seen:?}");
}

#[test]
fn a_long_walk_moves_tenants_and_cuts_budgets_under_leases() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[11; 32]);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let mut world = world();
    for _ in 0..2_500 {
        let step = tree_step().new_tree(&mut runner).unwrap().current();
        take(&mut world, step);
    }
    let count = |name: &str| world.journal.iter().filter(|r| r.event.name() == name).count();
    let names =
        ["lease_granted", "tenant_moved", "terms_set", "tenant_over_admitted", "lease_capped"];
    let seen = names.map(count);
    assert!(seen.iter().all(|number| *number >= 2), "it reaches everything: {seen:?}");
}

#[test]
fn a_promise_wakes_whoever_may_count_on_the_same_slices_after_it() {
    let mut world = World::new();
    world.register(0, 1);
    for number in 0..8 {
        let mut terms = offer(gpu(number), 1, 1);
        terms.capacity.memory = MiB::new(if number < 4 { 40_000 } else { 80_000 });
        world.must(agent(gpu(number)), Command::OfferCapacity { offer: terms });
    }
    let held = world.submit("owner", 1, spec(Class::Batch, 4));
    world.activate(held, &[0, 1, 2, 3]);
    let mut follower = Follower::of(&world);
    let mut plan = |world: &mut World| {
        follower.catch_up(world);
        let groups = follower.check(world, &Limits::NONE);
        let told: Vec<RequestId> = groups.iter().map(PlanGroup::request).collect();
        world.ask(Actor::Leader, None, Command::CommitPlan { groups });
        told
    };
    // What is left of the two hours that the large ones stay idle is too short, and none is leased, so
    // that the agents would say anew how long they do.
    world.later(Seconds::new(600));
    let (memory, duration) = (MiB::new(60_000), Seconds::new(7_200 - 300));
    world.submit("acme", 2, RequestSpec { memory, duration, ..spec(Class::Batch, 1) });
    assert_eq!(plan(&mut world), [], "no start is known for it");
    world.submit("owner", 3, spec(Class::Batch, 8));
    assert_eq!(plan(&mut world), [RequestId::new(3)], "it is promised all eight");
    assert_eq!(plan(&mut world), [RequestId::new(2)], "one of them comes free after that");
}
