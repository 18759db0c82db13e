//! A lease's life after the grant: confirmed, refused, used, given back, stopped.

use sublet_protocol::capacity::{Origin, Part, SliceId};
use sublet_protocol::commands::{
    Actor, GuestOutcome, NackReason, Recall, USAGE_ENTRIES_MAX, Usage,
};
use sublet_protocol::events::Event;
use sublet_protocol::ids::{Boot, LeaseId, Token};
use sublet_protocol::leases::{EndReason, Member};
use sublet_protocol::offers::RescindReason;
use sublet_protocol::refusals::Rejection;
use sublet_protocol::units::{Millis, Timestamp};

use super::ending::{self, Stop};
use super::{Decision, only_agent, only_leader, only_operator, only_owner_of};
use crate::mutation::Mutation;
use crate::preemption;
use crate::state::{Lease, LeaseStage, State};

/// Which member of which lease an agent speaks of, and with what right.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claim {
    lease: LeaseId,
    slice: SliceId,
    token: Token,
    boot: Boot,
}

impl Claim {
    pub(super) const fn new(lease: LeaseId, slice: SliceId, token: Token, boot: Boot) -> Claim {
        Claim { lease, slice, token, boot }
    }

    /// The lease and the member, if the claim holds: own slice, live lease, its token, a member,
    /// and the start of the agent that the grant was for, still the newest (LF3).
    fn check<'a>(
        &self,
        state: &'a State,
        actor: &Actor,
    ) -> Result<(&'a Lease, &'a Member), Rejection> {
        let (lease, member, newest) = self.find(state, actor)?;
        let is_its = self.boot == member.boot && self.boot == newest;
        if !is_its && !state.leaves_out(Mutation::AnyBoot) {
            return Err(Rejection::BootOld);
        }
        Ok((lease, member))
    }

    /// As [`Claim::check`], but a later start may speak, too: it has stopped what earlier ones ran
    /// before it spoke (LA3), and only it knows how long that ran (LB3).
    fn check_over<'a>(
        &self,
        state: &'a State,
        actor: &Actor,
    ) -> Result<(&'a Lease, &'a Member), Rejection> {
        let (lease, member, newest) = self.find(state, actor)?;
        let is_its = self.boot >= member.boot && self.boot >= newest;
        if !is_its && !state.leaves_out(Mutation::AnyBoot) {
            return Err(Rejection::BootOld);
        }
        Ok((lease, member))
    }

    /// The lease, the member and the newest start of its agent.
    fn find<'a>(
        &self,
        state: &'a State,
        actor: &Actor,
    ) -> Result<(&'a Lease, &'a Member, Boot), Rejection> {
        only_agent(actor, self.slice.cluster, self.slice.node)?;
        let lease = state.leases.get(&self.lease).ok_or(Rejection::LeaseMissing)?;
        if lease.terms.token != self.token {
            return Err(Rejection::TokenMismatch);
        }
        let member = lease.terms.members.iter().find(|member| member.slice == self.slice);
        let member = member.ok_or(Rejection::MemberMissing)?;
        let node = state.nodes.get(&(self.slice.cluster, self.slice.node));
        let newest = node.ok_or(Rejection::NodeMissing)?.boot;
        Ok((lease, member, newest))
    }
}

pub(super) fn confirm(state: &State, actor: &Actor, claim: Claim, now: Timestamp) -> Decision {
    let (lease, member) = claim.check(state, actor)?;
    let confirmed = match &lease.stage {
        LeaseStage::Granted { confirmed, .. } => confirmed,
        LeaseStage::Active { .. } => return Ok(Vec::new()),
        LeaseStage::Ending { .. } => return Err(Rejection::LeaseEnding),
    };
    // A member that confirms again refreshes its nonce; that is the leader's business.
    if confirmed.contains(&member.slice) {
        return Ok(Vec::new());
    }
    let mut events = vec![Event::MemberConfirmed { lease: claim.lease, slice: member.slice }];
    let is_last = confirmed.len() + 1 == lease.terms.members.len();
    if is_last || state.leaves_out(Mutation::OneConfirms) {
        let ends_at = now.after(lease.terms.duration);
        events.push(Event::LeaseActivated { lease: claim.lease, ends_at });
    }
    Ok(events)
}

pub(super) fn refuse(
    state: &State,
    actor: &Actor,
    claim: Claim,
    reason: NackReason,
    now: Timestamp,
) -> Decision {
    let (lease, member) = claim.check(state, actor)?;
    let (id, slice) = (claim.lease, member.slice);
    // LG4: also while it is ending, a guest may be there.
    let was_active = lease.active_since().is_some();
    if was_active && !state.leaves_out(Mutation::LateRefusal) {
        return Err(Rejection::LeaseActive);
    }
    if lease.stopped.contains(&slice) {
        return Ok(Vec::new());
    }
    // One refused member ends the whole (LG3). The refused slice is empty: it counts as stopped.
    let cause = EndReason::StartFailed;
    let mut events = vec![Event::MemberRefused { lease: id, slice, reason }];
    events.extend(ending::begin(id, lease, cause, now));
    if lease.stopped.len() + 1 == lease.terms.members.len() {
        events.extend(ending::finish(state, id, cause, lease.used, now));
    }
    if member.origin == Origin::Carved {
        // It could not be carved: nothing more is, until the agent offers the GPU again.
        let whole = SliceId { part: Part::Whole, ..slice };
        let open = state.offers.get(&whole).map(|open| open.terms.generation);
        let reason = RescindReason::PartRefused;
        events.extend(open.map(|generation| Event::OfferRescinded {
            slice: whole,
            generation,
            reason,
        }));
    }
    Ok(events)
}

pub(super) fn stopped(
    state: &State,
    actor: &Actor,
    claim: Claim,
    (used, outcome): (Millis, GuestOutcome),
    now: Timestamp,
) -> Decision {
    let (lease, member) = claim.check_over(state, actor)?;
    if lease.stopped.contains(&member.slice) {
        return Ok(Vec::new());
    }
    let cause = unasked_cause(lease, used, outcome, now);
    let stop = Stop { slice: member.slice, used, outcome };
    Ok(ending::stop(state, claim.lease, &[stop], cause, now))
}

/// Why a lease ends whose guest stopped without being told to by the broker.
fn unasked_cause(lease: &Lease, used: Millis, outcome: GuestOutcome, now: Timestamp) -> EndReason {
    let LeaseStage::Active { ends_at, .. } = lease.stage else {
        return EndReason::StartFailed;
    };
    let is_over = now >= ends_at || used >= lease.terms.duration.as_millis();
    match outcome {
        GuestOutcome::Exited { code: 0 } => EndReason::Completed,
        GuestOutcome::Exited { .. } => EndReason::GuestFailed,
        GuestOutcome::NeverStarted => EndReason::StartFailed,
        GuestOutcome::Stopped if is_over => EndReason::Expired,
        // The agent stopped it by itself: its renewals went unanswered (LA2) or it drains.
        GuestOutcome::Stopped => EndReason::AgentLost,
    }
}

pub(super) fn release(state: &State, actor: &Actor, id: LeaseId, now: Timestamp) -> Decision {
    let lease = state.leases.get(&id).ok_or(Rejection::LeaseMissing)?;
    only_owner_of(actor, lease.terms.tenant, Rejection::LeaseMissing)?;
    Ok(ending::begin(id, lease, EndReason::Released, now).into_iter().collect())
}

pub(super) fn revoke(state: &State, actor: &Actor, id: LeaseId, now: Timestamp) -> Decision {
    only_operator(actor)?;
    let lease = state.leases.get(&id).ok_or(Rejection::LeaseMissing)?;
    Ok(ending::begin(id, lease, EndReason::Revoked, now).into_iter().collect())
}

/// The work of a lease is saved up to now. Its last word, while it ends, is taken at any time.
pub(super) fn checkpoint(state: &State, actor: &Actor, id: LeaseId, now: Timestamp) -> Decision {
    let lease = state.leases.get(&id).ok_or(Rejection::LeaseMissing)?;
    only_owner_of(actor, lease.terms.tenant, Rejection::LeaseMissing)?;
    let asked_to_go_at = match lease.stage {
        LeaseStage::Granted { .. } => return Err(Rejection::LeaseInactive),
        LeaseStage::Active { .. } => None,
        LeaseStage::Ending { active_since: None, .. } => return Err(Rejection::LeaseInactive),
        LeaseStage::Ending { deadline, active_since: Some(_), .. } => {
            let grace = lease.terms.grace.as_millis();
            Some(Timestamp::new(deadline.get().saturating_sub(grace.get())))
        }
    };
    let interval = state.policy.preemption.checkpoint_interval.as_millis();
    let is_too_soon = lease.checkpoint_at.is_some_and(|last| {
        now.since(last) < interval && asked_to_go_at.is_none_or(|asked| last >= asked)
    });
    if is_too_soon {
        return Err(Rejection::CheckpointTooSoon);
    }
    Ok(vec![Event::CheckpointReported { lease: id }])
}

/// The owner of the GPUs, or an operator, wants a lease to be gone (rows P2, P3, L6).
pub(super) fn recall(
    state: &State,
    actor: &Actor,
    id: LeaseId,
    recall: Recall,
    now: Timestamp,
) -> Decision {
    let lease = state.leases.get(&id).ok_or(Rejection::LeaseMissing)?;
    only_owner_of(actor, lease.terms.owner, Rejection::LeaseMissing)?;
    if !lease.is_running() {
        return Err(Rejection::LeaseEnding);
    }
    match recall {
        Recall::Emergency => {
            Ok(ending::begin(id, lease, EndReason::Reclaimed, now).into_iter().collect())
        }
        Recall::Planned { by } => {
            if by < preemption::recall_earliest(state, lease, now) {
                return Err(Rejection::RecallTooSoon);
            }
            if lease.recalled_by == Some(by) {
                return Ok(Vec::new());
            }
            Ok(vec![Event::LeaseRecalled { lease: id, by }])
        }
    }
}

pub(super) fn record_usage(state: &State, actor: &Actor, entries: &[Usage]) -> Decision {
    only_leader(actor)?;
    if entries.len() > USAGE_ENTRIES_MAX {
        return Err(Rejection::TooMany);
    }
    // Merged by max (LB1); a lease that ended meanwhile was settled with what it reported.
    let grown = entries.iter().filter(|entry| {
        state.leases.get(&entry.lease).is_some_and(|lease| entry.used > lease.used)
    });
    Ok(grown.map(|entry| Event::UsageRecorded { lease: entry.lease, used: entry.used }).collect())
}
