//! A snapshot to a follower, with the pieces that it lacks: the leader's side.
//!
//! The leader offers; the follower says what it wants and from which byte on; the leader sends it in
//! chunks with a check sum each, pieces first, the snapshot's file last. The file ends with the
//! digest of itself, so that what was resumed is checked as a whole. At no time more than a chunk of
//! the file is in memory here, or a piece.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use openraft::errors::{NetworkError, RPCError, StreamingError};
use openraft::raft::SnapshotResponse;
use openraft::type_config::alias::{SnapshotOf, VoteOf};

use super::super::snapshots::StoredSnapshot;
use super::super::types::Machine;
use super::super::wire::{TypeConfig, to_wal};
use super::frame::Frames;
use super::messages::{Message, Place};
use super::peer::{Peer, unreachable};

/// Bytes of one chunk.
pub(super) const CHUNK: usize = 1_024 * 1_024;
/// How long either side waits for a sign of the other.
pub(super) const STALL: Duration = Duration::from_secs(30);

/// Sends `snapshot` and waits until it was taken in.
///
/// # Errors
/// The peer cannot be reached, or the transfer broke off; openraft begins anew, and what has arrived
/// is not sent again.
pub(super) async fn send(
    peer: &mut Peer,
    vote: &VoteOf<TypeConfig>,
    snapshot: &SnapshotOf<TypeConfig, StoredSnapshot>,
) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
    if let Err(error) = peer.open().await {
        return Err(match unreachable(&error) {
            RPCError::Unreachable(unreachable) => StreamingError::Unreachable(unreachable),
            _other => StreamingError::Network(NetworkError::new(&error)),
        });
    }
    let (call, target) = (peer.next_number(), peer.target);
    let machine = Arc::clone(&peer.machine);
    let transfer = async {
        let frames = peer.frames()?;
        exchange(frames, call, &machine, vote, snapshot).await
    };
    transfer.await.map_err(|error| {
        tracing::warn!(peer = target, %error, "a snapshot could not be sent");
        StreamingError::Network(NetworkError::new(&error))
    })
}

async fn exchange(
    frames: &mut Frames,
    call: u64,
    machine: &Arc<dyn Machine>,
    vote: &VoteOf<TypeConfig>,
    snapshot: &SnapshotOf<TypeConfig, StoredSnapshot>,
) -> io::Result<SnapshotResponse<TypeConfig>> {
    let file = &snapshot.snapshot;
    let at = snapshot.meta.last_log_id.as_ref().map(to_wal).ok_or(io::ErrorKind::InvalidInput)?;
    let bytes = file.bytes()?;
    let pieces = blocking(machine, |machine| Ok(machine.pieces())).await?;
    let offer = Message::Offer { call, vote: vote.into(), at, bytes, pieces };
    frames.send_within(&offer, STALL).await?;
    let (wanted, from) = match frames.next_within(STALL).await? {
        Message::Want { call: answered, pieces, from } if answered == call => (pieces, from),
        other => return Err(unexpected(&other)),
    };
    for number in wanted {
        let piece = blocking(machine, move |machine| machine.piece(number)).await?;
        let mut rest = piece.as_slice();
        loop {
            let (chunk, after) = rest.split_at(rest.len().min(CHUNK));
            rest = after;
            part(frames, call, chunk.to_vec(), rest.is_empty()).await?;
            if rest.is_empty() {
                break;
            }
        }
    }
    let mut offset = from;
    while offset < bytes {
        let chunk = file.chunk(offset, CHUNK).await?;
        if chunk.is_empty() {
            let text = "the snapshot's file is shorter than it was";
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
        }
        offset = offset.saturating_add(u64::try_from(chunk.len()).unwrap_or(u64::MAX));
        part(frames, call, chunk, offset >= bytes).await?;
    }
    loop {
        match frames.next_within(STALL).await? {
            Message::AtWork { .. } => {}
            Message::Installed { call: answered, vote } if answered == call => {
                return Ok(SnapshotResponse::new(vote.into()));
            }
            other => return Err(unexpected(&other)),
        }
    }
}

async fn part(frames: &mut Frames, call: u64, bytes: Vec<u8>, is_last: bool) -> io::Result<()> {
    let crc = crc32fast::hash(&bytes);
    let place = if is_last { Place::End } else { Place::Middle };
    let part = Message::Part { call, bytes: bytes.into(), crc, place };
    frames.send_within(&part, STALL).await
}

fn unexpected(message: &Message) -> io::Error {
    match message {
        Message::Failed { why, .. } => io::Error::other(format!("the follower says: {why:?}")),
        _other => io::Error::new(io::ErrorKind::InvalidData, "an answer to something else"),
    }
}

/// Calls the machine where it may block.
pub(super) async fn blocking<T: Send + 'static>(
    machine: &Arc<dyn Machine>,
    call: impl FnOnce(&dyn Machine) -> Result<T, super::super::MachineError> + Send + 'static,
) -> io::Result<T> {
    let machine = Arc::clone(machine);
    let called = tokio::task::spawn_blocking(move || call(&*machine)).await;
    called.map_err(io::Error::other)?.map_err(io::Error::other)
}
