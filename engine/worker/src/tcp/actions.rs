//! The actions on connections, and their implementation for a datapath.

use handle_net::{ConnectionGone, StreamConnections, StreamId};

/// The actions of [`TcpConnections`](super::TcpConnections) on connections.
pub trait ConnectionActions {
    /// Sends `bytes`, and buffers the bytes that cannot be sent now. Returns how many bytes are
    /// buffered.
    ///
    /// # Errors
    /// When the connection is closed.
    fn send(&mut self, id: StreamId, bytes: &[u8]) -> Result<usize, ConnectionGone>;
    /// Unsent bytes buffered for all connections.
    fn kept_len_all(&self) -> usize;
    /// Resumes or pauses reading from the connection.
    fn set_reading(&mut self, id: StreamId, reading: bool);
    /// Closes the connection after its unsent bytes. Returns true when it is closed at once.
    fn close(&mut self, id: StreamId) -> bool;
    /// Aborts the connection.
    fn abort(&mut self, id: StreamId);
}

impl ConnectionActions for StreamConnections {
    fn send(&mut self, id: StreamId, bytes: &[u8]) -> Result<usize, ConnectionGone> {
        self.send(id, bytes)
    }

    fn kept_len_all(&self) -> usize {
        self.kept_len_all()
    }

    fn set_reading(&mut self, id: StreamId, reading: bool) {
        self.set_reading(id, reading);
    }

    fn close(&mut self, id: StreamId) -> bool {
        self.close(id)
    }

    fn abort(&mut self, id: StreamId) {
        self.abort(id);
    }
}
