//! Small series by hand: what is lent, taken back, given back and counted.

use sublet_protocol::ids::TenantId;
use sublet_protocol::units::{Seconds, Timestamp};

use super::series::{Minute, Need, Series};
use super::{Recovered, Report, replay};
use crate::lending::Friction;

const FRICTION: Friction = Friction {
    idle_after: Seconds::new(600),
    sample: Seconds::new(30),
    start: Seconds::ZERO,
    staging: Seconds::new(60),
    checkpoint: Some(Seconds::new(300)),
};

/// A lender of 16 GPUs and a borrower of 8 that has none idle, minute by minute: what the lender
/// leaves idle, and the jobs and GPUs that the borrower waits for.
fn series(minutes: &[(u32, (u32, u32))]) -> Series {
    let minute = |(idle, (jobs, gpus)): &(u32, (u32, u32))| {
        let needs = [Need { jobs: *jobs, gpus: *gpus }, Need::default()];
        vec![Minute { idle: *idle, needs: [Need::default(); 2] }, Minute { idle: 0, needs }]
    };
    let tenant = |name| TenantId::new(name).unwrap();
    Series {
        starts_at: Timestamp::new(1_588_262_400_000),
        tenants: vec![(tenant("lender"), 16), (tenant("waiter"), 8)],
        minutes: minutes.iter().map(minute).collect(),
    }
}

#[track_caller]
fn run(series: &Series) -> Recovered {
    let sums = replay(series, FRICTION, 1, &mut |_| {}).unwrap();
    assert_eq!(sums.tally.first_violations, []);
    assert_eq!(sums.tally.groups_refused, 0);
    assert!(sums.is_balanced);
    assert_eq!(sums.misses, 0);
    sums
}

#[test]
fn idle_gpus_are_lent_from_the_eleventh_minute_to_who_waits() {
    // Two jobs of two GPUs wait for half an hour while four GPUs are idle.
    let sums = run(&series(&[(4, (2, 4)); 30]));
    assert_eq!((sums.leases, sums.reclaims), (2, 0));
    assert_eq!(sums.idle, 4 * 30 * 60);
    assert_eq!(sums.bound, 4 * 30 * 60);
    // Offered at minute 10, so held for 20 minutes, of which the first is staging.
    assert_eq!(sums.held, 4 * 20 * 60);
    assert_eq!(sums.useful, 4 * 19 * 60);
    assert_eq!(sums.overhead, 4 * 60);
}

#[test]
fn an_owner_takes_back_what_it_needs_and_the_guest_loses_what_it_did_not_save() {
    let mut minutes = vec![(4, (2, 4)); 30];
    minutes.extend([(2, (2, 4)); 5]);
    let sums = run(&series(&minutes));
    assert_eq!(sums.reclaims, 1);
    assert_eq!((sums.arrivals, sums.arrivals_delayed), (2, 2));
    // Seen after a look, gone at 80 % of 30 s.
    assert_eq!((sums.owner_wait, sums.owner_wait_max), (2 * 54, 54));
    // It ran for 20 minutes and 54 s; the first minute is staging, and of the rest 15 are saved.
    assert_eq!(sums.lost, 2 * (19 * 60 + 54 - 15 * 60));
}

#[test]
fn when_less_waits_the_last_who_asked_gives_back_and_its_work_counts() {
    let mut minutes = vec![(4, (2, 4)); 20];
    minutes.extend([(4, (1, 2)); 10]);
    let sums = run(&series(&minutes));
    assert_eq!((sums.leases, sums.reclaims, sums.lost), (2, 0, 0));
    assert_eq!(sums.useful, 2 * (19 * 60 + 9 * 60));
}

#[test]
fn nobody_waits_or_nothing_is_idle_long_enough_and_nothing_is_lent() {
    assert_eq!(run(&series(&[(4, (0, 0)); 30])).leases, 0);
    assert_eq!(run(&series(&[(4, (1, 1)); 10])).leases, 0);
    let flicker: Vec<_> = (0..60).map(|minute| (4 * u32::from(minute % 9 != 0), (1, 1))).collect();
    assert_eq!(run(&series(&flicker)).leases, 0);
}

#[test]
fn a_report_gives_shares_of_what_was_idle_and_of_what_was_of_use() {
    let series = series(&[(8, (2, 4)); 30]);
    let report = Report::new(&series, &run(&series), std::time::Duration::ZERO);
    assert_eq!(report.recovered_of_idle_permille, 1_000 * (4 * 19) / (8 * 30));
    assert_eq!(report.recovered_of_bound_permille, 1_000 * 19 / 30);
    assert!(report.is_sound());
    assert!(report.to_string().contains("31.6 % of the idle time, 63.3 % of what was of use"));
}
