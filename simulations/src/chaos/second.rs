//! A second process of one agent, started by mistake (LF4). The lock on the state's folder refuses it;
//! without the lock both act on the same node and the same state.

use super::agent::Agent;
use super::fault::Fault;
use super::rule::Rule;
use super::world::World;

/// The second process of a node: its place among the agents, and the node's first.
#[derive(Debug, Clone, Copy)]
pub(super) struct Second {
    first: usize,
    process: usize,
}

impl World {
    /// Somebody starts an agent where one runs.
    pub(super) fn start_second(&mut self, agent: usize) {
        if !self.agents[agent].is_up() {
            return;
        }
        self.faults.count(Fault::SecondStart);
        if !self.is_without(Rule::Lf4Lock) || self.second.is_some() {
            return;
        }
        let one = &self.agents[agent];
        let of = (one.cluster, one.node, one.host);
        let mut second = Agent::new(of, one.config.clone(), (one.rate, one.is_liar));
        second.store = one.store.clone();
        second.clock = one.clock;
        let process = self.agents.len();
        self.agents.push(second);
        self.second = Some(Second { first: agent, process });
        self.start_agent(process);
    }

    /// The first process of the node on which `agent` runs.
    pub(super) fn home_of(&self, agent: usize) -> usize {
        match self.second {
            Some(second) if second.process == agent => second.first,
            Some(_) | None => agent,
        }
    }

    /// Every process of the node: what is sent to it reaches all.
    pub(super) fn processes_of(&self, home: usize) -> impl Iterator<Item = usize> + use<> {
        let second = self.second.filter(|second| second.first == home);
        std::iter::once(home).chain(second.map(|second| second.process))
    }
}
