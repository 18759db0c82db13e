//! One suite for every driver: what the session relies on, whoever runs the guest.

use std::collections::VecDeque;
use std::thread::sleep;
use std::time::{Duration, Instant};

use sublet_agent::driver::process::{Config, ProcessDriver};
use sublet_agent::driver::sim::{Behaviour, SimDriver, WhenTold};
use sublet_agent::driver::{Driver, Exit, Guest, GuestKey, Report, StartFailure, StopSignal};
use sublet_agent::guard::boottime_now;
use sublet_protocol::agent::Workload;
use sublet_protocol::capacity::{Part, SliceId};
use sublet_protocol::ids::{ClusterId, DeviceId, LeaseId, NodeId, Token};
use sublet_protocol::units::Millis;

const FOR_LONG: u64 = 600_000;
/// How long the guests that end by themselves run.
const SHORT: u64 = 100;

/// What a guest of the suite does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Does {
    EndsSoonWith(i32),
    RunsAndObeys,
    RunsAndIgnores,
    IsMissing,
}

/// A driver with the time it lives in.
pub(crate) struct Bench {
    pub(crate) driver: Box<dyn Driver>,
    kind: Kind,
    reports: VecDeque<Report>,
    has_printed: bool,
    _scratch: Option<tempfile::TempDir>,
}

enum Kind {
    /// Time that passes only when it is waited for.
    Simulated(Millis),
    Real,
}

pub(crate) fn slice(device: u128) -> SliceId {
    SliceId {
        cluster: ClusterId::new("c").unwrap(),
        node: NodeId::new("n").unwrap(),
        device: DeviceId::new(device),
        part: Part::Whole,
    }
}

pub(crate) fn guest(counter: u64, argv: &[&str], deadline: Millis) -> Guest {
    Guest {
        key: GuestKey { slice: slice(1), token: Token { epoch: 0, counter } },
        lease: LeaseId::new(u128::from(counter)),
        devices: vec![DeviceId::new(1)],
        deadline,
        left: Millis::new(FOR_LONG),
        workload: Some(Workload {
            argv: argv.iter().map(ToString::to_string).collect(),
            env: vec![],
        }),
    }
}

/// Word for word what the real guest does.
fn argv(does: Does) -> Vec<String> {
    let shell = |script: &str| vec!["sh".to_owned(), "-c".to_owned(), script.to_owned()];
    match does {
        Does::EndsSoonWith(code) => shell(&format!("sleep 0.1; exit {code}")),
        Does::RunsAndObeys => shell("trap 'exit 0' TERM; echo ready; while :; do sleep 0.02; done"),
        Does::RunsAndIgnores => shell("trap '' TERM; echo ready; while :; do sleep 1; done"),
        Does::IsMissing => vec!["/no/such/program".to_owned()],
    }
}

fn behaviour(guest: &Guest) -> Behaviour {
    let told = guest.workload.clone().unwrap().argv;
    let good = Behaviour::good(None);
    let all = [Does::RunsAndObeys, Does::RunsAndIgnores, Does::IsMissing];
    match all.into_iter().find(|does| argv(*does) == told) {
        Some(Does::RunsAndIgnores) => Behaviour { when_told: WhenTold::Ignores, ..good },
        Some(Does::IsMissing) => {
            let failure = StartFailure::ProgramMissing { program: told[0].clone() };
            Behaviour { starts: Err(failure), ..good }
        }
        Some(Does::RunsAndObeys | Does::EndsSoonWith(_)) => good,
        None => {
            let code = told[2].rsplit(' ').next().unwrap().parse().unwrap();
            Behaviour { runs: Some(Millis::new(SHORT)), exit: Exit::Code(code), ..good }
        }
    }
}

pub(crate) fn process_driver() -> (ProcessDriver, tempfile::TempDir) {
    let scratch = tempfile::tempdir().unwrap();
    let config = Config {
        guard_program: env!("CARGO_BIN_EXE_sublet-agent").into(),
        scratch: scratch.path().join("guests"),
        speed: std::num::NonZeroU32::MIN,
    };
    (ProcessDriver::new(config), scratch)
}

impl Bench {
    pub(crate) fn simulated() -> Self {
        let driver = Box::new(SimDriver::new(Box::new(behaviour)));
        let kind = Kind::Simulated(Millis::ZERO);
        Self { driver, kind, reports: VecDeque::new(), has_printed: false, _scratch: None }
    }

    pub(crate) fn real() -> Self {
        let (driver, scratch) = process_driver();
        let driver = Box::new(driver);
        Self {
            driver,
            kind: Kind::Real,
            reports: VecDeque::new(),
            has_printed: false,
            _scratch: Some(scratch),
        }
    }

    pub(crate) fn now(&self) -> Millis {
        match self.kind {
            Kind::Simulated(now) => now,
            Kind::Real => boottime_now(),
        }
    }

    fn wait(&mut self) {
        match &mut self.kind {
            Kind::Simulated(now) => *now = now.saturating_add(Millis::new(5)),
            Kind::Real => sleep(Duration::from_millis(5)),
        }
    }

    pub(crate) fn start(&mut self, counter: u64, does: Does, deadline: u64) -> GuestKey {
        let argv = argv(does);
        let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
        let deadline = self.now().saturating_add(Millis::new(deadline));
        let guest = guest(counter, &argv, deadline);
        let (now, key) = (self.now(), guest.key);
        self.driver.start(now, guest);
        key
    }

    /// Waits until a guest has set its traps, which a real one says.
    #[track_caller]
    fn wait_until_ready(&mut self, key: GuestKey) {
        assert_eq!(self.next(), Report::Started(key));
        let start = Instant::now();
        while matches!(self.kind, Kind::Real) && !self.has_printed {
            assert!(start.elapsed() < Duration::from_secs(20), "never ready");
            self.wait();
            let reports = self.driver.poll(self.now());
            self.has_printed = reports.iter().any(|one| matches!(one, Report::Output { .. }));
        }
    }

    /// The next report that is no output.
    #[track_caller]
    pub(crate) fn next(&mut self) -> Report {
        let start = Instant::now();
        while self.reports.is_empty() {
            assert!(start.elapsed() < Duration::from_secs(20), "no report came");
            self.wait();
            let reports = self.driver.poll(self.now());
            self.has_printed |= reports.iter().any(|one| matches!(one, Report::Output { .. }));
            let told = reports.into_iter().filter(|one| !matches!(one, Report::Output { .. }));
            self.reports.extend(told);
        }
        self.reports.pop_front().unwrap()
    }

    /// Checks that nothing is reported for `millis`.
    #[track_caller]
    fn quiet_for(&mut self, millis: u64) {
        let end = self.now().saturating_add(Millis::new(millis));
        while self.now() < end {
            self.wait();
            let reports = self.driver.poll(self.now());
            assert_eq!(reports, [], "a report came");
        }
    }
}

/// Runs one row of the suite with every driver.
#[track_caller]
fn with_each(check: fn(&mut Bench)) {
    check(&mut Bench::simulated());
    check(&mut Bench::real());
}

#[test]
fn a_guest_starts_ends_with_its_code_and_is_clean() {
    with_each(|bench| {
        for (counter, code) in [(1, 0), (2, 3)] {
            let key = bench.start(counter, Does::EndsSoonWith(code), FOR_LONG);
            assert_eq!(bench.next(), Report::Started(key));
            assert_eq!(bench.next(), Report::Exited(key, Exit::Code(code)));
            assert_eq!(bench.next(), Report::Clean(key));
        }
        bench.quiet_for(50);
    });
}

#[test]
fn a_missing_program_is_a_clear_failure_and_nothing_is_left() {
    with_each(|bench| {
        let key = bench.start(1, Does::IsMissing, FOR_LONG);
        let failure = StartFailure::ProgramMissing { program: "/no/such/program".to_owned() };
        assert_eq!(failure.to_string(), "there is no program \"/no/such/program\"");
        assert_eq!(bench.next(), Report::NotStarted(key, failure));
        bench.quiet_for(50);
    });
}

#[test]
fn a_guest_that_obeys_ends_when_told() {
    with_each(|bench| {
        let key = bench.start(1, Does::RunsAndObeys, FOR_LONG);
        bench.wait_until_ready(key);
        bench.driver.signal(bench.now(), key, StopSignal::Terminate);
        assert_eq!(bench.next(), Report::Exited(key, Exit::Code(0)));
        assert_eq!(bench.next(), Report::Clean(key));
    });
}

#[test]
fn a_guest_that_ignores_signals_dies_at_the_deadline_that_was_set_last() {
    with_each(|bench| {
        let key = bench.start(1, Does::RunsAndIgnores, 2_000);
        bench.wait_until_ready(key);
        let (now, end) = (bench.now(), bench.now().saturating_add(Millis::new(2_500)));
        bench.driver.set_deadline(now, key, end);
        bench.driver.signal(now, key, StopSignal::Terminate);
        bench.quiet_for(2_300);
        assert_eq!(bench.next(), Report::Exited(key, Exit::Signal(9)));
        assert!(bench.now() >= end);
        assert_eq!(bench.next(), Report::Clean(key));
    });
}

#[test]
fn a_deadline_can_be_brought_forward() {
    with_each(|bench| {
        let key = bench.start(1, Does::RunsAndIgnores, FOR_LONG);
        assert_eq!(bench.next(), Report::Started(key));
        let end = bench.now().saturating_add(Millis::new(100));
        bench.driver.set_deadline(bench.now(), key, end);
        assert_eq!(bench.next(), Report::Exited(key, Exit::Signal(9)));
        assert_eq!(bench.next(), Report::Clean(key));
    });
}

#[test]
fn a_killed_guest_is_gone_at_once() {
    with_each(|bench| {
        let key = bench.start(1, Does::RunsAndIgnores, FOR_LONG);
        assert_eq!(bench.next(), Report::Started(key));
        bench.driver.kill(bench.now(), key);
        assert_eq!(bench.next(), Report::Exited(key, Exit::Signal(9)));
        assert_eq!(bench.next(), Report::Clean(key));
    });
}

#[test]
fn a_guest_that_runs_is_not_started_again() {
    with_each(|bench| {
        let key = bench.start(1, Does::RunsAndObeys, FOR_LONG);
        bench.wait_until_ready(key);
        bench.start(1, Does::RunsAndObeys, FOR_LONG);
        bench.quiet_for(100);
    });
}

#[test]
fn orders_to_a_guest_that_is_not_there_do_nothing() {
    with_each(|bench| {
        let key = GuestKey { slice: slice(1), token: Token { epoch: 0, counter: 77 } };
        let now = bench.now();
        bench.driver.signal(now, key, StopSignal::Terminate);
        bench.driver.set_deadline(now, key, now);
        bench.driver.kill(now, key);
        bench.quiet_for(50);
    });
}
