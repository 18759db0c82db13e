//! The brokers of a cell, for its operators.

use serde::{Deserialize, Serialize};

use crate::ids::CellId;

/// A cell and its brokers, as one of them sees them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CellView {
    /// Its name; none before it is founded, or taken in.
    pub cell: Option<CellId>,
    /// The broker that answered.
    pub broker: u64,
    /// Which broker leads, as far as this one knows.
    pub leader: Option<u64>,
    /// The term of that leader.
    pub term: u64,
    /// What the cell may use; raised by an operator once every broker can do more.
    #[serde(default)]
    pub feature_level: u16,
    /// All brokers, by number.
    pub brokers: Vec<BrokerView>,
}

/// What a broker is to its cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum BrokerRole {
    /// It leads.
    Leader,
    /// It votes.
    Voter,
    /// It copies the log and does not vote (yet).
    Learner,
}

/// A broker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BrokerView {
    /// Its number.
    pub id: u64,
    /// What it is to its cell.
    pub role: BrokerRole,
    /// Where other brokers find it.
    pub peer: String,
    /// The URL of its API; empty if it was not told.
    pub api: String,
    /// Whether it answered the broker that was asked.
    pub reached: bool,
    /// Its program's version, if it answered.
    pub version: Option<String>,
    /// The entry of the log that it applied last, if it answered.
    pub applied: Option<u64>,
    /// Entries that it has not applied and the furthest broker that answered has.
    pub lag: Option<u64>,
    /// Records in its ledger, if it answered.
    pub records: Option<u64>,
    /// Root of its ledger in hexadecimal digits, if it answered. Brokers with as many records have the
    /// same root.
    pub root: Option<String>,
    /// The disk of its data folder, if it answered and looks at it.
    #[serde(default)]
    pub disk: Option<DiskView>,
    /// The highest feature level that its program can do, if it answered.
    #[serde(default)]
    pub feature_level: Option<u16>,
}

/// The disk that a broker's log and ledger lie on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DiskView {
    /// What there is room for.
    pub room: DiskRoom,
    /// Bytes that the broker may still write, beside what it keeps back.
    pub free_bytes: u64,
    /// Bytes in all.
    pub total_bytes: u64,
}

/// What a disk has room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum DiskRoom {
    /// Only for what ends something.
    Full,
    /// For everything but new grants.
    Low,
    /// For everything.
    Plenty,
}

/// What a cell may use from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LevelSet {
    /// The feature level. Every broker must be able to do it.
    pub level: u16,
}

/// A broker to be taken in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BrokerAdd {
    /// Its number. A broker with a new disk has a new number.
    pub id: u64,
    /// Where other brokers find it, as `host:port`.
    pub peer: String,
    /// The URL of its API, as `http://host:port`, for callers who are told who leads.
    #[serde(default)]
    pub api: String,
}
