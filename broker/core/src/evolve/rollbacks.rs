//! What rollbacks change in the state.

use sublet_protocol::events::{ChargeTurn, Event};
use sublet_protocol::ids::RollbackId;
use sublet_protocol::rollbacks::ChargeStanding;

use super::lease_mut;
use crate::quota::Spend;
use crate::state::{Due, OVER_MAX, Rollback, RollbackStage, State};

const KNOWN_ROLLBACK: &str = "INV-12: an event names a rollback that is open";

/// Records an event of a rollback; others are none of its business.
pub(super) fn happened(state: &mut State, event: &Event) {
    match event {
        Event::RollbackProposed { rollback, approve_by, .. } => {
            let stage = match approve_by {
                Some(approve_by) => {
                    state.due.insert((*approve_by, Due::Approval(*rollback)));
                    RollbackStage::Proposed { approve_by: *approve_by }
                }
                None => RollbackStage::Running,
            };
            proposed(state, event, stage);
        }
        Event::RollbackApproved { rollback, approved_by } => {
            goes_to(state, *rollback, RollbackStage::Running);
            rollback_mut(state, *rollback).approved_by = Some(approved_by.clone());
        }
        Event::RollbackDropped { rollback, cause } => {
            goes_to(state, *rollback, RollbackStage::Dropped { cause: *cause });
        }
        Event::LeaseRolledBack { rollback, lease, standing, .. } => {
            lease_mut(state, *lease).rolled_back = Some((*rollback, *standing));
            rollback_mut(state, *rollback).live += 1;
        }
        Event::ChargeTurned { turn } => turned(state, turn),
        Event::RollbackAdvanced { rollback, done, untouched } => {
            let rollback = rollback_mut(state, *rollback);
            (rollback.done, rollback.untouched) = (*done, *untouched);
        }
        Event::RollbackFinished { rollback } => {
            goes_to(state, *rollback, RollbackStage::Finished);
        }
        _no_rollback => {}
    }
}

fn rollback_mut(state: &mut State, id: RollbackId) -> &mut Rollback {
    state.rollbacks.get_mut(&id).expect(KNOWN_ROLLBACK)
}

fn proposed(state: &mut State, event: &Event, stage: RollbackStage) {
    let Event::RollbackProposed { rollback, proposed_by, selector, leases, money, digest, .. } =
        event
    else {
        return;
    };
    let fresh = Rollback {
        selector: selector.clone(),
        proposed_by: proposed_by.clone(),
        proposed_at: state.now,
        approved_by: None,
        since: state.now,
        money: *money,
        digest: *digest,
        stage,
        leases: leases.clone(),
        total: u32::try_from(leases.len()).unwrap_or(u32::MAX),
        done: 0,
        untouched: 0,
        live: 0,
        turned: 0,
    };
    state.rollbacks.insert(*rollback, fresh);
}

/// Into another stage. Of one that is over the list goes, and the oldest of too many goes whole.
fn goes_to(state: &mut State, id: RollbackId, stage: RollbackStage) {
    let now = state.now;
    let rollback = rollback_mut(state, id);
    let before = std::mem::replace(&mut rollback.stage, stage);
    rollback.since = now;
    if !rollback.is_open() {
        rollback.leases = Vec::new();
    }
    if let RollbackStage::Proposed { approve_by } = before {
        state.due.remove(&(approve_by, Due::Approval(id)));
    }
    let over = state.rollbacks.iter().filter(|(_, rollback)| !rollback.is_open());
    let oldest = over.clone().map(|(id, rollback)| (rollback.since, *id)).min();
    if over.count() > OVER_MAX
        && let Some((_, oldest)) = oldest
    {
        state.rollbacks.remove(&oldest);
    }
}

/// Budgets of the month of the grant get back what the charge took, or are charged again. Past use, by
/// which fair shares are counted, stays: the hardware was used.
fn turned(state: &mut State, turn: &ChargeTurn) {
    let spend = Spend::of(turn.price, turn.gpu, turn.settlement.billed).unwrap_or_default();
    match turn.standing {
        ChargeStanding::Reversed => {
            let back = Spend::default().minus(spend);
            state.tree.settle(turn.tenant, turn.granted_at, (Spend::default(), back));
        }
        ChargeStanding::Charged => {
            let moment = state.moment();
            state.tree.charge_again(turn.tenant, turn.granted_at, spend, &moment);
        }
    }
    // A live lease that ends long after its rollback was over.
    if let Some(rollback) = state.rollbacks.get_mut(&turn.rollback) {
        rollback.turned += 1;
    }
}
