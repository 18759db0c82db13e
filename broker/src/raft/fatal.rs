//! The end of the process when storage or the machine fails.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What is done, once, with the reason for a fatal error. Production aborts; tests look.
#[derive(Clone)]
pub struct FatalHook(Arc<dyn Fn(&str) + Send + Sync>);

impl FatalHook {
    /// Calls `hook` instead of aborting. The node is of no more use after it.
    pub fn new(hook: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Arc::new(hook))
    }

    /// Ends the process because of `reason`.
    pub(crate) fn strike(&self, reason: &str) {
        (self.0)(reason);
    }

    /// Logs the reason, writes it to standard error and aborts the process.
    #[must_use]
    pub fn abort() -> Self {
        Self::new(|reason| {
            tracing::error!(reason, "fatal: the process ends");
            let mut out = std::io::stderr().lock();
            // Nothing can be done if even standard error is gone.
            let _ignored = writeln!(out, "sublet: fatal: {reason}");
            let _ignored = out.flush();
            std::process::abort();
        })
    }
}

impl std::fmt::Debug for FatalHook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FatalHook")
    }
}

/// The hook with its trigger. Until [`Fatal::arm`] errors are returned by `open`, not acted upon.
#[derive(Debug, Clone)]
pub(super) struct Fatal {
    hook: FatalHook,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    armed: AtomicBool,
    struck: AtomicBool,
}

impl Fatal {
    pub(super) fn new(hook: FatalHook) -> Self {
        Self { hook, state: Arc::default() }
    }

    /// From now on an error ends the process.
    pub(super) fn arm(&self) {
        self.state.armed.store(true, Ordering::SeqCst);
    }

    /// The node was stopped on purpose: errors of tasks that still wind down mean nothing.
    pub(super) fn disarm(&self) {
        self.state.armed.store(false, Ordering::SeqCst);
    }

    /// Ends the process because of `reason`, unless that already happened.
    pub(super) fn strike(&self, reason: &str) {
        if !self.state.armed.load(Ordering::SeqCst) {
            tracing::warn!(reason, "storage or machine error outside of operation");
            return;
        }
        if !self.state.struck.swap(true, Ordering::SeqCst) {
            (self.hook.0)(reason);
        }
    }

    /// Whether the hook has been called.
    pub(super) fn struck(&self) -> bool {
        self.state.struck.load(Ordering::SeqCst)
    }
}
