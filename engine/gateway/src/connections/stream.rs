//! The streams of a connection: that of the client, and above it that of its requests.

use super::activity::ConnectionActivity;
use super::http1_targets::TargetFollower;
use crate::answers::MOVED_PER_MS;
use crate::phase::{GatewayPhase, PhaseReceiver};
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep, sleep_until};

/// The stream of a client. Writing fails when the client reads too slowly for too long, and closing
/// it waits until the client has closed it as well.
///
/// hyper has no timeout for writing.
#[derive(Debug)]
pub struct ClientStream {
    stream: TcpStream,
    write_timeout: Duration,
    /// Set from when the client does not read until it has read enough.
    slow: Option<SlowWrites>,
    /// When everything was written, since which nothing was.
    flushed: Option<Instant>,
    /// Bytes that were read ahead; the next reads return them.
    ahead: Vec<u8>,
    closing: ClosingLimits,
    phase: PhaseReceiver,
    /// Set while the rest of what the client sends is discarded.
    discarding: Option<DiscardedRest>,
}

/// What a slow client has read.
#[derive(Debug)]
struct SlowWrites {
    /// When it has to have read enough.
    until: Pin<Box<Sleep>>,
    /// Bytes that it has read.
    moved: u64,
}

/// A pause in which nothing is written, after which a client counts as one that reads.
const WRITE_PAUSE: Duration = Duration::from_millis(100);

/// How much is discarded of what a client still sends after the last answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClosingLimits {
    /// Time until the client closes the connection.
    pub time: Duration,
    /// Bytes.
    pub bytes: usize,
}

/// The rest of what a client sends.
#[derive(Debug)]
struct DiscardedRest {
    until: Pin<Box<Sleep>>,
    bytes_left: usize,
    has_begun: bool,
}

/// Bytes that are discarded at a time.
const DISCARDED_LEN: usize = 4096;

impl ClientStream {
    /// A stream whose client reads as many bytes in `write_timeout` as this has milliseconds, and
    /// which is closed within `closing`. In the last phase, it does not wait for a client that
    /// sends nothing.
    #[must_use]
    pub const fn new(
        stream: TcpStream,
        write_timeout: Duration,
        closing: ClosingLimits,
        phase: PhaseReceiver,
    ) -> Self {
        Self {
            stream,
            write_timeout,
            slow: None,
            flushed: None,
            ahead: Vec::new(),
            closing,
            phase,
            discarding: None,
        }
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
        let capacity = len.saturating_sub(self.ahead.len()) as u64;
        let read = (&mut self.stream).take(capacity).read_buf(&mut self.ahead).await?;
        Ok(read > 0)
    }

    /// Discards what a client still sends after the last answer, until the client closes the
    /// connection. A connection that is closed with unread bytes, or that receives some afterwards,
    /// is reset, and the client may lose the answer. RFC 9112 section 9.6.
    ///
    /// Below TLS as well, because nothing is decrypted any more.
    fn discard(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let closing = self.closing;
        let rest = self.discarding.get_or_insert_with(|| DiscardedRest {
            until: Box::pin(sleep(closing.time)),
            bytes_left: closing.bytes,
            has_begun: false,
        });
        let mut buffer = [MaybeUninit::uninit(); DISCARDED_LEN];
        // The timer is not asked alone, because it waits while there is always more to read.
        while Instant::now() < rest.until.deadline() {
            let mut unread = ReadBuf::uninit(&mut buffer);
            match Pin::new(&mut self.stream).poll_read(context, &mut unread) {
                Poll::Ready(Ok(())) if (1..=rest.bytes_left).contains(&unread.filled().len()) => {
                    rest.bytes_left -= unread.filled().len();
                    rest.has_begun = true;
                }
                // The client has closed the connection, or sends too much.
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending if !rest.has_begun && *self.phase.borrow() == GatewayPhase::Stopping => {
                    return Poll::Ready(());
                }
                Poll::Pending => return rest.until.as_mut().poll(context),
            }
        }
        Poll::Ready(())
    }

    /// Turns a write that is pending into an error, if the client has read too little for too long.
    fn limit(
        &mut self,
        written: Poll<io::Result<usize>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let flushed = self.flushed.take();
        if self.slow.is_some() && flushed.is_some_and(|flushed| flushed.elapsed() >= WRITE_PAUSE) {
            self.slow = None;
        }
        let timeout = self.write_timeout;
        if let Poll::Ready(written) = written {
            if let (Some(slow), Ok(len)) = (&mut self.slow, &written) {
                slow.moved += *len as u64;
                let least = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
                if slow.moved >= least.saturating_mul(MOVED_PER_MS) {
                    self.slow = None;
                }
            }
            return Poll::Ready(written);
        }
        let begin = || SlowWrites { until: Box::pin(sleep_until(Instant::now() + timeout)), moved: 0 };
        match self.slow.get_or_insert_with(begin).until.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if take_ahead(&mut self.ahead, buffer) {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
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
        if self.slow.is_some() && self.flushed.is_none() {
            self.flushed = Some(Instant::now());
        }
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.discarding.is_none() {
            ready!(Pin::new(&mut self.stream).poll_shutdown(context))?;
        }
        self.discard(context).map(Ok)
    }
}

/// The stream of HTTP/1.1 requests. Reading stops when a head is too long.
///
/// hyper has such a limit too, but its answer has no body.
#[derive(Debug)]
pub struct RequestStream<'a, S> {
    /// The stream below, decrypted.
    pub stream: S,
    /// Bytes that were read from it before; the next reads return them.
    ahead: Vec<u8>,
    /// Percent-encodes what may not stand in their targets.
    targets: TargetFollower,
    activity: &'a ConnectionActivity,
}

impl<'a, S> RequestStream<'a, S> {
    /// The requests in `ahead`, which was read from `stream`, and in `stream`.
    #[must_use]
    pub fn new(stream: S, ahead: Vec<u8>, activity: &'a ConnectionActivity) -> Self {
        let mut targets = TargetFollower::default();
        let ahead = targets.encode(ahead);
        Self { stream, ahead, targets, activity }
    }
}

impl<S: AsyncRead + Unpin> RequestStream<'_, S> {
    /// Reads bytes that were read before, or else bytes of the stream.
    fn poll_received(&mut self, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if take_ahead(&mut self.ahead, buffer) {
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        if let Some(at) = self.targets.follow(&buffer.filled()[before..]) {
            let rest = buffer.filled()[before + at..].to_vec();
            buffer.set_filled(before + at);
            self.ahead = self.targets.encode(rest);
            if at == 0 {
                take_ahead(&mut self.ahead, buffer);
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// Returns bytes that were read ahead. Returns false if there are none.
pub(super) fn take_ahead(ahead: &mut Vec<u8>, buffer: &mut ReadBuf<'_>) -> bool {
    if ahead.is_empty() {
        return false;
    }
    let len = ahead.len().min(buffer.remaining());
    buffer.put_slice(&ahead[..len]);
    ahead.drain(..len);
    if ahead.is_empty() {
        *ahead = Vec::new();
    }
    true
}

impl<S: AsyncRead + Unpin> AsyncRead for RequestStream<'_, S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.activity.is_busy() {
            return self.poll_received(context, buffer);
        }
        if !self.activity.may_read_head() {
            // The task that polls the connection checks for this, so no waker is needed.
            return Poll::Pending;
        }
        let filled = buffer.filled().len();
        let read = self.poll_received(context, buffer);
        if read.is_ready() {
            self.activity.add_head(&buffer.filled()[filled..]);
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
        let closed = Pin::new(&mut self.stream).poll_shutdown(context);
        // Until the client has closed the connection as well, it is not waiting for a request.
        self.activity.set_writing(closed.is_pending());
        closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::phase::CurrentPhase;
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::TcpListener;

    const TIMEOUT: Duration = Duration::from_secs(20);

    /// The stream of a client, the client, and the phase of the process.
    async fn connected(closing: ClosingLimits) -> (ClientStream, TcpStream, CurrentPhase) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let stream = listener.accept().await.unwrap().0;
        let phase = CurrentPhase::default();
        (ClientStream::new(stream, TIMEOUT, closing, phase.subscribe()), client, phase)
    }

    fn block_on<T>(work: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(work)
    }

    /// Sends an answer while the client pauses in the middle of a body of `len` bytes. Returns
    /// whether the client gets the answer after all of it.
    async fn gets_answer(len: usize, closing: ClosingLimits) -> bool {
        let (mut stream, mut client, _stop) = connected(closing).await;
        let answered = async {
            stream.write_all(b"refused").await.unwrap();
            stream.shutdown().await.unwrap();
            drop(stream);
        };
        // The client closes the connection when it has the answer.
        let sent = async move {
            tokio::time::sleep(Duration::from_millis(50)).await;
            for _ in 0..len / 1000 {
                client.write_all(&[b'x'; 1000]).await?;
                tokio::task::yield_now().await;
            }
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).await?;
            Ok::<_, io::Error>(answer)
        };
        tokio::join!(answered, sent).1.is_ok_and(|answer| answer == b"refused")
    }

    #[test]
    fn a_client_that_pauses_in_a_body_gets_the_answer_within_the_bytes() {
        let closing = ClosingLimits { time: TIMEOUT, bytes: 2_000_000 };
        block_on(async {
            assert!(gets_answer(2_000_000, closing).await);
            assert!(!gets_answer(20_000_000, closing).await, "ten times as much");
        });
    }

    #[test]
    fn a_client_that_does_not_close_the_connection_is_waited_for_within_the_time() {
        let time = Duration::from_millis(100);
        let closed_after = |sends: bool, begun: GatewayPhase| {
            block_on(async {
                let (mut stream, mut client, phase) =
                    connected(ClosingLimits { time, bytes: usize::MAX }).await;
                phase.advance(begun);
                let begun = Instant::now();
                let sender = tokio::spawn(async move {
                    while sends && client.write_all(&[b'x'; 100]).await.is_ok() {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                    tokio::time::sleep(TIMEOUT).await;
                });
                stream.shutdown().await.unwrap();
                sender.abort();
                begun.elapsed()
            })
        };
        for (sends, phase) in
            [(false, GatewayPhase::Serving), (true, GatewayPhase::Serving), (false, GatewayPhase::HandedOver)]
        {
            let after = closed_after(sends, phase);
            assert!(after >= time && after < TIMEOUT / 2, "{after:?}");
        }
        assert!(closed_after(false, GatewayPhase::Stopping) < time, "when the process stops");
    }
}
