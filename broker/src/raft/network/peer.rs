//! What consensus says to one peer, and the connection that carries it.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures::{Stream, StreamExt};
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{Backoff, RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendResult,
    TransferLeaderRequest, TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::type_config::alias::{SnapshotOf, VoteOf};
use openraft::{OptionalSend, base::BoxFuture, base::BoxStream};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::super::options::Options;
use super::super::snapshots::StoredSnapshot;
use super::super::types::{Endpoint, Machine};
use super::super::wire::{TypeConfig, to_wal};
use super::append;
use super::frame::Frames;
use super::hello::{self, Purpose, Us};
use super::identity::Identity;
use super::messages::{Candidacy, Canvass, Message, log_id};
use super::pauses::{Pauses, Told, is_refusal};
use super::transfer;

/// How long connecting may take, the handshake and the greeting included.
const CONNECT: Duration = Duration::from_secs(5);
/// How long a call waits for a connection that is being made.
const CONNECT_WAIT: Duration = Duration::from_secs(2);
/// The pauses between attempts to reach a peer begin with the first and end with the last.
const PAUSES: [Duration; 5] = [
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(400),
    Duration::from_millis(800),
    Duration::from_millis(1_000),
];

/// Who this node is among its peers.
pub(in super::super) struct Site {
    pub(super) us: Us,
    pub(super) identity: Identity,
    /// What was logged lately about each peer, and about each address that called.
    pub(super) told: Told,
    pauses: Pauses,
    /// Knows of which cell this is, and who belonged to it.
    pub(super) machine: Arc<dyn Machine>,
    /// Whether a broker of the cell has said that this one was taken out.
    removed: AtomicBool,
}

impl Site {
    pub(in super::super) fn new(
        options: &Options,
        identity: Identity,
        machine: Arc<dyn Machine>,
    ) -> Self {
        let (cell, node, level) = (options.cell.clone(), options.node_id, options.feature_level);
        let us = Us { cell, node, level };
        let pauses = Pauses::new(options.chance.clone());
        let removed = AtomicBool::new(false);
        Self { us, identity, told: Told::default(), pauses, machine, removed }
    }

    pub(super) fn is_removed(&self) -> bool {
        self.removed.load(Ordering::SeqCst)
    }

    /// Logs that a peer cannot be reached or does not want us, unless that was just logged.
    fn tell(&self, peer: u64, address: &str, error: &io::Error) {
        let Some(repeated) = self.told.again(&peer.to_string(), error, Instant::now()) else {
            return;
        };
        if is_refusal(error) {
            tracing::error!(peer, address, %error, repeated, "a broker cannot be talked to");
        } else {
            tracing::warn!(peer, address, %error, repeated, "a broker cannot be reached");
        }
    }

    /// A peer has reached this node: it may be reached itself.
    pub(super) fn called(&self, peer: u64) {
        self.pauses.reached(peer);
    }

    /// A peer was reached: trouble with it is news again.
    fn reached(&self, peer: u64) {
        self.pauses.reached(peer);
        if self.told.is_over(&peer.to_string()) {
            tracing::info!(peer, "a broker is reached again");
        }
    }

    /// Connects to broker `to` at `address` and greets it, after a pause if that failed lately. A
    /// question is not kept waiting where it is known that it would be refused.
    ///
    /// # Errors
    /// What the system, TLS or the other side said; `TimedOut` if it took more than five seconds.
    pub(super) async fn dial(
        &self,
        to: u64,
        address: &str,
        purpose: Purpose,
    ) -> io::Result<Frames> {
        let (whom, version) = ((to, address.to_owned()), self.identity.version());
        match purpose {
            Purpose::Consensus => self.pauses.turn(&whom, version).await,
            Purpose::Questions => {
                let refusal = self.pauses.refusal(&whom, version, Instant::now());
                refusal.map_or(Ok(()), Err)?;
            }
        }
        // They may have been read again while it waited.
        let version = self.identity.version();
        let dialled = tokio::time::timeout(CONNECT, self.dial_untimed(to, address, purpose)).await;
        let dialled = dialled.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        match &dialled {
            Ok(_) => self.reached(to),
            Err(error) => {
                if hello::says_removed(error) {
                    self.removed.store(true, Ordering::SeqCst);
                }
                self.pauses.failed(&whom, version, error, Instant::now());
                self.tell(to, address, error);
            }
        }
        dialled
    }

    async fn dial_untimed(&self, to: u64, address: &str, purpose: Purpose) -> io::Result<Frames> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let mut frames = self.identity.connect(stream, to).await?;
        hello::greet(&mut frames, &self.us, self.machine.origin(), (to, purpose)).await?;
        Ok(frames)
    }
}

/// Makes the clients that openraft asks for.
#[derive(Clone)]
pub(in super::super) struct Network {
    /// Nothing in a cell of one node.
    pub(in super::super) site: Option<Arc<Site>>,
    /// Hands out the pieces that go with a snapshot.
    pub(in super::super) machine: Arc<dyn Machine>,
}

impl RaftNetworkFactory<TypeConfig> for Network {
    type Network = Peer;

    async fn new_client(&mut self, target: u64, node: &Endpoint) -> Peer {
        Peer {
            target,
            address: node.peer.clone(),
            site: self.site.clone(),
            machine: Arc::clone(&self.machine),
            link: Link::Closed,
            number: 0,
        }
    }
}

/// A connection, or the way to one.
enum Link {
    Closed,
    Opening(JoinHandle<io::Result<Frames>>),
    Open(Frames),
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Self::Opening(task) = self {
            task.abort();
        }
    }
}

/// The way to one peer. Each has a connection of its own, made when it is first needed: openraft
/// keeps one for entries, one for heartbeats, and one for each vote and each snapshot, so that
/// none of them waits behind another.
pub(in super::super) struct Peer {
    pub(super) target: u64,
    address: String,
    site: Option<Arc<Site>>,
    pub(super) machine: Arc<dyn Machine>,
    link: Link,
    /// Of the last call or session.
    number: u64,
}

impl Peer {
    /// The number of the next call or session.
    pub(super) fn next_number(&mut self) -> u64 {
        self.number = self.number.wrapping_add(1);
        self.number
    }

    /// The open connection; makes one if there is none. Giving the call up does not give up the
    /// connection that is being made.
    ///
    /// # Errors
    /// Why there is none, or `TimedOut` if it takes long.
    pub(super) async fn open(&mut self) -> io::Result<&mut Frames> {
        let wait = tokio::time::sleep(CONNECT_WAIT);
        let mut wait = pin!(wait);
        loop {
            match &mut self.link {
                Link::Open(_) => break,
                Link::Closed => {
                    let Some(site) = self.site.clone() else {
                        let text = "this node talks to no others: its configuration names none";
                        return Err(io::Error::new(io::ErrorKind::NotConnected, text));
                    };
                    let (to, address) = (self.target, self.address.clone());
                    self.link = Link::Opening(tokio::spawn(async move {
                        site.dial(to, &address, Purpose::Consensus).await
                    }));
                }
                Link::Opening(task) => {
                    let opened = tokio::select! {
                        opened = task => opened.unwrap_or_else(|error| Err(io::Error::other(error))),
                        () = wait.as_mut() => return Err(io::ErrorKind::TimedOut.into()),
                    };
                    self.link = match opened {
                        Ok(frames) => Link::Open(frames),
                        Err(error) => {
                            self.link = Link::Closed;
                            return Err(error);
                        }
                    };
                }
            }
        }
        match &mut self.link {
            Link::Open(frames) => Ok(frames),
            Link::Closed | Link::Opening(_) => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// The open connection, without making one.
    ///
    /// # Errors
    /// `NotConnected`.
    pub(super) fn frames(&mut self) -> io::Result<&mut Frames> {
        match &mut self.link {
            Link::Open(frames) => Ok(frames),
            Link::Closed | Link::Opening(_) => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Gives the connection up: what may still come over it is not wanted.
    pub(super) fn close(&mut self) {
        self.link = Link::Closed;
    }

    /// Asks one thing and waits for its answer, which `pick` finds among the messages.
    async fn call<T>(
        &mut self,
        limit: Duration,
        ask: impl FnOnce(u64) -> Message,
        pick: impl Fn(Message, u64) -> Option<T>,
    ) -> Result<T, RPCError<TypeConfig>> {
        self.open().await.map_err(|error| unreachable(&error))?;
        let number = self.next_number();
        let message = ask(number);
        let exchange = async {
            let frames = self.frames()?;
            frames.send(&message).await?;
            loop {
                if let Some(answer) = pick(frames.next().await?, number) {
                    return Ok(answer);
                }
            }
        };
        let answered = tokio::time::timeout(limit, exchange).await;
        answered.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map_err(|error| {
            self.close();
            broken(&error)
        })
    }

    async fn canvass(
        &mut self,
        canvass: Canvass,
        request: &VoteRequest<TypeConfig>,
        limit: Duration,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        let candidacy = Candidacy::of(canvass, request);
        let ask = |call| Message::Candidacy { call, candidacy };
        self.call(limit, ask, |message, number| match message {
            Message::Voted { call, vote, is_granted, last } if call == number => {
                let vote: VoteOf<TypeConfig> = vote.into();
                Some(VoteResponse::new(vote, log_id(last), is_granted))
            }
            _ => None,
        })
        .await
    }
}

/// The peer cannot be reached: openraft waits a while.
pub(super) fn unreachable(error: &io::Error) -> RPCError<TypeConfig> {
    RPCError::Unreachable(Unreachable::new(error))
}

/// A connection broke: openraft tries again.
pub(super) fn broken(error: &io::Error) -> RPCError<TypeConfig> {
    RPCError::Network(NetworkError::new(error))
}

impl RaftNetworkV2<TypeConfig> for Peer {
    type SnapshotData = StoredSnapshot;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<TypeConfig>, RPCError<TypeConfig>> {
        let one = Box::pin(futures::stream::once(async { rpc }));
        let mut answers = self.stream_append(one, option).await?;
        match answers.next().await {
            Some(answer) => Ok(answer?.into()),
            None => Err(broken(&io::ErrorKind::UnexpectedEof.into())),
        }
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        _option: RPCOption,
    ) -> BoxFuture<
        's,
        Result<
            BoxStream<'s, Result<StreamAppendResult<TypeConfig>, RPCError<TypeConfig>>>,
            RPCError<TypeConfig>,
        >,
    >
    where
        S: Stream<Item = AppendEntriesRequest<TypeConfig>> + OptionalSend + Unpin + 'static,
    {
        Box::pin(append::stream(self, input))
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        self.canvass(Canvass::Vote, &rpc, option.soft_ttl()).await
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        self.canvass(Canvass::Before, &rpc, option.soft_ttl()).await
    }

    async fn full_snapshot(
        &mut self,
        vote: VoteOf<TypeConfig>,
        snapshot: SnapshotOf<TypeConfig, StoredSnapshot>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let sent = tokio::select! {
            closed = cancel => Err(StreamingError::Closed(closed)),
            sent = transfer::send(self, &vote, &snapshot) => sent,
        };
        // One connection carries one snapshot, whatever became of it.
        self.close();
        sent
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<TypeConfig>, RPCError<TypeConfig>> {
        let ask = |call| Message::HandOver {
            call,
            vote: request.from_leader().into(),
            to: *request.to_node_id(),
            last: request.last_log_id().map(to_wal),
        };
        // That the log is not that far yet is told by an election that does not come.
        self.call(option.soft_ttl(), ask, |message, number| match message {
            Message::HandedOver { call, .. } if call == number => Some(Ok(())),
            _ => None,
        })
        .await
    }

    fn backoff(&self) -> Option<Backoff> {
        let last = PAUSES.last().copied().unwrap_or_default();
        Some(Backoff::new(PAUSES.into_iter().chain(std::iter::repeat(last))))
    }
}
