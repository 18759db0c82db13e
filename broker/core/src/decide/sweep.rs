//! What is due by time, and the seal of the journal's tail.

use sublet_protocol::commands::Actor;
use sublet_protocol::events::Event;
use sublet_protocol::leases::EndReason;
use sublet_protocol::offers::RescindReason;
use sublet_protocol::refusals::Rejection;
use sublet_protocol::rollbacks::DropCause;
use sublet_protocol::units::Timestamp;

use super::{Decision, ending, only_leader};
use crate::mutation::Mutation;
use crate::state::{Due, State};

/// Most things that one sweep does; the leader sweeps again while more is due.
const SWEEP_MAX: usize = 1_024;

pub(super) fn sweep(state: &State, actor: &Actor, now: Timestamp) -> Decision {
    only_leader(actor)?;
    let due = state.due.iter().take_while(|(at, _)| *at <= now).take(SWEEP_MAX);
    let mut events: Vec<Event> =
        due.filter_map(|(_, thing)| due_event(state, *thing, now)).collect();
    let retention = state.policy.key_retention.as_millis();
    let before = Timestamp::new(now.get().saturating_sub(retention.get()));
    if state.keys_by_time.first().is_some_and(|(used_at, _, _)| *used_at < before) {
        events.push(Event::KeysForgotten { before });
    }
    Ok(events)
}

fn due_event(state: &State, thing: Due, now: Timestamp) -> Option<Event> {
    match thing {
        Due::Offer(slice) => {
            let offer = state.offers.get(&slice)?;
            let is_late = now.since(offer.expires_at).get() >= 60_000;
            if state.leaves_out(Mutation::LapsesLate) && !is_late {
                return None;
            }
            let generation = offer.terms.generation;
            Some(Event::OfferRescinded { slice, generation, reason: RescindReason::Expired })
        }
        Due::Pledge(request) => Some(Event::PledgeEnded { request }),
        Due::Start(lease) => {
            ending::begin(lease, state.leases.get(&lease)?, EndReason::StartFailed, now)
        }
        Due::Recall(lease) => {
            ending::begin(lease, state.leases.get(&lease)?, EndReason::Reclaimed, now)
        }
        Due::Notice(lease) => ending::announce_bought_end(lease, state.leases.get(&lease)?, now),
        Due::End(lease) => ending::begin(lease, state.leases.get(&lease)?, EndReason::Expired, now),
        Due::Budget(lease) => {
            ending::begin(lease, state.leases.get(&lease)?, EndReason::Budget, now)
        }
        Due::Approval(rollback) => {
            Some(Event::RollbackDropped { rollback, cause: DropCause::Expired })
        }
    }
}

pub(super) fn seal_tail(state: &State, actor: &Actor) -> Decision {
    only_leader(actor)?;
    if state.next_index == state.unsealed_from {
        return Err(Rejection::TailEmpty);
    }
    Ok(vec![Event::TailSealed { first: state.unsealed_from }])
}
