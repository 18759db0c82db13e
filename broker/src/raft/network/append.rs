//! Entries to a follower: several requests on the way at once, answered in order.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use futures::{Stream, StreamExt};
use openraft::base::BoxStream;
use openraft::errors::RPCError;
use openraft::raft::{AppendEntriesRequest, StreamAppendError, StreamAppendResult};
use tokio::time::Instant;

use super::super::wire::{TypeConfig, from_wal};
use super::messages::{Append, Appended, Message, log_id};
use super::peer::{Peer, broken, unreachable};

/// Requests on the way to a follower at once.
const WINDOW: usize = 16;
/// Bytes on the way to a follower, above which no further request is sent.
const WINDOW_BYTES: usize = 8 * 1_024 * 1_024;
/// How long the oldest request on the way is waited for: a follower's disk may be slow for a while.
const PATIENCE: Duration = Duration::from_secs(5);

/// One run of requests. It ends with the first refusal.
struct Session<'s, S> {
    peer: &'s mut Peer,
    input: S,
    number: u64,
    /// When each request on the way was sent, and its size in bytes.
    on_the_way: VecDeque<(Instant, usize)>,
    is_drained: bool,
}

/// The answers to the requests of `input`.
///
/// # Errors
/// The peer cannot be reached.
pub(super) async fn stream<'s, S>(
    peer: &'s mut Peer,
    input: S,
) -> Result<
    BoxStream<'s, Result<StreamAppendResult<TypeConfig>, RPCError<TypeConfig>>>,
    RPCError<TypeConfig>,
>
where
    S: Stream<Item = AppendEntriesRequest<TypeConfig>> + Send + Unpin + 'static,
{
    peer.open().await.map_err(|error| unreachable(&error))?;
    let number = peer.next_number();
    let session = Session { peer, input, number, on_the_way: VecDeque::new(), is_drained: false };
    let answers = futures::stream::unfold(session, |mut session| async move {
        match session.next().await {
            Ok(Some(Ok(matching))) => Some((Ok(Ok(matching)), session)),
            Ok(Some(Err(refusal))) => {
                session.end();
                Some((Ok(Err(refusal)), session))
            }
            Ok(None) => None,
            Err(error) => {
                session.end();
                session.peer.close();
                Some((Err(broken(&error)), session))
            }
        }
    });
    Ok(Box::pin(answers))
}

/// What a session does next.
enum Step {
    Request(Option<AppendEntriesRequest<TypeConfig>>),
    Answer(io::Result<Message>),
    Late,
}

impl<S> Session<'_, S>
where
    S: Stream<Item = AppendEntriesRequest<TypeConfig>> + Send + Unpin,
{
    /// Nothing more is sent or awaited.
    fn end(&mut self) {
        self.is_drained = true;
        self.on_the_way.clear();
    }

    /// The next answer; nothing once all have been given.
    async fn next(&mut self) -> io::Result<Option<StreamAppendResult<TypeConfig>>> {
        loop {
            if self.is_drained && self.on_the_way.is_empty() {
                return Ok(None);
            }
            match self.step().await? {
                Step::Request(None) => self.is_drained = true,
                Step::Request(Some(request)) => self.send(request).await?,
                Step::Answer(message) => {
                    if let Some(answer) = self.on_answer(&message?) {
                        return Ok(Some(answer));
                    }
                }
                Step::Late => return Err(io::ErrorKind::TimedOut.into()),
            }
        }
    }

    async fn step(&mut self) -> io::Result<Step> {
        let bytes: usize = self.on_the_way.iter().map(|(_, bytes)| bytes).sum();
        let has_room = self.on_the_way.len() < WINDOW && bytes < WINDOW_BYTES;
        let oldest = self.on_the_way.front().map(|(sent, _)| *sent);
        let (is_drained, input) = (self.is_drained, &mut self.input);
        let frames = self.peer.frames()?;
        let late = async {
            match oldest {
                Some(sent) => tokio::time::sleep_until(sent + PATIENCE).await,
                None => std::future::pending().await,
            }
        };
        Ok(tokio::select! {
            biased;
            // Also with nothing on the way: then it is the end of the connection, or an answer to
            // what was given up.
            answer = frames.next() => Step::Answer(answer),
            request = input.next(), if has_room && !is_drained => Step::Request(request),
            () = late => Step::Late,
        })
    }

    async fn send(&mut self, request: AppendEntriesRequest<TypeConfig>) -> io::Result<()> {
        let append = Append::of(request)?;
        let bytes = append.bytes();
        let message = Message::Append { session: self.number, append };
        self.on_the_way.push_back((Instant::now(), bytes));
        self.peer.frames()?.send_within(&message, PATIENCE).await
    }

    /// The answer, if it is one of this session.
    fn on_answer(&mut self, message: &Message) -> Option<StreamAppendResult<TypeConfig>> {
        let Message::Appended { session, appended } = message else { return None };
        if *session != self.number {
            return None;
        }
        self.on_the_way.pop_front();
        Some(match *appended {
            Appended::UpTo(at) => Ok(log_id(at)),
            Appended::Conflict(at) => Err(StreamAppendError::Conflict(from_wal(&at))),
            Appended::HigherVote(vote) => Err(StreamAppendError::HigherVote(vote.into())),
        })
    }
}
