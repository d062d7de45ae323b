//! What is done to connections, and who does it.

use handle_net::{ConnectionGone, StreamConnections, StreamId};

/// What the machine does to connections.
pub trait ConnectionActions {
    /// Sends `bytes`, and keeps what cannot be sent now; how much is kept then.
    ///
    /// # Errors
    /// When there is nobody any more.
    fn send(&mut self, id: StreamId, bytes: &[u8]) -> Result<usize, ConnectionGone>;
    /// Bytes kept for all connections.
    fn kept_len_all(&self) -> usize;
    /// Reads from the connection, or does not.
    fn set_reading(&mut self, id: StreamId, reading: bool);
    /// Ends the connection behind what is kept; true when it is gone at once.
    fn close(&mut self, id: StreamId) -> bool;
    /// Ends the connection now.
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
