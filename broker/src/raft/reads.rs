//! Reads that see everything that was acknowledged before them.

use std::time::Duration;

use openraft::errors::{ForwardReason, ForwardToLeader, LinearizableReadError, RaftError};
use openraft::raft::ReadPolicy;
use openraft::type_config::alias::LogIdOf;
use tokio::time::Instant;

use super::facade::Core;
use super::types::{Error, LogPosition};
use super::wire::{TypeConfig, position};

/// For how long a leader that does not know (any more) that it leads is asked again.
const LEASE_WAIT: Duration = Duration::from_secs(3);
/// Between two attempts while a new leader does not know yet that it leads.
const PAUSE: Duration = Duration::from_millis(5);

/// Waits until everything that was acknowledged anywhere before this call has been applied here.
///
/// # Errors
/// [`Error::NotLeader`], [`Error::NoQuorum`] (also when time ran out), [`Error::Stopped`].
pub(super) async fn barrier(core: &Core, patience: Duration) -> Result<LogPosition, Error> {
    let (give_up, lease_gone) = (Instant::now() + patience, Instant::now() + LEASE_WAIT);
    loop {
        let asked = core.ensure_linearizable(ReadPolicy::ReadIndex);
        let Ok(outcome) = tokio::time::timeout_at(give_up, asked).await else {
            return Err(Error::NoQuorum);
        };
        match outcome {
            Ok(read) => return Ok(position(read.log_id())),
            Err(error) => wait_or_refuse(error, lease_gone).await?,
        }
    }
}

/// The entry that has to be applied, on whatever node, before a read that begins now.
///
/// # Errors
/// As [`barrier`].
pub(super) async fn read_index(core: &Core, patience: Duration) -> Result<LogPosition, Error> {
    let (give_up, lease_gone) = (Instant::now() + patience, Instant::now() + LEASE_WAIT);
    loop {
        let asked = core.get_read_log_id(ReadPolicy::ReadIndex);
        let Ok(outcome) = tokio::time::timeout_at(give_up, asked).await else {
            return Err(Error::NoQuorum);
        };
        match outcome {
            Ok((read, _)) => {
                let at: &LogIdOf<TypeConfig> = read.log_id();
                return Ok(position(at));
            }
            Err(error) => wait_or_refuse(error, lease_gone).await?,
        }
    }
}

/// Waits a moment if it is worth another attempt, else says why not.
async fn wait_or_refuse(
    error: RaftError<TypeConfig, LinearizableReadError<TypeConfig>>,
    lease_gone: Instant,
) -> Result<(), Error> {
    match error {
        RaftError::Fatal(_) => Err(Error::Stopped),
        RaftError::APIError(LinearizableReadError::QuorumNotEnough(_)) => Err(Error::NoQuorum),
        RaftError::APIError(LinearizableReadError::ForwardToLeader(ForwardToLeader {
            reason: ForwardReason::LeaseExpired,
            ..
        })) if Instant::now() < lease_gone => {
            tokio::time::sleep(PAUSE).await;
            Ok(())
        }
        RaftError::APIError(LinearizableReadError::ForwardToLeader(ForwardToLeader {
            reason: ForwardReason::LeaseExpired,
            ..
        })) => Err(Error::NoQuorum),
        RaftError::APIError(LinearizableReadError::ForwardToLeader(forward)) => {
            Err(Error::NotLeader { leader: forward.leader_id })
        }
    }
}
