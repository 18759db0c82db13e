//! The loop that accepts connections: bounded in number, in headers and in time.
//!
//! `axum::serve` sets no timer for headers, so that slow callers could hold connections for ever;
//! hence this loop on hyper itself. HTTP/1.1, no TLS: that is the reverse proxy's.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use metrics_exporter_prometheus::{BuildError, PrometheusBuilder, PrometheusHandle};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};

use super::app::App;
use super::impatient::Impatient;
use super::routes;
use crate::auth::Verifier;
use crate::cell::Cell;

/// Most connections at once. Further ones wait in the system's queue.
pub const CONNECTIONS_MAX: usize = 1_024;
/// How long a connection may take to send the head of a request, idle time before it included.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a caller may leave an answer unread, or a piece of it.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(20);
/// Largest head of a request in bytes: a token of 4 KiB fits several times.
const HEAD_MAX: usize = 32 * 1_024;
/// Most headers of a request.
const HEADERS_MAX: usize = 64;
/// How long a stop waits for calls that are being answered.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after a connection could not be accepted (out of file descriptors).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What the server needs besides the cell.
#[derive(Debug)]
pub struct Config {
    /// Where to listen; port 0 takes any that is free.
    pub bind: SocketAddr,
    /// Checks tokens.
    pub verifier: Verifier,
    /// Where `/metrics` gets its text from; without it the route is empty.
    pub metrics: Option<PrometheusHandle>,
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Server {
    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes no more connections, ends the streams, lets other calls be answered (for at most ten
    /// seconds) and returns.
    pub async fn shutdown(self) {
        self.stop.send_replace(true);
        if let Err(error) = self.task.await {
            tracing::error!(%error, "the server's loop broke off");
        }
    }
}

/// Makes this process's metrics go to the text of `/metrics`. Once in a process.
///
/// # Errors
/// A recorder is installed already.
pub fn install_metrics() -> Result<PrometheusHandle, BuildError> {
    let handle = PrometheusBuilder::new().install_recorder()?;
    crate::metrics::describe();
    Ok(handle)
}

/// Serves the API of `cell`.
///
/// # Errors
/// The address cannot be listened on.
pub async fn serve(cell: Cell, config: Config) -> io::Result<Server> {
    let listener = TcpListener::bind(config.bind).await?;
    let address = listener.local_addr()?;
    let (stop, stopping) = watch::channel(false);
    let app = App::new(cell, config.verifier, config.metrics, stopping.clone());
    let task = tokio::spawn(accept(listener, routes::router(app), stopping));
    Ok(Server { address, stop, task })
}

async fn accept(listener: TcpListener, router: Router, mut stopping: watch::Receiver<bool>) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    loop {
        let next = async {
            let permit = Arc::clone(&room).acquire_owned().await;
            let permit = permit.expect("the semaphore is never closed");
            (permit, listener.accept().await)
        };
        tokio::select! {
            (permit, accepted) = next => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(converse(stream, router.clone(), stopping.clone(), permit));
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_) = connections.join_next() => {}
            () = stopped(&mut stopping) => break,
        }
    }
    drop(listener);
    let rest = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(STOP_TIMEOUT, rest).await.is_err() {
        tracing::warn!(left = connections.len(), "calls were cut off");
    }
}

/// Waits until the server is to stop, or is gone.
async fn stopped(stopping: &mut watch::Receiver<bool>) {
    let _ = stopping.wait_for(|stopping| *stopping).await;
}

/// Serves one connection until it ends or the server stops.
async fn converse(
    stream: TcpStream,
    router: Router,
    mut stopping: watch::Receiver<bool>,
    permit: OwnedSemaphorePermit,
) {
    // Answers are small and wanted at once.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection was gone before it began");
        return;
    }
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    builder.max_buf_size(HEAD_MAX).max_headers(HEADERS_MAX);
    let service = TowerToHyperService::new(router);
    let mut connection = pin!(
        builder.serve_connection(TokioIo::new(Impatient::new(stream, WRITE_TIMEOUT)), service)
    );
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stopped(&mut stopping) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection broke off");
    }
    drop(permit);
}
