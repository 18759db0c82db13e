//! `apply`: what the log does with each command. Dedup, decide, evolve.

use sublet_protocol::commands::{Actor, Command, GroupOutcome, IdempotencyKey, Outcome, Stamped};
use sublet_protocol::events::Event;
use sublet_protocol::ids::TenantId;
use sublet_protocol::records::Record;
use sublet_protocol::refusals::Rejection;
use sublet_protocol::units::Timestamp;

use crate::decide::{self, Part};
use crate::evolve::{evolve, originate};
use crate::mutation::Mutation;
use crate::past::Past;
use crate::state::State;

/// What came of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// The answer.
    pub outcome: Outcome,
    /// The records it made, in order; none if it was refused, repeated or changed nothing.
    pub records: Vec<Record>,
}

/// Judges `stamped`, committed in raft `term`, and folds what comes of it into the state.
///
/// Ledger time is the later of the state's and the command's. A refused command leaves no trace. A
/// command that [wants](crate::past::wanted) to know of leases that have ended is refused: see
/// [`apply_knowing`].
pub fn apply(state: &mut State, stamped: &Stamped, term: u64) -> Applied {
    apply_knowing(state, stamped, term, Past::NONE)
}

/// As [`apply`], with what the journal says of the leases that the command wants to know of.
pub fn apply_knowing(state: &mut State, stamped: &Stamped, term: u64, past: &Past) -> Applied {
    let now = state.now().max(stamped.now);
    match admit(state, stamped, term) {
        Ok(Admission::Fresh) => run(state, stamped, (term, now), past),
        Ok(Admission::Repeated { first }) => {
            Applied { outcome: Outcome::Repeated { first }, records: Vec::new() }
        }
        Err(rejection) => refused(rejection),
    }
}

fn refused(rejection: Rejection) -> Applied {
    Applied { outcome: Outcome::Refused { rejection }, records: Vec::new() }
}

enum Admission {
    Fresh,
    Repeated { first: u64 },
}

/// Idempotency first, then what concerns every command.
fn admit(state: &State, stamped: &Stamped, term: u64) -> Result<Admission, Rejection> {
    if let Some(key) = stamped.key {
        let scope = scope(&stamped.actor)?;
        let known = state.keys.get(&(scope, key.key));
        if let Some(entry) = known.filter(|_| !state.leaves_out(Mutation::NoKeys)) {
            return match entry.body == key.body {
                true => Ok(Admission::Repeated { first: entry.first }),
                false => Err(Rejection::KeyReused),
            };
        }
        let used = match scope {
            Some(tenant) => state.tenants.get(&tenant).map_or(0, |t| t.keys),
            None => state.operator_keys,
        };
        if used >= state.policy.keys_per_tenant {
            return Err(Rejection::KeysExhausted);
        }
    }
    if stamped.actor == Actor::Leader && stamped.term != term {
        return Err(Rejection::OtherTerm);
    }
    Ok(Admission::Fresh)
}

/// Whose key it is. A tenant's keys are its own: two tenants may use the same.
fn scope(actor: &Actor) -> Result<Option<TenantId>, Rejection> {
    match actor {
        Actor::Tenant { tenant, .. } => Ok(Some(*tenant)),
        Actor::Operator { .. } => Ok(None),
        Actor::Agent { .. } | Actor::Leader => Err(Rejection::NotAllowed),
    }
}

fn run(
    state: &mut State,
    stamped: &Stamped,
    (term, now): (u64, Timestamp),
    past: &Past,
) -> Applied {
    let first = state.next_index();
    let mut journal = Journal { term, now, stamped, records: Vec::new() };
    let mut groups = Vec::new();
    match &stamped.command {
        Command::CommitPlan { groups: plan } => {
            if let Err(rejection) = decide::plan_admitted(stamped, plan) {
                return refused(rejection);
            }
            for group in plan {
                // Each group is judged on the state that the groups before it left.
                let decided = decide::decide(state, stamped, Part::Group(group), past, now);
                groups.push(match decided {
                    Ok(events) => {
                        let outcome = group_outcome(&events);
                        journal.record(state, events);
                        outcome
                    }
                    Err(rejection) => match decide::overtaken(state, group, rejection) {
                        Some(by) => GroupOutcome::Overtaken { rejection, by },
                        None => GroupOutcome::Refused { rejection },
                    },
                });
            }
        }
        _whole => match decide::decide(state, stamped, Part::Whole, past, now) {
            Ok(events) => journal.record(state, events),
            Err(rejection) => return refused(rejection),
        },
    }
    if let Some(event) = key_used(stamped, first, &journal.records) {
        journal.record(state, vec![event]);
    }
    let count = u32::try_from(journal.records.len()).unwrap_or(u32::MAX);
    Applied { outcome: Outcome::Done { first, count, groups }, records: journal.records }
}

fn group_outcome(events: &[Event]) -> GroupOutcome {
    let lease = events.iter().find_map(|event| match event {
        Event::LeaseGranted { terms, .. } => Some(terms.lease),
        _other => None,
    });
    let is_promise = events
        .iter()
        .any(|event| matches!(event, Event::StartPromised { .. } | Event::PromiseWithdrawn { .. }));
    match lease {
        Some(lease) => GroupOutcome::Granted { lease },
        None if is_promise => GroupOutcome::Promised,
        None => GroupOutcome::Pledged,
    }
}

/// A mutation that was done uses up its key; a refused one does not (LK1).
fn key_used(stamped: &Stamped, first: u64, records: &[Record]) -> Option<Event> {
    let key: IdempotencyKey = stamped.key?;
    let is_refusal = |record: &Record| matches!(record.event, Event::RequestRefused { .. });
    let tenant = scope(&stamped.actor).ok()?;
    // One that changed nothing is remembered, too: later it might change something.
    let is_done = !records.iter().any(is_refusal);
    is_done.then_some(Event::KeyUsed { tenant, key, first })
}

/// Folds events and writes them down with their place, time and cause.
struct Journal<'a> {
    term: u64,
    now: Timestamp,
    stamped: &'a Stamped,
    records: Vec<Record>,
}

impl Journal<'_> {
    fn record(&mut self, state: &mut State, events: Vec<Event>) {
        for event in events {
            let index = state.next_index();
            evolve(state, self.now, &event);
            originate(state, self.stamped.id, &event);
            self.records.push(Record {
                index,
                term: self.term,
                time: self.now,
                cause: self.stamped.id,
                actor: self.stamped.actor.clone(),
                event,
            });
        }
    }
}
