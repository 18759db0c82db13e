//! Agents to test with: one that does what the test says, and one that runs by itself.

use std::collections::BTreeMap;
use std::time::Duration;

use sublet_protocol::agent::{Down, DownEnvelope, Held, Reply, Up, UpEnvelope};
use sublet_protocol::capacity::SliceId;
use sublet_protocol::codec;
use sublet_protocol::commands::GuestOutcome;
use sublet_protocol::ids::{Boot, HostHash};
use sublet_protocol::transport::in_process::Hub;
use sublet_protocol::transport::{Address, AgentLink};
use sublet_protocol::units::Millis;

use crate::world::{gpu, offer};

const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Agent {
    link: Box<dyn AgentLink>,
    pub(crate) address: Address,
    pub(crate) boot: Boot,
    sequence: u64,
}

impl Agent {
    pub(crate) fn connect(hub: &Hub, address: Address, boot: u64) -> Self {
        Self { link: hub.connect(address), address, boot: Boot::new(boot), sequence: 0 }
    }

    /// The same start of the agent on another link.
    pub(crate) fn reconnect(self, hub: &Hub) -> Self {
        Self { link: hub.connect(self.address), ..self }
    }

    fn envelope(&self, sequence: u64, body: Up) -> Vec<u8> {
        let Address { cluster, node } = self.address;
        let (host, boot) = (HostHash([7; 16]), self.boot);
        codec::encode(&UpEnvelope { cluster, node, host, boot, sequence, body }).unwrap()
    }

    /// Sends under the next number; repeats while the broker says so.
    pub(crate) async fn send(&mut self, body: Up) -> Reply {
        self.sequence += 1;
        self.repeat(self.sequence, body).await
    }

    pub(crate) async fn repeat(&mut self, sequence: u64, body: Up) -> Reply {
        let bytes = self.envelope(sequence, body);
        loop {
            let asked = self.link.request(bytes.clone());
            let answer = tokio::time::timeout(PATIENCE, asked).await.expect("no answer").unwrap();
            match codec::decode(&answer).unwrap() {
                Reply::Later => tokio::time::sleep(Duration::from_millis(5)).await,
                reply => return reply,
            }
        }
    }

    pub(crate) async fn must(&mut self, body: Up) {
        let what = format!("{body:?}");
        assert_eq!(self.send(body).await, Reply::Done, "{what}");
    }

    pub(crate) const fn last_sequence(&self) -> u64 {
        self.sequence
    }

    async fn next(&mut self) -> Option<Down> {
        let bytes = self.link.next().await?;
        let envelope: DownEnvelope = codec::decode(&bytes).unwrap();
        assert_eq!((envelope.cluster, envelope.node), (self.address.cluster, self.address.node));
        Some(envelope.body)
    }

    /// The next message that `pick` takes; others are passed over.
    pub(crate) async fn expect<T>(&mut self, pick: impl Fn(&Down) -> Option<T>) -> T {
        let picked = async {
            loop {
                let message = self.next().await.expect("the link is open");
                if let Some(picked) = pick(&message) {
                    return picked;
                }
            }
        };
        tokio::time::timeout(PATIENCE, picked).await.expect("the message never came")
    }

    /// Offers `devices` GPUs and serves every grant with a guest that ends by itself at once.
    pub(crate) async fn run(mut self, devices: u64) {
        if self.send(Up::Hello).await != Reply::Done {
            return;
        }
        let mut generations: BTreeMap<SliceId, u64> = BTreeMap::new();
        let address = self.address;
        for slice in (0..devices).map(|device| gpu(address, device)) {
            generations.insert(slice, 1);
            self.send(Up::Offer(offer(slice, 1, self.boot))).await;
        }
        while let Some(message) = self.next().await {
            let used = Millis::new(60_000);
            match message {
                Down::Grant(grant) => {
                    let (lease, slice, token) = (grant.lease, grant.slice, grant.token);
                    let nonce = Millis::new(1);
                    self.send(Up::Confirm { lease, slice, token, nonce }).await;
                    let held = vec![Held { lease, slice, token, used, unused: Millis::ZERO }];
                    self.send(Up::Renew { nonce, held }).await;
                    let outcome = GuestOutcome::Exited { code: 0 };
                    self.send(Up::Stopped { lease, slice, token, used, outcome }).await;
                }
                Down::Stop { lease, slice, token, .. } => {
                    let outcome = GuestOutcome::Stopped;
                    self.send(Up::Stopped { lease, slice, token, used, outcome }).await;
                }
                Down::Ended { slice, .. } => {
                    let generation = generations.entry(slice).or_default();
                    *generation += 1;
                    let again = offer(slice, *generation, self.boot);
                    self.send(Up::Offer(again)).await;
                }
                Down::Activated { .. }
                | Down::Renewed { .. }
                | Down::Resync
                | Down::OfferAgain { .. }
                | Down::Workload { .. } => {}
            }
        }
    }
}
