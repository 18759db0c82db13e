//! What went wrong with the peers when someone was gone or late: jobs that are dead and hold GPUs, a
//! start that comes after its lease, a node that comes back from a reboot. Each is a named scenario
//! of the matching design.

use std::collections::BTreeSet;

use sublet_protocol::agent::{Up, UpEnvelope};
use sublet_protocol::capacity::{Part, SliceId};
use sublet_protocol::commands::{Actor, Command, GroupOutcome, GuestOutcome, PlanGroup};
use sublet_protocol::ids::{Boot, HostHash, LeaseId, RequestId};
use sublet_protocol::leases::EndReason;
use sublet_protocol::offers::{Division, MigMode, SharedBy};
use sublet_protocol::refusals::Rejection;
use sublet_protocol::requests::{Class, RequestSpec};
use sublet_protocol::units::{GpuMilli, MiB, Seconds};

use super::preemption::vacate;
use crate::leader::Leader;
use crate::matching;
use crate::state::{LeaseStage, StateView};
use crate::testing::{World, agent, cluster, gpu, node, offer, spec, user};

fn lease_of(world: &World, request: RequestId) -> Option<LeaseId> {
    let mut leases = world.state.leases().iter();
    leases.find(|(_, lease)| lease.terms().request == request).map(|(id, _)| *id)
}

/// Scenario 7 (kueue#14811): eight GPUs are held for days by a job whose processes are dead.
#[test]
fn scenario_07_gpus_held_by_a_dead_job_are_recalled_as_stalled_and_granted_to_who_waits() {
    let mut world = World::with_nodes(1);
    let days = RequestSpec { duration: Seconds::new(3 * 86_400), ..spec(Class::Experiment, 8) };
    let dead = world.submit("acme", 1, days);
    let lease = world.activate(dead, &[0, 1, 2, 3, 4, 5, 6, 7]);
    let waiting = world.submit("owner", 2, spec(Class::Experiment, 8));
    // Nobody outranks it: without the rule it would hold them for three days.
    world.later(Seconds::new(7_199));
    let unused =
        |seconds| Command::DeclareStalled { lease, unused: Seconds::new(seconds).as_millis() };
    world.refuse(Actor::Leader, unused(7_199), Rejection::LeaseNotStalled);
    world.plan();
    assert_eq!(lease_of(&world, waiting), None);
    world.later(Seconds::new(1));
    world.must(Actor::Leader, unused(7_200));
    assert!(matches!(world.stage(lease), Some(LeaseStage::Active { .. })), "it has notice first");
    world.later(Seconds::new(120));
    world.must(Actor::Leader, unused(7_320));
    let cause = EndReason::Stalled;
    assert!(matches!(world.stage(lease), Some(LeaseStage::Ending { cause: c, .. }) if *c == cause));
    vacate(&mut world, lease);
    world.plan();
    assert!(lease_of(&world, waiting).is_some());
    assert!(!world.state.requests().contains_key(&dead), "it does not come back for more");
}

/// Scenario 9 (HAMi#3096): a lock expires, another takes the place, and the first one's late start
/// would get the other's limits.
#[test]
fn scenario_09_who_starts_after_its_lease_is_over_is_refused_by_its_token() {
    let mut world = World::new();
    world.register(0, 1);
    let mut terms = offer(gpu(0), 1, 1);
    terms.division = Division { mig: MigMode::Off, shared: Some(SharedBy::Mps) };
    world.must(agent(gpu(0)), Command::OfferCapacity { offer: terms });
    let sized = |gpu, memory| RequestSpec {
        gpu: GpuMilli::new(gpu),
        memory: MiB::new(memory),
        ..spec(Class::Experiment, 1)
    };
    let first = world.submit("acme", 1, sized(200, 10_000));
    world.plan();
    let first = lease_of(&world, first).unwrap();
    let slice = world.state.leases()[&first].terms().members[0].slice;
    let old = world.token(first);
    // It is not started in time; its agent is told to stop, and another gets the same share.
    world.later(Seconds::new(300));
    world.must(Actor::Leader, Command::Sweep);
    world.stop(first, slice, Seconds::ZERO, GuestOutcome::NeverStarted);
    terms.generation = 2;
    world.must(agent(gpu(0)), Command::OfferCapacity { offer: terms });
    world.must(user("acme"), Command::CancelRequest { request: RequestId::new(1) });
    let second = world.submit("owner", 2, sized(700, 50_000));
    world.plan();
    let second = lease_of(&world, second).unwrap();
    let member = world.state.leases()[&second].terms().members[0];
    assert_eq!(member.slice, slice, "it is the same share of the same GPU");
    let (boot, token) = (Boot::new(1), world.token(second));
    assert!(old < token);
    for (lease, rejection) in [(first, Rejection::LeaseMissing), (second, Rejection::TokenMismatch)]
    {
        let late = Command::ConfirmMember { lease, slice, token: old, boot };
        world.refuse(agent(slice), late, rejection);
        let outcome = GuestOutcome::Exited { code: 0 };
        let used = Seconds::new(1).as_millis();
        let stopped = Command::ReportStopped { lease, slice, token: old, boot, used, outcome };
        world.refuse(agent(slice), stopped, rejection);
    }
    let now = world.state.leases()[&second].terms().members[0];
    assert_eq!((now, now.capacity.memory), (member, MiB::new(50_000)), "its limits are its own");
    world.must(agent(slice), Command::ConfirmMember { lease: second, slice, token, boot });
}

/// Scenario 15 (gpushare#35): after a reboot grants are made from what was written down before it.
#[test]
fn scenario_15_after_a_reboot_nothing_is_granted_until_the_agent_says_what_is_free() {
    let mut world = World::with_nodes(1);
    let before = world.submit("acme", 1, spec(Class::Batch, 2));
    let lease = world.activate(before, &[0, 1]);
    let waiting = world.submit("owner", 2, spec(Class::Batch, 7));
    world.later(Seconds::new(600));
    let (cluster, node) = (cluster(), node(0));
    let (boot, host) = (Boot::new(2), HostHash([0; 16]));
    let hello = Command::RegisterNode { cluster, node, boot, host };
    world.must(Actor::Agent { cluster, node }, hello);
    assert_eq!(lease_of(&world, before), None, "what ran before the reboot is over: {lease:?}");
    assert_eq!(world.state.offers().len(), 0, "what was offered before it is not believed");
    assert!(grants(&world).is_empty());
    // Late words of the earlier start change nothing.
    let late = Command::OfferCapacity { offer: offer(gpu(3), 9, 1) };
    world.refuse(agent(gpu(3)), late, Rejection::BootOld);
    // Two GPUs are not clean: six are offered, and seven are not granted.
    for slice in (0..6).map(gpu) {
        world.must(agent(slice), Command::OfferCapacity { offer: offer(slice, 1, 2) });
    }
    assert_eq!(grants(&world), BTreeSet::from([before]), "two of those that are there");
    let stale = (0..7).map(|number| world.member(gpu(number))).collect();
    let group = PlanGroup::Grant { request: waiting, members: stale };
    let rejection = Rejection::OfferMissing;
    assert_eq!(world.commit(group), GroupOutcome::Refused { rejection });
}

/// Whom a plan of everything would grant something.
fn grants(world: &World) -> BTreeSet<RequestId> {
    let plan = matching::plan(StateView { state: &world.state, now: world.now });
    let grants = plan.iter().filter(|group| matches!(group, PlanGroup::Grant { .. }));
    grants.map(PlanGroup::request).collect()
}

/// Scenario 15, for a broker that comes back: offers that it remembers are closed until their agent
/// has said what it really has.
#[test]
fn scenario_15_a_new_leader_grants_nothing_on_a_node_that_has_not_reported() {
    let mut world = World::with_nodes(2);
    let (mut leader, _) = Leader::new(1, &world.state, world.now);
    world.submit("acme", 1, spec(Class::Batch, 1));
    let view = StateView { state: &world.state, now: world.now };
    let granted = |leader: &Leader| -> Vec<SliceId> {
        let plan = matching::plan_within(view, &leader.limits(&world.state, world.now));
        let grants = plan.into_iter().filter_map(|group| match group {
            PlanGroup::Grant { members, .. } => Some(members),
            PlanGroup::Preempt { .. } | PlanGroup::Promise { .. } | PlanGroup::Withdraw { .. } => {
                None
            }
        });
        grants.flatten().map(|member| member.slice).collect()
    };
    assert_eq!(granted(&leader), []);
    let offered = (8..16).map(|number| (gpu(number), 1)).collect();
    let body = Up::Inventory { offered, held: vec![] };
    let (host, boot) = (HostHash([0; 16]), Boot::new(1));
    let said = UpEnvelope { cluster: cluster(), node: node(1), host, boot, sequence: 1, body };
    leader.on_up(&world.state, world.now, &said);
    leader.after_barrier(&world.state, world.now, &said);
    let slices = granted(&leader);
    assert!(slices.len() == 1 && slices[0].node == node(1), "{slices:?}");
    assert!(slices.iter().all(|slice| slice.part == Part::Whole));
}
