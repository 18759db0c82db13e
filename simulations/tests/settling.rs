//! Row P4: preemption settles. From whatever state, with nothing coming from outside, plans and the
//! agents that carry them out reach an end; no state is ever met again.
//!
//! The real rules and the real matcher are run, with everything that slows a loop down taken away: no
//! minimum run time, no pause, no most per request, no budget, and no time passes. What is left is
//! the order of tiers, the order of the queue and the pledges. States are compared without counters:
//! who waits, for what is kept what, who runs where, what is free.
//!
//! Every mix of four requests of three tenants on three GPUs, in every order in which they can come and
//! the agents can answer, flat and in a tree; in groups that take back what they have lent, a sample of
//! the mixes, since there are eighteen times as many, and where quota is scarcer than GPUs as well;
//! larger cells at random.
//!
//! A build with optimisation looks at all mixes, and at every 41st where something is taken back or quota
//! is scarce; one without at every 97th, 2,999th and 1,499th. `SUBLET_SETTLE_STEP=1` looks at all of the latter, too;
//! `SUBLET_SETTLE=N` walks at random through N states.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

use std::collections::{BTreeMap, BTreeSet};

use sublet_core::{LeaseStage, RequestStage, State, StateView, apply, invariants, matching};
use sublet_protocol::capacity::{Capacity, Hardware, Isolation, Part, SliceId};
use sublet_protocol::commands::{Actor, Command, GuestOutcome, Outcome, PlanGroup, Stamped};
use sublet_protocol::ids::{
    Boot, CellId, ClusterId, CommandId, DeviceId, GpuModel, HostHash, KeyId, LeaseId, NodeId,
    Project, Region, RequestId, TenantId,
};
use sublet_protocol::money::MicroCredits;
use sublet_protocol::offers::{Division, HostRoom, IdleFor, OfferTerms};
use sublet_protocol::policy::Policy;
use sublet_protocol::preemption::{ByTier, PreemptionPolicy};
use sublet_protocol::quotas::{Quota, Reclaim, TenantTerms};
use sublet_protocol::requests::{Capability, Class, OnRecall, Placement, RequestSpec, Tier};
use sublet_protocol::units::{CpuMilli, GpuMilli, MiB, Millis, Seconds, Timestamp};

const NOW: Timestamp = Timestamp::new(1_700_000_000_000);
const TERM: u64 = 1;
const CLASSES: [Class; 3] = [Class::Experiment, Class::Batch, Class::Latency];

/// How the tenants stand to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Org {
    /// Each with more quota than there is.
    Flat,
    /// Each with these thirds of the GPUs as its quota, and no more.
    Alone([u64; 3]),
    /// In one group, each with these thirds of the GPUs of its own and the right to borrow the rest;
    /// members take back what they have lent as the group says.
    Group([u64; 3], Reclaim),
    /// The same, but the second and the third are in a group within the group.
    Nested([u64; 3], Reclaim),
}

/// One third each, borrowed across a gap of tiers only.
const TREE: Org = Org::Group([1, 1, 1], Reclaim::Never);

/// Groups that take back what they have lent: with what each brings as much as there is, with one
/// that brings nothing, and with more quota than there are GPUs.
const LENDING: [Org; 8] = [
    Org::Group([1, 1, 1], Reclaim::LowerPriority),
    Org::Group([1, 1, 1], Reclaim::Any),
    Org::Group([2, 1, 0], Reclaim::LowerPriority),
    Org::Group([2, 1, 0], Reclaim::Any),
    Org::Group([2, 2, 1], Reclaim::LowerPriority),
    Org::Group([2, 2, 1], Reclaim::Any),
    Org::Nested([1, 1, 1], Reclaim::Any),
    Org::Nested([0, 2, 1], Reclaim::Any),
];

/// Where quota is scarcer than GPUs: requests end leases for quota alone.
const SCARCE: [Org; 7] = [
    Org::Alone([2, 2, 2]),
    Org::Group([1, 1, 0], Reclaim::Never),
    Org::Group([1, 1, 0], Reclaim::LowerPriority),
    Org::Group([1, 1, 0], Reclaim::Any),
    Org::Group([2, 0, 0], Reclaim::Any),
    Org::Nested([1, 1, 0], Reclaim::Any),
    Org::Nested([0, 1, 1], Reclaim::Any),
];

impl Org {
    /// The most GPUs of so many that a tenant may ever hold.
    fn most(self, gpus: u64, tenant: usize) -> u64 {
        match self {
            Org::Flat => gpus * 4,
            Org::Alone(own) => gpus / 3 * own[tenant],
            Org::Group(own, _) | Org::Nested(own, _) => gpus / 3 * own.iter().sum::<u64>(),
        }
    }
}

/// What one request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Ask {
    tenant: usize,
    class: usize,
    priority: u8,
    count: u32,
    is_on_one_node: bool,
}

fn model() -> GpuModel {
    GpuModel::new("a100").unwrap()
}

fn tenant(number: usize) -> TenantId {
    TenantId::new(&format!("t{number}")).unwrap()
}

fn user(number: usize) -> Actor {
    let (subject, key) = ("someone".parse().unwrap(), KeyId::new("k").unwrap());
    Actor::Tenant { tenant: tenant(number), subject, key }
}

fn operator() -> Actor {
    Actor::Operator { subject: "op".parse().unwrap(), key: KeyId::new("k").unwrap() }
}

fn cluster() -> ClusterId {
    ClusterId::new("c").unwrap()
}

/// GPU `number`; three to a node.
fn gpu(number: u64) -> SliceId {
    let node = NodeId::new(&format!("n{}", number / 3)).unwrap();
    let device = DeviceId::new(u128::from(number) + 1);
    SliceId { cluster: cluster(), node, device, part: Part::Whole }
}

fn offer(slice: SliceId, generation: u64) -> OfferTerms {
    let long = Seconds::new(1_000_000);
    OfferTerms {
        slice,
        generation,
        boot: Boot::new(1),
        capacity: Capacity {
            model: model(),
            gpu: GpuMilli::DEVICE,
            memory: MiB::new(80_000),
            cpu: CpuMilli::new(16_000),
            host_memory: MiB::new(128_000),
            isolation: Isolation::Exclusive,
            island: 0,
            hardware: Hardware::UNKNOWN,
        },
        idle_for: IdleFor { p10: long, p50: long, p90: long },
        recall_notice: Seconds::new(120),
        ttl: Seconds::new(900),
        division: Division::NONE,
        host: HostRoom::Slice,
    }
}

fn spec(ask: &Ask) -> RequestSpec {
    RequestSpec {
        project: Project::new("p").unwrap(),
        class: CLASSES[ask.class],
        priority: ask.priority,
        models: vec![],
        count: ask.count,
        gpu: GpuMilli::DEVICE,
        memory: MiB::new(1),
        cpu: CpuMilli::ZERO,
        host_memory: MiB::ZERO,
        placement: if ask.is_on_one_node { Placement::Node } else { Placement::Cluster },
        duration: Seconds::new(3_600),
        max_price: None,
        regions: vec![],
        on_recall: OnRecall::Requeue,
        workload: None,
        prediction: None,
        capability: Capability::ANY,
        deferral: None,
    }
}

/// A cell that nothing slows down.
#[derive(Clone)]
struct Cell {
    state: State,
    commands: u128,
    preemptions: usize,
    /// Preemptions of a lease whose tier is not below that of the request.
    taken_back: usize,
    /// Preemptions for quota alone: the request is kept GPUs that are free.
    for_quota: usize,
}

impl Cell {
    fn new(org: Org, gpus: u64) -> Cell {
        let mut cell = Cell {
            state: State::default(),
            commands: 0,
            preemptions: 0,
            taken_back: 0,
            for_quota: 0,
        };
        let preemption = PreemptionPolicy {
            per_request: u32::MAX,
            pauses: vec![],
            per_cluster_hour: u32::MAX,
            per_cell_hour: u32::MAX,
            ..PreemptionPolicy::default()
        };
        let policy =
            Policy { min_run: ByTier::all(Seconds::ZERO), preemption, ..Policy::default() };
        let name = CellId::new("settle").unwrap();
        cell.must(operator(), Command::CreateCell { cell: name, policy });
        let (group, inner) = (TenantId::new("group").unwrap(), TenantId::new("inner").unwrap());
        cell.must(operator(), Command::CreateTenant { tenant: group, parent: None });
        cell.must(operator(), Command::CreateTenant { tenant: inner, parent: Some(group) });
        if let Org::Group(_, reclaim) | Org::Nested(_, reclaim) = org {
            for tenant in [group, inner] {
                let terms = TenantTerms { reclaim, ..TenantTerms::default() };
                cell.must(operator(), Command::SetTerms { tenant, terms });
            }
        }
        for number in 0..3 {
            let (parent, own) = match org {
                Org::Flat => (None, gpus * 4),
                Org::Alone(own) => (None, gpus / 3 * own[number]),
                Org::Group(own, _) => (Some(group), gpus / 3 * own[number]),
                Org::Nested(own, _) if number == 0 => (Some(group), gpus / 3 * own[0]),
                Org::Nested(own, _) => (Some(inner), gpus / 3 * own[number]),
            };
            let tenant = tenant(number);
            cell.must(operator(), Command::CreateTenant { tenant, parent });
            let quota = Quota::of(GpuMilli::new(own * 1_000));
            cell.must(operator(), Command::SetQuota { tenant, model: model(), quota });
        }
        let (owner, region) = (tenant(0), Region::new("eu").unwrap());
        let create = Command::CreateCluster { cluster: cluster(), owner, region, devices_max: 64 };
        cell.must(operator(), create);
        for tier in [Tier::Opportunistic, Tier::Standard, Tier::Reserved] {
            let per_gpu_hour = MicroCredits::ZERO;
            cell.must(operator(), Command::SetPrice { owner, model: model(), tier, per_gpu_hour });
        }
        for number in 0..gpus {
            let SliceId { cluster, node, .. } = gpu(number);
            let agent = Actor::Agent { cluster, node };
            let (boot, host) = (Boot::new(1), HostHash([0; 16]));
            let hello = Command::RegisterNode { cluster, node, boot, host };
            cell.must(agent.clone(), hello);
            cell.must(agent, Command::OfferCapacity { offer: offer(gpu(number), 1) });
        }
        cell
    }

    fn must(&mut self, actor: Actor, command: Command) {
        self.commands += 1;
        let id = CommandId::new(self.commands);
        let stamped = Stamped { id, actor, now: NOW, term: TERM, key: None, command };
        let outcome = apply(&mut self.state, &stamped, TERM).outcome;
        assert!(matches!(outcome, Outcome::Done { .. }), "{:?}: {outcome:?}", stamped.command);
    }

    fn submit(&mut self, number: usize, ask: &Ask) {
        let request = RequestId::new(u128::try_from(number).unwrap() + 1);
        let submit =
            Command::SubmitRequest { request, tenant: tenant(ask.tenant), spec: spec(ask) };
        self.must(user(ask.tenant), submit);
    }

    /// Commits the matcher's plan; whether it had one.
    fn plan(&mut self) -> bool {
        let groups = matching::plan(StateView { state: &self.state, now: NOW });
        let is_preemption = |group: &&PlanGroup| matches!(group, PlanGroup::Preempt { .. });
        self.preemptions += groups.iter().filter(is_preemption).count();
        self.taken_back += groups.iter().filter(|group| self.takes_back(group)).count();
        let is_for_quota = |group: &&PlanGroup| match group {
            PlanGroup::Preempt { freed, .. } => freed.is_empty(),
            PlanGroup::Grant { .. } | PlanGroup::Promise { .. } | PlanGroup::Withdraw { .. } => {
                false
            }
        };
        self.for_quota += groups.iter().filter(is_for_quota).count();
        let has_plan = !groups.is_empty();
        if has_plan {
            self.must(Actor::Leader, Command::CommitPlan { groups });
        }
        has_plan
    }

    /// Whether a lease is ended for a request of a tier that is not above its own.
    fn takes_back(&self, group: &PlanGroup) -> bool {
        let PlanGroup::Preempt { request, victims, .. } = group else { return false };
        let tier = self.state.requests()[request].spec().class.tier();
        victims.iter().any(|lease| self.state.leases()[lease].terms().tier() >= tier)
    }

    /// The agents of a lease do what is next: they confirm it, or its guests are gone and its GPUs
    /// offered again.
    fn agents(&mut self, lease: LeaseId) {
        let entry = self.state.leases()[&lease].clone();
        let (token, boot) = (entry.terms().token, Boot::new(1));
        for member in &entry.terms().members {
            let slice = member.slice;
            let agent = Actor::Agent { cluster: slice.cluster, node: slice.node };
            if let LeaseStage::Granted { .. } = entry.stage() {
                self.must(agent, Command::ConfirmMember { lease, slice, token, boot });
                continue;
            }
            let (used, outcome) = (Millis::ZERO, GuestOutcome::Stopped);
            let report = Command::ReportStopped { lease, slice, token, boot, used, outcome };
            self.must(agent, report);
        }
        if let LeaseStage::Granted { .. } = entry.stage() {
            return;
        }
        for member in &entry.terms().members {
            let slice = member.slice;
            let agent = Actor::Agent { cluster: slice.cluster, node: slice.node };
            let offer = offer(slice, member.generation + 1);
            self.must(agent, Command::OfferCapacity { offer });
        }
    }

    /// Leases whose agents have something to do.
    fn busy(&self) -> Vec<LeaseId> {
        let busy = self.state.leases().iter().filter(|(_, lease)| match lease.stage() {
            LeaseStage::Granted { .. } | LeaseStage::Ending { .. } => true,
            LeaseStage::Active { .. } => false,
        });
        busy.map(|(id, _)| *id).collect()
    }

    /// The state without its counters.
    fn picture(&self) -> Picture {
        let of = |request: &sublet_core::Request| match request.stage() {
            RequestStage::Waiting => (0, Vec::new()),
            RequestStage::Pledged { slices, .. } => (1, slices.iter().copied().collect()),
            RequestStage::Granted { lease } => {
                let lease = &self.state.leases()[lease];
                let stage = match lease.stage() {
                    LeaseStage::Granted { .. } => 2,
                    LeaseStage::Active { .. } => 3,
                    LeaseStage::Ending { .. } => 4,
                };
                (stage, lease.terms().members.iter().map(|member| member.slice).collect())
            }
        };
        // In words: without the numbers of records, which never come back.
        let promise = |id: &RequestId| {
            let promise = self.state.promises().get(id);
            promise.map(|one| format!("{:?}", (one.start(), one.cause(), one.slices())))
        };
        let requests = self.state.requests().iter();
        requests.map(|(id, request)| (*id, (of(request), promise(id)))).collect()
    }
}

/// Each request's stage, the slices that it holds or that are kept for it, and what start it was
/// promised.
type Picture = BTreeMap<RequestId, ((u8, Vec<SliceId>), Option<String>)>;

/// A picture in a line: each request's stage and the GPUs that it has, or is to have.
fn words(picture: &Picture) -> String {
    let words = picture.iter().map(|(id, ((stage, slices), _))| {
        let stage = ["waits", "pledged", "granted", "runs", "ends"][usize::from(*stage)];
        let gpus: Vec<u128> = slices.iter().map(|slice| slice.device.get()).collect();
        format!("{} {stage} {gpus:?}", id.get())
    });
    words.collect::<Vec<_>>().join(", ")
}

/// Every state of one mix of requests.
struct Search<'a> {
    asks: &'a [Ask],
    /// Pictures with how often each request was granted: what comes after them is known.
    seen: BTreeSet<(Picture, Vec<u32>)>,
    /// The pictures on the way here.
    path: Vec<Picture>,
    preemptions: usize,
    taken_back: usize,
    for_quota: usize,
}

impl Search<'_> {
    fn visit(&mut self, cell: &Cell, arrived: usize) {
        let picture = cell.picture();
        assert!(
            !self.path.contains(&picture),
            "a loop: {:?} comes back to {}, from {:#?}",
            self.asks,
            words(&picture),
            self.path.iter().map(words).collect::<Vec<_>>()
        );
        let attempts = cell.state.requests().values().map(sublet_core::Request::attempts).collect();
        if !self.seen.insert((picture.clone(), attempts)) {
            return;
        }
        self.preemptions = self.preemptions.max(cell.preemptions);
        self.taken_back = self.taken_back.max(cell.taken_back);
        self.for_quota = self.for_quota.max(cell.for_quota);
        self.path.push(picture);
        if let Some(ask) = self.asks.get(arrived) {
            let mut next = cell.clone();
            next.submit(arrived, ask);
            self.visit(&next, arrived + 1);
        }
        for lease in cell.busy() {
            let mut next = cell.clone();
            next.agents(lease);
            self.visit(&next, arrived);
        }
        let mut next = cell.clone();
        if next.plan() {
            self.visit(&next, arrived);
        }
        self.path.pop();
    }
}

/// Every mix of four requests of three tenants, in every order of arrival; of tenants that are alike,
/// those that differ by their names only are one.
///
/// Where something is taken back priorities count, too: instead of the lowest tier there are two
/// priorities of the middle one.
fn mixes(org: Org) -> Vec<[Ask; 4]> {
    let (classes, are_alike) = match org {
        Org::Flat => ([(0, 0), (1, 0), (2, 0)], true),
        Org::Alone(own) | Org::Group(own, Reclaim::Never) => {
            ([(0, 0), (1, 0), (2, 0)], own[0] == own[1] && own[1] == own[2])
        }
        Org::Group(own, _) => ([(1, 0), (1, 1), (2, 0)], own == [1, 1, 1]),
        Org::Nested(..) => ([(1, 0), (1, 1), (2, 0)], false),
    };
    let kinds: Vec<Ask> = (0..3)
        .flat_map(|tenant| classes.map(|class| (tenant, class)))
        .flat_map(|(tenant, class)| (1..3).map(move |count| (tenant, class, count)))
        .map(|(tenant, (class, priority), count)| Ask {
            tenant,
            class,
            priority,
            count,
            is_on_one_node: false,
        })
        .collect();
    let mut mixes = Vec::new();
    for a in &kinds {
        for b in &kinds {
            for c in &kinds {
                for d in &kinds {
                    let mix = [*a, *b, *c, *d];
                    // Tenants are numbered in the order in which they first ask.
                    let mut most = 0;
                    let is_first_name = mix.iter().all(|ask| {
                        let is_next = ask.tenant <= most;
                        most = most.max(ask.tenant + 1);
                        is_next
                    });
                    if is_first_name || !are_alike {
                        mixes.push(mix);
                    }
                }
            }
        }
    }
    mixes
}

#[test]
fn no_mix_of_four_requests_of_three_tenants_ever_loops() {
    let step = if cfg!(debug_assertions) { 97 } else { 1 };
    for org in [Org::Flat, TREE] {
        let Found { most, taken_back, .. } = search(org, step);
        assert!(most >= 2, "something is preempted");
        assert_eq!(taken_back, 0, "equals do not preempt each other");
    }
}

#[test]
fn what_is_taken_back_of_what_was_lent_never_loops_either() {
    let step = std::env::var("SUBLET_SETTLE_STEP").ok().and_then(|text| text.parse().ok());
    let step = step.unwrap_or(if cfg!(debug_assertions) { 2_999 } else { 41 });
    let mut ways = 0;
    for org in LENDING {
        let Found { taken_back, .. } = search(org, step);
        ways += usize::from(taken_back > 0);
    }
    assert!(ways * 2 > LENDING.len(), "something is taken back in {ways} of the groups only");
}

#[test]
fn where_quota_is_scarcer_than_gpus_nothing_loops_either() {
    let step = std::env::var("SUBLET_SETTLE_STEP").ok().and_then(|text| text.parse().ok());
    let step = step.unwrap_or(if cfg!(debug_assertions) { 1_499 } else { 41 });
    for org in SCARCE {
        let Found { for_quota, .. } = search(org, step);
        assert!(for_quota > 0, "{org:?}: nobody is ended for quota");
    }
}

/// The most on one way.
#[derive(Debug, Clone, Copy, Default)]
struct Found {
    /// Preemptions.
    most: usize,
    /// Of these, those by which something was taken back.
    taken_back: usize,
    /// Of these, those for quota alone.
    for_quota: usize,
}

/// Looks at every state of every `step`th mix.
fn search(org: Org, step: usize) -> Found {
    let empty = Cell::new(org, 3);
    let (mut states, mut count, mut found) = (0, 0, Found::default());
    for mix in mixes(org).iter().step_by(step) {
        let (seen, path) = (BTreeSet::new(), Vec::new());
        let mut search =
            Search { asks: mix, seen, path, preemptions: 0, taken_back: 0, for_quota: 0 };
        search.visit(&empty, 0);
        states += search.seen.len();
        found.most = found.most.max(search.preemptions);
        found.taken_back = found.taken_back.max(search.taken_back);
        found.for_quota = found.for_quota.max(search.for_quota);
        count += 1;
    }
    let Found { most, taken_back, for_quota } = found;
    eprintln!(
        "{org:?}: {count} mixes, {states} states, at most {most} preemptions on a way, {taken_back} \
         of them to take back, {for_quota} for quota alone"
    );
    found
}

/// Numbers that look random, the same each time (Marsaglia's xorshift64).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(end).unwrap()).unwrap()
    }
}

/// One way through a larger cell, chosen at random: the cell at its end.
fn walk(numbers: &mut Numbers, org: Org) -> Cell {
    let gpus = 3 * (1 + u64::try_from(numbers.below(3)).unwrap());
    let mut cell = Cell::new(org, gpus);
    let asks: Vec<Ask> = (0..4 + numbers.below(9))
        .map(|_| Ask {
            tenant: numbers.below(3),
            class: numbers.below(3),
            priority: u8::try_from(numbers.below(3)).unwrap(),
            count: u32::try_from(1 + numbers.below(4)).unwrap(),
            is_on_one_node: numbers.below(3) == 0,
        })
        .filter(|ask| u64::from(ask.count) <= org.most(gpus, ask.tenant))
        .collect();
    let mut arrived = 0;
    let mut path = vec![cell.picture()];
    loop {
        let busy = cell.busy();
        // Twice as likely to plan as any other single thing.
        let roll = numbers.below(busy.len() + 3);
        if roll < busy.len() {
            cell.agents(busy[roll]);
        } else if roll == busy.len() && arrived < asks.len() {
            cell.submit(arrived, &asks[arrived]);
            arrived += 1;
            // What comes from outside may bring an old state back.
            path.clear();
        } else if !cell.plan() {
            if busy.is_empty() && arrived == asks.len() {
                break;
            }
            continue;
        }
        let picture = cell.picture();
        assert!(!path.contains(&picture), "a loop: {asks:?} comes back to {picture:?}");
        path.push(picture);
    }
    assert_eq!(invariants::check(&cell.state), vec![]);
    cell
}

#[test]
fn larger_cells_settle_on_random_ways_too() {
    let wanted = std::env::var("SUBLET_SETTLE").ok().and_then(|text| text.parse().ok());
    let wanted: usize = wanted.unwrap_or(if cfg!(debug_assertions) { 5_000 } else { 100_000 });
    let mut numbers = Numbers(0x5e77_1e00_1234_5678);
    let (mut states, mut ways, mut found) = (0, 0, Found::default());
    let orgs: Vec<Org> = [Org::Flat, TREE].into_iter().chain(LENDING).chain(SCARCE).collect();
    while states < wanted {
        let cell = walk(&mut numbers, orgs[ways % orgs.len()]);
        states += usize::try_from(cell.commands).unwrap();
        found.most += cell.preemptions;
        found.taken_back += cell.taken_back;
        found.for_quota += cell.for_quota;
        ways += 1;
    }
    let Found { most: preemptions, taken_back, for_quota } = found;
    eprintln!(
        "{ways} ways, {states} commands, {preemptions} preemptions, {taken_back} to take back, \
         {for_quota} for quota alone"
    );
    assert!(preemptions * 20 > ways, "something is preempted");
    assert!(taken_back * 50 > ways, "something is taken back");
    assert!(for_quota * 100 > ways, "somebody is ended for quota alone");
}
