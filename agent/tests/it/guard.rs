//! The dead-man's switch, with real processes.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use sublet_agent::guard::{ARGUMENT, Ended, GuestStatus, Launch, Order, Why, boottime_now};
use sublet_protocol::units::Millis;

use crate::support::{marked, unique_mark, wait_until};

const MARK: &str = "SUBLET_TEST_MARK";
const FOR_LONG: u64 = 600_000;

/// Forks, double-forks into a session of its own, ignores every polite signal.
const STUBBORN: &str = "trap '' TERM INT HUP; sleep 1000 & setsid sh -c 'trap \"\" TERM; \
     (setsid sleep 1000 &) ; sleep 1000' & while :; do sleep 1; done";
/// Processes of [`STUBBORN`] that carry the mark, at the least.
const STUBBORN_PROCESSES: usize = 5;

struct Guarded {
    mark: String,
    guard: Child,
    lines: BufReader<UnixStream>,
    orders: UnixStream,
}

fn guard_command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sublet-agent"));
    command.arg(ARGUMENT);
    command
}

fn launch_line(mark: &str, deadline: Millis, argv: &[&str]) -> String {
    let path = std::env::var("PATH").unwrap();
    let env = vec![(MARK.to_owned(), mark.to_owned()), ("PATH".to_owned(), path)];
    let argv = argv.iter().map(ToString::to_string).collect();
    serde_json::to_string(&Launch { deadline, argv, env }).unwrap()
}

fn from_now(millis: u64) -> Millis {
    boottime_now().saturating_add(Millis::new(millis))
}

fn start(deadline: Millis, argv: &[&str]) -> Guarded {
    let mark = unique_mark();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let guard = guard_command().stdin(Stdio::from(OwnedFd::from(theirs))).spawn().unwrap();
    writeln!(&ours, "{}", launch_line(&mark, deadline, argv)).unwrap();
    let lines = BufReader::new(ours.try_clone().unwrap());
    Guarded { mark, guard, lines, orders: ours }
}

fn start_shell(deadline: Millis, script: &str) -> Guarded {
    start(deadline, &["sh", "-c", script])
}

impl Guarded {
    fn status(&mut self) -> GuestStatus {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim_end().parse().unwrap()
    }

    fn order(&mut self, order: Order) {
        writeln!(self.orders, "{order}").unwrap();
    }

    fn guests(&self) -> usize {
        marked(MARK, &self.mark).len()
    }

    #[track_caller]
    fn expect_started(&mut self) {
        let status = self.status();
        assert!(matches!(status, GuestStatus::Started(_)), "{status:?}");
    }

    /// Checks how it ended, and that neither guest nor guard is left.
    #[track_caller]
    fn expect_gone(mut self, ended: Ended, why: Why) {
        assert_eq!(self.status(), GuestStatus::Gone(ended, why));
        assert_eq!(self.guests(), 0, "processes were left when the guard said there were none");
        assert!(self.guard.wait().unwrap().success());
    }
}

#[test]
fn a_guest_that_ends_by_itself_is_reported_with_its_code() {
    let mut guarded = start_shell(from_now(FOR_LONG), "exit 7");
    guarded.expect_started();
    guarded.expect_gone(Ended::Code(7), Why::Itself);
}

#[test]
fn a_program_that_does_not_exist_is_reported_as_such() {
    let mut guarded = start(from_now(FOR_LONG), &["/no/such/program"]);
    assert_eq!(guarded.status(), GuestStatus::Failed(2));
    assert_eq!(guarded.guard.wait().unwrap().code(), Some(127));
}

#[test]
fn a_signal_is_passed_on_to_the_whole_group() {
    // The child comes after the trap, so its being there shows that the trap is set.
    let script = "trap 'exit 3' TERM; sleep 1000 & wait";
    let mut guarded = start_shell(from_now(FOR_LONG), script);
    guarded.expect_started();
    wait_until("the guest is ready", || guarded.guests() >= 2);
    guarded.order(Order::Signal(15));
    guarded.expect_gone(Ended::Code(3), Why::Itself);
}

#[test]
fn what_a_guest_leaves_behind_goes_when_it_ends() {
    let mut guarded = start_shell(
        from_now(FOR_LONG),
        "setsid sleep 1000 & sleep 1000 & (setsid sleep 1000 &); exit 0",
    );
    guarded.expect_started();
    guarded.expect_gone(Ended::Code(0), Why::Itself);
}

#[test]
fn at_the_deadline_a_guest_that_ignores_signals_and_double_forks_is_gone() {
    let mut guarded = start_shell(from_now(FOR_LONG), STUBBORN);
    guarded.expect_started();
    wait_until("the guest has forked", || guarded.guests() >= STUBBORN_PROCESSES);
    guarded.order(Order::Signal(15));
    sleep(Duration::from_millis(100));
    assert!(guarded.guests() >= STUBBORN_PROCESSES, "it does not ignore the signal");
    guarded.order(Order::Deadline(from_now(200)));
    guarded.expect_gone(Ended::Signal(9), Why::Deadline);
}

#[test]
fn when_the_agents_end_closes_everything_is_gone() {
    let mut guarded = start_shell(from_now(FOR_LONG), STUBBORN);
    guarded.expect_started();
    wait_until("the guest has forked", || guarded.guests() >= STUBBORN_PROCESSES);
    guarded.orders.shutdown(std::net::Shutdown::Write).unwrap();
    guarded.expect_gone(Ended::Signal(9), Why::AgentGone);
}

#[test]
fn when_the_agent_is_killed_everything_is_gone_the_guard_too() {
    let mark = unique_mark();
    let line = launch_line(&mark, from_now(FOR_LONG), &["sh", "-c", STUBBORN]);
    let mut agent = Command::new("sh");
    agent.args(["-c", "printf '%s\\n' \"$0\"; exec sleep 1000", &line]).stdout(Stdio::piped());
    let mut agent = agent.spawn().unwrap();
    let orders = agent.stdout.take().unwrap();
    let mut guard = guard_command().stdin(Stdio::from(orders)).spawn().unwrap();
    wait_until("the guest has forked", || marked(MARK, &mark).len() >= STUBBORN_PROCESSES);
    agent.kill().unwrap();
    agent.wait().unwrap();
    assert!(guard.wait().unwrap().success());
    assert!(marked(MARK, &mark).is_empty());
}

#[test]
fn a_deadline_that_was_extended_counts_and_the_old_one_does_not() {
    let mut guarded = start_shell(from_now(2_000), "sleep 1000");
    guarded.expect_started();
    let start = Instant::now();
    guarded.order(Order::Deadline(from_now(2_600)));
    guarded.expect_gone(Ended::Signal(9), Why::Deadline);
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(2_550), "gone after {took:?}");
}

#[test]
fn a_deadline_in_the_past_is_now() {
    let mut guarded = start_shell(Millis::new(1), "sleep 1000");
    guarded.expect_started();
    guarded.expect_gone(Ended::Signal(9), Why::Deadline);
}
