//! What becomes of the peaks when part of the jobs may wait for better hours, and of their deadlines.
//!
//! The trace is replayed twice by the production planner. The first time every job starts as soon as it
//! can. What was in use then, hour by hour of the day in the first half of the days, says which hours are
//! off-peak: nothing of the second half is known beforehand. The second time so many of the jobs of the
//! second half ask to wait for these hours. The second halves are compared.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;

use sublet_core::matching::LATE_MAX;
use sublet_protocol::deferral::{Deferral, WINDOWS_MAX, Window};
use sublet_protocol::units::{Seconds, Timestamp};

use super::cell::Error;
use super::policy::Policy;
use super::run::{Options, Replayed, declared, replay_deferred};
use super::{Job, Workload};

const HOUR: u64 = 3_600;
const HOURS_A_DAY: usize = 24;

/// Which jobs may wait for better hours, and how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shaping {
    /// Of a hundred jobs so many may wait, spread evenly over the submissions.
    pub percent: u8,
    /// How much later than at once they may start at the most.
    pub patience: Seconds,
    /// So many hours of a day are off-peak, 1 to 23.
    pub hours: usize,
}

/// What is in use in an hour, in thousandths of a GPU on average.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Demand {
    /// In the busiest hour that is not off-peak.
    pub most: u64,
    /// In the busiest twentieth of the hours that are not off-peak, on average.
    pub peak: u64,
    /// In the busiest off-peak hour: those who waited start when the first one begins.
    pub off_peak: u64,
}

/// What waiting did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shaped {
    /// The hours of the day, counted from the start of the trace, that are off-peak.
    pub off_peak: BTreeSet<usize>,
    /// When everyone starts at once.
    pub at_once: Demand,
    /// When some wait.
    pub shaped: Demand,
    /// How many jobs may wait.
    pub may_wait: usize,
    /// How many of them started later than they would have at once.
    pub later: usize,
    /// How many of them are over by their deadline when they start at once.
    pub met: usize,
    /// How many of these are late when they wait.
    pub missed: usize,
    /// Broken rules, in both replays.
    pub violations: u64,
}

/// Which jobs wait for which hours.
#[derive(Debug, Clone)]
pub(super) struct Waiting {
    shaping: Shaping,
    off_peak: BTreeSet<usize>,
    /// Jobs submitted earlier do not wait.
    from: Seconds,
}

impl Waiting {
    /// What the job asks for when it is submitted at `now` for `declared`, by the workload's clock; nothing
    /// if it does not wait.
    pub(super) fn asked(
        &self,
        (index, job): (usize, &Job),
        starts_at: Timestamp,
        start_timeout: Seconds,
    ) -> Option<Deferral> {
        if !may_wait(self.shaping, self.from, (index, job)) {
            return None;
        }
        let (now, last) = (job.submit.get(), job.submit.get() + self.shaping.patience.get());
        let mut windows: Vec<(u64, u64)> = Vec::new();
        for hour in now / HOUR..=last / HOUR {
            if !self.off_peak.contains(&hour_of_day(hour)) {
                continue;
            }
            let (from, until) = ((hour * HOUR).max(now), ((hour + 1) * HOUR).min(last));
            match windows.last_mut() {
                Some(window) if window.1 == from => window.1 = until,
                _apart if from < until => windows.push((from, until)),
                _empty => {}
            }
        }
        windows.truncate(WINDOWS_MAX);
        let at = |seconds: u64| starts_at.after(Seconds::new(seconds));
        let windows =
            windows.into_iter().map(|(from, until)| Window { from: at(from), until: at(until) });
        let deadline = Some(starts_at.after(deadline(self.shaping, job, start_timeout)));
        let windows = windows.collect();
        Some(Deferral { not_before: None, deadline, windows, start_by: at(last) })
    }
}

/// Whether the job may wait.
fn may_wait(shaping: Shaping, from: Seconds, (index, job): (usize, &Job)) -> bool {
    // 37 has no factor with 100: each hundred jobs in a row has as many as said.
    job.submit >= from && index * 37 % 100 < usize::from(shaping.percent)
}

/// By when the job must be over: it may run for what it declared, and a start may be late by a moment.
fn deadline(shaping: Shaping, job: &Job, start_timeout: Seconds) -> Seconds {
    let start = job.submit.saturating_add(shaping.patience).saturating_add(LATE_MAX);
    start.saturating_add(start_timeout).saturating_add(declared(job.duration))
}

fn hour_of_day(hour: u64) -> usize {
    usize::try_from(hour).unwrap_or(0) % HOURS_A_DAY
}

/// Replays the workload with and without waiting; `progress` is told how many jobs of both are done with.
pub fn shape(
    workload: &Workload,
    shaping: Shaping,
    options: Options,
    progress: &mut dyn FnMut(usize),
) -> Result<Shaped, Error> {
    let last = workload.jobs.last().map_or(Seconds::ZERO, |job| job.submit);
    let days = last.get() / (HOUR * 24) + 1;
    let from = Seconds::new(days / 2 * 24 * HOUR);
    let at_once = replay_deferred(workload, Policy::Sublet, (options, None), progress)?;
    let half = usize::try_from(from.get() / HOUR).unwrap_or(usize::MAX);
    let off_peak = quietest(at_once.hours.get(..half).unwrap_or(&[]), shaping.hours);
    let waiting = Waiting { shaping, off_peak: off_peak.clone(), from };
    let jobs = workload.jobs.len();
    let mut more = |done: usize| progress(jobs + done);
    let shaped = replay_deferred(workload, Policy::Sublet, (options, Some(&waiting)), &mut more)?;
    let end = usize::try_from(days * 24).unwrap_or(usize::MAX);
    let of = |replayed: &Replayed| {
        let mut hours = replayed.hours.clone();
        hours.resize(end.max(hours.len()), 0);
        demand(&hours, half..end, &off_peak)
    };
    let start_timeout = at_once.start_timeout;
    let (mut may, mut later, mut met, mut missed) = (0, 0, 0, 0);
    for (index, job) in workload.jobs.iter().enumerate() {
        if !may_wait(shaping, from, (index, job)) || at_once.waits[index].is_none() {
            continue;
        }
        let due = deadline(shaping, job, start_timeout);
        let is_met = |replayed: &Replayed| replayed.ended[index].is_some_and(|end| end <= due);
        may += 1;
        later += usize::from(shaped.waits[index] > at_once.waits[index]);
        met += usize::from(is_met(&at_once));
        missed += usize::from(is_met(&at_once) && !is_met(&shaped));
    }
    let violations = at_once.tally.violations + shaped.tally.violations;
    let (before, after) = (of(&at_once), of(&shaped));
    Ok(Shaped {
        off_peak,
        at_once: before,
        shaped: after,
        may_wait: may,
        later,
        met,
        missed,
        violations,
    })
}

/// The hours of the day in which least was in use; of equal ones the earlier.
fn quietest(hours: &[u64], count: usize) -> BTreeSet<usize> {
    let mut of_day = [0_u64; HOURS_A_DAY];
    for (hour, used) in hours.iter().enumerate() {
        of_day[hour % HOURS_A_DAY] += used;
    }
    let mut order: Vec<usize> = (0..HOURS_A_DAY).collect();
    order.sort_by_key(|hour| (of_day[*hour], *hour));
    order.into_iter().take(count).collect()
}

/// Of GPU-seconds in each hour, those in `span`.
fn demand(hours: &[u64], span: Range<usize>, off_peak: &BTreeSet<usize>) -> Demand {
    let milli = |gpu_seconds: u64, hours: usize| {
        let hours = u64::try_from(hours).unwrap_or(u64::MAX).max(1);
        gpu_seconds * 1_000 / HOUR / hours
    };
    let of = |is_off_peak: bool| {
        let hours = hours.iter().enumerate().filter(|(hour, _)| span.contains(hour));
        let here =
            hours.filter(|(hour, _)| off_peak.contains(&(hour % HOURS_A_DAY)) == is_off_peak);
        let mut used: Vec<u64> = here.map(|(_, used)| *used).collect();
        used.sort_unstable_by_key(|used| Reverse(*used));
        used
    };
    let (by_day, by_night) = (of(false), of(true));
    let most = |hours: &[u64]| milli(hours.first().copied().unwrap_or(0), 1);
    let busiest = by_day.len().div_ceil(20);
    Demand {
        most: most(&by_day),
        peak: milli(by_day.iter().take(busiest).sum(), busiest),
        off_peak: most(&by_night),
    }
}

impl fmt::Display for Shaped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hours: Vec<String> = self.off_peak.iter().map(usize::to_string).collect();
        writeln!(f, "off-peak hours by the first half: {}", hours.join(", "))?;
        writeln!(
            f,
            "jobs that may wait: {}; {} started later; {} are over in time at once, {} of them late",
            self.may_wait, self.later, self.met, self.missed
        )?;
        writeln!(f, "\nGPUs in use in an hour       at once     shaped")?;
        let rows = [
            ("busiest peak hour", self.at_once.most, self.shaped.most),
            ("busiest 5 % of those", self.at_once.peak, self.shaped.peak),
            ("busiest off-peak hour", self.at_once.off_peak, self.shaped.off_peak),
        ];
        for (name, at_once, shaped) in rows {
            let gpus = |milli: u64| format!("{}.{}", milli / 1_000, milli % 1_000 / 100);
            writeln!(f, "{name:<24} {:>11} {:>10}", gpus(at_once), gpus(shaped))?;
        }
        writeln!(f, "\nrules: {} violations", self.violations)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quietest_hours_are_those_of_all_days_together() {
        let mut hours = vec![10; 48];
        (hours[3], hours[27]) = (0, 4);
        hours[5] = 1;
        hours[7 + 24] = 2;
        assert_eq!(quietest(&hours, 3), BTreeSet::from([3, 5, 7]));
        assert_eq!(quietest(&[], 2), BTreeSet::from([0, 1]), "of equal ones the earlier");
    }

    #[test]
    fn demand_is_of_hours_on_average() {
        let mut hours = vec![HOUR; 72];
        (hours[10], hours[24 + 10], hours[24 + 11]) = (90 * HOUR, 9 * HOUR, 4 * HOUR);
        hours[24 + 2] = 7 * HOUR;
        let seen = demand(&hours, 24..72, &(0..8).collect());
        // Two of the 32 hours by day are a twentieth, rounded up.
        assert_eq!(seen, Demand { most: 9_000, peak: 6_500, off_peak: 7_000 });
    }

    #[test]
    fn a_job_waits_for_hours_that_lie_within_its_patience() {
        let shaping = Shaping { percent: 100, patience: Seconds::new(6 * HOUR), hours: 3 };
        let waiting = Waiting { shaping, off_peak: BTreeSet::from([1, 2, 5]), from: Seconds::ZERO };
        let (submit, duration) = (Seconds::new(HOUR + 600), Seconds::new(60));
        let job = Job { owner: 0, submit, duration, gpus: 1 };
        let start = Timestamp::new(1_000);
        let asked = waiting.asked((0, &job), start, Seconds::new(300)).unwrap();
        let at = |seconds: u64| start.after(Seconds::new(seconds));
        let window = |from, until| Window { from: at(from), until: at(until) };
        assert_eq!(asked.windows, [window(4_200, 3 * HOUR), window(5 * HOUR, 6 * HOUR)]);
        assert_eq!(asked.start_by, at(7 * HOUR + 600));
        assert!(asked.is_sound());
    }
}
