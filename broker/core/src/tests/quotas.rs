//! Quotas in a tree: what is guaranteed, borrowed and lent, and what cuts and moves do.

use std::collections::BTreeMap;

use sublet_protocol::commands::{
    Actor, Command, GroupOutcome, GuestOutcome, NackReason, PlanGroup, ReclaimCause,
};
use sublet_protocol::events::Event;
use sublet_protocol::ids::{Boot, GpuModel, LeaseId, RequestId};
use sublet_protocol::quotas::{Basis, Quota};
use sublet_protocol::refusals::Rejection;
use sublet_protocol::requests::{Class, OnRecall, RequestSpec, WaitReason};
use sublet_protocol::units::{GpuMilli, Seconds};

use crate::matching::explain;
use crate::quota::LEVELS_MAX;
use crate::state::StateView;
use crate::testing::{HOUR, World, agent, gpu, model, node, offer, operator, spec, tenant, user};

pub(super) fn quota(nominal: u64, borrow: Option<u64>, lend: Option<u64>) -> Quota {
    Quota {
        nominal: GpuMilli::new(nominal),
        borrow_limit: borrow.map(GpuMilli::new),
        lend_limit: lend.map(GpuMilli::new),
        basis: Basis::Allowance,
    }
}

pub(super) fn set(world: &mut World, name: &str, quota: Quota) -> Vec<Event> {
    let (tenant, model) = (tenant(name), model());
    world.must(operator(), Command::SetQuota { tenant, model, quota })
}

pub(super) fn create(world: &mut World, name: &str, parent: &str) {
    let (tenant, parent) = (tenant(name), Some(tenant(parent)));
    world.must(operator(), Command::CreateTenant { tenant, parent });
}

pub(super) fn join(world: &mut World, name: &str, parent: Option<&str>) -> Vec<Event> {
    let (tenant, parent) = (tenant(name), parent.map(tenant));
    world.must(operator(), Command::MoveTenant { tenant, parent })
}

/// `owner` with all of `nodes`, and `acme` that brings nothing, in one group.
pub(super) fn pool(nodes: u64) -> World {
    let mut world = World::with_nodes(nodes);
    world.must(operator(), Command::CreateTenant { tenant: tenant("pool"), parent: None });
    set(&mut world, "owner", quota(nodes * 8_000, None, None));
    set(&mut world, "acme", quota(0, None, None));
    for name in ["owner", "acme"] {
        join(&mut world, name, Some("pool"));
    }
    world
}

fn grant(world: &World, request: RequestId, gpus: &[u64]) -> PlanGroup {
    let members = gpus.iter().map(|number| world.member(gpu(*number))).collect();
    PlanGroup::Grant { request, members }
}

fn held(world: &World, name: &str) -> u64 {
    world.state.tenants()[&tenant(name)].held(model()).get()
}

fn left(world: &World, name: &str) -> u64 {
    world.state.tree().figures(tenant(name), model()).unwrap().left.get()
}

fn reason(world: &World, request: RequestId) -> WaitReason {
    explain(StateView { state: &world.state, now: world.now }, request).unwrap().reason
}

#[test]
fn borrowing_stops_exactly_at_nominal_and_the_borrow_limit() {
    let mut world = pool(1);
    set(&mut world, "acme", quota(1_000, Some(1_999), None));
    let request = world.submit("acme", 1, spec(Class::Batch, 2));
    world.grant(request, &[0, 1]);
    let third = world.submit("acme", 2, spec(Class::Batch, 1));
    let outcome = world.commit(grant(&world, third, &[2]));
    let rejection = Rejection::BorrowLimitReached;
    assert_eq!(outcome, GroupOutcome::Refused { rejection });
    assert_eq!(world.plan(), vec![GroupOutcome::Promised]);
    assert_eq!(reason(&world, third), WaitReason::BorrowLimit);
    set(&mut world, "acme", quota(1_000, Some(2_000), None));
    let outcome = world.commit(grant(&world, third, &[2]));
    assert!(matches!(outcome, GroupOutcome::Granted { .. }), "{outcome:?}");
}

#[test]
fn quotas_of_two_models_do_not_touch_each_other() {
    let mut world = pool(1);
    let rare = GpuModel::new("h200").unwrap();
    let command =
        Command::SetQuota { tenant: tenant("owner"), model: rare, quota: Quota::default() };
    world.must(operator(), command);
    let request = world.submit("acme", 1, spec(Class::Batch, 8));
    world.grant(request, &[0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(left(&world, "acme"), 0);
    let quota = quota(3_000, None, None);
    world.must(operator(), Command::SetQuota { tenant: tenant("owner"), model: rare, quota });
    assert_eq!(left(&world, "acme"), 0);
    let figures = world.state.tree().figures(tenant("acme"), rare).unwrap();
    assert_eq!((figures.left.get(), figures.lendable.get()), (3_000, 3_000));
}

#[test]
fn what_is_kept_from_lending_is_there_for_its_lender_whoever_came_first() {
    let mut world = pool(1);
    set(&mut world, "owner", quota(8_000, None, Some(5_000)));
    for number in 0..8 {
        world.submit("acme", number + 1, spec(Class::Batch, 1));
    }
    world.plan();
    assert_eq!((held(&world, "acme"), left(&world, "owner")), (5_000, 3_000));
    let own = world.submit("owner", 100, spec(Class::Batch, 3));
    world.plan();
    assert!(!world.state.requests()[&own].is_waiting());
    let more = world.submit("owner", 101, spec(Class::Batch, 1));
    world.plan();
    assert_eq!(reason(&world, more), WaitReason::Quota, "the rest is lent");
}

#[test]
fn a_group_is_asked_on_every_level() {
    let mut world = pool(2);
    create(&mut world, "org", "pool");
    create(&mut world, "team", "org");
    set(&mut world, "org", quota(0, Some(3_000), None));
    let request = world.submit("team", 1, spec(Class::Batch, 3));
    world.grant(request, &[0, 1, 2]);
    let more = world.submit("team", 2, spec(Class::Batch, 1));
    assert_eq!(world.plan(), vec![GroupOutcome::Promised]);
    assert_eq!(reason(&world, more), WaitReason::BorrowLimit, "that of its group");
    // What acme takes of the pool is gone for the team, too.
    set(&mut world, "org", quota(0, None, None));
    for number in 10..22 {
        world.submit("acme", number, spec(Class::Batch, 1));
    }
    world.plan();
    assert_eq!(held(&world, "acme") + held(&world, "team"), 16_000);
    assert_eq!((left(&world, "team"), left(&world, "acme")), (0, 0));
}

#[test]
fn two_tenants_of_a_group_cannot_have_the_same_gpu_quota_twice_in_one_plan() {
    let mut world = pool(2);
    set(&mut world, "owner", quota(3_000, None, None));
    create(&mut world, "beta", "pool");
    for number in 0..4 {
        world.submit("acme", number + 1, spec(Class::Batch, 1));
        world.submit("beta", number + 11, spec(Class::Batch, 1));
    }
    let outcomes = world.plan();
    assert!(outcomes.iter().all(|o| matches!(o, GroupOutcome::Granted { .. })), "{outcomes:?}");
    assert_eq!(held(&world, "acme") + held(&world, "beta"), 3_000);
}

#[test]
fn a_nominal_amount_on_hardware_follows_what_is_on_offer_or_on_lease() {
    let mut world = pool(1);
    set(&mut world, "owner", Quota { basis: Basis::Hardware, ..quota(20_000, None, None) });
    let counts =
        |world: &World| world.state.tree().figures(tenant("owner"), model()).unwrap().counts.get();
    assert_eq!(counts(&world), 8_000, "not what was set, but what is there");
    let request = world.submit("acme", 1, spec(Class::Batch, 2));
    let lease = world.activate(request, &[0, 1]);
    assert_eq!(counts(&world), 8_000, "what is leased still counts");
    world.later(Seconds::new(900));
    world.must(Actor::Leader, Command::Sweep);
    assert_eq!((counts(&world), left(&world, "acme")), (2_000, 0), "the offers have expired");
    world.stop(lease, gpu(0), HOUR, GuestOutcome::Exited { code: 0 });
    world.stop(lease, gpu(1), HOUR, GuestOutcome::Exited { code: 0 });
    assert_eq!(counts(&world), 0);
    // A request is refused only if it could not run with all that was set.
    let large = world.submit("acme", 2, spec(Class::Batch, 20));
    assert_eq!(reason(&world, large), WaitReason::Quota);
    let too_large = Command::SubmitRequest {
        request: RequestId::new(3),
        tenant: tenant("acme"),
        spec: spec(Class::Batch, 21),
    };
    let refused = world.must(user("acme"), too_large);
    assert!(matches!(refused[..], [Event::RequestRefused { .. }]));
    // Each new offer brings its quota, and wakes who waited for it.
    let one = world.submit("acme", 4, spec(Class::Batch, 1));
    assert_eq!(world.plan(), vec![]);
    world.must(agent(gpu(0)), Command::OfferCapacity { offer: offer(gpu(0), 2, 1) });
    world.plan();
    assert!(!world.state.requests()[&one].is_waiting());
}

#[test]
fn a_move_keeps_the_sum_of_what_is_used_and_names_who_is_left_with_too_much() {
    let mut world = pool(1);
    create(&mut world, "org", "pool");
    create(&mut world, "team", "org");
    let request = world.submit("team", 1, spec(Class::Batch, 4));
    world.grant(request, &[0, 1, 2, 3]);
    let used = |world: &World, name: &str| {
        world.state.tree().figures(tenant(name), model()).unwrap().used.get()
    };
    assert_eq!((used(&world, "pool"), used(&world, "org")), (4_000, 4_000));
    // Out of the pool the organisation has nothing of its own.
    let events = join(&mut world, "org", None);
    let over = Event::TenantOverAdmitted {
        tenant: tenant("org"),
        model: model(),
        excess: GpuMilli::new(4_000),
    };
    assert_eq!(events[1..], [over]);
    assert_eq!((used(&world, "pool"), used(&world, "org")), (0, 4_000), "the sum is kept");
    let more = world.submit("acme", 2, spec(Class::Batch, 8));
    assert_eq!(left(&world, "acme"), 8_000, "the pool has its own back");
    assert!(world.state.requests()[&more].is_waiting());
    let events = join(&mut world, "org", Some("pool"));
    assert_eq!(events.len(), 1, "nobody is over now: {events:?}");
    assert_eq!((used(&world, "pool"), left(&world, "acme")), (4_000, 4_000));
}

/// Scenario 2 (kueue#3779): a group that becomes its own ancestor.
#[test]
fn scenario_02_a_tree_never_gets_a_cycle() {
    let mut world = pool(1);
    create(&mut world, "org", "pool");
    create(&mut world, "team", "org");
    let to = |name: &str, parent: &str| Command::MoveTenant {
        tenant: tenant(name),
        parent: Some(tenant(parent)),
    };
    for (name, parent) in [("pool", "team"), ("pool", "org"), ("org", "team"), ("org", "org")] {
        world.refuse(operator(), to(name, parent), Rejection::TenantCycle);
    }
    world.must(operator(), to("team", "pool"));
    world.must(operator(), to("org", "team"));
    world.refuse(operator(), to("team", "org"), Rejection::TenantCycle);
    world.plan();
}

#[test]
fn the_tree_has_at_most_eight_levels_however_it_is_built() {
    let mut world = World::new();
    let names: Vec<String> = (1..=LEVELS_MAX).map(|level| format!("level-{level}")).collect();
    world.must(operator(), Command::CreateTenant { tenant: tenant("level-1"), parent: None });
    for pair in names.windows(2) {
        create(&mut world, &pair[1], &pair[0]);
    }
    let below = |parent: &str| Command::CreateTenant {
        tenant: tenant("one-more"),
        parent: Some(tenant(parent)),
    };
    world.refuse(operator(), below("level-8"), Rejection::TenantTooDeep);
    world.must(operator(), below("level-7"));
    let to = |name: &str, parent: &str| Command::MoveTenant {
        tenant: tenant(name),
        parent: Some(tenant(parent)),
    };
    world.refuse(operator(), to("level-1", "acme"), Rejection::TenantTooDeep);
    world.must(operator(), to("acme", "level-7"));
    world.refuse(operator(), to("owner", "acme"), Rejection::TenantTooDeep);
}

#[test]
fn what_cannot_be_a_quota_or_a_place_is_refused_with_its_code() {
    let mut world = pool(1);
    let over = Quota::MAX.get() + 1;
    let set = |name: &str, quota| Command::SetQuota { tenant: tenant(name), model: model(), quota };
    for bad in [quota(over, None, None), quota(0, Some(over), None), quota(0, None, Some(over))] {
        world.refuse(operator(), set("acme", bad), Rejection::QuotaInvalid);
    }
    let most = Quota::MAX.get();
    world.must(operator(), set("acme", quota(most, Some(most), Some(most))));
    world.must(operator(), set("acme", quota(0, Some(0), Some(0))));
    world.refuse(operator(), set("nobody", quota(0, None, None)), Rejection::TenantMissing);
    world.refuse(user("acme"), set("acme", quota(1, None, None)), Rejection::NotAllowed);
    let to = |name: &str, parent: Option<&str>| Command::MoveTenant {
        tenant: tenant(name),
        parent: parent.map(tenant),
    };
    world.refuse(operator(), to("nobody", None), Rejection::TenantMissing);
    world.refuse(operator(), to("acme", Some("nobody")), Rejection::TenantMissing);
    world.refuse(user("acme"), to("acme", None), Rejection::NotAllowed);
    assert_eq!(world.must(operator(), to("acme", Some("pool"))), vec![], "it is there already");
}

/// Scenario 1 (kueue#2821): whoever is sorted first is also preempted first, and comes back first.
#[test]
fn scenario_01_each_request_is_admitted_at_most_once() {
    let mut world = pool(1);
    create(&mut world, "beta", "pool");
    set(&mut world, "beta", quota(4_000, None, None));
    // Acme has borrowed every GPU; beta, of a higher tier and with a quota of its own, takes four of
    // them. Acme's come back to the queue with their first submit time and the higher share.
    for number in 0..8 {
        let low = world.submit("acme", number + 1, spec(Class::Experiment, 1));
        world.activate(low, &[u64::try_from(number).unwrap()]);
    }
    world.later(Seconds::new(600));
    for number in 0..4 {
        world.submit("beta", number + 101, spec(Class::Training, 1));
    }
    for _ in 0..8 {
        world.plan();
        end_what_is_ending(&mut world);
    }
    let mut grants: BTreeMap<RequestId, u32> = BTreeMap::new();
    for record in &world.journal {
        if let Event::LeaseGranted { terms, .. } = &record.event {
            *grants.entry(terms.request).or_default() += 1;
        }
    }
    assert_eq!(grants.len(), 12);
    assert!(grants.values().all(|times| *times == 1), "{grants:?}");
    assert_eq!((held(&world, "acme"), held(&world, "beta")), (4_000, 4_000));
}

/// Guests of leases that are ending stop, and their GPUs are offered again.
fn end_what_is_ending(world: &mut World) {
    let ending = world.state.leases().iter().filter(|(_, lease)| !lease.is_running());
    let ending: Vec<_> = ending.map(|(id, lease)| (*id, lease.terms().members.clone())).collect();
    for (lease, members) in ending {
        for member in members {
            world.stop(lease, member.slice, Seconds::new(600), GuestOutcome::Stopped);
            let generation = member.generation + 1;
            let offer = offer(member.slice, generation, 1);
            world.must(agent(member.slice), Command::OfferCapacity { offer });
        }
    }
}

/// Scenario 6 (kueue#14609): a cut that leaves too much admitted, and a quota that grows again.
#[test]
fn scenario_06_a_quota_that_grows_again_is_asked_for_again() {
    let mut world = pool(2);
    set(&mut world, "acme", quota(0, Some(8_000), None));
    let first = world.submit("acme", 1, spec(Class::Batch, 4));
    let second = world.submit("acme", 2, spec(Class::Batch, 4));
    let (four, other_four) = ([0, 1, 2, 3], [4, 5, 6, 7]);
    let lease = world.activate(first, &four);
    world.activate(second, &other_four);
    let events = set(&mut world, "acme", quota(0, Some(5_000), None));
    let over = |event: &Event| matches!(event, Event::TenantOverAdmitted { excess, .. } if excess.get() == 3_000);
    assert!(events.iter().any(over), "{events:?}");
    assert_eq!(world.state.leases().len(), 2, "leases that run go on");
    let third = world.submit("acme", 3, spec(Class::Batch, 2));
    let outcome = world.commit(grant(&world, third, &[8, 9]));
    let rejection = Rejection::BorrowLimitReached;
    assert_eq!(outcome, GroupOutcome::Refused { rejection });
    // One of the two ends: four of five are held, which is one too few for two.
    for number in four {
        world.stop(lease, gpu(number), HOUR, GuestOutcome::Exited { code: 0 });
    }
    assert_eq!((world.plan(), left(&world, "acme")), (vec![GroupOutcome::Promised], 1_000));
    // Restored: nothing comes back by itself, the waiting request is judged anew and fits.
    assert_eq!(set(&mut world, "acme", quota(0, Some(8_000), None)).len(), 1);
    assert_eq!(held(&world, "acme"), 4_000);
    world.plan();
    assert!(!world.state.requests()[&third].is_waiting());
    assert_eq!(held(&world, "acme"), 6_000);
}

/// Case D06: ten leases of one tenant end in ten ways, and its quota is free again after each.
///
/// The numbers are those of the case: 1, 2, 4, 1, 2, 1, 1, 1, 2 and 1 GPUs under a limit of 16.
#[test]
fn case_d06_quota_comes_back_whichever_way_a_lease_ends() {
    let mut world = World::with_nodes(2);
    let acme = tenant("acme");
    let once = |count| RequestSpec { on_recall: OnRecall::Close, ..spec(Class::Batch, count) };
    let gpus: [&[u64]; 10] =
        [&[0], &[1, 2], &[], &[3], &[4, 5], &[6], &[8], &[7], &[10, 11], &[12]];
    let counts = [1, 2, 4, 1, 2, 1, 1, 1, 2, 1];
    let requests: Vec<RequestId> =
        (1_u128..).zip(counts).map(|(n, count)| world.submit("acme", n, once(count))).collect();
    let mut leases: BTreeMap<usize, LeaseId> = BTreeMap::new();
    let mut peak = 0;
    for (at, slices) in gpus.iter().enumerate().filter(|(_, slices)| !slices.is_empty()) {
        // l-3 is refused at its start and l-4 is never confirmed; the others run.
        let is_started = at != 3 && at != 4;
        let lease = match is_started {
            true => world.activate(requests[at], slices),
            false => world.grant(requests[at], slices),
        };
        leases.insert(at, lease);
        peak = peak.max(held(&world, "acme"));
    }
    let used = |world: &World| held(world, "acme") / 1_000;
    assert_eq!(used(&world), 12);
    let done = GuestOutcome::Exited { code: 0 };
    // l-0 stops by itself.
    world.stop(leases[&0], gpu(0), Seconds::new(60), done);
    assert_eq!(used(&world), 11);
    // l-2 is cancelled while it waits.
    world.must(user("acme"), Command::CancelRequest { request: requests[2] });
    // l-3 is refused by its agent.
    let (lease, slice, token) = (leases[&3], gpu(3), world.token(leases[&3]));
    let (boot, reason) = (Boot::new(1), NackReason::NotEmpty);
    world.must(agent(slice), Command::RefuseMember { lease, slice, token, boot, reason });
    assert_eq!(used(&world), 10);
    // l-5 is taken back by its owner.
    let (lease, slice, token) = (leases[&5], gpu(6), world.token(leases[&5]));
    let cause = ReclaimCause::OwnerArrived;
    world.must(agent(slice), Command::ReclaimSlice { slice, token, boot, cause });
    assert_eq!(used(&world), 10, "until its guest is gone");
    world.stop(lease, slice, Seconds::new(60), GuestOutcome::Stopped);
    assert_eq!(used(&world), 9);
    // l-7 is stopped twice.
    let (lease, slice, token) = (leases[&7], gpu(7), world.token(leases[&7]));
    world.must(user("acme"), Command::ReleaseLease { lease });
    world.stop(lease, slice, Seconds::new(60), GuestOutcome::Stopped);
    let (used_time, outcome) = (HOUR.as_millis(), GuestOutcome::Stopped);
    let again = Command::ReportStopped { lease, slice, token, boot, used: used_time, outcome };
    world.refuse(agent(slice), again, Rejection::LeaseMissing);
    assert_eq!(used(&world), 8);
    // l-8 gives one of its two back, which ends both here: a gang is held whole until its last.
    world.stop(leases[&8], gpu(10), Seconds::new(60), GuestOutcome::Stopped);
    assert_eq!(used(&world), 8);
    world.stop(leases[&8], gpu(11), Seconds::new(60), GuestOutcome::Stopped);
    assert_eq!(used(&world), 6);
    // l-4 is not started in time; its agent is told to stop and says that it has.
    world.later(Seconds::new(300));
    world.must(Actor::Leader, Command::Sweep);
    let (lease, token) = (leases[&4], world.token(leases[&4]));
    let late = Command::ConfirmMember { lease, slice: gpu(4), token, boot };
    world.refuse(agent(gpu(4)), late, Rejection::LeaseEnding);
    world.stop(lease, gpu(4), Seconds::ZERO, GuestOutcome::NeverStarted);
    let events = world.stop(lease, gpu(5), Seconds::ZERO, GuestOutcome::NeverStarted);
    let cost = events.iter().find_map(|event| match event {
        Event::LeaseEnded { settlement, .. } => Some(settlement.cost),
        _other => None,
    });
    assert_eq!(cost, Some(sublet_protocol::money::MicroCredits::ZERO), "it is never billed");
    world.must(user("acme"), Command::CancelRequest { request: requests[4] });
    assert_eq!(used(&world), 4);
    // l-6 and l-9 are on the second node, which is lost; l-9 was granted before a broker's restart,
    // of which the rules know nothing. A node that is declared silent has its leases ended.
    let (cluster, lost) = (gpu(8).cluster, node(1));
    world.must(Actor::Leader, Command::DeclareSilent { cluster, node: lost, boot });
    assert_eq!(used(&world), 2);
    // l-1 ends when its time is over.
    world.later(HOUR);
    world.must(Actor::Leader, Command::Sweep);
    world.stop(leases[&1], gpu(1), HOUR, GuestOutcome::Stopped);
    world.stop(leases[&1], gpu(2), HOUR, GuestOutcome::Stopped);
    assert_eq!((used(&world), peak), (0, 12_000));
    assert!(peak <= 16_000 && world.state.leases().is_empty());
    assert_eq!(left(&world, "acme"), 16_000);
    let ends = world.journal.iter().filter_map(|record| match &record.event {
        Event::LeaseEnded { lease, tenant, .. } if *tenant == acme => Some(*lease),
        _other => None,
    });
    let mut ends: Vec<LeaseId> = ends.collect();
    ends.sort_unstable();
    let count = ends.len();
    ends.dedup();
    assert_eq!((ends.len(), count), (9, 9), "each lease is given back once");
}

/// The worked example of `docs/matching.md`; its numbers are these.
#[test]
fn the_worked_example_of_the_documentation_is_right() {
    let mut world = pool(2);
    for other in ["beta", "gamma"] {
        create(&mut world, other, "pool");
    }
    set(&mut world, "owner", quota(16_000, None, Some(12_000)));
    set(&mut world, "acme", quota(0, Some(8_000), None));
    let figures =
        |world: &World, name: &str| world.state.tree().figures(tenant(name), model()).unwrap();
    assert_eq!(figures(&world, "pool").left.get(), 12_000, "16 less 4 that are kept");
    for (name, first, count) in [("acme", 1, 6), ("beta", 101, 3)] {
        for request in first..first + count {
            world.submit(name, request, spec(Class::Batch, 1));
        }
    }
    world.plan();
    let left = ["owner", "acme", "beta", "gamma"].map(|name| figures(&world, name).left.get());
    assert_eq!(left, [7_000, 2_000, 3_000, 3_000]);
    let shares =
        ["acme", "beta", "gamma"].map(|name| crate::quota::share(world.state.tree(), tenant(name)));
    assert_eq!(shares, [500, 250, 0]);
}
