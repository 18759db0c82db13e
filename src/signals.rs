//! Ctrl-c and a polite kill, for programs that block elsewhere.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

use crate::failure::{Exit, Failure, Outcome};

/// Signals that have arrived. While one of these lives, ctrl-c no longer ends the program by
/// itself.
pub(crate) struct Signals {
    arrived: Receiver<()>,
}

impl Signals {
    /// Listens from now on.
    pub(crate) fn listen() -> Outcome<Signals> {
        let failure =
            |error| Failure::new(Exit::Failed, "cannot listen for signals").because(error);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(failure)?;
        // Registered before this returns, so that none is missed.
        let registered = runtime.block_on(async {
            Ok((signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?))
        });
        let (mut interrupt, mut terminate) = registered.map_err(failure)?;
        let (sender, arrived) = mpsc::channel();
        std::thread::spawn(move || {
            runtime.block_on(async {
                loop {
                    let more = tokio::select! {
                        more = interrupt.recv() => more,
                        more = terminate.recv() => more,
                    };
                    if more.is_none() || sender.send(()).is_err() {
                        return;
                    }
                }
            });
        });
        Ok(Signals { arrived })
    }

    /// Waits for at most this long; says whether a signal arrived.
    pub(crate) fn wait(&self, limit: Duration) -> bool {
        match self.arrived.recv_timeout(limit) {
            Ok(()) => true,
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => {
                // The listening thread is gone; then time passes all the same.
                std::thread::sleep(limit);
                false
            }
        }
    }
}
