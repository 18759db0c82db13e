//! Questions of a follower to its leader: many at once over one connection.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::frame::{Sink, Source};
use super::hello::Purpose;
use super::messages::{Message, Question, Reply};
use super::pauses::is_refusal;
use super::peer::Site;

/// Questions to one leader that wait to be sent.
const WAITING_MAX: usize = 1_024;
/// Questions to one leader that wait for their answer.
const ASKED_MAX: usize = 1_024;
/// An unused connection is closed after this long.
const IDLE: Duration = Duration::from_secs(120);
/// How long a leader may leave a question unread.
const STALL: Duration = Duration::from_secs(10);

/// The answer that is being made to a question of the layer above.
pub type Asked = Pin<Box<dyn Future<Output = Vec<u8>> + Send>>;

/// Answers questions of followers, on the leader or on whom they take for it.
#[derive(Clone)]
pub struct AskHandler(Arc<dyn Fn(Vec<u8>) -> Asked + Send + Sync>);

impl AskHandler {
    /// Answers by `answer`, which gets the question's bytes and gives the answer's.
    pub fn new(answer: impl Fn(Vec<u8>) -> Asked + Send + Sync + 'static) -> Self {
        Self(Arc::new(answer))
    }

    /// Answers every question with no bytes at all.
    #[must_use]
    pub fn mute() -> Self {
        Self::new(|_| Box::pin(std::future::ready(Vec::new())))
    }

    pub(super) fn answer(&self, question: Vec<u8>) -> Asked {
        (self.0)(question)
    }
}

impl fmt::Debug for AskHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AskHandler")
    }
}

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Missed {
    /// The leader was not reached: it does not know of the question.
    NotSent,
    /// Too many questions wait. It was not sent.
    Busy,
    /// It may have been heard.
    Unknown,
}

/// A question that waits.
struct Waiting {
    question: Question,
    told: oneshot::Sender<Result<Reply, Missed>>,
}

/// Asks leaders. Keeps a connection to each node that it asked lately.
pub(in super::super) struct Asker {
    site: Arc<Site>,
    /// By node and address: a node may move.
    lines: Mutex<BTreeMap<(u64, String), mpsc::Sender<Waiting>>>,
}

impl Asker {
    pub(in super::super) fn new(site: Arc<Site>) -> Self {
        Self { site, lines: Mutex::default() }
    }

    /// Asks `node` at `address`. Waits for the answer; the caller sets the time.
    ///
    /// # Errors
    /// [`Missed`] says whether the question may have been heard.
    pub(in super::super) async fn ask(
        &self,
        node: u64,
        address: &str,
        question: Question,
    ) -> Result<Reply, Missed> {
        let (told, answer) = oneshot::channel();
        let line = self.line(node, address);
        line.try_send(Waiting { question, told }).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => Missed::Busy,
            mpsc::error::TrySendError::Closed(_) => Missed::NotSent,
        })?;
        answer.await.unwrap_or(Err(Missed::Unknown))
    }

    /// Greets `node` at `address` and hangs up.
    ///
    /// # Errors
    /// Whether it is a refusal, and what was said.
    pub(in super::super) async fn meet(
        &self,
        node: u64,
        address: &str,
    ) -> Result<(), (bool, String)> {
        let met = self.site.dial(node, address, Purpose::Questions).await;
        met.map(drop).map_err(|error| (is_refusal(&error), error.to_string()))
    }

    pub(in super::super) fn is_removed(&self) -> bool {
        self.site.is_removed()
    }

    fn line(&self, node: u64, address: &str) -> mpsc::Sender<Waiting> {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.retain(|(other, at), line| {
            !line.is_closed() && (*other != node || at.as_str() == address)
        });
        let key = (node, address.to_owned());
        let line = lines.entry(key).or_insert_with(|| {
            let (sender, waiting) = mpsc::channel(WAITING_MAX);
            let (site, address) = (Arc::clone(&self.site), address.to_owned());
            tokio::spawn(async move { keep(&site, node, &address, waiting).await });
            sender
        });
        line.clone()
    }
}

/// Serves the questions to one node until nobody can ask any more.
async fn keep(site: &Site, node: u64, address: &str, mut waiting: mpsc::Receiver<Waiting>) {
    while let Some(first) = waiting.recv().await {
        match site.dial(node, address, Purpose::Questions).await {
            Ok(frames) => {
                let (source, sink) = frames.split();
                converse(source, sink, first, &mut waiting).await;
            }
            Err(_told) => {
                // Whoever has asked meanwhile need not wait for the same once more.
                let mut next = Some(first);
                while let Some(Waiting { told, .. }) = next {
                    drop(told.send(Err(Missed::NotSent)));
                    next = waiting.try_recv().ok();
                }
            }
        }
    }
}

/// Carries questions and answers until the connection breaks or nobody asks.
async fn converse(
    mut source: Source,
    mut sink: Sink,
    first: Waiting,
    waiting: &mut mpsc::Receiver<Waiting>,
) {
    let mut asked: BTreeMap<u64, oneshot::Sender<Result<Reply, Missed>>> = BTreeMap::new();
    let mut call = 0;
    let mut next = Some(first);
    let ended: io::Result<()> = loop {
        if let Some(Waiting { question, told }) = next.take() {
            call += 1;
            let message = Message::Ask { call, question };
            asked.insert(call, told);
            if let Err(error) = sink.send_within(&message, STALL).await {
                break Err(error);
            }
        }
        // Those whose askers have gone need no room.
        if asked.len() >= ASKED_MAX {
            asked.retain(|_, told| !told.is_closed());
        }
        tokio::select! {
            message = source.next() => match message {
                Ok(Message::Answer { call, reply }) => {
                    if let Some(told) = asked.remove(&call) {
                        drop(told.send(Ok(reply)));
                    }
                }
                Ok(_other) => break Err(io::ErrorKind::InvalidData.into()),
                Err(error) => break Err(error),
            },
            more = waiting.recv(), if asked.len() < ASKED_MAX => match more {
                Some(more) => next = Some(more),
                None => break Ok(()),
            },
            () = tokio::time::sleep(IDLE), if asked.is_empty() => break Ok(()),
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, left = asked.len(), "the connection to the leader broke");
    }
    for (_, told) in asked {
        drop(told.send(Err(Missed::Unknown)));
    }
}
