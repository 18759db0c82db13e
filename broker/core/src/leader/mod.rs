//! What only a leader does, without I/O: messages and time in, effects out.
//!
//! `outbox` says again what an agent has not answered, `intake` turns agents' messages into commands
//! and answers, `timers` proposes what is due. All of it is soft state: a new leader starts from the
//! replicated state alone, treats every agent as just heard (LR3) and asks all of them to report.
//! Nothing here changes the state; nothing is sent before its event is committed.

mod clocks;
mod intake;
mod outbox;
mod reconcile;
mod stalled;
mod timers;

use std::collections::{BTreeMap, BTreeSet};

use sublet_protocol::agent::{ClockReading, Down, Reply, Up, UpEnvelope};
use sublet_protocol::capacity::SliceId;
use sublet_protocol::commands::Command;
use sublet_protocol::events::Event;
use sublet_protocol::ids::{ClusterId, LeaseId, NodeId, Token};
use sublet_protocol::records::Record;
use sublet_protocol::refusals::Rejection;
use sublet_protocol::units::{Millis, Seconds, Timestamp};

pub use clocks::{AgentClock, ClockChange, ClockState};
pub use reconcile::{CYCLE, Leak, LeakKind, Reconciliation};

use crate::matching::{Limits, Preemption};
use crate::mutation::Mutation;
use crate::state::State;

/// An unanswered message is sent again after this long.
const RESEND: Seconds = Seconds::new(5);
/// Measured use is committed this often.
const USAGE_INTERVAL: Seconds = Seconds::new(60);
/// Silence is looked for this often.
const SILENCE_INTERVAL: Seconds = Seconds::new(10);
/// With work waiting, a plan is tried at least this often: protections and promises run out.
const PLAN_INTERVAL: Seconds = Seconds::new(30);
/// A new leader recalls nothing and counts nobody as silent until this share of the agents has
/// reported, in thousandths …
const WARM_SHARE: usize = 800;
/// … or this long has passed.
const WARM_UP: Seconds = Seconds::new(10 * 60);
/// From this many agents on, silence of all of them at once is the broker's own fault.
const ALL_SILENT_MIN: usize = 3;

/// What the shell must do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Send to an agent, once, without waiting.
    Send {
        /// Which agent.
        to: (ClusterId, NodeId),
        /// What.
        message: Down,
    },
    /// Propose a command as the leader.
    Propose(Command),
    /// Run the matcher on the current state, within [`Leader::limits`], and propose its plan if it is
    /// not empty.
    Plan,
}

/// What the shell must do with a message of an agent.
#[allow(clippy::large_enum_variant, reason = "one at a time, consumed at once, never stored")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Intake {
    /// Propose it as that agent, then ask [`Leader::after_commit`] for the answer.
    Propose(Command),
    /// Confirm the quorum (a read barrier), then call [`Leader::after_barrier`] and answer `Done`.
    Barrier,
    /// Answer this at once, with these effects.
    Answer(Reply, Vec<Effect>),
    /// Read the clocks, call [`Leader::on_clock`] and answer `Done`.
    Clock,
    /// Guest output: hand it to whoever listens, answer `Done`.
    Output,
}

/// How much a leader keeps beside the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backlog {
    /// Leases that must be spoken of, now or later.
    pub attention: usize,
    /// Leases of whose end somebody must be told.
    pub told: usize,
    /// Leases whose use has grown since it was last committed.
    pub usage: usize,
    /// Members whose confirmation is to be answered.
    pub nonces: usize,
    /// Agents.
    pub agents: usize,
}

/// A lease's members as they must be told of its end.
#[derive(Debug, Clone)]
struct Told {
    token: Token,
    members: Vec<SliceId>,
}

/// The leader's soft state.
#[derive(Debug)]
pub struct Leader {
    term: u64,
    heard: BTreeMap<(ClusterId, NodeId), Timestamp>,
    /// Agents that have not spoken in this term yet.
    unheard: BTreeSet<(ClusterId, NodeId)>,
    warm_at: Timestamp,
    nonces: BTreeMap<(LeaseId, SliceId), Millis>,
    told: BTreeMap<LeaseId, Told>,
    /// Leases to look at, by when; each lease stands here at most once.
    attention: BTreeSet<(Timestamp, LeaseId)>,
    attention_at: BTreeMap<LeaseId, Timestamp>,
    usage: BTreeMap<LeaseId, Millis>,
    unused: stalled::Unused,
    clocks: clocks::Clocks,
    reports: reconcile::Reports,
    usage_at: Timestamp,
    silence_at: Timestamp,
    plan_at: Timestamp,
    is_plan_due: bool,
}

impl Leader {
    /// A node has won `term`. Every agent counts as heard `now` and is asked to report.
    #[must_use]
    pub fn new(term: u64, state: &State, now: Timestamp) -> (Leader, Vec<Effect>) {
        let mut leader = Leader {
            term,
            heard: state.nodes().keys().map(|node| (*node, now)).collect(),
            unheard: state.nodes().keys().copied().collect(),
            warm_at: now.after(WARM_UP),
            nonces: BTreeMap::new(),
            told: BTreeMap::new(),
            attention: BTreeSet::new(),
            attention_at: BTreeMap::new(),
            usage: BTreeMap::new(),
            unused: stalled::Unused::default(),
            clocks: clocks::Clocks::default(),
            reports: reconcile::Reports::default(),
            usage_at: now.after(USAGE_INTERVAL),
            silence_at: now.after(SILENCE_INTERVAL),
            plan_at: now,
            is_plan_due: true,
        };
        for (id, lease) in state.leases() {
            let members = lease.terms().members.iter().map(|member| member.slice).collect();
            leader.told.insert(*id, Told { token: lease.terms().token, members });
            leader.attend(*id, now);
        }
        let nodes = state.nodes().keys();
        let effects = nodes.map(|to| Effect::Send { to: *to, message: Down::Resync }).collect();
        (leader, effects)
    }

    /// The term it leads in.
    #[must_use]
    pub const fn term(&self) -> u64 {
        self.term
    }

    /// How much it keeps; all of it is bounded by what is in the state (INV-14).
    #[must_use]
    pub fn backlog(&self) -> Backlog {
        Backlog {
            attention: self.attention_at.len().max(self.attention.len()),
            told: self.told.len(),
            usage: self.usage.len(),
            nonces: self.nonces.len(),
            agents: self.heard.len().max(self.unheard.len()),
        }
    }

    /// Committed records: what must be told at once, and what is worth a plan.
    pub fn on_records(&mut self, state: &State, now: Timestamp, records: &[Record]) -> Vec<Effect> {
        let mut effects = Vec::new();
        for record in records {
            self.is_plan_due |= may_open_a_match(&record.event);
            match &record.event {
                Event::LeaseGranted { terms, .. } => {
                    let members = terms.members.iter().map(|member| member.slice).collect();
                    self.told.insert(terms.lease, Told { token: terms.token, members });
                    effects.extend(self.speak(state, terms.lease, now));
                }
                Event::LeaseEnding { lease, .. } => {
                    self.usage.remove(lease);
                    self.unused.forget(*lease);
                    effects.extend(self.speak(state, *lease, now));
                }
                Event::LeaseActivated { lease, .. } => {
                    effects.extend(self.activated(state, *lease, now));
                }
                Event::LeaseEnded { lease, .. } => effects.extend(self.ended(state, *lease)),
                Event::NodeRegistered { cluster, node, .. } => {
                    self.hear((*cluster, *node), now);
                }
                Event::NodeRemoved { cluster, node } => self.forget_node((*cluster, *node)),
                _other => {}
            }
        }
        effects
    }

    /// What plans must keep off: agents that have not reported to this leader, and those whose wall
    /// clocks are too far off.
    #[must_use]
    pub fn limits(&self, state: &State, now: Timestamp) -> Limits {
        let preemption = match self.is_warm(state, now) {
            true => Preemption::Allowed,
            false => Preemption::Suspended,
        };
        let is_rash = state.leaves_out(Mutation::UnheardGranted);
        let unheard = self.unheard.iter().copied().filter(|_| !is_rash);
        let closed = unheard.chain(self.clocks.far()).collect();
        Limits { closed, preemption, typical: None }
    }

    /// An agent has told its clocks when the broker's own showed `ours`: as [`Intake::Clock`] asks.
    /// Returns how it is judged now, if that has changed.
    pub fn on_clock(
        &mut self,
        state: &State,
        message: &UpEnvelope,
        ours: ClockReading,
    ) -> Option<ClockChange> {
        let Up::Clock(theirs) = message.body else { return None };
        let of = ((message.cluster, message.node), message.boot);
        let change = self.clocks.measure(state.policy(), of, theirs, ours)?;
        // Its slices can be granted again.
        self.is_plan_due |= change.before == ClockState::Far;
        Some(change)
    }

    /// What is known of an agent's wall clock; nothing before its first reading in this term.
    #[must_use]
    pub fn clock_of(&self, node: (ClusterId, NodeId)) -> Option<AgentClock> {
        self.clocks.of(node)
    }

    /// Whether enough agents have reported, or enough time has passed, to judge who is silent.
    fn is_warm(&self, state: &State, now: Timestamp) -> bool {
        if state.leaves_out(Mutation::NoWarmUp) {
            return true;
        }
        let awake = state.nodes().iter().filter(|(_, node)| !node.is_silent());
        let (count, unheard) = awake.fold((0_usize, 0_usize), |(count, unheard), (id, _)| {
            (count + 1, unheard + usize::from(self.unheard.contains(id)))
        });
        now >= self.warm_at || (count - unheard) * 1_000 >= count * WARM_SHARE
    }

    /// An agent has spoken.
    fn hear(&mut self, node: (ClusterId, NodeId), now: Timestamp) {
        self.heard.insert(node, now);
        // Its slices can be granted from now on.
        self.is_plan_due |= self.unheard.remove(&node);
    }

    /// A node is no more.
    fn forget_node(&mut self, node: (ClusterId, NodeId)) {
        self.heard.remove(&node);
        self.unheard.remove(&node);
        self.clocks.forget(node);
        self.reports.forget(node);
    }

    /// When [`Leader::tick`] has something to do next.
    #[must_use]
    pub fn next_wake(&self, state: &State, now: Timestamp) -> Timestamp {
        let mut wake = self.silence_at.min(self.usage_at);
        if let Some((at, _)) = self.attention.first() {
            wake = wake.min(*at);
        }
        if let Some(at) = state.next_due() {
            wake = wake.min(at);
        }
        if !state.waiting().is_empty() {
            wake = if self.is_plan_due { now } else { wake.min(self.plan_at) };
        }
        let is_due = state.is_seal_due(now) || state.rollback_due().is_some();
        if is_due { now } else { wake.max(now) }
    }
}

/// Whether an event may let a waiting request match that did not match before.
fn may_open_a_match(event: &Event) -> bool {
    match event {
        Event::PolicySet { .. }
        | Event::QuotaSet { .. }
        | Event::TermsSet { .. }
        | Event::TenantMoved { .. }
        | Event::PriceSet { .. }
        | Event::CapacityOffered { .. }
        | Event::RequestSubmitted { .. }
        | Event::RequestRequeued { .. }
        | Event::PledgeEnded { .. }
        | Event::LeaseEnded { .. }
        | Event::ChargeTurned { .. }
        | Event::PromiseWithdrawn { .. } => true,
        Event::CellCreated { .. }
        | Event::TenantCreated { .. }
        | Event::CalendarSet { .. }
        | Event::ClusterCreated { .. }
        | Event::NodeRegistered { .. }
        | Event::NodeSilenced { .. }
        | Event::OfferRescinded { .. }
        | Event::RequestRefused { .. }
        | Event::RequestCancelled { .. }
        | Event::RequestClosed { .. }
        | Event::CapacityPledged { .. }
        | Event::LeaseGranted { .. }
        | Event::MemberConfirmed { .. }
        | Event::MemberRefused { .. }
        | Event::LeaseActivated { .. }
        | Event::UsageRecorded { .. }
        | Event::LeaseEnding { .. }
        | Event::MemberStopped { .. }
        | Event::TailSealed { .. }
        | Event::CellRestored { .. }
        | Event::BrokerEnlisted { .. }
        | Event::FeatureLevelRaised { .. }
        | Event::KeyUsed { .. }
        | Event::KeysForgotten { .. }
        | Event::NodeFenced { .. }
        | Event::NodeRemoved { .. }
        | Event::PeriodClosed { .. }
        | Event::RollbackProposed { .. }
        | Event::RollbackApproved { .. }
        | Event::RollbackDropped { .. }
        | Event::LeaseRolledBack { .. }
        | Event::RollbackAdvanced { .. }
        | Event::RollbackFinished { .. }
        | Event::TenantOverAdmitted { .. }
        | Event::TenantNamed { .. }
        | Event::LeaseCapped { .. }
        | Event::CheckpointReported { .. }
        | Event::LeaseRecalled { .. }
        | Event::LeaseEndAnnounced { .. }
        | Event::StartPromised { .. } => false,
    }
}

/// The answer to a refused message of an agent.
fn refused(rejection: Rejection) -> Intake {
    Intake::Answer(Reply::Refused(rejection), Vec::new())
}

fn node_of(slice: SliceId) -> (ClusterId, NodeId) {
    (slice.cluster, slice.node)
}
