//! The clockwork: arrivals and ends in order, a plan after each instant at which something happened.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use sublet_predictor::{Buffers, Declared, Question, predict};
use sublet_protocol::commands::{Actor, Command, GroupOutcome, GuestOutcome, Outcome};
use sublet_protocol::deferral::Deferral;
use sublet_protocol::events::Event;
use sublet_protocol::ids::{ClusterId, LeaseId, Project, RequestId};
use sublet_protocol::leases::LeaseTerms;
use sublet_protocol::records::Record;
use sublet_protocol::requests::{
    Capability, Class, DURATION_MAX, OnRecall, Placement, RequestSpec,
};
use sublet_protocol::units::{CpuMilli, GpuMilli, MiB, Seconds, Timestamp};

use super::cell::{Cell, Error, GPU_MEMORY, Tally, user_of};
use super::policy::{Planner, Policy, cluster_of};
use super::shaping::Waiting;
use super::{Job, Workload};

/// The cluster of all GPUs where there is only one.
const ONE_POOL: &str = "one-pool";

/// What became of each job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replayed {
    /// Seconds each job waited, in the order of the workload; `None` = dropped.
    pub waits: Vec<Option<Seconds>>,
    /// Leases that were taken away before their work was done.
    pub preemptions: u64,
    /// GPU-seconds that jobs ran.
    pub gpu_seconds: u64,
    /// Of these, GPU-seconds in another tenant's cluster.
    pub borrowed_gpu_seconds: u64,
    /// GPU-seconds that jobs ran in each hour from the start.
    pub hours: Vec<u64>,
    /// When the work of each job was done, from the start; nothing if it was dropped.
    pub ended: Vec<Option<Seconds>>,
    /// How long a start may take.
    pub start_timeout: Seconds,
    /// Commands, records and checks.
    pub tally: Tally,
    /// Whether the books balance and no hold is left open.
    pub is_balanced: bool,
}

/// How a replay is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// The invariants are checked at every so many commands, and once at the end.
    pub check_every: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { check_every: 1_000 }
    }
}

/// Replays `workload` under `policy`; `progress` is told how many jobs have been submitted or dropped.
pub fn replay(
    workload: &Workload,
    policy: Policy,
    options: Options,
    progress: &mut dyn FnMut(usize),
) -> Result<Replayed, Error> {
    replay_deferred(workload, policy, (options, None), progress)
}

/// As [`replay`]; some jobs may wait for better hours.
pub(super) fn replay_deferred(
    workload: &Workload,
    policy: Policy,
    (options, waiting): (Options, Option<&Waiting>),
    progress: &mut dyn FnMut(usize),
) -> Result<Replayed, Error> {
    let mut run = Run::new(workload, policy, options)?;
    run.waits_for = waiting;
    while let Some(now) = run.next_instant() {
        run.cell.advance(now);
        run.end_due(now)?;
        run.submit_due(now)?;
        run.plan()?;
        progress(run.next_job);
    }
    run.finish()
}

/// A job on its way.
#[derive(Debug, Clone, Copy)]
struct Progress {
    remaining: Seconds,
    waited: Seconds,
    /// Since when it waits.
    since: Seconds,
    is_dropped: bool,
}

/// A lease that runs.
struct Running {
    job: usize,
    began: Seconds,
    terms: LeaseTerms,
}

struct Run<'a> {
    workload: &'a Workload,
    policy: Policy,
    cell: Cell,
    planner: Box<dyn Planner>,
    jobs: Vec<Progress>,
    next_job: usize,
    /// The job of each request, by the request's number.
    requests: Vec<usize>,
    running: BTreeMap<LeaseId, Running>,
    ends: BinaryHeap<Reverse<(Seconds, u64, LeaseId)>>,
    sequence: u64,
    waiting: usize,
    preemptions: u64,
    gpu_seconds: u64,
    borrowed_gpu_seconds: u64,
    hours: Vec<u64>,
    ended: Vec<Option<Seconds>>,
    waits_for: Option<&'a Waiting>,
    /// When something may start that waits for better hours.
    alarms: BTreeSet<Timestamp>,
}

impl<'a> Run<'a> {
    fn new(workload: &'a Workload, policy: Policy, options: Options) -> Result<Self, Error> {
        let mut cell = Cell::found(workload.starts_at, options.check_every)?;
        let clusters = build(&mut cell, workload, policy)?;
        let fresh = |job: &Job| Progress {
            remaining: job.duration,
            waited: Seconds::ZERO,
            since: job.submit,
            is_dropped: policy.drops_outgrown() && workload.outgrows_its_pool(job),
        };
        Ok(Self {
            workload,
            policy,
            cell,
            planner: policy.planner(workload, &clusters),
            jobs: workload.jobs.iter().map(fresh).collect(),
            next_job: 0,
            requests: Vec::with_capacity(workload.jobs.len()),
            running: BTreeMap::new(),
            ends: BinaryHeap::new(),
            sequence: 0,
            waiting: 0,
            preemptions: 0,
            gpu_seconds: 0,
            borrowed_gpu_seconds: 0,
            hours: Vec::new(),
            ended: vec![None; workload.jobs.len()],
            waits_for: None,
            alarms: BTreeSet::new(),
        })
    }

    /// Time since the start of the workload.
    fn clock(&self) -> Seconds {
        self.cell.now().since(self.workload.starts_at).as_seconds_floor()
    }

    fn next_instant(&mut self) -> Option<Timestamp> {
        // An end whose lease was taken away meanwhile is no event.
        while self
            .ends
            .peek()
            .is_some_and(|Reverse((_, _, lease))| !self.running.contains_key(lease))
        {
            self.ends.pop();
        }
        let arrival = self.workload.jobs.get(self.next_job).map(|job| job.submit);
        let end = self.ends.peek().map(|Reverse((end, _, _))| *end);
        let next = arrival.into_iter().chain(end);
        let next = next.map(|next| self.workload.starts_at.after(next));
        let next = next.chain(self.alarms.first().copied()).min()?;
        self.alarms.remove(&next);
        Some(next)
    }

    fn end_due(&mut self, now: Timestamp) -> Result<(), Error> {
        while let Some(Reverse((end, _, lease))) = self.ends.peek().copied() {
            if self.workload.starts_at.after(end) > now {
                break;
            }
            self.ends.pop();
            if let Some(running) = self.running.remove(&lease) {
                let job = running.job;
                self.stop(&running, GuestOutcome::Exited { code: 0 })?;
                match self.jobs[job].remaining > Seconds::ZERO {
                    true => self.submit(job)?,
                    false => self.ended[job] = Some(end),
                }
            }
        }
        Ok(())
    }

    /// The lease's guest is gone: what it ran counts, its slices are free.
    fn stop(&mut self, running: &Running, outcome: GuestOutcome) -> Result<(), Error> {
        let now = self.clock();
        let ran = now.saturating_sub(running.began);
        let job = &self.workload.jobs[running.job];
        let gpu_seconds = ran.get() * u64::from(job.gpus);
        self.gpu_seconds += gpu_seconds;
        use_hours(&mut self.hours, (running.began, now), job.gpus);
        if self.policy.has_clusters_per_tenant() && running.terms.owner != running.terms.tenant {
            self.borrowed_gpu_seconds += gpu_seconds;
        }
        let progress = &mut self.jobs[running.job];
        progress.remaining = progress.remaining.saturating_sub(ran);
        progress.since = now;
        self.cell.stop(&running.terms, ran.as_millis(), outcome)
    }

    fn submit_due(&mut self, now: Timestamp) -> Result<(), Error> {
        while let Some(job) = self.workload.jobs.get(self.next_job) {
            if self.workload.starts_at.after(job.submit) > now {
                break;
            }
            let index = self.next_job;
            self.next_job += 1;
            if !self.jobs[index].is_dropped {
                self.submit(index)?;
            }
        }
        Ok(())
    }

    /// Asks for a lease for what remains of the job. The longest lease is shorter than the longest jobs:
    /// those ask again when it is over, and wait like everyone.
    fn submit(&mut self, index: usize) -> Result<(), Error> {
        let job = Job {
            duration: self.jobs[index].remaining.min(DURATION_MAX),
            ..self.workload.jobs[index]
        };
        let number = u128::try_from(self.requests.len()).unwrap_or(u128::MAX);
        let request = RequestId::new(number);
        let tenant = self.workload.pools[job.owner].tenant;
        let asked = self.asked(index);
        if let Some(asked) = &asked {
            let opens = asked.windows.iter().map(|window| window.from);
            self.alarms.extend(opens.chain([asked.start_by]).filter(|at| *at > self.cell.now()));
        }
        let spec = RequestSpec { deferral: asked.map(Box::new), ..spec(&job) };
        let submit = Command::SubmitRequest { request, tenant, spec };
        self.cell.done(user_of(tenant), submit)?;
        self.requests.push(index);
        self.waiting += 1;
        self.planner.on_submitted(request, &job);
        Ok(())
    }

    /// What the job waits for when it is first submitted.
    fn asked(&self, index: usize) -> Option<Deferral> {
        let job = &self.workload.jobs[index];
        let waiting = self.waits_for.filter(|_| self.jobs[index].remaining == job.duration)?;
        let start_timeout = self.cell.view().state.policy().start_timeout;
        waiting.asked((index, job), self.workload.starts_at, start_timeout)
    }

    /// Lets the planner propose until it has nothing more that the rules accept.
    fn plan(&mut self) -> Result<(), Error> {
        self.planner.begin_round();
        loop {
            let records = self.cell.untold();
            let view = self.cell.view();
            self.planner.on_records(view.state, &records);
            let groups = self.planner.plan(view);
            if groups.is_empty() {
                return Ok(());
            }
            let applied = self.cell.done(Actor::Leader, Command::CommitPlan { groups })?;
            let Outcome::Done { groups, .. } = &applied.outcome else { return Ok(()) };
            let is_refused = |group: &&GroupOutcome| group.refusal().is_some();
            let refused = groups.iter().filter(is_refused).count();
            self.cell.tally.groups_refused += u64::try_from(refused).unwrap_or(u64::MAX);
            if refused == groups.len() {
                return Ok(());
            }
            self.follow(&applied.records)?;
        }
    }

    /// Does what a plan's records ask of agents: prepare what was granted, stop what must go.
    fn follow(&mut self, records: &[Record]) -> Result<(), Error> {
        for record in records {
            match &record.event {
                Event::LeaseGranted { terms, .. } => self.start(terms)?,
                // Who rests starts then, though nothing else may happen at that instant.
                Event::StartPromised { start, .. } if self.waits_for.is_some() => {
                    self.alarms.extend(Some(*start).filter(|start| *start > self.cell.now()));
                }
                Event::LeaseEnding { lease, .. } => {
                    if let Some(running) = self.running.remove(lease) {
                        self.preemptions += 1;
                        self.waiting += 1;
                        self.stop(&running, GuestOutcome::Stopped)?;
                    }
                }
                _other => {}
            }
        }
        Ok(())
    }

    fn start(&mut self, terms: &LeaseTerms) -> Result<(), Error> {
        self.cell.confirm(terms)?;
        let number = usize::try_from(terms.request.get()).expect("requests are numbered from 0");
        let job = self.requests[number];
        let began = self.clock();
        let progress = &mut self.jobs[job];
        progress.waited = progress.waited.saturating_add(began.saturating_sub(progress.since));
        let runs = progress.remaining.min(terms.duration);
        self.ends.push(Reverse((began.saturating_add(runs), self.sequence, terms.lease)));
        self.sequence += 1;
        self.waiting -= 1;
        self.running.insert(terms.lease, Running { job, began, terms: terms.clone() });
        Ok(())
    }

    fn finish(mut self) -> Result<Replayed, Error> {
        if self.waiting > 0 {
            return Err(Error::Stuck { waiting: self.waiting });
        }
        self.cell.check();
        let accounts = self.cell.accounts();
        let is_balanced = accounts.is_balanced() && accounts.open_holds().next().is_none();
        let waited = |job: &Progress| (!job.is_dropped).then_some(job.waited);
        Ok(Replayed {
            waits: self.jobs.iter().map(waited).collect(),
            preemptions: self.preemptions,
            gpu_seconds: self.gpu_seconds,
            borrowed_gpu_seconds: self.borrowed_gpu_seconds,
            hours: self.hours,
            ended: self.ended,
            start_timeout: self.cell.view().state.policy().start_timeout,
            tally: self.cell.tally,
            is_balanced,
        })
    }
}

/// Adds what `gpus` did between two instants to the hours.
fn use_hours(hours: &mut Vec<u64>, (began, ended): (Seconds, Seconds), gpus: u32) {
    let (mut at, end) = (began.get(), ended.get());
    while at < end {
        let hour = at / 3_600;
        let next = end.min((hour + 1) * 3_600);
        let place = usize::try_from(hour).unwrap_or(usize::MAX);
        if hours.len() <= place {
            hours.resize(place + 1, 0);
        }
        hours[place] += (next - at) * u64::from(gpus);
        at = next;
    }
}

/// Founds tenants and clusters; returns the clusters by the number of their pool.
fn build(cell: &mut Cell, workload: &Workload, policy: Policy) -> Result<Vec<ClusterId>, Error> {
    let smallest = workload.pools.iter().map(super::Pool::gpus).min().unwrap_or(1);
    // Quotas bind nobody here: the smallest is as large as all GPUs. They stand in the proportion of
    // what the tenants own, which is what fair shares are measured by.
    let factor = workload.gpus().div_ceil(smallest.max(1));
    for pool in &workload.pools {
        let quota = pool.gpus().saturating_mul(factor).saturating_mul(GpuMilli::DEVICE.get());
        cell.add_tenant(pool.tenant, GpuMilli::new(quota))?;
    }
    if policy.has_clusters_per_tenant() {
        let mut clusters = Vec::new();
        for (ordinal, pool) in workload.pools.iter().enumerate() {
            let cluster = cluster_of(pool.tenant);
            cell.add_cluster(cluster, pool.tenant, (ordinal, pool.nodes))?;
            clusters.push(cluster);
        }
        return Ok(clusters);
    }
    // A cluster has one owner; whose revenue the one pool is plays no part in a replay.
    let Some(first) = workload.pools.first() else { return Ok(Vec::new()) };
    let cluster = ClusterId::new(ONE_POOL).expect("a literal id");
    let nodes = workload.pools.iter().map(|pool| pool.nodes).sum();
    cell.add_cluster(cluster, first.tenant, (0, nodes))?;
    Ok(vec![cluster])
}

/// What its user declares: a cap that the job stays below, as people round up. The next power of two
/// seconds; at most the longest lease.
pub(crate) fn declared(duration: Seconds) -> Seconds {
    duration.get().checked_next_power_of_two().map_or(DURATION_MAX, Seconds::new).min(DURATION_MAX)
}

/// The job as a request, with what the predictor says of it.
pub(crate) fn spec(job: &Job) -> RequestSpec {
    let spec = RequestSpec {
        project: Project::new("replay").expect("a literal id"),
        class: Class::Batch,
        priority: 0,
        models: Vec::new(),
        count: job.gpus,
        gpu: GpuMilli::DEVICE,
        memory: GPU_MEMORY,
        cpu: CpuMilli::ZERO,
        host_memory: MiB::ZERO,
        placement: Placement::Cluster,
        duration: declared(job.duration),
        max_price: None,
        regions: Vec::new(),
        on_recall: OnRecall::Requeue,
        workload: None,
        prediction: None,
        capability: Capability::ANY,
        deferral: None,
    };
    let question = Question::new(Declared::of(&spec));
    let answer =
        predict(&question, &Buffers::default()).expect("what is declared is within its ranges");
    RequestSpec { prediction: Some(answer.prediction()), ..spec }
}

#[cfg(test)]
mod tests {
    use sublet_core::StateView;
    use sublet_protocol::commands::{PlanGroup, PlanMember};
    use sublet_protocol::ids::TenantId;

    use super::super::Pool;
    use super::*;

    /// Two jobs of 8 GPUs at once on one node.
    fn workload() -> Workload {
        let job = Job { owner: 0, submit: Seconds::ZERO, duration: Seconds::new(60), gpus: 8 };
        let tenant = TenantId::new("tenant").unwrap();
        let starts_at = Timestamp::new(1_000);
        Workload {
            starts_at,
            pools: vec![Pool { tenant, nodes: 1, listed: 0 }],
            jobs: vec![job; 2],
        }
    }

    fn run_with<'a>(workload: &'a Workload, planner: Box<dyn Planner>) -> Run<'a> {
        let mut run = Run::new(workload, Policy::StaticFifo, Options { check_every: 1 }).unwrap();
        run.planner = planner;
        let now = run.next_instant().unwrap();
        run.cell.advance(now);
        run.submit_due(now).unwrap();
        run
    }

    /// Promises every GPU to every request.
    struct Liar(Vec<RequestId>);

    impl Planner for Liar {
        fn on_submitted(&mut self, request: RequestId, _job: &Job) {
            self.0.push(request);
        }

        fn plan(&mut self, view: StateView<'_>) -> Vec<PlanGroup> {
            let all = view.state.offers().iter().map(|(slice, offer)| PlanMember {
                slice: *slice,
                generation: offer.terms().generation,
            });
            let members: Vec<PlanMember> = all.collect();
            let grant = |request: &RequestId| PlanGroup::Grant {
                request: *request,
                members: members.clone(),
            };
            self.0.iter().map(grant).collect()
        }
    }

    #[test]
    fn a_planner_that_promises_a_gpu_twice_is_refused_and_breaks_nothing() {
        let workload = workload();
        let mut run = run_with(&workload, Box::new(Liar(Vec::new())));
        run.plan().unwrap();
        assert_eq!(run.running.len(), 1);
        assert_eq!(run.waiting, 1);
        // The second job at first, both requests once the first is no longer waiting.
        assert_eq!(run.cell.tally.groups_refused, 3);
        assert_eq!(run.cell.tally.first_violations, []);
    }

    /// Never proposes anything.
    struct Idle;

    impl Planner for Idle {
        fn on_submitted(&mut self, _request: RequestId, _job: &Job) {}

        fn plan(&mut self, _view: StateView<'_>) -> Vec<PlanGroup> {
            Vec::new()
        }
    }

    #[test]
    fn a_planner_that_leaves_jobs_waiting_is_an_error_not_a_result() {
        let workload = workload();
        let mut run = run_with(&workload, Box::new(Idle));
        run.plan().unwrap();
        assert_eq!(run.next_instant(), None);
        assert!(matches!(run.finish(), Err(Error::Stuck { waiting: 2 })));
    }

    #[test]
    fn a_job_longer_than_the_longest_lease_asks_again_and_runs_to_its_end() {
        let mut workload = workload();
        workload.jobs.truncate(1);
        workload.jobs[0].duration = Seconds::new(DURATION_MAX.get() + 100);
        let options = Options { check_every: 1 };
        let replayed = replay(&workload, Policy::Sublet, options, &mut |_| {}).unwrap();
        assert_eq!(replayed.gpu_seconds, 8 * (DURATION_MAX.get() + 100));
        assert_eq!(replayed.waits, [Some(Seconds::ZERO)]);
    }

    #[test]
    fn declared_caps_are_round_and_never_below_the_job() {
        let declared = |seconds| super::declared(Seconds::new(seconds)).get();
        assert_eq!([1, 2, 3, 64, 65].map(declared), [1, 2, 4, 64, 128]);
        assert_eq!(declared(2_097_153), DURATION_MAX.get());
        assert_eq!(declared(DURATION_MAX.get()), DURATION_MAX.get());
    }
}
