//! One agent: the real session with its outbox and durable state, on a machine that may lose its
//! power, stand still or be suspended. Only the sending of messages is modelled: one after another,
//! each repeated under its number until it is answered; renewals and inventories pass by.

use std::collections::VecDeque;
use std::rc::Rc;

use sha2::Digest;
use sublet_agent::durable::{Durable, DurableState, MemoryStore};
use sublet_agent::node::outbox::{Outbox, replaces};
use sublet_agent::session::{Config, Effect, Session};
use sublet_agent::watch::Watch;
use sublet_protocol::agent::{Down, DownEnvelope, Reply, Up, UpEnvelope};
use sublet_protocol::codec;
use sublet_protocol::commands::GuestOutcome;
use sublet_protocol::ids::{ClusterId, HostHash, NodeId};
use sublet_protocol::units::Millis;

use super::clock::MonoClock;
use super::fault::Fault;
use super::network::Wires;
use super::queue::{Deadline, Event};
use super::rule::Rule;
use super::world::World;

/// One in so many effects is not carried out because the process dies before it.
const CRASH_IN_EFFECTS: u64 = 2_500;
/// A lying agent says this many times the real use.
const LIE: u64 = 3;
/// Without LA6 an agent keeps this many offers back.
const HOARD_MAX: usize = 64;

/// A node with its agent.
pub(super) struct Agent {
    pub(super) cluster: ClusterId,
    pub(super) node: NodeId,
    pub(super) host: HostHash,
    pub(super) config: Config,
    /// While its process runs.
    pub(super) session: Option<Session>,
    /// Its eyes, where they are not modelled.
    pub(super) watch: Option<Watch>,
    pub(super) store: MemoryStore,
    pub(super) boot: u64,
    pub(super) clock: MonoClock,
    pub(super) rate: i64,
    pub(super) wires: Wires,
    line: Line,
    wake_at: u64,
    /// The node is suspended until then.
    pub(super) frozen_until: u64,
    /// When it was last suspended or resumed.
    pub(super) frozen_at: u64,
    /// The process stands still until then; its guards do not.
    pub(super) stalled_until: u64,
    /// It stood still, so it looks at its devices before it does anything else.
    pub(super) is_look_due: bool,
    pub(super) is_liar: bool,
}

/// Messages on their way out.
#[derive(Default)]
struct Line {
    outbox: Outbox,
    /// Offers that nothing newer replaces: a mutation.
    hoard: VecDeque<Up>,
    sequence: u64,
    current: Option<Current>,
}

struct Current {
    message: Up,
    sequence: u64,
    bytes: Rc<[u8]>,
    is_resting: bool,
    /// When it is sent again, if nothing is heard.
    retry_at: u64,
}

impl Agent {
    pub(super) fn new(
        (cluster, node, host): (ClusterId, NodeId, HostHash),
        config: Config,
        (rate, is_liar): (i64, bool),
    ) -> Agent {
        Agent {
            cluster,
            node,
            host,
            config,
            session: None,
            watch: None,
            store: MemoryStore::default(),
            boot: 0,
            clock: MonoClock::new(0, 0, rate),
            rate,
            wires: Wires::default(),
            line: Line::default(),
            wake_at: u64::MAX,
            frozen_until: 0,
            frozen_at: 0,
            stalled_until: 0,
            is_look_due: false,
            is_liar,
        }
    }

    pub(super) const fn is_up(&self) -> bool {
        self.session.is_some()
    }

    pub(super) const fn is_frozen(&self, now: u64) -> bool {
        self.frozen_until > now
    }

    /// Until when nothing reaches the process, if it does not run now.
    pub(super) fn held_up_until(&self, now: u64) -> Option<u64> {
        let until = self.frozen_until.max(self.stalled_until);
        (until > now).then_some(until)
    }
}

impl World {
    /// The process starts: everything of an earlier start is stopped (LA3), the start is counted
    /// (LF3), then it speaks.
    pub(super) fn start_agent(&mut self, agent: usize) {
        if self.agents[agent].is_up() {
            return;
        }
        if !self.is_without(Rule::La3Clear) {
            self.kill_all_guests(agent);
        }
        let (now, home) = (self.now, self.home_of(agent));
        let one = &mut self.agents[agent];
        let Ok(durable) = one.store.begin() else { return };
        self.checker.agent_keeps(home, &durable);
        self.checker.agent_starts(agent);
        one.boot = durable.boot.get();
        one.line = Line::default();
        let local = one.clock.at(now);
        let (mut session, effects) = Session::new(one.config.clone(), durable, local);
        if let Some(lapse) = self.rule.and_then(Rule::agent) {
            lapse.apply(&mut session);
        }
        let mut effects = effects;
        if self.rule == Some(Rule::BugHelloFirst) {
            effects.sort_by_key(|effect| !matches!(effect, Effect::Send(Up::Hello)));
        }
        one.session = Some(session);
        self.open_eyes(agent);
        self.carry_out_agent(agent, effects);
        let devices: Vec<usize> = self.devices_of(agent).collect();
        for device in devices {
            let at = now + 500 + self.random.below(3_000);
            self.queue.push(at, Event::Look { device });
        }
    }

    /// The process is gone. Its guests are not, until their guards see it.
    pub(super) fn crash_agent(&mut self, agent: usize) {
        let one = &mut self.agents[agent];
        if one.session.take().is_none() {
            return;
        }
        one.line = Line::default();
        one.wake_at = u64::MAX;
        self.faults.count(Fault::AgentCrash);
        self.guards_see_eof(agent);
        let back = self.now + 200 + self.random.below(if self.is_calm { 1_000 } else { 60_000 });
        self.queue.push(back, Event::AgentStart { agent });
    }

    /// What the session is called with and what it wants, in one step.
    pub(super) fn with_session(
        &mut self,
        agent: usize,
        act: impl FnOnce(&mut Session, Millis) -> Vec<Effect>,
    ) {
        let local = self.agents[agent].clock.at(self.now);
        let Some(session) = self.agents[agent].session.as_mut() else { return };
        let effects = act(session, local);
        self.carry_out_agent(agent, effects);
    }

    /// Carries effects out in order; the process may die before any of them.
    fn carry_out_agent(&mut self, agent: usize, effects: Vec<Effect>) {
        for effect in effects {
            if self.profile.has_crashes && !self.is_calm && self.random.chance(1, CRASH_IN_EFFECTS)
            {
                if matches!(effect, Effect::Persist(_)) {
                    self.faults.count(Fault::LostWrite);
                }
                return self.crash_agent(agent);
            }
            self.carry_out_one(agent, effect);
        }
        self.go_on(agent);
        self.plan_agent_wake(agent);
    }

    fn carry_out_one(&mut self, agent: usize, effect: Effect) {
        if self.log.is_some() {
            self.note(|| format!("agent {agent} does {effect:?}"));
        }
        if let Some(trace) = &mut self.trace {
            trace.update(format!("{effect:?}"));
        }
        match effect {
            Effect::Persist(state) => self.persist(agent, &state),
            Effect::Send(message) => {
                self.checker.agent_says(self.home_of(agent), &message);
                self.checker.agent_means(agent, &message);
                let is_confirm = matches!(message, Up::Confirm { .. });
                self.push_up(agent, message);
                if is_confirm {
                    self.perhaps_pull_the_cable(agent);
                }
            }
            Effect::Start(guest) => {
                let local = self.agents[agent].clock.at(self.now);
                self.checker.agent_lends(agent, local, &guest);
                self.start_guest(agent, &guest);
            }
            Effect::Signal(key, _) => {
                let local = self.agents[agent].clock.at(self.now);
                self.checker.agent_stops(agent, local, key);
                self.signal_guest(agent, key);
            }
            Effect::SetDeadline(key, at) => self.set_guest_deadline(agent, key, at),
            Effect::Kill(key) => self.kill_guest(agent, key),
        }
    }

    fn persist(&mut self, agent: usize, state: &DurableState) {
        // LF2 without its fsync: what was not yet kept is lost with the process.
        if self.is_without(Rule::Lf2Fsync) {
            return self.checker.agent_acts_on(self.home_of(agent), state);
        }
        self.checker.agent_keeps(self.home_of(agent), state);
        let forgetful = DurableState { usage: Vec::new(), ..state.clone() };
        let state = if self.is_without(Rule::Lb3Outbox) { &forgetful } else { state };
        if self.agents[agent].store.store(state).is_err() {
            self.fail(14, "the store in memory failed");
        }
    }

    pub(super) fn plan_agent_wake(&mut self, agent: usize) {
        let now = self.now;
        let one = &mut self.agents[agent];
        let Some(session) = &one.session else { return };
        let at = one.clock.when(session.next_due()).max(now + 1);
        if at < one.wake_at {
            one.wake_at = at;
            self.queue.push(at, Event::AgentWake { agent });
        }
    }

    pub(super) fn postpone_wake(&mut self, agent: usize, until: u64) {
        if self.agents[agent].wake_at == self.now {
            self.agents[agent].wake_at = until;
            self.queue.push(until, Event::AgentWake { agent });
        }
    }

    pub(super) fn on_agent_wake(&mut self, agent: usize) {
        if self.agents[agent].wake_at != self.now {
            return;
        }
        self.agents[agent].wake_at = u64::MAX;
        self.with_session(agent, Session::on_tick);
        self.plan_agent_wake(agent);
    }

    /// Bytes of a broker.
    pub(super) fn on_down(&mut self, agent: usize, bytes: &[u8]) {
        if !self.agents[agent].is_up() {
            return;
        }
        let Ok(envelope) = codec::decode::<DownEnvelope>(bytes) else {
            return self.fail(12, "a message to an agent cannot be read");
        };
        if let Down::Stop { slice, token, grace, .. } = envelope.body {
            self.promise_gone(agent, slice, token, grace);
        }
        for process in self.processes_of(agent) {
            let local = self.agents[process].clock.at(self.now);
            self.checker.agent_is_told(process, local, &envelope.body);
            let body = envelope.body.clone();
            self.with_session(process, |session, now| session.on_message(now, body));
        }
    }

    /// INV-3: from now on the guest has its grace, on the agent's clock.
    fn promise_gone(
        &mut self,
        agent: usize,
        slice: sublet_protocol::capacity::SliceId,
        token: sublet_protocol::ids::Token,
        grace: Millis,
    ) {
        let key = sublet_agent::driver::GuestKey { slice, token };
        if let Some(guest) = self.guest_of(agent, key) {
            let at = self.now + grace.get() + grace.get() / 19 + 2_000;
            self.queue.push(at, Event::Check(Deadline::GuestGone { guest, invariant: 3 }));
        }
    }

    pub(super) fn on_reply(&mut self, agent: usize, boot: u64, sequence: u64, bytes: &[u8]) {
        for process in self.processes_of(agent) {
            self.reply_reaches(process, boot, sequence, bytes);
        }
    }

    fn reply_reaches(&mut self, agent: usize, boot: u64, sequence: u64, bytes: &[u8]) {
        let one = &mut self.agents[agent];
        let is_its = |current: &Current| current.sequence == sequence;
        if one.boot != boot || !one.line.current.as_ref().is_some_and(is_its) {
            return;
        }
        let Ok(reply) = codec::decode::<Reply>(bytes) else {
            return self.fail(12, "a reply cannot be read");
        };
        let Some(mut current) = one.line.current.take() else { return };
        if reply == Reply::Later && self.is_overtaken(agent, &current.message) {
            return self.go_on(agent);
        }
        if reply == Reply::Later {
            let at = self.now + 1_000;
            (current.is_resting, current.retry_at) = (true, at);
            self.agents[agent].line.current = Some(current);
            self.queue.push(at, Event::AgentRetry { agent, boot, sequence });
            return;
        }
        if let (Up::Hello, Reply::Refused(_)) = (&current.message, &reply) {
            // The broker will not have this machine: the process ends, its service starts it again.
            return self.crash_agent(agent);
        }
        self.with_session(agent, |session, now| session.on_reply(now, &current.message, &reply));
    }

    pub(super) fn on_agent_retry(&mut self, agent: usize, boot: u64, sequence: u64) {
        let now = self.now;
        let one = &mut self.agents[agent];
        if one.boot != boot || !one.is_up() {
            return;
        }
        let Some(mut current) = one.line.current.take_if(|c| c.sequence == sequence) else {
            return self.go_on(agent);
        };
        if now < current.retry_at {
            // It has been sent again since, and waits anew: an agent has one timer for it.
            self.agents[agent].line.current = Some(current);
            return;
        }
        if self.is_overtaken(agent, &current.message) {
            return self.go_on(agent);
        }
        (current.is_resting, current.retry_at) = (false, now + 6_000);
        let bytes = Rc::clone(&current.bytes);
        self.checker.agent_repeats(agent, &current.message);
        self.agents[agent].line.current = Some(current);
        self.queue.push(now + 6_000, Event::AgentRetry { agent, boot, sequence });
        self.send_up(agent, &bytes);
    }

    /// Whether a newer word waits behind a message that was not answered, and takes its place.
    fn is_overtaken(&mut self, agent: usize, current: &Up) -> bool {
        !self.is_without(Rule::BugStaleWord)
            && self.agents[agent].line.outbox.bring_forward(current)
    }

    fn push_up(&mut self, agent: usize, message: Up) {
        let message = if self.agents[agent].is_liar { self.lie(message) } else { message };
        if matches!(message, Up::Renew { .. } | Up::Inventory { .. }) {
            let (_, bytes) = self.encode_up(agent, &message);
            return self.send_up(agent, &bytes);
        }
        let is_hoarded = self.is_without(Rule::La6Hoard) && matches!(message, Up::Offer(_));
        let line = &mut self.agents[agent].line;
        if is_hoarded {
            if line.hoard.len() == HOARD_MAX {
                line.hoard.pop_front();
            }
            return line.hoard.push_back(message);
        }
        let is_stale = |one: &Current| one.is_resting && replaces(&message, &one.message);
        if line.current.as_ref().is_some_and(is_stale) {
            line.current = None;
            line.outbox.push_first(message);
        } else {
            line.outbox.push(message);
        }
        self.checker.bounds_of_outbox(self.agents[agent].line.outbox.len());
    }

    /// Sends the next message if none is under way.
    fn go_on(&mut self, agent: usize) {
        if !self.agents[agent].is_up() || self.agents[agent].line.current.is_some() {
            return;
        }
        let line = &mut self.agents[agent].line;
        let Some(message) = line.hoard.pop_front().or_else(|| line.outbox.pop()) else { return };
        self.checker.agent_repeats(agent, &message);
        let (sequence, bytes) = self.encode_up(agent, &message);
        let boot = self.agents[agent].boot;
        let retry_at = self.now + 6_000;
        let bytes_sent = Rc::clone(&bytes);
        let current = Current { message, sequence, bytes: bytes_sent, is_resting: false, retry_at };
        self.agents[agent].line.current = Some(current);
        self.queue.push(self.now + 6_000, Event::AgentRetry { agent, boot, sequence });
        self.send_up(agent, &bytes);
    }

    fn encode_up(&mut self, agent: usize, body: &Up) -> (u64, Rc<[u8]>) {
        let one = &mut self.agents[agent];
        one.line.sequence += 1;
        let sequence = one.line.sequence;
        let envelope = UpEnvelope {
            cluster: one.cluster,
            node: one.node,
            host: one.host,
            boot: sublet_protocol::ids::Boot::new(one.boot),
            sequence,
            body: body.clone(),
        };
        match codec::encode(&envelope) {
            Ok(bytes) => (sequence, bytes.into()),
            Err(_) => {
                self.fail(12, "a message of an agent has no bytes");
                (sequence, Vec::new().into())
            }
        }
    }

    /// What a lying agent says instead.
    fn lie(&mut self, message: Up) -> Up {
        let more = |used: Millis| Millis::new(used.get().saturating_mul(LIE));
        match message {
            Up::Stopped { lease, slice, token, used, outcome } => {
                self.faults.count(Fault::UsageLie);
                let is_run = outcome != GuestOutcome::NeverStarted;
                let used = if is_run { more(used) } else { used };
                Up::Stopped { lease, slice, token, used, outcome }
            }
            Up::Renew { nonce, mut held } => {
                for one in &mut held {
                    one.used = more(one.used);
                }
                Up::Renew { nonce, held }
            }
            other => other,
        }
    }
}
