//! The connections of all workers: how many there are, and how many each source has.

use handle_daemon::source_counts::SourceCounts;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep_until};

/// The table of open connections, by source.
#[derive(Debug, Default)]
pub struct ConnectionSources {
    open: Mutex<OpenSources>,
}

#[derive(Debug, Default)]
struct OpenSources {
    sources: SourceCounts,
    count: usize,
}

/// One place in the table, given back when it is dropped.
#[derive(Debug)]
pub struct SourcePlace {
    sources: Arc<ConnectionSources>,
    address: IpAddr,
}

impl ConnectionSources {
    fn open(&self) -> MutexGuard<'_, OpenSources> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place for a connection from `address`; `None` when its source has `most`.
    #[must_use]
    pub fn take(self: &Arc<Self>, address: IpAddr, most: usize) -> Option<SourcePlace> {
        let mut open = self.open();
        if !open.sources.has_room(address, most) {
            return None;
        }
        open.sources.add(address);
        open.count += 1;
        Some(SourcePlace { sources: Arc::clone(self), address })
    }

    /// Number of open connections.
    #[must_use]
    pub fn count(&self) -> usize {
        self.open().count
    }
}

impl Drop for SourcePlace {
    fn drop(&mut self) {
        let mut open = self.sources.open();
        open.sources.remove(self.address);
        open.count -= 1;
    }
}

/// The stream of a client, which fails when the client does not read for too long.
///
/// hyper has timeouts for reading requests, none for writing answers.
#[derive(Debug)]
pub struct ClientStream {
    stream: TcpStream,
    write_patience: Duration,
    /// Set while the client does not read.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl ClientStream {
    /// A stream whose client may pause for `write_patience`.
    #[must_use]
    pub const fn new(stream: TcpStream, write_patience: Duration) -> Self {
        Self { stream, write_patience, deadline: None }
    }

    /// Fails a write that is pending for too long.
    fn limit<T>(&mut self, written: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.deadline = None;
            return written;
        }
        let patience = self.write_patience;
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + patience)));
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
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_has_as_many_connections_as_allowed() {
        let sources = Arc::new(ConnectionSources::default());
        let [one, other] = [[192, 0, 2, 1], [192, 0, 2, 2]].map(IpAddr::from);
        let places: Vec<_> = (0..2).map(|_| sources.take(one, 2)).collect();
        assert!(places.iter().all(Option::is_some));
        assert!(sources.take(one, 2).is_none());
        assert!(sources.take(other, 2).is_some());
        assert_eq!(sources.count(), 2);
        drop(places);
        assert!(sources.take(one, 2).is_some());
        assert_eq!(sources.count(), 0);
    }
}
