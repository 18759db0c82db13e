//! How leases end: the notice, the members that stop, the settlement, and what becomes of the request.

use sublet_protocol::capacity::SliceId;
use sublet_protocol::commands::GuestOutcome;
use sublet_protocol::events::{Event, Settlement};
use sublet_protocol::ids::LeaseId;
use sublet_protocol::leases::EndReason;
use sublet_protocol::money::{self, Account, Line, MicroCredits};
use sublet_protocol::requests::OnRecall;
use sublet_protocol::units::{Millis, Timestamp};

use crate::mutation::Mutation;
use crate::state::{Lease, LeaseStage, State};

/// A member with no guest left.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stop {
    pub(super) slice: SliceId,
    pub(super) used: Millis,
    pub(super) outcome: GuestOutcome,
}

/// The lease must go for `cause`; nothing if it is going already.
pub(super) fn begin(id: LeaseId, lease: &Lease, cause: EndReason, now: Timestamp) -> Option<Event> {
    match lease.stage {
        LeaseStage::Granted { .. } | LeaseStage::Active { .. } => {
            let deadline = now.after(lease.terms.grace);
            Some(Event::LeaseEnding { lease: id, cause, deadline })
        }
        LeaseStage::Ending { .. } => None,
    }
}

/// The tenant is told of the bought end; if it has come already, that is too late and it ends.
pub(super) fn announce_bought_end(id: LeaseId, lease: &Lease, now: Timestamp) -> Option<Event> {
    let cause = EndReason::Expired;
    match lease.stage {
        LeaseStage::Active { ends_at, .. } if ends_at > now => {
            Some(Event::LeaseEndAnnounced { lease: id, cause, at: ends_at })
        }
        LeaseStage::Active { .. } | LeaseStage::Granted { .. } | LeaseStage::Ending { .. } => {
            begin(id, lease, cause, now)
        }
    }
}

/// Members have stopped. If the lease was not ending, it ends for `cause`; if none is left running,
/// it is over.
pub(super) fn stop(
    state: &State,
    id: LeaseId,
    stops: &[Stop],
    cause: EndReason,
    now: Timestamp,
) -> Vec<Event> {
    let lease = &state.leases[&id];
    let fresh: Vec<Stop> =
        stops.iter().filter(|stop| !lease.stopped.contains(&stop.slice)).copied().collect();
    let mut events: Vec<Event> = begin(id, lease, cause, now).into_iter().collect();
    events.extend(fresh.iter().map(|stop| Event::MemberStopped {
        lease: id,
        slice: stop.slice,
        used: stop.used,
        outcome: stop.outcome,
    }));
    let merge = match state.leaves_out(Mutation::UseAddsUp) {
        true => Millis::saturating_add,
        false => Millis::max,
    };
    let used = fresh.iter().map(|stop| stop.used).fold(lease.used, merge);
    let are_all = lease.stopped.len() + fresh.len() == lease.terms.members.len();
    if are_all || state.leaves_out(Mutation::OneStops) {
        events.extend(finish(state, id, cause, used, now));
    }
    events
}

/// The lease is over: what it cost, and what becomes of its request.
pub(super) fn finish(
    state: &State,
    id: LeaseId,
    cause: EndReason,
    used: Millis,
    now: Timestamp,
) -> [Event; 2] {
    let lease = &state.leases[&id];
    let terms = &lease.terms;
    let reason = match lease.stage {
        LeaseStage::Ending { cause, .. } => cause,
        LeaseStage::Granted { .. } | LeaseStage::Active { .. } => cause,
    };
    let settlement = settle(state, lease, reason, used, now);
    let over = Event::LeaseEnded {
        lease: id,
        request: terms.request,
        tenant: terms.tenant,
        owner: terms.owner,
        reason,
        settlement,
        lines: lines(lease, &settlement),
    };
    [over, after(state, lease, reason)]
}

/// What the lease cost (LB2): the least of measured use, time since activation and bought time.
fn settle(
    state: &State,
    lease: &Lease,
    reason: EndReason,
    used: Millis,
    now: Timestamp,
) -> Settlement {
    let terms = &lease.terms;
    let window = lease.active_since().map_or(Millis::ZERO, |since| now.since(since));
    let used = if state.leaves_out(Mutation::UnmeasuredCharge) { window } else { used };
    let billed = used.min(window).min(lease.billed_max());
    // Row F9: what the owner takes back before the minimum run time costs the borrower nothing.
    let min_run = state.policy.min_run.of(terms.tier()).as_millis();
    let is_cut_short = reason == EndReason::Reclaimed && billed < min_run;
    let billed = if is_cut_short { Millis::ZERO } else { billed };
    let cost = money::cost_half_even(terms.price, terms.gpu_total(), billed)
        .expect("a part of the duration costs at most the hold, which was written");
    let fee = money::part_half_even(cost, state.policy.fee)
        .expect("a part of a cost is at most the cost");
    Settlement { billed, cost, fee }
}

/// Gives the hold back and posts the cost. Debits equal credits: the hold is split three ways.
fn lines(lease: &Lease, settlement: &Settlement) -> Vec<Line> {
    let terms = &lease.terms;
    let split = "INV-4: the cost is at most the hold, the fee at most the cost";
    let unused = terms.hold.checked_sub(settlement.cost).expect(split);
    let earned = settlement.cost.checked_sub(settlement.fee).expect(split);
    let all = [
        Line::debit(Account::Hold(terms.tenant), terms.hold),
        Line::credit(Account::Expense(terms.tenant), unused),
        Line::credit(Account::Revenue(terms.owner), earned),
        Line::credit(Account::Fee, settlement.fee),
    ];
    let moves = |line: &Line| line.debit != MicroCredits::ZERO || line.credit != MicroCredits::ZERO;
    all.into_iter().filter(moves).collect()
}

/// Whether the request waits again after such an end: the tenant wants that and did not cause the
/// end, or the start failed and may be tried again.
pub(super) fn waits_again(state: &State, lease: &Lease, reason: EndReason) -> bool {
    let entry = &state.requests[&lease.terms.request];
    let is_retried =
        reason == EndReason::StartFailed && entry.failed_starts < state.policy.start_retries;
    let is_resumed = reason.is_recall() && entry.spec.on_recall == OnRecall::Requeue;
    is_retried || is_resumed
}

/// The request waits again or is closed.
fn after(state: &State, lease: &Lease, reason: EndReason) -> Event {
    let (request, tenant) = (lease.terms.request, lease.terms.tenant);
    if waits_again(state, lease, reason) {
        Event::RequestRequeued { request, tenant, reason }
    } else {
        Event::RequestClosed { request, tenant, reason }
    }
}
