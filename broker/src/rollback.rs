//! What a rollback would undo: read from the journal, without changing anything.
//!
//! The rules get the list of leases and judge each by itself; how the list comes about is no business
//! of theirs. It is read from the records behind the first instant that is named, in one pass.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};
use sublet_protocol::commands::Actor;
use sublet_protocol::events::{ChargeTurn, Event, Settlement};
use sublet_protocol::ids::{LeaseId, RequestId, TenantId};
use sublet_protocol::leases::LeaseTerms;
use sublet_protocol::money::MicroCredits;
use sublet_protocol::records::Record;
use sublet_protocol::requests::OnRecall;
use sublet_protocol::rollbacks::{ChargeStanding, ROLLBACK_LEASES_MAX, RollbackSelector};
use sublet_protocol::units::{Millis, Timestamp};

use crate::cell::{Cell, RECORDS_MAX};
use crate::error::Error;

/// Why no list can be made.
#[derive(Debug, thiserror::Error)]
pub enum SelectError {
    /// Nothing says where to begin.
    #[error("name the first instant of the grants (from), or the rollback that is to be undone")]
    Unbounded,
    /// More leases than one rollback may have.
    #[error("more than {ROLLBACK_LEASES_MAX} leases are selected: name fewer at a time")]
    TooMany,
    /// The journal could not be read.
    #[error("the journal could not be read")]
    Read(#[from] Error),
}

/// A selected lease, as far as undoing it goes.
#[derive(Debug, Clone)]
pub struct Chosen {
    /// Who pays.
    pub tenant: TenantId,
    /// Who earns.
    pub owner: TenantId,
    /// What is set aside for it, if it lives.
    pub hold: Option<MicroCredits>,
    /// Whether it lives and its request waits again when it has ended.
    pub is_requeued: bool,
    /// What it cost, if it has ended.
    pub charge: Option<Settlement>,
    /// How its charge stands.
    pub standing: ChargeStanding,
}

/// What was found.
#[derive(Debug, Clone, Default)]
pub struct Found {
    /// With something to undo.
    pub leases: BTreeMap<LeaseId, Chosen>,
    /// Selected, with nothing to undo.
    pub untouched: u32,
    /// How many records the journal had.
    pub records: u64,
}

impl Found {
    /// SHA-256 over the selection and the leases: what is done must be what was shown. A lease that ends
    /// meanwhile is undone all the same and changes nothing here.
    pub fn digest(&self, selector: &RollbackSelector) -> Result<[u8; 32], serde_json::Error> {
        let ids: Vec<LeaseId> = self.leases.keys().copied().collect();
        Ok(Sha256::digest(serde_json::to_vec(&(selector, ids))?).into())
    }

    /// How much money is moved at most; nothing if that cannot be written.
    pub fn money(&self) -> Option<MicroCredits> {
        let amounts = self.leases.values().map(|chosen| match (chosen.hold, chosen.charge) {
            (Some(hold), _) => hold,
            (None, Some(charge)) => charge.cost,
            (None, None) => MicroCredits::ZERO,
        });
        let mut sum = MicroCredits::ZERO;
        for amount in amounts {
            sum = sum.checked_add(amount)?;
        }
        Some(sum)
    }
}

/// Reads which leases are selected. It takes the time to read the journal from `from` on.
///
/// # Errors
/// As the variants of [`SelectError`] say.
pub fn select(cell: &Cell, selector: &RollbackSelector) -> Result<Found, SelectError> {
    match (selector.rollback, selector.from) {
        (Some(_), _) => of_rollback(cell, selector),
        (None, Some(from)) => of_grants(cell, selector, from),
        (None, None) => Err(SelectError::Unbounded),
    }
}

/// Leases that were granted from an instant on.
fn of_grants(
    cell: &Cell,
    selector: &RollbackSelector,
    from: Timestamp,
) -> Result<Found, SelectError> {
    let end = cell.head()?.size;
    let mut next = match from.get().checked_sub(1) {
        Some(before) => {
            let last = cell.journal(|journal| journal.at_time(Timestamp::new(before)))?;
            last.map_or(0, |last| last.saturating_add(1))
        }
        None => 0,
    };
    let mut all = BTreeMap::new();
    while next < end {
        let batch = cell.records(next, RECORDS_MAX)?;
        let Some(last) = batch.last() else { break };
        next = last.index.saturating_add(1);
        for record in batch.iter().filter(|record| record.index < end) {
            take(cell, selector, record, &mut all)?;
        }
        if all.len() > 2 * ROLLBACK_LEASES_MAX {
            return Err(SelectError::TooMany);
        }
    }
    let total = all.len();
    all.retain(|_, chosen: &mut Chosen| {
        let has_charge = chosen.charge.is_none_or(|charge| charge.billed > Millis::ZERO);
        chosen.standing == ChargeStanding::Charged && has_charge
    });
    found(all, total, end)
}

fn found(
    leases: BTreeMap<LeaseId, Chosen>,
    total: usize,
    records: u64,
) -> Result<Found, SelectError> {
    if leases.len() > ROLLBACK_LEASES_MAX {
        return Err(SelectError::TooMany);
    }
    let untouched = u32::try_from(total.saturating_sub(leases.len())).unwrap_or(u32::MAX);
    Ok(Found { leases, untouched, records })
}

/// Adds what a record says of a selected lease.
fn take(
    cell: &Cell,
    selector: &RollbackSelector,
    record: &Record,
    all: &mut BTreeMap<LeaseId, Chosen>,
) -> Result<(), SelectError> {
    match &record.event {
        Event::LeaseGranted { terms, .. } => {
            let is_selected = selects(selector, record, terms);
            if let Some(is_requeued) = match is_selected {
                true => asked(cell, selector, terms.request)?,
                false => None,
            } {
                all.insert(terms.lease, fresh(terms, is_requeued));
            }
        }
        Event::LeaseEnded { lease, settlement, .. } => {
            if let Some(chosen) = all.get_mut(lease) {
                (chosen.hold, chosen.is_requeued) = (None, false);
                chosen.charge = Some(*settlement);
                // How it was to stand is posted right behind.
                chosen.standing = ChargeStanding::Charged;
            }
        }
        Event::LeaseRolledBack { lease, standing, .. } => {
            if let Some(chosen) = all.get_mut(lease) {
                chosen.standing = *standing;
            }
        }
        Event::ChargeTurned { turn } => {
            if let Some(chosen) = all.get_mut(&turn.lease) {
                chosen.standing = turn.standing;
            }
        }
        _other => {}
    }
    Ok(())
}

fn fresh(terms: &LeaseTerms, is_requeued: bool) -> Chosen {
    Chosen {
        tenant: terms.tenant,
        owner: terms.owner,
        hold: Some(terms.hold),
        is_requeued,
        charge: None,
        standing: ChargeStanding::Charged,
    }
}

fn selects(selector: &RollbackSelector, grant: &Record, terms: &LeaseTerms) -> bool {
    selector.from.is_none_or(|from| from <= grant.time)
        && selector.until.is_none_or(|until| grant.time < until)
        && selector.plan.is_none_or(|plan| plan == grant.cause)
        && selector.tenant.is_none_or(|tenant| tenant == terms.tenant)
        && selector.cluster.is_none_or(|cluster| cluster == terms.cluster)
        && selector.model.is_none_or(|model| model == terms.model)
}

/// Whether the request of a selected lease waits again after a rollback; nothing if it is not selected by
/// who submitted it or by its prediction.
fn asked(
    cell: &Cell,
    selector: &RollbackSelector,
    request: RequestId,
) -> Result<Option<bool>, SelectError> {
    let records = cell.records_of_request(request)?;
    let submitted = records.iter().find_map(|record| match &record.event {
        Event::RequestSubmitted { spec, .. } => Some((&record.actor, spec)),
        _other => None,
    });
    let Some((actor, spec)) = submitted else { return Ok(None) };
    let subject = match actor {
        Actor::Tenant { subject, .. } | Actor::Operator { subject, .. } => Some(subject),
        Actor::Agent { .. } | Actor::Leader => None,
    };
    let is_by = selector.requested_by.as_ref().is_none_or(|by| subject == Some(by));
    let version = spec.prediction.map(|prediction| prediction.version);
    let is_of = selector.predictor.is_none_or(|predictor| version == Some(predictor));
    Ok((is_by && is_of).then_some(spec.on_recall == OnRecall::Requeue))
}

/// Leases that an earlier rollback changed.
fn of_rollback(cell: &Cell, selector: &RollbackSelector) -> Result<Found, SelectError> {
    let Some(rollback) = selector.rollback else { return Err(SelectError::Unbounded) };
    let end = cell.head()?.size;
    let records = cell.journal(|journal| journal.by_rollback(rollback))?;
    let mut all: BTreeMap<LeaseId, Chosen> = BTreeMap::new();
    for record in records.iter().filter(|record| record.index < end) {
        match &record.event {
            Event::LeaseRolledBack { lease, standing, .. } => {
                let live = cell.read_stale(|state| {
                    state.leases().get(lease).map(|lease| lease.terms().clone())
                });
                if let Some(terms) = live {
                    // Its hold comes back with its end in any case.
                    let chosen = fresh(&terms, false);
                    all.insert(*lease, Chosen { standing: *standing, ..chosen });
                }
            }
            Event::ChargeTurned { turn } => {
                all.insert(turn.lease, turned(turn));
            }
            _other => {}
        }
    }
    let mut selected = BTreeMap::new();
    for (lease, chosen) in all {
        if is_among(cell, selector, lease)? {
            selected.insert(lease, chosen);
        }
    }
    let total = selected.len();
    found(selected, total, end)
}

/// Whether a lease has what else is named of leases, by its grant and its request.
fn is_among(cell: &Cell, selector: &RollbackSelector, lease: LeaseId) -> Result<bool, SelectError> {
    for record in cell.records_of_lease(lease)? {
        if let Event::LeaseGranted { terms, .. } = &record.event {
            let is_selected = selects(selector, &record, terms);
            return Ok(is_selected && asked(cell, selector, terms.request)?.is_some());
        }
    }
    Ok(false)
}

fn turned(turn: &ChargeTurn) -> Chosen {
    Chosen {
        tenant: turn.tenant,
        owner: turn.owner,
        hold: None,
        is_requeued: false,
        charge: Some(turn.settlement),
        standing: turn.standing,
    }
}
