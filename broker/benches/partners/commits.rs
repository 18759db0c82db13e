//! B6: durable commits of 200 bytes on three brokers, beside etcd with three members and the disk.
//!
//! Both are three processes that talk over loopback TCP without TLS and fsync on a quorum before
//! they acknowledge, and a client in a fourth process with 64 commands in flight over eight
//! connections to the one that leads. Both apply a command before they acknowledge it: etcd to its
//! index and its B+ tree, the broker's replication to a hash table. What differs: etcd is asked by
//! gRPC, the broker by bare frames, as its own link and API are not part of this figure.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::{SinkExt, StreamExt as _};
use tokio::task::JoinSet;
use tokio_util::bytes::Bytes;

use crate::Asked;
use crate::etcd::{self, Etcd};
use crate::node::{Brokers, Connection, KEY, key_of};
use crate::report::{self, Measured};
use crate::{floor, load, processes};

/// Bytes of a command or value.
const BYTES: usize = 200;
/// Commands that wait for their acknowledgement at once.
const IN_FLIGHT: usize = 64;
const CONNECTIONS: usize = 8;
/// Different keys, so that neither store grows without end.
const KEYS: u64 = 10_000;
/// How long one side is measured at a time.
const TIME: Duration = Duration::from_secs(4);
/// What is not counted at the beginning.
const WARM_UP: Duration = Duration::from_millis(500);
/// What is aimed at: this many times etcd's rate.
const TARGET: f64 = 8.0;

/// Measures in turns and prints.
///
/// # Errors
/// A process does not start or breaks off.
pub(crate) async fn compare(asked: &Asked) -> anyhow::Result<()> {
    println!("B6: durable commits of {BYTES} B, three brokers, {IN_FLIGHT} in flight");
    let folder = processes::folder()?;
    let etcd = match asked.leaves_out("etcd") {
        true => None,
        false => Some(Etcd::start(folder.path()).await?),
    };
    let brokers = Brokers::start(folder.path()).await?;
    let (mut bare, mut ours, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..asked.rounds {
        bare.push(floor::measure(folder.path(), IN_FLIGHT, BYTES, Duration::from_secs(1))?);
        ours.push(on_brokers(brokers.clients(CONNECTIONS).await?).await?);
        if let Some(etcd) = &etcd {
            theirs.push(on_etcd(etcd.clients(CONNECTIONS).await?).await?);
        }
    }
    report::load("at the end");
    let floor = report::rounds("bare fdatasync, 64 a batch", &bare);
    let ours = report::rounds("three brokers", &ours);
    println!("  of the bare disk: {:.2}", ours / floor);
    match etcd {
        Some(_) => {
            let theirs = report::rounds("etcd, three members", &theirs);
            println!("  {}", Etcd::version().await?);
            report::ratio(ours, theirs, TARGET);
        }
        None => println!("  etcd was left out: nothing is compared"),
    }
    Ok(())
}

/// Puts, each after the acknowledgement of the one before it, `IN_FLIGHT` at once.
async fn on_etcd(connections: Vec<etcd::Client>) -> anyhow::Result<Measured> {
    let next = Arc::new(AtomicU64::new(0));
    let clients = (0..IN_FLIGHT).map(|number| {
        let (next, client) = (Arc::clone(&next), connections[number % CONNECTIONS].clone());
        move || {
            let (key, client) = (next.fetch_add(1, Ordering::Relaxed) % KEYS, client.clone());
            async move { client.put(&key.to_be_bytes(), &[b'x'; BYTES]).await }
        }
    });
    load::run(clients.collect(), TIME).await
}

/// As many commands at once over as many connections, each with its share of them in flight.
async fn on_brokers(connections: Vec<Connection>) -> anyhow::Result<Measured> {
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    for (number, connection) in (0..).zip(connections) {
        tasks.spawn(on_connection(connection, number * KEYS, begun));
    }
    let mut times = Vec::new();
    while let Some(done) = tasks.join_next().await {
        times.extend(done??);
    }
    Measured::of(times, TIME)
}

async fn on_connection(
    mut connection: Connection,
    first: u64,
    begun: Instant,
) -> anyhow::Result<Vec<Duration>> {
    let share = u64::try_from(IN_FLIGHT / CONNECTIONS)?;
    let command = |key: u64| {
        let mut bytes = key.to_be_bytes().to_vec();
        bytes.resize(KEY + BYTES, b'x');
        Bytes::from(bytes)
    };
    // The key tells which of those in flight is answered: each has keys of its own.
    let mut asked = [Instant::now(); IN_FLIGHT / CONNECTIONS];
    for key in first..first + share {
        connection.feed(command(key)).await?;
    }
    SinkExt::<Bytes>::flush(&mut connection).await?;
    let mut times = Vec::new();
    while begun.elapsed() < WARM_UP + TIME {
        let Some(mut answer) = connection.next().await else {
            anyhow::bail!("a broker closed its connection");
        };
        loop {
            let key = key_of(&answer?)?;
            let place = usize::try_from((key - first) % share)?;
            if begun.elapsed() >= WARM_UP {
                times.push(asked[place].elapsed());
            }
            asked[place] = Instant::now();
            // The same place again: its keys differ by multiples of the share.
            let follows = first + (key - first + share) % (KEYS / share * share);
            connection.feed(command(follows)).await?;
            match futures::FutureExt::now_or_never(connection.next()) {
                Some(Some(more)) => answer = more,
                Some(None) | None => break,
            }
        }
        SinkExt::<Bytes>::flush(&mut connection).await?;
    }
    Ok(times)
}
