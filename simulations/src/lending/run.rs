//! The clockwork: owners' queues, guests, and what is seen and said when.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use sublet_core::matching;
use sublet_protocol::capacity::SliceId;
use sublet_protocol::commands::{Actor, Command, GroupOutcome, GuestOutcome, Outcome, ReclaimCause};
use sublet_protocol::events::Event as Fact;
use sublet_protocol::ids::{LeaseId, RequestId};
use sublet_protocol::leases::{LeaseTerms, Member};
use sublet_protocol::offers::RescindReason;
use sublet_protocol::requests::{Class, DURATION_MAX, RequestSpec};
use sublet_protocol::units::{GpuMilli, Seconds};

use super::cost::Friction;
use super::forecast::Forecast;
use super::home::{Gpu, Home};
use crate::replay::cell::{BOOT, Cell, Error, Tally, agent_of, user_of};
use crate::replay::policy::cluster_of;
use crate::replay::run::spec;
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
    /// Commands, records and checks.
    pub tally: Tally,
    /// Whether the books balance and no hold is left open.
    pub is_balanced: bool,
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
enum Due {
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
enum Place {
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

struct Progress {
    remaining: Seconds,
    place: Place,
    request: Option<RequestId>,
}

struct Guest {
    job: usize,
    terms: LeaseTerms,
    began: Seconds,
    /// The owner's and place of each member.
    places: Vec<(usize, usize)>,
    is_stopping: bool,
    /// When the owner was expected back, nine times in ten not before.
    until: Seconds,
}

struct Run<'a> {
    workload: &'a Workload,
    options: Options,
    cell: Cell,
    homes: Vec<Home>,
    slices: Vec<Vec<SliceId>>,
    places: BTreeMap<SliceId, (usize, usize)>,
    generations: Vec<Vec<u64>>,
    promised: Vec<Vec<Seconds>>,
    forecasts: Vec<Forecast>,
    queues: Vec<BTreeSet<usize>>,
    jobs: Vec<Progress>,
    requests: Vec<usize>,
    guests: BTreeMap<LeaseId, Guest>,
    /// Owners' jobs that wait for a guest to go.
    blocked: BTreeMap<LeaseId, Vec<usize>>,
    due: BinaryHeap<Reverse<(Seconds, u64, Due)>>,
    sequence: u64,
    next_job: usize,
    clock: Seconds,
    /// Submissions end here.
    window: Seconds,
    own_now: u64,
    held_now: u64,
    offered_now: u64,
    lent: Lent,
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

    fn push(&mut self, at: Seconds, due: Due) {
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
        let until = to.min(self.window);
        let passed = until.saturating_sub(self.clock.min(self.window)).get();
        let total: u64 = self.workload.gpus();
        self.lent.idle += total.saturating_sub(self.own_now) * passed;
        self.lent.held += self.held_now * passed;
        self.lent.offered += (self.held_now + self.offered_now) * passed;
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

    /// Starts what fits at home, in the order of submission; the head blocks.
    fn serve_home(&mut self, owner: usize) -> Result<(), Error> {
        while let Some(job) = self.queues[owner].first().copied() {
            let Some(berth) = self.homes[owner].berth(self.workload.jobs[job].gpus) else {
                return Ok(());
            };
            self.queues[owner].remove(&job);
            self.withdraw(job)?;
            let seen_at = self.options.friction.next_look(self.clock);
            for place in &berth.places {
                match self.homes[owner].gpu(*place) {
                    Gpu::Lent(lease) => self.homes[owner].set(*place, Gpu::Clearing(lease)),
                    Gpu::Offered => {
                        self.rescind(owner, *place)?;
                        self.occupy(owner, *place);
                    }
                    Gpu::Idle => self.occupy(owner, *place),
                    Gpu::Own | Gpu::Clearing(_) => {}
                }
            }
            for lease in &berth.guests {
                self.blocked.entry(*lease).or_default().push(job);
                self.push(seen_at, Due::Seen(*lease));
            }
            let (since, places, guests) = (self.clock, berth.places, berth.guests);
            self.jobs[job].place = Place::Clearing { since, places, guests };
            self.perhaps_start_home(job)?;
        }
        Ok(())
    }

    fn occupy(&mut self, owner: usize, place: usize) {
        let idle = self.clock.saturating_sub(self.homes[owner].idle_since(place));
        self.forecasts[owner].learn(idle);
        self.homes[owner].set(place, Gpu::Own);
        self.own_now += 1;
    }

    /// The job is no longer looking for a place elsewhere.
    fn withdraw(&mut self, job: usize) -> Result<(), Error> {
        if let Some(request) = self.jobs[job].request.take() {
            let tenant = self.workload.pools[self.workload.jobs[job].owner].tenant;
            self.cell.done(user_of(tenant), Command::CancelRequest { request })?;
        }
        Ok(())
    }

    /// Starts an owner's job once no guest is in its way.
    fn perhaps_start_home(&mut self, job: usize) -> Result<(), Error> {
        let Place::Clearing { since, places, guests } = &self.jobs[job].place else {
            return Ok(());
        };
        if guests.iter().any(|lease| self.guests.contains_key(lease)) {
            return Ok(());
        }
        let (since, places, had_guests) = (*since, places.clone(), !guests.is_empty());
        if had_guests {
            self.lent.owner_delays.push(self.clock.saturating_sub(since));
        }
        self.lent.home_starts += 1;
        let ends = self.clock.saturating_add(self.jobs[job].remaining);
        self.jobs[job].place = Place::Home { places };
        self.push(ends, Due::OwnEnds(job));
        Ok(())
    }

    fn own_ends(&mut self, job: usize) -> Result<(), Error> {
        let owner = self.workload.jobs[job].owner;
        let done = Place::Done(self.clock);
        let Place::Home { places } = std::mem::replace(&mut self.jobs[job].place, done) else {
            return Ok(());
        };
        let ran = self.jobs[job].remaining.get() * u64::from(self.workload.jobs[job].gpus);
        self.lent.own += ran;
        self.jobs[job].remaining = Seconds::ZERO;
        for place in places {
            self.homes[owner].vacate(place, self.clock);
            self.own_now -= 1;
            self.look_when_idle(owner, place);
        }
        self.serve_home(owner)
    }

    /// Looks again when the GPU may have been idle long enough.
    fn look_when_idle(&mut self, owner: usize, place: usize) {
        let friction = self.options.friction;
        let since = self.homes[owner].idle_since(place);
        let at = friction.next_look(since).saturating_add(friction.idle_after);
        self.push(friction.next_look(at), Due::Idle(owner, place));
    }

    fn perhaps_offer(&mut self, owner: usize, place: usize) -> Result<(), Error> {
        let age = self.clock.saturating_sub(self.homes[owner].idle_since(place));
        let is_idle = self.homes[owner].gpu(place) == Gpu::Idle;
        if !is_idle || age < self.options.friction.idle_after {
            return Ok(());
        }
        self.offer(owner, place)
    }

    fn offer(&mut self, owner: usize, place: usize) -> Result<(), Error> {
        let age = self.clock.saturating_sub(self.homes[owner].idle_since(place));
        let idle_for = self.forecasts[owner].after(age);
        let generation = &mut self.generations[owner][place];
        *generation += 1;
        self.promised[owner][place] = self.clock.saturating_add(idle_for.p10);
        self.cell.offer(self.slices[owner][place], *generation, idle_for)?;
        self.homes[owner].set(place, Gpu::Offered);
        self.offered_now += 1;
        Ok(())
    }

    fn rescind(&mut self, owner: usize, place: usize) -> Result<(), Error> {
        let slice = self.slices[owner][place];
        let generation = self.generations[owner][place];
        let reason = RescindReason::Owner;
        let rescind = Command::RescindOffer { slice, generation, boot: BOOT, reason };
        self.cell.done(agent_of(slice), rescind)?;
        self.offered_now -= 1;
        Ok(())
    }

    /// Asks for a place elsewhere for a job that waits at home.
    fn ask_elsewhere(&mut self, job: usize) -> Result<(), Error> {
        let progress = &self.jobs[job];
        if progress.place != Place::Waiting || progress.request.is_some() {
            return Ok(());
        }
        let needed = progress.remaining.saturating_add(self.options.friction.overhead());
        if needed > DURATION_MAX {
            // Longer than the longest lease: it stays at home.
            return Ok(());
        }
        let asked = Job { duration: needed, ..self.workload.jobs[job] };
        let spec = RequestSpec { class: self.options.class, ..spec(&asked) };
        let number = u128::try_from(self.requests.len()).unwrap_or(u128::MAX);
        let request = RequestId::new(number);
        let tenant = self.workload.pools[asked.owner].tenant;
        self.cell.done(user_of(tenant), Command::SubmitRequest { request, tenant, spec })?;
        self.requests.push(job);
        self.jobs[job].request = Some(request);
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
            let is_refused = |group: &&GroupOutcome| matches!(group, GroupOutcome::Refused { .. });
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

    /// Returns whose job it is.
    fn start_guest(&mut self, terms: &LeaseTerms) -> Result<usize, Error> {
        self.cell.confirm(terms)?;
        let number = usize::try_from(terms.request.get()).expect("requests are numbered from 0");
        let job = self.requests[number];
        let owner = self.workload.jobs[job].owner;
        let places: Vec<(usize, usize)> =
            terms.members.iter().map(|Member { slice, .. }| self.places[slice]).collect();
        let mut until = Seconds::new(u64::MAX);
        for (lender, place) in &places {
            self.homes[*lender].set(*place, Gpu::Lent(terms.lease));
            self.offered_now -= 1;
            self.held_now += 1;
            until = until.min(self.promised[*lender][*place]);
        }
        self.lent.leases += 1;
        self.jobs[job].place = Place::Away;
        let runs = self.jobs[job].remaining.saturating_add(self.options.friction.overhead());
        self.push(self.clock.saturating_add(runs), Due::GuestEnds(terms.lease));
        let (terms, began) = (terms.clone(), self.clock);
        let guest = Guest { job, terms, began, places, is_stopping: false, until };
        self.guests.insert(guest.terms.lease, guest);
        self.queues[owner].remove(&job);
        Ok(owner)
    }

    fn guest_ends(&mut self, lease: LeaseId) -> Result<(), Error> {
        let Some(guest) = self.guests.remove(&lease) else { return Ok(()) };
        let gpus = u64::from(self.workload.jobs[guest.job].gpus);
        self.lent.useful += self.jobs[guest.job].remaining.get() * gpus;
        self.lent.overhead += self.options.friction.overhead().get() * gpus;
        let ran = self.clock.saturating_sub(guest.began);
        self.cell.stop_all(&guest.terms, ran.as_millis(), GuestOutcome::Exited { code: 0 })?;
        let progress = &mut self.jobs[guest.job];
        (progress.remaining, progress.request) = (Seconds::ZERO, None);
        progress.place = Place::Done(self.clock);
        self.leave(&guest)
    }

    /// The owner is back: the agent tells the guest to stop and then the broker.
    fn owner_is_seen(&mut self, lease: LeaseId) -> Result<(), Error> {
        let Some(guest) = self.guests.get(&lease) else { return Ok(()) };
        if guest.is_stopping {
            return Ok(());
        }
        let is_wanted = |(owner, place): &&(usize, usize)| {
            self.homes[*owner].gpu(*place) == Gpu::Clearing(lease)
        };
        let Some((owner, place)) = guest.places.iter().find(is_wanted).copied() else {
            return Ok(());
        };
        let (slice, token) = (self.slices[owner][place], guest.terms.token);
        self.lent.reclaims += 1;
        self.lent.early += u64::from(self.clock < guest.until);
        let cause = ReclaimCause::OwnerArrived;
        let reclaim = Command::ReclaimSlice { slice, token, boot: BOOT, cause };
        self.cell.done(agent_of(slice), reclaim)?;
        self.tell_to_stop(lease);
        Ok(())
    }

    /// A guest that was told to stop is killed at 80 % of its grace (LE2); it is taken to need all of
    /// that.
    fn tell_to_stop(&mut self, lease: LeaseId) {
        let Some(guest) = self.guests.get_mut(&lease) else { return };
        guest.is_stopping = true;
        let grace = guest.terms.grace.get().saturating_mul(4).div_ceil(5);
        let gone = self.clock.saturating_add(Seconds::new(grace));
        self.push(gone, Due::Gone(lease));
    }

    fn guest_is_gone(&mut self, lease: LeaseId) -> Result<(), Error> {
        let Some(guest) = self.guests.remove(&lease) else { return Ok(()) };
        let gpus = u64::from(self.workload.jobs[guest.job].gpus);
        let ran = self.clock.saturating_sub(guest.began);
        let friction = self.options.friction;
        let (kept, lost) = friction.kept(ran);
        self.lent.useful += kept.get() * gpus;
        self.lent.lost += lost.get() * gpus;
        self.lent.overhead += ran.min(friction.overhead()).get() * gpus;
        self.cell.stop_all(&guest.terms, ran.as_millis(), GuestOutcome::Stopped)?;
        // The request waits again by itself, and so does the job at home.
        let progress = &mut self.jobs[guest.job];
        progress.remaining = progress.remaining.saturating_sub(kept);
        progress.place = Place::Waiting;
        let owner = self.workload.jobs[guest.job].owner;
        self.queues[owner].insert(guest.job);
        self.leave(&guest)?;
        self.serve_home(owner)
    }

    /// A guest has left its GPUs: those that their owner wants are the owner's, the others are offered
    /// again, since nobody but the guest used them.
    fn leave(&mut self, guest: &Guest) -> Result<(), Error> {
        for (owner, place) in &guest.places {
            self.held_now -= 1;
            if matches!(self.homes[*owner].gpu(*place), Gpu::Clearing(_)) {
                self.occupy(*owner, *place);
            } else {
                self.offer(*owner, *place)?;
            }
        }
        let ready = self.blocked.remove(&guest.terms.lease).unwrap_or_default();
        ready.into_iter().try_for_each(|job| self.perhaps_start_home(job))
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
            Place::Done(at) => {
                Some(at.saturating_sub(job.submit).saturating_sub(job.duration))
            }
            _never_ran => None,
        };
        self.lent.delays = self.workload.jobs.iter().zip(&self.jobs).map(delay).collect();
        self.lent.tally = self.cell.tally;
        Ok(self.lent)
    }
}
