//! The charged replay: what owners feel, what guests lose, and that nothing is made from nothing.
#![allow(clippy::unwrap_used, clippy::as_conversions, clippy::print_stderr, reason = "tests")]

use sublet_protocol::units::{Permille, Seconds};
use sublet_simulations::lending::{Friction, Lent, Options, Report, replay};
use sublet_simulations::replay::{self, Policy, Window, Workload};

mod support;
use support::{made_up, shared_data};

const STRICT: Options = Options {
    friction: Friction {
        idle_after: Seconds::new(600),
        sample: Seconds::new(30),
        start: Seconds::new(5),
        staging: Seconds::new(60),
        checkpoint: Some(Seconds::new(300)),
    },
    class: sublet_protocol::requests::Class::Experiment,
    check_every: 1,
};

fn with(change: impl FnOnce(&mut Friction)) -> Options {
    let mut options = STRICT;
    change(&mut options.friction);
    options
}

#[track_caller]
fn run(workload: &Workload, options: Options) -> Lent {
    let lent = replay(workload, options, &mut |_| {}).unwrap();
    assert_eq!(lent.tally.first_violations, []);
    assert_eq!(lent.tally.groups_refused, 0);
    assert!(lent.is_balanced);
    lent
}

/// GPU-seconds of the jobs that ran.
fn work(workload: &Workload, lent: &Lent) -> u64 {
    let ran = workload.jobs.iter().zip(&lent.delays).filter(|(_, delay)| delay.is_some());
    ran.map(|(job, _)| job.duration.get() * u64::from(job.gpus)).sum()
}

#[test]
fn all_work_is_done_once_at_home_or_by_guests() {
    for seed in 1..=6 {
        let workload = made_up(seed, 150);
        let lent = run(&workload, STRICT);
        assert_eq!(lent.own + lent.useful, work(&workload, &lent), "seed {seed}");
        assert!(lent.useful > 0 && lent.reclaims > 0 && lent.lost > 0, "seed {seed}: {lent:?}");
        assert!(lent.held <= lent.offered && lent.offered <= lent.idle, "seed {seed}");
    }
}

#[test]
fn owners_who_lend_nothing_wait_as_in_the_static_baseline() {
    let workload = made_up(5, 200);
    let lent = run(&workload, with(|friction| friction.idle_after = Seconds::new(1 << 40)));
    assert_eq!((lent.leases, lent.useful, lent.owner_delays.len()), (0, 0, 0));
    let options = replay::Options { check_every: 1_000 };
    let fifo = replay::replay(&workload, Policy::StaticFifo, options, &mut |_| {}).unwrap();
    assert_eq!(lent.delays, fifo.waits);
}

#[test]
fn an_owner_waits_for_a_look_and_a_guests_grace_and_no_longer() {
    let workload = made_up(2, 300);
    let lent = run(&workload, STRICT);
    let longest = lent.owner_delays.iter().max().unwrap();
    // A look is at most 30 s away; a guest of the lowest tier is killed at 80 % of its 30 s.
    assert!(*longest <= Seconds::new(30 + 24), "{longest:?}");
    assert!(*longest > Seconds::ZERO);
}

#[test]
fn what_lending_costs_is_paid_by_guests() {
    let workload = made_up(3, 200);
    let free = with(|friction| {
        friction.start = Seconds::ZERO;
        friction.staging = Seconds::ZERO;
        friction.checkpoint = Some(Seconds::new(1));
    });
    let free = run(&workload, free);
    assert_eq!((free.overhead, free.lost), (0, 0));
    let never = run(&workload, with(|friction| friction.checkpoint = None));
    let often = run(&workload, STRICT);
    assert!(never.lost > often.lost, "{} {}", never.lost, often.lost);
    assert!(often.overhead > 0);
}

#[test]
fn two_replays_are_equal() {
    let workload = made_up(7, 150);
    assert_eq!(run(&workload, STRICT), run(&workload, STRICT));
}

#[test]
fn a_report_adds_up() {
    let workload = made_up(4, 200);
    let lent = run(&workload, STRICT);
    let asked = (STRICT, Window::PHILLY, Permille::new(850));
    let report = Report::new(&workload, asked, &lent, std::time::Duration::from_millis(2));
    assert!(report.is_sound());
    assert_eq!(report.tenants.iter().map(|t| t.jobs).sum::<usize>() + report.dropped, report.jobs);
    assert_eq!(report.home_starts_delayed, lent.owner_delays.len());
    assert_eq!(report.owner_delay.max, lent.owner_delays.iter().max().unwrap().get());
    let spent = lent.useful + lent.lost + lent.overhead;
    assert_eq!(report.gpu_hours.goodput_permille, lent.useful * 1_000 / spent);
    let text = report.to_string();
    assert!(text.contains("taken back by owners") && text.contains("goodput"), "{text}");
}

/// On the first days of the trace; `docs/simulation.md` has the whole, done by a release build.
#[test]
fn on_philly_no_tenant_waits_longer_than_in_its_own_pool_though_lending_is_charged() {
    let Some(folder) = shared_data("philly-2017") else { return };
    let window = Window { days: 6, ..Window::PHILLY };
    let workload = Workload::philly(&folder, window, Permille::new(850)).unwrap();
    let lent = run(&workload, Options { check_every: 10_000, ..STRICT });
    let options = replay::Options { check_every: 10_000 };
    let fifo = replay::replay(&workload, Policy::StaticFifo, options, &mut |_| {}).unwrap().waits;
    for owner in 0..workload.pools.len() {
        let of = |waits: &[Option<Seconds>]| {
            let own = workload.jobs.iter().zip(waits).filter(|(job, _)| job.owner == owner);
            let waits: Vec<u64> = own.filter_map(|(_, wait)| wait.map(Seconds::get)).collect();
            waits.iter().sum::<u64>() / waits.len() as u64
        };
        let (ours, theirs) = (of(&lent.delays), of(&fifo));
        // A job that leaves home pays for its start, so there must be some wait to save.
        assert!(ours <= theirs.max(120), "{}: {ours} {theirs}", workload.pools[owner].tenant);
    }
}
