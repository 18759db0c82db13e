//! The driver: one task that runs the leader's logic while this node leads.
//!
//! The logic itself is `sublet_core::leader`, without I/O. The driver feeds it with messages,
//! committed records and time, and carries out what it asks for: messages down, commands on the
//! leader's behalf, plans. Nothing is sent before what it tells is committed. While this node does
//! not lead, agents are told to come back later.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use sublet_core::leader::{Effect, Intake, Leader};
use sublet_core::{StateView, matching};
use sublet_protocol::agent::{Down, DownEnvelope, Held, Reply, Up, UpEnvelope};
use sublet_protocol::codec;
use sublet_protocol::commands::{Actor, Command, Outcome};
use sublet_protocol::events::Event;
use sublet_protocol::ids::{ClusterId, NodeId};
use sublet_protocol::records::Record;
use sublet_protocol::transport::{Address, BrokerLink, BrokerSender, Incoming, Pending};
use sublet_protocol::units::{Millis, Timestamp};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;

use crate::cell::Parts;
use crate::error::{Chain, Error};
use crate::feed::Head;
use crate::link::{Mailbox, Received, Ticket};
use crate::metrics;

/// Messages and commands in progress at once; above it messages wait in the link.
pub(crate) const PENDING_MAX: usize = 4_096;
/// Records handed to the leader's logic at once.
const RECORDS_AT_ONCE: usize = 512;
/// Between the end of a plan and the start of the next: what changes meanwhile is planned together.
const PLAN_PAUSE: Duration = Duration::from_millis(5);
/// Between two ticks at least, whatever the speed of ledger time.
const TICK_PAUSE: Duration = Duration::from_millis(2);
/// Between two sendings of a workload whose guest does not run yet.
const WORKLOAD_PAUSE: Duration = Duration::from_millis(500);

/// Steers the driver from outside. Dropping it stops the driver.
pub(crate) struct DriverHandle {
    links: mpsc::Sender<Box<dyn BrokerLink>>,
    workloads: Arc<Notify>,
    stop: watch::Sender<bool>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl DriverHandle {
    pub(crate) async fn attach(&self, link: Box<dyn BrokerLink>) -> Result<(), Error> {
        self.links.send(link).await.map_err(|_| Error::Stopped)
    }

    /// A workload is to be sent now.
    pub(crate) fn workload_waits(&self) {
        self.workloads.notify_one();
    }

    /// Ends the task and waits for it.
    pub(crate) async fn stop(&self) {
        self.stop.send_replace(true);
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task
            && task.await.is_err()
        {
            tracing::error!("the leader's driver panicked");
        }
    }
}

/// Starts the driver's task.
pub(crate) fn start(parts: Arc<Parts>) -> DriverHandle {
    let (links, attached) = mpsc::channel(1);
    let (stop, stopped) = watch::channel(false);
    let workloads = Arc::new(Notify::new());
    let next_record = parts.machine.read(sublet_core::State::next_index);
    let driver = Driver {
        parts,
        link: None,
        sender: None,
        mailbox: Mailbox::default(),
        office: None,
        next_record,
        pending: FuturesUnordered::new(),
        barrier: Barrier::default(),
    };
    let task = tokio::spawn(driver.run(attached, Arc::clone(&workloads), stopped));
    DriverHandle { links, workloads, stop, task: Mutex::new(Some(task)) }
}

struct Driver {
    parts: Arc<Parts>,
    link: Option<Box<dyn BrokerLink>>,
    sender: Option<Box<dyn BrokerSender>>,
    mailbox: Mailbox,
    /// While this node leads.
    office: Option<Office>,
    /// The first record that was not looked at.
    next_record: u64,
    pending: FuturesUnordered<Pending<'static, Settled>>,
    barrier: Barrier,
}

/// One term as leader.
struct Office {
    term: u64,
    leader: Leader,
    /// The logic knows everything before this record from the state.
    first_record: u64,
    plan: Plan,
    /// Commands by time that are being proposed.
    in_flight: BTreeSet<&'static str>,
    tick_not_before: Instant,
}

/// Where planning stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Plan {
    Idle,
    Running,
    /// Running, and something has changed since it began.
    RunningStale,
}

/// Messages that wait for a proof that this node still leads. Those that come while one is under
/// way wait for the next: theirs must begin after they arrived (LR4).
#[derive(Default)]
struct Barrier {
    waiting: Vec<(Ticket, UpEnvelope)>,
    is_running: bool,
}

/// What became of something in progress.
enum Settled {
    /// What an agent's message became.
    Committed(Ticket, Box<UpEnvelope>, Result<Outcome, Error>),
    Barrier {
        covered: Vec<(Ticket, UpEnvelope)>,
        has_passed: bool,
    },
    /// A command of the leader.
    Led {
        term: u64,
        name: &'static str,
    },
    Planned {
        term: u64,
    },
}

impl Driver {
    async fn run(
        mut self,
        mut attached: mpsc::Receiver<Box<dyn BrokerLink>>,
        workloads: Arc<Notify>,
        mut stopped: watch::Receiver<bool>,
    ) {
        let mut leadership = self.parts.raft.leadership();
        leadership.mark_changed();
        let mut head = self.parts.machine.feed().watch();
        let mut resend = tokio::time::interval(WORKLOAD_PAUSE);
        resend.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let has_room = self.pending.len() < PENDING_MAX;
            let tick = self.tick_due();
            tokio::select! {
                () = is_stopped(&mut stopped) => break,
                changed = leadership.changed() => match changed {
                    Ok(()) => self.on_leadership().await,
                    Err(_) => break,
                },
                Some(link) = attached.recv() => self.on_link(link),
                incoming = next_message(&mut self.link), if has_room => match incoming {
                    Some(incoming) => self.on_message(incoming).await,
                    None => self.link = None,
                },
                Some(settled) = self.pending.next(), if !self.pending.is_empty() => {
                    self.on_settled(settled).await;
                }
                () = has_more(&mut head, self.next_record) => self.on_records().await,
                () = tick => self.tick().await,
                () = workloads.notified() => self.send_workloads(),
                _ = resend.tick() => self.send_workloads(),
            }
        }
        metrics::leading(false);
    }

    fn now(&self) -> Timestamp {
        self.parts.clock.now()
    }

    /// Agents that were asked to report before there was a way to them are asked again.
    fn on_link(&mut self, link: Box<dyn BrokerLink>) {
        self.sender = Some(link.sender());
        self.link = Some(link);
        let Some(office) = &self.office else { return };
        let nodes: Vec<_> =
            self.parts.machine.read(|state| state.nodes().keys().copied().collect());
        for node in nodes {
            self.send(node, office.term, Down::Resync);
        }
    }

    async fn on_leadership(&mut self) {
        let leadership = *self.parts.raft.leadership().borrow();
        metrics::leading(leadership.is_leader);
        if !leadership.is_leader {
            self.office = None;
            for (ticket, _) in std::mem::take(&mut self.barrier.waiting) {
                self.mailbox.answer(ticket, &Reply::Later);
            }
            return;
        }
        if self.office.as_ref().is_some_and(|office| office.term == leadership.term) {
            return;
        }
        self.office = None;
        // Before everything that others committed is applied here, nothing is decided. If it fails
        // leadership changes again.
        if self.parts.raft.read_barrier().await.is_err() {
            return;
        }
        let (term, now) = (leadership.term, self.now());
        let ((leader, effects), first_record) =
            self.parts.machine.read(|state| (Leader::new(term, state, now), state.next_index()));
        tracing::info!(term, first_record, "leads");
        self.office = Some(Office {
            term,
            leader,
            first_record,
            plan: Plan::Idle,
            in_flight: BTreeSet::new(),
            tick_not_before: Instant::now(),
        });
        self.carry_out(effects).await;
    }

    async fn on_message(&mut self, incoming: Incoming) {
        match self.mailbox.receive(incoming) {
            Received::Fresh(ticket, envelope) => self.on_fresh(ticket, envelope).await,
            Received::Output(envelope) => self.on_output(&envelope),
            Received::Nothing => {}
        }
    }

    async fn on_fresh(&mut self, ticket: Ticket, envelope: UpEnvelope) {
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
            Intake::Output => {
                self.on_output(&envelope);
                self.mailbox.answer(ticket, &Reply::Done);
            }
        }
    }

    /// Whether a guest runs can be heard from its agent: then its workload has arrived.
    fn notice_guests(&self, message: &Up) {
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
            | Up::Output { .. } => {}
        }
    }

    /// Relays output of a live lease from the agent of one of its members, and of nobody else
    /// (INV-11).
    fn on_output(&self, envelope: &UpEnvelope) {
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

    async fn on_records(&mut self) {
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

    async fn on_settled(&mut self, settled: Settled) {
        match settled {
            Settled::Committed(ticket, envelope, outcome) => {
                self.on_committed(ticket, &envelope, outcome).await;
            }
            Settled::Led { term, name } => {
                if let Some(office) = self.office.as_mut().filter(|office| office.term == term) {
                    office.in_flight.remove(name);
                }
            }
            Settled::Barrier { covered, has_passed } => {
                self.barrier.is_running = false;
                self.on_barrier(covered, has_passed).await;
                self.start_barrier().await;
            }
            Settled::Planned { term } => {
                let Some(office) = self.office.as_mut().filter(|office| office.term == term) else {
                    return;
                };
                let is_stale = office.plan == Plan::RunningStale;
                office.plan = Plan::Idle;
                if is_stale {
                    self.plan().await;
                }
            }
        }
    }

    /// Answers an agent once what it asked for is committed or refused. What failed, or is of an
    /// earlier term, it must ask again.
    async fn on_committed(
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

    async fn on_barrier(&mut self, covered: Vec<(Ticket, UpEnvelope)>, has_passed: bool) {
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

    async fn start_barrier(&mut self) {
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

    /// When the leader's logic has something to do by time.
    fn tick_due(&self) -> impl Future<Output = ()> + use<> {
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

    async fn tick(&mut self) {
        let now = self.now();
        let Some(office) = &mut self.office else { return };
        office.tick_not_before = Instant::now() + TICK_PAUSE;
        let leader = &mut office.leader;
        let effects = self.parts.machine.read(|state| leader.tick(state, now));
        self.carry_out(effects).await;
    }

    async fn carry_out(&mut self, effects: Vec<Effect>) {
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
    async fn lead(&mut self, command: Command, term: u64) {
        let Some(office) = &mut self.office else { return };
        let name = command.name();
        let is_timed = matches!(command, Command::Sweep | Command::SealTail);
        if is_timed && !office.in_flight.insert(name) {
            return;
        }
        let parts = Arc::clone(&self.parts);
        self.launch(async move { parts.lead(command, term).await }).await;
    }

    /// Plans now or, if a plan is being made, once more after it.
    async fn plan(&mut self) {
        let Some(office) = &mut self.office else { return };
        if office.plan != Plan::Idle {
            office.plan = Plan::RunningStale;
            return;
        }
        office.plan = Plan::Running;
        let (parts, term) = (Arc::clone(&self.parts), office.term);
        self.launch(async move { parts.plan(term).await }).await;
    }

    /// Puts something in progress. It is begun at once, so that commands enter the log in the order
    /// in which they were launched.
    async fn launch(&mut self, work: impl Future<Output = Settled> + Send + 'static) {
        let mut work: Pending<'static, Settled> = Box::pin(work);
        let begun = futures::poll!(work.as_mut());
        self.pending.push(match begun {
            Poll::Ready(settled) => Box::pin(std::future::ready(settled)),
            Poll::Pending => work,
        });
    }

    fn send(&self, (cluster, node): (ClusterId, NodeId), term: u64, body: Down) {
        let Some(sender) = &self.sender else { return };
        let kind = body.kind();
        let envelope = DownEnvelope { cluster, node, term, body };
        let bytes = match codec::encode(&envelope) {
            Ok(bytes) => bytes,
            Err(error) => {
                tracing::error!(%cluster, %node, kind, error = %Chain(&error), "message cannot be written");
                return metrics::message_sent(kind, false);
            }
        };
        // What must arrive is sent again by the leader's logic.
        let sent = sender.send(Address { cluster, node }, bytes);
        if let Err(error) = &sent {
            tracing::debug!(%cluster, %node, kind, error = %Chain(&error), "message not sent");
        }
        metrics::message_sent(kind, sent.is_ok());
    }

    fn send_workloads(&self) {
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
            Ok(Outcome::Done { .. } | Outcome::Repeated { .. }) => {}
            Ok(Outcome::Refused { rejection }) => {
                tracing::debug!(
                    command = name,
                    code = rejection.code(),
                    "leader's command refused"
                );
            }
            Err(error) => {
                tracing::warn!(command = name, error = %Chain(&error), "leader's command failed")
            }
        }
        Settled::Led { term, name }
    }

    /// Makes a plan on the state as it is and proposes it.
    async fn plan(self: Arc<Self>, term: u64) -> Settled {
        let parts = Arc::clone(&self);
        let planned = tokio::task::spawn_blocking(move || {
            let started = Instant::now();
            let now = parts.clock.now();
            let groups = parts.machine.read(|state| matching::plan(StateView { state, now }));
            metrics::planned(started.elapsed());
            groups
        });
        match planned.await {
            Ok(groups) if groups.is_empty() => {}
            Ok(groups) => drop(self.lead(Command::CommitPlan { groups }, term).await),
            Err(error) => tracing::error!(error = %Chain(&error), "the planner panicked"),
        }
        tokio::time::sleep(PLAN_PAUSE).await;
        Settled::Planned { term }
    }
}

async fn is_stopped(stopped: &mut watch::Receiver<bool>) {
    // An error means that the handle is gone, which is the same.
    drop(stopped.wait_for(|stop| *stop).await);
}

async fn next_message(link: &mut Option<Box<dyn BrokerLink>>) -> Option<Incoming> {
    match link {
        Some(link) => link.next().await,
        None => std::future::pending().await,
    }
}

/// Waits until the journal goes beyond `next`.
async fn has_more(head: &mut watch::Receiver<Head>, next: u64) {
    if head.wait_for(|head| head.next > next).await.is_err() {
        std::future::pending::<()>().await;
    }
}
