//! The clockwork: one step a minute.

use std::collections::{BTreeMap, BTreeSet};

use sublet_core::matching;
use sublet_protocol::capacity::SliceId;
use sublet_protocol::commands::{
    Actor, Command, GroupOutcome, GuestOutcome, Outcome, ReclaimCause,
};
use sublet_protocol::events::Event;
use sublet_protocol::ids::{LeaseId, RequestId};
use sublet_protocol::leases::LeaseTerms;
use sublet_protocol::offers::RescindReason;
use sublet_protocol::requests::{Class, DURATION_MAX, RequestSpec};
use sublet_protocol::units::{GpuMilli, Seconds};

use super::series::{Minute, Need, Series};
use crate::lending::{Forecast, Friction};
use crate::replay::cell::{BOOT, Cell, Error, Tally, agent_of, user_of};
use crate::replay::policy::cluster_of;
use crate::replay::run::spec;
use crate::replay::{GPUS_PER_NODE, Job};

const MINUTE: u64 = 60;

/// What came of it. GPU-seconds over the whole trace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Left idle by owners.
    pub idle: u64,
    /// Asked for by jobs that waited.
    pub wanted: u64,
    /// The most that could have been recovered: in each minute, the less of idle and wanted.
    pub bound: u64,
    /// Offered or held by guests.
    pub offered: u64,
    /// Held by guests.
    pub held: u64,
    /// Guests' work that was kept.
    pub useful: u64,
    /// Guests' work that was lost with a reclaim.
    pub lost: u64,
    /// Guests' starts and staging.
    pub overhead: u64,
    /// Leases granted.
    pub leases: u64,
    /// Leases that an owner took back.
    pub reclaims: u64,
    /// Of these, leases whose owner came earlier than nine times in ten was promised.
    pub early: u64,
    /// GPUs that owners began to use again.
    pub arrivals: u64,
    /// Of these, GPUs on which a guest had to go first.
    pub arrivals_delayed: u64,
    /// How long each of those waited for its guest, together, seconds.
    pub owner_wait: u64,
    /// The longest of these waits, seconds.
    pub owner_wait_max: u64,
    /// Guests that were not gone when their grace was over.
    pub misses: u64,
    /// Commands, records and checks.
    pub tally: Tally,
    /// Whether the books balance and no hold is left open.
    pub is_balanced: bool,
}

/// Who uses a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gpu {
    Own,
    Idle,
    Offered,
    Lent(LeaseId),
}

struct Device {
    slice: SliceId,
    gpu: Gpu,
    idle_since: Seconds,
    generation: u64,
    /// Until when nine owners in ten would be away.
    promised: Seconds,
}

struct Guest {
    request: RequestId,
    terms: LeaseTerms,
    began: Seconds,
    places: Vec<(usize, usize)>,
}

/// What a tenant asks for elsewhere, of one size class: GPUs by request, in the order of asking.
type Asked = BTreeMap<RequestId, u32>;

struct Run<'a> {
    series: &'a Series,
    friction: Friction,
    cell: Cell,
    devices: Vec<Vec<Device>>,
    places: BTreeMap<SliceId, (usize, usize)>,
    forecasts: Vec<Forecast>,
    asked: Vec<[Asked; 2]>,
    guests: BTreeMap<LeaseId, Guest>,
    leases: BTreeMap<RequestId, LeaseId>,
    next_request: u128,
    clock: Seconds,
    sums: Recovered,
}

/// Replays `series`; `progress` is told how many minutes are done.
///
/// # Errors
/// If the rules refuse something that must be allowed: a bug here or there.
pub fn replay(
    series: &Series,
    friction: Friction,
    check_every: u64,
    progress: &mut dyn FnMut(usize),
) -> Result<Recovered, Error> {
    let mut run = Run::new(series, friction, check_every)?;
    for (number, minute) in series.minutes.iter().enumerate() {
        run.at(Seconds::new(u64::try_from(number).unwrap_or(u64::MAX).saturating_mul(MINUTE)));
        run.owners(minute)?;
        run.demands(minute)?;
        run.plan()?;
        run.count(minute);
        progress(number + 1);
    }
    run.finish()
}

impl<'a> Run<'a> {
    fn new(series: &'a Series, friction: Friction, check_every: u64) -> Result<Self, Error> {
        let mut cell = Cell::found(series.starts_at, check_every)?;
        // Quotas bind nobody, and stand in the proportion of what tenants own.
        let smallest = series.tenants.iter().map(|(_, gpus)| u64::from(*gpus)).min().unwrap_or(1);
        let factor = series.gpus().div_ceil(smallest.max(1));
        let mut devices = Vec::new();
        for (ordinal, (tenant, gpus)) in series.tenants.iter().enumerate() {
            let quota = u64::from(*gpus).saturating_mul(factor);
            let quota = GpuMilli::new(quota.saturating_mul(GpuMilli::DEVICE.get()));
            cell.add_tenant(*tenant, quota)?;
            let nodes = gpus.div_ceil(GPUS_PER_NODE);
            let slices = cell.register_cluster(cluster_of(*tenant), *tenant, (ordinal, nodes))?;
            let device = |slice| Device {
                slice,
                gpu: Gpu::Own,
                idle_since: Seconds::ZERO,
                generation: 0,
                promised: Seconds::ZERO,
            };
            let count = usize::try_from(*gpus).unwrap_or(usize::MAX);
            devices.push(slices.into_iter().take(count).map(device).collect::<Vec<_>>());
        }
        let place = |(owner, own): (usize, &Vec<Device>)| {
            own.iter()
                .enumerate()
                .map(move |(at, one)| (one.slice, (owner, at)))
                .collect::<Vec<_>>()
        };
        Ok(Run {
            series,
            friction,
            cell,
            places: devices.iter().enumerate().flat_map(place).collect(),
            forecasts: devices.iter().map(|_| Forecast::default()).collect(),
            asked: devices.iter().map(|_| [Asked::new(), Asked::new()]).collect(),
            devices,
            guests: BTreeMap::new(),
            leases: BTreeMap::new(),
            next_request: 0,
            clock: Seconds::ZERO,
            sums: Recovered::default(),
        })
    }

    fn at(&mut self, clock: Seconds) {
        self.clock = clock;
        self.cell.advance(self.series.starts_at.after(clock));
    }

    /// Owners' jobs stand on their first GPUs: what they need is taken back, what they leave is idle.
    fn owners(&mut self, minute: &[Minute]) -> Result<(), Error> {
        let now = self.clock;
        let mut unwanted = BTreeMap::<LeaseId, Vec<(usize, usize)>>::new();
        for (owner, one) in minute.iter().enumerate() {
            let total = self.devices[owner].len();
            let idle = usize::try_from(one.idle).unwrap_or(usize::MAX);
            let used = total.saturating_sub(idle);
            for place in 0..total {
                match (place < used, self.devices[owner][place].gpu) {
                    (true, Gpu::Own) => {}
                    (true, Gpu::Lent(lease)) => {
                        unwanted.entry(lease).or_default().push((owner, place));
                    }
                    (true, Gpu::Idle) => self.arrive(owner, place),
                    (true, Gpu::Offered) => {
                        self.rescind(owner, place)?;
                        self.arrive(owner, place);
                    }
                    (false, Gpu::Own) => {
                        let device = &mut self.devices[owner][place];
                        (device.gpu, device.idle_since) = (Gpu::Idle, now);
                    }
                    (false, Gpu::Idle) => {
                        let since = self.devices[owner][place].idle_since;
                        if now.saturating_sub(since) >= self.friction.idle_after {
                            self.offer(owner, place)?;
                        }
                    }
                    (false, Gpu::Offered | Gpu::Lent(_)) => {}
                }
            }
        }
        self.reclaim(unwanted)
    }

    fn arrive(&mut self, owner: usize, place: usize) {
        let device = &mut self.devices[owner][place];
        self.forecasts[owner].learn(self.clock.saturating_sub(device.idle_since));
        device.gpu = Gpu::Own;
        self.sums.arrivals += 1;
    }

    fn rescind(&mut self, owner: usize, place: usize) -> Result<(), Error> {
        let Device { slice, generation, .. } = self.devices[owner][place];
        let reason = RescindReason::Owner;
        let rescind = Command::RescindOffer { slice, generation, boot: BOOT, reason };
        self.cell.done(agent_of(slice), rescind).map(|_| ())
    }

    fn offer(&mut self, owner: usize, place: usize) -> Result<(), Error> {
        let device = &mut self.devices[owner][place];
        let idle_for = self.forecasts[owner].after(self.clock.saturating_sub(device.idle_since));
        device.generation += 1;
        device.promised = self.clock.saturating_add(idle_for.p10);
        device.gpu = Gpu::Offered;
        self.cell.offer(device.slice, device.generation, idle_for)
    }

    /// Owners are seen at the next look, which is a whole period away, and guests are gone at 80 % of
    /// their grace: all of that is within the minute.
    fn reclaim(&mut self, unwanted: BTreeMap<LeaseId, Vec<(usize, usize)>>) -> Result<(), Error> {
        if unwanted.is_empty() {
            return Ok(());
        }
        let arrived = self.clock;
        let seen = arrived.saturating_add(self.friction.sample);
        self.at(seen);
        for (lease, wanted) in &unwanted {
            let Some((owner, place)) = wanted.first().copied() else { continue };
            let (slice, token) = (self.devices[owner][place].slice, self.guests[lease].terms.token);
            let cause = ReclaimCause::OwnerArrived;
            let reclaim = Command::ReclaimSlice { slice, token, boot: BOOT, cause };
            self.cell.done(agent_of(slice), reclaim)?;
            self.sums.reclaims += 1;
            let is_early =
                wanted.iter().any(|(owner, place)| arrived < self.devices[*owner][*place].promised);
            self.sums.early += u64::from(is_early);
        }
        for (lease, wanted) in unwanted {
            let grace = self.guests[&lease].terms.grace;
            let takes = Seconds::new(grace.get().saturating_mul(4).div_ceil(5));
            self.at(self.clock.max(seen.saturating_add(takes)));
            self.sums.misses += u64::from(self.clock.saturating_sub(seen) > grace);
            let guest = self.end(lease, GuestOutcome::Stopped)?;
            let wait = self.clock.saturating_sub(arrived).get();
            for (owner, place) in wanted {
                self.arrive(owner, place);
                self.sums.arrivals_delayed += 1;
                self.sums.owner_wait += wait;
                self.sums.owner_wait_max = self.sums.owner_wait_max.max(wait);
            }
            self.offer_again(&guest)?;
        }
        Ok(())
    }

    /// What of a guest's GPUs no owner uses is offered again at once: it was idle all the time.
    fn offer_again(&mut self, guest: &Guest) -> Result<(), Error> {
        for (owner, place) in &guest.places {
            if self.devices[*owner][*place].gpu == Gpu::Lent(guest.terms.lease) {
                self.offer(*owner, *place)?;
            }
        }
        Ok(())
    }

    /// A guest is gone. If it was stopped, its request waits again.
    fn end(&mut self, lease: LeaseId, outcome: GuestOutcome) -> Result<Guest, Error> {
        let guest = self.guests.remove(&lease).expect("only guests that run are ended");
        self.leases.remove(&guest.request);
        let ran = self.clock.saturating_sub(guest.began);
        let gpus = u64::try_from(guest.places.len()).unwrap_or(u64::MAX);
        let (kept, lost) = match outcome {
            GuestOutcome::Exited { .. } => {
                (ran.saturating_sub(self.friction.overhead()), Seconds::ZERO)
            }
            GuestOutcome::Stopped | GuestOutcome::NeverStarted => self.friction.kept(ran),
        };
        self.sums.useful += kept.get() * gpus;
        self.sums.lost += lost.get() * gpus;
        self.sums.overhead += ran.min(self.friction.overhead()).get() * gpus;
        self.cell.stop_all(&guest.terms, ran.as_millis(), outcome)?;
        Ok(guest)
    }

    /// Brings what tenants ask for elsewhere to what waits in the trace.
    fn demands(&mut self, minute: &[Minute]) -> Result<(), Error> {
        for (tenant, one) in minute.iter().enumerate() {
            for (class, need) in one.needs.into_iter().enumerate() {
                self.give_back(tenant, class, need)?;
                self.ask(tenant, class, need)?;
            }
        }
        Ok(())
    }

    fn asked(&self, tenant: usize, class: usize) -> u32 {
        self.asked[tenant][class].values().sum()
    }

    /// The last who asked goes first, and who still waits before who has a lease.
    fn give_back(&mut self, tenant: usize, class: usize, need: Need) -> Result<(), Error> {
        while self.asked(tenant, class) > need.gpus {
            let asked = &self.asked[tenant][class];
            let waits = asked.keys().rev().find(|request| !self.leases.contains_key(request));
            let Some(request) = waits.or_else(|| asked.keys().next_back()).copied() else {
                return Ok(());
            };
            self.asked[tenant][class].remove(&request);
            match self.leases.get(&request).copied() {
                Some(lease) => {
                    let guest = self.end(lease, GuestOutcome::Exited { code: 0 })?;
                    self.offer_again(&guest)?;
                }
                None => {
                    let user = user_of(self.series.tenants[tenant].0);
                    self.cell.done(user, Command::CancelRequest { request })?;
                }
            }
        }
        Ok(())
    }

    fn ask(&mut self, tenant: usize, class: usize, need: Need) -> Result<(), Error> {
        loop {
            let missing = need.gpus.saturating_sub(self.asked(tenant, class));
            if missing == 0 {
                return Ok(());
            }
            // Jobs of a class are taken to be of one size.
            let gpus = need.gpus.div_ceil(need.jobs.max(1)).min(missing);
            let duration = DURATION_MAX;
            let job = Job { owner: tenant, submit: self.clock, duration, gpus };
            let spec = RequestSpec { class: Class::Experiment, ..spec(&job) };
            let request = RequestId::new(self.next_request);
            self.next_request += 1;
            let id = self.series.tenants[tenant].0;
            self.cell.done(user_of(id), Command::SubmitRequest { request, tenant: id, spec })?;
            self.asked[tenant][class].insert(request, gpus);
        }
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
            for record in &applied.records {
                if let Event::LeaseGranted { terms, .. } = &record.event {
                    self.start(terms)?;
                }
            }
            if refused == groups.len() {
                return Ok(());
            }
        }
    }

    fn start(&mut self, terms: &LeaseTerms) -> Result<(), Error> {
        self.cell.confirm(terms)?;
        let places: Vec<(usize, usize)> =
            terms.members.iter().map(|member| self.places[&member.slice]).collect();
        for (owner, place) in &places {
            self.devices[*owner][*place].gpu = Gpu::Lent(terms.lease);
        }
        self.sums.leases += 1;
        self.leases.insert(terms.request, terms.lease);
        let guest =
            Guest { request: terms.request, terms: terms.clone(), began: self.clock, places };
        self.guests.insert(terms.lease, guest);
        Ok(())
    }

    fn count(&mut self, minute: &[Minute]) {
        let idle: u64 = minute.iter().map(|one| u64::from(one.idle)).sum();
        let needs = minute.iter().flat_map(|one| one.needs);
        let wanted: u64 = needs.map(|need| u64::from(need.gpus)).sum();
        let count = |is: fn(Gpu) -> bool| {
            let all = self.devices.iter().flatten().filter(|device| is(device.gpu));
            u64::try_from(all.count()).unwrap_or(u64::MAX)
        };
        let held = count(|gpu| matches!(gpu, Gpu::Lent(_)));
        let offered = count(|gpu| gpu == Gpu::Offered);
        self.sums.idle += idle * MINUTE;
        self.sums.wanted += wanted * MINUTE;
        self.sums.bound += idle.min(wanted) * MINUTE;
        self.sums.held += held * MINUTE;
        self.sums.offered += (held + offered) * MINUTE;
    }

    /// The trace is over: what still runs has done its work.
    fn finish(mut self) -> Result<Recovered, Error> {
        self.at(self.clock.saturating_add(Seconds::new(MINUTE)));
        let running: BTreeSet<LeaseId> = self.guests.keys().copied().collect();
        for lease in running {
            self.end(lease, GuestOutcome::Exited { code: 0 })?;
        }
        self.cell.check();
        let accounts = self.cell.accounts();
        self.sums.is_balanced = accounts.is_balanced() && accounts.open_holds().next().is_none();
        self.sums.tally = self.cell.tally;
        Ok(self.sums)
    }
}
