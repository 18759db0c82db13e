//! The ledger as the API shows it.

use serde::{Deserialize, Serialize};

use super::{Money, Time};
use crate::commands::Actor;
use crate::events::Event;
use crate::ids::{CellId, CommandId};
use crate::records::Record;

/// The JSON form of a record: the fields of the record one by one, so that the canonical bytes can
/// be made from it again ([`RecordView::to_record`]), and what helps a reader.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RecordView {
    /// Its place: 0, 1, 2, …
    pub index: u64,
    /// The raft term it was committed in.
    pub term: u64,
    /// Ledger time.
    pub time: Time,
    /// The command that caused it.
    pub cause: CommandId,
    /// Who asked.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub actor: Actor,
    /// The event's name.
    pub kind: String,
    /// What happened: an object with one field, the event's name. Inside it spans and instants are
    /// the whole numbers of the record (seconds, milliseconds), money is whole millionths, hashes
    /// are lists of bytes.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub event: Event,
}

impl From<Record> for RecordView {
    fn from(record: Record) -> RecordView {
        RecordView {
            index: record.index,
            term: record.term,
            time: Time(record.time),
            cause: record.cause,
            actor: record.actor,
            kind: record.event.name().to_owned(),
            event: record.event,
        }
    }
}

impl RecordView {
    /// The record it shows.
    #[must_use]
    pub fn to_record(&self) -> Record {
        Record {
            index: self.index,
            term: self.term,
            time: self.time.0,
            cause: self.cause,
            actor: self.actor.clone(),
            event: self.event.clone(),
        }
    }
}

/// How far the ledger is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LedgerState {
    /// The cell whose ledger it is; none before it was founded.
    pub cell: Option<CellId>,
    /// How many records it has.
    pub size: u64,
    /// The RFC 6962 root over all of them, as 64 hex digits.
    pub root: String,
    /// How many of them stand in sealed segments.
    pub sealed: u64,
    /// The time of the last record.
    pub time: Time,
}

/// The state of the cell as it was behind a record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PastState {
    /// How many records it is the fold of.
    pub records: u64,
    /// The time of the last of them.
    pub time: Time,
    /// SHA-256 of its canonical bytes, as 64 hex digits: equal exactly if the states are.
    pub sha256: String,
    /// How many tenants and groups there were.
    pub tenants: u64,
    /// How many slices were on offer.
    pub offers: u64,
    /// How many requests waited or were granted.
    pub requests: u64,
    /// How many leases had not ended.
    pub leases: u64,
    /// What was set aside for them.
    pub hold: Money,
}

/// How things of one kind differ between two states, by their ids.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StateChanges {
    /// Of what kind.
    pub kind: String,
    /// How many came.
    pub added: u64,
    /// How many went.
    pub removed: u64,
    /// How many are there in both and differ.
    pub changed: u64,
    /// The first of those that came, went and differ, as `+id`, `-id` and `~id`; at most 100 of each.
    pub ids: Vec<String>,
}

/// What differs between two states of the cell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StateDiff {
    /// The earlier one.
    pub from: PastState,
    /// The later one.
    pub until: PastState,
    /// What differs, by kind; kinds that do not differ are left out.
    pub changes: Vec<StateChanges>,
}

/// What a full check of the ledger found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct VerifyView {
    /// Whether every record, hash, segment and posting is as it must be.
    pub verified: bool,
    /// How many records were read.
    pub records: u64,
    /// The RFC 6962 root over all of them, as 64 hex digits.
    pub root: String,
    /// Whether the debits and credits of all accounts are equal.
    pub balanced: bool,
    /// What is wrong, the first thing first; empty if nothing is.
    pub findings: Vec<String>,
}

/// A signed checkpoint of the ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CheckpointView {
    /// Which ledger it is of.
    pub origin: String,
    /// How many records it covers.
    pub size: u64,
    /// The RFC 6962 root over them, as 64 hex digits.
    pub root: String,
    /// The public key, as NAME+HASH+KEY. Take it from elsewhere if it is to prove anything.
    pub key: String,
    /// The signed note (C2SP `tlog-checkpoint`).
    pub note: String,
}

/// A proof that a record is in the ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ProofView {
    /// The record.
    pub index: u64,
    /// How many records the checkpoint covers.
    pub size: u64,
    /// The proof (C2SP `tlog-proof`), to be kept in a file for `sublet-audit check-proof`.
    pub proof: String,
}

/// What shows that a ledger extends an earlier one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ExtensionView {
    /// How many records the earlier one has.
    pub from: u64,
    /// The consistency proof of RFC 6962, 2.1.2, in base64.
    pub hashes: Vec<String>,
    /// The later checkpoint, a signed note.
    pub note: String,
}

/// What names a record at the moment it is acknowledged: the header `Sublet-Receipt`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Receipt {
    /// Which ledger it is in.
    pub origin: String,
    /// Its index.
    pub index: u64,
    /// Its leaf hash, as 64 hex digits.
    pub leaf: String,
    /// Its ledger time.
    pub time: Time,
}

/// One account of the double-entry books.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AccountView {
    /// Its name, as `acme:expense`.
    pub account: String,
    /// The sum of its debits.
    pub debit: Money,
    /// The sum of its credits.
    pub credit: Money,
}
