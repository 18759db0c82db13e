//! How many proposals a second the log takes on this disk. Prints, asserts nothing.
//!
//! `cargo run --release -p sublet-broker --example raft_speed`
#![allow(clippy::unwrap_used, clippy::as_conversions, missing_docs, reason = "a measurement")]

use std::io::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sublet_broker::raft::{Applied, LogPosition, Machine, MachineError, Options, Raft};

/// Applies nothing and answers at once: what is measured is the log.
struct Nothing;

impl Machine for Nothing {
    fn apply(&self, _at: LogPosition, commands: &[Vec<u8>]) -> Result<Applied, MachineError> {
        Ok(Applied { replies: vec![Vec::new(); commands.len()], sealed: None })
    }

    fn restore(&self, _at: LogPosition, _snapshot: &[u8]) -> Result<(), MachineError> {
        Ok(())
    }
}

async fn measure(in_flight: usize) {
    // Beside the binary: the temporary folder may be in memory.
    let binary = std::env::current_exe().unwrap();
    let folder = tempfile::tempdir_in(binary.parent().unwrap()).unwrap();
    let options = Options::new(folder.path(), "speed", 1);
    let raft = Raft::open(options, Arc::new(Nothing)).await.unwrap();
    let begun = Instant::now();
    let workers = (0..in_flight).map(|_| {
        let raft = raft.clone();
        tokio::spawn(async move {
            let mut times = Vec::new();
            while begun.elapsed() < Duration::from_secs(2) {
                let asked = Instant::now();
                raft.propose(vec![b'x'; 200]).await.unwrap();
                times.push(asked.elapsed());
            }
            times
        })
    });
    let mut times: Vec<Duration> = Vec::new();
    for worker in futures::future::join_all(workers).await {
        times.extend(worker.unwrap());
    }
    times.sort();
    let rate = times.len() as f64 / begun.elapsed().as_secs_f64();
    let (middle, high) = (times[times.len() / 2], times[times.len() * 99 / 100]);
    let mut out = std::io::stdout();
    writeln!(out, "{in_flight:5} in flight: {rate:8.0}/s, p50 {middle:?}, p99 {high:?}").unwrap();
    raft.shutdown().await;
}

#[tokio::main]
async fn main() {
    for in_flight in [1, 16, 64, 256, 1_024] {
        measure(in_flight).await;
    }
}
