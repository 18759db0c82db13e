//! Simulated guests: they run for a given time, on the time that is passed in.

use std::collections::BTreeMap;
use std::sync::Arc;

use sublet_protocol::units::Millis;
use tokio::sync::Notify;

use super::{Driver, Exit, Guest, GuestKey, NotCleared, Report, StartFailure, StopSignal};
use crate::probe::ProcessId;

/// How a simulated guest behaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Behaviour {
    /// From its start until it runs, or why it never does.
    pub starts: Result<Millis, StartFailure>,
    /// How long it runs by itself; nothing: until it is stopped.
    pub runs: Option<Millis>,
    /// How it ends by itself.
    pub exit: Exit,
    /// What of a CPU it uses while it runs.
    pub cpu: Cpu,
    /// What it does when told to stop.
    pub when_told: WhenTold,
    /// How long its removal takes; nothing: it never succeeds.
    pub cleans: Option<Millis>,
}

/// What of a CPU a simulated guest uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cpu {
    /// All of one.
    Busy,
    /// Nothing: it is dead and does not know.
    Nothing,
    /// It is not known.
    Unknown,
}

/// What a simulated guest does when it gets a stop signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenTold {
    /// It exits with code 0 after this time.
    ExitsAfter(Millis),
    /// Nothing.
    Ignores,
}

impl Behaviour {
    /// Starts at once, works for `runs`, exits with 0, obeys at once, leaves nothing behind.
    #[must_use]
    pub const fn good(runs: Option<Millis>) -> Self {
        Self {
            starts: Ok(Millis::ZERO),
            runs,
            exit: Exit::Code(0),
            cpu: Cpu::Busy,
            when_told: WhenTold::ExitsAfter(Millis::ZERO),
            cleans: Some(Millis::ZERO),
        }
    }
}

/// Decides how each guest behaves.
pub type Script = Box<dyn FnMut(&Guest) -> Behaviour + Send>;

/// The simulated driver.
pub struct SimDriver {
    script: Script,
    guests: BTreeMap<GuestKey, Simulated>,
}

struct Simulated {
    behaviour: Behaviour,
    deadline: Millis,
    stage: Stage,
}

#[derive(Clone, Copy)]
enum Stage {
    /// Runs from this moment on, or turns out not to.
    Starting(Millis),
    /// Ends by itself, or by a signal, at the moment, if there is one.
    Running(Option<Millis>, Exit),
    /// Gone, with the moment at which nothing is left.
    Cleaning(Option<Millis>),
    /// Reported as not clean.
    Stuck,
}

impl SimDriver {
    /// A driver whose guests behave as `script` says.
    #[must_use]
    pub fn new(script: Script) -> Self {
        Self { script, guests: BTreeMap::new() }
    }

    /// A driver whose guests are good and run for what `runs` says.
    #[must_use]
    pub fn running(mut runs: impl FnMut(&Guest) -> Option<Millis> + Send + 'static) -> Self {
        Self::new(Box::new(move |guest| Behaviour::good(runs(guest))))
    }

    /// How many guests have a process.
    #[must_use]
    pub fn running_count(&self) -> usize {
        let runs = |one: &&Simulated| matches!(one.stage, Stage::Starting(_) | Stage::Running(..));
        self.guests.values().filter(runs).count()
    }
}

impl Simulated {
    /// When the next thing happens.
    fn due(&self, now: Millis) -> Option<Millis> {
        match self.stage {
            Stage::Starting(at) => Some(at.min(self.deadline)),
            Stage::Running(ends, _) => Some(ends.unwrap_or(self.deadline).min(self.deadline)),
            Stage::Cleaning(done) => Some(done.unwrap_or(now)),
            Stage::Stuck => None,
        }
    }

    /// What happens at `at`; the guest is forgotten when nothing follows.
    fn step(&mut self, key: GuestKey, at: Millis) -> (Report, Next) {
        let clean_at = |cleans: Option<Millis>| cleans.map(|takes| at.saturating_add(takes));
        match self.stage {
            Stage::Starting(_) => match &self.behaviour.starts {
                Ok(_) => {
                    let ends = self.behaviour.runs.map(|runs| at.saturating_add(runs));
                    self.stage = Stage::Running(ends, self.behaviour.exit);
                    (Report::Started(key), Next::Goes)
                }
                Err(failure) => (Report::NotStarted(key, failure.clone()), Next::Over),
            },
            Stage::Running(ends, exit) => {
                let is_killed = ends.is_none_or(|ends| ends > at) || self.deadline < at;
                self.stage = Stage::Cleaning(clean_at(self.behaviour.cleans));
                let exit = if is_killed { Exit::Signal(9) } else { exit };
                (Report::Exited(key, exit), Next::Goes)
            }
            Stage::Cleaning(Some(_)) => (Report::Clean(key), Next::Over),
            Stage::Cleaning(None) | Stage::Stuck => {
                self.stage = Stage::Stuck;
                (Report::NotClean(key), Next::Goes)
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Goes,
    Over,
}

impl Driver for SimDriver {
    fn clear(&mut self) -> Result<(), NotCleared> {
        self.guests.clear();
        Ok(())
    }

    fn start(&mut self, now: Millis, guest: Guest) {
        if self.guests.contains_key(&guest.key) {
            return;
        }
        let behaviour = (self.script)(&guest);
        let delay = *behaviour.starts.as_ref().unwrap_or(&Millis::ZERO);
        let stage = Stage::Starting(now.saturating_add(delay));
        let simulated = Simulated { behaviour, deadline: guest.deadline, stage };
        self.guests.insert(guest.key, simulated);
    }

    fn signal(&mut self, now: Millis, key: GuestKey, _signal: StopSignal) {
        let Some(guest) = self.guests.get_mut(&key) else { return };
        if let (Stage::Running(ends, _), WhenTold::ExitsAfter(takes)) =
            (guest.stage, guest.behaviour.when_told)
        {
            let told = now.saturating_add(takes);
            if ends.is_none_or(|ends| ends > told) {
                guest.stage = Stage::Running(Some(told), Exit::Code(0));
            }
        }
    }

    fn set_deadline(&mut self, _now: Millis, key: GuestKey, deadline: Millis) {
        if let Some(guest) = self.guests.get_mut(&key) {
            guest.deadline = deadline;
        }
    }

    fn kill(&mut self, now: Millis, key: GuestKey) {
        self.set_deadline(now, key, now);
    }

    fn poll(&mut self, now: Millis) -> Vec<Report> {
        let mut reports = Vec::new();
        loop {
            let dues = self.guests.iter().filter_map(|(key, one)| Some((one.due(now)?, *key)));
            let Some((at, key)) = dues.min().filter(|(at, _)| *at <= now) else { break };
            let Some(guest) = self.guests.get_mut(&key) else { break };
            let (report, next) = guest.step(key, at);
            reports.push(report);
            if next == Next::Over {
                self.guests.remove(&key);
            }
        }
        reports
    }

    fn next_report(&self) -> Option<Millis> {
        self.guests.values().filter_map(|guest| guest.due(Millis::ZERO)).min()
    }

    fn reports(&self) -> Option<Arc<Notify>> {
        None
    }

    fn cpu_used(&mut self, now: Millis, key: GuestKey) -> Option<Millis> {
        match self.guests.get(&key)?.behaviour.cpu {
            // Counted from the origin of the clock: only what it grows by is looked at.
            Cpu::Busy => Some(now),
            Cpu::Nothing => Some(Millis::ZERO),
            Cpu::Unknown => None,
        }
    }

    fn owns(&self, _process: ProcessId) -> bool {
        false
    }
}
