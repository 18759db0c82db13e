//! Makes the tables of this module from the traces (`sublet-sim fit`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use jiff::civil::Weekday;

use crate::replay::Window;
use crate::traces::{
    Error, VcName, helios as helios_trace, openb as openb_trace, philly as philly_trace,
};

use super::owners::{BUSY_SHAPES, IDLE_SHAPES, QUARTERS};
use super::profile::{EVERYONE, LARGE_GPUS};
use super::shape::Quantiles;
use super::table::Table;

/// Jobs of one tenant and size that follow each other within this many seconds are one burst.
const BURST_GAP_SECONDS_MAX: i64 = 60;
/// Durations within a quarter of each other count as alike.
const ALIKE_QUARTERS: u64 = 4;
/// Fewer large jobs than this tell nothing about their durations.
const LARGE_JOBS_MIN: usize = 20;
/// GPUs of one node.
const NODE_GPUS: u32 = 8;

/// Fits arrivals, sizes and durations of each tenant to the jobs of the Philly trace in `folder`.
pub fn philly(folder: &Path) -> Result<Table, Error> {
    let window = Window::PHILLY;
    let tenants: BTreeSet<VcName> =
        philly_trace::nodes(folder)?.into_iter().map(|(vc, _)| vc).collect();
    let mut jobs = BTreeMap::<VcName, Vec<philly_trace::Job>>::new();
    for job in philly_trace::jobs(&philly_trace::jobs_file(folder)?)? {
        let job = job?;
        let day = philly_trace::zone().to_datetime(job.submit).date();
        if day >= window.first && tenants.contains(&job.vc) {
            jobs.entry(job.vc.clone()).or_default().push(job);
        }
    }
    let mut table = Table::new(&[
        "Arrivals, sizes and durations of the jobs of the Philly trace (Jeon et al., ATC'19,",
        "msr-fiddle/philly-traces, CC-BY-4.0), submitted from 2017-10-01 to the end of the file.",
        "Made by: sublet-sim fit --trace philly --data DIR",
    ]);
    for (vc, jobs) in &jobs {
        fit_tenant(&mut table, vc.tenant().as_str(), jobs);
    }
    Ok(table)
}

fn fit_tenant(table: &mut Table, tenant: &str, jobs: &[philly_trace::Job]) {
    let zone = philly_trace::zone();
    let bursts = jobs.chunk_by(|one, next| {
        one.gpus == next.gpus
            && next.submit.as_second() - one.submit.as_second() <= BURST_GAP_SECONDS_MAX
    });
    let mut per_weekday = BTreeMap::<u64, u64>::new();
    let mut per_hour = BTreeMap::<u64, u64>::new();
    let mut per_gpus = BTreeMap::<u64, u64>::new();
    let mut sizes = [Vec::new(), Vec::new()];
    let mut gaps = Vec::new();
    let mut alike = 0;
    for burst in bursts {
        let begin = zone.to_datetime(burst[0].submit);
        *per_weekday.entry(weekday_number(begin.weekday())).or_default() += 1;
        *per_hour.entry(u64::from(begin.hour().unsigned_abs())).or_default() += 1;
        *per_gpus.entry(u64::from(burst[0].gpus)).or_default() += 1;
        sizes[usize::from(burst[0].gpus > 1)].push(u64::try_from(burst.len()).unwrap_or(u64::MAX));
        for pair in burst.windows(2) {
            gaps.push(pair[1].submit.as_second().abs_diff(pair[0].submit.as_second()));
            let durations = [pair[0].duration_seconds, pair[1].duration_seconds];
            alike += u64::from(are_alike(durations));
        }
    }
    let days = days_by_weekday(jobs);
    for (weekday, bursts) in &per_weekday {
        let days = days.get(weekday).copied().unwrap_or(1);
        table.push(tenant, "bursts_per_kiloday", *weekday, bursts * 1_000 / days);
    }
    table.push_counts(tenant, "hour", &per_hour);
    // Hundreds of jobs at once are jobs of one GPU.
    for (shape, sizes) in ["burst_size_single", "burst_size_several"].into_iter().zip(sizes) {
        push_quantiles(table, tenant, shape, sizes);
    }
    let pairs = u64::try_from(gaps.len()).unwrap_or(u64::MAX);
    // A tenant that never submits twice in a row: its bursts are single jobs and their gap is never drawn.
    push_quantiles(table, tenant, "burst_gap", if gaps.is_empty() { vec![0] } else { gaps });
    table.push(tenant, "burst_alike", 0, alike * 1_000 / pairs.max(1));
    table.push_counts(tenant, "gpus", &per_gpus);
    let durations = |is_large: bool| -> Vec<u64> {
        let of_size = jobs.iter().filter(|job| (job.gpus >= LARGE_GPUS) == is_large);
        of_size.map(|job| job.duration_seconds).collect()
    };
    let (mut usual, large) = (durations(false), durations(true));
    if large.len() >= LARGE_JOBS_MIN && !usual.is_empty() {
        push_quantiles(table, tenant, "duration", usual);
        push_quantiles(table, tenant, "duration_large", large);
    } else {
        usual.extend(large);
        push_quantiles(table, tenant, "duration", usual);
    }
}

fn are_alike(durations: [u64; 2]) -> bool {
    let [shorter, longer] = [durations[0].min(durations[1]), durations[0].max(durations[1])];
    longer - shorter <= shorter / ALIKE_QUARTERS
}

/// How many of each weekday lie between the first and the last job, both included.
fn days_by_weekday(jobs: &[philly_trace::Job]) -> BTreeMap<u64, u64> {
    let last = jobs.iter().map(|job| job.submit).max();
    let last = last.map(|last| philly_trace::zone().to_datetime(last).date());
    let mut days = BTreeMap::new();
    let mut day = Window::PHILLY.first;
    while last.is_some_and(|last| day <= last) {
        *days.entry(weekday_number(day.weekday())).or_default() += 1;
        match day.tomorrow() {
            Ok(tomorrow) => day = tomorrow,
            Err(_) => break,
        }
    }
    days
}

/// 1 = Monday to 7 = Sunday.
fn weekday_number(weekday: Weekday) -> u64 {
    u64::from(weekday.to_monday_one_offset().unsigned_abs())
}

/// Fits how long owners' work stays and stays away to the minutes of Helios "Earth" in `folder`.
///
/// The trace says how many GPUs a virtual cluster has idle, not which. The k-th node of a cluster
/// counts as idle while at least 8 k GPUs are: idle GPUs are taken as gathered on few nodes, which
/// is what an owner that wants to lend can do and lends the longest.
pub fn helios(folder: &Path) -> Result<Table, Error> {
    let mut idle_gpus = BTreeMap::<VcName, Vec<(i8, u32, u32)>>::new();
    for minute in helios_trace::minutes(folder, "earth_vc_minute")? {
        let minute = minute?;
        let state = (minute.time.hour(), minute.idle_gpus, minute.gpus.total);
        idle_gpus.entry(minute.vc).or_default().push(state);
    }
    let mut turns = Turns::default();
    for minutes in idle_gpus.values() {
        let most = minutes.iter().map(|(_, _, total)| total / NODE_GPUS).max().unwrap_or(0);
        for node in 1..=most {
            turns.add_node(minutes, node);
        }
    }
    let mut table = Table::new(&[
        "How long nodes of 8 GPUs of Helios \"Earth\" (Hu et al., SC'21, HeliosData, CC-BY-4.0) are",
        "idle and busy, minutes by the quarter of the day in which it begins, 2020-05-01 to 22.",
        "Made by: sublet-sim fit --trace helios --data DIR",
    ]);
    table.push(EVERYONE, "idle_permille", 0, turns.idle_minutes * 1_000 / turns.minutes.max(1));
    for (shapes, turns) in [(BUSY_SHAPES, turns.busy), (IDLE_SHAPES, turns.idle)] {
        for (shape, lengths) in shapes.into_iter().zip(turns) {
            push_quantiles(&mut table, EVERYONE, shape, lengths);
        }
    }
    Ok(table)
}

/// Lengths of turns, minutes, by the quarter of the day in which they begin.
#[derive(Default)]
struct Turns {
    busy: [Vec<u64>; QUARTERS],
    idle: [Vec<u64>; QUARTERS],
    minutes: u64,
    idle_minutes: u64,
}

impl Turns {
    /// Cuts the minutes of a virtual cluster into the turns of its `node`-th node. Turns that the trace
    /// cuts off at either end count as long as they were seen.
    fn add_node(&mut self, minutes: &[(i8, u32, u32)], node: u32) {
        let exists = minutes.iter().filter(|(_, _, total)| total / NODE_GPUS >= node);
        let states: Vec<(i8, bool)> =
            exists.map(|(hour, idle, _)| (*hour, *idle >= node * NODE_GPUS)).collect();
        for turn in states.chunk_by(|one, next| one.1 == next.1) {
            let (hour, is_idle) = turn[0];
            let length = u64::try_from(turn.len()).unwrap_or(u64::MAX);
            let quarter = usize::from(hour.unsigned_abs() / 6).min(QUARTERS - 1);
            self.minutes += length;
            if is_idle {
                self.idle_minutes += length;
                self.idle[quarter].push(length);
            } else {
                self.busy[quarter].push(length);
            }
        }
    }
}

/// Fits what goes with a GPU to the pods of `file`, an openb pod list.
pub fn openb(file: &Path) -> Result<Table, Error> {
    let (mut cpu, mut memory) = (Vec::new(), Vec::new());
    let mut shares = BTreeMap::<u64, u64>::new();
    for pod in openb_trace::pods(file)? {
        let pod = pod?;
        if pod.gpus == 0 {
            continue;
        }
        *shares.entry(u64::from(pod.gpu_milli.div_ceil(100) * 100)).or_default() += 1;
        if pod.gpu_milli == openb_trace::WHOLE_GPU_MILLI {
            cpu.push(u64::from(pod.cpu_milli / pod.gpus));
            memory.push(u64::from(pod.memory_mib / pod.gpus));
        }
    }
    let mut table = Table::new(&[
        "CPU and host memory per GPU of pods that ask for whole GPUs, and how often pods ask for which",
        "share (rounded up to tenths), in the default pod list of openb (Weng et al., ATC'23,",
        "Apache-2.0). Made by: sublet-sim fit --trace openb --data DIR",
    ]);
    push_quantiles(&mut table, EVERYONE, "cpu_milli_per_gpu", cpu);
    push_quantiles(&mut table, EVERYONE, "memory_mib_per_gpu", memory);
    table.push_counts(EVERYONE, "share_milli", &shares);
    Ok(table)
}

/// Adds the quantiles of `values`, nothing if there are none.
fn push_quantiles(table: &mut Table, subject: &str, shape: &str, values: Vec<u64>) {
    if let Some(quantiles) = Quantiles::of(values) {
        table.push_quantiles(subject, shape, &quantiles);
    }
}
