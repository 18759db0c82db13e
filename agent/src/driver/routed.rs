//! Both drivers on one node: guests with a workload really run, the others are simulated.
//!
//! For a simulated node that serves a person, too: `sublet lease run -- echo hi` against `sublet
//! dev`.

use std::sync::Arc;

use sublet_protocol::units::Millis;
use tokio::sync::Notify;

use super::process::ProcessDriver;
use super::sim::SimDriver;
use super::{Driver, Guest, GuestKey, NotCleared, Report, StopSignal};
use crate::probe::ProcessId;

/// Sends each guest to the driver that fits it. A key is known to one of the two only.
pub struct RoutedDriver {
    /// Runs guests with a workload.
    pub real: ProcessDriver,
    /// Runs the others.
    pub simulated: SimDriver,
}

impl Driver for RoutedDriver {
    fn clear(&mut self) -> Result<(), NotCleared> {
        self.simulated.clear()?;
        self.real.clear()
    }

    fn start(&mut self, now: Millis, guest: Guest) {
        match guest.workload {
            Some(_) => self.real.start(now, guest),
            None => self.simulated.start(now, guest),
        }
    }

    fn signal(&mut self, now: Millis, key: GuestKey, signal: StopSignal) {
        self.real.signal(now, key, signal);
        self.simulated.signal(now, key, signal);
    }

    fn set_deadline(&mut self, now: Millis, key: GuestKey, deadline: Millis) {
        self.real.set_deadline(now, key, deadline);
        self.simulated.set_deadline(now, key, deadline);
    }

    fn kill(&mut self, now: Millis, key: GuestKey) {
        self.real.kill(now, key);
        self.simulated.kill(now, key);
    }

    fn poll(&mut self, now: Millis) -> Vec<Report> {
        let mut reports = self.simulated.poll(now);
        reports.extend(self.real.poll(now));
        reports
    }

    fn next_report(&self) -> Option<Millis> {
        [self.real.next_report(), self.simulated.next_report()].into_iter().flatten().min()
    }

    fn reports(&self) -> Option<Arc<Notify>> {
        self.real.reports()
    }

    fn cpu_used(&mut self, now: Millis, key: GuestKey) -> Option<Millis> {
        self.real.cpu_used(now, key).or_else(|| self.simulated.cpu_used(now, key))
    }

    fn owns(&self, process: ProcessId) -> bool {
        self.real.owns(process) || self.simulated.owns(process)
    }
}
