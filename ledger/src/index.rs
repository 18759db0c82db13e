//! Which records touch a lease, a request or a tenant.
//!
//! The unsealed tail's postings are kept in memory (at most one seal's worth, made anew from the
//! pages when the journal opens). At a seal they go into the store, one entry for each id and
//! segment instead of one for each record: measured with sled 0.34.7, an entry per record costs
//! more bytes than the records and eight times the time.
//!
//! An entry: key = id ‖ first index u64 big-endian, value = the distances to the following
//! indexes as LEB128.

use std::collections::BTreeMap;

use sublet_protocol::ids::TenantId;
use sublet_protocol::records::Record;

use crate::error::{Damage, Error};
use crate::segment::{NAME_BYTES, padded};
use crate::store::{Batch, Store, Tree};

/// Indexes in one entry at most, so that a value stays below 16 KiB.
const ENTRY_INDEXES_MAX: usize = 1_600;

/// What is looked up.
#[derive(Clone, Copy)]
pub(crate) enum Key {
    /// The number of a lease or a request.
    Subject(u128),
    /// A tenant.
    Tenant(TenantId),
}

impl Key {
    const fn tree(self) -> Tree {
        match self {
            Self::Subject(_) => Tree::BySubject,
            Self::Tenant(_) => Tree::ByTenant,
        }
    }

    /// The store's key of the entry that begins with record `first`.
    fn at(self, first: u64) -> Vec<u8> {
        let mut key = Vec::with_capacity(NAME_BYTES + 8);
        match self {
            Self::Subject(number) => key.extend_from_slice(&number.to_be_bytes()),
            Self::Tenant(tenant) => key.extend_from_slice(&padded(tenant.as_str())),
        }
        key.extend_from_slice(&first.to_be_bytes());
        key
    }
}

/// Postings in memory: for each id the indexes of its records, ascending.
#[derive(Default)]
pub(crate) struct Postings {
    subjects: BTreeMap<u128, Vec<u64>>,
    tenants: BTreeMap<TenantId, Vec<u64>>,
}

impl Postings {
    /// Adds `record`, which comes after those added before.
    pub(crate) fn add(&mut self, record: &Record) {
        for subject in record.subjects() {
            let indexes = self.subjects.entry(subject).or_default();
            // A lease and its request may have the same number.
            if indexes.last() != Some(&record.index) {
                indexes.push(record.index);
            }
        }
        if let Some(tenant) = record.tenant() {
            self.tenants.entry(tenant).or_default().push(record.index);
        }
    }

    /// The indexes of `key`, ascending.
    pub(crate) fn of(&self, key: Key) -> &[u64] {
        let indexes = match key {
            Key::Subject(number) => self.subjects.get(&number),
            Key::Tenant(tenant) => self.tenants.get(&tenant),
        };
        indexes.map_or(&[], Vec::as_slice)
    }

    /// Writes all of them into the store's index.
    pub(crate) fn put(&self, batch: &mut Batch) {
        self.entries().for_each(|(tree, key, value, _)| batch.put(tree, key, value));
    }

    /// The first record whose entry is not in the store's index as [`Postings::put`] writes it.
    pub(crate) fn missing_from(&self, store: &dyn Store) -> Result<Option<u64>, Error> {
        for (tree, key, value, first) in self.entries() {
            if store.get(tree, &key)? != Some(value) {
                return Ok(Some(first));
            }
        }
        Ok(None)
    }

    /// Tree, key and value of each entry, and the index of its first record.
    fn entries(&self) -> impl Iterator<Item = (Tree, Vec<u8>, Vec<u8>, u64)> {
        let subjects = self.subjects.iter().map(|(number, of)| (Key::Subject(*number), of));
        let tenants = self.tenants.iter().map(|(tenant, of)| (Key::Tenant(*tenant), of));
        subjects.chain(tenants).flat_map(|(key, indexes)| {
            let chunks = indexes.chunks(ENTRY_INDEXES_MAX);
            chunks.map(move |of| (key.tree(), key.at(of[0]), distances(of), of[0]))
        })
    }
}

/// The first `limit` sealed records of `key` from index `from` on.
pub(crate) fn sealed(
    store: &dyn Store,
    key: Key,
    from: u64,
    limit: usize,
) -> Result<Vec<u64>, Error> {
    let (all, mut start) = (key.at(0), key.at(from));
    let (id, _) = all.split_at(all.len() - 8);
    // The entry that begins before `from` may reach beyond it.
    if let Some((before, _)) = store.last_until(key.tree(), &start)?
        && before.starts_with(id)
    {
        start = before;
    }
    let end = key.at(u64::MAX);
    let mut found = Vec::new();
    while found.len() < limit {
        // An entry has at least one index, so `limit` entries suffice.
        let entries = store.scan(key.tree(), &start..=&end, (limit - found.len()).min(64))?;
        let Some((last, _)) = entries.last() else { break };
        start = [last.as_slice(), &[0]].concat();
        for (place, value) in &entries {
            let indexes = indexes(id, place, value)?;
            found.extend(indexes.into_iter().filter(|index| *index >= from));
        }
    }
    found.truncate(limit);
    Ok(found)
}

fn distances(indexes: &[u64]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(indexes.len());
    for pair in indexes.windows(2) {
        let mut rest = pair[1] - pair[0];
        while rest >= 0x80 {
            bytes.push(u8::try_from(rest & 0x7f).expect("seven bits") | 0x80);
            rest >>= 7;
        }
        bytes.push(u8::try_from(rest).expect("seven bits"));
    }
    bytes
}

/// The indexes of an entry of `id`; nothing about the bytes is taken on trust.
fn indexes(id: &[u8], key: &[u8], value: &[u8]) -> Result<Vec<u64>, Damage> {
    let first = key.strip_prefix(id).and_then(|rest| rest.try_into().ok());
    let first = first.map(u64::from_be_bytes).ok_or(Damage::Index { index: 0 })?;
    let mut indexes = vec![first];
    let (mut last, mut distance, mut shift) = (first, 0_u64, 0_u32);
    for byte in value {
        let bits = u64::from(byte & 0x7f);
        let shifted = bits.checked_shl(shift).filter(|shifted| shifted >> shift == bits);
        distance |= shifted.ok_or(Damage::Index { index: last })?;
        shift += 7;
        if byte & 0x80 == 0 {
            last = last.checked_add(distance).ok_or(Damage::Index { index: last })?;
            indexes.push(last);
            (distance, shift) = (0, 0);
        }
    }
    if shift == 0 { Ok(indexes) } else { Err(Damage::Index { index: last }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_survive_their_entry() {
        for list in [vec![7], vec![0, 1, 2], vec![5, 132, 133, 40_000, u64::MAX]] {
            let key = Key::Subject(9);
            let at = key.at(list[0]);
            assert_eq!(indexes(&at[..16], &at, &distances(&list)), Ok(list));
        }
    }

    #[test]
    fn an_entry_cut_short_or_impossible_is_damage() {
        let at = Key::Subject(9).at(7);
        assert!(indexes(&at[..16], &at[..20], &[]).is_err());
        assert!(indexes(&at[..16], &at, &[0x80]).is_err());
        assert!(indexes(&at[..16], &at, &[0xff; 11]).is_err());
    }
}
