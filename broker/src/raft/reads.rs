//! Reads that see everything that was acknowledged before them.

use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{ForwardReason, ForwardToLeader, LinearizableReadError, RaftError};
use openraft::raft::ReadPolicy;
use openraft::type_config::alias::LogIdOf;
use openraft::{Instant as _, ServerState};
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

/// How long ago this node last heard from the leader, or from a quorum if it leads: what had been
/// committed by then is known here or on its way. Nothing if it has heard from no leader since it
/// started, or since it last granted a vote.
///
/// # Errors
/// [`Error::Stopped`].
pub(super) async fn heard(core: &Core) -> Result<Option<Duration>, Error> {
    let metrics = core.metrics().borrow_watched().clone();
    if metrics.state == ServerState::Leader {
        let alone = metrics.membership_config.membership().voter_ids().eq([metrics.id]);
        let acked = metrics.last_quorum_acked.map(|acked| acked.into_inner().elapsed());
        return Ok(if alone { Some(Duration::ZERO) } else { acked });
    }
    let last = core.with_raft_state(|state| {
        let is_leaders = state.vote_ref().committed;
        state.vote_last_modified().filter(|_| is_leaders)
    });
    Ok(last.await.map_err(|_| Error::Stopped)?.map(|last| last.elapsed()))
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
