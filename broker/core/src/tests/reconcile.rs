//! What broker, agents and GPUs must agree in, and what is told when they do not.

use sublet_protocol::agent::{Held, Up, UpEnvelope};
use sublet_protocol::capacity::SliceId;
use sublet_protocol::commands::GuestOutcome;
use sublet_protocol::ids::{Boot, DeviceId, HostHash, LeaseId, TenantId, Token};
use sublet_protocol::requests::Class;
use sublet_protocol::units::{Millis, Seconds};

use crate::leader::{CYCLE, Leader, Leak, LeakKind};
use crate::testing::{World, cluster, gpu, node, spec};

/// A lease of GPU 0 of two nodes, active, and a leader that has heard nothing yet.
fn leased() -> (World, Leader, LeaseId) {
    let mut world = World::with_nodes(2);
    let request = world.submit("acme", 1, spec(Class::Batch, 1));
    let lease = world.activate(request, &[0]);
    let (leader, _) = Leader::new(1, &world.state, world.now);
    (world, leader, lease)
}

fn held(world: &World, lease: LeaseId, unused: Seconds) -> Held {
    let (token, used, unused) = (world.token(lease), Millis::new(1), unused.as_millis());
    Held { lease, slice: gpu(0), token, used, unused }
}

/// The agent of a node reports everything it holds.
fn report(world: &World, leader: &mut Leader, number: u64, held: Vec<Held>) {
    let body = Up::Inventory { offered: vec![], held };
    let (host, boot) = (HostHash([0; 16]), Boot::new(1));
    let said = UpEnvelope { cluster: cluster(), node: node(number), host, boot, sequence: 1, body };
    leader.after_barrier(&world.state, world.now, &said);
}

fn leaks(world: &World, leader: &Leader) -> Vec<Leak> {
    leader.reconciliation(&world.state, world.now).leaks
}

fn kinds(world: &World, leader: &Leader) -> Vec<LeakKind> {
    leaks(world, leader).iter().map(|leak| leak.kind).collect()
}

fn acme(world: &World, lease: LeaseId) -> (TenantId, TenantId) {
    let terms = world.state.leases()[&lease].terms();
    (terms.tenant, terms.owner)
}

#[test]
fn nothing_leaks_where_all_agree() {
    let (mut world, mut leader, lease) = leased();
    for _ in 0..4 {
        let all = vec![held(&world, lease, Seconds::ZERO)];
        report(&world, &mut leader, 0, all);
        report(&world, &mut leader, 1, vec![]);
        world.later(CYCLE);
    }
    let found = leader.reconciliation(&world.state, world.now);
    assert_eq!((found.reported, found.unknown.len(), found.leaks.len()), (2, 0, 0));
}

#[test]
fn a_gpu_that_is_leased_and_idle_is_told_in_two_cycles_with_who_since_when_and_what_it_costs() {
    let (mut world, mut leader, lease) = leased();
    let from = world.now;
    world.later(Seconds::new(10));
    report(&world, &mut leader, 0, vec![held(&world, lease, Seconds::new(10))]);
    assert_eq!(leaks(&world, &leader), [], "once shows nothing");
    world.later(CYCLE);
    report(&world, &mut leader, 0, vec![held(&world, lease, Seconds::new(40))]);
    let (tenant, owner) = acme(&world, lease);
    let terms = world.state.leases()[&lease].terms();
    let cost = sublet_protocol::money::cost_half_even(terms.price, terms.gpu, Millis::new(40_000));
    assert!(cost.is_some_and(|cost| cost.get() > 0));
    let expected = Leak {
        kind: LeakKind::NotUsed,
        lease,
        slice: gpu(0),
        since: from,
        tenant: Some(tenant),
        owner: Some(owner),
        cost,
    };
    assert_eq!(leaks(&world, &leader), [expected]);
    // It works again.
    world.later(CYCLE);
    report(&world, &mut leader, 0, vec![held(&world, lease, Seconds::ZERO)]);
    assert_eq!(leaks(&world, &leader), []);
}

#[test]
fn one_that_worked_between_two_reports_is_not_told() {
    let (mut world, mut leader, lease) = leased();
    for _ in 0..5 {
        report(&world, &mut leader, 0, vec![held(&world, lease, Seconds::new(9))]);
        world.later(CYCLE);
    }
    assert_eq!(leaks(&world, &leader), []);
}

#[test]
fn reports_in_quick_succession_are_one_cycle() {
    let (mut world, mut leader, lease) = leased();
    world.later(Seconds::new(60));
    for second in 0..5 {
        report(&world, &mut leader, 0, vec![held(&world, lease, Seconds::new(30 + second))]);
        world.later(Seconds::new(1));
    }
    assert_eq!(leaks(&world, &leader), []);
    world.later(Seconds::new(15));
    report(&world, &mut leader, 0, vec![held(&world, lease, Seconds::new(50))]);
    assert_eq!(kinds(&world, &leader), [LeakKind::NotUsed]);
}

#[test]
fn a_lease_that_its_agent_does_not_hold_any_more_is_told() {
    let (mut world, mut leader, lease) = leased();
    let from = world.now;
    report(&world, &mut leader, 0, vec![]);
    assert_eq!(leaks(&world, &leader), []);
    world.later(CYCLE);
    report(&world, &mut leader, 0, vec![]);
    let found = leaks(&world, &leader);
    assert_eq!((found[0].kind, found[0].since, found.len()), (LeakKind::NotHeld, from, 1));
    assert_eq!(found[0].tenant, Some(acme(&world, lease).0));
    // It ends: nothing is left to tell, before the next report.
    world.stop(lease, gpu(0), Seconds::new(30), GuestOutcome::Stopped);
    assert_eq!(leaks(&world, &leader), []);
}

#[test]
fn a_grant_on_its_way_is_no_leak() {
    let mut world = World::with_nodes(1);
    let (mut leader, _) = Leader::new(1, &world.state, world.now);
    let request = world.submit("acme", 1, spec(Class::Batch, 1));
    world.grant(request, &[0]);
    for _ in 0..3 {
        report(&world, &mut leader, 0, vec![]);
        world.later(CYCLE);
    }
    assert_eq!(leaks(&world, &leader), []);
}

#[test]
fn a_guest_that_no_lease_stands_for_is_told_with_whose_gpu_it_is_and_costs_nobody() {
    let (mut world, mut leader, lease) = leased();
    let (_, owner) = acme(&world, lease);
    let mut stray = held(&world, lease, Seconds::ZERO);
    stray.token = Token { counter: stray.token.counter + 7, ..stray.token };
    let all = vec![held(&world, lease, Seconds::ZERO), stray];
    for _ in 0..2 {
        world.later(CYCLE);
        report(&world, &mut leader, 0, all.clone());
    }
    let found = leaks(&world, &leader);
    assert_eq!((found.len(), found[0].kind), (1, LeakKind::NotLeased));
    assert_eq!((found[0].tenant, found[0].owner, found[0].cost), (None, Some(owner), None));
}

#[test]
fn an_agent_that_says_nothing_is_unknown_and_not_sound() {
    let (mut world, mut leader, lease) = leased();
    let unknown = |world: &World, leader: &Leader| {
        leader.reconciliation(&world.state, world.now).unknown.len()
    };
    assert_eq!(unknown(&world, &leader), 2);
    for _ in 0..2 {
        world.later(CYCLE);
        report(&world, &mut leader, 0, vec![]);
    }
    assert_eq!((unknown(&world, &leader), leaks(&world, &leader).len()), (1, 1));
    world.later(Seconds::new(61));
    assert_eq!((unknown(&world, &leader), leaks(&world, &leader).len()), (2, 0));
    let _ = lease;
}

#[test]
fn an_agent_cannot_speak_of_other_nodes_nor_make_the_list_grow() {
    let (mut world, mut leader, lease) = leased();
    let token = world.token(lease);
    let slices = (0..400)
        .map(gpu)
        .chain((0..400).map(|number| SliceId { device: DeviceId::new(9_000 + number), ..gpu(8) }));
    let many = slices.enumerate().map(|(number, slice)| Held {
        lease: LeaseId::new(10_000 + u128::try_from(number).unwrap()),
        slice,
        token,
        used: Millis::ZERO,
        unused: Millis::ZERO,
    });
    let many: Vec<Held> = many.collect();
    for _ in 0..2 {
        world.later(CYCLE);
        report(&world, &mut leader, 1, many.clone());
    }
    let found = leaks(&world, &leader);
    assert!(found.iter().all(|leak| leak.slice.node == node(1)), "{found:?}");
    assert!(!found.is_empty() && found.len() <= 256, "{}", found.len());
}
