//! The files of a node that begins with a state in place of a log.

use std::collections::{BTreeMap, BTreeSet};

use openraft::{Membership, SnapshotMeta, StoredMembership};

use super::fatal::Fatal;
use super::log_store::LogStore;
use super::options::Options;
use super::snapshots::Snapshots;
use super::types::{Endpoint, Error, LogPosition};
use super::wire::{WalVote, from_wal};

/// Writes the log and the snapshot of a new cell of the one node `options.node_id`, whose machine is
/// to be restored from `payload` and stands at `at`. Its first term is the one after `at.term`.
/// `options.directory` must be empty. Blocks.
///
/// # Errors
/// [`Error::Storage`] and what opening a log can give.
pub fn begin_with(
    options: &Options,
    at: LogPosition,
    endpoint: Endpoint,
    payload: &[u8],
) -> Result<(), Error> {
    options.check()?;
    let node = options.node_id;
    let log = LogStore::open(options, Fatal::new(options.on_fatal.clone()))?;
    // A vote for itself in the old term: it must not vote in that term for anybody.
    let voted = log.vote_now(WalVote::new(at.term, false, node));
    log.close();
    voted.map_err(Error::storage("write to the log in", &options.directory))?;
    let members = Membership::new(vec![BTreeSet::from([node])], BTreeMap::from([(node, endpoint)]));
    let members = members
        .map_err(|error| Error::Refused { action: "begin a cell", reason: error.to_string() })?;
    let last = from_wal(&(at.term, at.index));
    let meta = SnapshotMeta {
        last_log_id: Some(last),
        last_membership: StoredMembership::new(Some(last), members),
    };
    let snapshots = Snapshots::open(&options.directory.join("snapshots"), &options.cell)?;
    snapshots.write(&meta, payload).map(drop)
}
