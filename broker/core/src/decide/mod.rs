//! `decide`: judges a command and says what follows from it, without changing anything.
//!
//! Refusals come first, in the order their checks are written; past the last one the command
//! succeeds. One file per kind of command.

mod demand;
mod ending;
mod lease;
mod overtaken;
mod plan;
mod promise;
mod rollback;
mod setup;
pub(crate) mod stalled;
mod supply;
mod sweep;
mod tenants;

pub(crate) use demand::{could_ever_fit, is_model_known};
pub(crate) use overtaken::overtaken;
#[cfg(test)]
pub(crate) use plan::decide_group;
use sublet_protocol::commands::{Actor, Command, PLAN_GROUPS_MAX, PlanGroup, Stamped};
use sublet_protocol::events::Event;
use sublet_protocol::ids::{ClusterId, NodeId, TenantId};
use sublet_protocol::refusals::Rejection;
use sublet_protocol::units::Timestamp;

use crate::past::Past;
use crate::state::State;

/// Which part of a command is judged: a plan is judged group by group.
#[derive(Debug, Clone, Copy)]
pub enum Part<'a> {
    /// All of it. Not for plans.
    Whole,
    /// One group of a plan.
    Group(&'a PlanGroup),
}

type Decision = Result<Vec<Event>, Rejection>;

/// Whether a plan may be looked at, before its groups are judged one by one.
pub(crate) fn plan_admitted(stamped: &Stamped, groups: &[PlanGroup]) -> Result<(), Rejection> {
    only_leader(&stamped.actor)?;
    match groups.len() {
        0..=PLAN_GROUPS_MAX => Ok(()),
        _more => Err(Rejection::TooMany),
    }
}

/// What follows from `part` of the command at ledger time `now`, with what the journal says of the leases
/// that it [wants](crate::past::wanted); events are in order.
///
/// # Errors
/// The first rule that the command breaks.
pub fn decide(
    state: &State,
    stamped: &Stamped,
    part: Part<'_>,
    past: &Past,
    now: Timestamp,
) -> Decision {
    let mut events = judge(state, stamped, part, past, now)?;
    events.extend(rollback::of_ended(state, &events));
    Ok(events)
}

fn judge(
    state: &State,
    stamped: &Stamped,
    part: Part<'_>,
    past: &Past,
    now: Timestamp,
) -> Decision {
    let actor = &stamped.actor;
    if let Command::CreateCell { cell, policy } = &stamped.command {
        return setup::create_cell(state, actor, *cell, policy);
    }
    if state.cell.is_none() {
        return Err(Rejection::CellMissing);
    }
    if let Part::Group(group) = part {
        return plan::decide_group(state, group, now);
    }
    match &stamped.command {
        Command::CreateCell { .. } | Command::CommitPlan { .. } => Err(Rejection::PlanMalformed),
        Command::SetPolicy { policy } => setup::set_policy(state, actor, policy),
        Command::CreateTenant { tenant, parent } => {
            setup::create_tenant(state, actor, *tenant, *parent)
        }
        Command::SetQuota { tenant, model, quota } => {
            tenants::set_quota(state, actor, (*tenant, *model), *quota)
        }
        Command::SetTerms { tenant, terms } => {
            tenants::set_terms(state, actor, (*tenant, terms), now)
        }
        Command::MoveTenant { tenant, parent } => {
            tenants::move_tenant(state, actor, *tenant, *parent)
        }
        Command::SetCalendar { tenant, calendar } => {
            tenants::set_calendar(state, actor, *tenant, calendar.as_ref())
        }
        Command::CreateCluster { cluster, owner, region, devices_max } => {
            setup::create_cluster(state, actor, *cluster, (*owner, *region, *devices_max))
        }
        Command::SetPrice { owner, model, tier, per_gpu_hour } => {
            setup::set_price(state, actor, (*owner, *model, *tier), *per_gpu_hour)
        }
        Command::RegisterNode { cluster, node, boot, host } => {
            supply::register_node(state, actor, (*cluster, *node), (*boot, *host), now)
        }
        Command::OfferCapacity { offer } => supply::offer_capacity(state, actor, offer, now),
        Command::RescindOffer { slice, generation, boot, reason } => {
            supply::rescind_offer(state, actor, *slice, (*generation, *boot), *reason)
        }
        Command::ReclaimSlice { slice, token, boot, cause } => {
            supply::reclaim_slice(state, actor, *slice, (*token, *boot), *cause, now)
        }
        Command::DeclareSilent { cluster, node, boot } => {
            supply::declare_silent(state, actor, (*cluster, *node), *boot, now)
        }
        Command::ConfirmMember { lease, slice, token, boot } => {
            lease::confirm(state, actor, lease::Claim::new(*lease, *slice, *token, *boot), now)
        }
        Command::RefuseMember { lease, slice, token, boot, reason } => {
            let claim = lease::Claim::new(*lease, *slice, *token, *boot);
            lease::refuse(state, actor, claim, *reason, now)
        }
        Command::ReportStopped { lease, slice, token, boot, used, outcome } => {
            let claim = lease::Claim::new(*lease, *slice, *token, *boot);
            lease::stopped(state, actor, claim, (*used, *outcome), now)
        }
        Command::SubmitRequest { request, tenant, spec } => {
            demand::submit(state, actor, *request, *tenant, spec)
        }
        Command::CancelRequest { request } => demand::cancel(state, actor, *request, now),
        Command::ReleaseLease { lease } => lease::release(state, actor, *lease, now),
        Command::RevokeLease { lease } => lease::revoke(state, actor, *lease, now),
        Command::ReportCheckpoint { lease } => lease::checkpoint(state, actor, *lease, now),
        Command::RecallLease { lease, recall } => lease::recall(state, actor, *lease, *recall, now),
        Command::RecordUsage { entries } => lease::record_usage(state, actor, entries),
        Command::DeclareStalled { lease, unused } => {
            stalled::declare(state, actor, *lease, *unused, now)
        }
        Command::NameTenant { tenant, name } => {
            tenants::name(state, actor, *tenant, name.is_some())
        }
        Command::ClosePeriod { until } => setup::close_period(state, actor, *until, now),
        Command::ProposeRollback { rollback, selector, leases, money, digest } => {
            let (rollback, money, digest) = (*rollback, *money, *digest);
            let proposal = rollback::Proposal { rollback, selector, leases, money, digest };
            rollback::propose(state, actor, &proposal, now)
        }
        Command::ApproveRollback { rollback, digest } => {
            rollback::approve(state, actor, *rollback, *digest, now)
        }
        Command::RejectRollback { rollback } => rollback::reject(state, actor, *rollback),
        Command::AdvanceRollback { rollback, done } => {
            rollback::advance(state, actor, (*rollback, *done), past, now)
        }
        Command::RemoveNode { cluster, node } => {
            supply::remove_node(state, actor, (*cluster, *node))
        }
        Command::RaiseFeatureLevel { level } => setup::raise_level(state, actor, *level),
        Command::EnlistBroker { broker } => setup::enlist_broker(state, actor, *broker),
        Command::Sweep => sweep::sweep(state, actor, now),
        Command::SealTail => sweep::seal_tail(state, actor),
    }
}

fn only_leader(actor: &Actor) -> Result<(), Rejection> {
    match actor {
        Actor::Leader => Ok(()),
        Actor::Tenant { .. } | Actor::Operator { .. } | Actor::Agent { .. } => {
            Err(Rejection::NotAllowed)
        }
    }
}

fn only_operator(actor: &Actor) -> Result<(), Rejection> {
    match actor {
        Actor::Operator { .. } => Ok(()),
        Actor::Tenant { .. } | Actor::Leader | Actor::Agent { .. } => Err(Rejection::NotAllowed),
    }
}

/// An agent speaks for its own node only.
fn only_agent(actor: &Actor, cluster: ClusterId, node: NodeId) -> Result<(), Rejection> {
    match actor {
        Actor::Agent { cluster: c, node: n } if (*c, *n) == (cluster, node) => Ok(()),
        Actor::Agent { .. } => Err(Rejection::SliceForeign),
        Actor::Tenant { .. } | Actor::Operator { .. } | Actor::Leader => Err(Rejection::NotAllowed),
    }
}

/// A tenant acts for itself; an operator for anyone. `missing` hides what is another's.
fn only_owner_of(actor: &Actor, tenant: TenantId, missing: Rejection) -> Result<(), Rejection> {
    match actor {
        Actor::Tenant { tenant: own, .. } if *own == tenant => Ok(()),
        Actor::Operator { .. } => Ok(()),
        Actor::Tenant { .. } => Err(missing),
        Actor::Agent { .. } | Actor::Leader => Err(Rejection::NotAllowed),
    }
}
