//! The side that connects, for threads that may wait.

use crate::frame::{self, FrameHeader};
use crate::kind::LocalKind;
use handle_daemon::socket::connect;
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;
use zeroize::Zeroizing;

/// A connection of one kind.
#[derive(Debug)]
pub struct LocalClient {
    stream: UnixStream,
    kind: LocalKind,
}

impl LocalClient {
    /// Connects to the process at `path`. No step waits longer than `timeout`.
    ///
    /// # Errors
    /// Errors of the kernel, and when the process there runs as another user than this process and
    /// than the owner of the directory.
    pub fn connect(path: &Path, kind: LocalKind, timeout: Duration) -> io::Result<Self> {
        connect(path, timeout).map(|stream| Self { stream, kind })
    }

    /// Sends a frame, to whose content `encode` appends about `expected_len` bytes.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn send(&mut self, expected_len: usize, encode: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        self.send_frame(&frame::encode(self.kind, expected_len, encode))
    }

    /// Sends a frame that is encoded already.
    ///
    /// # Errors
    /// Those of the connection, and a refusal that arrived.
    pub fn send_frame(&mut self, frame: &[u8]) -> io::Result<()> {
        self.stream.write_all(frame).map_err(|error| match frame::is_closed(&error) {
            true => self.refusal().unwrap_or(error),
            false => error,
        })
    }

    /// The refusal that the other side sent before it closed the connection.
    fn refusal(&mut self) -> Option<io::Error> {
        let mut header = [0; FrameHeader::LEN];
        self.stream.read_exact(&mut header).ok()?;
        FrameHeader::decode(&header).err().map(io::Error::from)
    }

    /// Receives the content of the next frame.
    ///
    /// # Errors
    /// Those of the connection, and when the frame is not one of this kind.
    pub fn receive(&mut self) -> io::Result<Zeroizing<Vec<u8>>> {
        frame::read(&mut self.stream, self.kind, self.kind.reply_len_max())
    }

    /// The connection itself.
    #[must_use]
    pub const fn stream(&self) -> &UnixStream {
        &self.stream
    }
}
