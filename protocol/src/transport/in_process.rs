//! The link within one process: bounded queues, the same bytes and the same caps as over a network.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{mpsc, oneshot};

use super::{Address, AgentLink, BrokerLink, BrokerSender, Error, Incoming, Pending};
use crate::agent::MESSAGE_MAX;

/// Messages that may wait for the broker.
const UP_QUEUE: usize = 8_192;
/// Messages that may wait for one agent.
const DOWN_QUEUE: usize = 1_024;

type Agents = Arc<Mutex<BTreeMap<Address, mpsc::Sender<Vec<u8>>>>>;

/// Where agents connect. Cheap to clone.
#[derive(Clone)]
pub struct Hub {
    agents: Agents,
    up: mpsc::Sender<Incoming>,
}

struct BrokerEnd {
    agents: Agents,
    up: mpsc::Receiver<Incoming>,
}

struct AgentEnd {
    address: Address,
    up: mpsc::Sender<Incoming>,
    down: mpsc::Receiver<Vec<u8>>,
}

struct Sender(Agents);

/// A new link: where agents connect, and the broker's end.
#[must_use]
pub fn link() -> (Hub, Box<dyn BrokerLink>) {
    let agents = Agents::default();
    let (sender, up) = mpsc::channel(UP_QUEUE);
    (Hub { agents: Arc::clone(&agents), up: sender }, Box::new(BrokerEnd { agents, up }))
}

impl Hub {
    /// Connects an agent. An earlier connection of the same address is closed.
    #[must_use]
    pub fn connect(&self, address: Address) -> Box<dyn AgentLink> {
        let (sender, down) = mpsc::channel(DOWN_QUEUE);
        self.agents.lock().unwrap_or_else(PoisonError::into_inner).insert(address, sender);
        Box::new(AgentEnd { address, up: self.up.clone(), down })
    }
}

fn within_cap(message: &[u8]) -> Result<(), Error> {
    match message.len() {
        length if length > MESSAGE_MAX => Err(Error::TooLong { length, max: MESSAGE_MAX }),
        _ => Ok(()),
    }
}

impl AgentLink for AgentEnd {
    fn request(&self, message: Vec<u8>) -> Pending<'static, Result<Vec<u8>, Error>> {
        let (from, up) = (self.address, self.up.clone());
        Box::pin(async move {
            within_cap(&message)?;
            let (sender, receiver) = oneshot::channel();
            let answer = Box::new(move |bytes| {
                // The agent may have given up waiting; then nobody wants the answer.
                let _ = sender.send(bytes);
            });
            let sent = up.send(Incoming { from, message, answer }).await;
            sent.map_err(|_| Error::Disconnected)?;
            receiver.await.map_err(|_| Error::Disconnected)
        })
    }

    fn next(&mut self) -> Pending<'_, Option<Vec<u8>>> {
        Box::pin(self.down.recv())
    }
}

impl BrokerLink for BrokerEnd {
    fn next(&mut self) -> Pending<'_, Option<Incoming>> {
        Box::pin(self.up.recv())
    }

    fn sender(&self) -> Box<dyn BrokerSender> {
        Box::new(Sender(Arc::clone(&self.agents)))
    }
}

impl BrokerSender for Sender {
    fn send(&self, to: Address, message: Vec<u8>) -> Result<(), Error> {
        within_cap(&message)?;
        let agents = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let agent = agents.get(&to).ok_or(Error::Disconnected)?;
        agent.try_send(message).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => Error::Full,
            mpsc::error::TrySendError::Closed(_) => Error::Disconnected,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{ClusterId, NodeId};

    fn address() -> Address {
        Address { cluster: ClusterId::new("c").unwrap(), node: NodeId::new("n").unwrap() }
    }

    #[tokio::test]
    async fn a_request_is_answered_and_a_message_down_arrives() {
        let (hub, mut broker) = link();
        let mut agent = hub.connect(address());
        let sender = broker.sender();
        let asked = tokio::spawn(agent.request(vec![1]));
        let incoming = broker.next().await.unwrap();
        assert_eq!((incoming.from, incoming.message.as_slice()), (address(), &[1][..]));
        (incoming.answer)(vec![2]);
        assert_eq!(asked.await.unwrap(), Ok(vec![2]));
        assert_eq!(sender.send(address(), vec![3]), Ok(()));
        assert_eq!(agent.next().await, Some(vec![3]));
    }

    #[tokio::test]
    async fn a_message_over_the_cap_is_refused_on_both_sides() {
        let (hub, broker) = link();
        let agent = hub.connect(address());
        let long = vec![0; MESSAGE_MAX + 1];
        let error = Error::TooLong { length: MESSAGE_MAX + 1, max: MESSAGE_MAX };
        assert_eq!(agent.request(long.clone()).await, Err(error));
        assert_eq!(broker.sender().send(address(), long), Err(error));
    }

    #[tokio::test]
    async fn a_full_queue_is_refused_and_does_not_block() {
        let (hub, broker) = link();
        let _agent = hub.connect(address());
        let sender = broker.sender();
        for _ in 0..DOWN_QUEUE {
            assert_eq!(sender.send(address(), vec![0]), Ok(()));
        }
        assert_eq!(sender.send(address(), vec![0]), Err(Error::Full));
    }
}
