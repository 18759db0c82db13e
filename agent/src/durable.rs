//! What an agent must not forget: the newest tokens it has seen, how often it has started, and use
//! that the broker has not settled yet (rules LF2, LF3, LB3).
//!
//! The caller stores before it acts on what it stored. A store that cannot be read is an error,
//! never a fresh start: forgotten tokens would let an old grant in.

mod file;
mod folders;
mod memory;

pub use file::FileStore;
pub use memory::MemoryStore;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use sublet_protocol::capacity::SliceId;
use sublet_protocol::commands::GuestOutcome;
use sublet_protocol::ids::{Boot, DeviceId, LeaseId, Token};
use sublet_protocol::units::Millis;

/// Why an agent's state could not be read or kept.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another agent of this node runs (LF4).
    #[error("another agent holds {path:?}")]
    Locked {
        /// The lock file.
        path: PathBuf,
    },
    /// The file is damaged or of an unknown version. A person must look.
    #[error(
        "{path:?} is not a state this agent can read ({what}); it is left as it is: restore it, or \
         remove it only when the broker knows that this node's leases have ended"
    )]
    Corrupt {
        /// The state file.
        path: PathBuf,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The disk let us down.
    #[error("cannot keep the agent's state in {path:?}")]
    Disk {
        /// What was read or written.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
}

/// How long a guest ran, kept until the broker's books on it are closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UsageEntry {
    /// Which lease.
    pub lease: LeaseId,
    /// Which member.
    pub slice: SliceId,
    /// The grant's token.
    pub token: Token,
    /// How long the guest ran so far.
    pub used: Millis,
    /// How it ended; nothing while it is held.
    pub outcome: Option<GuestOutcome>,
}

/// The durable state of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DurableState {
    /// This start of the agent.
    pub boot: Boot,
    /// The newest token seen on each physical GPU.
    #[serde(with = "pairs")]
    pub device_tokens: BTreeMap<DeviceId, Token>,
    /// The newest token seen on each slice.
    #[serde(with = "pairs")]
    pub slice_tokens: BTreeMap<SliceId, Token>,
    /// Use that is not settled, oldest first.
    pub usage: Vec<UsageEntry>,
}

impl DurableState {
    /// Raises the newest tokens of a slice and its device to `token`. Says whether that changed
    /// them.
    pub fn raise(&mut self, slice: SliceId, token: Token) -> bool {
        let on_slice = self.slice_tokens.entry(slice).or_insert(Token::NONE);
        let on_device = self.device_tokens.entry(slice.device).or_insert(Token::NONE);
        let is_newer = token > *on_slice || token > *on_device;
        *on_slice = token.max(*on_slice);
        *on_device = token.max(*on_device);
        is_newer
    }

    /// The newest token seen on a slice.
    #[must_use]
    pub fn newest_on_slice(&self, slice: &SliceId) -> Token {
        self.slice_tokens.get(slice).copied().unwrap_or(Token::NONE)
    }

    /// The newest token seen on a physical GPU.
    #[must_use]
    pub fn newest_on_device(&self, device: DeviceId) -> Token {
        self.device_tokens.get(&device).copied().unwrap_or(Token::NONE)
    }

    /// The entry of a member, if it is kept.
    #[must_use]
    pub fn usage_of(&self, slice: &SliceId, token: Token) -> Option<&UsageEntry> {
        self.usage.iter().find(|entry| entry.slice == *slice && entry.token == token)
    }

    /// Adds `entry`, or replaces the one of the same member.
    pub fn record(&mut self, entry: UsageEntry) {
        let same = |one: &UsageEntry| one.slice == entry.slice && one.token == entry.token;
        match self.usage.iter_mut().find(|one| same(one)) {
            Some(one) => *one = entry,
            None => self.usage.push(entry),
        }
    }
}

/// Keeps an agent's state.
pub trait Durable: Send {
    /// Begins a start of the agent: reads the state, counts the start, and has stored that before
    /// it returns (LF3). Called once.
    ///
    /// # Errors
    /// When the state cannot be read or stored.
    fn begin(&mut self) -> Result<DurableState, Error>;

    /// Replaces the state; it survives any crash once this returns.
    ///
    /// # Errors
    /// When the state cannot be stored; the agent must stop then.
    fn store(&mut self, state: &DurableState) -> Result<(), Error>;
}

/// Maps as lists of pairs: JSON's keys are texts only.
mod pairs {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<K: Serialize, V: Serialize, S: Serializer>(
        map: &BTreeMap<K, V>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(map)
    }

    pub(super) fn deserialize<'de, K, V, D>(deserializer: D) -> Result<BTreeMap<K, V>, D::Error>
    where
        K: Deserialize<'de> + Ord,
        V: Deserialize<'de>,
        D: Deserializer<'de>,
    {
        Ok(Vec::<(K, V)>::deserialize(deserializer)?.into_iter().collect())
    }
}

#[cfg(test)]
mod tests;
