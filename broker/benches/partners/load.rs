//! A load with a fixed number of operations in flight.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::report::Measured;

/// What is not counted at the beginning of a load.
const WARM_UP: Duration = Duration::from_millis(500);

/// Runs one `client` for each of `in_flight`, each doing one operation after the other for `time`.
///
/// # Errors
/// The first that a client met, or that nothing was done.
pub(crate) async fn run<C, F>(clients: Vec<C>, time: Duration) -> anyhow::Result<Measured>
where
    C: FnMut() -> F + Send + 'static,
    F: Future<Output = anyhow::Result<()>> + Send,
{
    let counts = Arc::new(AtomicBool::new(false));
    let stops = Arc::new(AtomicBool::new(false));
    let mut tasks = JoinSet::new();
    for mut client in clients {
        let (counts, stops) = (Arc::clone(&counts), Arc::clone(&stops));
        tasks.spawn(async move {
            let mut times = Vec::new();
            while !stops.load(Ordering::Relaxed) {
                let asked = Instant::now();
                client().await?;
                if counts.load(Ordering::Relaxed) {
                    times.push(asked.elapsed());
                }
            }
            anyhow::Ok(times)
        });
    }
    tokio::time::sleep(WARM_UP).await;
    counts.store(true, Ordering::Relaxed);
    let begun = Instant::now();
    tokio::time::sleep(time).await;
    // What was counted so far was acknowledged so far.
    counts.store(false, Ordering::Relaxed);
    let together = begun.elapsed();
    stops.store(true, Ordering::Relaxed);
    let mut times = Vec::new();
    while let Some(done) = tasks.join_next().await {
        times.extend(done??);
    }
    Measured::of(times, together)
}
