//! What the leader does: its logic is fed with records and time, and what it asks for is done.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sublet_core::leader::{Effect, Leader};
use sublet_core::matching::index::Index;
use sublet_core::matching::{self, Limits};
use sublet_core::{State, StateView};
use sublet_protocol::agent::Reply;
use sublet_protocol::commands::{Actor, Command, GroupOutcome, Outcome};
use sublet_protocol::events::Event;
use sublet_protocol::records::Record;

use super::{Driver, Office, Plan, Settled, WORKLOAD_PAUSE};
use crate::cell::Parts;
use crate::error::Chain;
use crate::metrics;
use crate::reconciliation;
use crate::space::{self, Room};

/// Between two attempts to confirm an election.
const SEEK_PAUSE: Duration = Duration::from_millis(50);
/// Records handed to the leader's logic at once.
const RECORDS_AT_ONCE: usize = 512;
/// Records by which an index may be behind; a new one is built faster than it hears of more.
const CATCH_UP_MAX: u64 = 65_536;
/// Between the end of a plan and the start of the next: what changes meanwhile is planned together.
const PLAN_PAUSE: Duration = Duration::from_millis(5);
/// Between two ticks at least, whatever the speed of ledger time.
const TICK_PAUSE: Duration = Duration::from_millis(2);

impl Driver {
    pub(super) async fn on_leadership(&mut self) {
        let leadership = *self.parts.raft.leadership().borrow();
        metrics::leading(leadership.is_leader);
        if !leadership.is_leader {
            self.office = None;
            self.parts.clocks.clear();
            reconciliation::clear();
            for (ticket, _) in std::mem::take(&mut self.barrier.waiting) {
                self.mailbox.answer(ticket, &Reply::Later);
            }
            return;
        }
        if self.office.as_ref().is_none_or(|office| office.term != leadership.term) {
            self.office = None;
            self.parts.clocks.clear();
            self.seek_office(leadership.term).await;
        }
    }

    /// Nothing is decided before everything that others committed is applied here.
    async fn seek_office(&mut self, term: u64) {
        let parts = Arc::clone(&self.parts);
        let asked = async move {
            let has_passed = parts.raft.read_barrier().await.is_ok();
            if !has_passed {
                tokio::time::sleep(SEEK_PAUSE).await;
            }
            Settled::Elected { term, has_passed }
        };
        self.launch(asked).await;
    }

    pub(super) async fn on_elected(&mut self, term: u64, has_passed: bool) {
        let leadership = *self.parts.raft.leadership().borrow();
        let is_stale = !leadership.is_leader || leadership.term != term;
        if is_stale || self.office.as_ref().is_some_and(|office| office.term == term) {
            return;
        }
        if !has_passed {
            return self.seek_office(term).await;
        }
        // Another node may have led with a clock that was ahead: ledger time never goes back.
        self.parts.clock.not_before(self.parts.machine.read(sublet_core::State::now));
        let now = self.now();
        let ((leader, effects), first_record) =
            self.parts.machine.read(|state| (Leader::new(term, state, now), state.next_index()));
        tracing::info!(term, first_record, "leads");
        self.office = Some(Office {
            term,
            leader,
            first_record,
            plan: Plan::Idle,
            index: None,
            in_flight: BTreeSet::new(),
            tick_not_before: Instant::now(),
        });
        self.carry_out(effects).await;
    }

    pub(super) async fn on_records(&mut self) {
        let records = match self.parts.machine.records(self.next_record, RECORDS_AT_ONCE) {
            Ok(records) => records,
            Err(error) => {
                // The machine meets the same error at its next append and stops the process.
                tracing::error!(error = %Chain(&error), "records could not be read");
                return tokio::time::sleep(WORKLOAD_PAUSE).await;
            }
        };
        let Some(last) = records.last() else { return };
        self.next_record = last.index.saturating_add(1);
        for record in &records {
            match &record.event {
                Event::LeaseEnding { lease, .. } => self.parts.relay.guest_runs(*lease),
                Event::LeaseEnded { lease, .. } => self.parts.relay.lease_ended(*lease),
                Event::NodeFenced { cluster, node, .. } => {
                    tracing::error!(%cluster, %node, "two machines claim one node id");
                }
                _other => {}
            }
        }
        let now = self.now();
        let Some(office) = &mut self.office else { return };
        let first = office.first_record;
        let new = records.iter().filter(|record| record.index >= first);
        let new: Vec<Record> = new.map(|record| Record::clone(record)).collect();
        let leader = &mut office.leader;
        let effects = self.parts.machine.read(|state| leader.on_records(state, now, &new));
        self.carry_out(effects).await;
    }

    /// When the leader's logic has something to do by time.
    pub(super) fn tick_due(&self) -> impl Future<Output = ()> + use<> {
        let clock = self.parts.clock.clone();
        let due = self.office.as_ref().map(|office| {
            let wake = self.parts.machine.read(|s| office.leader.next_wake(s, clock.now()));
            (wake, office.tick_not_before)
        });
        async move {
            let Some((wake, not_before)) = due else { return std::future::pending().await };
            tokio::time::sleep_until(not_before.into()).await;
            clock.sleep_until(wake).await;
        }
    }

    pub(super) async fn tick(&mut self) {
        let now = self.now();
        let Some(office) = &mut self.office else { return };
        office.tick_not_before = Instant::now() + TICK_PAUSE;
        let leader = &mut office.leader;
        let effects = self.parts.machine.read(|state| leader.tick(state, now));
        self.carry_out(effects).await;
    }

    pub(super) async fn carry_out(&mut self, effects: Vec<Effect>) {
        let Some(term) = self.office.as_ref().map(|office| office.term) else { return };
        for effect in effects {
            match effect {
                Effect::Send { to, message } => self.send(to, term, message),
                Effect::Plan => self.plan().await,
                Effect::Propose(command) => self.lead(command, term).await,
            }
        }
    }

    /// Proposes a command of the leader. What is due stays due until it is committed: it is not
    /// proposed twice meanwhile.
    pub(super) async fn lead(&mut self, command: Command, term: u64) {
        let Some(office) = &mut self.office else { return };
        let name = command.name();
        let is_timed =
            matches!(command, Command::Sweep | Command::SealTail | Command::AdvanceRollback { .. });
        if is_timed && !office.in_flight.insert(name) {
            return;
        }
        let parts = Arc::clone(&self.parts);
        self.launch(async move { parts.lead(command, term).await }).await;
    }

    /// Plans now or, if a plan is being made, once more after it.
    pub(super) async fn plan(&mut self) {
        let Some(office) = &mut self.office else { return };
        if office.plan != Plan::Idle {
            office.plan = Plan::RunningStale;
            return;
        }
        let (parts, term, now) = (Arc::clone(&self.parts), office.term, self.parts.clock.now());
        if parts.room() != Room::Plenty {
            // Another plan as soon as there is room.
            office.plan = Plan::RunningStale;
            let index = office.index.take();
            let awaited = async move {
                space::plenty(&parts).await;
                Settled::Planned { term, index }
            };
            return self.launch(awaited).await;
        }
        office.plan = Plan::Running;
        let leader = &office.leader;
        let limits = self.parts.machine.read(|state| leader.limits(state, now));
        let index = office.index.take();
        self.launch(async move { parts.plan(term, limits, index).await }).await;
    }

    pub(super) fn send_workloads(&self) {
        let Some(office) = &self.office else { return };
        for (to, message) in self.parts.relay.waiting_workloads() {
            self.send((to.cluster, to.node), office.term, message);
        }
    }
}

impl Parts {
    /// Proposes a command of the leader. A refusal is normal: the state has moved on, and the
    /// leader's logic looks at it again.
    async fn lead(&self, command: Command, term: u64) -> Settled {
        let name = command.name();
        match self.propose(Actor::Leader, None, command, term).await {
            Ok(Outcome::Done { groups, .. }) => groups.iter().for_each(judged),
            Ok(Outcome::Repeated { .. }) => {}
            Ok(Outcome::Refused { rejection }) => {
                tracing::debug!(
                    command = name,
                    code = rejection.code(),
                    "leader's command refused"
                );
            }
            Err(error) => {
                tracing::warn!(command = name, error = %Chain(&error), "leader's command failed");
            }
        }
        Settled::Led { term, name }
    }

    /// Makes a plan on the state as it is, within `limits`, and proposes it. The index comes back,
    /// for the next plan.
    async fn plan(
        self: Arc<Self>,
        term: u64,
        limits: Limits,
        index: Option<Box<Index>>,
    ) -> Settled {
        let parts = Arc::clone(&self);
        let planned = tokio::task::spawn_blocking(move || {
            let started = Instant::now();
            let now = parts.clock.now();
            let planned = parts.machine.read(|state| {
                let mut index = index.unwrap_or_else(|| Box::new(Index::seeded(state, seed())));
                parts.catch_up(&mut index, state);
                let view = StateView { state, now };
                (matching::plan_with(&mut index, view, &limits), index)
            });
            metrics::planned(started.elapsed());
            planned
        });
        let index = match planned.await {
            Ok((groups, index)) => {
                if !groups.is_empty() {
                    self.lead(Command::CommitPlan { groups }, term).await;
                }
                Some(index)
            }
            Err(error) => {
                tracing::error!(error = %Chain(&error), "the planner panicked");
                None
            }
        };
        tokio::time::sleep(PLAN_PAUSE).await;
        Settled::Planned { term, index }
    }

    /// Tells the index of what happened since the last plan. If that is too much or cannot be read,
    /// it is left behind, and the planner builds it anew.
    fn catch_up(&self, index: &mut Index, state: &State) {
        let behind = state.next_index().saturating_sub(index.next_record());
        if behind > CATCH_UP_MAX {
            return;
        }
        while index.next_record() < state.next_index() {
            let next = index.next_record();
            let told = self.machine.records(next, RECORDS_AT_ONCE).unwrap_or_default();
            for record in &told {
                index.on_record(state, record);
            }
            if told.is_empty() {
                // What was applied a moment ago is in the journal before readers hear of it.
                let journal = self.machine.journal(|journal| journal.range(next, RECORDS_AT_ONCE));
                let Some(Ok(written)) = journal else { return };
                for record in &written {
                    index.on_record(state, record);
                }
                if written.is_empty() {
                    return;
                }
            }
        }
    }
}

/// Says what the rules made of a group of a plan.
fn judged(outcome: &GroupOutcome) {
    metrics::group_judged(outcome);
    match outcome {
        GroupOutcome::Overtaken { rejection, by } => {
            tracing::debug!(code = rejection.code(), seq = by, "group of a plan overtaken");
        }
        GroupOutcome::Refused { rejection } => {
            tracing::debug!(code = rejection.code(), "group of a plan refused");
        }
        GroupOutcome::Granted { .. } | GroupOutcome::Pledged | GroupOutcome::Promised => {}
    }
}

/// Where the index scatters ids: tenants choose ids and must not know it. It changes no plan.
fn seed() -> u64 {
    getrandom::u64().unwrap_or(0)
}
