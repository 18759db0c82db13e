//! What operators set for tenants: quotas, weight, budgets, and their place in the tree.

use std::collections::BTreeMap;

use sublet_protocol::calendar::Calendar;
use sublet_protocol::commands::Actor;
use sublet_protocol::events::Event;
use sublet_protocol::ids::{GpuModel, LeaseId, TenantId};
use sublet_protocol::leases::EndReason;
use sublet_protocol::quotas::{Quota, TenantTerms};
use sublet_protocol::refusals::Rejection;
use sublet_protocol::units::{Millis, Timestamp};

use super::{Decision, ending, only_operator};
use crate::quota::{LEVELS_MAX, Month, Spend, Tree};
use crate::state::{Lease, LeaseStage, State};

pub(super) fn set_quota(
    state: &State,
    actor: &Actor,
    (tenant, model): (TenantId, GpuModel),
    quota: Quota,
) -> Decision {
    only_operator(actor)?;
    let node = state.tree.node(tenant).ok_or(Rejection::TenantMissing)?;
    quota.validate().map_err(|_| Rejection::QuotaInvalid)?;
    if node.quota(model) == Some(quota) {
        return Ok(Vec::new());
    }
    let mut after = state.tree.clone();
    after.set_quota(tenant, model, quota, &state.moment());
    let mut events = vec![Event::QuotaSet { tenant, model, quota }];
    events.extend(over_admitted(&state.tree, &after));
    Ok(events)
}

/// Who has more than it may have after a change and had not, or not by as much, before.
fn over_admitted(before: &Tree, after: &Tree) -> impl Iterator<Item = Event> + use<> {
    let known = before.over_admitted();
    let over = after.over_admitted().into_iter();
    over.filter_map(move |(of, excess)| {
        let is_worse = known.get(&of).is_none_or(|was| *was < excess);
        let (tenant, model) = of;
        is_worse.then_some(Event::TenantOverAdmitted { tenant, model, excess })
    })
}

pub(super) fn move_tenant(
    state: &State,
    actor: &Actor,
    tenant: TenantId,
    parent: Option<TenantId>,
) -> Decision {
    only_operator(actor)?;
    let node = state.tree.node(tenant).ok_or(Rejection::TenantMissing)?;
    if parent.is_some_and(|parent| !state.tenants.contains_key(&parent)) {
        return Err(Rejection::TenantMissing);
    }
    if parent.is_some_and(|parent| state.tree.is_within(parent, tenant)) {
        return Err(Rejection::TenantCycle);
    }
    if node.parent() == parent {
        return Ok(Vec::new());
    }
    let above = parent.map_or(0, |parent| state.tree.level(parent));
    if above + state.tree.height(tenant) > LEVELS_MAX {
        return Err(Rejection::TenantTooDeep);
    }
    let mut after = state.tree.clone();
    after.set_parent(tenant, parent, &state.moment());
    let mut events = vec![Event::TenantMoved { tenant, parent }];
    events.extend(over_admitted(&state.tree, &after));
    Ok(events)
}

pub(super) fn set_terms(
    state: &State,
    actor: &Actor,
    (tenant, terms): (TenantId, &TenantTerms),
    now: Timestamp,
) -> Decision {
    only_operator(actor)?;
    let node = state.tree.node(tenant).ok_or(Rejection::TenantMissing)?;
    terms.validate().map_err(|_| Rejection::TermsInvalid)?;
    if node.terms() == terms {
        return Ok(Vec::new());
    }
    let mut after = state.tree.clone();
    after.set_terms(tenant, *terms, &state.moment());
    let mut events = vec![Event::TermsSet { tenant, terms: *terms }];
    if !after.is_within_budget(tenant, now) {
        events.extend(caps(state, &after, tenant, now));
    }
    Ok(events)
}

/// Requests that wait for off-peak hours keep those that they were submitted with.
pub(super) fn set_calendar(
    state: &State,
    actor: &Actor,
    tenant: TenantId,
    calendar: Option<&Calendar>,
) -> Decision {
    only_operator(actor)?;
    let entry = state.tenants.get(&tenant).ok_or(Rejection::TenantMissing)?;
    if calendar.is_some_and(|calendar| calendar.validate().is_err()) {
        return Err(Rejection::CalendarInvalid);
    }
    if entry.calendar.as_ref() == calendar {
        return Ok(Vec::new());
    }
    Ok(vec![Event::CalendarSet { tenant, calendar: calendar.cloned() }])
}

/// The rules see that there is a name and never the name: it is in no record and not in the state.
pub(super) fn name(state: &State, actor: &Actor, tenant: TenantId, is_named: bool) -> Decision {
    only_operator(actor)?;
    if !state.tenants.contains_key(&tenant) {
        return Err(Rejection::TenantMissing);
    }
    Ok(vec![Event::TenantNamed { tenant, is_named }])
}

/// What a cut budget does to leases that it no longer covers: the oldest keep what they may cost as
/// long as the budget lasts, the others end where it does.
///
/// A cap is never lifted: a budget that is raised again serves new grants.
fn caps(state: &State, after: &Tree, tenant: TenantId, now: Timestamp) -> Vec<Event> {
    let month = Month::of(now);
    let concerned = state.leases.iter().filter(|(_, lease)| {
        Month::of(lease.granted_at) == month && after.is_within(lease.terms.tenant, tenant)
    });
    // In the order of their grants.
    let concerned: BTreeMap<u64, (LeaseId, &Lease)> =
        concerned.map(|(id, lease)| (lease.terms.token.counter, (*id, lease))).collect();
    let mut left = after.unspent(tenant, now);
    let mut events = Vec::new();
    for (id, lease) in concerned.into_values() {
        let terms = &lease.terms;
        let whole = lease.billed_max();
        let (owed, is_bound) = owed(lease, now);
        let covered = left.span(terms.price, terms.gpu_total()).unwrap_or(whole);
        let most = if is_bound { owed } else { covered.max(owed) }.min(whole);
        let worst = Spend::of(terms.price, terms.gpu_total(), most).unwrap_or_default();
        left = left.after(worst);
        if most == whole || is_bound {
            continue;
        }
        events.push(Event::LeaseCapped { lease: id, billed_max: most });
        let is_at_line = match lease.stage {
            LeaseStage::Granted { .. } => most == Millis::ZERO,
            LeaseStage::Active { since, .. } => {
                now.since(since).saturating_add(terms.grace.as_millis()) >= most
            }
            LeaseStage::Ending { .. } => false,
        };
        if is_at_line {
            events.extend(ending::begin(id, lease, EndReason::Budget, now));
        }
    }
    events
}

/// What a lease will be billed for whatever is decided now, and whether that is all: what has run so
/// far, and of one that is ending, up to its deadline.
fn owed(lease: &Lease, now: Timestamp) -> (Millis, bool) {
    match lease.stage {
        LeaseStage::Granted { .. } => (Millis::ZERO, false),
        LeaseStage::Active { since, .. } => (now.since(since), false),
        LeaseStage::Ending { deadline, active_since, .. } => {
            let until = deadline.max(now);
            (active_since.map_or(Millis::ZERO, |since| until.since(since)), true)
        }
    }
}
