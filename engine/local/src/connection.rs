//! Connections for programs that run on tokio, at both ends.

use crate::frame::{self, FrameHeader};
use crate::kind::LocalKind;
use handle_daemon::socket::check_listener;
use rustix::net::{RecvFlags, recv};
use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, Interest};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::watch;
use tokio::time::timeout;
use zeroize::Zeroizing;

/// Time in which the content of a frame has to follow its header: a peer sends both at once.
const CONTENT_TIMEOUT: Duration = Duration::from_secs(10);

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
    content_timeout: Duration,
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
        let reader = FrameReader { from, kind, content_timeout: CONTENT_TIMEOUT, begun };
        Self { reader, writer: FrameWriter { to, kind } }
    }

    /// The kind.
    #[must_use]
    pub const fn kind(&self) -> LocalKind {
        self.reader.kind
    }

    /// Waits until the peer sends a frame, of which nothing is received yet, or closes the
    /// connection. Returns false, without receiving anything, if `stopping` becomes true before.
    ///
    /// # Errors
    /// Those of the connection.
    pub async fn begins(&self, stopping: &mut watch::Receiver<bool>) -> io::Result<bool> {
        if self.reader.begun.is_some() {
            return Ok(true);
        }
        let stream: &UnixStream = self.reader.from.as_ref();
        // The runtime takes the stream for readable until a read has found nothing, also if the
        // last frame was all there was.
        let peek = || Ok(recv(stream, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT).map(drop)?);
        loop {
            tokio::select! {
                ready = stream.readable() => ready?,
                _ = stopping.wait_for(|&stops| stops) => return Ok(false),
            }
            match stream.try_io(Interest::READABLE, peek) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                peeked => return peeked.map(|()| true),
            }
        }
    }

    /// The stream, between two frames.
    #[must_use]
    pub fn into_stream(self) -> Option<UnixStream> {
        self.reader.from.reunite(self.writer.to).ok()
    }

    /// Sends a frame, to whose content `encode` appends about `expected_len` bytes. The side that
    /// connects sends its first frame so.
    ///
    /// # Errors
    /// Those of the connection, and a refusal that arrived.
    pub async fn send(&mut self, expected_len: usize, encode: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        match self.writer.send(expected_len, encode).await {
            Err(error) if frame::is_closed(&error) => Err(self.reader.refusal().await.unwrap_or(error)),
            sent => sent,
        }
    }
}

impl FrameReader {
    /// Receives the content of the next frame, of at most `len_max` bytes. A frame of which
    /// receiving is given up is lost, and the connection with it.
    ///
    /// # Errors
    /// Those of the connection, when the peer has closed or refused it, and when the frame is not
    /// one of this kind, too long, or does not follow its header.
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
        let received = timeout(self.content_timeout, self.from.read_exact(&mut content)).await;
        received.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))?;
        Ok(content)
    }

    /// [Receives](Self::receive) a frame within `limit`, and before `stopping` is true. A first
    /// frame, which has begun, is received although `stopping` is true: its content follows at
    /// once.
    ///
    /// # Errors
    /// As `receive`, and when the frame does not arrive in time or `stopping` is true.
    pub async fn receive_within(
        &mut self,
        len_max: usize,
        limit: Duration,
        stopping: &mut watch::Receiver<bool>,
    ) -> io::Result<Zeroizing<Vec<u8>>> {
        let has_begun = self.begun.is_some();
        tokio::select! {
            received = timeout(limit, self.receive(len_max)) => {
                received.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))
            }
            _ = stopping.wait_for(|&stops| stops), if !has_begun => {
                Err(ErrorKind::ConnectionAborted.into())
            }
        }
    }

    /// The refusal that the peer sent before it closed the connection.
    async fn refusal(&mut self) -> Option<io::Error> {
        let mut header = [0; FrameHeader::LEN];
        self.from.read_exact(&mut header).await.ok()?;
        FrameHeader::decode(&header).err().map(io::Error::from)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refusal::LocalRefusal;
    use std::io::Write as _;

    fn run(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(test);
    }

    #[test]
    fn a_frame_whose_content_does_not_follow_its_header_ends_the_connection() {
        run(async {
            let (near, far) = UnixStream::pair().unwrap();
            let mut far = far.into_std().unwrap();
            let mut connection = LocalConnection::new(near, LocalKind::Forward, None);
            connection.reader.content_timeout = Duration::from_millis(20);
            let idle = timeout(Duration::from_millis(60), connection.reader.receive(100)).await;
            assert!(idle.is_err(), "a header may take as long as it likes");
            far.write_all(&FrameHeader { kind: LocalKind::Forward, len: 10 }.encode()).unwrap();
            let received = timeout(Duration::from_secs(30), connection.reader.receive(100)).await;
            assert_eq!(received.expect("it is given up").unwrap_err().kind(), ErrorKind::TimedOut);
        });
    }

    #[test]
    fn a_connection_waits_for_its_next_frame_and_is_left_without_losing_any_of_it() {
        run(async {
            let (near, far) = UnixStream::pair().unwrap();
            let mut far = far.into_std().unwrap();
            let mut connection = LocalConnection::new(near, LocalKind::Forward, None);
            let (stop, mut stopping) = watch::channel(false);
            for content in [&b"one"[..], b"two"] {
                let frame = frame::encode(LocalKind::Forward, 3, |out| out.extend_from_slice(content));
                far.write_all(&frame).unwrap();
                assert!(connection.begins(&mut stopping).await.unwrap());
                assert_eq!(connection.reader.receive(100).await.unwrap()[..], *content);
                let begun = timeout(Duration::from_millis(50), connection.begins(&mut stopping)).await;
                assert!(begun.is_err(), "nothing is there: {begun:?}");
            }
            stop.send_replace(true);
            assert!(!connection.begins(&mut stopping).await.unwrap());
            assert!(connection.into_stream().is_some());
            let (near, far) = UnixStream::pair().unwrap();
            drop(far);
            let closed = LocalConnection::new(near, LocalKind::Forward, None);
            let (_stop, mut stopping) = watch::channel(false);
            assert!(closed.begins(&mut stopping).await.unwrap(), "the end is not waited for");
        });
    }

    #[test]
    fn a_refusal_is_read_although_the_frame_could_not_be_written() {
        run(async {
            let (near, far) = UnixStream::pair().unwrap();
            let mut connection = LocalConnection::new(near, LocalKind::Changes, None);
            far.into_std().unwrap().write_all(&frame::refuse(LocalRefusal::User)).unwrap();
            let error = connection.send(1, |content| content.push(b'x')).await.unwrap_err();
            assert_eq!(LocalRefusal::of(&error), Some(LocalRefusal::User), "{error}");
        });
    }
}
