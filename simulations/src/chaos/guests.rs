//! Guests as processes on their nodes, each with its guard. They know nothing of leases: they run,
//! end by themselves, obey a signal or not, and die by their deadline or when their agent is gone.

use std::collections::BTreeMap;

use sublet_agent::driver::{Exit, Guest as Launch, GuestKey, Report, StartFailure};
use sublet_protocol::ids::LeaseId;
use sublet_protocol::units::Millis;

use super::fault::Fault;
use super::queue::{Event, GuestStep};
use super::rule::Rule;
use super::world::World;

/// A guest's process and what it will do.
#[derive(Debug)]
pub(super) struct Guest {
    pub(super) agent: usize,
    pub(super) key: GuestKey,
    pub(super) lease: LeaseId,
    /// The agent's start that launched it: reports go to no other.
    boot: u64,
    deadline: Millis,
    obeys_after: Option<u64>,
    runs: Option<u64>,
    exit: Exit,
    will_start: bool,
    has_started: bool,
    is_told: bool,
    pub(super) is_alive: bool,
    /// Told to be not clean once.
    not_clean: bool,
}

/// All guests that are not gone, by number.
#[derive(Debug, Default)]
pub(super) struct Guests {
    pub(super) all: BTreeMap<u64, Guest>,
    by_key: BTreeMap<(usize, GuestKey), u64>,
    next: u64,
}

impl World {
    pub(super) fn guest_of(&self, agent: usize, key: GuestKey) -> Option<u64> {
        self.guests.by_key.get(&(agent, key)).copied()
    }

    pub(super) fn start_guest(&mut self, agent: usize, launch: &Launch) {
        if self.guest_of(agent, launch.key).is_some() {
            return;
        }
        let id = self.guests.next;
        self.guests.next += 1;
        let obeys = self.random.chance(3, 4);
        let obeys_after = obeys.then(|| self.random.below(20_000));
        let runs = self.random.chance(1, 2).then(|| self.random.below(1_800_000));
        let exit = Exit::Code(i32::from(self.random.chance(1, 8)));
        let guest = Guest {
            agent,
            key: launch.key,
            lease: launch.lease,
            boot: self.agents[agent].boot,
            deadline: launch.deadline,
            obeys_after,
            runs,
            exit,
            will_start: self.is_calm || !self.random.chance(1, 25),
            has_started: false,
            is_told: false,
            is_alive: true,
            not_clean: false,
        };
        let starts = self.now + self.random.below(8_000);
        self.queue.push(starts, Event::Guest { guest: id, what: GuestStep::Starts });
        self.watch_deadline(id, agent, launch.deadline);
        self.guests.by_key.insert((agent, launch.key), id);
        self.guests.all.insert(id, guest);
        self.checker.guest_starts(launch.key.slice, launch.key.token, launch.lease);
        self.guest_meets_visitor(id);
    }

    fn watch_deadline(&mut self, guest: u64, agent: usize, deadline: Millis) {
        let at = self.agents[agent].clock.when(deadline).max(self.now);
        self.queue.push(at, Event::Guest { guest, what: GuestStep::Deadline });
    }

    pub(super) fn signal_guest(&mut self, agent: usize, key: GuestKey) {
        let Some(id) = self.guest_of(agent, key) else { return };
        let Some(guest) = self.guests.all.get_mut(&id).filter(|guest| guest.is_alive) else {
            return;
        };
        guest.is_told = true;
        match guest.obeys_after {
            Some(after) => {
                let at = self.now + after;
                self.queue.push(at, Event::Guest { guest: id, what: GuestStep::Exits });
            }
            None => self.faults.count(Fault::IgnoredSignal),
        }
    }

    pub(super) fn set_guest_deadline(&mut self, agent: usize, key: GuestKey, deadline: Millis) {
        let Some(id) = self.guest_of(agent, key) else { return };
        let Some(guest) = self.guests.all.get_mut(&id) else { return };
        let is_sooner = deadline < guest.deadline;
        guest.deadline = deadline;
        if is_sooner {
            self.watch_deadline(id, agent, deadline);
        }
    }

    pub(super) fn kill_guest(&mut self, agent: usize, key: GuestKey) {
        if let Some(id) = self.guest_of(agent, key) {
            self.guest_dies(id, Exit::Signal(9));
        }
    }

    /// Nothing of what an earlier start of the agent ran is left.
    pub(super) fn kill_all_guests(&mut self, agent: usize) {
        let home = self.home_of(agent);
        let here = |guest: &Guest| self.home_of(guest.agent) == home;
        let its = self.guests.all.iter().filter(|(_, guest)| here(guest));
        let its: Vec<u64> = its.map(|(id, _)| *id).collect();
        for id in its {
            self.guest_dies(id, Exit::Signal(9));
            self.forget_guest(id);
        }
    }

    /// The agent is gone: every guard kills its guest, each in its own time.
    pub(super) fn guards_see_eof(&mut self, agent: usize) {
        let its = self.guests.all.iter().filter(|(_, guest)| guest.agent == agent);
        let its: Vec<u64> = its.map(|(id, _)| *id).collect();
        for guest in its {
            let at = self.now + self.random.below(1_500);
            self.queue.push(at, Event::Guest { guest, what: GuestStep::AgentGone });
        }
    }

    pub(super) fn on_guest(&mut self, id: u64, what: GuestStep) {
        let (now, has_guard) = (self.now, self.has_guard());
        let Some(guest) = self.guests.all.get(&id) else { return };
        let agent = guest.agent;
        match what {
            GuestStep::Starts if guest.is_alive && !guest.has_started => self.guest_begins(id),
            GuestStep::Exits if guest.is_alive && guest.has_started => {
                let exit = guest.exit;
                self.guest_dies(id, exit);
            }
            // A guest that is told to stop while it starts does not obey before it runs.
            GuestStep::Exits if guest.is_alive => {
                self.queue.push(now + 500, Event::Guest { guest: id, what });
            }
            GuestStep::Deadline => {
                let deadline = guest.deadline;
                if guest.is_alive && has_guard {
                    if self.agents[agent].clock.at(now) >= deadline {
                        self.faults.count(Fault::GuardAtDeadline);
                        self.guest_dies(id, Exit::Signal(9));
                    } else {
                        self.watch_deadline(id, agent, deadline);
                    }
                }
            }
            GuestStep::AgentGone if has_guard => {
                if guest.is_alive {
                    self.faults.count(Fault::GuardAtEof);
                }
                self.guest_dies(id, Exit::Signal(9));
                self.forget_guest(id);
            }
            GuestStep::Cleaned => self.guest_is_clean(id),
            GuestStep::Starts | GuestStep::Exits | GuestStep::AgentGone => {}
        }
    }

    /// Guests of a node whose deadline is over on its clock.
    pub(super) fn overdue(&self, agent: usize, local: Millis) -> Vec<u64> {
        if !self.has_guard() {
            return Vec::new();
        }
        let is_overdue =
            |guest: &Guest| guest.is_alive && guest.agent == agent && guest.deadline <= local;
        let overdue = self.guests.all.iter().filter(|(_, guest)| is_overdue(guest));
        overdue.map(|(id, _)| *id).collect()
    }

    fn has_guard(&self) -> bool {
        !self.is_without(Rule::La5Guard) && !self.is_without(Rule::La2La5)
    }

    fn guest_begins(&mut self, id: u64) {
        let now = self.now;
        let Some(guest) = self.guests.all.get_mut(&id) else { return };
        let key = guest.key;
        if !guest.will_start {
            self.faults.count(Fault::NotStarted);
            guest.is_alive = false;
            self.checker.guest_gone(now, key.slice, key.token);
            let report = Report::NotStarted(key, StartFailure::Node { errno: 12 });
            self.tell_agent(id, report);
            return self.forget_guest(id);
        }
        guest.has_started = true;
        let (runs, lease) = (guest.runs, guest.lease);
        self.checker.guest_runs(now, key.slice, key.token, lease);
        if let Some(runs) = runs {
            let exits = Event::Guest { guest: id, what: GuestStep::Exits };
            self.queue.push(now + runs, exits);
        }
        self.tell_agent(id, Report::Started(key));
    }

    /// Its processes are gone; what it left behind is being removed.
    pub(super) fn guest_dies(&mut self, id: u64, exit: Exit) {
        let Some(guest) = self.guests.all.get_mut(&id).filter(|guest| guest.is_alive) else {
            return;
        };
        guest.is_alive = false;
        let key = guest.key;
        self.checker.guest_gone(self.now, key.slice, key.token);
        self.tell_agent(id, Report::Exited(key, exit));
        let clean = self.now + self.random.below(2_000);
        self.queue.push(clean, Event::Guest { guest: id, what: GuestStep::Cleaned });
    }

    fn guest_is_clean(&mut self, id: u64) {
        let is_dirty = !self.is_calm && self.random.chance(1, 40);
        let Some(guest) = self.guests.all.get_mut(&id).filter(|guest| !guest.is_alive) else {
            return;
        };
        let key = guest.key;
        if is_dirty && !guest.not_clean {
            guest.not_clean = true;
            self.faults.count(Fault::NotClean);
            self.tell_agent(id, Report::NotClean(key));
            let again = Event::Guest { guest: id, what: GuestStep::Cleaned };
            self.queue.push(self.now + 45_000, again);
            return;
        }
        self.tell_agent(id, Report::Clean(key));
        self.forget_guest(id);
    }

    /// The driver of the start that launched it reports; to a later start nobody does.
    fn tell_agent(&mut self, id: u64, report: Report) {
        let Some(guest) = self.guests.all.get(&id) else { return };
        let (agent, boot) = (guest.agent, guest.boot);
        if self.agents[agent].boot == boot && self.agents[agent].is_up() {
            self.with_session(agent, |session, now| session.on_report(now, report));
        }
    }

    fn forget_guest(&mut self, id: u64) {
        if let Some(guest) = self.guests.all.remove(&id) {
            self.guests.by_key.remove(&(guest.agent, guest.key));
        }
    }
}
