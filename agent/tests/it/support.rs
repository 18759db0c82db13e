//! Marks on processes, and waiting for what must come.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The longest a test waits for something that must happen.
const PATIENCE: Duration = Duration::from_secs(20);

/// A value no other test's processes carry.
pub(crate) fn unique_mark() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Living processes whose first environment holds `NAME=value`.
pub(crate) fn marked(name: &str, value: &str) -> Vec<u32> {
    let pair = format!("{name}={value}");
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let processes = entries.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    let carries = |process: &u32| {
        let environ = fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
        environ.split(|byte| *byte == 0).any(|one| one == pair.as_bytes())
    };
    processes.filter(carries).collect()
}

/// Waits until `condition` holds; fails with `what` if it does not in time.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "never: {what}");
        sleep(Duration::from_millis(5));
    }
}
