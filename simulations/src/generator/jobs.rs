//! The sequence of jobs.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use sublet_protocol::ids::TenantId;
use sublet_protocol::requests::Class;
use sublet_protocol::units::{CpuMilli, MiB, Seconds};

use super::profile::{Profile, TenantProfile};
use super::random::Random;

/// Longest duration drawn, seconds: the longest lease.
const DURATION_MAX: u64 = sublet_protocol::requests::DURATION_MAX.get();
/// A rate is spread over minutes in millionths of a burst.
const MILLION: u64 = 1_000_000;

/// One job that someone submits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Job {
    /// Who.
    pub tenant: TenantId,
    /// When, after the start of the story. Never before the job that came before.
    pub submit: Seconds,
    /// How many GPUs, at least 1.
    pub gpus: u32,
    /// How long it will run, 1 second to 30 days.
    pub duration: Seconds,
    /// What kind of work.
    pub class: Class,
    /// CPU for each GPU.
    pub cpu: CpuMilli,
    /// Host memory for each GPU.
    pub host_memory: MiB,
}

/// An endless sequence of jobs in the order they are submitted, the same for the same seed and profile.
/// It ends only if no tenant of the profile ever submits.
#[derive(Debug, Clone)]
pub struct Generator {
    profile: Profile,
    /// One source per tenant: what one does changes nothing for the others.
    randoms: Vec<Random>,
    /// The next minute to be filled.
    minute: u64,
    /// Jobs of filled minutes and bursts that go on, first submitted first.
    pending: BinaryHeap<Reverse<Pending>>,
    sequence: u64,
}

/// Ordered by time, then by when it was drawn.
#[derive(Debug, Clone)]
struct Pending {
    submit: Seconds,
    sequence: u64,
    job: Job,
}

impl PartialEq for Pending {
    fn eq(&self, other: &Self) -> bool {
        (self.submit, self.sequence) == (other.submit, other.sequence)
    }
}
impl Eq for Pending {}
impl PartialOrd for Pending {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Pending {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.submit, self.sequence).cmp(&(other.submit, other.sequence))
    }
}

impl Generator {
    /// The jobs of `profile` for `seed`.
    pub fn new(seed: u64, profile: Profile) -> Self {
        let randoms = (1_u64..).map(|stream| Random::new(seed, stream));
        let randoms = randoms.take(profile.tenants.len()).collect();
        Self { profile, randoms, minute: 0, pending: BinaryHeap::new(), sequence: 0 }
    }

    fn is_silent(&self) -> bool {
        let never = |tenant: &TenantProfile| {
            tenant.bursts_per_kiloday.iter().all(|rate| *rate == 0)
                || tenant.hours.iter().all(|weight| *weight == 0)
        };
        self.profile.tenants.iter().all(never)
    }

    /// Draws all bursts that begin in the next minute.
    fn fill_minute(&mut self) {
        let hours = self.minute / 60 + u64::from(self.profile.first_hour);
        let weekday = hours / 24 + u64::from(self.profile.first_weekday);
        let (hour, weekday) = (index(hours % 24), index(weekday % 7));
        for owner in 0..self.profile.tenants.len() {
            let rate = millionths_per_minute(&self.profile.tenants[owner], weekday, hour);
            let random = &mut self.randoms[owner];
            let bursts = rate / MILLION + u64::from(random.chance(rate % MILLION, MILLION));
            for _ in 0..bursts {
                let begin = self.minute * 60 + self.randoms[owner].below(60);
                self.draw_burst(owner, begin);
            }
        }
        self.minute += 1;
    }

    fn draw_burst(&mut self, owner: usize, begin: u64) {
        let Self { profile, randoms, pending, sequence, .. } = self;
        let (tenant, random) = (&profile.tenants[owner], &mut randoms[owner]);
        let gpus = tenant.gpus.draw(random);
        let class = tenant.classes.draw(random);
        let durations = tenant.durations.of(gpus);
        let mut submit = begin;
        let mut duration = durations.draw(random);
        for member in 0..tenant.burst.size(gpus).draw(random).max(1) {
            if member > 0 {
                submit += tenant.burst.gap.draw(random);
                if !random.chance(u64::from(tenant.burst.alike.get()), 1_000) {
                    duration = durations.draw(random);
                }
            }
            let job = Job {
                tenant: tenant.tenant,
                submit: Seconds::new(submit),
                gpus,
                duration: Seconds::new(duration.clamp(1, DURATION_MAX)),
                class,
                cpu: CpuMilli::new(profile.cpu_milli.draw(random)),
                host_memory: MiB::new(profile.host_memory_mib.draw(random)),
            };
            pending.push(Reverse(Pending { submit: job.submit, sequence: *sequence, job }));
            *sequence += 1;
        }
    }
}

impl Iterator for Generator {
    type Item = Job;

    fn next(&mut self) -> Option<Job> {
        if self.pending.is_empty() && self.is_silent() {
            return None;
        }
        let filled_until = |minute: u64| Seconds::new(minute * 60);
        while self
            .pending
            .peek()
            .is_none_or(|Reverse(first)| first.submit >= filled_until(self.minute))
        {
            self.fill_minute();
        }
        self.pending.pop().map(|Reverse(pending)| pending.job)
    }
}

/// Bursts that a tenant begins in one minute of this hour, in millionths.
fn millionths_per_minute(tenant: &TenantProfile, weekday: usize, hour: usize) -> u64 {
    let hours: u64 = tenant.hours.iter().sum();
    let per_kiloday = u128::from(tenant.bursts_per_kiloday[weekday]);
    // per kiloday × (MILLION / 1,000 days) × the hour's share / 60 minutes
    let rate =
        per_kiloday * 1_000 * u128::from(tenant.hours[hour]) / (60 * u128::from(hours.max(1)));
    u64::try_from(rate).unwrap_or(u64::MAX)
}

fn index(small: u64) -> usize {
    usize::try_from(small).expect("an hour or a weekday")
}
