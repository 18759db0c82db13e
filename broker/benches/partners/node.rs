//! One of three brokers' replication, in a process of its own: the product's log, proposer and
//! network, under a machine that keeps the last value of each key.
//!
//! A client sends frames of a length and a command, whose first eight bytes are its key; the answer
//! is the key, once the command is fsynced by a quorum and applied here.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, bail};
use futures::stream::FuturesUnordered;
use futures::{SinkExt as _, StreamExt as _};
use sublet_broker::raft::{
    Applied, AskHandler, Begin, Endpoint, Identity, LogPosition, Machine, MachineError, Options,
    Peers, Raft, Security,
};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio_util::bytes::{Bytes, BytesMut};
use tokio_util::codec::{Framed, LengthDelimitedCodec};

use crate::processes::{free_port, listening, start};

/// The first argument of a process that is a broker.
pub(crate) const WORD: &str = "node";

const CELL: &str = "partners";
/// How long a broker may take until it is taken in.
const PATIENCE: Duration = Duration::from_secs(20);
/// Bytes of a key, which a command begins with.
pub(crate) const KEY: usize = 8;

/// The last value of each key.
#[derive(Default)]
struct Values(Mutex<HashMap<[u8; KEY], Vec<u8>>>);

impl Machine for Values {
    fn apply(&self, _at: LogPosition, commands: &[Vec<u8>]) -> Result<Applied, MachineError> {
        let mut values = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut replies = Vec::with_capacity(commands.len());
        for command in commands {
            let (key, value) = command
                .split_first_chunk()
                .ok_or_else(|| MachineError::new("a command without a key"))?;
            values.insert(*key, value.to_vec());
            replies.push(key.to_vec());
        }
        Ok(Applied { replies, sealed: None })
    }

    fn restore(&self, _at: LogPosition, _snapshot: &[u8]) -> Result<(), MachineError> {
        Err(MachineError::new("no snapshot is ever taken"))
    }
}

/// Three brokers; they end when this is dropped. The first leads.
pub(crate) struct Brokers {
    _children: Vec<Child>,
    leader: SocketAddr,
}

impl Brokers {
    /// Starts three below `folder`.
    ///
    /// # Errors
    /// One does not come up.
    pub(crate) async fn start(folder: &Path) -> anyhow::Result<Self> {
        let leader = free_port()?;
        let peers = [free_port()?, free_port()?, free_port()?];
        let mut children = Vec::new();
        // The first takes the others in, so they are there before it.
        for id in [3, 2, 1] {
            let log = folder.join(format!("broker-{id}.log"));
            let mut command = Command::new(std::env::current_exe()?);
            command.arg(WORD).arg(id.to_string()).arg(folder.join(format!("broker-{id}")));
            command.arg(leader.to_string()).args(peers.map(|peer| peer.to_string()));
            let mut child = start(&mut command, &log)?;
            let wanted = if id == 1 { leader } else { peers[id - 1] };
            listening(&mut child, wanted, &log).await?;
            children.push(child);
        }
        Ok(Self { _children: children, leader })
    }

    /// `count` connections to the broker that leads.
    ///
    /// # Errors
    /// It does not take them.
    pub(crate) async fn clients(&self, count: usize) -> anyhow::Result<Vec<Connection>> {
        let mut clients = Vec::new();
        for _ in 0..count {
            clients.push(connection(TcpStream::connect(self.leader).await?)?);
        }
        Ok(clients)
    }
}

/// Frames to or from a broker.
pub(crate) type Connection = Framed<TcpStream, LengthDelimitedCodec>;

fn connection(stream: TcpStream) -> anyhow::Result<Connection> {
    stream.set_nodelay(true)?;
    Ok(Framed::new(stream, LengthDelimitedCodec::new()))
}

/// Is one broker until its standard input ends.
///
/// # Errors
/// It cannot start.
pub(crate) async fn run(mut arguments: impl Iterator<Item = String>) -> anyhow::Result<()> {
    let mut next = || arguments.next().context("too few arguments for a node");
    let (id, folder, clients): (u64, _, SocketAddr) = (next()?.parse()?, next()?, next()?.parse()?);
    let mut peers: Vec<SocketAddr> = Vec::new();
    for _ in 0..3 {
        peers.push(next()?.parse()?);
    }
    let own = usize::try_from(id.saturating_sub(1))?;
    let listen = *peers.get(own).context("a node of no number")?;
    let mut options = Options::new(folder, CELL, id);
    options.begin = if id == 1 { Begin::Found } else { Begin::Wait };
    options.peers = Some(Peers {
        listen,
        endpoint: endpoint(listen),
        identity: Identity::load(&Security::Plain, CELL, id)?,
        asks: AskHandler::new(|question| Box::pin(std::future::ready(question))),
    });
    let raft = Raft::open(options, Arc::new(Values::default())).await?;
    if id == 1 {
        for (other, listen) in (2..).zip(&peers[1..]) {
            raft.add_member(other, endpoint(*listen), PATIENCE).await?;
        }
        let listener = TcpListener::bind(clients).await?;
        let raft = raft.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(raft.clone(), stream));
            }
        });
    }
    tokio::task::spawn_blocking(|| std::io::read_to_string(std::io::stdin())).await??;
    raft.shutdown().await;
    Ok(())
}

fn endpoint(listen: SocketAddr) -> Endpoint {
    Endpoint { peer: listen.to_string(), api: String::new() }
}

/// Proposes what comes over one connection and answers in the order of the commits.
async fn serve(raft: Raft, stream: TcpStream) -> anyhow::Result<()> {
    let (mut answers, mut commands) = connection(stream)?.split();
    let mut proposed = FuturesUnordered::new();
    loop {
        tokio::select! {
            command = commands.next() => match command {
                Some(command) => proposed.push(raft.propose(command?.to_vec())),
                None => return Ok(()),
            },
            Some(outcome) = proposed.next(), if !proposed.is_empty() => {
                let (_, reply) = outcome?;
                answers.feed(Bytes::from(reply)).await?;
                // Those that were committed together are answered together.
                while let Some(Some(outcome)) = futures::FutureExt::now_or_never(proposed.next()) {
                    answers.feed(Bytes::from(outcome?.1)).await?;
                }
                answers.flush().await?;
            }
        }
    }
}

/// The key that an answer is for.
///
/// # Errors
/// It is no key.
pub(crate) fn key_of(answer: &BytesMut) -> anyhow::Result<u64> {
    match answer.first_chunk::<KEY>() {
        Some(key) if answer.len() == KEY => Ok(u64::from_be_bytes(*key)),
        _ => bail!("an answer of {} bytes", answer.len()),
    }
}
