//! Notices of ends to come, and leases that use nothing.

use sublet_protocol::agent::{Held, Up, UpEnvelope};
use sublet_protocol::capacity::SliceId;
use sublet_protocol::commands::{Actor, Command, GuestOutcome};
use sublet_protocol::events::Event;
use sublet_protocol::ids::{Boot, HostHash, LeaseId};
use sublet_protocol::leases::EndReason;
use sublet_protocol::policy::Policy;
use sublet_protocol::refusals::Rejection;
use sublet_protocol::requests::{Class, RequestSpec};
use sublet_protocol::units::{Millis, Seconds};

use crate::leader::{Effect, Leader};
use crate::state::LeaseStage;
use crate::testing::{World, cluster, gpu, node, operator, spec};

/// Shorter than the default, so that offers last that long.
const LIMIT: Seconds = Seconds::new(1_200);

/// A lease of `count` GPUs of a class, active since now.
fn active(class: Class, count: u32) -> (World, LeaseId) {
    let mut world = World::with_nodes(2);
    let policy = Policy { stalled_after: Some(LIMIT), ..Policy::default() };
    world.must(operator(), Command::SetPolicy { policy });
    let request = world.submit("acme", 1, spec(class, count));
    // One on each node.
    let gpus: Vec<u64> = (0..u64::from(count)).map(|number| number * 8).collect();
    let lease = world.activate(request, &gpus);
    (world, lease)
}

fn declare(lease: LeaseId, unused: Seconds) -> Command {
    Command::DeclareStalled { lease, unused: unused.as_millis() }
}

fn announced(events: &[Event]) -> Vec<(EndReason, u64)> {
    let announced = events.iter().filter_map(|event| match event {
        Event::LeaseEndAnnounced { cause, at, .. } => Some((*cause, at.get())),
        _other => None,
    });
    announced.collect()
}

fn is_ending(world: &World, lease: LeaseId) -> bool {
    matches!(world.stage(lease), Some(LeaseStage::Ending { cause: EndReason::Stalled, .. }))
}

#[test]
fn a_lease_that_uses_nothing_is_announced_and_ends_after_the_notice() {
    let (mut world, lease) = active(Class::Batch, 1);
    world.later(LIMIT);
    let at = world.now.after(Seconds::new(120));
    let told = world.must(Actor::Leader, declare(lease, LIMIT));
    assert_eq!(announced(&told), [(EndReason::Stalled, at.get())]);
    assert_eq!(world.must(Actor::Leader, declare(lease, LIMIT)), [], "it has been told");
    world.later(Seconds::new(120));
    world.must(Actor::Leader, declare(lease, Seconds::new(1_320)));
    let Some(LeaseStage::Ending { cause, deadline, .. }) = world.stage(lease) else {
        panic!("it is ending");
    };
    assert_eq!((*cause, *deadline), (EndReason::Stalled, world.now.after(Seconds::new(120))));
    assert_eq!(world.must(Actor::Leader, declare(lease, LIMIT)), [], "once is enough");
    let events = world.stop(lease, gpu(0), Seconds::new(1_330), GuestOutcome::Stopped);
    let ended = events.iter().find_map(|event| match event {
        Event::LeaseEnded { reason, settlement, .. } => Some((*reason, settlement.billed)),
        _other => None,
    });
    // Measured use, but not for longer than the lease was active in ledger time.
    assert_eq!(ended, Some((EndReason::Stalled, Seconds::new(1_320).as_millis())));
    assert!(world.state.requests().is_empty(), "its tenant caused it: it does not wait again");
}

#[test]
fn only_the_leader_says_so_and_only_of_leases_that_may_not_idle_for_that_long() {
    let (mut world, lease) = active(Class::Batch, 1);
    let rejection = Rejection::LeaseNotStalled;
    world.later(Seconds::new(1_199));
    world.refuse(Actor::Leader, declare(lease, LIMIT), rejection);
    world.later(Seconds::new(1));
    world.refuse(Actor::Leader, declare(lease, Seconds::new(1_199)), rejection);
    world.refuse(operator(), declare(lease, LIMIT), Rejection::NotAllowed);
    world.refuse(Actor::Leader, declare(LeaseId::new(9), LIMIT), Rejection::LeaseMissing);
    assert_eq!(announced(&world.must(Actor::Leader, declare(lease, LIMIT))).len(), 1);

    let (mut world, lease) = active(Class::Latency, 1);
    world.later(Seconds::new(3_000));
    world.refuse(Actor::Leader, declare(lease, Seconds::new(3_000)), rejection);

    let (mut world, lease) = active(Class::Training, 1);
    let policy = Policy { stalled_after: None, ..Policy::default() };
    world.must(operator(), Command::SetPolicy { policy });
    world.later(Seconds::new(3_000));
    world.refuse(Actor::Leader, declare(lease, Seconds::new(3_000)), rejection);
}

#[test]
fn one_that_worked_after_it_was_told_is_told_again() {
    let (mut world, lease) = active(Class::Batch, 1);
    world.later(LIMIT);
    world.must(Actor::Leader, declare(lease, LIMIT));
    // It works for a while, then uses nothing again: the old notice does not count.
    world.later(Seconds::new(1_300));
    let again = world.must(Actor::Leader, declare(lease, LIMIT));
    assert_eq!(announced(&again).len(), 1);
    assert!(!is_ending(&world, lease));
    world.later(Seconds::new(121));
    world.must(Actor::Leader, declare(lease, LIMIT));
    assert!(is_ending(&world, lease));
}

#[test]
fn a_bought_end_is_announced_once_unless_it_comes_sooner_than_the_notice() {
    let mut world = World::with_nodes(1);
    let request = world.submit("acme", 1, spec(Class::Batch, 1));
    let lease = world.activate(request, &[0]);
    let ends_at = world.now.after(Seconds::new(3_600));
    world.later(Seconds::new(3_479));
    assert_eq!(announced(&world.must(Actor::Leader, Command::Sweep)), []);
    world.later(Seconds::new(1));
    let told = announced(&world.must(Actor::Leader, Command::Sweep));
    assert_eq!(told, [(EndReason::Expired, ends_at.get())]);
    assert_eq!(announced(&world.must(Actor::Leader, Command::Sweep)), []);
    world.later(Seconds::new(120));
    world.must(Actor::Leader, Command::Sweep);
    assert!(matches!(
        world.stage(lease),
        Some(LeaseStage::Ending { cause: EndReason::Expired, .. })
    ));

    let mut world = World::with_nodes(1);
    let short = RequestSpec { duration: Seconds::new(120), ..spec(Class::Batch, 1) };
    let request = world.submit("acme", 1, short);
    let lease = world.activate(request, &[0]);
    world.later(Seconds::new(119));
    assert_eq!(announced(&world.must(Actor::Leader, Command::Sweep)), []);
    world.later(Seconds::new(1));
    world.must(Actor::Leader, Command::Sweep);
    assert!(matches!(world.stage(lease), Some(LeaseStage::Ending { .. })));
}

#[test]
fn a_sweep_that_comes_after_the_bought_end_ends_and_announces_nothing() {
    let mut world = World::with_nodes(1);
    let request = world.submit("acme", 1, spec(Class::Batch, 1));
    let lease = world.activate(request, &[0]);
    world.later(Seconds::new(4_000));
    assert_eq!(announced(&world.must(Actor::Leader, Command::Sweep)), []);
    assert!(matches!(world.stage(lease), Some(LeaseStage::Ending { .. })));
}

/// The agent of a node renews: its member has used nothing for so long.
fn renew(world: &World, leader: &mut Leader, lease: LeaseId, (slice, unused): (SliceId, Seconds)) {
    let (token, used) = (world.token(lease), Millis::new(1));
    let unused = unused.as_millis();
    let held = vec![Held { lease, slice, token, used, unused }];
    let renewal = UpEnvelope {
        cluster: cluster(),
        node: slice.node,
        host: HostHash([0; 16]),
        boot: Boot::new(1),
        sequence: 1,
        body: Up::Renew { nonce: Millis::new(1), held },
    };
    leader.on_up(&world.state, world.now, &renewal);
    leader.after_barrier(&world.state, world.now, &renewal);
}

fn declared(world: &World, leader: &mut Leader) -> Vec<Millis> {
    let effects = leader.tick(&world.state, world.now).into_iter();
    let declared = effects.filter_map(|effect| match effect {
        Effect::Propose(Command::DeclareStalled { unused, .. }) => Some(unused),
        _other => None,
    });
    declared.collect()
}

#[test]
fn a_gang_is_stalled_only_when_every_member_says_so_and_has_just_said_it() {
    let (mut world, lease) = active(Class::Batch, 2);
    let (one, other) = (gpu(0), gpu(8));
    assert_ne!(one.node, other.node);
    assert_eq!((one.node, other.node), (node(0), node(1)));
    let (mut leader, _) = Leader::new(1, &world.state, world.now);
    world.later(Seconds::new(1_500));
    let (long, longer) = (Seconds::new(1_200), Seconds::new(1_400));
    renew(&world, &mut leader, lease, (one, longer));
    assert_eq!(declared(&world, &mut leader), [], "of the other nothing is known");
    world.later(Seconds::new(60));
    renew(&world, &mut leader, lease, (one, longer));
    renew(&world, &mut leader, lease, (other, Seconds::new(1_199)));
    assert_eq!(declared(&world, &mut leader), [], "the other worked too lately");
    world.later(Seconds::new(60));
    renew(&world, &mut leader, lease, (other, long));
    assert_eq!(declared(&world, &mut leader), [long.as_millis()]);
    world.later(Seconds::new(60));
    renew(&world, &mut leader, lease, (other, longer));
    assert_eq!(declared(&world, &mut leader), [], "the first has not said anything for too long");
    renew(&world, &mut leader, lease, (one, Seconds::ZERO));
    world.later(Seconds::new(60));
    renew(&world, &mut leader, lease, (other, longer));
    assert_eq!(declared(&world, &mut leader), [], "the first works");
}

#[test]
fn an_announced_lease_is_declared_again_only_when_its_notice_is_over() {
    let (mut world, lease) = active(Class::Batch, 1);
    let (mut leader, _) = Leader::new(1, &world.state, world.now);
    world.later(LIMIT);
    for (unused, expected) in [(1_200, 1), (1_260, 0), (1_320, 1)] {
        renew(&world, &mut leader, lease, (gpu(0), Seconds::new(unused)));
        let commands = declared(&world, &mut leader);
        assert_eq!(commands.len(), expected, "after {unused} s");
        for unused in commands {
            world.must(Actor::Leader, Command::DeclareStalled { lease, unused });
        }
        world.later(Seconds::new(60));
    }
    assert!(is_ending(&world, lease));
}
