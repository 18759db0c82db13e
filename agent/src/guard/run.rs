//! The guard's own life, from its arguments to the end of its guest.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{Pid, setsid};
use sublet_protocol::units::Millis;

use super::boottime::boottime_now;
use super::processes::kill_descendants;
use super::wire::{Ended, GuestStatus, LAUNCH_MAX, Launch, Order, Why};

/// The longest sleep between two looks at the boot clock: a timer may stand still in suspend.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The pause between two passes of killing.
const KILL_EVERY: Duration = Duration::from_millis(10);
/// Passes of killing after which what is left is reported as stuck: 10 s.
const PASSES_UNTIL_STUCK: u32 = 1_000;
/// Events waiting for the main loop; their senders wait beyond it.
const EVENTS_MAX: usize = 64;

const EXIT_USAGE: i32 = 64;
const EXIT_NOT_STARTED: i32 = 127;

enum Event {
    Order(Order),
    AgentGone,
    GuestEnded(Ended),
    NothingLeft,
}

/// Runs the guest of the first line on standard input; returns the exit code.
pub(super) fn run() -> i32 {
    let Ok((link, orders)) = link() else { return EXIT_USAGE };
    let mut orders = BufReader::new(orders);
    let Some(launch) = launch(&mut orders) else { return EXIT_USAGE };
    let [program, arguments @ ..] = launch.argv.as_slice() else { return EXIT_USAGE };
    // Fails only where the guard leads a group already; then it has a session of its own, too.
    let _ = setsid();
    if let Err(errno) = prctl::set_child_subreaper(true) {
        report(&link, GuestStatus::Failed(io::Error::from(errno).raw_os_error().unwrap_or(0)));
        return EXIT_NOT_STARTED;
    }
    let mut command = Command::new(program);
    command.args(arguments).env_clear().envs(launch.env).stdin(Stdio::null()).process_group(0);
    // The child is reaped by `wait_for_all`, together with whatever it leaves behind.
    let child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            report(&link, GuestStatus::Failed(error.raw_os_error().unwrap_or(0)));
            return EXIT_NOT_STARTED;
        }
    };
    let guest = i32::try_from(child.id()).expect("a process number fits in an i32");
    report(&link, GuestStatus::Started(guest));

    let (sender, events) = mpsc::sync_channel(EVENTS_MAX);
    let reaper = sender.clone();
    thread::spawn(move || wait_for_all(guest, &reaper));
    thread::spawn(move || read_orders(orders, &sender));
    let watch = Watch { guest, deadline: launch.deadline, killing: None, ended: None };
    watch.until_nothing_is_left(&events, &link);
    0
}

fn launch(orders: &mut BufReader<File>) -> Option<Launch> {
    let mut line = String::new();
    orders.by_ref().take(LAUNCH_MAX).read_line(&mut line).ok()?;
    serde_json::from_str(&line).ok()
}

/// Standard input, unbuffered and in both directions (a plain pipe cannot be answered; orders
/// work).
fn link() -> io::Result<(File, File)> {
    let fd: OwnedFd = io::stdin().as_fd().try_clone_to_owned()?;
    let link = File::from(fd);
    let orders = link.try_clone()?;
    Ok((link, orders))
}

/// Sends a status; an agent that has gone cannot be told, and need not be.
fn report(mut link: &File, status: GuestStatus) {
    let _ = link.write_all(format!("{status}\n").as_bytes());
}

fn read_orders(orders: BufReader<File>, events: &SyncSender<Event>) {
    for line in orders.lines() {
        let Ok(line) = line else { break };
        // A line that is no order is passed over: the deadline that stands protects the owner.
        if let Ok(order) = line.parse()
            && events.send(Event::Order(order)).is_err()
        {
            return;
        }
    }
    let _ = events.send(Event::AgentGone);
}

/// Reaps children (the guest and every orphan it leaves) until there is none.
fn wait_for_all(guest: i32, events: &SyncSender<Event>) {
    loop {
        let (process, ended) = match waitpid(None::<Pid>, None) {
            Ok(WaitStatus::Exited(process, code)) => (process, Ended::Code(code)),
            Ok(WaitStatus::Signaled(process, signal, _)) => {
                (process, Ended::Signal(number(signal)))
            }
            Ok(_) | Err(Errno::EINTR) => continue,
            Err(_) => break,
        };
        if process.as_raw() == guest && events.send(Event::GuestEnded(ended)).is_err() {
            return;
        }
    }
    let _ = events.send(Event::NothingLeft);
}

struct Watch {
    guest: i32,
    deadline: Millis,
    /// Why the guard kills, once it does.
    killing: Option<Why>,
    ended: Option<Ended>,
}

impl Watch {
    fn until_nothing_is_left(mut self, events: &Receiver<Event>, link: &File) {
        let mut passes = 0;
        loop {
            if self.killing.is_none() && boottime_now() >= self.deadline {
                self.killing = Some(Why::Deadline);
            }
            let sleep = if self.killing.is_some() {
                // A group whose leader has been reaped may be somebody else's by now.
                if self.ended.is_none() {
                    let _ = killpg(Pid::from_raw(self.guest), Signal::SIGKILL);
                }
                kill_descendants(Pid::this());
                passes += 1;
                if passes == PASSES_UNTIL_STUCK {
                    report(link, GuestStatus::Stuck);
                }
                if passes < PASSES_UNTIL_STUCK { KILL_EVERY } else { LOOK_EVERY }
            } else {
                let left = self.deadline.get().saturating_sub(boottime_now().get());
                Duration::from_millis(left).min(LOOK_EVERY)
            };
            match events.recv_timeout(sleep) {
                Ok(Event::NothingLeft) => break,
                Ok(event) => self.on(&event),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => self.kill(Why::AgentGone),
            }
        }
        let ended = self.ended.unwrap_or(Ended::Signal(number(Signal::SIGKILL)));
        report(link, GuestStatus::Gone(ended, self.killing.unwrap_or(Why::Itself)));
    }

    fn on(&mut self, event: &Event) {
        match *event {
            Event::Order(Order::Deadline(at)) => self.deadline = at,
            Event::Order(Order::Signal(signal)) => {
                if let Ok(signal) = Signal::try_from(signal)
                    && self.ended.is_none()
                {
                    let _ = killpg(Pid::from_raw(self.guest), signal);
                }
            }
            Event::AgentGone => self.kill(Why::AgentGone),
            // The guest is its first process: what outlives it has no lease.
            Event::GuestEnded(ended) => {
                self.ended = Some(ended);
                self.kill(Why::Itself);
            }
            Event::NothingLeft => {}
        }
    }

    fn kill(&mut self, why: Why) {
        self.killing.get_or_insert(why);
    }
}

fn number(signal: Signal) -> i32 {
    #[allow(clippy::as_conversions, reason = "nix has no other way from a Signal to its number")]
    {
        signal as i32
    }
}
