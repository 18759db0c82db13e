//! After the faults: everything is mended, and within W and a little nothing may be stuck, what is
//! free must be granted to who asks, and everything must settle (INV-9).

use sublet_protocol::requests::Class;
use sublet_protocol::units::{GpuMilli, Seconds};

use super::client::{Ask, plain_spec};
use super::queue::Event;
use super::setup;
use super::world::World;

/// How often everything is taken back.
const RECALLS_MAX: u32 = 4;
/// Free slices must be granted to who asks within this: two reports of an agent, one for what lapsed
/// and one for what was refused meanwhile. W is longer.
const SERVED_WITHIN: u64 = 60_000;
/// Things that may happen while everything heals, about ten times what does: beyond that messages
/// call forth each other for ever.
const STEPS_MAX: u64 = 100_000;
/// How long a probe runs, in seconds.
const PROBE: u64 = 60;

/// Where the heal phase stands.
#[derive(Debug, Default)]
pub(super) struct Heal {
    began_at: u64,
    /// The step at which the faults stopped.
    began_with: u64,
    recalls: u32,
}

impl World {
    /// Faults stop; what is broken is mended.
    pub(super) fn begin_heal(&mut self) {
        self.is_calm = true;
        self.heal.began_at = self.now;
        self.heal.began_with = self.steps;
        self.dark_until = 0;
        for agent in 0..self.agents.len() {
            self.mend(agent);
            // A suspended node comes back by itself; healing begins when the last one has.
            let until = self.agents[agent].frozen_until;
            self.heal.began_at = self.heal.began_at.max(until);
            // An operator starts every agent anew: that ends fences, too.
            if self.profile.has_second_hosts {
                self.crash_agent(agent);
            }
            self.queue.push(self.now + 2_000, Event::AgentStart { agent });
        }
        for replica in 0..self.replicas.len() {
            self.replicas[replica].is_isolated = false;
            self.queue.push(self.now + 500, Event::ReplicaStart { replica });
            self.queue.push(self.now + 600, Event::ReplicaJoins { replica });
        }
        self.mend_disks();
        for device in 0..self.devices.len() {
            self.on_leaves(device);
        }
        self.queue.push(self.heal.began_at + 10_000, Event::Heal(1));
    }

    /// INV-9: what is left alone comes to rest.
    pub(super) fn heal_comes_to_rest(&mut self) {
        if self.is_calm && self.steps - self.heal.began_with > STEPS_MAX {
            self.fail(9, "messages never come to rest though nothing fails any more");
        }
    }

    pub(super) fn on_heal(&mut self, stage: u32) {
        let silence = self.profile.silence();
        let next = match stage {
            1 => {
                let leads = self.raft.leader.filter(|one| self.leads(*one, self.raft.term));
                let has_office = leads.is_some_and(|one| self.replicas[one].office.is_some());
                if !has_office {
                    return self.fail(9, "no leader is in office 10 s after the end of the faults");
                }
                self.heal.began_at + silence + 10_000
            }
            2 => {
                let since = self.now.saturating_sub(silence + 10_000);
                if let Some(stuck) = self.checker.stuck_since(since) {
                    return self.fail(9, &stuck);
                }
                self.end_fences();
                self.take_all_back();
                self.now + silence + 200_000
            }
            3 if self.checker.anything_live().is_some() && self.heal.recalls < RECALLS_MAX => {
                // What was being recalled when it was cancelled waits again, and may run again.
                self.heal.recalls += 1;
                self.take_all_back();
                return self.queue.push(self.now + silence + 200_000, Event::Heal(3));
            }
            3 => {
                if let Some(left) = self.checker.anything_live() {
                    return self.fail(9, &format!("{left} outlives its recall by far"));
                }
                self.probe();
                self.now + SERVED_WITHIN
            }
            4 => {
                let slices: usize = self.devices.iter().map(|device| device.slices.len()).sum();
                let served = self.checker.probes_served();
                if served != slices {
                    let what = format!("{served} of {slices} free slices could be granted");
                    return self.fail(9, &what);
                }
                self.now + PROBE * 1_000 + silence + 60_000
            }
            _last => return self.finish(),
        };
        self.queue.push(next, Event::Heal(stage + 1));
    }

    /// A word of a second host that was on its way when healing began may have fenced a node again, or
    /// the second host have been the first to say hello: its operator has the cell forget such a node
    /// and starts the agent anew.
    fn end_fences(&mut self) {
        let Some(leader) = self.raft.leader else { return };
        let nodes = self.replicas[leader].state.nodes();
        let is_fenced = |agent: &usize| {
            let one = &self.agents[*agent];
            nodes.get(&(one.cluster, one.node)).is_some_and(sublet_core::Node::is_fenced)
        };
        let fenced: Vec<usize> = (0..self.agents.len()).filter(is_fenced).collect();
        for agent in fenced {
            let one = &self.agents[agent];
            let (cluster, node) = (one.cluster, one.node);
            self.ask(None, Ask::Remove(cluster, node));
            self.crash_agent(agent);
            self.queue.push(self.now + 2_000, Event::AgentStart { agent });
        }
    }

    /// The operator takes everything back.
    fn take_all_back(&mut self) {
        for request in self.checker.all_requests() {
            self.ask(None, Ask::Cancel(request));
        }
        for lease in self.checker.all_leases() {
            self.ask(None, Ask::Revoke(lease));
        }
        let probing = setup::name("acme");
        self.ask(None, Ask::Quota(probing, GpuMilli::new(100_000)));
    }

    /// One request for each slice.
    fn probe(&mut self) {
        self.checker.begin_probes();
        let probing = setup::name("acme");
        let slices: usize = self.devices.iter().map(|device| device.slices.len()).sum();
        for _ in 0..slices {
            let mut spec = plain_spec(Class::Experiment);
            spec.duration = Seconds::new(PROBE);
            self.ask(Some(probing), Ask::Submit(Box::new(spec)));
        }
    }

    /// Everything has settled: the replicas are compared and the journal is folded again.
    fn finish(&mut self) {
        self.is_over = true;
        if let Some(left) = self.checker.anything_live() {
            return self.fail(9, &format!("{left} never settles"));
        }
        if self.open_operations() > 0 {
            return self.fail(9, "a client was never answered");
        }
        for replica in 0..self.replicas.len() {
            self.apply_committed(replica, None);
        }
        let books = self.replicas.iter().filter_map(|one| {
            one.journal.as_ref().map(|journal| (journal, &one.state, &one.accounts))
        });
        let books: Vec<_> = books.collect();
        if books.len() < self.replicas.len() {
            return self.fail(9, "a broker cannot open its ledger");
        }
        let mut lapsed = sublet_core::State::default();
        if let Some(lapse) = self.rule.and_then(super::rule::Rule::core) {
            lapse.apply(&mut lapsed);
        }
        self.checker.at_the_end(&books, lapsed);
        self.compare_disks();
    }
}
