//! One node: drives the session over a link, with a probe, a driver, a store and a clock.
//!
//! One task, no thread. It sleeps until the next moment of lease time at which something is due, or
//! until a message, an answer or a report comes; so many nodes share one process at any speed.

pub mod outbox;
mod sending;

use std::sync::Arc;
use std::time::Duration;

use sublet_protocol::agent::{DownEnvelope, Reply, Up};
use sublet_protocol::codec;
use sublet_protocol::ids::{ClusterId, HostHash, NodeId};
use sublet_protocol::refusals::Rejection;
use sublet_protocol::transport::AgentLink;
use sublet_protocol::units::Millis;
use tokio::sync::Notify;

use crate::clock::Clock;
use crate::driver::{Driver, GuestKey, NotCleared};
use crate::durable::{self, Durable};
use crate::idle::IdleRule;
use crate::probe::{Probe, Sample};
use crate::session::{self, Effect, Session};
use crate::usage::UseWatch;
use crate::watch::{Guests, Watch};
use sending::{Answer, Sending};

/// What a node needs to know.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// Its cluster.
    pub cluster: ClusterId,
    /// Its id there.
    pub node: NodeId,
    /// Its machine.
    pub host: HostHash,
    /// What it lends, and how it offers that.
    pub session: session::Config,
    /// What counts as idle.
    pub idle: IdleRule,
    /// How often devices are looked at, in lease time.
    pub sample_every: Millis,
    /// How long an answer may take, in real time.
    pub reply_timeout: Duration,
    /// From a failed sending to the next, in real time.
    pub retry_pause: Duration,
}

/// The parts of a node that touch the world.
pub struct NodeParts {
    /// To the broker.
    pub link: Box<dyn AgentLink>,
    /// Sees the devices.
    pub probe: Box<dyn Probe>,
    /// Runs guests.
    pub driver: Box<dyn Driver>,
    /// Keeps what must not be forgotten.
    pub durable: Box<dyn Durable>,
    /// Lease time.
    pub clock: Arc<dyn Clock>,
}

/// Why a node stopped.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Guests of an earlier start are still there.
    #[error("the node is not clear")]
    NotCleared(#[source] NotCleared),
    /// The agent's state cannot be read or kept.
    #[error("the agent's state cannot be kept")]
    Durable(#[source] durable::Error),
    /// The broker will not have this node.
    #[error("the broker refuses this node")]
    Refused(#[source] Rejection),
}

/// Runs a node. Returns when the link is closed for good and no guest is left; guests are not ended
/// because of it before their time (LA6). Dropping the future ends them.
///
/// # Errors
/// When the node is not clear at the start, its state cannot be kept, or the broker refuses it.
pub async fn run_node(config: NodeConfig, parts: NodeParts) -> Result<(), Error> {
    let mut node = Node::begin(config, parts)?;
    while !node.is_over() {
        node.do_what_is_due()?;
        node.wait().await?;
    }
    Ok(())
}

struct Node {
    config: NodeConfig,
    parts: NodeParts,
    session: Session,
    watch: Watch,
    uses: UseWatch,
    sending: Sending,
    reports: Option<Arc<Notify>>,
    sample_at: Millis,
    change_at: Option<Millis>,
    is_link_open: bool,
    /// Whether the broker has taken this start's hello.
    is_registered: bool,
}

/// What ended a wait.
enum Woken {
    Message(Option<Vec<u8>>),
    Answer(Answer),
    Time,
}

impl Node {
    fn begin(config: NodeConfig, mut parts: NodeParts) -> Result<Self, Error> {
        parts.driver.clear().map_err(Error::NotCleared)?;
        let durable = parts.durable.begin().map_err(Error::Durable)?;
        let now = parts.clock.now();
        let sending = Sending::new(&config, durable.boot);
        let (session, effects) = Session::new(config.session.clone(), durable, now);
        let devices = config.session.slices.iter().map(|one| one.slice.device);
        let watch = Watch::new(config.idle, devices);
        let uses = UseWatch::new(config.idle.gap_max);
        let reports = parts.driver.reports();
        let mut node = Self {
            config,
            parts,
            session,
            watch,
            uses,
            sending,
            reports,
            sample_at: now,
            change_at: None,
            is_link_open: true,
            is_registered: false,
        };
        node.carry_out(effects)?;
        Ok(node)
    }

    fn is_over(&self) -> bool {
        let mut slices = self.config.session.slices.iter();
        !self.is_link_open && !slices.any(|one| self.session.holds(one.slice.device))
    }

    fn do_what_is_due(&mut self) -> Result<(), Error> {
        self.look_if_due()?;
        let now = self.parts.clock.now();
        for report in self.parts.driver.poll(now) {
            let effects = self.session.on_report(now, report);
            self.carry_out(effects)?;
        }
        let effects = self.session.on_tick(now);
        self.carry_out(effects)?;
        self.sending.go_on(&*self.parts.link);
        Ok(())
    }

    fn look_if_due(&mut self) -> Result<(), Error> {
        let now = self.parts.clock.now();
        match now >= self.sample_at || self.change_at.is_some_and(|at| at <= now) {
            true => self.look(now),
            false => Ok(()),
        }
    }

    fn look(&mut self, now: Millis) -> Result<(), Error> {
        // A driver that does not answer shows no device: all are lost (LA4).
        let samples = self.parts.probe.sample(now).unwrap_or_else(|error| {
            tracing::warn!(%error, "devices cannot be read");
            Vec::new()
        });
        self.sample_at = now.saturating_add(self.config.sample_every);
        self.change_at = self.parts.probe.next_change(now);
        let (session, driver) = (&self.session, &self.parts.driver);
        let guests =
            Guests { lent: &|device| session.holds(device), ours: &|process| driver.owns(process) };
        for seen in self.watch.on_samples(now, &samples, &guests) {
            let effects = self.session.on_observation(now, seen);
            self.carry_out(effects)?;
        }
        self.look_at_guests(now, &samples);
        Ok(())
    }

    /// What the guests use of what they hold.
    fn look_at_guests(&mut self, now: Millis, samples: &[Sample]) {
        let running: Vec<GuestKey> = self.session.running().collect();
        self.uses.keep(&running);
        for key in running {
            let sample = samples.iter().find(|sample| sample.device == key.slice.device);
            let gpu = sample.and_then(|sample| sample.utilisation);
            let cpu = self.parts.driver.cpu_used(now, key);
            let seen = self.uses.see(now, key, (gpu, cpu));
            self.session.on_use(now, key, seen);
        }
    }

    fn carry_out(&mut self, effects: Vec<Effect>) -> Result<(), Error> {
        for effect in effects {
            let now = self.parts.clock.now();
            match effect {
                Effect::Persist(state) => {
                    self.parts.durable.store(&state).map_err(Error::Durable)?;
                }
                Effect::Send(message) => {
                    // The broker knows the clocks before it hears again what is free here.
                    if self.is_registered && matches!(message, Up::Inventory { .. }) {
                        self.send_clocks();
                    }
                    self.sending.push(&*self.parts.link, message);
                }
                Effect::Start(guest) => self.parts.driver.start(now, guest),
                Effect::Signal(key, signal) => self.parts.driver.signal(now, key, signal),
                Effect::SetDeadline(key, at) => self.parts.driver.set_deadline(now, key, at),
                Effect::Kill(key) => self.parts.driver.kill(now, key),
            }
        }
        Ok(())
    }

    fn send_clocks(&mut self) {
        let reading = Up::Clock(self.parts.clock.reading());
        self.sending.push(&*self.parts.link, reading);
    }

    fn next_due(&self) -> Millis {
        let due = self.session.next_due().min(self.sample_at);
        let known = [self.change_at, self.parts.driver.next_report()];
        known.into_iter().flatten().fold(due, Millis::min)
    }

    async fn wait(&mut self) -> Result<(), Error> {
        let due = self.next_due();
        let reports = async {
            match &self.reports {
                Some(reports) => reports.notified().await,
                None => std::future::pending().await,
            }
        };
        let woken = tokio::select! {
            message = self.parts.link.next(), if self.is_link_open => Woken::Message(message),
            answer = self.sending.next() => Woken::Answer(answer),
            () = self.parts.clock.sleep_until(due) => Woken::Time,
            () = reports => Woken::Time,
        };
        // After the machine or the process stood still, an owner may have been back for long: no message
        // that waited starts a guest before the devices have been looked at (LA1).
        self.look_if_due()?;
        match woken {
            Woken::Message(Some(bytes)) => self.on_bytes(&bytes),
            Woken::Message(None) => {
                self.is_link_open = false;
                Ok(())
            }
            Woken::Answer(Answer::Reply(asked, reply)) => self.on_reply(&asked, &reply),
            Woken::Answer(Answer::TryAgain) | Woken::Time => Ok(()),
        }
    }

    /// Bytes from the link are not believed: what is not a message for this node is dropped.
    fn on_bytes(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let envelope: DownEnvelope = match codec::decode(bytes) {
            Ok(envelope) => envelope,
            Err(error) => {
                tracing::warn!(%error, "message from the broker dropped");
                return Ok(());
            }
        };
        if (envelope.cluster, envelope.node) != (self.config.cluster, self.config.node) {
            tracing::warn!(cluster = %envelope.cluster, node = %envelope.node, "not for this node");
            return Ok(());
        }
        let now = self.parts.clock.now();
        let effects = self.session.on_message(now, envelope.body);
        self.carry_out(effects)
    }

    fn on_reply(&mut self, asked: &Up, reply: &Reply) -> Result<(), Error> {
        if let (Up::Hello, Reply::Refused(rejection)) = (asked, reply) {
            return Err(Error::Refused(*rejection));
        }
        if let Reply::Refused(rejection) = reply {
            tracing::debug!(kind = asked.kind(), %rejection, "message refused");
        }
        if let (Up::Hello, Reply::Done) = (asked, reply) {
            self.is_registered = true;
            self.send_clocks();
        }
        let now = self.parts.clock.now();
        let effects = self.session.on_reply(now, asked, reply);
        self.carry_out(effects)
    }
}
