//! The life of a lease from the offer to the charge.

use std::path::Path;
use std::time::Duration;

use sha2::{Digest, Sha256};
use sublet_broker::Cell;
use sublet_broker::clock::{ClockKind, ManualClock};
use sublet_broker::relay::WorkloadError;
use sublet_protocol::agent::{Down, Held, Reply, Stream, Up};
use sublet_protocol::commands::{
    Actor, Command, GuestOutcome, IdempotencyKey, Outcome, ReclaimCause,
};
use sublet_protocol::events::Event;
use sublet_protocol::ids::{LeaseId, RequestId};
use sublet_protocol::leases::EndReason;
use sublet_protocol::money::{Account, MicroCredits};
use sublet_protocol::refusals::Rejection;
use sublet_protocol::requests::{Class, RequestSpec, WorkloadRef};
use sublet_protocol::transport::in_process::{self, Hub};
use sublet_protocol::units::{Millis, Timestamp};

use crate::agent::Agent;
use crate::world::{address, config, gpu, key, must, offer, set_up, spec, submit, tenant, user};

const WORKLOAD: &[u8] = b"{\"argv\":[\"echo\",\"hi\"]}";

struct World {
    cell: Cell,
    hub: Hub,
    clock: ManualClock,
}

async fn world() -> World {
    world_in(None).await
}

async fn world_in(dir: Option<&Path>) -> World {
    let clock = ManualClock::new(Timestamp::new(1_700_000_000_000));
    let cell = Cell::open(config(dir, ClockKind::Manual(clock.clone()))).await.unwrap();
    let (hub, link) = in_process::link();
    cell.attach(link).await.unwrap();
    set_up(&cell).await;
    World { cell, hub, clock }
}

/// An agent with one GPU on offer.
async fn offering(world: &World) -> Agent {
    let mut agent = Agent::connect(&world.hub, address(0), 1);
    agent.must(Up::Hello).await;
    let slice = gpu(agent.address, 0);
    agent.must(Up::Offer(offer(slice, 1, agent.boot))).await;
    agent
}

async fn granted(agent: &mut Agent) -> Held {
    agent
        .expect(|message| match message {
            Down::Grant(grant) => {
                let (lease, slice, token) = (grant.lease, grant.slice, grant.token);
                Some(Held { lease, slice, token, used: Millis::ZERO, unused: Millis::ZERO })
            }
            _other => None,
        })
        .await
}

async fn activated(agent: &mut Agent, held: &Held) {
    let Held { lease, slice, token, .. } = *held;
    agent.must(Up::Confirm { lease, slice, token, nonce: Millis::new(17) }).await;
    let nonce = agent
        .expect(|message| match message {
            Down::Activated { nonce, .. } => Some(*nonce),
            _other => None,
        })
        .await;
    assert_eq!(nonce, Millis::new(17));
}

/// Lets time pass, with a renewal each minute that is answered.
async fn renew_for(world: &World, agent: &mut Agent, held: &mut Held, minutes: u64) {
    for minute in 1..=minutes {
        world.clock.advance(Millis::new(60_000));
        held.used = Millis::new(minute * 60_000);
        let nonce = Millis::new(100 + minute);
        agent.must(Up::Renew { nonce, held: vec![*held] }).await;
        let alive = agent
            .expect(|message| match message {
                Down::Renewed { nonce: answered, alive } if *answered == nonce => {
                    Some(alive.clone())
                }
                _other => None,
            })
            .await;
        assert_eq!(alive.len(), 1, "minute {minute}");
    }
}

fn declared() -> WorkloadRef {
    let size = u32::try_from(WORKLOAD.len()).unwrap();
    WorkloadRef { sha256: Sha256::digest(WORKLOAD).into(), size }
}

async fn ended(cell: &Cell, lease: LeaseId) -> (EndReason, MicroCredits) {
    let mut records = cell.subscribe(0);
    let found = async {
        loop {
            let record = records.next().await.unwrap().unwrap();
            match &record.event {
                Event::LeaseEnded { lease: id, reason, settlement, .. } if *id == lease => {
                    return (*reason, settlement.cost);
                }
                _other => {}
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), found).await.expect("the lease never ended")
}

/// What must hold of every cell at the end of a test.
async fn is_sound(cell: &Cell) {
    let counters = cell.counters();
    assert_eq!(cell.violations(), Vec::<String>::new());
    assert_eq!(counters.invariant_violations, 0);
    assert!(counters.invariants_checked >= counters.commands && counters.commands > 0);
    let report = cell.verify().await.unwrap();
    assert!(report.is_good(), "{:?}", report.first_bad);
    assert_eq!(report.accounts, cell.accounts());
    // The leader may have sealed the tail since: the root is compared at the size that was verified.
    let root = cell.journal(|journal| journal.root_at(report.records)).unwrap();
    assert_eq!(root, Some(report.root));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_lives_from_its_offer_to_its_charge() {
    let world = world().await;
    let mut agent = offering(&world).await;
    let (cell, request) = (&world.cell, RequestId::new(1));
    must(cell, user("acme"), submit(1, Some(declared()))).await;

    let mut held = granted(&mut agent).await;
    let lease = held.lease;
    assert_eq!(
        cell.put_workload(lease, b"other".to_vec()),
        Err(WorkloadError::Size { declared: declared().size, given: 5 })
    );
    assert_eq!(cell.put_workload(LeaseId::new(9), vec![]), Err(WorkloadError::LeaseMissing));
    cell.put_workload(lease, WORKLOAD.to_vec()).unwrap();
    let bytes = agent
        .expect(|message| match message {
            Down::Workload { bytes, .. } => Some(bytes.clone()),
            _other => None,
        })
        .await;
    assert_eq!(bytes, WORKLOAD);
    activated(&mut agent, &held).await;

    let mut output = cell.output(lease, 0).unwrap();
    let (token, stream) = (held.token, Stream::Stdout);
    agent.must(Up::Output { lease, token, stream, offset: 0, bytes: b"hi\n".to_vec() }).await;
    assert_eq!(&*output.next().await.unwrap().bytes, b"hi\n");

    renew_for(&world, &mut agent, &mut held, 30).await;
    let Held { slice, used, .. } = held;
    let outcome = GuestOutcome::Exited { code: 0 };
    agent.must(Up::Stopped { lease, slice, token, used, outcome }).await;
    assert_eq!(ended(cell, lease).await, (EndReason::Completed, MicroCredits::new(1_000_000)));
    agent.expect(|message| matches!(message, Down::Ended { .. }).then_some(())).await;
    assert_eq!(output.next().await, None);

    let net = |account| cell.accounts().balance(account).net_debit().unwrap();
    assert_eq!(net(Account::Expense(tenant("acme"))), MicroCredits::new(1_000_000));
    assert_eq!(net(Account::Hold(tenant("acme"))), MicroCredits::ZERO);
    assert_eq!(net(Account::Revenue(tenant("owner"))), MicroCredits::new(-950_000));
    assert_eq!(net(Account::Fee), MicroCredits::new(-50_000));
    let counters = cell.counters();
    assert_eq!((counters.leases_granted, counters.leases_ended_total()), (1, 1));
    assert_eq!(counters.gpu_millis_lent, 30 * 60_000);
    let names = |records: Vec<sublet_protocol::records::Record>| {
        records.iter().map(|record| record.event.name()).collect::<Vec<_>>()
    };
    let of_lease = names(cell.records_of_lease(lease).unwrap());
    assert_eq!(of_lease.first(), Some(&"lease_granted"));
    assert_eq!(of_lease.last(), Some(&"lease_ended"));
    let of_request = names(cell.records_of_request(request).unwrap());
    assert_eq!(of_request.first(), Some(&"request_submitted"));
    is_sound(cell).await;
    world.cell.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_takes_the_gpu_back_and_the_request_waits_again() {
    let world = world().await;
    let mut agent = offering(&world).await;
    must(&world.cell, user("acme"), submit(1, None)).await;
    let held = granted(&mut agent).await;
    activated(&mut agent, &held).await;
    let Held { lease, slice, token, .. } = held;
    let cause = ReclaimCause::OwnerArrived;
    agent.must(Up::Reclaim { slice, token, cause }).await;
    agent.expect(|message| matches!(message, Down::Stop { .. }).then_some(())).await;
    let (used, outcome) = (Millis::new(5), GuestOutcome::Stopped);
    agent.must(Up::Stopped { lease, slice, token, used, outcome }).await;
    assert_eq!(ended(&world.cell, lease).await.0, EndReason::Reclaimed);
    let waits = world.cell.read(|state| state.waiting().len()).await.unwrap();
    assert_eq!(waits, 1);
    let why = world.cell.explain(RequestId::new(1)).await.unwrap();
    assert!(why.is_some());
    assert_eq!(world.cell.counters().owner_reclaims, 1);
    is_sound(&world.cell).await;
    world.cell.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_higher_tier_takes_the_gpu_of_a_lower_one_and_gets_it() {
    let world = world().await;
    let cell = &world.cell;
    let mut agent = offering(&world).await;
    let of_class = |number, class| {
        let spec = RequestSpec { class, ..spec(None) };
        let (request, tenant) = (RequestId::new(number), tenant("acme"));
        Command::SubmitRequest { request, tenant, spec }
    };
    must(cell, user("acme"), of_class(1, Class::Experiment)).await;
    let mut held = granted(&mut agent).await;
    activated(&mut agent, &held).await;
    renew_for(&world, &mut agent, &mut held, 11).await;
    must(cell, user("acme"), of_class(2, Class::Latency)).await;
    let cause = agent
        .expect(|message| match message {
            Down::Stop { cause, .. } => Some(*cause),
            _other => None,
        })
        .await;
    assert_eq!(cause, EndReason::Preempted);
    let Held { lease, slice, token, used, .. } = held;
    let outcome = GuestOutcome::Stopped;
    agent.must(Up::Stopped { lease, slice, token, used, outcome }).await;
    agent.must(Up::Offer(offer(slice, 2, agent.boot))).await;
    let next = granted(&mut agent).await;
    let request = cell.read(|state| state.leases()[&next.lease].terms().request).await.unwrap();
    assert_eq!(request, RequestId::new(2));
    assert_eq!(cell.counters().preemptions, 1);
    is_sound(cell).await;
    world.cell.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_agents_lease_ends_after_the_agents_own_deadline() {
    let world = world().await;
    let mut agent = offering(&world).await;
    must(&world.cell, user("acme"), submit(1, None)).await;
    let mut held = granted(&mut agent).await;
    activated(&mut agent, &held).await;
    renew_for(&world, &mut agent, &mut held, 2).await;
    for _ in 0..35 {
        world.clock.advance(Millis::new(10_000));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let (reason, cost) = ended(&world.cell, held.lease).await;
    // What was measured before the silence, and not the time until it was noticed.
    assert_eq!((reason, cost), (EndReason::AgentLost, MicroCredits::new(66_667)));
    is_sound(&world.cell).await;
    world.cell.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_lives_on_over_a_restart_of_the_broker() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = world_in(Some(dir.path())).await;
    let mut agent = offering(&world).await;
    must(&world.cell, user("acme"), submit(1, None)).await;
    let mut held = granted(&mut agent).await;
    activated(&mut agent, &held).await;
    world.cell.shutdown().await;

    let clock = ClockKind::Manual(world.clock.clone());
    world.cell = Cell::open(config(Some(dir.path()), clock)).await.unwrap();
    let (hub, link) = in_process::link();
    let mut agent = agent.reconnect(&hub);
    world.cell.attach(link).await.unwrap();
    agent.expect(|message| matches!(message, Down::Resync).then_some(())).await;
    renew_for(&world, &mut agent, &mut held, 1).await;
    let Held { lease, slice, token, used, .. } = held;
    let outcome = GuestOutcome::Exited { code: 0 };
    agent.must(Up::Stopped { lease, slice, token, used, outcome }).await;
    assert_eq!(ended(&world.cell, lease).await.0, EndReason::Completed);
    is_sound(&world.cell).await;
    world.cell.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_restart_a_slice_is_granted_only_once_its_agent_has_spoken() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = world_in(Some(dir.path())).await;
    let agent = offering(&world).await;
    world.cell.shutdown().await;

    let clock = ClockKind::Manual(world.clock.clone());
    world.cell = Cell::open(config(Some(dir.path()), clock)).await.unwrap();
    let (hub, link) = in_process::link();
    let mut agent = agent.reconnect(&hub);
    world.cell.attach(link).await.unwrap();
    must(&world.cell, user("acme"), submit(1, None)).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(world.cell.read_stale(|state| state.leases().len()), 0);
    let offered = vec![(gpu(agent.address, 0), 1)];
    agent.must(Up::Inventory { offered, held: vec![] }).await;
    granted(&mut agent).await;
    world.cell.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_ends_when_its_bought_time_is_over() {
    let world = world().await;
    let mut agent = offering(&world).await;
    must(&world.cell, user("acme"), submit(1, None)).await;
    let mut held = granted(&mut agent).await;
    activated(&mut agent, &held).await;
    for minute in 1..=60 {
        world.clock.advance(Millis::new(60_000));
        held.used = Millis::new(minute * 60_000);
        agent.must(Up::Renew { nonce: Millis::new(minute), held: vec![held] }).await;
    }
    let cause = agent
        .expect(|message| match message {
            Down::Stop { cause, .. } => Some(*cause),
            _other => None,
        })
        .await;
    assert_eq!(cause, EndReason::Expired);
    let Held { lease, slice, token, used, .. } = held;
    let outcome = GuestOutcome::Stopped;
    agent.must(Up::Stopped { lease, slice, token, used, outcome }).await;
    let (reason, cost) = ended(&world.cell, lease).await;
    assert_eq!((reason, cost), (EndReason::Expired, MicroCredits::new(2_000_000)));
    is_sound(&world.cell).await;
    world.cell.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_with_its_key_is_answered_from_the_first_time() {
    let world = world().await;
    let cell = &world.cell;
    let propose = |number, key| cell.propose(user("acme"), Some(key), submit(number, None));
    let first = propose(1, key(1)).await.unwrap();
    let Outcome::Done { first, count: 2, .. } = first else { panic!("{first:?}") };
    let before = cell.head().unwrap();
    assert_eq!(propose(1, key(1)).await.unwrap(), Outcome::Repeated { first });
    let other_body = IdempotencyKey { body: [9; 16], ..key(1) };
    let rejection = Rejection::KeyReused;
    assert_eq!(propose(1, other_body).await.unwrap(), Outcome::Refused { rejection });
    assert_eq!(cell.head().unwrap(), before);
    let record = cell.record(first).unwrap().unwrap();
    assert_eq!(record.event.name(), "request_submitted");
    world.cell.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_refused_from_others_and_handled_once_from_its_agent() {
    let world = world().await;
    let mut agent = offering(&world).await;
    let before = world.cell.head().unwrap();
    let slice = gpu(agent.address, 0);
    let (sequence, boot) = (agent.last_sequence(), agent.boot);
    let again = agent.repeat(sequence, Up::Offer(offer(slice, 1, boot))).await;
    assert_eq!(again, Reply::Done, "a repetition gets the first answer");
    let foreign = gpu(address(5), 0);
    let reply = agent.send(Up::Offer(offer(foreign, 1, agent.boot))).await;
    assert!(matches!(reply, Reply::Refused(_)), "{reply:?}");
    let token = sublet_protocol::ids::Token { epoch: 1, counter: 1 };
    let lease = LeaseId::new(4);
    let output = Up::Output { lease, token, stream: Stream::Stdout, offset: 0, bytes: vec![1] };
    assert_eq!(agent.send(output).await, Reply::Done);
    assert!(world.cell.output(lease, 0).is_none());
    assert_eq!(world.cell.head().unwrap(), before);
    world.cell.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_of_the_journal_gets_every_record_once_from_any_index() {
    let world = world().await;
    let cell = &world.cell;
    let seen = |from: u64, until: u64| {
        let mut records = cell.subscribe(from);
        async move {
            let mut indexes = Vec::new();
            while indexes.len() < usize::try_from(until - from).unwrap() {
                indexes.push(records.next().await.unwrap().unwrap().index);
            }
            indexes
        }
    };
    let next = cell.head().unwrap().size;
    let live = tokio::spawn(seen(2, next + 100));
    for number in 0..100 {
        must(cell, user("acme"), submit(number, None)).await;
    }
    let live = tokio::time::timeout(Duration::from_secs(20), live).await.unwrap().unwrap();
    assert_eq!(live, (2..next + 100).collect::<Vec<_>>());
    assert_eq!(seen(next, next + 9).await, (next..next + 9).collect::<Vec<_>>());
    let mut records = cell.subscribe(1_000_000);
    world.cell.shutdown().await;
    assert!(records.next().await.is_none(), "the end of the cell ends it");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_for_the_caller_is_refused_and_leaves_no_trace() {
    let world = world().await;
    let before = world.cell.head().unwrap();
    let rejection = Rejection::NotAllowed;
    for (actor, command) in [
        (user("acme"), Command::Sweep),
        (user("acme"), Command::CreateTenant { tenant: tenant("x"), parent: None }),
        (Actor::Leader, submit(1, None)),
    ] {
        let outcome = world.cell.propose(actor, None, command).await.unwrap();
        assert_eq!(outcome, Outcome::Refused { rejection });
    }
    assert_eq!(world.cell.head().unwrap(), before);
    world.cell.shutdown().await;
}
