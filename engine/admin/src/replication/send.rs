//! Sends a stream to a receiver, which may be slow. Threads that may block make one part, while the
//! part before it is handed to the kernel.

use super::source::SourceError;
use super::stream::ReplicationStream;
use crate::counters::AdminCounters;
use crate::steps::within;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

/// Limits on the time of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendLimits {
    /// Time for the receiver to read one part, and for the TLS handshake.
    pub write: Duration,
    /// Time for the whole stream.
    pub stream: Duration,
}

/// Where the parts of a stream go.
pub trait PartWriter: Send {
    /// Writes one part.
    fn write_part(&mut self, part: &[u8]) -> impl Future<Output = io::Result<()>> + Send;

    /// Has everything that was written leave this process.
    fn flush(&mut self) -> impl Future<Output = io::Result<()>> + Send;
}

/// A connection to a receiver.
struct SocketWriter<'a, S>(&'a mut S);

impl<S: AsyncWrite + Unpin + Send> PartWriter for SocketWriter<'_, S> {
    async fn write_part(&mut self, part: &[u8]) -> io::Result<()> {
        self.0.write_all(part).await
    }

    async fn flush(&mut self) -> io::Result<()> {
        self.0.flush().await
    }
}

/// Sends `stream` over `socket`, with TLS if the stream is encrypted, and counts the outcome.
///
/// # Errors
/// When the receiver closes the connection or is too slow, or the stream cannot be made.
pub async fn send<S>(
    socket: &mut S,
    stream: ReplicationStream,
    limits: SendLimits,
    counters: &AdminCounters,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let Some(config) = stream.tls() else {
        return send_parts_to(&mut SocketWriter(socket), stream, limits, counters).await;
    };
    let sent = async {
        within(limits.write, socket.write_all(&stream.front())).await?;
        within(limits.write, socket.flush()).await?;
        let mut encrypted = within(limits.write, TlsAcceptor::from(config).accept(socket)).await?;
        send_parts(&mut SocketWriter(&mut encrypted), stream, limits.write, counters).await?;
        within(limits.write, encrypted.shutdown()).await
    };
    count_outcome(sent, limits, counters).await
}

/// Sends `stream`, which is not encrypted here, to `writer`, and counts the outcome.
///
/// # Errors
/// When the receiver is gone or too slow, or the stream cannot be made.
pub async fn send_parts_to(
    writer: &mut impl PartWriter,
    stream: ReplicationStream,
    limits: SendLimits,
    counters: &AdminCounters,
) -> io::Result<()> {
    let sent = async {
        within(limits.write, writer.write_part(&stream.front())).await?;
        send_parts(writer, stream, limits.write, counters).await
    };
    count_outcome(sent, limits, counters).await
}

async fn count_outcome(
    sending: impl Future<Output = io::Result<()>>,
    limits: SendLimits,
    counters: &AdminCounters,
) -> io::Result<()> {
    counters.streams.add();
    let sent = within(limits.stream, sending).await;
    if sent.is_err() {
        counters.streams_failed.add();
    }
    sent
}

/// Sends the parts after the front. At most two are in memory.
async fn send_parts(
    writer: &mut impl PartWriter,
    stream: ReplicationStream,
    timeout: Duration,
    counters: &AdminCounters,
) -> io::Result<()> {
    let mut counted = stream.counts();
    let mut making = begin_part(stream);
    let stream = loop {
        let (part, stream) = making.await.map_err(io::Error::other)?;
        let part = part.map_err(|error| {
            tracing::error!(%error, "a stream for a mirror ends early");
            io::Error::other(error)
        })?;
        let Some(part) = part else { break stream };
        let counts = stream.counts();
        making = begin_part(stream);
        within(timeout, writer.write_part(&part)).await?;
        counters.stream_transactions.add_many(counts.transactions - counted.transactions);
        counters.stream_records.add_many(counts.records - counted.records);
        counted = counts;
    };
    within(timeout, writer.flush()).await?;
    stream.record_end();
    Ok(())
}

/// A part, and the stream after it.
type MadePart = (Result<Option<Vec<u8>>, SourceError>, ReplicationStream);

/// Begins to make the next part.
fn begin_part(mut stream: ReplicationStream) -> JoinHandle<MadePart> {
    tokio::task::spawn_blocking(move || (stream.next_part(), stream))
}
