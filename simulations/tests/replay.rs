//! The replay through the real rules against the oracle.
#![allow(clippy::unwrap_used, clippy::as_conversions, clippy::print_stderr, reason = "tests")]

use sublet_protocol::ids::TenantId;
use sublet_protocol::requests::DURATION_MAX;
use sublet_protocol::units::{Permille, Seconds, Timestamp};
use sublet_simulations::replay::{
    Job, Options, Policy, Pool, Report, Shaping, Window, Workload, replay, shape,
};

mod reference;
mod support;
use support::{made_up, shared_data};

const STRICT: Options = Options { check_every: 1 };

fn oracle(policy: Policy) -> Option<reference::Policy> {
    match policy {
        Policy::StaticFifo => Some(reference::Policy::StaticFifo),
        Policy::StaticSjf => Some(reference::Policy::StaticShortestFirst),
        Policy::Borrow => Some(reference::Policy::Borrow),
        Policy::Pool => Some(reference::Policy::OnePool),
        Policy::Sublet => None,
    }
}

#[track_caller]
fn agrees_with_the_oracle(workload: &Workload, policy: Policy, options: Options) {
    let replayed = replay(workload, policy, options, &mut |_| {}).unwrap();
    assert_eq!(replayed.tally.first_violations, [], "{policy}");
    assert_eq!(replayed.tally.groups_refused, 0, "{policy}");
    assert!(replayed.is_balanced, "{policy}");
    let Some(oracle) = oracle(policy) else { return };
    let expected = reference::run(workload, oracle);
    let waits: Vec<_> = replayed.waits.iter().map(|wait| wait.map(|wait| wait.get())).collect();
    let other = waits.iter().zip(&expected.waits).position(|(ours, theirs)| ours != theirs);
    let other = other.map(|job| (job, waits[job], expected.waits[job]));
    assert_eq!(other, None, "{policy}: the first job that waits otherwise");
}

#[test]
fn every_job_waits_as_long_as_in_the_oracle_on_made_up_loads() {
    for seed in 1..=4 {
        let workload = made_up(seed, 60);
        for policy in Policy::ALL {
            agrees_with_the_oracle(&workload, policy, STRICT);
        }
    }
}

#[test]
fn two_replays_are_equal() {
    let workload = made_up(7, 150);
    for policy in Policy::ALL {
        let run = || replay(&workload, policy, Options::default(), &mut |_| {}).unwrap();
        assert_eq!(run(), run(), "{policy}");
    }
}

#[test]
fn progress_reaches_the_number_of_jobs() {
    let workload = made_up(1, 40);
    let mut last = 0;
    replay(&workload, Policy::Sublet, STRICT, &mut |jobs| last = jobs).unwrap();
    assert_eq!(last, 40);
}

#[test]
fn a_report_counts_what_ran_and_what_was_dropped() {
    let workload = made_up(3, 90);
    let load = Permille::new(850);
    for policy in Policy::ALL {
        let replayed = replay(&workload, policy, STRICT, &mut |_| {}).unwrap();
        let run = (policy, Window::PHILLY, load);
        let report =
            Report::new(&workload, run, &replayed, std::time::Duration::from_millis(1_500));
        let tenants: usize = report.tenants.iter().map(|tenant| tenant.jobs + tenant.dropped).sum();
        assert_eq!(tenants, report.jobs);
        assert_eq!(
            report.tenants.iter().map(|tenant| tenant.dropped).sum::<usize>(),
            report.dropped
        );
        let ran = workload.jobs.iter().zip(&replayed.waits).filter(|(_, wait)| wait.is_some());
        let gpu_seconds: u64 = ran.map(|(job, _)| job.duration.get() * u64::from(job.gpus)).sum();
        assert_eq!(report.gpu_seconds, gpu_seconds);
        assert!(report.is_sound());
        assert!((report.rho, report.wall_seconds) == (0.85, 1.5));
    }
}

/// The design's table, seconds at loads 0.70 and 0.85.
const TABLE: [(Policy, [f64; 2]); 4] = [
    (Policy::StaticFifo, [80_142.0, 103_777.0]),
    (Policy::StaticSjf, [14_619.0, 22_042.0]),
    (Policy::Pool, [157.0, 6_134.0]),
    (Policy::Borrow, [134.0, 2_837.0]),
];

/// A whole replay takes a second optimised and a minute not: this test does three days of the trace in
/// debug builds and all of it, against the table, in release builds.
#[test]
fn the_public_trace_gives_the_designs_table() {
    let Some(folder) = shared_data("philly-2017") else { return };
    let is_short = cfg!(debug_assertions);
    let window = Window { days: if is_short { 3 } else { 38 }, ..Window::PHILLY };
    for (column, load) in [700, 850].into_iter().enumerate() {
        let workload = Workload::philly(&folder, window, Permille::new(load)).unwrap();
        // The oracle knows no longest lease: two jobs of the trace run longer and ask twice.
        let mut capped = workload.clone();
        capped.jobs.iter_mut().for_each(|job| job.duration = job.duration.min(DURATION_MAX));
        for (policy, expected) in TABLE {
            agrees_with_the_oracle(&capped, policy, Options::default());
            if is_short {
                continue;
            }
            let replayed = replay(&workload, policy, Options::default(), &mut |_| {}).unwrap();
            let run = (policy, window, Permille::new(load));
            let mean = Report::new(&workload, run, &replayed, Default::default()).avg_queue_seconds;
            eprintln!("{policy} at {load}: {mean}, the table says {}", expected[column]);
            assert!((mean - expected[column]).abs() <= 0.02 * expected[column], "{policy}: {mean}");
        }
    }
    if is_short {
        eprintln!(
            "left out: the design's table needs `cargo test --release`, three days were replayed"
        );
    }
}

/// Six days: by day a job of two GPUs every ten minutes, by night a small one an hour.
fn days(nodes: u32) -> Workload {
    let mut jobs = Vec::new();
    for minute in (0..6 * 24 * 60).step_by(10) {
        let (hour, turn) = (minute / 60 % 24, minute / 10);
        let is_day = (9..17).contains(&hour);
        if is_day || minute % 60 == 0 {
            let (minutes, gpus) = if is_day { (60 + 7 * (turn % 9), 2) } else { (30, 1) };
            let (submit, duration) = (Seconds::new(minute * 60), Seconds::new(minutes * 60));
            jobs.push(Job { owner: 0, submit, duration, gpus });
        }
    }
    let pool = Pool { tenant: TenantId::new("only").unwrap(), nodes, listed: 0 };
    Workload { starts_at: Timestamp::new(1_506_830_400_000), pools: vec![pool], jobs }
}

#[test]
fn peaks_fall_when_some_may_wait_and_no_deadline_is_missed_for_it() {
    let patience = Seconds::new(20 * 3_600);
    let shaping = Shaping { percent: 40, patience, hours: 8 };
    // With room for all, and with so little that by day there is a queue.
    for (nodes, falls, later) in [(4, 10, 40), (2, 0, 20)] {
        let workload = days(nodes);
        let shaped = shape(&workload, shaping, STRICT, &mut |_| {}).unwrap();
        println!("{shaped}");
        let (before, after) = (shaped.at_once.peak, shaped.shaped.peak);
        assert!(after * 100 <= before * (100 - falls), "{nodes} nodes: {before} to {after}");
        assert!(shaped.later >= later, "{nodes} nodes: {shaped:?}");
        assert_eq!((shaped.missed, shaped.violations), (0, 0), "{nodes} nodes");
        assert_eq!(shaped.met, shaped.may_wait, "there is time for all");
    }
}
