//! The replay through the real rules against the oracle.
#![allow(clippy::unwrap_used, clippy::as_conversions, clippy::print_stderr, reason = "tests")]

use sublet_protocol::requests::DURATION_MAX;
use sublet_protocol::units::Permille;
use sublet_simulations::replay::{Options, Policy, Report, Window, Workload, replay};

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
