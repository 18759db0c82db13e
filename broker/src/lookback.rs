//! Looking back: the state as it was behind any record, and what changed between two records.
//!
//! The state is the fold of the journal and nothing else, so it is folded again, from the first record
//! on: about as long as reading the journal up to there takes.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};
use sublet_core::State;
use sublet_protocol::codec;

use crate::cell::{Cell, RECORDS_MAX};
use crate::error::Error;

/// Folds the first `records` records into `state`, which is the fold of those before `state.next_index()`.
///
/// # Errors
/// The journal could not be read.
fn fold_up_to(cell: &Cell, state: &mut State, records: u64) -> Result<(), Error> {
    while state.next_index() < records {
        let batch = cell.records(state.next_index(), RECORDS_MAX)?;
        if batch.is_empty() {
            break;
        }
        for record in batch.iter().take_while(|record| record.index < records) {
            sublet_core::fold(state, record);
        }
    }
    Ok(())
}

/// The state behind the first `records` records, bit by bit as it was then; behind the last if there are
/// fewer.
///
/// # Errors
/// The journal could not be read.
pub fn state_at(cell: &Cell, records: u64) -> Result<State, Error> {
    let mut state = State::default();
    fold_up_to(cell, &mut state, records)?;
    Ok(state)
}

/// The state behind the first `records` records, from an earlier one.
///
/// # Errors
/// The journal could not be read.
pub fn state_from(cell: &Cell, earlier: &State, records: u64) -> Result<State, Error> {
    let mut state = earlier.clone();
    fold_up_to(cell, &mut state, records)?;
    Ok(state)
}

/// SHA-256 of a state's canonical bytes, as a snapshot has them: equal exactly if the states are.
///
/// # Errors
/// The state is too large to be written.
pub fn fingerprint(state: &State) -> Result<[u8; 32], codec::Error> {
    Ok(Sha256::digest(codec::encode(state)?).into())
}

/// How things of one kind differ between two states.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changes {
    /// Of what kind.
    pub kind: &'static str,
    /// By id: those that came.
    pub added: Vec<String>,
    /// Those that went.
    pub removed: Vec<String>,
    /// Those that are there in both and differ.
    pub changed: Vec<String>,
}

fn changes<K: Ord, V: PartialEq>(
    kind: &'static str,
    before: &BTreeMap<K, V>,
    after: &BTreeMap<K, V>,
    name: impl Fn(&K) -> String,
) -> Changes {
    let lacks = |of: &BTreeMap<K, V>, other: &BTreeMap<K, V>| {
        of.keys().filter(|key| !other.contains_key(*key)).map(&name).collect()
    };
    let both = before.iter().filter_map(|(key, value)| Some((key, value, after.get(key)?)));
    let changed = both.filter(|(_, was, is)| was != is).map(|(key, _, _)| name(key)).collect();
    Changes { kind, added: lacks(after, before), removed: lacks(before, after), changed }
}

/// What differs between two states of one cell. Time, counters and idempotency keys are left out.
#[must_use]
pub fn compare(before: &State, after: &State) -> Vec<Changes> {
    let policy = |state: &State| BTreeMap::from([((), state.policy().clone())]);
    let quotas = |state: &State| {
        let of = state.tree().nodes().flat_map(|(tenant, node)| {
            node.quotas().map(move |(model, quota)| ((tenant, model), quota)).collect::<Vec<_>>()
        });
        of.collect::<BTreeMap<_, _>>()
    };
    let terms = |state: &State| {
        state
            .tree()
            .nodes()
            .map(|(tenant, node)| (tenant, *node.terms()))
            .collect::<BTreeMap<_, _>>()
    };
    vec![
        changes("policy", &policy(before), &policy(after), |()| "policy".to_owned()),
        changes("tenants", before.tenants(), after.tenants(), ToString::to_string),
        changes("terms", &terms(before), &terms(after), ToString::to_string),
        changes("quotas", &quotas(before), &quotas(after), |(tenant, model)| {
            format!("{tenant} {model}")
        }),
        changes("prices", before.prices(), after.prices(), |(owner, model, tier)| {
            format!("{owner} {model} {tier:?}").to_lowercase()
        }),
        changes("clusters", before.clusters(), after.clusters(), ToString::to_string),
        changes("nodes", before.nodes(), after.nodes(), |(cluster, node)| {
            format!("{cluster}/{node}")
        }),
        changes("offers", before.offers(), after.offers(), ToString::to_string),
        changes("requests", before.requests(), after.requests(), ToString::to_string),
        changes("leases", before.leases(), after.leases(), ToString::to_string),
        changes("rollbacks", before.rollbacks(), after.rollbacks(), ToString::to_string),
    ]
}
