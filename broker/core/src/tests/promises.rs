//! Promised starts as the rules keep them: what is refused, and what becomes of each slice.

use sublet_protocol::commands::{Command, GroupOutcome, GuestOutcome, PlanGroup};
use sublet_protocol::events::Event;
use sublet_protocol::ids::{Boot, LeaseId, RequestId};
use sublet_protocol::money::{MicroCredits, cost_half_even};
use sublet_protocol::offers::RescindReason;
use sublet_protocol::policy::Policy;
use sublet_protocol::refusals::Rejection;
use sublet_protocol::requests::{
    Class, Placement, Prediction, PredictionLayer, PromiseCause, RequestSpec, Tier,
};
use sublet_protocol::units::{GpuMilli, MiB, Permille, Seconds, Timestamp};

use crate::matching::{Eta, Explanation, explain};
use crate::state::{StateView, Whereabouts};
use crate::testing::{HOUR, World, agent, gpu, model, offer, operator, spec, tenant, user};

/// One node: GPUs 0 to 5 are leased for an hour, 6 and 7 are free, and a request for four waits.
fn full() -> (World, RequestId) {
    let mut world = World::with_nodes(1);
    let first = world.submit("owner", 1, spec(Class::Batch, 6));
    world.activate(first, &[0, 1, 2, 3, 4, 5]);
    let request = world.submit("acme", 2, spec(Class::Batch, 4));
    (world, request)
}

fn promise(request: RequestId, start: Timestamp, gpus: &[u64]) -> PlanGroup {
    let slices = gpus.iter().copied().map(gpu).collect();
    let (not_before, cause) = (Timestamp::ZERO, PromiseCause::Queued);
    PlanGroup::Promise { request, start, not_before, slices, cause }
}

fn with(group: PlanGroup, cause: PromiseCause) -> PlanGroup {
    match group {
        PlanGroup::Promise { request, start, not_before, slices, .. } => {
            PlanGroup::Promise { request, start, not_before, slices, cause }
        }
        other => other,
    }
}

fn told(world: &World, request: RequestId) -> Explanation {
    explain(StateView { state: &world.state, now: world.now }, request).expect("it waits")
}

#[track_caller]
fn refused(world: &mut World, group: PlanGroup, rejection: Rejection) {
    assert_eq!(world.commit(group), GroupOutcome::Refused { rejection });
}

#[test]
fn a_promise_names_slices_that_are_there_and_could_serve_the_request() {
    let (mut world, request) = full();
    let at = world.now.after(HOUR);
    refused(&mut world, promise(request, at, &[0, 1, 6]), Rejection::PlanCount);
    refused(&mut world, promise(request, at, &[0, 1, 6, 6]), Rejection::PlanMalformed);
    refused(&mut world, promise(request, at, &[0, 1, 6, 60]), Rejection::OfferMissing);
    let large = RequestSpec { memory: MiB::new(80_001), ..spec(Class::Batch, 4) };
    let large = world.submit("acme", 3, large);
    refused(&mut world, promise(large, at, &[0, 1, 6, 7]), Rejection::SliceUnfit);
    let held = RequestId::new(1);
    refused(&mut world, promise(held, at, &[0, 1, 2, 3, 6, 7]), Rejection::RequestNotWaiting);
    assert_eq!(world.commit(promise(request, at, &[0, 1, 6, 7])), GroupOutcome::Promised);
}

#[test]
fn a_promise_is_not_in_the_past_and_a_later_one_has_a_reason() {
    let (mut world, request) = full();
    let (now, gpus) = (world.now, [0, 1, 6, 7]);
    let before = Timestamp::new(now.get() - 1);
    refused(&mut world, promise(request, before, &gpus), Rejection::PromiseInvalid);
    let first = with(promise(request, now, &gpus), PromiseCause::Earlier);
    refused(&mut world, first, Rejection::PromiseInvalid);
    let at = now.after(HOUR);
    assert_eq!(world.commit(promise(request, at, &gpus)), GroupOutcome::Promised);
    let later = promise(request, at.after(HOUR), &gpus);
    refused(&mut world, later.clone(), Rejection::PromiseInvalid);
    refused(&mut world, with(later.clone(), PromiseCause::Earlier), Rejection::PromiseInvalid);
    let same = with(promise(request, at, &gpus), PromiseCause::Earlier);
    refused(&mut world, same, Rejection::PromiseInvalid);
    let told = with(later, PromiseCause::OwnerReturned);
    assert_eq!(world.commit(told), GroupOutcome::Promised);
    let earlier = with(promise(request, at, &gpus), PromiseCause::Earlier);
    assert_eq!(world.commit(earlier), GroupOutcome::Promised);
    assert_eq!(world.state.promises()[&request].start(), at);
}

#[test]
fn a_promise_is_withdrawn_with_a_reason_and_only_once() {
    let (mut world, request) = full();
    let withdraw = |cause| PlanGroup::Withdraw { request, cause };
    let lost = withdraw(PromiseCause::CapacityLost);
    refused(&mut world, lost.clone(), Rejection::PromiseInvalid);
    let at = world.now.after(HOUR);
    assert_eq!(world.commit(promise(request, at, &[0, 1, 6, 7])), GroupOutcome::Promised);
    refused(&mut world, withdraw(PromiseCause::Queued), Rejection::PromiseInvalid);
    refused(&mut world, withdraw(PromiseCause::Earlier), Rejection::PromiseInvalid);
    assert_eq!(world.commit(lost.clone()), GroupOutcome::Promised);
    assert!(world.state.promises().is_empty());
    refused(&mut world, lost, Rejection::PromiseInvalid);
}

#[test]
fn a_promise_follows_its_slices_as_they_go_and_come_back() {
    let (mut world, request) = full();
    let at = world.now.after(HOUR);
    world.commit(promise(request, at, &[0, 1, 6, 7]));
    let standing = |world: &World, number| world.state.promises()[&request].slices()[&gpu(number)];
    assert_eq!(standing(&world, 0), Whereabouts::There);
    // The owner takes GPU 6; the lease on the others ends as it should.
    let reason = RescindReason::Owner;
    let (slice, generation, boot) = (gpu(6), 1, Boot::new(1));
    world.must(agent(slice), Command::RescindOffer { slice, generation, boot, reason });
    assert_eq!(standing(&world, 6), Whereabouts::Lost(PromiseCause::OwnerReturned));
    let lease = *world.state.leases().keys().next().unwrap();
    for number in 0..6 {
        let outcome = GuestOutcome::Exited { code: 0 };
        world.stop(lease, gpu(number), Seconds::new(60), outcome);
    }
    assert_eq!(standing(&world, 0), Whereabouts::Missing { since: world.now });
    for number in [0, 6] {
        world.must(agent(gpu(number)), Command::OfferCapacity { offer: offer(gpu(number), 9, 1) });
        assert_eq!(standing(&world, number), Whereabouts::There, "GPU {number} is back");
    }
}

#[test]
fn a_promise_ends_with_the_wait() {
    let (mut world, request) = full();
    let at = world.now.after(HOUR);
    world.commit(promise(request, at, &[0, 1, 6, 7]));
    world.must(user("acme"), Command::CancelRequest { request });
    assert!(world.state.promises().is_empty());
    let small = world.submit("acme", 3, spec(Class::Batch, 2));
    world.commit(promise(small, at, &[0, 1]));
    world.grant(small, &[6, 7]);
    assert!(world.state.promises().is_empty());
}

#[test]
fn a_slice_that_is_not_offered_again_in_time_breaks_the_promise() {
    let (mut world, request) = full();
    assert_eq!(world.plan(), vec![GroupOutcome::Promised]);
    let start = world.state.promises()[&request].start();
    let lease = *world.state.leases().keys().next().unwrap();
    world.later(Seconds::new(60));
    for number in 0..6 {
        let outcome = GuestOutcome::Exited { code: 0 };
        world.stop(lease, gpu(number), Seconds::new(60), outcome);
    }
    assert_eq!(world.plan(), vec![], "its agent has 15 minutes to offer them again");
    world.later(Seconds::new(15 * 60));
    for number in [6, 7] {
        world.must(agent(gpu(number)), Command::OfferCapacity { offer: offer(gpu(number), 9, 1) });
    }
    assert_eq!(world.plan(), vec![]);
    assert_eq!(world.state.promises()[&request].start(), start);
    world.later(Seconds::new(1));
    assert_eq!(world.plan(), vec![GroupOutcome::Promised]);
    assert!(world.state.promises().is_empty(), "no other slice is known, so none is promised");
}

#[test]
fn a_waiting_request_is_told_its_start_and_when_that_may_be_at_the_earliest() {
    let (mut world, request) = full();
    let why = told(&world, request);
    let end = world.now.after(HOUR);
    assert_eq!(why.promised, None, "it is planned in a moment");
    assert_eq!(why.eta, Some(Eta { earliest: end, latest: end }), "the bought end");
    world.plan();
    let why = told(&world, request);
    assert_eq!(why.promised, Some(end));
    let never = RequestSpec { placement: Placement::Node, ..spec(Class::Batch, 9) };
    let never = world.submit("acme", 3, never);
    world.plan();
    let why = told(&world, never);
    assert_eq!((why.promised, why.eta), (None, None), "unknown is not zero");
}

#[test]
fn where_an_end_is_predicted_the_start_may_be_earlier() {
    let mut world = World::with_nodes(1);
    let prediction = Prediction {
        layer: PredictionLayer::History,
        version: 1,
        confidence: Permille::new(900),
        duration_q10: Seconds::new(600),
        duration_q50: Seconds::new(1_800),
        duration_q90: Seconds::new(3_000),
        memory_bound: MiB::new(1),
    };
    let predicted = RequestSpec { prediction: Some(prediction), ..spec(Class::Batch, 8) };
    let first = world.submit("owner", 1, predicted);
    world.activate(first, &[0, 1, 2, 3, 4, 5, 6, 7]);
    let request = world.submit("acme", 2, spec(Class::Batch, 1));
    let why = told(&world, request);
    let (earliest, latest) = (world.now.after(Seconds::new(600)), world.now.after(HOUR));
    assert_eq!(why.eta, Some(Eta { earliest, latest }));
}

#[test]
fn a_new_policy_moves_no_promised_start_and_no_price_of_a_lease() {
    let (mut world, request) = full();
    assert_eq!(world.plan(), vec![GroupOutcome::Promised]);
    let lease: LeaseId = *world.state.leases().keys().next().unwrap();
    let (price, hold) = {
        let terms = world.state.leases()[&lease].terms();
        (terms.price, terms.hold)
    };
    let promise = world.state.promises()[&request].clone();
    let seconds = Seconds::new;
    let base = Policy::default();
    let changed = [
        Policy { start_timeout: seconds(60), ..base.clone() },
        Policy { start_timeout: seconds(3_600), ..base.clone() },
        Policy { pledge: seconds(900), node_refusals: 1, ..base.clone() },
        Policy { half_life: seconds(3_600), entry_penalty: seconds(0), ..base.clone() },
        Policy { owner_grace: seconds(60), end_notice: seconds(60), ..base.clone() },
        Policy { fee: Permille::new(0), ..base.clone() },
        base,
    ];
    for policy in changed {
        world.must(operator(), Command::SetPolicy { policy: policy.clone() });
        let (owner, per_gpu_hour) = (tenant("owner"), MicroCredits::new(9_000_000));
        let (model, tier) = (model(), Tier::Standard);
        world.must(operator(), Command::SetPrice { owner, model, tier, per_gpu_hour });
        world.later(seconds(60));
        assert_eq!(world.plan(), vec![], "{policy:?}");
        assert_eq!(world.state.promises()[&request], promise, "{policy:?}");
        assert_eq!(told(&world, request).promised, Some(promise.start()), "{policy:?}");
        let terms = world.state.leases()[&lease].terms();
        assert_eq!((terms.price, terms.hold), (price, hold), "{policy:?}");
    }
    // Half an hour on six GPUs, at the price of the grant.
    world.later(seconds(1_800));
    for number in 0..6 {
        let outcome = GuestOutcome::Exited { code: 0 };
        world.stop(lease, gpu(number), seconds(1_800), outcome);
    }
    let charged = world.journal.iter().find_map(|record| match &record.event {
        Event::LeaseEnded { settlement, .. } => Some(*settlement),
        _other => None,
    });
    let cost = cost_half_even(price, GpuMilli::new(6_000), seconds(1_800).as_millis());
    assert_eq!(charged.map(|settlement| settlement.cost), cost);
}
