//! What every handler can reach.

use std::sync::Arc;

use axum::http::StatusCode;
use metrics_exporter_prometheus::PrometheusHandle;
use sublet_protocol::money::Currency;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, watch};

use super::error::ApiError;
use super::limits::{Held, Limits};
use crate::auth::{RateOwner, Verifier};
use crate::cell::Cell;

/// Most streams (watches, events, logs) that are open at once.
pub const STREAMS_MAX: usize = 512;
/// Most checks of the whole ledger at once: each reads all of it.
const VERIFIES_MAX: usize = 1;
/// Most statements that are made at once: each reads a part of the ledger.
const STATEMENTS_MAX: usize = 2;

/// What every handler can reach. Cheap to clone.
#[derive(Clone)]
pub(crate) struct App {
    pub(crate) cell: Cell,
    pub(crate) verifier: Arc<Verifier>,
    pub(crate) metrics: Option<PrometheusHandle>,
    pub(crate) limits: Arc<Limits>,
    /// Held while the policy is read and set.
    pub(crate) policy: Arc<Mutex<()>>,
    streams: Arc<Semaphore>,
    verifies: Arc<Semaphore>,
    statements: Arc<Semaphore>,
    stopping: watch::Receiver<bool>,
}

impl App {
    pub(crate) fn new(
        cell: Cell,
        verifier: Verifier,
        metrics: Option<PrometheusHandle>,
        stopping: watch::Receiver<bool>,
    ) -> App {
        App {
            cell,
            verifier: Arc::new(verifier),
            metrics,
            limits: Arc::default(),
            policy: Arc::default(),
            streams: Arc::new(Semaphore::new(STREAMS_MAX)),
            verifies: Arc::new(Semaphore::new(VERIFIES_MAX)),
            statements: Arc::new(Semaphore::new(STATEMENTS_MAX)),
            stopping,
        }
    }

    /// The cell's one currency.
    pub(crate) fn currency(&self) -> Currency {
        self.cell.read_stale(|state| state.policy().currency)
    }

    /// Room for one more stream of this caller, held as long as it is open.
    pub(crate) fn stream(&self, owner: RateOwner) -> Result<StreamPermit, ApiError> {
        let held = self.limits.stream(owner).ok_or_else(|| {
            let detail = "too many streams of this tenant are open";
            ApiError::new(StatusCode::TOO_MANY_REQUESTS, "STREAMS_EXHAUSTED", detail)
        })?;
        let permit = Arc::clone(&self.streams).try_acquire_owned();
        let permit = permit.map_err(|_| ApiError::busy("too many streams are open"))?;
        Ok(StreamPermit { _held: held, _permit: permit, stopping: self.stopping.clone() })
    }

    /// Room for one more check of the whole ledger.
    pub(crate) fn verify(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        let permit = Arc::clone(&self.verifies).try_acquire_owned();
        permit.map_err(|_| ApiError::busy("the ledger is being verified already"))
    }

    /// Room for one more statement.
    pub(crate) fn statement(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        let permit = Arc::clone(&self.statements).try_acquire_owned();
        permit.map_err(|_| ApiError::busy("other statements are being made: try again"))
    }
}

/// Held by an open stream.
pub(crate) struct StreamPermit {
    _held: Held,
    _permit: OwnedSemaphorePermit,
    stopping: watch::Receiver<bool>,
}

impl StreamPermit {
    /// Waits until the server stops: a stream must end then.
    pub(crate) async fn stopped(&mut self) {
        // An error means that the server is gone.
        let _ = self.stopping.wait_for(|stopping| *stopping).await;
    }
}
