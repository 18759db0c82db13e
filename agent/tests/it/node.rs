//! Whole nodes over the in-process link, against a broker of a few lines that grants whatever is
//! offered.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sha2::{Digest, Sha256};
use sublet_agent::clock::{Clock, ScaledClock};
use sublet_agent::driver::Driver;
use sublet_agent::driver::routed::RoutedDriver;
use sublet_agent::driver::sim::{Behaviour, Cpu, SimDriver};
use sublet_agent::durable::MemoryStore;
use sublet_agent::idle::IdleRule;
use sublet_agent::node::{NodeConfig, NodeParts, run_node};
use sublet_agent::probe::sim::{Device, OwnerUse, SimProbe};
use sublet_agent::probe::{self, Percent, Probe, Sample};
use sublet_agent::session::{self, Lendable};
use sublet_protocol::agent::{
    Alive, Down, DownEnvelope, GrantTerms, Reply, Stream, Up, UpEnvelope,
};
use sublet_protocol::capacity::{Capacity, Hardware, Isolation, Origin, Part, SliceId};
use sublet_protocol::codec;
use sublet_protocol::commands::{GuestOutcome, ReclaimCause};
use sublet_protocol::ids::{
    Boot, ClusterId, DeviceId, GpuModel, HostHash, LeaseId, NodeId, TenantId, Token,
};
use sublet_protocol::offers::IdleFor;
use sublet_protocol::requests::WorkloadRef;
use sublet_protocol::transport::in_process::{Hub, link};
use sublet_protocol::transport::{Address, BrokerLink};
use sublet_protocol::units::{CpuMilli, GpuMilli, MiB, Millis, Seconds};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::driver::process_driver;

const SPEED: u32 = 600;
const GRACE: u64 = 30_000;
/// Longer than it takes to the next look, at any speed here.
const STALL: Duration = Duration::from_millis(60);

/// How the broker of a test behaves.
#[derive(Clone)]
struct Manners {
    /// Grants on offers, at most so many.
    grants: u64,
    /// How long a renewal lasts, in ms; long, where a machine that stands still must not end a
    /// lease.
    ttl: u64,
    /// Answers renewals.
    renews: bool,
    /// Drops the first answer to every message it could drop.
    drops_first_answers: bool,
    workload: Option<&'static [u8]>,
    /// Once a guest may start, the owner comes back and the whole process stands still for a while.
    stands_still: Option<Arc<AtomicBool>>,
}

const GOOD: Manners = Manners {
    grants: u64::MAX,
    ttl: 36_000_000,
    renews: true,
    drops_first_answers: false,
    workload: None,
    stands_still: None,
};

/// What arrived at the broker, in order, repetitions left out.
struct Seen {
    messages: mpsc::UnboundedReceiver<(Millis, UpEnvelope)>,
    _broker: JoinHandle<()>,
}

impl Seen {
    /// The next message that `pick` wants.
    async fn next<T>(
        &mut self,
        what: &str,
        pick: impl Fn(&UpEnvelope) -> Option<T>,
    ) -> (Millis, T) {
        let wait = async {
            loop {
                let (at, message) = self.messages.recv().await.unwrap();
                if let Some(picked) = pick(&message) {
                    return (at, picked);
                }
            }
        };
        let found = tokio::time::timeout(Duration::from_secs(20), wait).await;
        found.unwrap_or_else(|_| panic!("never: {what}"))
    }

    async fn stopped(&mut self) -> (Millis, (Millis, GuestOutcome)) {
        let pick = |message: &UpEnvelope| match message.body {
            Up::Stopped { used, outcome, .. } => Some((used, outcome)),
            _ => None,
        };
        self.next("a member stopped", pick).await
    }

    async fn offered(&mut self) -> (Millis, u64) {
        let pick = |message: &UpEnvelope| match &message.body {
            Up::Offer(terms) => Some(terms.generation),
            _ => None,
        };
        self.next("an offer", pick).await
    }
}

struct Broker {
    link: Box<dyn BrokerLink>,
    manners: Manners,
    clock: ScaledClock,
    granted: u64,
    last_sequence: BTreeMap<(Address, u64), ()>,
    seen: mpsc::UnboundedSender<(Millis, UpEnvelope)>,
}

impl Broker {
    async fn serve(mut self) {
        while let Some(incoming) = self.link.next().await {
            let message: UpEnvelope = codec::decode(&incoming.message).unwrap();
            let repeated = (incoming.from, message.sequence);
            let is_new = self.last_sequence.insert(repeated, ()).is_none();
            let is_kept = !matches!(message.body, Up::Renew { .. } | Up::Inventory { .. });
            if is_new && is_kept && self.manners.drops_first_answers {
                continue;
            }
            (incoming.answer)(codec::encode(&Reply::Done).unwrap());
            for body in self.answers(&message) {
                let (cluster, node) = (message.cluster, message.node);
                let envelope = DownEnvelope { cluster, node, term: 1, body };
                let _ = self.link.sender().send(incoming.from, codec::encode(&envelope).unwrap());
            }
            if let (Up::Confirm { .. }, Some(is_back)) = (&message.body, &self.manners.stands_still)
            {
                is_back.store(true, Ordering::SeqCst);
                std::thread::sleep(STALL);
            }
            let _ = self.seen.send((self.clock.now(), message));
        }
    }

    fn answers(&mut self, message: &UpEnvelope) -> Vec<Down> {
        let left = Millis::new(36_000_000);
        match &message.body {
            Up::Offer(terms) if self.granted < self.manners.grants => {
                self.granted += 1;
                vec![Down::Grant(self.grant(terms.slice, message.boot))]
            }
            Up::Confirm { lease, slice, token, nonce } => {
                let activated =
                    Down::Activated { slice: *slice, token: *token, nonce: *nonce, left };
                let workload = self.manners.workload.map(|bytes| Down::Workload {
                    lease: *lease,
                    token: *token,
                    bytes: bytes.to_vec(),
                });
                [Some(activated), workload].into_iter().flatten().collect()
            }
            Up::Renew { nonce, held } if self.manners.renews => {
                let alive =
                    held.iter().map(|one| Alive { slice: one.slice, token: one.token, left });
                vec![Down::Renewed { nonce: *nonce, alive: alive.collect() }]
            }
            Up::Stopped { slice, token, .. } => {
                vec![Down::Ended { slice: *slice, token: *token }]
            }
            _ => vec![],
        }
    }

    fn grant(&self, slice: SliceId, boot: Boot) -> GrantTerms {
        let workload = self.manners.workload.map(|bytes| WorkloadRef {
            sha256: Sha256::digest(bytes).into(),
            size: u32::try_from(bytes.len()).unwrap(),
        });
        GrantTerms {
            lease: LeaseId::new(u128::from(self.granted)),
            slice,
            token: Token { epoch: 0, counter: self.granted },
            boot,
            tenant: TenantId::new("t").unwrap(),
            ttl: Seconds::new(self.manners.ttl / 1_000),
            renew: Seconds::new(30),
            grace: Seconds::new(GRACE / 1_000),
            duration: Seconds::new(36_000),
            workload,
            is_first: true,
            capacity: capacity(),
            origin: Origin::Offered,
        }
    }
}

fn serve(manners: Manners, clock: ScaledClock) -> (Hub, Seen) {
    let (hub, link) = link();
    let (seen, messages) = mpsc::unbounded_channel();
    let last_sequence = BTreeMap::new();
    let broker = Broker { link, manners, clock, granted: 0, last_sequence, seen };
    (hub, Seen { messages, _broker: tokio::spawn(broker.serve()) })
}

fn slice(node: usize) -> SliceId {
    SliceId {
        cluster: ClusterId::new("c").unwrap(),
        node: NodeId::new(&format!("n{node}")).unwrap(),
        device: DeviceId::new(u128::try_from(node).unwrap()),
        part: Part::Whole,
    }
}

fn capacity() -> Capacity {
    Capacity {
        model: GpuModel::new("a100-80gb").unwrap(),
        gpu: GpuMilli::DEVICE,
        memory: MiB::new(80_000),
        cpu: CpuMilli::new(8_000),
        host_memory: MiB::new(64_000),
        isolation: Isolation::Exclusive,
        island: 0,
        hardware: Hardware::UNKNOWN,
    }
}

fn config(node: usize) -> NodeConfig {
    let (slice, capacity) = (slice(node), capacity());
    let hour = Seconds::new(3_600);
    NodeConfig {
        cluster: slice.cluster,
        node: slice.node,
        host: HostHash([1; 16]),
        session: session::Config {
            slices: vec![Lendable { slice, capacity }],
            offer_ttl: Seconds::new(900),
            idle_for: IdleFor { p10: hour, p50: hour, p90: hour },
            recall_notice: Seconds::new(30),
            inventory_every: Millis::new(30_000),
            workload_wait: Millis::new(36_000_000),
        },
        // The machine that runs the tests may stand still for a while.
        idle: IdleRule { gap_max: Millis::new(36_000_000), ..IdleRule::default() },
        sample_every: Millis::new(30_000),
        reply_timeout: Duration::from_secs(5),
        retry_pause: Duration::from_millis(5),
    }
}

fn probe(node: usize, uses: &[(u64, u64)]) -> SimProbe {
    let slice = slice(node);
    let device = Device {
        id: slice.device,
        model: GpuModel::new("a100-80gb").unwrap(),
        memory_total: MiB::new(81_920),
        memory_driver: MiB::new(600),
    };
    let uses = uses.iter().map(|(from, until)| OwnerUse {
        from: Millis::new(*from),
        until: Millis::new(*until),
        device: slice.device,
        utilisation: Percent::saturating(90),
        memory: MiB::new(40_000),
    });
    SimProbe::scheduled(vec![device], uses.collect())
}

fn start(
    node: usize,
    hub: &Hub,
    clock: ScaledClock,
    probe: impl Probe + 'static,
    driver: Box<dyn Driver>,
) -> JoinHandle<()> {
    start_as(config(node), hub, clock, probe, driver)
}

fn start_as(
    config: NodeConfig,
    hub: &Hub,
    clock: ScaledClock,
    probe: impl Probe + 'static,
    driver: Box<dyn Driver>,
) -> JoinHandle<()> {
    let address = Address { cluster: config.cluster, node: config.node };
    let parts = NodeParts {
        link: hub.connect(address),
        probe: Box::new(probe),
        driver,
        durable: Box::new(MemoryStore::default()),
        clock: Arc::new(clock),
    };
    tokio::spawn(async move { run_node(config, parts).await.unwrap() })
}

fn simulated(runs: Option<u64>) -> Box<dyn Driver> {
    Box::new(SimDriver::running(move |_| runs.map(Millis::new)))
}

fn clock() -> ScaledClock {
    ScaledClock::new(NonZeroU32::new(SPEED).unwrap())
}

/// Checks a lease time that the machine's load may only ever make later.
#[track_caller]
fn at_least(found: Millis, expected: u64) {
    assert!(found.get() >= expected, "{found} ms, before {expected} ms");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_device_is_offered_granted_used_and_offered_again() {
    let clock = clock();
    let (hub, mut seen) = serve(Manners { grants: 1, ..GOOD }, clock);
    let node = start(1, &hub, clock, probe(1, &[]), simulated(Some(900_000)));
    let (_, first) = seen.next("a hello", |message| Some(message.body.clone())).await;
    assert_eq!(first, Up::Hello);
    let (at, generation) = seen.offered().await;
    assert_eq!(generation, 1);
    at_least(at, 600_000);
    let (_, (used, outcome)) = seen.stopped().await;
    assert_eq!(outcome, GuestOutcome::Exited { code: 0 });
    at_least(used, 900_000);
    assert_eq!(seen.offered().await.1, 2);
    node.abort();
}

/// A device whose owner is there once it is said so.
struct Returning {
    is_back: Arc<AtomicBool>,
    idle: SimProbe,
    used: SimProbe,
}

impl Probe for Returning {
    fn sample(&mut self, now: Millis) -> Result<Vec<Sample>, probe::Error> {
        match self.is_back.load(Ordering::SeqCst) {
            true => self.used.sample(now),
            false => self.idle.sample(now),
        }
    }

    fn next_change(&mut self, _now: Millis) -> Option<Millis> {
        None
    }
}

/// Which of two things that are due the node does first is drawn, so it is tried more than once.
#[tokio::test]
async fn after_the_process_stood_still_it_looks_before_it_starts_what_waited() {
    for _ in 0..8 {
        let clock = ScaledClock::new(NonZeroU32::new(10 * SPEED).unwrap());
        let is_back = Arc::new(AtomicBool::new(false));
        let stands_still = Some(is_back.clone());
        let (hub, mut seen) = serve(Manners { grants: 1, stands_still, ..GOOD }, clock);
        let (idle, used) = (probe(1, &[]), probe(1, &[(0, u64::MAX)]));
        let probe = Returning { is_back, idle, used };
        let node = start(1, &hub, clock, probe, simulated(None));
        let (_, (used, outcome)) = seen.stopped().await;
        assert_eq!((used, outcome), (Millis::ZERO, GuestOutcome::NeverStarted));
        node.abort();
    }
}

/// For how long the one guest is said to have used nothing once it has run for `after`.
async fn unused_after(seen: &mut Seen, after: u64) -> Millis {
    let pick = |message: &UpEnvelope| match &message.body {
        Up::Renew { held, .. } if held[0].used.get() >= after => Some(held[0].unused),
        _ => None,
    };
    seen.next("a renewal", pick).await.1
}

fn driver_with(cpu: Cpu) -> Box<dyn Driver> {
    let script = move |_: &_| Behaviour { cpu, ..Behaviour::good(None) };
    Box::new(SimDriver::new(Box::new(script)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_that_uses_nothing_is_told_of_and_one_that_computes_is_not() {
    for (cpu, is_told) in [(Cpu::Nothing, true), (Cpu::Unknown, true), (Cpu::Busy, false)] {
        let clock = clock();
        let (hub, mut seen) = serve(Manners { grants: 1, ..GOOD }, clock);
        let node = start(1, &hub, clock, probe(1, &[]), driver_with(cpu));
        let unused = unused_after(&mut seen, 600_000).await;
        assert_eq!(unused > Millis::new(300_000), is_told, "{cpu:?}: {unused} ms");
        node.abort();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_clocks_are_told_before_the_first_offer_in_real_time_whatever_the_speed() {
    let clock = clock();
    let (hub, mut seen) = serve(Manners { grants: 0, ..GOOD }, clock);
    let before = clock.reading();
    let node = start(1, &hub, clock, probe(1, &[]), simulated(None));
    let pick = |message: &UpEnvelope| match message.body {
        Up::Clock(reading) => Some(Some(reading)),
        Up::Offer(_) => Some(None),
        _ => None,
    };
    let told = seen.next("its clocks", pick).await.1.expect("told before the first offer");
    let after = clock.reading();
    assert!(before.wall <= told.wall && told.wall <= after.wall, "{told:?}");
    assert!(before.monotonic <= told.monotonic && told.monotonic <= after.monotonic, "{told:?}");
    seen.next("its clocks again", pick).await;
    node.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_owner_gets_the_device_back_and_it_is_offered_again_long_after() {
    let clock = ScaledClock::new(NonZeroU32::new(3_600).unwrap());
    let (hub, mut seen) = serve(GOOD, clock);
    // The owner comes long before the next regular look at 14,000 s and is seen all the same.
    let (sample_every, from, until) = (7_000_000, 8_000_000, 9_000_000);
    let config = NodeConfig { sample_every: Millis::new(sample_every), ..config(1) };
    let probe = probe(1, &[(from, until)]);
    let node = start_as(config, &hub, clock, probe, simulated(None));
    let pick = |message: &UpEnvelope| match message.body {
        Up::Reclaim { cause, .. } => Some(cause),
        _ => None,
    };
    let (at, cause) = seen.next("a reclaim", pick).await;
    assert_eq!(cause, ReclaimCause::OwnerArrived);
    at_least(at, from);
    assert!(at.get() < 2 * sample_every, "seen at the regular look only");
    let (_, (_, outcome)) = seen.stopped().await;
    assert_eq!(outcome, GuestOutcome::Stopped);
    let (at, _) = seen.offered().await;
    at_least(at, until + 600_000);
    node.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_renewals_the_guest_ends_before_its_life_does() {
    let clock = clock();
    let ttl = 300_000;
    let (hub, mut seen) = serve(Manners { ttl, renews: false, ..GOOD }, clock);
    let node = start(1, &hub, clock, probe(1, &[]), simulated(None));
    let pick = |message: &UpEnvelope| match message.body {
        Up::Confirm { nonce, .. } => Some(nonce),
        _ => None,
    };
    let (_, nonce) = seen.next("a confirmation", pick).await;
    let (at, (used, outcome)) = seen.stopped().await;
    assert_eq!(outcome, GuestOutcome::Stopped);
    at_least(at, nonce.get() + ttl - GRACE);
    assert!(used.get() < 10 * ttl, "{used} ms: it outlived its lease by far");
    node.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_whose_answer_is_lost_is_repeated_under_its_number() {
    let clock = clock();
    let manners = Manners { drops_first_answers: true, grants: 1, ..GOOD };
    let (hub, mut seen) = serve(manners, clock);
    let node = start(1, &hub, clock, probe(1, &[]), simulated(Some(60_000)));
    // The broker notes only what it answers, which is the second sending of each.
    let (_, sequence) = seen.next("a hello", |message| Some(message.sequence)).await;
    assert_eq!(sequence, 1);
    let (_, (_, outcome)) = seen.stopped().await;
    assert_eq!(outcome, GuestOutcome::Exited { code: 0 });
    node.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_workload_really_runs_and_what_it_prints_arrives_before_its_end() {
    let workload = br#"{"argv":["echo","hi"]}"#;
    let clock = clock();
    let (hub, mut seen) = serve(Manners { workload: Some(workload), ..GOOD }, clock);
    let (real, _scratch) = process_driver();
    let driver = RoutedDriver { real, simulated: SimDriver::running(|_| None) };
    let node = start(1, &hub, clock, probe(1, &[]), Box::new(driver));
    let pick = |message: &UpEnvelope| match &message.body {
        Up::Output { stream: Stream::Stdout, offset: 0, bytes, .. } => Some(bytes.clone()),
        Up::Stopped { .. } => panic!("it ended before it printed"),
        _ => None,
    };
    assert_eq!(seen.next("output", pick).await.1, b"hi\n");
    assert_eq!(seen.stopped().await.1.1, GuestOutcome::Exited { code: 0 });
    node.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_nodes_share_a_process_at_high_speed() {
    const NODES: usize = 50;
    let clock = ScaledClock::new(NonZeroU32::new(3_600).unwrap());
    let (hub, mut seen) = serve(GOOD, clock);
    let nodes: Vec<_> = (0..NODES)
        .map(|node| start(node, &hub, clock, probe(node, &[]), simulated(Some(600_000))))
        .collect();
    let mut ended = BTreeMap::new();
    while ended.len() < NODES {
        let pick = |message: &UpEnvelope| match message.body {
            Up::Stopped { .. } => Some(message.node),
            _ => None,
        };
        let (_, node) = seen.next("every node ends a lease", pick).await;
        *ended.entry(node).or_insert(0) += 1;
    }
    for node in nodes {
        assert!(!node.is_finished());
        node.abort();
    }
}
