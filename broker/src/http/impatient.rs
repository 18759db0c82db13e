//! A connection that breaks off when its peer reads nothing for too long.
//!
//! hyper times how long a request's head takes to arrive, but not how long an answer takes to
//! leave. Without this, callers that never read would hold all connections for ever.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// A connection whose writes fail with [`io::ErrorKind::TimedOut`] once none of them has got on
/// for the span given.
pub(super) struct Impatient<S> {
    inner: S,
    patience: Duration,
    /// Runs while a write is stuck.
    stuck: Option<Pin<Box<Sleep>>>,
}

impl<S> Impatient<S> {
    pub(super) const fn new(inner: S, patience: Duration) -> Self {
        Self { inner, patience, stuck: None }
    }

    /// Passes on what a write came to; one that is stuck for too long fails.
    fn judge<T>(
        &mut self,
        cx: &mut Context<'_>,
        came_to: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if came_to.is_ready() {
            self.stuck = None;
            return came_to;
        }
        let limit = Instant::now() + self.patience;
        let stuck = self.stuck.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(limit)));
        ready!(stuck.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer reads nothing")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Impatient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Impatient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let came_to = Pin::new(&mut self.inner).poll_write(cx, bytes);
        self.judge(cx, came_to)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let came_to = Pin::new(&mut self.inner).poll_write_vectored(cx, pieces);
        self.judge(cx, came_to)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    // A socket has nothing to flush and is closed at once: neither of them gets stuck, and neither
    // is a sign that the peer reads.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const PATIENCE: Duration = Duration::from_millis(400);

    #[tokio::test]
    async fn a_write_that_nobody_reads_fails_after_the_span() {
        let (near, _far) = tokio::io::duplex(8);
        let mut near = Impatient::new(near, PATIENCE);
        let started = Instant::now();
        let error = near.write_all(&[0; 9]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(started.elapsed() >= PATIENCE);
    }

    // Eight pauses are longer than the span, each is shorter.
    #[tokio::test]
    async fn a_slow_reader_that_gets_on_is_waited_for() {
        let (near, mut far) = tokio::io::duplex(8);
        let mut near = Impatient::new(near, PATIENCE);
        let writing = tokio::spawn(async move { near.write_all(&[7; 64]).await });
        let mut read = Vec::new();
        for _ in 0..8 {
            tokio::time::sleep(PATIENCE / 4).await;
            let mut piece = [0; 8];
            far.read_exact(&mut piece).await.unwrap();
            read.extend_from_slice(&piece);
        }
        writing.await.unwrap().unwrap();
        assert_eq!(read, [7; 64]);
    }
}
