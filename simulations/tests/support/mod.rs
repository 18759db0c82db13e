//! What the test binaries of this package share.
#![allow(clippy::print_stderr, dead_code, reason = "tests; each binary uses a part")]

use std::path::{Path, PathBuf};

/// `tests/fixtures/NAME` of this package.
pub(crate) fn fixtures(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// `data/NAME` of the public traces: below `$SUBLET_SHARED`, else `../shared` beside the workspace.
/// Where they are absent the caller leaves its test out, and this says so.
pub(crate) fn shared_data(name: &str) -> Option<PathBuf> {
    let shared = std::env::var_os("SUBLET_SHARED")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared"), PathBuf::from);
    let folder = shared.join("data").join(name);
    if folder.is_dir() {
        return Some(folder);
    }
    eprintln!("left out: {} is absent, its rows were not checked", folder.display());
    None
}
