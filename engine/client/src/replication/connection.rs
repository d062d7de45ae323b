//! The connection on which a stream arrives, with TLS if the stream begins it.

use super::{StreamContent, StreamError, StreamEvent, StreamLimits, StreamReader, StreamTransport};
use crate::exchange::tls::Tls;
use handle_auth::PublicKey;
use handle_proto::data::PublicKey as PublicKeyRecord;
use handle_proto::limit::MESSAGE_LEN_MAX;
use handle_proto::wire::Envelope;
use std::fmt;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Bytes that are received at once.
const RECEIVE_LEN: usize = 64 << 10;

/// Why a stream was not received to its end.
#[derive(Debug)]
pub enum ReceiveError {
    /// The connection failed, ended early, or was silent for too long.
    Connection(io::Error),
    /// The stream is invalid.
    Stream(StreamError),
    /// TLS failed, or the server does not have the key of its site record.
    Tls,
    /// The stream is signed, but it has to be encrypted.
    Unencrypted,
}

impl fmt::Display for ReceiveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connection(error) => write!(f, "the stream ended early: {error}"),
            Self::Stream(error) => error.fmt(f),
            Self::Unencrypted => f.write_str("the stream is signed and not encrypted"),
            Self::Tls => f.write_str("TLS failed, or the server has another key than its site record"),
        }
    }
}

impl std::error::Error for ReceiveError {}

impl From<io::Error> for ReceiveError {
    fn from(error: io::Error) -> Self {
        Self::Connection(error)
    }
}

impl From<StreamError> for ReceiveError {
    fn from(error: StreamError) -> Self {
        Self::Stream(error)
    }
}

/// Interval at which a connection that waits for bytes looks whether to stop.
const STOP_INTERVAL: Duration = Duration::from_millis(100);

/// A connection on which a stream follows an answer.
#[derive(Debug)]
pub struct StreamConnection {
    socket: TcpStream,
    peer: IpAddr,
    /// Bytes of the stream that arrived with the answer.
    received: Vec<u8>,
    /// Timeout of each read.
    timeout: Duration,
    requires_tls: bool,
    control: Arc<StreamControl>,
}

/// Counts the bytes of streams, and ends them early.
#[derive(Debug, Default)]
pub struct StreamControl {
    bytes: AtomicU64,
    stop: AtomicBool,
}

impl StreamControl {
    /// The bytes of all streams so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Ends the streams that are being received, and all later ones.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Whether streams are to end.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

impl StreamConnection {
    /// The connection `socket` to `peer`, from which the first bytes of the stream, `received`,
    /// were read already. `timeout` bounds each read and write.
    pub(crate) fn new(
        socket: TcpStream,
        peer: IpAddr,
        received: Vec<u8>,
        timeout: Duration,
    ) -> io::Result<Self> {
        socket.set_read_timeout(Some(timeout.min(STOP_INTERVAL)))?;
        socket.set_write_timeout(Some(timeout))?;
        Ok(Self { socket, peer, received, timeout, requires_tls: false, control: Arc::default() })
    }

    /// Refuses a stream that is not encrypted. The items of a signed stream are proven, but an
    /// attacker between may have left out some.
    pub const fn require_tls(&mut self) {
        self.requires_tls = true;
    }

    /// Sets what counts the bytes of the stream and may end it early.
    pub fn use_control(&mut self, control: Arc<StreamControl>) {
        control.bytes.fetch_add(self.received.len() as u64, Ordering::Relaxed);
        self.control = control;
    }

    /// Sends `message`, a request with its envelope, to `server` on a new connection, and returns
    /// the answer with its envelope. `timeout` bounds connecting, and each read and
    /// write.
    ///
    /// # Errors
    /// When the server does not answer in time, or not with a message.
    pub fn request(server: SocketAddr, message: &[u8], timeout: Duration) -> io::Result<(Self, Vec<u8>)> {
        let mut socket = TcpStream::connect_timeout(&server, timeout)?;
        socket.set_read_timeout(Some(timeout))?;
        socket.set_write_timeout(Some(timeout))?;
        socket.set_nodelay(true)?;
        socket.write_all(message)?;
        let mut answer = vec![0; Envelope::LEN];
        socket.read_exact(&mut answer)?;
        let (envelope, _) = Envelope::split(&answer).map_err(|_| ErrorKind::InvalidData)?;
        if envelope.message_len > MESSAGE_LEN_MAX {
            return Err(ErrorKind::InvalidData.into());
        }
        // The bytes after the answer belong to the stream, or to its TLS handshake.
        answer.resize(Envelope::LEN + envelope.message_len as usize, 0);
        socket.read_exact(&mut answer[Envelope::LEN..])?;
        Ok((Self::new(socket, server.ip(), Vec::new(), timeout)?, answer))
    }

    /// Receives the stream that follows the answer, from the server with the key of `key_record`,
    /// and passes each part to `take`.
    ///
    /// # Errors
    /// When the stream is invalid or incomplete, or `take` fails.
    pub fn receive<E: From<ReceiveError>>(
        mut self,
        content: StreamContent,
        key_record: &[u8],
        limits: StreamLimits,
        mut take: impl FnMut(StreamEvent<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let key = PublicKey::from_record(key_record).ok();
        let mut reader = StreamReader::new(content, StreamTransport::Clear, key, limits);
        let (mut tls, mut buffer) = (None, vec![0; RECEIVE_LEN]);
        reader.feed(&std::mem::take(&mut self.received));
        loop {
            let mut begins_tls = false;
            while let Some(event) = reader.next_event().map_err(ReceiveError::from)? {
                match event {
                    StreamEvent::BeginTls => begins_tls = true,
                    _ if self.requires_tls && tls.is_none() => return Err(ReceiveError::Unencrypted.into()),
                    event => take(event)?,
                }
            }
            if reader.is_complete() {
                return Ok(());
            }
            if begins_tls {
                // Such a key proves nothing in TLS, where it is not supported.
                if matches!(PublicKeyRecord::decode(key_record), Ok(PublicKeyRecord::Dsa { .. })) {
                    return Err(ReceiveError::Tls.into());
                }
                tls = Some(Tls::new(self.peer, key_record, b"").map_err(|_| ReceiveError::Tls)?);
            }
            self.fill(&mut reader, tls.as_mut(), &mut buffer)?;
        }
    }

    /// Receives some bytes.
    fn fill(
        &mut self,
        reader: &mut StreamReader,
        tls: Option<&mut Tls>,
        buffer: &mut [u8],
    ) -> Result<(), ReceiveError> {
        let Some(tls) = tls else {
            let len = self.read(buffer)?;
            reader.feed(&buffer[..len]);
            return Ok(());
        };
        if tls.has_outgoing() {
            self.socket.write_all(&tls.outgoing())?;
        }
        let len = self.read(buffer)?;
        reader.feed(&tls.receive(&buffer[..len]).map_err(|_| ReceiveError::Tls)?);
        Ok(())
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let deadline = Instant::now() + self.timeout;
        loop {
            match self.socket.read(buffer) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(len) => {
                    self.control.bytes.fetch_add(len as u64, Ordering::Relaxed);
                    return Ok(len);
                }
                Err(error) => match error.kind() {
                    _ if self.control.is_stopped() => return Err(ErrorKind::ConnectionAborted.into()),
                    ErrorKind::Interrupted => {}
                    ErrorKind::WouldBlock | ErrorKind::TimedOut if Instant::now() < deadline => {}
                    _ => return Err(error),
                },
            }
        }
    }
}
