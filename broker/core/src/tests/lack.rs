//! Requests that lack quota where GPUs are free: whose leases end for them, and whose do not.

use sublet_protocol::capacity::{Part, SliceId};
use sublet_protocol::commands::{Command, GroupOutcome, PlanGroup};
use sublet_protocol::ids::{
    Boot, ClusterId, DeviceId, HostHash, LeaseId, NodeId, Region, RequestId,
};
use sublet_protocol::preemption::PreemptionPolicy;
use sublet_protocol::quotas::{Reclaim, TenantTerms};
use sublet_protocol::refusals::Rejection;
use sublet_protocol::requests::{Class, RequestSpec, WaitReason};

use super::preemption::{reason, seconds, vacate, with_policy};
use super::quotas::{create, join, quota, set};
use crate::matching::{self, WhatIf, WhatIfOutcome, explain, what_if};
use crate::state::{LeaseStage, StateView};
use crate::testing::{World, agent, gpu, offer, operator, spec, tenant};

const USELESS: GroupOutcome = GroupOutcome::Refused { rejection: Rejection::VictimsUseless };

fn asks(class: Class, count: u32) -> RequestSpec {
    RequestSpec { duration: seconds(1_800), ..spec(class, count) }
}

/// GPU `number` of the cluster `cN`, eight to a node.
fn gpu_of(cluster: u64, number: u64) -> SliceId {
    let device = DeviceId::new(u128::from(1_000 * cluster + number) + 1);
    let node = NodeId::new(&format!("n{}", number / 8)).unwrap();
    SliceId {
        cluster: ClusterId::new(&format!("c{cluster}")).unwrap(),
        node,
        device,
        part: Part::Whole,
    }
}

/// Another cluster of `owner`, with one node of eight GPUs.
fn another_cluster(world: &mut World, number: u64) {
    let SliceId { cluster, node, .. } = gpu_of(number, 0);
    let (owner, region) = (tenant("owner"), Region::new("eu").unwrap());
    let create = Command::CreateCluster { cluster, owner, region, devices_max: 64 };
    world.must(operator(), create);
    let (boot, host) = (Boot::new(1), HostHash([0; 16]));
    world.must(agent(gpu_of(number, 0)), Command::RegisterNode { cluster, node, boot, host });
    for slice in (0..8).map(|gpu| gpu_of(number, gpu)) {
        world.must(agent(slice), Command::OfferCapacity { offer: offer(slice, 1, 1) });
    }
}

/// An active lease on these.
fn runs(world: &mut World, name: &str, id: u128, spec: RequestSpec, slices: &[SliceId]) -> LeaseId {
    let request = world.submit(name, id, spec);
    let members = slices.iter().map(|slice| world.member(*slice)).collect();
    let GroupOutcome::Granted { lease } = world.commit(PlanGroup::Grant { request, members })
    else {
        panic!("{slices:?} are not granted");
    };
    for slice in slices.iter().copied() {
        let (token, boot) = (world.token(lease), Boot::new(1));
        world.must(agent(slice), Command::ConfirmMember { lease, slice, token, boot });
    }
    lease
}

/// A lease of one GPU each.
fn singles(world: &mut World, name: &str, class: Class, slices: &[SliceId]) -> Vec<LeaseId> {
    let first = 1 + u128::try_from(world.journal.len()).unwrap();
    let each = slices.iter().zip(first..);
    each.map(|(slice, id)| runs(world, name, id, asks(class, 1), &[*slice])).collect()
}

/// Whom the plan ends for the request, and what it keeps for it.
fn planned(world: &World, request: RequestId) -> (Vec<LeaseId>, usize, usize) {
    let plan = matching::plan(StateView { state: &world.state, now: world.now });
    let found = plan.into_iter().find_map(|group| match group {
        PlanGroup::Preempt { request: of, victims, freed, members } if of == request => {
            Some((victims, freed.len(), members.len()))
        }
        PlanGroup::Preempt { .. }
        | PlanGroup::Grant { .. }
        | PlanGroup::Promise { .. }
        | PlanGroup::Withdraw { .. } => None,
    });
    let (mut victims, freed, members) = found.unwrap_or_default();
    victims.sort();
    (victims, freed, members)
}

/// What the rules say to a plan that ends these and keeps free GPUs for the request.
fn judged(
    world: &mut World,
    request: RequestId,
    victims: &[LeaseId],
    keeps: &[u64],
) -> GroupOutcome {
    let members = keeps.iter().map(|number| world.member(gpu(*number))).collect();
    let victims = victims.to_vec();
    world.commit(PlanGroup::Preempt { request, victims, freed: vec![], members })
}

/// Two nodes; `owner` brings four GPUs and `acme` none, in a group.
fn scarce(reclaim: Reclaim) -> World {
    let mut world = World::with_nodes(2);
    world.must(operator(), Command::CreateTenant { tenant: tenant("pool"), parent: None });
    let terms = TenantTerms { reclaim, ..TenantTerms::default() };
    world.must(operator(), Command::SetTerms { tenant: tenant("pool"), terms });
    set(&mut world, "owner", quota(4_000, None, None));
    set(&mut world, "acme", quota(0, None, None));
    for name in ["owner", "acme"] {
        join(&mut world, name, Some("pool"));
    }
    world
}

fn sorted(mut leases: Vec<LeaseId>) -> Vec<LeaseId> {
    leases.sort();
    leases
}

#[test]
fn a_lender_gets_its_own_quota_back_where_enough_gpus_are_free() {
    for (reclaim, is_ended) in [(Reclaim::Any, true), (Reclaim::Never, false)] {
        let mut world = scarce(reclaim);
        let slices: Vec<SliceId> = (0..4).map(gpu).collect();
        singles(&mut world, "acme", Class::Batch, &slices);
        world.later(seconds(600));
        let own = world.submit("owner", 100, asks(Class::Batch, 2));
        let (victims, freed, members) = planned(&world, own);
        let expected = if is_ended { (2, 0, 2) } else { (0, 0, 0) };
        assert_eq!((victims.len(), freed, members), expected, "{reclaim:?}");
        assert_eq!(reason(&world, own), WaitReason::Quota);
    }
}

#[test]
fn what_is_kept_for_a_lender_is_granted_when_its_quota_is_back_and_to_nobody_before() {
    let mut world = scarce(Reclaim::Any);
    let slices: Vec<SliceId> = (0..4).map(gpu).collect();
    singles(&mut world, "acme", Class::Batch, &slices);
    world.later(seconds(600));
    let own = world.submit("owner", 100, asks(Class::Batch, 2));
    let rival = world.submit("acme", 101, asks(Class::Batch, 1));
    assert_eq!(world.plan()[0], GroupOutcome::Pledged);
    let ending: Vec<LeaseId> =
        world.state.leases().iter().filter(|(_, l)| !l.is_running()).map(|(id, _)| *id).collect();
    assert_eq!(ending.len(), 2);
    let gone_by = |lease: &LeaseId| match world.state.leases()[lease].stage() {
        LeaseStage::Ending { deadline, .. } => *deadline,
        other => panic!("{other:?}"),
    };
    let eta = explain(StateView { state: &world.state, now: world.now }, own).unwrap().eta;
    assert_eq!(eta.map(|eta| eta.latest), ending.iter().map(gone_by).max(), "told when it starts");
    vacate(&mut world, ending[0]);
    world.plan();
    let waits = |world: &World, id| world.state.requests()[&id].is_waiting();
    assert!(waits(&world, own) && waits(&world, rival), "what came back is kept");
    vacate(&mut world, ending[1]);
    world.plan();
    assert!(!waits(&world, own) && waits(&world, rival));
}

#[test]
fn a_tenant_at_its_quota_ends_its_own_lower_tiers_and_nobody_elses() {
    let mut world = World::with_nodes(2);
    set(&mut world, "acme", quota(2_000, None, None));
    // By the order alone these would go first: they are newer and have nothing to lose.
    let own = singles(&mut world, "acme", Class::Experiment, &[gpu(0), gpu(1)]);
    world.later(seconds(60));
    let others = singles(&mut world, "owner", Class::Experiment, &[gpu(2), gpu(3)]);
    world.later(seconds(600));
    let request = world.submit("acme", 100, asks(Class::Latency, 1));
    let (victims, ..) = planned(&world, request);
    assert!(victims.len() == 1 && own.contains(&victims[0]), "{victims:?}");
    assert_eq!(judged(&mut world, request, &others[..1], &[4]), refused(Rejection::QuotaExceeded));
    let more = [own[0], others[0]];
    assert_eq!(judged(&mut world, request, &more, &[4]), USELESS, "one gives nothing back");
    assert_eq!(judged(&mut world, request, &own, &[4]), USELESS, "one of the two is enough");
    assert_eq!(judged(&mut world, request, &own[..1], &[4]), GroupOutcome::Pledged);
}

const fn refused(rejection: Rejection) -> GroupOutcome {
    GroupOutcome::Refused { rejection }
}

#[test]
fn who_may_borrow_no_more_ends_only_leases_that_count_against_that_limit() {
    let mut world = scarce(Reclaim::Never);
    create(&mut world, "beta", "pool");
    set(&mut world, "acme", quota(0, Some(1_000), None));
    let lent = singles(&mut world, "beta", Class::Experiment, &[gpu(0), gpu(1), gpu(2)]);
    let own = singles(&mut world, "acme", Class::Experiment, &[gpu(3)]);
    world.later(seconds(600));
    let request = world.submit("acme", 100, asks(Class::Batch, 1));
    // The group is full, too: one end is enough for both.
    assert_eq!(planned(&world, request).0, own);
    assert_eq!(reason(&world, request), WaitReason::Quota);
    assert_eq!(
        judged(&mut world, request, &lent[..1], &[4]),
        refused(Rejection::BorrowLimitReached)
    );
    // With a limit of two it borrows one more, and anybody's end gives that back.
    set(&mut world, "acme", quota(0, Some(2_000), None));
    let (victims, ..) = planned(&world, request);
    assert_eq!(victims.len(), 1);
    assert_eq!(judged(&mut world, request, &lent[..1], &[4]), GroupOutcome::Pledged);
}

#[test]
fn quota_comes_back_from_another_cluster_and_one_cluster_is_enough_if_it_is() {
    // Owner lends four: acme has them in the second and the third cluster.
    for (there, wanted, expected) in [(2, 2, &[2][..]), (3, 3, &[2]), (2, 3, &[2, 3])] {
        let mut world = scarce(Reclaim::Any);
        another_cluster(&mut world, 2);
        another_cluster(&mut world, 3);
        let second: Vec<SliceId> = (0..there).map(|number| gpu_of(2, number)).collect();
        // These would go first: they are newer.
        let third: Vec<SliceId> = (0..4 - there).map(|number| gpu_of(3, number)).collect();
        singles(&mut world, "acme", Class::Batch, &second);
        world.later(seconds(10));
        singles(&mut world, "acme", Class::Batch, &third);
        world.later(seconds(600));
        let request = world.submit("owner", 100, asks(Class::Batch, wanted));
        let (victims, ..) = planned(&world, request);
        assert_eq!(victims.len(), usize::try_from(wanted).unwrap());
        let mut clusters: Vec<ClusterId> =
            victims.iter().map(|lease| world.state.leases()[lease].terms().cluster).collect();
        clusters.sort();
        clusters.dedup();
        let context = format!("{there} in c2, {wanted} are wanted");
        if expected.len() == 1 {
            assert_eq!(clusters.len(), 1, "{context}: {clusters:?}");
        }
        assert!(clusters.len() <= expected.len(), "{context}: {clusters:?}");
        assert_eq!(world.plan()[0], GroupOutcome::Pledged, "{context}");
    }
}

#[test]
fn budgets_are_those_of_the_clusters_where_leases_end() {
    let mut world = scarce(Reclaim::Any);
    another_cluster(&mut world, 2);
    let slices: Vec<SliceId> = (0..4).map(|number| gpu_of(2, number)).collect();
    let lent = singles(&mut world, "acme", Class::Batch, &slices);
    world.later(seconds(600));
    let one = PreemptionPolicy { per_cluster_hour: 1, ..PreemptionPolicy::default() };
    with_policy(&mut world, one);
    let two = world.submit("owner", 100, asks(Class::Batch, 2));
    assert_eq!(planned(&world, two).0, []);
    assert_eq!(reason(&world, two), WaitReason::PreemptionBudget);
    let exhausted = refused(Rejection::PreemptionsExhausted);
    assert_eq!(judged(&mut world, two, &lent[..2], &[0, 1]), exhausted);
    let single = world.submit("owner", 101, asks(Class::Batch, 1));
    assert_eq!(judged(&mut world, single, &lent[..1], &[0]), GroupOutcome::Pledged);
}

#[test]
fn where_slices_and_quota_are_missing_no_more_end_than_both_need() {
    // One node: acme runs six, beta two; owner's quota of four is all lent to acme.
    let mut world = World::with_nodes(1);
    world.must(operator(), Command::CreateTenant { tenant: tenant("pool"), parent: None });
    for name in ["owner", "acme"] {
        join(&mut world, name, Some("pool"));
    }
    world.must(operator(), Command::CreateTenant { tenant: tenant("beta"), parent: None });
    set(&mut world, "owner", quota(4_000, None, None));
    set(&mut world, "acme", quota(2_000, None, None));
    set(&mut world, "beta", quota(8_000, None, None));
    let lent: Vec<SliceId> = (0..6).map(gpu).collect();
    let lent = singles(&mut world, "acme", Class::Batch, &lent);
    let beside = singles(&mut world, "beta", Class::Experiment, &[gpu(6), gpu(7)]);
    world.later(seconds(600));
    let request = world.submit("owner", 100, asks(Class::Latency, 2));
    // Beta's would free slices and are of the lowest tier; but who ends for quota frees slices as well.
    let (victims, freed, _) = planned(&world, request);
    assert_eq!((victims.len(), freed), (2, 2));
    assert!(victims.iter().all(|lease| lent.contains(lease)), "{victims:?}, not {beside:?}");
    assert_eq!(world.plan()[0], GroupOutcome::Pledged);
}

#[test]
fn two_pledges_never_count_on_the_same_quota() {
    let mut world = scarce(Reclaim::Any);
    let slices: Vec<SliceId> = (0..4).map(gpu).collect();
    let lent = singles(&mut world, "acme", Class::Batch, &slices);
    world.later(seconds(600));
    let first = world.submit("owner", 100, asks(Class::Batch, 2));
    let second = world.submit("owner", 101, asks(Class::Batch, 2));
    assert_eq!(judged(&mut world, first, &lent[..2], &[8, 9]), GroupOutcome::Pledged);
    let (victims, ..) = planned(&world, second);
    assert_eq!(victims, sorted(lent[2..].to_vec()));
    assert_eq!(
        judged(&mut world, second, &lent[2..3], &[10, 11]),
        refused(Rejection::QuotaExceeded)
    );
    assert_eq!(judged(&mut world, second, &lent[2..], &[10, 11]), GroupOutcome::Pledged);
}

#[test]
fn a_borrower_that_is_young_is_spared_and_the_lender_is_told_that_quota_is_missing() {
    let mut world = scarce(Reclaim::Any);
    let slices: Vec<SliceId> = (0..4).map(gpu).collect();
    let lent = singles(&mut world, "acme", Class::Batch, &slices);
    world.later(seconds(599));
    let own = world.submit("owner", 100, asks(Class::Batch, 1));
    assert_eq!(planned(&world, own).0, []);
    assert_eq!(reason(&world, own), WaitReason::Quota);
    let outcome = judged(&mut world, own, &lent[..1], &[4]);
    assert_eq!(outcome, refused(Rejection::VictimProtected));
    world.later(seconds(1));
    assert_eq!(planned(&world, own).0.len(), 1);
}

#[test]
fn who_would_borrow_takes_no_quota_back() {
    let mut world = scarce(Reclaim::Any);
    let slices: Vec<SliceId> = (0..3).map(gpu).collect();
    let lent = singles(&mut world, "acme", Class::Batch, &slices);
    runs(&mut world, "owner", 90, asks(Class::Batch, 1), &[gpu(3)]);
    world.later(seconds(600));
    // Three are its own still; with a fourth it would borrow.
    let four = world.submit("owner", 100, asks(Class::Batch, 4));
    assert_eq!(planned(&world, four).0, []);
    let protected = refused(Rejection::QuotaExceeded);
    assert_eq!(judged(&mut world, four, &lent, &[8, 9, 10, 11]), protected);
    let three = world.submit("owner", 101, asks(Class::Batch, 3));
    assert_eq!(planned(&world, three).0, sorted(lent));
}

#[test]
fn a_dry_run_of_the_lowest_tier_says_whose_quota_it_would_take_back() {
    let mut world = scarce(Reclaim::Any);
    let slices: Vec<SliceId> = (0..4).map(gpu).collect();
    singles(&mut world, "acme", Class::Batch, &slices);
    world.later(seconds(600));
    let view = StateView { state: &world.state, now: world.now };
    let WhatIf { outcome, .. } = what_if(view, tenant("owner"), &asks(Class::Experiment, 1));
    let WhatIfOutcome::Preempt { victims } = outcome else { panic!("{outcome:?}") };
    assert_eq!(victims.len(), 1);
}

#[test]
fn a_request_that_would_take_the_quota_of_its_tenants_promised_one_ends_nobody() {
    // Acme has three. Two of them and an experiment run; a large one is promised the end of the two.
    let mut world = World::with_nodes(2);
    set(&mut world, "acme", quota(3_000, None, None));
    runs(&mut world, "acme", 1, asks(Class::Batch, 2), &[gpu(0), gpu(1)]);
    let low = singles(&mut world, "acme", Class::Experiment, &[gpu(2)]);
    let large = world.submit("acme", 50, RequestSpec { priority: 9, ..asks(Class::Batch, 3) });
    world.plan();
    assert!(world.state.promises().contains_key(&large));
    world.later(seconds(600));
    let long = RequestSpec { duration: seconds(36_000), ..spec(Class::Batch, 1) };
    let long = world.submit("acme", 51, long);
    assert_eq!(planned(&world, long).0, [], "it would run beyond the promised start");
    let short = RequestSpec { duration: seconds(300), ..spec(Class::Batch, 1) };
    let short = world.submit("acme", 52, short);
    let ended = planned(&world, short).0;
    assert_eq!(ended, low);
}
