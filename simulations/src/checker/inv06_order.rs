//! INV-6: tokens at the agents, starts of agents, terms, and the place and time of records only go
//! forward. INV-12, the part seen from outside: every record has one place, without a gap.

use std::collections::BTreeMap;

use sublet_agent::durable::DurableState;
use sublet_core::{Applied, State};
use sublet_protocol::agent::Up;
use sublet_protocol::capacity::SliceId;
use sublet_protocol::ids::{DeviceId, Token};
use sublet_protocol::units::Timestamp;

use super::Checker;

/// The newest of everything.
#[derive(Debug, Default)]
pub(super) struct Order {
    next_index: u64,
    time: Timestamp,
    term: u64,
    boots: BTreeMap<usize, u64>,
    tokens: BTreeMap<usize, BTreeMap<DeviceId, Token>>,
    /// The newest token of each slice whose end its agent has said.
    over: BTreeMap<(usize, SliceId), Token>,
    started: BTreeMap<SliceId, Token>,
}

impl Checker {
    pub(super) fn records_in_order(&mut self, applied: &Applied, state: &State) {
        for record in &applied.records {
            let (index, next) = (record.index, self.order.next_index);
            self.check(12, index == next, || format!("record {index} comes where {next} should"));
            let is_later = record.time >= self.order.time;
            self.check(6, is_later, || format!("record {index} goes back in time"));
            let is_term = record.term >= self.order.term.min(record.term);
            self.check(6, is_term, || format!("record {index} goes back in term"));
            self.order.next_index = index + 1;
            self.order.time = record.time;
        }
        let (next, folded) = (self.order.next_index, state.next_index());
        self.check(12, next == folded, || format!("{folded} records in the state, {next} made"));
    }

    /// A term was won.
    pub(crate) fn term(&mut self, term: u64) {
        let newest = self.order.term;
        self.check(6, term > newest, || format!("term {term} after term {newest}"));
        self.order.term = term.max(newest);
    }

    /// What an agent keeps, as it starts or acts.
    pub(crate) fn agent_keeps(&mut self, agent: usize, durable: &DurableState) {
        let boot = durable.boot.get();
        let newest = self.order.boots.insert(agent, boot).unwrap_or(0);
        self.check(6, boot >= newest, || format!("agent {agent} goes back to start {boot}"));
        let known = self.order.tokens.entry(agent).or_default();
        let back =
            known.iter().find(|(device, token)| durable.newest_on_device(**device) < **token);
        if let Some((device, token)) = back {
            let what = format!("agent {agent} forgets that it saw {token} on {device}");
            return self.fail(6, what);
        }
        self.agent_acts_on(agent, durable);
        self.bounds_of_agent(durable.usage.len());
    }

    /// What an agent has seen, kept or not: it acts on this.
    pub(crate) fn agent_acts_on(&mut self, agent: usize, durable: &DurableState) {
        self.order.tokens.entry(agent).or_default().clone_from(&durable.device_tokens);
    }

    /// An agent does not prepare what it has stopped or refused, nor what is older.
    pub(crate) fn agent_says(&mut self, agent: usize, message: &Up) {
        match message {
            Up::Stopped { slice, token, .. } => {
                let over = self.order.over.entry((agent, *slice)).or_insert(Token::NONE);
                *over = *token.max(over);
            }
            Up::Confirm { slice, token, .. } => {
                let over = self.order.over.get(&(agent, *slice)).copied().unwrap_or(Token::NONE);
                self.check(6, *token > over, || {
                    format!("agent {agent} prepares {token} on {slice} after the end of {over}")
                });
            }
            _other => {}
        }
    }

    /// A guest with this token starts on a slice.
    pub(super) fn started_in_order(&mut self, slice: SliceId, token: Token) {
        if let Some(last) = self.order.started.insert(slice, token) {
            self.check(6, token > last, || format!("{slice} starts {token} after {last}"));
        }
    }
}
