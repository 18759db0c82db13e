//! What agents say: handled once, answered after commit.

use std::sync::Arc;

use sublet_core::leader::{ClockChange, ClockState, Intake};
use sublet_protocol::agent::{Held, Reply, Up, UpEnvelope};
use sublet_protocol::commands::{Actor, Outcome};
use sublet_protocol::transport::Incoming;
use sublet_protocol::units::Millis;

use super::{Driver, Office, Settled};
use crate::error::Error;
use crate::link::{Received, Ticket};
use crate::metrics;
use crate::reconciliation;

impl Driver {
    pub(super) async fn on_message(&mut self, incoming: Incoming) {
        match self.mailbox.receive(incoming) {
            Received::Fresh(ticket, envelope) => self.on_fresh(ticket, envelope).await,
            Received::Output(envelope) => self.on_output(&envelope),
            Received::Nothing => {}
        }
    }

    pub(super) async fn on_fresh(&mut self, ticket: Ticket, envelope: UpEnvelope) {
        metrics::message_received(envelope.body.kind());
        self.notice_guests(&envelope.body);
        let now = self.now();
        let Some(office) = &mut self.office else {
            return self.mailbox.answer(ticket, &Reply::Later);
        };
        let leader = &mut office.leader;
        let intake = self.parts.machine.read(|state| leader.on_up(state, now, &envelope));
        match intake {
            Intake::Propose(command) => {
                let (parts, term) = (Arc::clone(&self.parts), office.term);
                let actor = Actor::Agent { cluster: envelope.cluster, node: envelope.node };
                let asked = async move {
                    let outcome = parts.propose(actor, None, command, term).await;
                    Settled::Committed(ticket, Box::new(envelope), outcome)
                };
                self.launch(asked).await;
            }
            Intake::Barrier => {
                self.barrier.waiting.push((ticket, envelope));
                self.start_barrier().await;
            }
            Intake::Answer(reply, effects) => {
                self.carry_out(effects).await;
                self.mailbox.answer(ticket, &reply);
            }
            Intake::Clock => {
                self.on_clock(&envelope);
                self.mailbox.answer(ticket, &Reply::Done);
            }
            Intake::Output => {
                self.on_output(&envelope);
                self.mailbox.answer(ticket, &Reply::Done);
            }
        }
    }

    /// Compares the agent's clocks with this machine's. A change is told once.
    fn on_clock(&mut self, envelope: &UpEnvelope) {
        let ours = self.parts.clock.reading();
        let Some(Office { leader, .. }) = &mut self.office else { return };
        let change = self.parts.machine.read(|state| leader.on_clock(state, envelope, ours));
        let node = (envelope.cluster, envelope.node);
        if let Some(clock) = leader.clock_of(node) {
            self.parts.clocks.note(node, clock);
        }
        let Some(ClockChange { node: (cluster, node), now, .. }) = change else { return };
        let offset_ms = now.offset.get();
        match now.state {
            ClockState::Right => tracing::info!(%cluster, %node, offset_ms, "clock right again"),
            ClockState::Off => tracing::warn!(%cluster, %node, offset_ms, "clock off"),
            ClockState::Far => {
                tracing::warn!(%cluster, %node, offset_ms, "clock far off, no new leases there");
            }
        }
    }

    /// Shows what the leader's logic knows of agents and GPUs, and tells those who have asked.
    pub(super) fn reconcile(&self) {
        let asked = self.parts.asked.take();
        // Who asked a broker that does not lead hears so as its question is dropped.
        let Some(office) = &self.office else { return };
        let now = self.now();
        let found = self.parts.machine.read(|state| office.leader.reconciliation(state, now));
        reconciliation::show(&found);
        for one in asked {
            // Who has gone away meanwhile is not told.
            let _gone = one.send(found.clone());
        }
    }

    /// Whether a guest runs can be heard from its agent: then its workload has arrived.
    pub(super) fn notice_guests(&self, message: &Up) {
        match message {
            Up::Renew { held, .. } | Up::Inventory { held, .. } => {
                let runs = |held: &&Held| held.used > Millis::ZERO;
                for held in held.iter().filter(runs) {
                    self.parts.relay.guest_runs(held.lease);
                }
            }
            Up::Stopped { lease, .. } => self.parts.relay.guest_runs(*lease),
            Up::Hello
            | Up::Offer(_)
            | Up::Rescind { .. }
            | Up::Confirm { .. }
            | Up::Nack { .. }
            | Up::Reclaim { .. }
            | Up::Output { .. }
            | Up::Clock(_) => {}
        }
    }

    /// Relays output of a live lease from the agent of one of its members, and of nobody else
    /// (INV-11).
    pub(super) fn on_output(&self, envelope: &UpEnvelope) {
        let Up::Output { lease, token, stream, offset, bytes } = &envelope.body else { return };
        metrics::message_received(envelope.body.kind());
        // Under the state's lock, so that nothing follows the end of the lease.
        let lost = self.parts.machine.read(|state| {
            let terms = state.leases().get(lease).map(sublet_core::Lease::terms);
            let is_member = terms.is_some_and(|terms| {
                let sender = (envelope.cluster, envelope.node);
                let from_it =
                    |m: &sublet_protocol::leases::Member| (m.slice.cluster, m.slice.node) == sender;
                terms.token == *token && terms.members.iter().any(from_it)
            });
            match is_member {
                true => self.parts.relay.push(*lease, *stream, *offset, bytes),
                false => u64::try_from(bytes.len()).unwrap_or(u64::MAX),
            }
        });
        if lost > 0 {
            metrics::output_lost(lost);
        }
        self.parts.relay.guest_runs(*lease);
    }

    /// Answers an agent once what it asked for is committed or refused. What failed, or is of an
    /// earlier term, it must ask again.
    pub(super) async fn on_committed(
        &mut self,
        ticket: Ticket,
        envelope: &UpEnvelope,
        outcome: Result<Outcome, Error>,
    ) {
        let now = self.now();
        let (Some(office), Ok(outcome)) = (&mut self.office, outcome) else {
            return self.mailbox.answer(ticket, &Reply::Later);
        };
        let leader = &mut office.leader;
        let (reply, effects) =
            self.parts.machine.read(|state| leader.after_commit(state, now, envelope, &outcome));
        self.carry_out(effects).await;
        self.mailbox.answer(ticket, &reply);
    }

    pub(super) async fn on_barrier(
        &mut self,
        covered: Vec<(Ticket, UpEnvelope)>,
        has_passed: bool,
    ) {
        for (ticket, envelope) in covered {
            let now = self.now();
            let Some(office) = self.office.as_mut().filter(|_| has_passed) else {
                self.mailbox.answer(ticket, &Reply::Later);
                continue;
            };
            let leader = &mut office.leader;
            let effects =
                self.parts.machine.read(|state| leader.after_barrier(state, now, &envelope));
            self.carry_out(effects).await;
            self.mailbox.answer(ticket, &Reply::Done);
        }
    }

    pub(super) async fn start_barrier(&mut self) {
        if self.barrier.is_running || self.barrier.waiting.is_empty() {
            return;
        }
        self.barrier.is_running = true;
        let covered = std::mem::take(&mut self.barrier.waiting);
        let parts = Arc::clone(&self.parts);
        let asked = async move {
            let has_passed = parts.raft.read_barrier().await.is_ok();
            Settled::Barrier { covered, has_passed }
        };
        self.launch(asked).await;
    }
}
