//! Undoing a batch of leases by records that compensate.
//!
//! A rollback is a list of leases. Step by step, those that live are told to go, and how their charge
//! will stand is noted; the charge of those that have ended is turned. A record that moved money is
//! turned at most once: the end, then the record that turned it, and so on. So at most one reversal
//! stands at any time, and undoing a rollback is one more rollback.

use sublet_protocol::commands::Actor;
use sublet_protocol::events::{ChargeTurn, Event, Settlement};
use sublet_protocol::ids::{LeaseId, RollbackId, Subject};
use sublet_protocol::leases::{EndReason, LeaseTerms};
use sublet_protocol::money::{Account, Line, MicroCredits};
use sublet_protocol::refusals::Rejection;
use sublet_protocol::rollbacks::{ChargeStanding, DropCause, RollbackSelector, is_list};
use sublet_protocol::units::{Millis, Timestamp};

use super::{Decision, ending, only_leader, only_operator};
use crate::past::{Past, PastLease};
use crate::state::{Lease, OPEN_MAX, Rollback, RollbackStage, State};

/// What is proposed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Proposal<'a> {
    pub(super) rollback: RollbackId,
    pub(super) selector: &'a RollbackSelector,
    pub(super) leases: &'a [LeaseId],
    pub(super) money: MicroCredits,
    pub(super) digest: [u8; 32],
}

/// It begins at once unless it is above what the policy lets one operator do alone.
pub(super) fn propose(
    state: &State,
    actor: &Actor,
    proposal: &Proposal<'_>,
    now: Timestamp,
) -> Decision {
    let proposed_by = operator(actor)?.clone();
    let Proposal { rollback, selector, leases, money, digest } = *proposal;
    if state.rollbacks.contains_key(&rollback) {
        return Err(Rejection::RollbackExists);
    }
    if !is_list(leases) || money < MicroCredits::ZERO {
        return Err(Rejection::RollbackMalformed);
    }
    let open = state.rollbacks.values().filter(|rollback| rollback.is_open()).count();
    if open >= OPEN_MAX {
        return Err(Rejection::RollbacksExhausted);
    }
    let limit = state.policy.rollback;
    let count = u32::try_from(leases.len()).unwrap_or(u32::MAX);
    let needs_approval = count > limit.leases_alone || money > limit.money_alone;
    let approve_by = needs_approval.then(|| now.after(limit.approve_within));
    let (selector, leases) = (selector.clone(), leases.to_vec());
    let proposed = Event::RollbackProposed {
        rollback,
        proposed_by,
        selector,
        leases,
        money,
        digest,
        approve_by,
    };
    Ok(vec![proposed])
}

/// What is approved is what was seen, by another operator than the one who proposed it.
pub(super) fn approve(
    state: &State,
    actor: &Actor,
    id: RollbackId,
    digest: [u8; 32],
    now: Timestamp,
) -> Decision {
    let subject = operator(actor)?;
    let rollback = waiting(state, id)?;
    let RollbackStage::Proposed { approve_by } = rollback.stage else {
        return Err(Rejection::RollbackNotWaiting);
    };
    if approve_by <= now {
        return Err(Rejection::RollbackNotWaiting);
    }
    if *subject == rollback.proposed_by {
        return Err(Rejection::ApproverIsProposer);
    }
    if digest != rollback.digest {
        return Err(Rejection::RollbackChanged);
    }
    Ok(vec![Event::RollbackApproved { rollback: id, approved_by: subject.clone() }])
}

/// Any operator may reject, also the one who proposed it.
pub(super) fn reject(state: &State, actor: &Actor, id: RollbackId) -> Decision {
    only_operator(actor)?;
    waiting(state, id)?;
    Ok(vec![Event::RollbackDropped { rollback: id, cause: DropCause::Rejected }])
}

fn operator(actor: &Actor) -> Result<&Subject, Rejection> {
    match actor {
        Actor::Operator { subject, .. } => Ok(subject),
        Actor::Tenant { .. } | Actor::Agent { .. } | Actor::Leader => Err(Rejection::NotAllowed),
    }
}

fn waiting(state: &State, id: RollbackId) -> Result<&Rollback, Rejection> {
    let rollback = state.rollbacks.get(&id).ok_or(Rejection::RollbackMissing)?;
    match rollback.stage {
        RollbackStage::Proposed { .. } => Ok(rollback),
        RollbackStage::Running | RollbackStage::Dropped { .. } | RollbackStage::Finished => {
            Err(Rejection::RollbackNotWaiting)
        }
    }
}

/// The next step. It is bounded, and the state knows how far the rollback has come: whoever leads
/// goes on from there, and a step that was done before is not done again.
pub(super) fn advance(
    state: &State,
    actor: &Actor,
    (id, done): (RollbackId, u32),
    past: &Past,
    now: Timestamp,
) -> Decision {
    only_leader(actor)?;
    let rollback = state.rollbacks.get(&id).ok_or(Rejection::RollbackMissing)?;
    if rollback.stage != RollbackStage::Running || rollback.done != done {
        return Ok(Vec::new());
    }
    let (mut events, mut done, mut untouched) = (Vec::new(), done, rollback.untouched);
    for lease in rollback.step() {
        let before = events.len();
        match state.leases.get(lease) {
            Some(live) => events.extend(mark(id, rollback, *lease, live, now)),
            None => {
                let found = past.of(*lease).ok_or(Rejection::PastUnknown)?;
                events.extend(found.and_then(|over| turn(id, rollback, over)));
            }
        }
        done = done.saturating_add(1);
        if events.len() == before {
            untouched = untouched.saturating_add(1);
        }
    }
    events.push(Event::RollbackAdvanced { rollback: id, done, untouched });
    if done >= rollback.total {
        events.push(Event::RollbackFinished { rollback: id });
    }
    Ok(events)
}

/// What a rollback makes of how a charge stands, if it is for it to say: one that undoes another turns
/// what that one turned, and nothing that was turned since.
fn turned(
    rollback: &Rollback,
    standing: ChargeStanding,
    turned_by: Option<RollbackId>,
) -> Option<ChargeStanding> {
    let is_its = match rollback.selector.rollback {
        Some(undone) => turned_by == Some(undone),
        None => standing == ChargeStanding::Charged,
    };
    is_its.then(|| standing.turned())
}

/// A lease that lives: it must go, and how its charge will stand is noted. If a rollback of it is undone
/// it goes all the same, since its guests were told to.
fn mark(
    id: RollbackId,
    rollback: &Rollback,
    lease: LeaseId,
    live: &Lease,
    now: Timestamp,
) -> Vec<Event> {
    let (standing, by) = match live.rolled_back {
        Some((by, standing)) => (standing, Some(by)),
        None => (ChargeStanding::Charged, None),
    };
    let Some(standing) = turned(rollback, standing, by) else { return Vec::new() };
    let tenant = live.terms.tenant;
    let mut events = vec![Event::LeaseRolledBack { rollback: id, lease, tenant, standing }];
    if standing == ChargeStanding::Reversed {
        events.extend(ending::begin(lease, live, EndReason::RolledBack, now));
    }
    events
}

/// A lease that has ended.
fn turn(id: RollbackId, rollback: &Rollback, over: &PastLease) -> Option<Event> {
    let standing = turned(rollback, over.standing, over.turned_by)?;
    let charge = (over.granted_at, over.settlement);
    turn_of(id, &over.terms, charge, (over.newest, standing))
}

/// What turns a charge; nothing if no time is billed.
fn turn_of(
    rollback: RollbackId,
    terms: &LeaseTerms,
    (granted_at, settlement): (Timestamp, Settlement),
    (of, standing): (u64, ChargeStanding),
) -> Option<Event> {
    (settlement.billed > Millis::ZERO).then(|| {
        let turn = ChargeTurn {
            rollback,
            of,
            standing,
            lease: terms.lease,
            request: terms.request,
            tenant: terms.tenant,
            owner: terms.owner,
            granted_at,
            gpu: terms.gpu_total(),
            price: terms.price,
            settlement,
            lines: lines(terms, &settlement, standing),
        };
        Event::ChargeTurned { turn }
    })
}

/// What hold and end together posted, the other way round or as it was: the hold went back with the end.
fn lines(terms: &LeaseTerms, settlement: &Settlement, standing: ChargeStanding) -> Vec<Line> {
    let Settlement { cost, fee, .. } = *settlement;
    let earned = cost.checked_sub(fee).expect("INV-4: the fee is at most the cost");
    let (expense, revenue) = (Account::Expense(terms.tenant), Account::Revenue(terms.owner));
    let all = match standing {
        ChargeStanding::Reversed => [
            Line::credit(expense, cost),
            Line::debit(revenue, earned),
            Line::debit(Account::Fee, fee),
        ],
        ChargeStanding::Charged => [
            Line::debit(expense, cost),
            Line::credit(revenue, earned),
            Line::credit(Account::Fee, fee),
        ],
    };
    let moves = |line: &Line| line.debit != MicroCredits::ZERO || line.credit != MicroCredits::ZERO;
    all.into_iter().filter(moves).collect()
}

/// Leases that were rolled back while they lived and end with `events`: their charges are turned right
/// behind, in the same step.
pub(super) fn of_ended(state: &State, events: &[Event]) -> Vec<Event> {
    let places = (state.next_index..).zip(events);
    let turns = places.filter_map(|(index, event)| {
        let Event::LeaseEnded { lease, settlement, .. } = event else { return None };
        let over = state.leases.get(lease)?;
        let (rollback, standing) = over.rolled_back?;
        // If that was undone before it ended, its charge stands as posted.
        let is_reversed = standing == ChargeStanding::Reversed;
        let charge = (over.granted_at, *settlement);
        is_reversed.then(|| turn_of(rollback, &over.terms, charge, (index, standing)))?
    });
    turns.collect()
}
