//! The port that peers connect to.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::raft::{StreamAppendError, TransferLeaderRequest};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;

use super::super::facade::Core;
use super::super::fatal::Fatal;
use super::super::reads;
use super::super::snapshots::Snapshots;
use super::super::types::Machine;
use super::super::wire::to_wal;
use super::asks::AskHandler;
use super::frame::{Frames, Sink, Source};
use super::hello::{self, Purpose};
use super::messages::{
    Append, Appended, Ballot, Candidacy, Canvass, Message, Question, Reply, log_id,
};
use super::peer::Site;
use super::receive::{self, Offer};

/// Connections at once: a cell has few brokers, each with a handful.
const CONNECTIONS_MAX: usize = 256;
/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// A connection over which nothing came for so long is closed.
const IDLE: Duration = Duration::from_secs(600);
/// How long a peer may leave an answer unread.
const STALL: Duration = Duration::from_secs(10);
/// Answers of one connection that wait to be sent.
const ANSWERS_MAX: usize = 64;
/// Requests with entries of one connection that wait for consensus.
const APPENDS_MAX: usize = 16;
/// Questions of one connection that are being answered.
const QUESTIONS_MAX: usize = 1_024;
/// Pause after a connection could not be accepted (out of file descriptors).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What peers talk to.
pub(in super::super) struct Host {
    pub(in super::super) site: Arc<Site>,
    pub(in super::super) core: Core,
    pub(in super::super) machine: Arc<dyn Machine>,
    pub(in super::super) snapshots: Arc<Snapshots>,
    pub(in super::super) asks: AskHandler,
    pub(in super::super) fatal: Fatal,
    /// Held while a snapshot is received.
    pub(in super::super) receiving: Mutex<()>,
    /// How long a question may wait for a quorum.
    pub(in super::super) patience: Duration,
}

impl Host {
    /// Whether a node belonged to the cell and does not any more. Who is taken in is a member before
    /// its number is enlisted, and no number is enlisted for two.
    fn has_left(&self, node: u64) -> bool {
        let metrics = self.core.metrics().borrow_watched().clone();
        let members = metrics.membership_config.membership();
        members.get_node(&node).is_none() && self.machine.has_enlisted(node)
    }

    /// Ends the process if storage or the machine failed; what is the sender's fault does not.
    pub(super) fn struck<T>(&self, result: io::Result<T>) -> io::Result<T> {
        if let Err(error) = &result
            && error.kind() != io::ErrorKind::InvalidData
        {
            self.fatal.strike(&format!("a snapshot cannot be taken in: {error}"));
        }
        result
    }
}

/// Accepts connections of peers until it is dropped.
pub(in super::super) async fn serve(listener: TcpListener, host: Arc<Host>) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    loop {
        let next = async {
            let permit = Arc::clone(&room).acquire_owned().await;
            let permit = permit.expect("the semaphore is never closed");
            (permit, listener.accept().await)
        };
        tokio::select! {
            (permit, accepted) = next => match accepted {
                Ok((stream, address)) => {
                    let host = Arc::clone(&host);
                    connections.spawn(async move {
                        let ended = welcome(stream, &host, permit).await;
                        let Err(error) = ended else { return };
                        let whom = address.ip().to_string();
                        match error.kind() {
                            io::ErrorKind::UnexpectedEof
                            | io::ErrorKind::ConnectionReset
                            | io::ErrorKind::BrokenPipe
                            | io::ErrorKind::TimedOut => {
                                tracing::debug!(%address, %error, "a peer's connection ended");
                            }
                            _ => if let Some(repeated) = host.site.told.again(&whom, &error, Instant::now()) {
                                tracing::warn!(
                                    %address, %error, repeated, "a peer was refused or broke off"
                                );
                            },
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "a peer could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn welcome(stream: TcpStream, host: &Host, _room: OwnedSemaphorePermit) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let accepted = tokio::time::timeout(HANDSHAKE, host.site.identity.accept(stream)).await;
    let (mut frames, certified) =
        accepted.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
    let known = hello::Known {
        origin: host.machine.origin(),
        is_certified: |node| certified.is(node),
        is_removed: |node| host.has_left(node),
    };
    let guest = hello::receive(&mut frames, &host.site.us, known).await?;
    // It can talk to us, so we may be able to talk to it.
    host.site.called(guest.node);
    tracing::debug!(peer = guest.node, level = guest.feature_level, "a peer has connected");
    match guest.purpose {
        Purpose::Consensus => consensus(frames, host).await,
        Purpose::Questions => questions(frames, host).await,
    }
}

/// Sends answers in their order until there are no more.
async fn write(mut sink: Sink, mut answers: mpsc::Receiver<Message>) -> io::Result<()> {
    while let Some(answer) = answers.recv().await {
        sink.send_within(&answer, STALL).await?;
    }
    Ok(())
}

async fn next(source: &mut Source) -> io::Result<Message> {
    let next = tokio::time::timeout(IDLE, source.next()).await;
    next.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Entries, votes and snapshots from a peer.
async fn consensus(frames: Frames, host: &Host) -> io::Result<()> {
    let (mut source, sink) = frames.split();
    let (answers, waiting) = mpsc::channel(ANSWERS_MAX);
    let mut tasks = JoinSet::new();
    let mut writer = pin!(write(sink, waiting));
    let mut session: Option<(u64, mpsc::Sender<Append>)> = None;
    loop {
        let message = tokio::select! {
            message = next(&mut source) => message?,
            written = writer.as_mut() => return written,
        };
        let handled = async {
            match message {
                Message::Append { session: number, append } => {
                    if session.as_ref().is_none_or(|(known, _)| *known != number) {
                        session = Some((number, begin(host, number, &answers, &mut tasks)));
                    }
                    let Some((_, sender)) = &session else { return Ok(()) };
                    // A session that was refused takes no more; its sender knows by then.
                    drop(sender.send(append).await);
                    Ok(())
                }
                Message::Candidacy { call, candidacy } => {
                    let voted = vote(host, call, candidacy).await?;
                    answer(&answers, voted).await
                }
                Message::HandOver { call, vote, to, last } => {
                    let request = TransferLeaderRequest::new(vote.into(), to, log_id(last));
                    let handed = host.core.handle_transfer_leader(request).await;
                    let is_accepted = matches!(handed, Ok(Ok(())));
                    answer(&answers, Message::HandedOver { call, is_accepted }).await
                }
                Message::Offer { call, vote, at, bytes, pieces } => {
                    let offer = Offer { call, vote, at, bytes, pieces };
                    receive::receive(host, &mut source, &answers, offer).await
                }
                _other => Err(io::Error::new(io::ErrorKind::InvalidData, "an unasked answer")),
            }
        };
        let handled = tokio::select! {
            handled = handled => handled,
            written = writer.as_mut() => return written,
        };
        if let Err(error) = handled {
            // What was said last still goes out, so that the other side learns why.
            tasks.shutdown().await;
            drop((answers, session));
            writer.await?;
            return Err(error);
        }
        while tasks.try_join_next().is_some() {}
    }
}

async fn answer(answers: &mpsc::Sender<Message>, message: Message) -> io::Result<()> {
    answers.send(message).await.map_err(|_| io::ErrorKind::BrokenPipe.into())
}

/// Begins a session of entries. What is sent into it reaches consensus in order, without waiting for
/// what is before it; the answers come in the same order.
fn begin(
    host: &Host,
    session: u64,
    answers: &mpsc::Sender<Message>,
    tasks: &mut JoinSet<()>,
) -> mpsc::Sender<Append> {
    let (sender, appends) = mpsc::channel::<Append>(APPENDS_MAX);
    let requests = ReceiverStream::new(appends)
        // What cannot be read ends the session, and so the connection: its sender gets no answer.
        .map(|append| append.request())
        .take_while(|request| std::future::ready(request.is_ok()))
        .filter_map(|request| std::future::ready(request.ok()));
    let results = host.core.stream_append(requests);
    let answers = answers.clone();
    tasks.spawn(async move {
        let mut results = pin!(results);
        while let Some(result) = results.next().await {
            let appended = match result {
                Ok(Ok(matching)) => Appended::UpTo(matching.as_ref().map(to_wal)),
                Ok(Err(StreamAppendError::Conflict(at))) => Appended::Conflict(to_wal(&at)),
                Ok(Err(StreamAppendError::HigherVote(vote))) => {
                    Appended::HigherVote(Ballot::from(&vote))
                }
                Err(_stopped) => return,
            };
            if answers.send(Message::Appended { session, appended }).await.is_err() {
                return;
            }
        }
    });
    sender
}

async fn vote(host: &Host, call: u64, candidacy: Candidacy) -> io::Result<Message> {
    let request = candidacy.request();
    let response = match candidacy.canvass {
        Canvass::Before => host.core.pre_vote(request).await,
        Canvass::Vote => host.core.vote(request).await,
    };
    let response = response.map_err(io::Error::other)?;
    Ok(Message::Voted {
        call,
        vote: Ballot::from(&response.vote),
        is_granted: response.vote_granted,
        last: response.last_log_id.as_ref().map(to_wal),
    })
}

/// Questions of a follower.
async fn questions(frames: Frames, host: &Host) -> io::Result<()> {
    let (mut source, sink) = frames.split();
    let (answers, waiting) = mpsc::channel(ANSWERS_MAX);
    let mut writer = pin!(write(sink, waiting));
    let mut asked = JoinSet::new();
    loop {
        let has_room = asked.len() < QUESTIONS_MAX;
        tokio::select! {
            message = next(&mut source), if has_room => match message? {
                Message::Ask { call, question } => {
                    let (core, asks) = (host.core.clone(), host.asks.clone());
                    let (answers, patience) = (answers.clone(), host.patience);
                    asked.spawn(async move {
                        let reply = reply(&core, &asks, question, patience).await;
                        // Whoever asked may have gone.
                        drop(answers.send(Message::Answer { call, reply }).await);
                    });
                }
                _other => return Err(io::ErrorKind::InvalidData.into()),
            },
            Some(_) = asked.join_next() => {}
            written = writer.as_mut() => return written,
        }
    }
}

async fn reply(core: &Core, asks: &AskHandler, question: Question, patience: Duration) -> Reply {
    match question {
        Question::ReadIndex => match reads::read_index(core, patience).await {
            Ok(at) => Reply::ReadIndex((at.term, at.index)),
            Err(super::super::Error::NotLeader { leader }) => Reply::NotLeader(leader),
            Err(super::super::Error::NoQuorum) => Reply::NoQuorum,
            Err(_stopped) => Reply::Stopping,
        },
        Question::Above(bytes) => Reply::Above(asks.answer(bytes.into_vec()).await.into()),
    }
}
