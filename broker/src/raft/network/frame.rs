//! Frames: each a length of four bytes, big-endian, and as many bytes.

use std::io;
use std::time::Duration;

use futures::{SinkExt, StreamExt};
use sublet_protocol::codec::{self, Format};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::bytes::Bytes;
use tokio_util::codec::{Framed, LengthDelimitedCodec};

/// Largest frame in bytes: what one read of the log gives a follower ([`READ_BYTES`] and one entry
/// more), with room for its positions.
///
/// [`READ_BYTES`]: super::super::log_store
pub(super) const FRAME_MAX: usize = 16 * 1_024 * 1_024;

/// Largest frame before the other side has said who it is.
pub(super) const GREETING_MAX: usize = 1_024;

/// What a connection runs over: TCP, or TLS over it.
pub(super) trait Pipe: AsyncRead + AsyncWrite + Send + Sync + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Sync + Unpin> Pipe for T {}

/// A connection that carries whole messages. Giving up a call of it in the middle loses no bytes.
pub(super) struct Frames {
    inner: Framed<Box<dyn Pipe>, LengthDelimitedCodec>,
}

impl std::fmt::Debug for Frames {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Frames")
    }
}

impl Frames {
    /// Frames over `pipe`, of greetings only until [`Frames::widen`].
    pub(super) fn new(pipe: Box<dyn Pipe>) -> Self {
        let codec = LengthDelimitedCodec::builder().max_frame_length(GREETING_MAX).new_codec();
        Self { inner: Framed::new(pipe, codec) }
    }

    /// From now on frames may be as large as they ever are.
    pub(super) fn widen(&mut self) {
        self.inner.codec_mut().set_max_frame_length(FRAME_MAX);
    }

    /// Takes in a message and sends what it can of it without waiting for more room than there is.
    ///
    /// # Errors
    /// The message cannot be written, or the connection is gone.
    pub(super) async fn send<T: Format>(&mut self, message: &T) -> io::Result<()> {
        let bytes = codec::encode(message).map_err(io::Error::other)?;
        self.inner.send(Bytes::from(bytes)).await
    }

    /// As [`Frames::send`], for at most `limit`.
    ///
    /// # Errors
    /// As [`Frames::send`], and `TimedOut`: the other side does not read.
    pub(super) async fn send_within<T: Format>(
        &mut self,
        message: &T,
        limit: Duration,
    ) -> io::Result<()> {
        match tokio::time::timeout(limit, self.send(message)).await {
            Ok(sent) => sent,
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// The next message.
    ///
    /// # Errors
    /// `UnexpectedEof` when the other side has closed, `InvalidData` when it sends what is no
    /// message, or what reading gave.
    pub(super) async fn next<T: Format>(&mut self) -> io::Result<T> {
        let Some(frame) = self.inner.next().await else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        codec::decode(&frame?).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    /// As [`Frames::next`], for at most `limit`.
    ///
    /// # Errors
    /// As [`Frames::next`], and `TimedOut`.
    pub(super) async fn next_within<T: Format>(&mut self, limit: Duration) -> io::Result<T> {
        match tokio::time::timeout(limit, self.next()).await {
            Ok(next) => next,
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// The connection as two, for a task that reads and one that writes.
    pub(super) fn split(self) -> (Source, Sink) {
        let (sink, source) = self.inner.split();
        (Source(source), Sink(sink))
    }
}

/// The half that reads.
pub(super) struct Source(futures::stream::SplitStream<Framed<Box<dyn Pipe>, LengthDelimitedCodec>>);

impl Source {
    /// As [`Frames::next`].
    ///
    /// # Errors
    /// As [`Frames::next`].
    pub(super) async fn next<T: Format>(&mut self) -> io::Result<T> {
        let Some(frame) = self.0.next().await else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        codec::decode(&frame?).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }
}

/// The half that writes.
pub(super) struct Sink(
    futures::stream::SplitSink<Framed<Box<dyn Pipe>, LengthDelimitedCodec>, Bytes>,
);

impl Sink {
    /// As [`Frames::send_within`].
    ///
    /// # Errors
    /// As [`Frames::send_within`].
    pub(super) async fn send_within<T: Format>(
        &mut self,
        message: &T,
        limit: Duration,
    ) -> io::Result<()> {
        let bytes = codec::encode(message).map_err(io::Error::other)?;
        match tokio::time::timeout(limit, self.0.send(Bytes::from(bytes))).await {
            Ok(sent) => sent,
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::messages::{Message, Question};
    use super::*;
    use tokio::io::AsyncWriteExt;

    #[tokio::test]
    async fn a_frame_over_the_cap_is_refused_before_its_bytes_are_read() {
        let (mut raw, pipe) = tokio::io::duplex(64);
        let mut frames = Frames::new(Box::new(pipe));
        raw.write_all(&u32::MAX.to_be_bytes()).await.unwrap();
        let error = frames.next::<Message>().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    #[tokio::test]
    async fn the_cap_is_that_of_greetings_until_it_is_widened() {
        let (raw, pipe) = tokio::io::duplex(64 * 1_024);
        let (mut sender, mut frames) = (Frames::new(Box::new(raw)), Frames::new(Box::new(pipe)));
        sender.widen();
        let large = Message::Ask { call: 1, question: Question::Above(vec![7; 4_000].into()) };
        sender.send(&large).await.unwrap();
        assert!(frames.next::<Message>().await.is_err());

        let (raw, pipe) = tokio::io::duplex(64 * 1_024);
        let (mut sender, mut frames) = (Frames::new(Box::new(raw)), Frames::new(Box::new(pipe)));
        sender.widen();
        frames.widen();
        sender.send(&large).await.unwrap();
        let Message::Ask { question: Question::Above(bytes), .. } = frames.next().await.unwrap()
        else {
            panic!()
        };
        assert_eq!(bytes.into_vec().len(), 4_000);
    }

    #[tokio::test]
    async fn a_closed_connection_and_bytes_that_are_no_message_are_told_apart() {
        let (mut raw, pipe) = tokio::io::duplex(64);
        let mut frames = Frames::new(Box::new(pipe));
        raw.write_all(&[0, 0, 0, 2, 99, 99]).await.unwrap();
        let error = frames.next::<Message>().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        drop(raw);
        let error = frames.next::<Message>().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
