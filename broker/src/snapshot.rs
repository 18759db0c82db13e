//! The bytes of a snapshot: the state as of a seal, the books, and what the ledger has to hold.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sublet_core::State;
use sublet_ledger::Seal;
use sublet_ledger::accounts::Accounts;
use sublet_protocol::codec::Format;
use sublet_protocol::ids::TenantId;
use sublet_protocol::names::DisplayName;
use sublet_protocol::records::Record;

/// A snapshot. Its position in the raft log is kept beside it by the log.
#[derive(Serialize, Deserialize)]
pub(crate) struct Snapshot {
    /// The state after the entry that sealed.
    pub(crate) state: State,
    /// The books after it.
    pub(crate) accounts: Accounts,
    /// The segments up to that seal: whoever restores must have them.
    pub(crate) segments: Vec<SegmentRef>,
    /// The records that no segment holds yet: the one of the seal, and what followed it in its
    /// entry.
    pub(crate) tail: Vec<Record>,
    /// What tenants are called: in no record, so that it can be erased.
    pub(crate) names: BTreeMap<TenantId, DisplayName>,
}

impl Format for Snapshot {
    const WHAT: &'static str = "snapshot";
    const VERSION: u8 = 1;
    const MAX: usize = 1_024 * 1_024 * 1_024;
}

/// A segment by its number, extent and root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SegmentRef {
    pub(crate) number: u32,
    pub(crate) first: u64,
    pub(crate) count: u32,
    pub(crate) root: [u8; 32],
}

impl From<&Seal> for SegmentRef {
    fn from(seal: &Seal) -> Self {
        let Seal { number, first, count, root, .. } = *seal;
        Self { number, first, count, root: *root.as_bytes() }
    }
}
