//! The link between agents and brokers: carries bytes, is never believed, remembers nothing.
//!
//! A message up is a request that is answered once its effect is committed; the sender repeats it
//! under the same sequence number until then. A message down is sent and forgotten; what must
//! arrive is sent again until the agent's answer shows that it did.

pub mod in_process;

use std::future::Future;
use std::pin::Pin;

use thiserror::Error;

use crate::ids::{ClusterId, NodeId};

/// A boxed future, so that links can be used behind a pointer.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Which agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// Its cluster.
    pub cluster: ClusterId,
    /// Its node.
    pub node: NodeId,
}

/// Why nothing was carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Error {
    /// Nobody answered in time. What was asked may or may not have happened.
    #[error("no answer in time: what was asked may have happened")]
    TimedOut,
    /// No way to the other side just now.
    #[error("not connected")]
    Disconnected,
    /// The other side is slow and the queue to it is full.
    #[error("the queue is full")]
    Full,
    /// More than one message may hold.
    #[error("the message has {length} bytes, more than {max}")]
    TooLong {
        /// How many it has.
        length: usize,
        /// How many it may have.
        max: usize,
    },
}

/// The agent's end.
pub trait AgentLink: Send {
    /// Sends an encoded [`UpEnvelope`](crate::agent::UpEnvelope), waits for the encoded
    /// [`Reply`](crate::agent::Reply).
    fn request(&self, message: Vec<u8>) -> Pending<'static, Result<Vec<u8>, Error>>;

    /// The next encoded [`DownEnvelope`](crate::agent::DownEnvelope); nothing when the link is
    /// closed for good. Safe to drop while pending.
    fn next(&mut self) -> Pending<'_, Option<Vec<u8>>>;
}

/// A message from an agent, to be answered.
pub struct Incoming {
    /// The agent's address as the link knows it: what the message claims must agree.
    pub from: Address,
    /// An encoded [`UpEnvelope`](crate::agent::UpEnvelope).
    pub message: Vec<u8>,
    /// Where the answer goes.
    pub answer: Box<dyn FnOnce(Vec<u8>) + Send>,
}

/// The broker's end.
pub trait BrokerLink: Send {
    /// The next message of any agent; nothing when the link is closed for good. Safe to drop while
    /// pending.
    fn next(&mut self) -> Pending<'_, Option<Incoming>>;

    /// A handle for sending, independent of receiving.
    fn sender(&self) -> Box<dyn BrokerSender>;
}

/// Sends to agents.
pub trait BrokerSender: Send + Sync {
    /// Sends an encoded [`DownEnvelope`](crate::agent::DownEnvelope) without waiting. Success is
    /// not delivery.
    fn send(&self, to: Address, message: Vec<u8>) -> Result<(), Error>;
}
