//! Guests as real processes: each a child of its own guard, with a clean environment and a private
//! folder that is erased when it ends.
//!
//! For tenants of the lender's own organisation. It isolates nothing but the environment, the
//! folder and the devices a well-behaved CUDA program sees; users, namespaces and cgroups belong to
//! the `container` driver. A member without a workload gets no process: its tenant attaches.

mod environment;
mod folder;
mod running;

use std::collections::BTreeMap;
use std::io;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, SyncSender};

use sublet_protocol::units::Millis;
use tokio::sync::Notify;

use super::{Driver, Exit, Guest, GuestKey, NotCleared, Report, StartFailure, StopSignal};
use crate::guard::{Order, boottime_now, cpu_below, descends_from};
use crate::probe::ProcessId;
use running::Running;

/// Reports that may wait to be polled; a guest that prints faster than that waits.
const REPORTS_MAX: usize = 256;
const SIGINT: i32 = 2;
const SIGTERM: i32 = 15;

/// How real guests are run.
#[derive(Debug, Clone)]
pub struct Config {
    /// A binary that calls [`guard::run_if_asked`](crate::guard::run_if_asked) first.
    pub guard_program: PathBuf,
    /// Where guests' folders are made. Nothing else may be in it: what is found at the start is
    /// erased.
    pub scratch: PathBuf,
    /// Milliseconds of the agent's clock in a real one: 1, but for demonstrations.
    pub speed: NonZeroU32,
}

impl Config {
    /// This very binary as the guard, at real speed.
    ///
    /// # Errors
    /// When the system does not say where this binary is.
    pub fn of_this_binary(scratch: PathBuf) -> io::Result<Self> {
        Ok(Self { guard_program: std::env::current_exe()?, scratch, speed: NonZeroU32::MIN })
    }
}

/// The process driver.
pub struct ProcessDriver {
    config: Config,
    guests: BTreeMap<GuestKey, Member>,
    sender: SyncSender<Report>,
    reports: Receiver<Report>,
    wake: Arc<Notify>,
    /// Reports that did not come from a process.
    own: Vec<Report>,
}

enum Member {
    /// A process under its guard.
    Process(Running),
    /// Held for its tenant until this moment.
    Attached(Millis),
}

impl ProcessDriver {
    /// A driver with no guests.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let (sender, reports) = mpsc::sync_channel(REPORTS_MAX);
        let wake = Arc::new(Notify::new());
        Self { config, guests: BTreeMap::new(), sender, reports, wake, own: Vec::new() }
    }

    fn launch(&self, now: Millis, guest: &Guest) -> Result<Member, StartFailure> {
        let Some(workload) = &guest.workload else { return Ok(Member::Attached(guest.deadline)) };
        let folder = folder::path(&self.config.scratch, guest);
        let left = self.real(guest.left);
        let env = environment::of(guest, workload, &folder, left)?;
        let deadline = self.boottime(now, guest.deadline);
        let reporter = running::Reporter {
            key: guest.key,
            sender: self.sender.clone(),
            wake: Arc::clone(&self.wake),
        };
        let argv = workload.argv.clone();
        let launch = crate::guard::Launch { deadline, argv, env };
        Running::start(&self.config.guard_program, &launch, folder, reporter).map(Member::Process)
    }

    /// A span of the agent's clock in real milliseconds.
    fn real(&self, span: Millis) -> Millis {
        Millis::new(span.get() / u64::from(self.config.speed.get()))
    }

    /// The boot time at which the agent's clock shows `at`.
    fn boottime(&self, now: Millis, at: Millis) -> Millis {
        boottime_now().saturating_add(self.real(at.saturating_sub(now)))
    }

    fn end_attached(&mut self, key: GuestKey, exit: Exit) {
        if let Some(Member::Attached(_)) = self.guests.get(&key) {
            self.guests.remove(&key);
            self.own.extend([Report::Exited(key, exit), Report::Clean(key)]);
        }
    }
}

impl Driver for ProcessDriver {
    fn clear(&mut self) -> Result<(), NotCleared> {
        folder::clear(&self.config.scratch)
    }

    fn start(&mut self, now: Millis, guest: Guest) {
        if self.guests.contains_key(&guest.key) {
            return;
        }
        match self.launch(now, &guest) {
            Ok(member) => {
                // A process says itself that it has started.
                if let Member::Attached(_) = member {
                    self.own.push(Report::Started(guest.key));
                }
                self.guests.insert(guest.key, member);
            }
            Err(failure) => self.own.push(Report::NotStarted(guest.key, failure)),
        }
        self.wake.notify_one();
    }

    fn signal(&mut self, _now: Millis, key: GuestKey, signal: StopSignal) {
        let number = match signal {
            StopSignal::Terminate => SIGTERM,
            StopSignal::Interrupt => SIGINT,
        };
        if let Some(Member::Process(process)) = self.guests.get_mut(&key) {
            process.order(Order::Signal(number));
        }
        self.end_attached(key, Exit::Signal(number));
        self.wake.notify_one();
    }

    fn set_deadline(&mut self, now: Millis, key: GuestKey, deadline: Millis) {
        let boottime = self.boottime(now, deadline);
        match self.guests.get_mut(&key) {
            Some(Member::Process(process)) => process.order(Order::Deadline(boottime)),
            Some(Member::Attached(until)) => *until = deadline,
            None => {}
        }
    }

    fn kill(&mut self, now: Millis, key: GuestKey) {
        self.set_deadline(now, key, now);
        self.end_attached(key, Exit::Signal(9));
        self.wake.notify_one();
    }

    fn poll(&mut self, now: Millis) -> Vec<Report> {
        let due = |(key, member): (&GuestKey, &Member)| match member {
            Member::Attached(until) if *until <= now => Some(*key),
            Member::Attached(_) | Member::Process(_) => None,
        };
        let ended: Vec<GuestKey> = self.guests.iter().filter_map(due).collect();
        for key in ended {
            self.end_attached(key, Exit::Signal(9));
        }
        let mut reports = std::mem::take(&mut self.own);
        reports.extend(self.reports.try_iter().take(REPORTS_MAX));
        for report in &reports {
            if let Report::Clean(key) | Report::NotStarted(key, _) = report {
                self.guests.remove(key);
            }
        }
        if reports.len() >= REPORTS_MAX {
            self.wake.notify_one();
        }
        reports
    }

    fn next_report(&self) -> Option<Millis> {
        let attached = self.guests.values().filter_map(|member| match member {
            Member::Attached(until) => Some(*until),
            Member::Process(_) => None,
        });
        attached.min()
    }

    fn reports(&self) -> Option<Arc<Notify>> {
        Some(Arc::clone(&self.wake))
    }

    fn cpu_used(&mut self, _now: Millis, key: GuestKey) -> Option<Millis> {
        match self.guests.get(&key)? {
            Member::Process(running) => {
                let speed = u64::from(self.config.speed.get());
                let real = cpu_below(running.guard())?;
                Some(Millis::new(real.get().saturating_mul(speed)))
            }
            Member::Attached(_) => None,
        }
    }

    fn owns(&self, process: ProcessId) -> bool {
        let Ok(process) = i32::try_from(process.0) else { return false };
        self.guests.values().any(|member| match member {
            Member::Process(running) => descends_from(process, running.guard()),
            Member::Attached(_) => false,
        })
    }
}
