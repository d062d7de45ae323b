//! Connections for programs that run on tokio, at both ends.

use crate::frame::{self, FrameHeader};
use crate::kind::LocalKind;
use handle_daemon::socket::check_listener;
use std::io;
use std::path::Path;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use zeroize::Zeroizing;

/// A connection of one kind, as its two directions.
#[derive(Debug)]
pub struct LocalConnection {
    /// The direction from the peer.
    pub reader: FrameReader,
    /// The direction to the peer.
    pub writer: FrameWriter,
}

/// Receives frames of one kind.
#[derive(Debug)]
pub struct FrameReader {
    from: OwnedReadHalf,
    kind: LocalKind,
    /// The first frame, of which only the header has been received.
    begun: Option<FrameHeader>,
}

/// Sends frames of one kind.
#[derive(Debug)]
pub struct FrameWriter {
    to: OwnedWriteHalf,
    kind: LocalKind,
}

impl LocalConnection {
    /// Connects to the process that listens at `path`.
    ///
    /// # Errors
    /// Errors of the kernel, and when the process there runs as another user than this process and
    /// than the owner of the directory.
    pub async fn connect(path: &Path, kind: LocalKind) -> io::Result<Self> {
        let stream = UnixStream::connect(path).await?;
        check_listener(&stream, path)?;
        Ok(Self::new(stream, kind, None))
    }

    /// The connection `stream`, of whose first frame the header `begun` has been received.
    pub(crate) fn new(stream: UnixStream, kind: LocalKind, begun: Option<FrameHeader>) -> Self {
        let (from, to) = stream.into_split();
        Self { reader: FrameReader { from, kind, begun }, writer: FrameWriter { to, kind } }
    }

    /// The kind.
    #[must_use]
    pub const fn kind(&self) -> LocalKind {
        self.reader.kind
    }
}

impl FrameReader {
    /// Receives the content of the next frame, of at most `len_max` bytes. A frame of which
    /// receiving is given up is lost, and the connection with it.
    ///
    /// # Errors
    /// Those of the connection, when the peer has closed it, and when the frame is not one of this
    /// kind or too long.
    pub async fn receive(&mut self, len_max: usize) -> io::Result<Zeroizing<Vec<u8>>> {
        let header = match self.begun.take() {
            Some(header) => header,
            None => {
                let mut header = [0; FrameHeader::LEN];
                self.from.read_exact(&mut header).await?;
                FrameHeader::decode(&header)?
            }
        };
        let mut content = Zeroizing::new(vec![0; header.check(self.kind, len_max)?]);
        self.from.read_exact(&mut content).await?;
        Ok(content)
    }

    /// Waits until the peer closes the connection, or sends something that is not expected.
    ///
    /// # Errors
    /// Those of the connection.
    pub async fn closed(&mut self) -> io::Result<()> {
        self.from.read(&mut [0]).await.map(drop)
    }
}

impl FrameWriter {
    /// Sends a frame, to whose content `encode` appends about `expected_len` bytes.
    ///
    /// # Errors
    /// Those of the connection.
    pub async fn send(&mut self, expected_len: usize, encode: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        let frame = frame::encode(self.kind, expected_len, encode);
        self.send_frame(&frame).await
    }

    /// Sends a frame that is encoded already.
    ///
    /// # Errors
    /// Those of the connection.
    pub async fn send_frame(&mut self, frame: &[u8]) -> io::Result<()> {
        self.to.write_all(frame).await
    }
}
