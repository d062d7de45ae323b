//! Connections on which no request has begun.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Connections without a request at the end of a process, with which the next process continues.
/// What their clients send in between waits in the kernel.
#[derive(Debug, Default)]
pub struct IdleConnections {
    collects: AtomicBool,
    kept: Mutex<Vec<OwnedFd>>,
}

impl IdleConnections {
    /// Begins to collect connections. Until then they are closed when the process stops.
    pub fn collect(&self) {
        self.collects.store(true, Ordering::Release);
    }

    /// Whether connections are collected.
    #[must_use]
    pub fn collects(&self) -> bool {
        self.collects.load(Ordering::Acquire)
    }

    /// Keeps a connection on which no byte of a request has been read, if connections are
    /// collected; otherwise closes it.
    pub fn keep(&self, connection: impl Into<OwnedFd>) {
        if self.collects() {
            self.kept.lock().unwrap_or_else(PoisonError::into_inner).push(connection.into());
        }
    }

    /// Takes the collected connections.
    #[must_use]
    pub fn drain(&self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.kept.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_connection_is_closed_unless_connections_are_collected() {
        let idle = IdleConnections::default();
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        idle.keep(ours);
        assert_eq!(theirs.read(&mut [0]).unwrap(), 0, "closed");
        assert!(idle.drain().is_empty());
        idle.collect();
        let (ours, _theirs) = UnixStream::pair().unwrap();
        idle.keep(ours);
        assert_eq!(idle.drain().len(), 1);
        assert!(idle.drain().is_empty());
    }
}
