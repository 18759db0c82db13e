//! One guest under its guard, and the threads that watch it.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::thread::{self, JoinHandle};

use sublet_protocol::agent::{OUTPUT_MAX, Stream};
use tokio::sync::Notify;

use super::super::{Exit, GuestKey, Report, StartFailure};
use super::folder;
use crate::guard::{ARGUMENT, Ended, GuestStatus, Launch, Order, kill_group};

const ENOENT: i32 = 2;

/// The agent's end of a guard. Dropping it ends the guest: its guard sees the socket close.
pub(super) struct Running {
    orders: UnixStream,
    guard: i32,
}

/// Sends a guest's reports.
#[derive(Clone)]
pub(super) struct Reporter {
    pub(super) key: GuestKey,
    pub(super) sender: SyncSender<Report>,
    pub(super) wake: Arc<Notify>,
}

impl Reporter {
    /// Waits if too many reports wait to be polled. False when nobody will poll any more.
    fn send(&self, report: Report) -> bool {
        let sent = self.sender.send(report).is_ok();
        self.wake.notify_one();
        sent
    }
}

impl Running {
    /// Makes the folder, starts the guard, hands it the launch. Whether the guest itself starts is
    /// reported.
    pub(super) fn start(
        guard_program: &Path,
        launch: &Launch,
        folder: PathBuf,
        reporter: Reporter,
    ) -> Result<Running, StartFailure> {
        let program = launch.argv.first().filter(|program| !program.is_empty());
        let program = program.ok_or(StartFailure::NoProgram)?.clone();
        let failed =
            |error: &io::Error| StartFailure::Node { errno: error.raw_os_error().unwrap_or(0) };
        folder::create(&folder).map_err(|error| failed(&error))?;
        let started = spawn(guard_program, launch, &folder);
        let (child, orders, lines) = match started {
            Ok(started) => started,
            Err(error) => {
                let _ = fs::remove_dir_all(&folder);
                return Err(failed(&error));
            }
        };
        let guard = i32::try_from(child.id()).expect("a process number fits in an i32");
        thread::spawn(move || Watcher { child, lines, folder, program, reporter }.watch());
        Ok(Running { orders, guard })
    }

    /// Sends an order. A guard that has gone needs none.
    pub(super) fn order(&mut self, order: Order) {
        let _ = self.orders.write_all(format!("{order}\n").as_bytes());
    }

    pub(super) const fn guard(&self) -> i32 {
        self.guard
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The watching thread holds the socket, too, so closing this end alone would tell the guard
        // nothing.
        let _ = self.orders.shutdown(Shutdown::Write);
    }
}

fn spawn(
    guard_program: &Path,
    launch: &Launch,
    folder: &Path,
) -> io::Result<(Child, UnixStream, UnixStream)> {
    let (mut ours, theirs) = UnixStream::pair()?;
    let lines = ours.try_clone()?;
    let mut command = Command::new(guard_program);
    command.arg(ARGUMENT).env_clear().current_dir(folder);
    command.stdin(OwnedFd::from(theirs)).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn()?;
    // The command holds the guard's end open; while it did, the guard's death would go unseen.
    drop(command);
    let mut line = serde_json::to_string(launch)?;
    line.push('\n');
    ours.write_all(line.as_bytes())?;
    Ok((child, ours, lines))
}

struct Watcher {
    child: Child,
    lines: UnixStream,
    folder: PathBuf,
    program: String,
    reporter: Reporter,
}

/// What the guard's last line, or its silence, means.
enum End {
    NotStarted(StartFailure),
    Gone(Exit),
    /// The guard itself is gone; its guest may not be.
    GuardLost(Option<i32>),
}

impl Watcher {
    fn watch(mut self) {
        let outputs = [
            self.child.stdout.take().map(|pipe| self.pump(pipe, Stream::Stdout)),
            self.child.stderr.take().map(|pipe| self.pump(pipe, Stream::Stderr)),
        ];
        let end = self.follow();
        let _ = self.child.wait();
        let key = self.reporter.key;
        let (last, is_gone) = match end {
            End::NotStarted(failure) => (Report::NotStarted(key, failure), true),
            End::Gone(exit) => (Report::Exited(key, exit), true),
            End::GuardLost(guest) => {
                guest.inspect(|group| kill_group(*group));
                (Report::Exited(key, Exit::Signal(9)), folder::end_marked(&self.folder))
            }
        };
        // Nothing holds the pipes any longer, so all that was printed has been read.
        if is_gone {
            for output in outputs.into_iter().flatten() {
                let _ = output.join();
            }
        }
        let is_erased = is_gone && fs::remove_dir_all(&self.folder).is_ok();
        let was_started = matches!(last, Report::Exited(..));
        match (was_started, is_erased) {
            (true, true) => {
                self.reporter.send(last);
                self.reporter.send(Report::Clean(key));
            }
            (false, true) => {
                self.reporter.send(last);
            }
            (_, false) => {
                self.reporter.send(Report::Exited(key, Exit::Signal(9)));
                self.reporter.send(Report::NotClean(key));
            }
        }
    }

    /// Reads the guard's lines to the last.
    fn follow(&self) -> End {
        let mut guest = None;
        for line in BufReader::new(&self.lines).lines() {
            let Ok(status) = line.unwrap_or_default().parse() else { break };
            match status {
                GuestStatus::Started(process) => {
                    guest = Some(process);
                    self.reporter.send(Report::Started(self.reporter.key));
                }
                GuestStatus::Failed(errno) => return End::NotStarted(self.start_failure(errno)),
                GuestStatus::Stuck => {
                    self.reporter.send(Report::NotClean(self.reporter.key));
                }
                GuestStatus::Gone(Ended::Code(code), _) => return End::Gone(Exit::Code(code)),
                GuestStatus::Gone(Ended::Signal(signal), _) => {
                    return End::Gone(Exit::Signal(signal));
                }
            }
        }
        End::GuardLost(guest)
    }

    fn start_failure(&self, errno: i32) -> StartFailure {
        let program = self.program.clone();
        if errno == ENOENT {
            StartFailure::ProgramMissing { program }
        } else {
            StartFailure::ProgramRefused { program, errno }
        }
    }

    fn pump(&self, mut pipe: impl Read + Send + 'static, stream: Stream) -> JoinHandle<()> {
        let reporter = self.reporter.clone();
        thread::spawn(move || {
            let mut offset = 0;
            let mut buffer = vec![0; OUTPUT_MAX];
            // Both an error and the end of the pipe mean that nothing more will come.
            while let Ok(length @ 1..) = pipe.read(&mut buffer) {
                let bytes = buffer[..length].to_vec();
                if !reporter.send(Report::Output { key: reporter.key, stream, offset, bytes }) {
                    return;
                }
                offset += u64::try_from(length).expect("a buffer's length fits 64 bits");
            }
        })
    }
}
