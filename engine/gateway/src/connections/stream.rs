//! The streams of a connection: that of the client, and above it that of its requests.

use super::activity::ConnectionActivity;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep_until};

/// The stream of a client. Writing fails when the client does not read for too long.
///
/// hyper has no timeout for writing.
#[derive(Debug)]
pub struct ClientStream {
    stream: TcpStream,
    write_timeout: Duration,
    /// Set while the client does not read.
    deadline: Option<Pin<Box<Sleep>>>,
    /// Bytes that were read ahead; the next reads return them.
    ahead: Vec<u8>,
    /// Set while the rest of what the client sends is discarded.
    lingers_until: Option<Pin<Box<Sleep>>>,
}

/// Time for which the rest of a refused request is discarded.
const LINGER: Duration = Duration::from_secs(2);

impl ClientStream {
    /// A stream whose client may stop reading for `write_timeout`.
    #[must_use]
    pub const fn new(stream: TcpStream, write_timeout: Duration) -> Self {
        Self { stream, write_timeout, deadline: None, ahead: Vec::new(), lingers_until: None }
    }

    /// Bytes that were read ahead.
    #[must_use]
    pub fn ahead(&self) -> &[u8] {
        &self.ahead
    }

    /// Discards the first `len` bytes that were read ahead.
    pub fn skip(&mut self, len: usize) {
        self.ahead.drain(..len);
    }

    /// Reads ahead, at most `len` bytes in all. Returns false at the end of the stream.
    ///
    /// # Errors
    /// Those of the connection.
    pub async fn read_ahead(&mut self, len: usize) -> io::Result<bool> {
        let room = len.saturating_sub(self.ahead.len()) as u64;
        let read = (&mut self.stream).take(room).read_buf(&mut self.ahead).await?;
        Ok(read > 0)
    }

    /// Discards what a client still sends after the last answer, for a short time. A connection that
    /// is closed with unread bytes is reset, and the client may lose the answer. RFC 9112 section 9.6.
    fn linger(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut room = [MaybeUninit::uninit(); 4096];
        loop {
            let mut unread = ReadBuf::uninit(&mut room);
            let read = Pin::new(&mut self.stream).poll_read(context, &mut unread);
            match (read, &mut self.lingers_until) {
                (Poll::Ready(Ok(())), None) if !unread.filled().is_empty() => {
                    self.lingers_until = Some(Box::pin(sleep_until(Instant::now() + LINGER)));
                }
                (Poll::Ready(Ok(())), Some(end)) if !unread.filled().is_empty() => {
                    if end.is_elapsed() || end.as_mut().poll(context).is_ready() {
                        return Poll::Ready(Ok(()));
                    }
                }
                (Poll::Pending, Some(end)) => return end.as_mut().poll(context).map(Ok),
                // The client has sent nothing more, or is gone.
                _ => return Poll::Ready(Ok(())),
            }
        }
    }

    /// Turns a write that is pending for too long into an error.
    fn limit<T>(&mut self, written: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.deadline = None;
            return written;
        }
        let timeout = self.write_timeout;
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + timeout)));
        match deadline.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        room: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.ahead.is_empty() {
            let len = self.ahead.len().min(room.remaining());
            room.put_slice(&self.ahead[..len]);
            self.ahead.drain(..len);
            if self.ahead.is_empty() {
                self.ahead = Vec::new();
            }
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_read(context, room)
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.limit(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.limit(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.lingers_until.is_none() {
            ready!(Pin::new(&mut self.stream).poll_shutdown(context))?;
        }
        self.linger(context)
    }
}

/// The stream of HTTP/1.1 requests. Reading stops when a head is too long.
///
/// hyper has such a limit too, but its answer has no body.
#[derive(Debug)]
pub struct RequestStream<'a, S> {
    /// The stream below, decrypted.
    pub stream: S,
    activity: &'a ConnectionActivity,
}

impl<'a, S> RequestStream<'a, S> {
    /// The requests in `stream`.
    #[must_use]
    pub const fn new(stream: S, activity: &'a ConnectionActivity) -> Self {
        Self { stream, activity }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for RequestStream<'_, S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        room: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.activity.is_busy() {
            return Pin::new(&mut self.stream).poll_read(context, room);
        }
        if !self.activity.may_read_head() {
            // The task that polls the connection checks for this, so no waker is needed.
            return Poll::Pending;
        }
        let filled = room.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, room);
        if read.is_ready() {
            self.activity.add_head(&room.filled()[filled..]);
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for RequestStream<'_, S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.activity.set_writing(written.is_pending());
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.activity.set_writing(written.is_pending());
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
