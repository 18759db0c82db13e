//! The clockwork: owners' queues, guests, and what is seen and said when.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use sublet_core::matching;
use sublet_protocol::capacity::SliceId;
use sublet_protocol::commands::{Actor, Command, GroupOutcome, Outcome};
use sublet_protocol::events::Event as Fact;
use sublet_protocol::ids::{LeaseId, RequestId};
use sublet_protocol::leases::LeaseTerms;
use sublet_protocol::requests::Class;
use sublet_protocol::units::{GpuMilli, Seconds};

use super::cost::Friction;
use super::forecast::Forecast;
use super::home::Home;
use crate::replay::cell::{Cell, Error, Tally};
use crate::replay::policy::cluster_of;
use crate::replay::{Job, Workload};

/// How a replay is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// What lending costs.
    pub friction: Friction,
    /// What the jobs that wait at home ask for elsewhere.
    pub class: Class,
    /// The invariants are checked at every so many commands, and once at the end.
    pub check_every: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { friction: Friction::default(), class: Class::Experiment, check_every: 1_000 }
    }
}

/// What came of it. GPU-seconds in the window are those until the last submission.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lent {
    /// From submission to the end of the work, less the work itself; `None` = dropped.
    pub delays: Vec<Option<Seconds>>,
    /// How long owners' jobs that had room at home waited for it to be cleared, for each that took
    /// something back.
    pub owner_delays: Vec<Seconds>,
    /// Owners' jobs that started at home.
    pub home_starts: u64,
    /// Leases granted.
    pub leases: u64,
    /// Leases that an owner took back.
    pub reclaims: u64,
    /// Of these, leases in which the owner came back earlier than nine times in ten was promised.
    pub early: u64,
    /// Leases that ended for someone of higher rank.
    pub preemptions: u64,
    /// GPU-seconds that owners left idle in the window.
    pub idle: u64,
    /// GPU-seconds that were offered or lent in the window.
    pub offered: u64,
    /// GPU-seconds held by guests in the window.
    pub held: u64,
    /// GPU-seconds of guests' work that was kept, over the whole replay.
    pub useful: u64,
    /// GPU-seconds of guests' work that was lost.
    pub lost: u64,
    /// GPU-seconds that guests took to start.
    pub overhead: u64,
    /// GPU-seconds of owners' jobs at home.
    pub own: u64,
    /// What the GPUs did in each hour of the window.
    pub hours: Vec<Hour>,
    /// Commands, records and checks.
    pub tally: Tally,
    /// Whether the books balance and no hold is left open.
    pub is_balanced: bool,
}

/// GPU-seconds of one hour.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Hour {
    /// Owners' own jobs.
    pub own: u64,
    /// Guests.
    pub held: u64,
    /// Offered and not leased.
    pub offered: u64,
}

/// Replays `workload`; `progress` is told how many jobs have been submitted or dropped.
pub fn replay(
    workload: &Workload,
    options: Options,
    progress: &mut dyn FnMut(usize),
) -> Result<Lent, Error> {
    let mut run = Run::new(workload, options)?;
    while let Some(at) = run.next_instant() {
        run.advance(at);
        run.happen(at)?;
        run.arrive(at)?;
        run.plan()?;
        progress(run.next_job);
    }
    run.finish()
}

/// What is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    /// The owner's job is done.
    OwnEnds(usize),
    /// A guest is done.
    GuestEnds(LeaseId),
    /// An owner's return is seen on a guest's GPUs.
    Seen(LeaseId),
    /// A guest that was told to stop is gone.
    Gone(LeaseId),
    /// A GPU may have been idle long enough: its owner and place.
    Idle(usize, usize),
}

/// Where a job is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    Waiting,
    /// Its berth at home is being cleared since then.
    Clearing {
        since: Seconds,
        places: Vec<usize>,
        guests: BTreeSet<LeaseId>,
    },
    Home {
        places: Vec<usize>,
    },
    Away,
    Done(Seconds),
    Dropped,
}

pub(super) struct Progress {
    pub(super) remaining: Seconds,
    pub(super) place: Place,
    pub(super) request: Option<RequestId>,
}

pub(super) struct Guest {
    pub(super) job: usize,
    pub(super) terms: LeaseTerms,
    pub(super) began: Seconds,
    /// The owner's and place of each member.
    pub(super) places: Vec<(usize, usize)>,
    pub(super) is_stopping: bool,
    /// When the owner was expected back, nine times in ten not before.
    pub(super) until: Seconds,
}

pub(super) struct Run<'a> {
    pub(super) workload: &'a Workload,
    pub(super) options: Options,
    pub(super) cell: Cell,
    pub(super) homes: Vec<Home>,
    pub(super) slices: Vec<Vec<SliceId>>,
    pub(super) places: BTreeMap<SliceId, (usize, usize)>,
    pub(super) generations: Vec<Vec<u64>>,
    pub(super) promised: Vec<Vec<Seconds>>,
    pub(super) forecasts: Vec<Forecast>,
    pub(super) queues: Vec<BTreeSet<usize>>,
    pub(super) jobs: Vec<Progress>,
    pub(super) requests: Vec<usize>,
    pub(super) guests: BTreeMap<LeaseId, Guest>,
    /// Owners' jobs that wait for a guest to go.
    pub(super) blocked: BTreeMap<LeaseId, Vec<usize>>,
    pub(super) due: BinaryHeap<Reverse<(Seconds, u64, Due)>>,
    pub(super) sequence: u64,
    pub(super) next_job: usize,
    pub(super) clock: Seconds,
    /// Submissions end here.
    pub(super) window: Seconds,
    pub(super) own_now: u64,
    pub(super) held_now: u64,
    pub(super) offered_now: u64,
    pub(super) lent: Lent,
}

impl<'a> Run<'a> {
    fn new(workload: &'a Workload, options: Options) -> Result<Self, Error> {
        let mut cell = Cell::found(workload.starts_at, options.check_every)?;
        let smallest = workload.pools.iter().map(crate::replay::Pool::gpus).min().unwrap_or(1);
        // Quotas bind nobody, and stand in the proportion of what tenants own.
        let factor = workload.gpus().div_ceil(smallest.max(1));
        for pool in &workload.pools {
            let quota = pool.gpus().saturating_mul(factor).saturating_mul(GpuMilli::DEVICE.get());
            cell.add_tenant(pool.tenant, GpuMilli::new(quota))?;
        }
        let mut slices = Vec::new();
        for (ordinal, pool) in workload.pools.iter().enumerate() {
            let cluster = cluster_of(pool.tenant);
            slices.push(cell.register_cluster(cluster, pool.tenant, (ordinal, pool.nodes))?);
        }
        let place = |(owner, all): (usize, &Vec<SliceId>)| {
            all.iter().enumerate().map(move |(at, slice)| (*slice, (owner, at))).collect::<Vec<_>>()
        };
        let fresh = |job: &Job| Progress {
            remaining: job.duration,
            place: match workload.outgrows_its_pool(job) {
                true => Place::Dropped,
                false => Place::Waiting,
            },
            request: None,
        };
        let mut run = Run {
            workload,
            options,
            cell,
            homes: workload.pools.iter().map(|pool| Home::new(pool.nodes)).collect(),
            places: slices.iter().enumerate().flat_map(place).collect(),
            generations: slices.iter().map(|all| vec![0; all.len()]).collect(),
            promised: slices.iter().map(|all| vec![Seconds::ZERO; all.len()]).collect(),
            slices,
            forecasts: workload.pools.iter().map(|_| Forecast::default()).collect(),
            queues: vec![BTreeSet::new(); workload.pools.len()],
            jobs: workload.jobs.iter().map(fresh).collect(),
            requests: Vec::new(),
            guests: BTreeMap::new(),
            blocked: BTreeMap::new(),
            due: BinaryHeap::new(),
            sequence: 0,
            next_job: 0,
            clock: Seconds::ZERO,
            window: workload.jobs.last().map_or(Seconds::ZERO, |job| job.submit),
            own_now: 0,
            held_now: 0,
            offered_now: 0,
            lent: Lent::default(),
        };
        for owner in 0..run.homes.len() {
            for place in 0..run.homes[owner].len() {
                run.look_when_idle(owner, place);
            }
        }
        Ok(run)
    }

    pub(super) fn push(&mut self, at: Seconds, due: Due) {
        self.due.push(Reverse((at, self.sequence, due)));
        self.sequence += 1;
    }

    fn next_instant(&mut self) -> Option<Seconds> {
        let arrival = self.workload.jobs.get(self.next_job).map(|job| job.submit);
        let is_over = arrival.is_none() && self.queues.iter().all(BTreeSet::is_empty);
        let runs = |one: &Progress| !matches!(one.place, Place::Done(_) | Place::Dropped);
        // Idle GPUs would be looked at for ever.
        if is_over && !self.jobs.iter().any(runs) {
            return None;
        }
        let due = self.due.peek().map(|Reverse((at, _, _))| *at);
        arrival.into_iter().chain(due).min()
    }

    fn advance(&mut self, to: Seconds) {
        let total: u64 = self.workload.gpus();
        let until = to.min(self.window);
        let mut at = self.clock.min(self.window);
        while at < until {
            let hour = at.get() / 3_600;
            let next = until.min(Seconds::new((hour + 1) * 3_600));
            let passed = next.saturating_sub(at).get();
            self.lent.idle += total.saturating_sub(self.own_now) * passed;
            self.lent.held += self.held_now * passed;
            self.lent.offered += (self.held_now + self.offered_now) * passed;
            let place = usize::try_from(hour).expect("a trace's hours fit memory");
            if self.lent.hours.len() <= place {
                self.lent.hours.resize(place + 1, Hour::default());
            }
            let sums = &mut self.lent.hours[place];
            sums.own += self.own_now * passed;
            sums.held += self.held_now * passed;
            sums.offered += self.offered_now * passed;
            at = next;
        }
        self.clock = to;
        self.cell.advance(self.workload.starts_at.after(to));
    }

    fn happen(&mut self, now: Seconds) -> Result<(), Error> {
        while let Some(Reverse((at, _, due))) = self.due.peek().copied() {
            if at > now {
                break;
            }
            self.due.pop();
            match due {
                Due::OwnEnds(job) => self.own_ends(job)?,
                Due::GuestEnds(lease) => self.guest_ends(lease)?,
                Due::Seen(lease) => self.owner_is_seen(lease)?,
                Due::Gone(lease) => self.guest_is_gone(lease)?,
                Due::Idle(owner, place) => self.perhaps_offer(owner, place)?,
            }
        }
        Ok(())
    }

    fn arrive(&mut self, now: Seconds) -> Result<(), Error> {
        while let Some(job) = self.workload.jobs.get(self.next_job) {
            if job.submit > now {
                break;
            }
            let index = self.next_job;
            self.next_job += 1;
            if self.jobs[index].place == Place::Waiting {
                self.queues[job.owner].insert(index);
                self.serve_home(job.owner)?;
                self.ask_elsewhere(index)?;
            }
        }
        Ok(())
    }

    fn plan(&mut self) -> Result<(), Error> {
        loop {
            let groups = matching::plan(self.cell.view());
            if groups.is_empty() {
                return Ok(());
            }
            let applied = self.cell.done(Actor::Leader, Command::CommitPlan { groups })?;
            let Outcome::Done { groups, .. } = &applied.outcome else { return Ok(()) };
            let is_refused = |group: &&GroupOutcome| group.refusal().is_some();
            let refused = groups.iter().filter(is_refused).count();
            self.cell.tally.groups_refused += u64::try_from(refused).unwrap_or(u64::MAX);
            let mut owners = BTreeSet::new();
            for record in &applied.records {
                match &record.event {
                    Fact::LeaseGranted { terms, .. } => {
                        owners.insert(self.start_guest(terms)?);
                    }
                    Fact::LeaseEnding { lease, .. } => {
                        self.lent.preemptions += 1;
                        self.tell_to_stop(*lease);
                    }
                    _other => {}
                }
            }
            // Who waited at home behind a job that has left may have room now.
            owners.into_iter().try_for_each(|owner| self.serve_home(owner))?;
            if refused == groups.len() {
                return Ok(());
            }
        }
    }

    fn finish(mut self) -> Result<Lent, Error> {
        let waiting = self.jobs.iter().filter(|job| job.place == Place::Waiting).count();
        if waiting > 0 {
            return Err(Error::Stuck { waiting });
        }
        self.cell.check();
        let accounts = self.cell.accounts();
        self.lent.is_balanced = accounts.is_balanced() && accounts.open_holds().next().is_none();
        let delay = |(job, progress): (&Job, &Progress)| match &progress.place {
            Place::Done(at) => Some(at.saturating_sub(job.submit).saturating_sub(job.duration)),
            _never_ran => None,
        };
        self.lent.delays = self.workload.jobs.iter().zip(&self.jobs).map(delay).collect();
        self.lent.tally = self.cell.tally;
        Ok(self.lent)
    }
}
