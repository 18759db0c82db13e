//! A stream of jobs through the real rules and matcher, in virtual time: whatever is granted starts
//! (at once, or as late as it may), runs, stops and is offered again; a plan is made after each thing
//! that happens. What was promised to a job and when it started is kept.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::collections::{BTreeMap, BTreeSet};

use sublet_core::{State, StateView, apply, invariants, matching};
use sublet_protocol::capacity::{Capacity, Hardware, Isolation, Part, SliceId};
use sublet_protocol::commands::{Actor, Command, GuestOutcome, Outcome, ReclaimCause, Stamped};
use sublet_protocol::events::Event;
use sublet_protocol::ids::{
    Boot, CellId, ClusterId, CommandId, DeviceId, GpuModel, HostHash, KeyId, LeaseId, NodeId,
    Project, Region, RequestId, TenantId,
};
use sublet_protocol::leases::EndReason;
use sublet_protocol::money::MicroCredits;
use sublet_protocol::offers::{Division, HostRoom, IdleFor, OfferTerms};
use sublet_protocol::policy::Policy;
use sublet_protocol::quotas::Quota;
use sublet_protocol::requests::{
    Capability, Class, OnRecall, Placement, PromiseCause, RequestSpec, Tier,
};
use sublet_protocol::units::{CpuMilli, GpuMilli, MiB, Seconds, Timestamp};

/// The instant at which every flow begins.
pub(crate) const START: Timestamp = Timestamp::new(1_772_445_600_000);
const NODE_GPUS: u64 = 8;

/// What someone asks for, and how long it really runs.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub(crate) name: String,
    /// Seconds after the start.
    pub(crate) at: u64,
    pub(crate) tenant: &'static str,
    pub(crate) class: Class,
    pub(crate) gpus: u32,
    pub(crate) placement: Placement,
    pub(crate) bought: u64,
    pub(crate) runs: u64,
    /// How long it takes to start once it is granted.
    pub(crate) slow: u64,
}

/// What is known of a job afterwards; times in seconds after the start.
#[derive(Debug, Clone, Default)]
pub(crate) struct Story {
    /// Every promise: when it was made, for when, and why.
    pub(crate) promises: Vec<(u64, u64, PromiseCause)>,
    pub(crate) withdrawn: Vec<PromiseCause>,
    pub(crate) granted: Option<u64>,
}

#[derive(Clone, Copy)]
enum Happening {
    Arrives(usize),
    Confirms(LeaseId),
    Stops(LeaseId),
    OwnerComes(SliceId),
    OwnerLeaves(SliceId),
}

pub(crate) struct Flow {
    pub(crate) state: State,
    pub(crate) now: Timestamp,
    pub(crate) stories: Vec<Story>,
    jobs: Vec<Job>,
    due: BTreeMap<(Timestamp, u64), Happening>,
    sequence: u64,
    commands: u128,
    generation: u64,
    owned: BTreeSet<SliceId>,
    idle: Seconds,
}

fn tenant(name: &str) -> TenantId {
    TenantId::new(name).unwrap()
}

fn model() -> GpuModel {
    GpuModel::new("a100").unwrap()
}

fn cluster() -> ClusterId {
    ClusterId::new("k").unwrap()
}

/// GPU `number` of the cluster; eight to a node.
pub(crate) fn gpu(number: u64) -> SliceId {
    let node = NodeId::new(&format!("n{}", number / NODE_GPUS)).unwrap();
    let device = DeviceId::new(u128::from(number) + 1);
    SliceId { cluster: cluster(), node, device, part: Part::Whole }
}

impl Flow {
    /// `gpus` idle GPUs, each promised to stay idle for `idle`, and these jobs to come.
    pub(crate) fn new(gpus: u64, idle: Seconds, quota: u64, jobs: Vec<Job>) -> Flow {
        let mut flow = Flow {
            state: State::default(),
            now: START,
            stories: vec![Story::default(); jobs.len()],
            jobs,
            due: BTreeMap::new(),
            sequence: 0,
            commands: 0,
            generation: 0,
            owned: BTreeSet::new(),
            idle,
        };
        flow.found(quota);
        for number in 0..gpus.div_ceil(NODE_GPUS) {
            let SliceId { cluster, node, .. } = gpu(number * NODE_GPUS);
            let (boot, host) = (Boot::new(1), HostHash([0; 16]));
            let hello = Command::RegisterNode { cluster, node, boot, host };
            flow.must(Actor::Agent { cluster, node }, hello);
        }
        for number in 0..gpus {
            flow.offer(gpu(number));
        }
        for (place, job) in flow.jobs.clone().iter().enumerate() {
            flow.schedule(START.after(Seconds::new(job.at)), Happening::Arrives(place));
        }
        flow
    }

    fn found(&mut self, quota: u64) {
        // Offers are not repeated here: they stand.
        let policy = Policy { offer_ttl: Seconds::new(365 * 24 * 3_600), ..Policy::default() };
        let cell = CellId::new("flow").unwrap();
        self.must(operator(), Command::CreateCell { cell, policy });
        for name in ["owner", "big", "a", "b"] {
            let tenant = tenant(name);
            self.must(operator(), Command::CreateTenant { tenant, parent: None });
            let quota = Quota::of(GpuMilli::new(quota * 1_000));
            self.must(operator(), Command::SetQuota { tenant, model: model(), quota });
        }
        let (owner, region) = (tenant("owner"), Region::new("eu").unwrap());
        let create = Command::CreateCluster { cluster: cluster(), owner, region, devices_max: 512 };
        self.must(operator(), create);
        for tier in [Tier::Opportunistic, Tier::Standard, Tier::Reserved] {
            let per_gpu_hour = MicroCredits::new(1_000_000);
            self.must(operator(), Command::SetPrice { owner, model: model(), tier, per_gpu_hour });
        }
    }

    fn schedule(&mut self, at: Timestamp, what: Happening) {
        self.sequence += 1;
        self.due.insert((at, self.sequence), what);
    }

    /// The owner takes a GPU at `from` and leaves it at `until`, in seconds after the start.
    pub(crate) fn owner_uses(&mut self, number: u64, from: u64, until: u64) {
        let at = |seconds| START.after(Seconds::new(seconds));
        self.schedule(at(from), Happening::OwnerComes(gpu(number)));
        self.schedule(at(until), Happening::OwnerLeaves(gpu(number)));
    }

    /// Lets everything happen up to this many seconds after the start.
    pub(crate) fn run_until(&mut self, seconds: u64) {
        let end = START.after(Seconds::new(seconds));
        while let Some(entry) = self.due.first_entry() {
            if entry.key().0 > end {
                break;
            }
            let ((at, _), what) = entry.remove_entry();
            self.now = at;
            self.happen(what);
            self.plan();
        }
        self.now = self.now.max(end);
    }

    fn happen(&mut self, what: Happening) {
        match what {
            Happening::Arrives(place) => {
                let job = &self.jobs[place];
                let request = RequestId::new(u128::try_from(place).unwrap() + 1);
                let (tenant, spec) = (tenant(job.tenant), spec(job));
                self.must(user(job.tenant), Command::SubmitRequest { request, tenant, spec });
            }
            Happening::Confirms(lease) => self.confirm(lease),
            Happening::Stops(lease) => self.stop(lease),
            Happening::OwnerComes(slice) => self.owner_comes(slice),
            Happening::OwnerLeaves(slice) => {
                self.owned.remove(&slice);
                if !self.state.leased().contains_key(&slice) {
                    self.offer(slice);
                }
            }
        }
    }

    fn confirm(&mut self, id: LeaseId) {
        let lease = self.state.leases().get(&id).filter(|lease| lease.is_running());
        let Some(lease) = lease else { return };
        let (token, members) = (lease.terms().token, lease.terms().members.clone());
        for slice in members.iter().map(|member| member.slice) {
            let actor = Actor::Agent { cluster: slice.cluster, node: slice.node };
            let boot = Boot::new(1);
            self.must(actor, Command::ConfirmMember { lease: id, slice, token, boot });
        }
        let place = self.place_of(id);
        let runs = Seconds::new(self.jobs[place].runs);
        self.schedule(self.now.after(runs), Happening::Stops(id));
    }

    fn place_of(&self, lease: LeaseId) -> usize {
        let request = self.state.leases()[&lease].terms().request;
        usize::try_from(request.get()).unwrap() - 1
    }

    fn stop(&mut self, id: LeaseId) {
        let Some(lease) = self.state.leases().get(&id) else { return };
        let (token, members) = (lease.terms().token, lease.terms().members.clone());
        let used = lease.active_since().map_or(0, |since| self.now.since(since).get());
        for slice in members.iter().map(|member| member.slice) {
            let actor = Actor::Agent { cluster: slice.cluster, node: slice.node };
            let report = Command::ReportStopped {
                lease: id,
                slice,
                token,
                boot: Boot::new(1),
                used: sublet_protocol::units::Millis::new(used),
                outcome: GuestOutcome::Exited { code: 0 },
            };
            self.must(actor, report);
        }
        for member in members {
            if !self.owned.contains(&member.slice) {
                self.offer(member.slice);
            }
        }
    }

    fn owner_comes(&mut self, slice: SliceId) {
        self.owned.insert(slice);
        let actor = Actor::Agent { cluster: slice.cluster, node: slice.node };
        let boot = Boot::new(1);
        if let Some(lease) = self.state.leased().get(&slice).copied() {
            let token = self.state.leases()[&lease].terms().token;
            let cause = ReclaimCause::OwnerArrived;
            self.must(actor, Command::ReclaimSlice { slice, token, boot, cause });
            self.stop(lease);
        } else if let Some(offer) = self.state.offers().get(&slice) {
            let generation = offer.terms().generation;
            let reason = sublet_protocol::offers::RescindReason::Owner;
            self.must(actor, Command::RescindOffer { slice, generation, boot, reason });
        }
    }

    fn offer(&mut self, slice: SliceId) {
        self.generation += 1;
        let idle = self.idle;
        let offer = OfferTerms {
            slice,
            generation: self.generation,
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
            division: Division::NONE,
            host: HostRoom::Slice,
            idle_for: IdleFor { p10: idle, p50: idle, p90: idle },
            recall_notice: Seconds::new(120),
            ttl: Seconds::new(365 * 24 * 3_600),
        };
        let actor = Actor::Agent { cluster: slice.cluster, node: slice.node };
        self.must(actor, Command::OfferCapacity { offer });
    }

    /// Plans until there is nothing left to do.
    fn plan(&mut self) {
        for _ in 0..64 {
            let groups = matching::plan(StateView { state: &self.state, now: self.now });
            if groups.is_empty() {
                return;
            }
            self.must(Actor::Leader, Command::CommitPlan { groups });
        }
        panic!("the plans find no end");
    }

    fn must(&mut self, actor: Actor, command: Command) {
        self.commands += 1;
        let id = CommandId::new(self.commands);
        let stamped = Stamped { id, actor, now: self.now, term: 1, key: None, command };
        let applied = apply(&mut self.state, &stamped, 1);
        match &applied.outcome {
            Outcome::Done { groups, .. } => {
                let is_refused =
                    |group: &&sublet_protocol::commands::GroupOutcome| group.refusal().is_some();
                assert_eq!(groups.iter().find(is_refused), None, "{:?}", stamped.command);
            }
            other => panic!("{:?}: {other:?}", stamped.command),
        }
        for record in applied.records {
            self.note(&record.event);
        }
    }

    fn note(&mut self, event: &Event) {
        let seconds = |at: Timestamp| at.since(START).as_seconds_floor().get();
        let place = |request: RequestId| usize::try_from(request.get()).unwrap() - 1;
        match event {
            Event::StartPromised { request, start, cause, .. } => {
                let promise = (seconds(self.now), seconds(*start), *cause);
                self.stories[place(*request)].promises.push(promise);
            }
            Event::PromiseWithdrawn { request, cause, .. } => {
                self.stories[place(*request)].withdrawn.push(*cause);
            }
            Event::LeaseGranted { terms, .. } => {
                let at = place(terms.request);
                self.stories[at].granted = Some(seconds(self.now));
                match self.jobs[at].slow {
                    0 => self.confirm(terms.lease),
                    slow => {
                        let at = self.now.after(Seconds::new(slow));
                        self.schedule(at, Happening::Confirms(terms.lease));
                    }
                }
            }
            Event::LeaseEnding { lease, cause: EndReason::Preempted, .. } => {
                self.schedule(self.now, Happening::Stops(*lease));
            }
            _other => {}
        }
    }

    pub(crate) fn check(&self) {
        assert_eq!(invariants::check(&self.state), vec![]);
    }

    /// The story of the job with this name.
    pub(crate) fn story(&self, name: &str) -> &Story {
        let place = self.jobs.iter().position(|job| job.name == name);
        &self.stories[place.unwrap_or_else(|| panic!("no job {name}"))]
    }

    pub(crate) fn jobs(&self) -> impl Iterator<Item = (&Job, &Story)> {
        self.jobs.iter().zip(&self.stories)
    }

    /// The request of the job with this name.
    pub(crate) fn request(&self, name: &str) -> RequestId {
        let place = self.jobs.iter().position(|job| job.name == name).unwrap();
        RequestId::new(u128::try_from(place).unwrap() + 1)
    }
}

fn operator() -> Actor {
    Actor::Operator { subject: "op".parse().unwrap(), key: KeyId::new("k").unwrap() }
}

fn user(name: &str) -> Actor {
    let (subject, key) = ("someone".parse().unwrap(), KeyId::new("k").unwrap());
    Actor::Tenant { tenant: tenant(name), subject, key }
}

fn spec(job: &Job) -> RequestSpec {
    RequestSpec {
        project: Project::new("p").unwrap(),
        class: job.class,
        priority: 0,
        models: vec![],
        count: job.gpus,
        gpu: GpuMilli::DEVICE,
        memory: MiB::new(1),
        cpu: CpuMilli::ZERO,
        host_memory: MiB::ZERO,
        placement: job.placement,
        capability: Capability::ANY,
        deferral: None,
        duration: Seconds::new(job.bought),
        max_price: None,
        regions: vec![],
        on_recall: OnRecall::Close,
        workload: None,
        prediction: None,
    }
}
