//! What members of a group take back of what they have lent to each other.

use sublet_protocol::commands::{Command, GroupOutcome, GuestOutcome, PlanGroup};
use sublet_protocol::ids::{LeaseId, RequestId};
use sublet_protocol::preemption::PreemptionPolicy;
use sublet_protocol::quotas::{Reclaim, TenantTerms};
use sublet_protocol::refusals::Rejection;
use sublet_protocol::requests::{Class, RequestSpec, WaitReason};

use super::preemption::{reason, seconds, vacate, with_policy};
use super::quotas::{create, join, pool, quota, set};
use crate::matching;
use crate::state::StateView;
use crate::testing::{World, gpu, operator, spec, tenant};

fn lets(world: &mut World, group: &str, reclaim: Reclaim) {
    let terms = TenantTerms { reclaim, ..TenantTerms::default() };
    world.must(operator(), Command::SetTerms { tenant: tenant(group), terms });
}

fn asks(class: Class, priority: u8, count: u32) -> RequestSpec {
    RequestSpec { priority, duration: seconds(1_800), ..spec(class, count) }
}

/// An active lease on these GPUs.
fn runs(world: &mut World, name: &str, spec: RequestSpec, gpus: &[u64]) -> LeaseId {
    let number = 1 + u128::from(gpus[0]);
    let request = world.submit(name, number, spec);
    world.activate(request, gpus)
}

/// Whom the plan ends for the request.
fn ended_for(world: &World, request: RequestId) -> Vec<LeaseId> {
    let plan = matching::plan(StateView { state: &world.state, now: world.now });
    let ends = plan.into_iter().find_map(|group| match group {
        PlanGroup::Preempt { request: of, victims, .. } if of == request => Some(victims),
        PlanGroup::Preempt { .. }
        | PlanGroup::Grant { .. }
        | PlanGroup::Promise { .. }
        | PlanGroup::Withdraw { .. } => None,
    });
    let mut ends = ends.unwrap_or_default();
    ends.sort();
    ends
}

/// What the rules say to a plan that ends these for one GPU each.
fn judged(world: &mut World, request: RequestId, victims: &[LeaseId]) -> GroupOutcome {
    let members = |lease: &LeaseId| world.state.leases()[lease].terms().members.clone();
    let freed = victims.iter().flat_map(members).map(|member| member.slice);
    let asked = usize::try_from(world.state.requests()[&request].spec().count).unwrap();
    let (freed, victims) = (freed.take(asked).collect(), victims.to_vec());
    world.commit(PlanGroup::Preempt { request, victims, freed, members: vec![] })
}

const PROTECTED: GroupOutcome = GroupOutcome::Refused { rejection: Rejection::VictimProtected };

/// `owner` brings eight GPUs, all lent to `acme`.
fn all_lent(reclaim: Reclaim, borrower: &RequestSpec) -> (World, Vec<LeaseId>) {
    let mut world = pool(1);
    lets(&mut world, "pool", reclaim);
    let leases = (0..8).map(|number| runs(&mut world, "acme", borrower.clone(), &[number]));
    let leases = leases.collect();
    world.later(seconds(600));
    (world, leases)
}

#[test]
fn what_was_lent_is_taken_back_as_far_as_the_group_says() {
    use Class::{Batch, Experiment, Latency};
    use Reclaim::{Any, LowerPriority, Never};
    // (what the group lets them do, who borrowed, who wants its own back, whether it gets it)
    let rows = [
        (Never, (Batch, 0), (Batch, 255), false),
        (Never, (Latency, 0), (Batch, 255), false),
        (Never, (Experiment, 255), (Batch, 0), true),
        (LowerPriority, (Batch, 1), (Batch, 1), false),
        (LowerPriority, (Batch, 0), (Batch, 1), true),
        (LowerPriority, (Latency, 0), (Batch, 255), false),
        (LowerPriority, (Experiment, 255), (Batch, 0), true),
        (LowerPriority, (Experiment, 0), (Experiment, 1), true),
        (Any, (Batch, 255), (Batch, 0), true),
        (Any, (Latency, 255), (Experiment, 0), true),
    ];
    for (reclaim, (held, low), (wanted, high), is_ended) in rows {
        let context = format!("{reclaim:?}: {held:?} of {low}, {wanted:?} of {high}");
        let (mut world, leases) = all_lent(reclaim, &asks(held, low, 1));
        let own = world.submit("owner", 100, asks(wanted, high, 1));
        let ended = ended_for(&world, own);
        assert_eq!(ended.len(), usize::from(is_ended), "{context}");
        let outcome = judged(&mut world, own, &leases[..1]);
        let expected = if is_ended { GroupOutcome::Pledged } else { PROTECTED };
        assert_eq!(outcome, expected, "{context}");
    }
}

#[test]
fn what_is_taken_back_arrives_and_its_borrower_waits_again() {
    let (mut world, _) = all_lent(Reclaim::Any, &asks(Class::Batch, 0, 1));
    let own = world.submit("owner", 100, asks(Class::Batch, 0, 2));
    assert_eq!(world.plan(), [GroupOutcome::Pledged]);
    let ending = world.state.leases().iter().filter(|(_, lease)| !lease.is_running());
    let ending: Vec<LeaseId> = ending.map(|(id, _)| *id).collect();
    assert_eq!(ending.len(), 2);
    let requests: Vec<RequestId> =
        ending.iter().map(|lease| world.state.leases()[lease].terms().request).collect();
    for lease in ending {
        vacate(&mut world, lease);
    }
    world.plan();
    assert!(!world.state.requests()[&own].is_waiting());
    assert!(requests.iter().all(|request| world.state.requests()[request].is_waiting()));
    // They would borrow: it is not theirs to take back.
    world.later(seconds(1_200));
    assert!(requests.iter().all(|request| ended_for(&world, *request).is_empty()));
}

#[test]
fn nobody_is_left_with_less_than_its_own() {
    // Acme brings some of the eight GPUs and holds gangs of two.
    let rows = [(3_000, 2, 1), (3_000, 4, 2), (5_000, 2, 1), (5_000, 3, 0), (7_000, 1, 0)];
    let both = [Reclaim::Any, Reclaim::LowerPriority];
    for (reclaim, (own, wanted, expected)) in
        both.into_iter().flat_map(|r| rows.map(|row| (r, row)))
    {
        let mut world = pool(1);
        lets(&mut world, "pool", reclaim);
        set(&mut world, "acme", quota(own, None, None));
        set(&mut world, "owner", quota(8_000 - own, None, None));
        let leases: Vec<LeaseId> = (0..4)
            .map(|at| runs(&mut world, "acme", asks(Class::Batch, 0, 2), &[2 * at, 2 * at + 1]))
            .collect();
        world.later(seconds(600));
        let request = world.submit("owner", 100, asks(Class::Batch, 9, wanted));
        let context = format!("{reclaim:?}: {own} are acme's own, {wanted} are wanted");
        assert_eq!(ended_for(&world, request).len(), expected, "{context}");
        let victims = usize::try_from(wanted.div_ceil(2)).unwrap();
        let outcome = judged(&mut world, request, &leases[..victims]);
        let is_refused = expected < victims;
        assert_eq!(outcome == PROTECTED, is_refused, "{context}: {outcome:?}");
    }
}

#[test]
fn only_what_is_ones_own_is_taken_back() {
    let rows = [(4_000, false), (5_000, true)];
    let both = [Reclaim::Any, Reclaim::LowerPriority];
    for (reclaim, (own, is_ended)) in both.into_iter().flat_map(|r| rows.map(|row| (r, row))) {
        let mut world = pool(1);
        lets(&mut world, "pool", reclaim);
        create(&mut world, "beta", "pool");
        set(&mut world, "owner", quota(own, None, None));
        set(&mut world, "beta", quota(8_000 - own, None, None));
        runs(&mut world, "owner", asks(Class::Batch, 0, 4), &[0, 1, 2, 3]);
        let lent = runs(&mut world, "acme", asks(Class::Batch, 0, 1), &[4]);
        runs(&mut world, "acme", asks(Class::Batch, 0, 3), &[5, 6, 7]);
        world.later(seconds(600));
        let fifth = world.submit("owner", 100, asks(Class::Batch, 255, 1));
        let ended = ended_for(&world, fifth).len();
        let context = format!("{reclaim:?}: {own} are its own, it holds four");
        assert_eq!(ended, usize::from(is_ended), "{context}");
        assert_eq!(judged(&mut world, fifth, &[lent]) == PROTECTED, !is_ended, "{context}");
    }
}

#[test]
fn a_group_that_borrows_nothing_gives_nothing_back_whoever_holds_it() {
    // Lab holds what its sister brings: it borrows, its group does not.
    let mut world = org(Reclaim::Any, Reclaim::Never);
    let lent: Vec<LeaseId> =
        (0..4).map(|at| runs(&mut world, "lab", asks(Class::Batch, 0, 1), &[at])).collect();
    create(&mut world, "other", "pool");
    for at in 4..8 {
        runs(&mut world, "other", asks(Class::Latency, 0, 1), &[at]);
    }
    world.later(seconds(600));
    let own = world.submit("owner", 100, asks(Class::Batch, 255, 1));
    assert!(!ended_for(&world, own).iter().any(|lease| lent.contains(lease)));
    assert_eq!(judged(&mut world, own, &lent[..1]), PROTECTED);
}

#[test]
fn a_group_and_its_members_take_nothing_back_of_each_other() {
    for (holder, asker) in [("lab", "org"), ("org", "lab")] {
        let mut world = org(Reclaim::Any, Reclaim::Any);
        let leases: Vec<LeaseId> =
            (0..8).map(|at| runs(&mut world, holder, asks(Class::Batch, 0, 1), &[at])).collect();
        world.later(seconds(600));
        let request = world.submit(asker, 100, asks(Class::Batch, 255, 1));
        assert_eq!(ended_for(&world, request), [], "{asker} asks, {holder} has all");
        assert_eq!(judged(&mut world, request, &leases[..1]), PROTECTED);
    }
}

#[test]
fn what_another_gives_back_already_is_not_taken_twice() {
    let mut world = pool(1);
    lets(&mut world, "pool", Reclaim::Any);
    set(&mut world, "acme", quota(6_000, None, None));
    set(&mut world, "owner", quota(2_000, None, None));
    let leases: Vec<LeaseId> = (0..4)
        .map(|at| runs(&mut world, "acme", asks(Class::Batch, 0, 2), &[2 * at, 2 * at + 1]))
        .collect();
    world.later(seconds(600));
    let request = world.submit("owner", 100, asks(Class::Batch, 0, 2));
    assert_eq!(ended_for(&world, request).len(), 1);
    // Acme gives back the two that it borrows; the rest is its own.
    let user = crate::testing::user("acme");
    world.must(user, Command::ReleaseLease { lease: leases[0] });
    assert_eq!(ended_for(&world, request), []);
    assert_eq!(judged(&mut world, request, &leases[1..2]), PROTECTED);
}

#[test]
fn where_all_can_be_taken_back_no_borrower_ends_what_is_anothers_own() {
    use Reclaim::{Any, LowerPriority, Never};
    for (reclaim, is_ended) in [(Never, true), (LowerPriority, true), (Any, false)] {
        let mut world = pool(1);
        lets(&mut world, "pool", reclaim);
        let own: Vec<LeaseId> = (0..8)
            .map(|at| runs(&mut world, "owner", asks(Class::Experiment, 0, 1), &[at]))
            .collect();
        world.later(seconds(600));
        let request = world.submit("acme", 100, asks(Class::Latency, 0, 1));
        assert_eq!(ended_for(&world, request).len(), usize::from(is_ended), "{reclaim:?}");
        assert_eq!(judged(&mut world, request, &own[..1]) == PROTECTED, !is_ended);
    }
    // Of another borrower, or with quota of its own, it does.
    for own in [0, 1_000] {
        let mut world = pool(1);
        lets(&mut world, "pool", Any);
        create(&mut world, "beta", "pool");
        set(&mut world, "beta", quota(own, None, None));
        let holder = if own == 0 { "acme" } else { "owner" };
        for at in 0..8 {
            runs(&mut world, holder, asks(Class::Experiment, 0, 1), &[at]);
        }
        world.later(seconds(600));
        let request = world.submit("beta", 100, asks(Class::Latency, 0, 1));
        assert_eq!(ended_for(&world, request).len(), 1, "{own} of its own");
    }
}

#[test]
fn what_is_taken_back_is_protected_and_counted_like_any_other() {
    let (mut world, leases) = all_lent(Reclaim::Any, &asks(Class::Batch, 0, 1));
    let young = leases[7];
    world.stop(young, gpu(7), seconds(600), GuestOutcome::Exited { code: 0 });
    let again = world.submit("acme", 50, asks(Class::Batch, 0, 1));
    world.must(
        crate::testing::agent(gpu(7)),
        Command::OfferCapacity { offer: crate::testing::offer(gpu(7), 2, 1) },
    );
    let young = world.activate(again, &[7]);
    world.later(seconds(599));
    let own = world.submit("owner", 100, asks(Class::Batch, 0, 8));
    assert_eq!(ended_for(&world, own), [], "one has not run for ten minutes");
    let one = world.submit("owner", 101, asks(Class::Batch, 0, 1));
    assert_eq!(judged(&mut world, one, &[young]), PROTECTED);
    world.later(seconds(1));
    assert_eq!(ended_for(&world, own).len(), 8);
    let budget = PreemptionPolicy { per_cluster_hour: 7, ..PreemptionPolicy::default() };
    with_policy(&mut world, budget);
    assert_eq!(ended_for(&world, own), []);
    assert_eq!(reason(&world, own), WaitReason::PreemptionBudget);
}

/// A group in a group: `org` has `team` and `lab`; `org` and `owner` are in `pool`.
fn org(outer: Reclaim, inner: Reclaim) -> World {
    let mut world = pool(1);
    create(&mut world, "org", "pool");
    for name in ["team", "lab"] {
        create(&mut world, name, "org");
    }
    lets(&mut world, "pool", outer);
    lets(&mut world, "org", inner);
    set(&mut world, "owner", quota(4_000, None, None));
    set(&mut world, "team", quota(4_000, None, None));
    world
}

#[test]
fn the_lowest_group_that_two_are_in_says_what_they_take_back_of_each_other() {
    use Reclaim::{Any, Never};
    for (outer, inner) in [(Any, Never), (Never, Any), (Any, Any), (Never, Never)] {
        // Lab holds all: four of its sister's, four of owner's.
        let mut world = org(outer, inner);
        for at in 0..8 {
            runs(&mut world, "lab", asks(Class::Batch, 0, 1), &[at]);
        }
        world.later(seconds(600));
        let sister = world.submit("team", 100, asks(Class::Batch, 0, 1));
        let ended = ended_for(&world, sister).len();
        assert_eq!(ended, usize::from(inner == Any), "{outer:?} outside, {inner:?} inside");
        let cousin = world.submit("owner", 101, asks(Class::Batch, 0, 1));
        let ended = ended_for(&world, cousin).len();
        assert_eq!(ended, usize::from(outer == Any), "{outer:?} outside, {inner:?} inside");
    }
}

#[test]
fn what_a_group_lends_is_taken_back_from_those_in_it_who_borrow() {
    let mut world = org(Reclaim::Any, Reclaim::Never);
    // Team holds five, one more than its own; lab one. The group has borrowed two.
    let five: Vec<LeaseId> =
        (0..5).map(|at| runs(&mut world, "team", asks(Class::Batch, 0, 1), &[at])).collect();
    let lab = runs(&mut world, "lab", asks(Class::Batch, 0, 1), &[5]);
    runs(&mut world, "owner", asks(Class::Batch, 0, 2), &[6, 7]);
    world.later(seconds(600));
    let request = world.submit("owner", 100, asks(Class::Batch, 0, 2));
    let ended = ended_for(&world, request);
    let of_team = ended.iter().filter(|lease| five.contains(lease)).count();
    assert_eq!((ended.len(), ended.contains(&lab), of_team), (2, true, 1), "one of each");
    assert_eq!(judged(&mut world, request, &five[..2]), PROTECTED, "four are team's own");
    // Team meets lab in its own group, where nothing is taken back.
    let third = world.submit("team", 101, asks(Class::Batch, 255, 1));
    assert_eq!(ended_for(&world, third), []);
}

#[test]
fn who_is_in_no_group_with_the_holder_takes_nothing_back() {
    let (mut world, leases) = all_lent(Reclaim::Any, &asks(Class::Batch, 0, 1));
    join(&mut world, "owner", None);
    let own = world.submit("owner", 100, asks(Class::Batch, 255, 1));
    assert_eq!(ended_for(&world, own), []);
    assert_eq!(judged(&mut world, own, &leases[..1]), PROTECTED);
}

/// The example of `docs/matching.md`.
#[test]
fn the_worked_example_of_taking_back_holds() {
    let mut world = pool(1);
    lets(&mut world, "pool", Reclaim::Any);
    create(&mut world, "beta", "pool");
    set(&mut world, "owner", quota(6_000, None, None));
    set(&mut world, "beta", quota(2_000, None, None));
    let two = runs(&mut world, "beta", asks(Class::Batch, 0, 2), &[0, 1]);
    let one = runs(&mut world, "beta", asks(Class::Batch, 0, 1), &[2]);
    let five: Vec<LeaseId> =
        (3..8).map(|at| runs(&mut world, "acme", asks(Class::Batch, 0, 1), &[at])).collect();
    world.later(seconds(600));
    let mut number = 100;
    let mut ended = |name: &str, class, count| {
        number += 1;
        let request = world.submit(name, number, asks(class, 0, count));
        let ended = ended_for(&world, request);
        world.must(crate::testing::user(name), Command::CancelRequest { request });
        ended
    };
    let first = ended("owner", Class::Batch, 1);
    assert!(first.len() == 1 && first[0] != two, "{first:?}");
    let mut all: Vec<LeaseId> = five.iter().copied().chain([one]).collect();
    all.sort();
    assert_eq!(ended("owner", Class::Batch, 6), all);
    assert_eq!(ended("owner", Class::Batch, 7), []);
    assert_eq!(ended("beta", Class::Batch, 1), []);
    let higher = ended("acme", Class::Latency, 3);
    assert!(higher.len() == 3 && !higher.contains(&two), "{higher:?}");
}
