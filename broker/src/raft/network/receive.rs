//! A snapshot from the leader, with the pieces that are lacking here: the follower's side.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use openraft::storage::Snapshot;
use openraft::type_config::alias::VoteOf;
use tokio::sync::mpsc;

use super::super::snapshots::{Incoming, StoredSnapshot};
use super::super::types::Piece;
use super::super::wire::{TypeConfig, WalLogId};
use super::frame::Source;
use super::messages::{Ballot, Failure, Message, Place};
use super::server::Host;
use super::transfer::{STALL, blocking};

/// Largest piece in bytes.
const PIECE_MAX: usize = 64 * 1_024 * 1_024;
/// Largest snapshot file in bytes, more than the machine ever writes.
pub(super) const FILE_MAX: u64 = 4 * 1_024 * 1_024 * 1_024;
/// How often the leader hears that the snapshot is being taken in.
const SIGN: Duration = Duration::from_secs(2);

/// What the leader offers.
pub(super) struct Offer {
    pub(super) call: u64,
    pub(super) vote: Ballot,
    pub(super) at: WalLogId,
    pub(super) bytes: u64,
    pub(super) pieces: Vec<Piece>,
}

/// Takes in what is offered.
///
/// # Errors
/// The connection broke, or what came is not what was offered. The connection is of no more use.
pub(super) async fn receive(
    host: &Host,
    source: &mut Source,
    answers: &mpsc::Sender<Message>,
    offer: Offer,
) -> io::Result<()> {
    let call = offer.call;
    let Ok(_only_one) = host.receiving.try_lock() else {
        return tell(answers, Message::Failed { call, why: Failure::Busy }).await;
    };
    let vote: VoteOf<TypeConfig> = offer.vote.into();
    let stored = match take(host, source, answers, offer).await {
        Ok(stored) => stored,
        Err(error) => {
            let why = match error.kind() {
                io::ErrorKind::InvalidData => Failure::Damaged,
                _ => Failure::Stopping,
            };
            // The connection may be gone: then the leader knows.
            drop(tell(answers, Message::Failed { call, why }).await);
            return Err(error);
        }
    };
    let snapshot = Snapshot { meta: stored.meta().clone(), snapshot: stored };
    let install = host.core.install_full_snapshot(vote, snapshot);
    let mut install = std::pin::pin!(install);
    let installed = loop {
        tokio::select! {
            installed = install.as_mut() => break installed,
            () = tokio::time::sleep(SIGN) => tell(answers, Message::AtWork { call }).await?,
        }
    };
    let answer = match installed {
        Ok(response) => Message::Installed { call, vote: Ballot::from(&response.vote) },
        Err(_stopped) => Message::Failed { call, why: Failure::Stopping },
    };
    tell(answers, answer).await
}

/// Receives the pieces and the file.
async fn take(
    host: &Host,
    source: &mut Source,
    answers: &mpsc::Sender<Message>,
    offer: Offer,
) -> io::Result<StoredSnapshot> {
    let Offer { call, at, bytes, pieces, .. } = offer;
    if bytes > FILE_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a snapshot too large"));
    }
    let named: BTreeMap<u64, Piece> = pieces.iter().map(|piece| (piece.number, *piece)).collect();
    let lacking = blocking(&host.machine, move |machine| machine.lacks(&pieces)).await;
    let lacking = host.struck(lacking)?;
    let snapshots = std::sync::Arc::clone(&host.snapshots);
    let begun = tokio::task::spawn_blocking(move || snapshots.incoming(at, bytes)).await;
    let mut incoming: Incoming = host.struck(begun.map_err(io::Error::other)?)?;
    let from = incoming.written();
    tracing::info!(
        index = at.1,
        bytes,
        from,
        pieces = lacking.len(),
        "receives a snapshot from the leader"
    );
    tell(answers, Message::Want { call, pieces: lacking.clone(), from }).await?;
    for number in lacking {
        let piece = named.get(&number).copied().ok_or(io::ErrorKind::InvalidData)?;
        let mut bytes = Vec::new();
        loop {
            let (chunk, place) = part(source, call).await?;
            if bytes.len().saturating_add(chunk.len()) > PIECE_MAX {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a piece too large"));
            }
            bytes.extend_from_slice(&chunk);
            if place == Place::End {
                break;
            }
        }
        let kept = blocking(&host.machine, move |machine| machine.keep(piece, &bytes)).await;
        host.struck(kept)?;
    }
    while incoming.written() < bytes {
        let (chunk, _) = part(source, call).await?;
        let written = tokio::task::spawn_blocking(move || {
            incoming.write(&chunk)?;
            Ok(incoming)
        });
        incoming = host.struck(written.await.map_err(io::Error::other)?)?;
    }
    // A digest that differs may be the fault of what was resumed: it is thrown away then.
    let finished = tokio::task::spawn_blocking(move || incoming.finish());
    finished.await.map_err(io::Error::other)?
}

async fn part(source: &mut Source, expected: u64) -> io::Result<(Vec<u8>, Place)> {
    let next = tokio::time::timeout(STALL, source.next()).await;
    let next = next.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    let Message::Part { call, bytes, crc, place } = next else {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not a part of the snapshot"));
    };
    let bytes = bytes.into_vec();
    if call != expected || crc32fast::hash(&bytes) != crc {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a damaged part"));
    }
    Ok((bytes, place))
}

async fn tell(answers: &mpsc::Sender<Message>, message: Message) -> io::Result<()> {
    answers.send(message).await.map_err(|_| io::ErrorKind::BrokenPipe.into())
}
