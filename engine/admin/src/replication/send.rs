//! Sends a stream to a receiver, which may be slow. Threads that may block make one part, while the
//! part before it is handed to the kernel.

use super::source::SourceError;
use super::stream::ReplicationStream;
use crate::counters::AdminCounters;
use std::io::{self, ErrorKind};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

/// Limits on the time of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendLimits {
    /// Time for the receiver to read one part, and for the TLS handshake.
    pub write: Duration,
    /// Time for the whole stream.
    pub stream: Duration,
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
    S: AsyncRead + AsyncWrite + Unpin,
{
    counters.streams.add();
    let sent = timeout(limits.stream, send_all(socket, stream, limits.write, counters)).await;
    let sent = sent.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()));
    if sent.is_err() {
        counters.streams_failed.add();
    }
    sent
}

async fn send_all<S>(
    socket: &mut S,
    stream: ReplicationStream,
    timeout: Duration,
    counters: &AdminCounters,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    within(timeout, socket.write_all(&stream.front())).await?;
    let Some(config) = stream.tls() else { return send_parts(socket, stream, timeout, counters).await };
    within(timeout, socket.flush()).await?;
    let mut encrypted = within(timeout, TlsAcceptor::from(config).accept(socket)).await?;
    send_parts(&mut encrypted, stream, timeout, counters).await?;
    within(timeout, encrypted.shutdown()).await
}

/// Sends the parts after the front. At most two are in memory.
async fn send_parts(
    socket: &mut (impl AsyncWrite + Unpin),
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
        within(timeout, socket.write_all(&part)).await?;
        counters.stream_transactions.add_many(counts.transactions - counted.transactions);
        counters.stream_records.add_many(counts.records - counted.records);
        counted = counts;
    };
    within(timeout, socket.flush()).await?;
    stream.record_end();
    Ok(())
}

/// A part, and the stream after it.
type MadePart = (Result<Option<Vec<u8>>, SourceError>, ReplicationStream);

/// Begins to make the next part.
fn begin_part(mut stream: ReplicationStream) -> JoinHandle<MadePart> {
    tokio::task::spawn_blocking(move || (stream.next_part(), stream))
}

async fn within<T>(timeout: Duration, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(timeout, work).await.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))
}
