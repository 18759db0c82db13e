//! Group commit: whatever waits becomes one log entry.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use openraft::errors::{ClientWriteError, ForwardReason};
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::facade::Core;
use super::options::Options;
use super::types::{Error, LogPosition};
use super::wire::{Commands, position};

/// For how long a new leader's refusals are retried, and how often.
const LEASE_WAIT: Duration = Duration::from_secs(2);
const LEASE_PAUSE: Duration = Duration::from_millis(5);

/// A command that waits.
pub(super) struct Proposal {
    pub(super) command: Vec<u8>,
    /// Whether it must be the last of its entry.
    pub(super) last: bool,
    pub(super) reply: oneshot::Sender<Result<(LogPosition, Vec<u8>), Error>>,
}

/// Packs waiting proposals into entries until the queue is closed.
pub(super) async fn run(core: Core, mut queue: mpsc::Receiver<Proposal>, options: Arc<Options>) {
    let slots = Arc::new(Semaphore::new(options.entries_in_flight_max));
    let mut left_over = None;
    loop {
        let first = match left_over.take() {
            Some(proposal) => proposal,
            None => match queue.recv().await {
                Some(proposal) => proposal,
                None => return,
            },
        };
        // While all slots are taken, more commands gather.
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
        let (batch, rest) = pack(first, &mut queue, &options);
        left_over = rest;
        if batch.is_empty() {
            continue;
        }
        let (commands, replies): (Vec<_>, Replies) =
            batch.into_iter().map(|proposal| (proposal.command, proposal.reply)).unzip();
        let commands = Commands::from(commands);
        match core.client_write_many([commands.clone()]).await {
            Ok(outcomes) => {
                let core = core.clone();
                tokio::spawn(async move {
                    let outcome = settle(&core, outcomes, commands).await;
                    drop(slot);
                    answer(outcome, replies);
                });
            }
            Err(_stopped) => answer(Err(Failure::Stopped), replies),
        }
    }
}

/// `first` and as many of the waiting proposals as fit with it, and the one that no longer did.
fn pack(
    first: Proposal,
    queue: &mut mpsc::Receiver<Proposal>,
    options: &Options,
) -> (Vec<Proposal>, Option<Proposal>) {
    let mut batch: Vec<Proposal> = Vec::new();
    let mut bytes = 0;
    let mut next = Some(first);
    while let Some(proposal) = next {
        // Nobody waits for it any more, and it has not been proposed.
        if proposal.reply.is_closed() {
            next = queue.try_recv().ok();
            continue;
        }
        let size = proposal.command.len();
        if !batch.is_empty() && bytes + size > options.bytes_per_entry_max {
            return (batch, Some(proposal));
        }
        bytes += size;
        let last = proposal.last;
        batch.push(proposal);
        if last || batch.len() >= options.commands_per_entry_max {
            break;
        }
        next = queue.try_recv().ok();
    }
    (batch, None)
}

/// Why an entry was not applied, as far as one knows. Unlike [`Error`] it can be copied.
#[derive(Debug, Clone, Copy)]
enum Failure {
    NotLeader(Option<u64>),
    Unknown,
    Stopped,
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::NotLeader(leader) => Self::NotLeader { leader },
            Failure::Unknown => Self::Unknown,
            Failure::Stopped => Self::Stopped,
        }
    }
}

type Outcome = Result<(LogPosition, Vec<Vec<u8>>), Failure>;
type Replies = Vec<oneshot::Sender<Result<(LogPosition, Vec<u8>), Error>>>;
type Outcomes = super::facade::WriteOutcomes;

/// Waits for the entry to be applied; proposes it again while a new leader still refuses writes.
async fn settle(core: &Core, mut outcomes: Outcomes, commands: Commands) -> Outcome {
    let give_up = tokio::time::Instant::now() + LEASE_WAIT;
    loop {
        let error = match outcomes.next().await {
            Some(Ok(Ok(written))) => return Ok((position(&written.log_id), written.response.0)),
            Some(Ok(Err(error))) => error,
            // The node stopped after the entry may have been written.
            Some(Err(_)) | None => return Err(Failure::Unknown),
        };
        let ClientWriteError::ForwardToLeader(forward) = error else {
            return Err(Failure::Unknown);
        };
        let retry =
            forward.reason == ForwardReason::LeaseExpired && tokio::time::Instant::now() < give_up;
        if !retry {
            return Err(Failure::NotLeader(forward.leader_id));
        }
        tokio::time::sleep(LEASE_PAUSE).await;
        outcomes = match core.client_write_many([commands.clone()]).await {
            Ok(outcomes) => outcomes,
            Err(_stopped) => return Err(Failure::Stopped),
        };
    }
}

fn answer(outcome: Outcome, waiting: Replies) {
    // A proposer whose time ran out does not listen any more.
    match outcome {
        Ok((at, replies)) => {
            for (told, reply) in waiting.into_iter().zip(replies) {
                drop(told.send(Ok((at, reply))));
            }
        }
        Err(failure) => {
            for told in waiting {
                drop(told.send(Err(failure.into())));
            }
        }
    }
}
