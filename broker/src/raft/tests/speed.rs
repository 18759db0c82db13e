//! How fast the log is on this disk. Prints, asserts nothing.

use std::io::Write;
use std::time::{Duration, Instant};

use super::super::Raft;
use super::{Diary, options};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement: run it with --release --ignored --nocapture"]
async fn proposals_per_second() {
    for in_flight in [1, 16, 64, 256, 1_024] {
        // Beside the binary: the temporary folder may be in memory.
        let binary = std::env::current_exe().unwrap();
        let folder = tempfile::tempdir_in(binary.parent().unwrap()).unwrap();
        let (options, _) = options(folder.path());
        let raft = Raft::open(options, Diary::new()).await.unwrap();
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
        writeln!(
            std::io::stdout(),
            "{in_flight:5} in flight: {rate:8.0} proposals/s, p50 {middle:?}, p99 {high:?}"
        )
        .unwrap();
        raft.shutdown().await;
    }
}
