//! What the test binaries of this package share.
#![allow(
    clippy::unwrap_used,
    clippy::as_conversions,
    clippy::print_stderr,
    dead_code,
    reason = "tests; each binary uses a part"
)]

use std::path::{Path, PathBuf};

use sublet_protocol::ids::TenantId;
use sublet_protocol::units::{Seconds, Timestamp};
use sublet_simulations::replay::{Job, Pool, Workload};

/// `tests/fixtures/NAME` of this package.
pub(crate) fn fixtures(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// `data/NAME` of the public traces: below `$SUBLET_SHARED`, else `../shared` beside the workspace.
/// Where they are absent the caller leaves its test out, and this says so.
pub(crate) fn shared_data(name: &str) -> Option<PathBuf> {
    shared("data", name)
}

/// `cases/NAME` of the public cases, likewise.
pub(crate) fn shared_case(name: &str) -> Option<PathBuf> {
    shared("cases", name)
}

fn shared(kind: &str, name: &str) -> Option<PathBuf> {
    let shared = std::env::var_os("SUBLET_SHARED")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared"), PathBuf::from);
    let folder = shared.join(kind).join(name);
    if folder.is_dir() {
        return Some(folder);
    }
    eprintln!("left out: {} is absent, its rows were not checked", folder.display());
    None
}

/// A load of `jobs` jobs on three pools of 1, 2 and 4 nodes, busy enough that everyone queues at times.
/// Simple numbers of its own, so that a change of the generator does not change these tests.
pub(crate) fn made_up(seed: u64, jobs: u64) -> Workload {
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut below = move |bound: u64| {
        // xorshift64 (Marsaglia 2003).
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % bound
    };
    let mut submit = 0;
    let mut job = || {
        submit += [0, 0, 1, 30, 200][below(5) as usize];
        Job {
            owner: below(3) as usize,
            submit: Seconds::new(submit),
            duration: Seconds::new(1 + [10, 100, 1_000, 3_000][below(4) as usize] + below(60)),
            gpus: [1, 1, 1, 2, 4, 5, 8, 12, 16, 20][below(10) as usize],
        }
    };
    // Listed in another order than they come: ties between lenders must follow the list.
    let pool = |(name, nodes, listed): (&str, u32, usize)| {
        let tenant = TenantId::new(name).unwrap();
        Pool { tenant, nodes, listed }
    };
    Workload {
        starts_at: Timestamp::new(1_506_830_400_000),
        pools: [("small", 1, 1), ("middle", 2, 2), ("large", 4, 0)].map(pool).to_vec(),
        jobs: (0..jobs).map(|_| job()).collect(),
    }
}
