//! Drivers start, signal and end guests. They obey; the session decides.
//!
//! Every call returns at once; what happened comes out of [`Driver::poll`]. A guest is dead by its
//! deadline whatever else happens (LA5), and a driver says that a guest is gone only when nothing
//! of it is left.

pub mod process;
pub mod routed;
pub mod sim;

use std::sync::Arc;

use sublet_protocol::agent::{Stream, Workload};
use sublet_protocol::capacity::SliceId;
use sublet_protocol::ids::{DeviceId, LeaseId, Token};
use sublet_protocol::units::Millis;
use tokio::sync::Notify;

use crate::probe::ProcessId;

/// One guest on one node: the member of a lease that was granted there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct GuestKey {
    /// Its slice.
    pub slice: SliceId,
    /// Its grant's token.
    pub token: Token,
}

/// What is to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guest {
    /// Which guest.
    pub key: GuestKey,
    /// Its lease.
    pub lease: LeaseId,
    /// Devices it may see: those of every member of its lease on this node, in ascending order.
    pub devices: Vec<DeviceId>,
    /// When it must be dead, on the agent's clock.
    pub deadline: Millis,
    /// Until the bought end, from the start.
    pub left: Millis,
    /// What it runs. Nothing on members whose tenant attaches, and on all but a gang's first.
    pub workload: Option<Workload>,
}

/// How a guest's first process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// With this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

/// Why a guest did not start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StartFailure {
    /// The workload names no program.
    #[error("the workload names no program")]
    NoProgram,
    /// The program is not there, or not on the path.
    #[error("there is no program {program:?}")]
    ProgramMissing {
        /// As the workload names it.
        program: String,
    },
    /// The program may not be run.
    #[error("{program:?} may not be run (errno {errno})")]
    ProgramRefused {
        /// As the workload names it.
        program: String,
        /// What the system says.
        errno: i32,
    },
    /// A variable of the workload is not allowed or not a name.
    #[error("the workload may not set the variable {name:?}")]
    Variable {
        /// Its name.
        name: String,
    },
    /// The node could not prepare the guest's folder or guard.
    #[error("the node could not prepare the guest (errno {errno})")]
    Node {
        /// What the system says.
        errno: i32,
    },
}

/// What a driver reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// The guest runs.
    Started(GuestKey),
    /// It does not, and nothing of it is left.
    NotStarted(GuestKey, StartFailure),
    /// What it printed, in the order it did, never after [`Report::Clean`].
    Output {
        /// Which guest.
        key: GuestKey,
        /// Which stream.
        stream: Stream,
        /// Bytes of the stream before these.
        offset: u64,
        /// At most [`OUTPUT_MAX`](sublet_protocol::agent::OUTPUT_MAX).
        bytes: Vec<u8>,
    },
    /// Its first process has ended; what it left behind is being removed.
    Exited(GuestKey, Exit),
    /// Nothing of it is left: no process, no scratch.
    Clean(GuestKey),
    /// Something is left and cannot be removed. [`Report::Clean`] may follow.
    NotClean(GuestKey),
}

/// A signal for a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopSignal {
    /// `SIGTERM`.
    Terminate,
    /// `SIGINT`.
    Interrupt,
}

/// A node on which something of an earlier start is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("guests of an earlier start are still there")]
pub struct NotCleared;

/// Runs guests. `now` is the agent's clock.
pub trait Driver: Send {
    /// Ends whatever an earlier start of the agent left running (LA3). Called once, before anything
    /// else.
    ///
    /// # Errors
    /// When something is left.
    fn clear(&mut self) -> Result<(), NotCleared>;

    /// Starts a guest. A key that is known already is not started again.
    fn start(&mut self, now: Millis, guest: Guest);

    /// Passes a signal on. A guest that is not there is no error.
    fn signal(&mut self, now: Millis, key: GuestKey, signal: StopSignal);

    /// Moves the moment at which a guest must be dead. A guest that is not there is no error.
    fn set_deadline(&mut self, now: Millis, key: GuestKey, deadline: Millis);

    /// Ends a guest at once. A guest that is not there is no error.
    fn kill(&mut self, now: Millis, key: GuestKey);

    /// What happened since the last call, in order.
    fn poll(&mut self, now: Millis) -> Vec<Report>;

    /// When a report will be due, where the driver knows: simulated guests.
    fn next_report(&self) -> Option<Millis>;

    /// Told when a report may have come that [`Driver::next_report`] could not foresee.
    fn reports(&self) -> Option<Arc<Notify>>;

    /// CPU time of all processes a guest has had, on the agent's clock; nothing if that is not known.
    fn cpu_used(&mut self, now: Millis, key: GuestKey) -> Option<Millis>;

    /// Whether a process belongs to a guest of this driver.
    fn owns(&self, process: ProcessId) -> bool;
}

impl Exit {
    /// The code a shell would show: a signal counts from 128.
    #[must_use]
    pub const fn code(self) -> i32 {
        match self {
            Exit::Code(code) => code,
            Exit::Signal(signal) => signal.saturating_add(128),
        }
    }
}
