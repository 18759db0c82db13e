//! Reservations and backfill, end to end: streams of jobs through the real rules and matcher.
#![allow(clippy::unwrap_used, clippy::as_conversions, clippy::print_stderr, reason = "tests")]

mod flow;
mod support;

use flow::{Flow, Job, Story};
use sublet_protocol::requests::{Class, Placement, PromiseCause};
use sublet_protocol::units::Seconds;

const MINUTE: u64 = 60;
/// Idle for so long that no promise of an owner is in the way.
const IDLE: Seconds = Seconds::new(30 * 24 * 3_600);

fn job(name: &str, minute: u64, gpus: u32, minutes: u64) -> Job {
    Job {
        name: name.to_owned(),
        at: minute * MINUTE,
        tenant: if name == "BIG" { "big" } else { "a" },
        class: Class::Batch,
        gpus,
        placement: Placement::Cluster,
        bought: minutes * MINUTE,
        runs: minutes * MINUTE,
        slow: 0,
    }
}

fn granted(flow: &Flow, name: &str) -> Option<u64> {
    flow.story(name).granted.map(|at| at / MINUTE)
}

/// Our own case of the family of D08: four GPUs, a large job among a stream of small ones.
fn four_gpus() -> Vec<Job> {
    vec![
        job("s0", 0, 1, 30),
        job("s1", 4, 1, 30),
        job("BIG", 6, 4, 60),
        job("s2", 8, 1, 30),
        job("q1", 9, 1, 15),
        job("s3", 12, 1, 30),
        job("q2", 13, 1, 16),
        job("q3", 22, 1, 10),
    ]
}

#[test]
fn a_large_job_is_told_its_start_at_once_and_starts_then_while_short_ones_pass() {
    let mut flow = Flow::new(4, IDLE, 64, four_gpus());
    flow.run_until(6 * MINUTE);
    assert_eq!(flow.story("BIG").promises, vec![(360, 34 * MINUTE, PromiseCause::Queued)]);
    flow.run_until(24 * 60 * MINUTE);
    // s1 ends at 34. s2 and s3 would run past that, and q2 might: it has five minutes to start.
    assert_eq!(granted(&flow, "BIG"), Some(34));
    assert_eq!(granted(&flow, "q1"), Some(9));
    assert_eq!(granted(&flow, "q2"), Some(13), "13 + 5 + 16 is 34: the nearest that passes");
    for late in ["s2", "s3", "q3"] {
        assert_eq!(granted(&flow, late), Some(94), "{late} waits for BIG");
    }
    flow.check();
}

#[test]
fn a_job_that_would_end_a_second_too_late_does_not_pass() {
    let jobs = |seconds| {
        let mut jobs = four_gpus();
        jobs[6].bought = seconds;
        jobs[6].runs = seconds;
        jobs
    };
    for (seconds, starts) in [(16 * MINUTE, Some(13)), (16 * MINUTE + 1, Some(94))] {
        let mut flow = Flow::new(4, IDLE, 64, jobs(seconds));
        flow.run_until(24 * 60 * MINUTE);
        assert_eq!(granted(&flow, "q2"), starts, "{seconds}");
        assert_eq!(granted(&flow, "BIG"), Some(34));
    }
}

/// Case D08 as it is given, where the public cases are at hand.
#[test]
fn case_d08_comes_out_right() {
    let Some(folder) = support::shared_case("D08") else { return };
    let text = std::fs::read_to_string(folder.join("arrivals.csv")).unwrap();
    let jobs: Vec<Job> = text
        .lines()
        .skip(1)
        .filter(|line| !line.is_empty())
        .map(|line| {
            let fields: Vec<&str> = line.split(',').collect();
            let number = |place: usize| fields[place].trim().parse::<u64>().unwrap();
            job(fields[1], number(0), u32::try_from(number(2)).unwrap(), number(3))
        })
        .collect();
    let names: Vec<String> = jobs.iter().map(|job| job.name.clone()).collect();
    let mut flow = Flow::new(8, IDLE, 64, jobs);
    flow.run_until(10 * MINUTE);
    assert_eq!(flow.story("BIG").promises, vec![(600, 70 * MINUTE, PromiseCause::Queued)]);
    flow.run_until(48 * 60 * MINUTE);
    assert_eq!(granted(&flow, "BIG"), Some(70));
    for (name, at) in [("s0", 0), ("s1", 5), ("s2", 10), ("q1", 20), ("q2", 30)] {
        assert_eq!(granted(&flow, name), Some(at), "{name} starts when it arrives");
    }
    for name in
        names.iter().filter(|name| !["BIG", "s0", "s1", "s2", "q1", "q2"].contains(&&***name))
    {
        let at = granted(&flow, name).unwrap();
        assert!(at >= 190, "{name} passes BIG at minute {at}");
    }
}

/// Scenario 18 (kueue#8309): a gang never starts because small jobs take each GPU that comes free.
#[test]
fn scenario_18_kueue_8309_a_gang_that_starves_holds_its_reservation() {
    let mut jobs = vec![job("first", 0, 7, 60), job("BIG", 1, 8, 60)];
    jobs[0].runs = 20 * MINUTE;
    // A stream of small jobs of a tenant that holds nothing, so that its share is always lower.
    jobs.extend(
        (0..90).map(|number| Job { tenant: "b", ..job(&format!("s{number}"), 2 + number, 1, 61) }),
    );
    let mut flow = Flow::new(8, IDLE, 64, jobs);
    flow.run_until(24 * 60 * MINUTE);
    // The first job may run for 60 minutes and ends after 20: nobody came in between.
    assert_eq!(flow.story("BIG").promises[0], (60, 60 * MINUTE, PromiseCause::Queued));
    assert_eq!(granted(&flow, "BIG"), Some(20));
}

#[test]
fn an_owner_who_returns_breaks_a_promise_and_the_new_one_says_so() {
    let mut flow = Flow::new(8, IDLE, 64, vec![job("s0", 0, 1, 30), job("BIG", 5, 8, 60)]);
    flow.owner_uses(7, 10 * MINUTE, 50 * MINUTE);
    flow.run_until(5 * MINUTE);
    assert_eq!(flow.story("BIG").promises.len(), 1);
    flow.run_until(24 * 60 * MINUTE);
    let Story { promises, withdrawn, granted } = flow.story("BIG").clone();
    // With seven GPUs no instant can be named; when the eighth is back it starts at once.
    assert_eq!(withdrawn, vec![PromiseCause::OwnerReturned]);
    assert_eq!(promises.len(), 1);
    assert_eq!(granted, Some(50 * MINUTE));
    let mut flow = Flow::new(
        16,
        IDLE,
        64,
        vec![job("s0", 0, 16, 30), job("BIG", 5, 8, 60), job("s1", 6, 15, 60)],
    );
    flow.owner_uses(0, 10 * MINUTE, 500 * MINUTE);
    flow.run_until(24 * 60 * MINUTE);
    flow.check();
    assert!(flow.story("BIG").granted.is_some());
}

/// A random stream: xorshift64 (Marsaglia 2003).
fn stream(seed: u64, classes: &[Class]) -> Vec<Job> {
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut below = move |bound: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % bound
    };
    let mut at = 0;
    let jobs = (0..20).map(|number| {
        at += below(600);
        let bought = [300, 900, 1_800, 3_600, 7_200][below(5) as usize] + below(60);
        Job {
            name: format!("j{number}"),
            at,
            tenant: ["a", "b", "big"][below(3) as usize],
            class: classes[below(classes.len() as u64) as usize],
            gpus: [1, 1, 1, 1, 2, 2, 4, 8, 12, 16][below(10) as usize],
            placement: [Placement::Cluster, Placement::Cluster, Placement::Node][below(3) as usize],
            bought,
            // What was bought bounds what is run, and some take their time to start.
            runs: [bought, bought, 1 + below(bought)][below(3) as usize],
            slow: [0, 0, 5, 250][below(4) as usize],
        }
    });
    jobs.collect()
}

fn walk(seed: u64, classes: &[Class]) -> Flow {
    let mut flow = Flow::new(16, IDLE, 24, stream(seed, classes));
    flow.run_until(400 * 3_600);
    flow.check();
    flow
}

/// Nobody starts later than promised, no promise is withdrawn, and whoever could ever start does.
fn keep_promises(seeds: std::ops::Range<u64>) {
    let (mut promised, mut early) = (0_u32, 0_u32);
    for seed in seeds {
        let flow = walk(seed, &[Class::Batch]);
        for (job, story) in flow.jobs() {
            let at = || format!("seed {seed}, {}", job.name);
            assert_eq!(story.withdrawn, vec![], "{}", at());
            let mut latest = u64::MAX;
            for (made, start, cause) in &story.promises {
                let is_told = matches!(cause, PromiseCause::Queued | PromiseCause::Earlier);
                assert!(is_told && *start <= latest, "{} at {made}: {cause:?}", at());
                latest = *start;
            }
            let Some(granted) = story.granted else {
                let is_impossible = job.gpus > 8 && job.placement == Placement::Node;
                assert!(story.promises.is_empty() && is_impossible, "{} starves: {job:?}", at());
                continue;
            };
            assert!(granted <= latest, "{}: {granted} is after {latest}", at());
            promised += u32::from(!story.promises.is_empty());
            early += u32::from(!story.promises.is_empty() && granted < latest);
        }
    }
    assert!(
        promised > 500 && promised - early > 20,
        "too few are tried: {promised}, {early} early"
    );
    eprintln!("{promised} promises kept, {early} of them early");
}

// M9: a thousand random streams, in four parts that can run side by side.

#[test]
fn in_250_random_streams_nobody_starts_later_than_promised() {
    keep_promises(0..250);
}

#[test]
fn in_250_other_random_streams_nobody_starts_later_than_promised() {
    keep_promises(250..500);
}

#[test]
fn in_250_more_random_streams_nobody_starts_later_than_promised() {
    keep_promises(500..750);
}

#[test]
fn in_the_last_250_random_streams_nobody_starts_later_than_promised() {
    keep_promises(750..1_000);
}

#[test]
fn across_tiers_a_promise_is_broken_by_a_higher_one_only() {
    let all = [Class::Experiment, Class::Batch, Class::Latency];
    for seed in 1..=100 {
        let flow = walk(seed, &all);
        for (job, story) in flow.jobs() {
            for (_, _, cause) in &story.promises {
                let is_higher = *cause == PromiseCause::Outranked && job.class == Class::Latency;
                assert!(!is_higher, "seed {seed}, {}: nothing outranks {cause:?}", job.name);
                assert!(!matches!(cause, PromiseCause::OwnerReturned), "seed {seed}");
            }
        }
    }
}
