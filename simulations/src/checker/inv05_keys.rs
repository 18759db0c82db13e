//! INV-5: at most one request, and so at most one lease at a time, for each thing a client asks,
//! however often it asks; equal answers under one key; a key is good for one thing only.

use std::collections::{BTreeMap, BTreeSet};

use sublet_protocol::commands::Outcome;
use sublet_protocol::events::Event;
use sublet_protocol::ids::TenantId;
use sublet_protocol::records::Record;

use super::Checker;

/// What was asked and answered.
#[derive(Debug, Default)]
pub(super) struct Keys {
    /// The request of each operation; the simulation numbers them.
    submitted: BTreeMap<u128, u128>,
    /// The first record of each mutation that was committed, by tenant and key.
    used: BTreeMap<(Option<TenantId>, [u8; 16]), u64>,
    firsts: BTreeSet<u64>,
}

impl Checker {
    pub(super) fn submitted_once(&mut self, record: &Record) {
        let Event::RequestSubmitted { request, .. } = &record.event else { return };
        let operation = request.get() >> 16;
        if let Some(other) = self.keys.submitted.insert(operation, request.get())
            && other != request.get()
        {
            self.fail(5, format!("{request} is a second request for one thing asked"));
        }
    }

    pub(super) fn key_is_used_once(&mut self, record: &Record) {
        let Event::KeyUsed { tenant, key, first } = &record.event else { return };
        if self.keys.used.insert((*tenant, key.key), *first).is_some() {
            self.fail(5, format!("a key of {tenant:?} was used twice, again for record {first}"));
        }
        self.keys.firsts.insert(*first);
    }

    pub(super) fn answers_agree(&mut self, outcome: &Outcome) {
        if let Outcome::Repeated { first } = outcome {
            let is_known = self.keys.firsts.contains(first);
            self.check(5, is_known, || format!("a repetition points at record {first}"));
        }
    }

    /// Whether a mutation under this key was committed.
    pub(crate) fn is_key_used(&self, tenant: Option<TenantId>, key: u64) -> bool {
        self.keys.used.contains_key(&(tenant, u128::from(key).to_le_bytes()))
    }

    /// A client used a key, which had been used, for something else.
    pub(crate) fn misused(&mut self, tenant: Option<TenantId>, outcome: &Outcome) {
        let is_refused = matches!(outcome, Outcome::Refused { .. });
        self.check(5, is_refused, || format!("a key of {tenant:?} was good for two things"));
    }
}
