//! The world: every actor, the queue of what will happen, and the loop that lets it happen.

use sha2::{Digest, Sha256};
use sublet_core::Applied;
use sublet_protocol::events::Event as Fact;

use super::agent::Agent;
use super::broker::Replica;
use super::client::Clients;
use super::disk::Disks;
use super::eyes::Eyes;
use super::fault::Faults;
use super::guests::Guests;
use super::heal::Heal;
use super::log::Log;
use super::owner::Device;
use super::queue::{Deadline, Event, Queue};
use super::raft::Raft;
use super::rule::Rule;
use super::second::Second;
use super::setup::Profile;
use crate::checker::{Checker, Violation};
use crate::generator::Random;

/// Everything there is.
pub(super) struct World {
    pub(super) now: u64,
    pub(super) steps: u64,
    pub(super) queue: Queue,
    pub(super) random: Random,
    pub(super) faults: Faults,
    pub(super) rule: Option<Rule>,
    pub(super) profile: Profile,
    pub(super) agents: Vec<Agent>,
    /// A second process of one of them.
    pub(super) second: Option<Second>,
    pub(super) devices: Vec<Device>,
    pub(super) guests: Guests,
    pub(super) replicas: Vec<Replica>,
    pub(super) raft: Raft,
    pub(super) disks: Disks,
    pub(super) eyes: Eyes,
    pub(super) clients: Clients,
    pub(super) checker: Checker,
    pub(super) heal: Heal,
    /// Faults have stopped.
    pub(super) is_calm: bool,
    pub(super) is_over: bool,
    /// Nothing passes between brokers and agents until then.
    pub(super) dark_until: u64,
    /// One committed state in so many is checked as a whole.
    pub(super) check_every: u64,
    pub(super) trace: Option<Sha256>,
    /// The last things that happened, in words.
    pub(super) log: Option<Log>,
}

impl World {
    pub(super) fn is_without(&self, rule: Rule) -> bool {
        self.rule == Some(rule)
    }

    /// A property does not hold.
    pub(super) fn fail(&mut self, invariant: u8, what: &str) {
        self.checker.fail(invariant, what.to_owned());
    }

    /// Lets things happen until `steps` have, or a property is broken.
    pub(super) fn run(&mut self, steps: u64) -> Option<Violation> {
        while !self.is_over && self.checker.violation().is_none() {
            if self.steps >= steps && !self.is_calm {
                self.begin_heal();
            }
            self.heal_comes_to_rest();
            let Some((at, event)) = self.queue.pop() else { break };
            self.now = at;
            self.steps += 1;
            if let Some(trace) = &mut self.trace {
                trace.update(at.to_le_bytes());
                trace.update(format!("{event:?}"));
            }
            if self.log.is_some() {
                self.log_event(&event);
            }
            self.happen(event);
        }
        self.checker.violation().cloned()
    }

    fn happen(&mut self, event: Event) {
        if let Some(until) = self.held_up(&event) {
            if let Event::AgentWake { agent } = event {
                return self.postpone_wake(agent, until);
            }
            return self.queue.push(until, event);
        }
        if let Some(agent) = process_of(&event)
            && std::mem::take(&mut self.agents[agent].is_look_due)
        {
            let devices: Vec<usize> = self.devices_of(agent).collect();
            devices.into_iter().for_each(|device| self.on_look(device));
        }
        match event {
            Event::Up { bytes, .. } => self.on_up(&bytes),
            Event::Reply { agent, boot, sequence, bytes } => {
                self.on_reply(agent, boot, sequence, &bytes);
            }
            Event::Down { agent, bytes } => self.on_down(agent, &bytes),
            Event::AgentWake { agent } => self.on_agent_wake(agent),
            Event::AgentRetry { agent, boot, sequence } => {
                self.on_agent_retry(agent, boot, sequence);
            }
            Event::AgentStart { agent } => self.start_agent(agent),
            Event::AgentResume { agent } => self.resume(agent),
            Event::Look { device } => self.on_look(device),
            Event::Sample { agent, boot } => self.on_sample(agent, boot),
            Event::Arrives { device, visit } => self.on_arrives(device, visit),
            Event::Leaves { device } => self.on_leaves(device),
            Event::Guest { guest, what } => self.on_guest(guest, what),
            Event::Commit { id } => self.on_commit(id),
            Event::Apply { replica } => self.on_apply(replica),
            Event::Barrier { replica, term, message } => self.on_barrier(replica, term, &message),
            Event::Planned { replica, term, groups } => self.on_planned(replica, term, groups),
            Event::LeaderWake { replica } => self.on_leader_wake(replica),
            Event::Election => self.on_election(),
            Event::Office { replica, term } => self.on_office(replica, term),
            Event::Deposed { replica, term } => self.on_deposed(replica, term),
            Event::ReplicaStart { replica } => self.start_replica(replica),
            Event::Disk { replica, what } => self.on_disk(replica, what),
            Event::ReplicaJoins { replica } => self.join(replica),
            Event::Pulled { agent } => self.pull(agent),
            Event::Mended { agent } => self.mend(agent),
            Event::Client { client } => self.on_client(client),
            Event::ClientTimeout { operation, tries } => self.on_client_timeout(operation, tries),
            Event::Fault => self.on_fault(),
            Event::Check(deadline) => self.on_check(deadline),
            Event::Heal(stage) => self.on_heal(stage),
        }
    }

    /// Until when an event cannot happen because its node stands still.
    fn held_up(&self, event: &Event) -> Option<u64> {
        let process = |agent: usize| self.agents[agent].held_up_until(self.now);
        if let Some(agent) = process_of(event) {
            return process(agent);
        }
        match event {
            Event::Look { device } => process(self.devices[*device].agent),
            Event::Guest { guest, .. } => {
                let agent = self.guests.all.get(guest)?.agent;
                let until = self.agents[agent].frozen_until;
                (until > self.now).then_some(until + 1)
            }
            _other => None,
        }
    }

    fn on_apply(&mut self, replica: usize) {
        self.replicas[replica].is_apply_due = false;
        if self.replicas[replica].is_up && !self.replicas[replica].is_isolated {
            self.apply_committed(replica, None);
        }
    }

    /// What was decided is a promise about guests: its time is noted.
    pub(super) fn watch_promises(&mut self, applied: &Applied) {
        for record in &applied.records {
            if let Fact::LeaseEnding { lease, .. } = record.event
                && let Some(token) = self.checker.token_of(lease)
            {
                let at = self.now + self.profile.guests_gone_within();
                let check = Deadline::TokenGone { counter: token.counter };
                self.queue.push(at, Event::Check(check));
            }
        }
    }

    fn on_check(&mut self, deadline: Deadline) {
        match deadline {
            Deadline::GuestGone { guest, invariant } => {
                let Some(one) = self.guests.all.get(&guest).filter(|one| one.is_alive) else {
                    return;
                };
                if invariant == 7 && !self.is_owner_waiting(one) {
                    return;
                }
                let agent = &self.agents[one.agent];
                // A suspended guest does not run; its time starts again when the node goes on.
                if agent.frozen_at + self.profile.guests_gone_within() > self.now {
                    let at = self.now + self.profile.guests_gone_within();
                    return self.queue.push(at, Event::Check(deadline));
                }
                self.checker.guest_is_late(invariant, one.lease, one.key.slice);
            }
            Deadline::TokenGone { counter } => self.token_gone(counter, deadline),
        }
    }

    fn token_gone(&mut self, counter: u64, deadline: Deadline) {
        let its = |one: &&super::guests::Guest| one.is_alive && one.key.token.counter == counter;
        let Some(one) = self.guests.all.values().find(its) else { return };
        let agent = &self.agents[one.agent];
        if agent.frozen_at + self.profile.guests_gone_within() > self.now {
            let at = self.now + self.profile.guests_gone_within();
            return self.queue.push(at, Event::Check(deadline));
        }
        let what = format!("a guest of {} runs W after its lease was ending", one.lease);
        self.fail(3, &what);
    }
}

/// The agent's process that an event comes to.
const fn process_of(event: &Event) -> Option<usize> {
    match event {
        Event::Reply { agent, .. }
        | Event::Down { agent, .. }
        | Event::AgentWake { agent }
        | Event::AgentRetry { agent, .. }
        | Event::AgentStart { agent }
        | Event::Sample { agent, .. } => Some(*agent),
        _other => None,
    }
}
