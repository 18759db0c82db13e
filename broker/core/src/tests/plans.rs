//! Plans: every grant and every preemption is judged again.

use sublet_protocol::commands::{
    Actor, Command, GroupOutcome, GuestOutcome, PlanGroup, PlanMember,
};
use sublet_protocol::events::Event;
use sublet_protocol::ids::{Boot, LeaseId, RequestId};
use sublet_protocol::leases::EndReason;
use sublet_protocol::money::MicroCredits;
use sublet_protocol::offers::RescindReason;
use sublet_protocol::quotas::Quota;
use sublet_protocol::refusals::Rejection;
use sublet_protocol::requests::{Class, Placement, RequestSpec};
use sublet_protocol::units::{GpuMilli, MiB, Seconds};

use crate::matching;
use crate::state::{LeaseStage, RequestStage, StateView};
use crate::testing::{World, agent, gpu, model, offer, operator, spec, tenant, user};

fn grant(request: RequestId, members: Vec<PlanMember>) -> PlanGroup {
    PlanGroup::Grant { request, members }
}

#[track_caller]
fn refused(world: &mut World, group: PlanGroup, rejection: Rejection) {
    assert_eq!(world.commit(group), GroupOutcome::Refused { rejection });
}

#[test]
fn a_grant_takes_as_many_distinct_open_slices_as_asked() {
    let mut world = World::with_nodes(1);
    let request = world.submit("acme", 1, spec(Class::Batch, 2));
    let (a, b) = (world.member(gpu(0)), world.member(gpu(1)));
    refused(&mut world, grant(request, vec![a]), Rejection::PlanCount);
    refused(&mut world, grant(request, vec![a, a]), Rejection::PlanMalformed);
    let stale = PlanMember { generation: 7, ..b };
    refused(&mut world, grant(request, vec![a, stale]), Rejection::OfferOld);
    refused(&mut world, grant(RequestId::new(9), vec![a, b]), Rejection::RequestMissing);
    let granted = world.commit(grant(request, vec![a, b]));
    assert!(matches!(granted, GroupOutcome::Granted { .. }));
    refused(&mut world, grant(request, vec![a, b]), Rejection::RequestNotWaiting);
}

#[test]
fn one_slice_is_granted_once_even_within_one_plan() {
    let mut world = World::with_nodes(1);
    let first = world.submit("acme", 1, spec(Class::Batch, 1));
    let second = world.submit("owner", 2, spec(Class::Batch, 1));
    let member = world.member(gpu(0));
    let groups = vec![grant(first, vec![member]), grant(second, vec![member])];
    let outcome = world.ask(Actor::Leader, None, Command::CommitPlan { groups });
    let sublet_protocol::commands::Outcome::Done { groups, .. } = outcome else {
        panic!("{outcome:?}");
    };
    assert!(matches!(groups[0], GroupOutcome::Granted { .. }));
    let by = world.journal.last().unwrap().index;
    let rejection = Rejection::OfferMissing;
    assert_eq!(groups[1], GroupOutcome::Overtaken { rejection, by });
}

#[test]
fn of_two_planners_with_one_view_one_commits_and_the_other_is_told_by_which_record() {
    let mut world = World::with_nodes(1);
    let busy = world.submit("owner", 1, spec(Class::Batch, 7));
    world.activate(busy, &[0, 1, 2, 3, 4, 5, 6]);
    let [first, second] = [(2, "acme"), (3, "owner")]
        .map(|(number, name)| world.submit(name, number, spec(Class::Batch, 1)));
    // Both see one free GPU. One of them has not heard of the first request.
    let view = StateView { state: &world.state, now: world.now };
    let plan = matching::plan(view);
    let blind = grant(second, vec![world.member(gpu(7))]);
    assert!(matches!(&plan[0], PlanGroup::Grant { request, .. } if *request == first));
    let twin = plan[0].clone();
    let granted = world.outcome_of(plan[0].clone());
    assert!(matches!(granted, GroupOutcome::Granted { .. }));
    let by = world.journal.last().unwrap().index;
    let event = &world.journal.last().unwrap().event;
    assert!(matches!(event, Event::LeaseGranted { terms, .. } if terms.request == first));
    world.later(Seconds::new(1));
    let before = world.state.clone();
    let (taken, served) = (Rejection::OfferMissing, Rejection::RequestNotWaiting);
    for (group, rejection) in [(blind, taken), (twin, served)] {
        assert_eq!(world.outcome_of(group), GroupOutcome::Overtaken { rejection, by });
    }
    assert_eq!(world.state.leases(), before.leases(), "nothing happened");
    assert!(world.state.requests()[&second].is_waiting());
}

#[test]
fn what_was_withdrawn_and_not_taken_overtakes_nobody() {
    let mut world = World::with_nodes(1);
    let request = world.submit("acme", 1, spec(Class::Batch, 1));
    let member = world.member(gpu(0));
    let (slice, reason) = (gpu(0), RescindReason::Owner);
    let rescind = Command::RescindOffer { slice, generation: 1, boot: Boot::new(1), reason };
    world.must(agent(slice), rescind);
    let rejection = Rejection::OfferMissing;
    let refused = GroupOutcome::Refused { rejection };
    assert_eq!(world.outcome_of(grant(request, vec![member])), refused);
    // Nor does who asked for what it may not have.
    let (a, b) = (world.member(gpu(1)), world.member(gpu(2)));
    let refused = GroupOutcome::Refused { rejection: Rejection::PlanCount };
    assert_eq!(world.outcome_of(grant(request, vec![a, b])), refused);
}

#[test]
fn who_is_overtaken_by_a_pledge_is_told_which_one() {
    let mut world = World::with_nodes(1);
    let low = world.submit("owner", 1, spec(Class::Experiment, 8));
    let lease = world.activate(low, &[0, 1, 2, 3, 4, 5, 6, 7]);
    world.later(Seconds::new(3_000));
    let [first, second] =
        [2, 3].map(|number| world.submit("acme", number, spec(Class::Latency, 1)));
    let ends = |request| PlanGroup::Preempt {
        request,
        victims: vec![lease],
        freed: vec![gpu(0)],
        members: vec![],
    };
    assert_eq!(world.outcome_of(ends(first)), GroupOutcome::Pledged);
    let pledged = world.journal.iter().rev();
    let mut pledged =
        pledged.filter(|record| matches!(record.event, Event::CapacityPledged { .. }));
    let by = pledged.next().unwrap().index;
    let rejection = Rejection::VictimProtected;
    let overtaken = GroupOutcome::Overtaken { rejection, by };
    assert_eq!(world.outcome_of(ends(second)), overtaken, "the victim is going already");
    for number in 0..8 {
        world.stop(lease, gpu(number), Seconds::new(3_000), GuestOutcome::Stopped);
    }
    let terms = offer(gpu(0), 2, 1);
    world.must(agent(gpu(0)), Command::OfferCapacity { offer: terms });
    let rejection = Rejection::SlicePledged;
    let group = grant(second, vec![world.member(gpu(0))]);
    assert_eq!(world.outcome_of(group), GroupOutcome::Overtaken { rejection, by });
    // A victim that is spared overtakes nobody, though it has what is wanted.
    let young = world.submit("owner", 4, spec(Class::Experiment, 1));
    for number in 1..8 {
        let terms = offer(gpu(number), 2, 1);
        world.must(agent(gpu(number)), Command::OfferCapacity { offer: terms });
    }
    let young = world.activate(young, &[1]);
    let group = PlanGroup::Preempt {
        request: second,
        victims: vec![young],
        freed: vec![gpu(1)],
        members: vec![],
    };
    let rejection = Rejection::VictimProtected;
    assert_eq!(world.outcome_of(group), GroupOutcome::Refused { rejection });
}

#[test]
fn an_expired_offer_is_not_granted_even_before_the_sweep() {
    let mut world = World::with_nodes(1);
    let request = world.submit("acme", 1, spec(Class::Batch, 1));
    let member = world.member(gpu(0));
    world.later(Seconds::new(900));
    refused(&mut world, grant(request, vec![member]), Rejection::OfferExpired);
}

#[test]
fn a_slice_must_meet_the_request() {
    let mut world = World::with_nodes(2);
    let apart = vec![world.member(gpu(0)), world.member(gpu(8))];
    let together = RequestSpec { placement: Placement::Node, ..spec(Class::Batch, 2) };
    let large = RequestSpec { memory: MiB::new(80_001), ..spec(Class::Batch, 1) };
    let long = RequestSpec { duration: Seconds::new(3_601), ..spec(Class::Latency, 1) };
    let rows = [
        (together, apart),
        (large, vec![world.member(gpu(0))]),
        (long, vec![world.member(gpu(0))]),
    ];
    for (number, (spec, members)) in rows.into_iter().enumerate() {
        let request = world.submit("acme", number as u128 + 1, spec);
        refused(&mut world, grant(request, members), Rejection::SliceUnfit);
    }
}

#[test]
fn a_grant_stops_exactly_at_the_quota() {
    let mut world = World::with_nodes(1);
    let request = world.submit("acme", 1, spec(Class::Batch, 2));
    let cut = |nominal| Command::SetQuota {
        tenant: tenant("acme"),
        model: model(),
        quota: Quota::of(GpuMilli::new(nominal)),
    };
    let members = vec![world.member(gpu(0)), world.member(gpu(1))];
    world.must(operator(), cut(1_999));
    refused(&mut world, grant(request, members.clone()), Rejection::QuotaExceeded);
    world.must(operator(), cut(2_000));
    assert!(matches!(world.commit(grant(request, members)), GroupOutcome::Granted { .. }));
    let more = world.submit("acme", 2, spec(Class::Batch, 1));
    let member = world.member(gpu(2));
    refused(&mut world, grant(more, vec![member]), Rejection::QuotaExceeded);
}

#[test]
fn a_price_above_the_cap_is_refused_and_the_price_itself_is_not() {
    let mut world = World::with_nodes(1);
    for (number, cap, is_granted) in [(1, 1_999_999, false), (2, 2_000_000, true)] {
        let max_price = Some(MicroCredits::new(cap));
        let request =
            world.submit("acme", number, RequestSpec { max_price, ..spec(Class::Batch, 1) });
        let member = world.member(gpu(0));
        let outcome = world.commit(grant(request, vec![member]));
        let refused = GroupOutcome::Refused { rejection: Rejection::PriceTooHigh };
        assert_eq!(outcome != refused, is_granted);
    }
}

#[test]
fn a_grant_holds_the_worst_case() {
    let mut world = World::with_nodes(1);
    let request = world.submit("acme", 1, spec(Class::Batch, 2));
    world.grant(request, &[0, 1]);
    let hold = world.state.tenants()[&tenant("acme")].hold();
    assert_eq!(hold, MicroCredits::new(4_000_000), "two GPUs for an hour at 2 per hour");
}

/// A batch lease of `acme` on GPU 0 to 7 and a latency request of `owner` for one of them.
fn contended(run: Seconds) -> (World, LeaseId, RequestId) {
    let mut world = World::with_nodes(1);
    let low = world.submit("acme", 1, spec(Class::Batch, 8));
    let lease = world.activate(low, &[0, 1, 2, 3, 4, 5, 6, 7]);
    world.later(run);
    let high = world.submit("owner", 2, spec(Class::Latency, 1));
    (world, lease, high)
}

fn preempt(request: RequestId, victim: LeaseId, freed: u64) -> PlanGroup {
    let freed = vec![gpu(freed)];
    PlanGroup::Preempt { request, victims: vec![victim], freed, members: vec![] }
}

#[test]
fn a_higher_tier_preempts_a_lower_one_after_its_minimum_run_time() {
    let (mut world, lease, high) = contended(Seconds::new(599));
    refused(&mut world, preempt(high, lease, 0), Rejection::VictimProtected);
    let (mut world, lease, high) = contended(Seconds::new(600));
    assert_eq!(world.commit(preempt(high, lease, 0)), GroupOutcome::Pledged);
    let stage = world.stage(lease);
    assert!(matches!(stage, Some(LeaseStage::Ending { cause: EndReason::Preempted, .. })));
}

#[test]
fn an_equal_tier_is_never_preempted() {
    let (mut world, lease, _) = contended(Seconds::new(3_000));
    let equal = world.submit("owner", 3, spec(Class::Training, 1));
    refused(&mut world, preempt(equal, lease, 0), Rejection::VictimProtected);
}

#[test]
fn a_victim_that_gives_nothing_needed_is_refused() {
    let (mut world, lease, high) = contended(Seconds::new(600));
    let freed = vec![gpu(0), gpu(1)];
    let greedy = PlanGroup::Preempt { request: high, victims: vec![lease], freed, members: vec![] };
    refused(&mut world, greedy, Rejection::VictimsUseless);
    refused(&mut world, preempt(high, lease, 9), Rejection::VictimsUseless);
}

#[test]
fn freed_capacity_is_kept_for_whom_it_was_freed_until_the_pledge_ends() {
    let (mut world, lease, high) = contended(Seconds::new(600));
    world.commit(preempt(high, lease, 0));
    for number in 0..8 {
        world.stop(lease, gpu(number), Seconds::new(600), GuestOutcome::Stopped);
    }
    let offer = crate::testing::offer(gpu(0), 2, 1);
    world.must(crate::testing::agent(gpu(0)), Command::OfferCapacity { offer });
    let other = world.submit("acme", 3, spec(Class::Latency, 1));
    let member = world.member(gpu(0));
    refused(&mut world, grant(other, vec![member]), Rejection::SlicePledged);
    assert!(matches!(world.commit(grant(high, vec![member])), GroupOutcome::Granted { .. }));
    assert!(world.state.pledged().is_empty());
}

#[test]
fn a_pledge_that_is_not_used_ends_and_its_request_waits_on() {
    let (mut world, lease, high) = contended(Seconds::new(600));
    world.commit(preempt(high, lease, 0));
    world.later(Seconds::new(600));
    let events = world.must(Actor::Leader, Command::Sweep);
    assert!(events.contains(&Event::PledgeEnded { request: high }));
    assert_eq!(world.state.requests()[&high].stage(), &RequestStage::Waiting);
}

#[test]
fn a_cancelled_request_gives_up_its_pledge() {
    let (mut world, lease, high) = contended(Seconds::new(600));
    world.commit(preempt(high, lease, 0));
    world.must(user("owner"), Command::CancelRequest { request: high });
    assert!(world.state.pledged().is_empty());
}

#[test]
fn a_preempted_request_waits_again_with_its_first_submit_time() {
    let (mut world, lease, high) = contended(Seconds::new(600));
    let low = world.state.leases()[&lease].terms().request;
    let submitted = world.state.requests()[&low].submitted_at();
    world.commit(preempt(high, lease, 0));
    for number in 0..8 {
        world.stop(lease, gpu(number), Seconds::new(600), GuestOutcome::Stopped);
    }
    let again = &world.state.requests()[&low];
    assert_eq!((again.submitted_at(), again.is_waiting()), (submitted, true));
}

#[test]
fn only_the_leader_plans_and_not_without_bound() {
    let mut world = World::with_nodes(1);
    world.refuse(operator(), Command::CommitPlan { groups: vec![] }, Rejection::NotAllowed);
    let groups = (0..257).map(|n| grant(RequestId::new(n), vec![])).collect();
    world.refuse(Actor::Leader, Command::CommitPlan { groups }, Rejection::TooMany);
}
