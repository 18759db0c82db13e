//! Sending: one message after another, each repeated under its number until it is answered.
//! Renewals, inventories and clocks do not wait in that line and are not repeated: the next one says
//! more.

use std::time::Duration;

use sublet_protocol::agent::{Reply, Up, UpEnvelope};
use sublet_protocol::codec;
use sublet_protocol::ids::{Boot, ClusterId, HostHash, NodeId};
use sublet_protocol::transport::{self, AgentLink, Pending};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::NodeConfig;
use super::outbox::{Outbox, replaces};

/// Messages under way that do not wait in line; another one is left out.
const PASSING_MAX: usize = 16;

/// The sending side of a node.
pub(super) struct Sending {
    cluster: ClusterId,
    node: NodeId,
    host: HostHash,
    boot: Boot,
    sequence: u64,
    reply_timeout: Duration,
    retry_pause: Duration,
    outbox: Outbox,
    current: Option<Current>,
    passing: JoinSet<()>,
}

/// The message whose answer is waited for.
struct Current {
    message: Up,
    bytes: Vec<u8>,
    state: State,
}

enum State {
    /// To be sent, at once.
    Ready,
    UnderWay(Pending<'static, Result<Vec<u8>, transport::Error>>),
    /// To be sent again then.
    Resting(Instant),
}

/// What came of waiting.
pub(super) enum Answer {
    /// The broker answered this message.
    Reply(Box<Up>, Reply),
    /// Something can be sent.
    TryAgain,
}

impl Sending {
    pub(super) fn new(config: &NodeConfig, boot: Boot) -> Self {
        Self {
            cluster: config.cluster,
            node: config.node,
            host: config.host,
            boot,
            sequence: 0,
            reply_timeout: config.reply_timeout,
            retry_pause: config.retry_pause,
            outbox: Outbox::default(),
            current: None,
            passing: JoinSet::new(),
        }
    }

    /// Takes a message; what does not wait in line is sent at once.
    pub(super) fn push(&mut self, link: &dyn AgentLink, message: Up) {
        if !matches!(message, Up::Renew { .. } | Up::Inventory { .. } | Up::Clock(_)) {
            // One that rests between two tries is out of date, too.
            let is_resting = |one: &Current| matches!(one.state, State::Resting(_));
            let current = self.current.as_ref().filter(|one| is_resting(one));
            if current.is_some_and(|one| replaces(&message, &one.message)) {
                self.current = None;
                self.outbox.push_first(message);
            } else {
                self.outbox.push(message);
            }
            return;
        }
        // What has ended is taken out first, or the bound would count it.
        while self.passing.try_join_next().is_some() {}
        if self.passing.len() >= PASSING_MAX {
            return;
        }
        if let Some(bytes) = self.encode(&message) {
            let request = timeout(self.reply_timeout, link.request(bytes));
            self.passing.spawn(async move {
                // Whether it arrived shows in what the broker sends down, or does not.
                let _ = request.await;
            });
        }
    }

    /// Sends the next message, or the current one again, if nothing is under way.
    pub(super) fn go_on(&mut self, link: &dyn AgentLink) {
        while self.current.is_none() {
            let Some(message) = self.outbox.pop() else { return };
            if let Some(bytes) = self.encode(&message) {
                self.current = Some(Current { message, bytes, state: State::Ready });
            }
        }
        let Some(current) = &mut self.current else { return };
        let is_due = match &current.state {
            State::Ready => true,
            State::UnderWay(_) => false,
            State::Resting(until) => *until <= Instant::now(),
        };
        if is_due {
            let request = timeout(self.reply_timeout, link.request(current.bytes.clone()));
            current.state = State::UnderWay(Box::pin(async move {
                request.await.unwrap_or(Err(transport::Error::TimedOut))
            }));
        }
    }

    /// The next answer. Safe to drop while pending; never ends while there is nothing to wait for.
    pub(super) async fn next(&mut self) -> Answer {
        let Some(current) = &mut self.current else { return std::future::pending().await };
        let replied = match &mut current.state {
            State::Ready => return Answer::TryAgain,
            State::Resting(until) => {
                sleep_until(*until).await;
                return Answer::TryAgain;
            }
            State::UnderWay(reply) => reply.await,
        };
        let reply = match replied {
            Ok(bytes) => codec::decode(&bytes).unwrap_or_else(|error| {
                tracing::warn!(%error, "answer of the broker not understood");
                Reply::Later
            }),
            Err(error) => {
                tracing::debug!(%error, kind = current.message.kind(), "not answered");
                Reply::Later
            }
        };
        self.on_reply(reply)
    }

    fn on_reply(&mut self, reply: Reply) -> Answer {
        let Some(current) = self.current.take() else { return Answer::TryAgain };
        let is_output = matches!(current.message, Up::Output { .. });
        if reply == Reply::Later && is_output {
            self.outbox.drop_output();
            return Answer::TryAgain;
        }
        // A newer word that came while this one was under way takes its place (LA6).
        if reply == Reply::Later && self.outbox.bring_forward(&current.message) {
            return Answer::TryAgain;
        }
        if reply == Reply::Later {
            let state = State::Resting(Instant::now() + self.retry_pause);
            self.current = Some(Current { state, ..current });
            return Answer::TryAgain;
        }
        Answer::Reply(Box::new(current.message), reply)
    }

    /// The message in its envelope, with the next number. One that cannot be written is dropped.
    fn encode(&mut self, message: &Up) -> Option<Vec<u8>> {
        self.sequence += 1;
        let envelope = UpEnvelope {
            cluster: self.cluster,
            node: self.node,
            host: self.host,
            boot: self.boot,
            sequence: self.sequence,
            body: message.clone(),
        };
        match codec::encode(&envelope) {
            Ok(bytes) => Some(bytes),
            Err(error) => {
                tracing::error!(%error, kind = message.kind(), "message cannot be written");
                None
            }
        }
    }
}
