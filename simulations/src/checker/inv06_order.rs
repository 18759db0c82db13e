//! INV-6: tokens at the agents, starts of agents, terms, and the place and time of records only go
//! forward. INV-12, the part seen from outside: every record has one place, without a gap.

use std::collections::BTreeMap;

use sublet_agent::durable::DurableState;
use sublet_core::{Applied, State};
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
    tokens: BTreeMap<DeviceId, Token>,
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
        for (device, token) in &durable.device_tokens {
            let known = self.order.tokens.get(device).copied().unwrap_or(Token::NONE);
            let is_newer = *token >= known;
            self.check(6, is_newer, || format!("{device} goes back from {known} to {token}"));
            self.order.tokens.insert(*device, known.max(*token));
        }
        self.bounds_of_agent(durable.usage.len());
    }

    /// What an agent will keep in a moment: it acts on this.
    pub(crate) fn agent_acts_on(&mut self, durable: &DurableState) {
        for (device, token) in &durable.device_tokens {
            let known = self.order.tokens.entry(*device).or_insert(Token::NONE);
            *known = token.max(known).to_owned();
        }
    }

    /// A guest with this token starts on a slice.
    pub(super) fn started_in_order(&mut self, slice: SliceId, token: Token) {
        if let Some(last) = self.order.started.insert(slice, token) {
            self.check(6, token > last, || format!("{slice} starts {token} after {last}"));
        }
    }
}
