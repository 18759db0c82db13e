//! Offers and agents.

use sublet_protocol::capacity::{Capacity, Isolation, Part, SliceId};
use sublet_protocol::commands::{Actor, Command, GuestOutcome};
use sublet_protocol::events::Event;
use sublet_protocol::ids::{Boot, HostHash};
use sublet_protocol::offers::{IdleFor, OfferTerms, RescindReason};
use sublet_protocol::refusals::Rejection;
use sublet_protocol::requests::Class;
use sublet_protocol::units::{GpuMilli, Seconds};

use crate::state::LeaseStage;
use crate::testing::{World, agent, cluster, gpu, node, offer, operator, spec, user};

fn offered(terms: OfferTerms) -> Command {
    Command::OfferCapacity { offer: terms }
}

fn rescind(slice: SliceId, generation: u64) -> Command {
    let (boot, reason) = (Boot::new(1), RescindReason::NotIdle);
    Command::RescindOffer { slice, generation, boot, reason }
}

fn share(index: u8) -> OfferTerms {
    let whole = offer(gpu(0), 1, 1);
    let slice = SliceId { part: Part::Share { index }, ..whole.slice };
    let capacity =
        Capacity { gpu: GpuMilli::new(250), isolation: Isolation::Mps, ..whole.capacity };
    OfferTerms { slice, capacity, ..whole }
}

#[test]
fn an_agent_offers_its_own_slices_after_it_registered() {
    let mut world = World::new();
    let terms = offer(gpu(0), 1, 1);
    world.refuse(agent(gpu(0)), offered(terms), Rejection::NodeMissing);
    world.register(0, 1);
    world.refuse(agent(gpu(8)), offered(terms), Rejection::SliceForeign);
    world.must(agent(gpu(0)), offered(terms));
    assert_eq!(world.must(agent(gpu(0)), offered(terms)), vec![], "again is not an error");
}

#[test]
fn an_offer_of_an_earlier_start_or_generation_is_refused() {
    let mut world = World::new();
    world.register(0, 2);
    world.refuse(agent(gpu(0)), offered(offer(gpu(0), 1, 1)), Rejection::BootOld);
    world.must(agent(gpu(0)), offered(offer(gpu(0), 5, 2)));
    world.refuse(agent(gpu(0)), offered(offer(gpu(0), 4, 2)), Rejection::OfferOld);
    world.must(agent(gpu(0)), offered(offer(gpu(0), 6, 2)));
}

#[test]
fn a_rescind_that_overtakes_its_offer_keeps_it_out() {
    let mut world = World::new();
    world.register(0, 1);
    world.must(agent(gpu(0)), rescind(gpu(0), 3));
    world.refuse(agent(gpu(0)), offered(offer(gpu(0), 3, 1)), Rejection::OfferOld);
    world.must(agent(gpu(0)), offered(offer(gpu(0), 4, 1)));
    world.refuse(agent(gpu(0)), rescind(gpu(0), 3), Rejection::OfferOld);
    world.must(agent(gpu(0)), rescind(gpu(0), 4));
    assert!(world.state.offers().is_empty());
}

#[test]
fn an_offer_ends_when_nobody_repeats_it() {
    let mut world = World::with_nodes(1);
    world.later(Seconds::new(899));
    world.must(Actor::Leader, Command::Sweep);
    assert_eq!(world.state.offers().len(), 8);
    world.must(agent(gpu(0)), offered(offer(gpu(0), 2, 1)));
    world.later(Seconds::new(1));
    world.must(Actor::Leader, Command::Sweep);
    assert_eq!(world.state.offers().len(), 1, "only the repeated one stands");
}

#[test]
fn a_leased_slice_cannot_be_offered() {
    let mut world = World::with_nodes(1);
    let request = world.submit("acme", 1, spec(Class::Batch, 1));
    world.activate(request, &[0]);
    world.refuse(agent(gpu(0)), offered(offer(gpu(0), 2, 1)), Rejection::SliceLeased);
}

#[test]
fn parts_of_one_gpu_do_not_overlap_and_have_one_isolation() {
    let mut world = World::new();
    world.register(0, 1);
    world.must(agent(gpu(0)), offered(share(0)));
    world.must(agent(gpu(0)), offered(share(1)));
    world.refuse(agent(gpu(0)), offered(offer(gpu(0), 1, 1)), Rejection::OfferOverlaps);
    let mixed = share(2);
    let capacity = Capacity { isolation: Isolation::TimeSlice, ..mixed.capacity };
    let mixed = OfferTerms { capacity, ..mixed };
    world.refuse(agent(gpu(0)), offered(mixed), Rejection::OfferOverlaps);
}

#[test]
fn an_offer_whose_numbers_make_no_sense_is_refused() {
    let mut world = World::new();
    world.register(0, 1);
    let good = offer(gpu(0), 1, 1);
    let (p10, p50) = (Seconds::new(9), Seconds::new(5));
    let bad = [
        OfferTerms { ttl: Seconds::ZERO, ..good },
        OfferTerms { idle_for: IdleFor { p10, p50, p90: p50 }, ..good },
        OfferTerms { capacity: Capacity { gpu: GpuMilli::new(999), ..good.capacity }, ..good },
        OfferTerms { capacity: Capacity { isolation: Isolation::Mps, ..good.capacity }, ..good },
    ];
    for terms in bad {
        world.refuse(agent(gpu(0)), offered(terms), Rejection::OfferInvalid);
    }
    world.must(agent(gpu(0)), offered(good));
}

#[test]
fn a_cluster_offers_at_most_its_inventory() {
    let mut world = World::new();
    for number in 0..9 {
        world.register(number, 1);
    }
    for slice in (0..64).map(gpu) {
        world.must(agent(slice), offered(offer(slice, 1, 1)));
    }
    world.refuse(agent(gpu(64)), offered(offer(gpu(64), 1, 1)), Rejection::OffersExhausted);
}

/// Case D11: neither of two machines with one node id is trusted until the known one starts anew.
#[test]
fn two_machines_with_one_node_id_are_both_fenced_until_the_known_one_starts_anew() {
    let mut world = World::with_nodes(1);
    let request = world.submit("acme", 1, spec(Class::Batch, 1));
    let lease = world.activate(request, &[0]);
    let (cluster, node) = (cluster(), node(0));
    let register = |boot, host| Command::RegisterNode {
        cluster,
        node,
        boot: Boot::new(boot),
        host: HostHash([host; 16]),
    };
    let actor = Actor::Agent { cluster, node };
    let events = world.must(actor.clone(), register(9, 7));
    assert!(matches!(events.last(), Some(Event::NodeFenced { .. })), "{events:?}");
    assert!(world.state.offers().is_empty());
    assert!(matches!(world.stage(lease), Some(LeaseStage::Ending { .. })));
    world.refuse(actor.clone(), register(9, 7), Rejection::HostConflict);
    world.refuse(agent(gpu(1)), offered(offer(gpu(1), 2, 1)), Rejection::HostConflict);
    world.refuse(agent(gpu(1)), offered(offer(gpu(1), 2, 9)), Rejection::BootOld);
    world.refuse(actor.clone(), register(0, 0), Rejection::BootOld);
    assert_eq!(world.must(actor, register(1, 0)), vec![], "not anew: still fenced");
    world.register(0, 2);
    assert_eq!(world.stage(lease), None);
    world.must(agent(gpu(1)), offered(offer(gpu(1), 1, 2)));
}

/// A machine that was replaced, or the wrong one of two that said hello first, keeps its id for ever
/// unless an operator takes it away.
#[test]
fn a_node_that_is_silent_or_fenced_is_removed_once_its_leases_have_ended() {
    let mut world = World::with_nodes(1);
    let request = world.submit("acme", 1, spec(Class::Batch, 1));
    let lease = world.activate(request, &[0]);
    let (cluster, node) = (cluster(), node(0));
    let actor = Actor::Agent { cluster, node };
    let register = |boot, host| Command::RegisterNode {
        cluster,
        node,
        boot: Boot::new(boot),
        host: HostHash([host; 16]),
    };
    let remove = Command::RemoveNode { cluster, node };
    for other in [actor.clone(), user("acme"), user("owner"), Actor::Leader] {
        world.refuse(other, remove.clone(), Rejection::NotAllowed);
    }
    world.refuse(operator(), remove.clone(), Rejection::NodeHeard);
    world.must(actor.clone(), register(1, 7));
    world.refuse(operator(), remove.clone(), Rejection::NodeInUse);
    world.stop(lease, gpu(0), Seconds::ZERO, GuestOutcome::Stopped);
    let devices = world.state.clusters()[&cluster].devices().len();
    let events = world.must(operator(), remove.clone());
    assert_eq!(events.last(), Some(&Event::NodeRemoved { cluster, node }));
    assert!(!world.state.nodes().contains_key(&(cluster, node)));
    assert!(world.state.clusters()[&cluster].devices().len() < devices, "room for another's");
    world.refuse(operator(), remove.clone(), Rejection::NodeMissing);
    // The right machine begins anew, and may offer.
    world.must(actor.clone(), register(1, 7));
    world.must(agent(gpu(1)), offered(offer(gpu(1), 1, 1)));
    // It falls silent: its offers go with it.
    let silent = Command::DeclareSilent { cluster, node, boot: Boot::new(1) };
    world.must(Actor::Leader, silent);
    world.must(operator(), remove);
    assert!(world.state.offers().is_empty());
}

#[test]
fn the_feature_level_is_raised_by_an_operator_and_never_goes_back() {
    let mut world = World::with_nodes(1);
    assert_eq!(world.state.feature_level(), 1);
    let raise = |level| Command::RaiseFeatureLevel { level };
    for other in [agent(gpu(0)), user("acme"), Actor::Leader] {
        world.refuse(other, raise(2), Rejection::NotAllowed);
    }
    assert_eq!(world.must(operator(), raise(1)), vec![], "it is there already");
    assert_eq!(world.must(operator(), raise(3)), vec![Event::FeatureLevelRaised { level: 3 }]);
    assert_eq!(world.must(operator(), raise(2)), vec![]);
    assert_eq!(world.state.feature_level(), 3);
}

#[test]
fn a_broker_is_enlisted_by_the_leader_once_and_for_ever() {
    let mut world = World::new();
    let enlist = |broker| Command::EnlistBroker { broker };
    for other in [agent(gpu(0)), user("acme"), operator()] {
        world.refuse(other, enlist(4), Rejection::NotAllowed);
    }
    assert_eq!(world.must(Actor::Leader, enlist(4)), vec![Event::BrokerEnlisted { broker: 4 }]);
    assert_eq!(world.must(Actor::Leader, enlist(4)), vec![]);
    world.must(Actor::Leader, enlist(2));
    assert_eq!(world.state.brokers().iter().copied().collect::<Vec<_>>(), [2, 4]);
}
