//! Changes of the cell's members: one at a time, a learner first and a voter once it has caught up.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{
    ChangeMembershipError, ClientWriteError, ForwardReason, ForwardToLeader, RaftError,
};
use openraft::metrics::RaftMetrics;
use openraft::type_config::alias::ChangeMembershipErrorOf;
use openraft::{ChangeMembers, Instant as _};
use tokio::time::Instant;

use super::facade::Core;
use super::types::{Endpoint, Error, Member, MembersError};
use super::wire::TypeConfig;

/// How far behind the leader's log a learner may be when it gets a vote.
const LAG_MAX: u64 = 16;
/// Between two looks at how far a learner is.
const LOOK: Duration = Duration::from_millis(50);
/// How long a new leader's refusals are retried.
const LEASE_WAIT: Duration = Duration::from_secs(2);

/// The members as `metrics` know them, by id.
pub(super) fn members(metrics: &RaftMetrics<TypeConfig>) -> Vec<Member> {
    let membership = metrics.membership_config.membership();
    let voters: BTreeSet<u64> = membership.voter_ids().collect();
    let nodes = membership.nodes().map(|(id, endpoint)| {
        let known = metrics.replication.as_ref();
        let matched = known.and_then(|known| known.get(id)).and_then(Option::as_ref);
        let matched = match *id == metrics.id {
            true => metrics.last_log_index,
            false => matched.map(|at| at.index()),
        };
        let heard = metrics.heartbeat.as_ref().and_then(|heard| heard.get(id));
        let heard = heard.and_then(Option::as_ref).map(|heard| heard.elapsed());
        Member {
            node_id: *id,
            endpoint: endpoint.clone(),
            is_voter: voters.contains(id),
            matched,
            silent: if *id == metrics.id { None } else { heard },
        }
    });
    let mut members: Vec<Member> = nodes.collect();
    members.sort_by_key(|member| member.node_id);
    members
}

fn known(core: &Core) -> Vec<Member> {
    members(&core.metrics().borrow_watched().clone())
}

/// Takes a node in and waits until it has nearly all of the log. Asked again it goes on.
///
/// # Errors
/// [`Error::NotLeader`], [`Error::Members`], [`Error::Stopped`]; [`Error::Unknown`] if time ran out
/// before the change was known to be made.
pub(super) async fn admit(
    core: &Core,
    node: u64,
    endpoint: Endpoint,
    patience: Duration,
) -> Result<(), Error> {
    let before = known(core).into_iter().find(|member| member.node_id == node);
    match before {
        Some(member) if member.endpoint != endpoint => {
            return Err(Error::Members(MembersError::Exists));
        }
        Some(member) if member.is_voter => return Ok(()),
        Some(_learner) => {}
        None => {
            let nodes = BTreeMap::from([(node, endpoint)]);
            change(core, ChangeMembers::AddNodes(nodes), patience).await?;
        }
    }
    caught_up(core, node, patience).await
}

/// Gives a node that was admitted its vote.
///
/// # Errors
/// As [`admit`].
pub(super) async fn promote(core: &Core, node: u64, patience: Duration) -> Result<(), Error> {
    if known(core).iter().any(|member| member.node_id == node && member.is_voter) {
        return Ok(());
    }
    change(core, ChangeMembers::AddVoterIds(BTreeSet::from([node])), patience).await
}

/// Takes a node's vote, and then the node, out of the cell.
///
/// # Errors
/// As [`admit`].
pub(super) async fn remove(core: &Core, node: u64, patience: Duration) -> Result<(), Error> {
    let members = known(core);
    let Some(member) = members.iter().find(|member| member.node_id == node) else {
        return Err(Error::Members(MembersError::Missing));
    };
    let voters = members.iter().filter(|member| member.is_voter).count();
    if member.is_voter {
        if voters <= 1 {
            return Err(Error::Members(MembersError::LastVoter));
        }
        let leaving = ChangeMembers::RemoveVoters(BTreeSet::from([node]));
        change(core, leaving, patience).await?;
    }
    match known(core).iter().any(|member| member.node_id == node) {
        true => change(core, ChangeMembers::RemoveNodes(BTreeSet::from([node])), patience).await,
        false => Ok(()),
    }
}

/// Waits until a learner has nearly all of the leader's log.
async fn caught_up(core: &Core, node: u64, patience: Duration) -> Result<(), Error> {
    let give_up = Instant::now() + patience;
    loop {
        let metrics = core.metrics().borrow_watched().clone();
        if metrics.running_state.is_err() {
            return Err(Error::Stopped);
        }
        let Some(replication) = &metrics.replication else {
            return Err(Error::NotLeader { leader: metrics.current_leader });
        };
        let there = replication.get(&node).and_then(Option::as_ref).map(|at| at.index());
        let last = metrics.last_log_index.unwrap_or(0);
        if there.is_some_and(|there| last.saturating_sub(there) <= LAG_MAX) {
            return Ok(());
        }
        if Instant::now() >= give_up {
            return Err(Error::Members(MembersError::Behind));
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Has one change committed.
async fn change(
    core: &Core,
    change: ChangeMembers<u64, Endpoint>,
    patience: Duration,
) -> Result<(), Error> {
    let give_up = Instant::now() + LEASE_WAIT;
    loop {
        let asked = core.change_membership(change.clone(), false);
        let Ok(outcome) = tokio::time::timeout(patience, asked).await else {
            return Err(Error::Unknown);
        };
        let error = match outcome {
            Ok(_written) => return Ok(()),
            Err(RaftError::Fatal(_)) => return Err(Error::Stopped),
            Err(RaftError::APIError(error)) => error,
        };
        match error {
            ClientWriteError::ForwardToLeader(ForwardToLeader {
                reason: ForwardReason::LeaseExpired,
                ..
            }) if Instant::now() < give_up => tokio::time::sleep(LOOK).await,
            ClientWriteError::ForwardToLeader(forward) => {
                return Err(Error::NotLeader { leader: forward.leader_id });
            }
            ClientWriteError::ChangeMembershipError(
                ChangeMembershipError::UncommittedLeaderLog(_),
            ) if Instant::now() < give_up => tokio::time::sleep(LOOK).await,
            ClientWriteError::ChangeMembershipError(error) => return Err(refused(&error)),
            other => {
                return Err(Error::Refused {
                    action: "change the members",
                    reason: other.to_string(),
                });
            }
        }
    }
}

fn refused(error: &ChangeMembershipErrorOf<TypeConfig>) -> Error {
    match error {
        ChangeMembershipError::InProgress(_) => Error::Members(MembersError::UnderWay),
        ChangeMembershipError::EmptyMembership(_) => Error::Members(MembersError::LastVoter),
        other => Error::Refused { action: "change the members", reason: other.to_string() },
    }
}
