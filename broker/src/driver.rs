//! The driver: one task that runs the leader's logic while this node leads.
//!
//! The logic itself is `sublet_core::leader`, without I/O. The driver feeds it with messages,
//! committed records and time, and carries out what it asks for: messages down, commands on the
//! leader's behalf, plans. Nothing is sent before what it tells is committed. While this node does
//! not lead, agents are told to come back later.

mod agents;
mod office;

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use sublet_core::leader::Leader;
use sublet_core::matching::index::Index;
use sublet_protocol::agent::{Down, DownEnvelope, UpEnvelope};
use sublet_protocol::codec;
use sublet_protocol::commands::Outcome;
use sublet_protocol::ids::{ClusterId, NodeId};
use sublet_protocol::transport::{Address, BrokerLink, BrokerSender, Incoming, Pending};
use sublet_protocol::units::Timestamp;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;

use crate::cell::Parts;
use crate::error::{Chain, Error};
use crate::feed::Head;
use crate::link::{Mailbox, Ticket};
use crate::metrics;

/// Messages and commands in progress at once; above it messages wait in the link.
pub(crate) const PENDING_MAX: usize = 4_096;
/// Between two sendings of a workload whose guest does not run yet.
const WORKLOAD_PAUSE: Duration = Duration::from_millis(500);
/// Between two looks at what broker, agents and GPUs do not agree in.
const RECONCILE_PAUSE: Duration = Duration::from_secs(30);

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
    /// What the planner remembers; with the plan that is being made, if one is.
    index: Option<Box<Index>>,
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
    /// The barrier that begins a term as leader.
    Elected {
        term: u64,
        has_passed: bool,
    },
    /// A command of the leader.
    Led {
        term: u64,
        name: &'static str,
    },
    Planned {
        term: u64,
        index: Option<Box<Index>>,
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
        let mut reconcile = tokio::time::interval(RECONCILE_PAUSE);
        reconcile.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let asked = Arc::clone(&self.parts);
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
                () = asked.asked.heard() => self.reconcile(),
                _ = reconcile.tick() => self.reconcile(),
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

    async fn on_settled(&mut self, settled: Settled) {
        match settled {
            Settled::Committed(ticket, envelope, outcome) => {
                self.on_committed(ticket, &envelope, outcome).await;
            }
            Settled::Elected { term, has_passed } => self.on_elected(term, has_passed).await,
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
            Settled::Planned { term, index } => {
                let Some(office) = self.office.as_mut().filter(|office| office.term == term) else {
                    return;
                };
                office.index = index;
                let is_stale = office.plan == Plan::RunningStale;
                office.plan = Plan::Idle;
                if is_stale {
                    self.plan().await;
                }
            }
        }
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
