//! One message to one server, and the whole answer as it arrived.
//!
//! For programs that look at servers as they are. Nothing of the answer is checked but its
//! envelope; lookups use [`exchange`](crate::exchange), which decides whether an answer is
//! believed.

use crate::sockets::size_receive_buffer;
use handle_proto::DecodeError;
use handle_proto::limit::{MESSAGE_LEN_MAX, UDP_REASSEMBLY_MS};
use handle_proto::wire::Envelope;
use handle_proto::wire::fragment::cut;
use handle_proto::wire::reassembly::{Reassembly, ReassemblyLimits, ReassemblyOutcome};
use handle_proto::wire::stream::{StreamFront, split};
use std::fmt;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

/// The request id of answers to requests that the server could not read.
pub const UNREAD_REQUEST_ID: i32 = -1;

/// Bytes received at a time; no datagram is longer.
const BUFFER_LEN: usize = 1 << 16;

/// The whole answer of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawAnswer {
    /// The message, envelope first.
    pub message: Vec<u8>,
    /// Time from when the request was last sent.
    pub took: Duration,
    /// Number of datagrams of the answer; 0 over TCP.
    pub datagrams_count: usize,
}

/// The system call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketStep {
    /// Opening a UDP socket.
    Open,
    /// Setting the size of its buffer.
    SizeBuffer,
    /// Connecting it.
    Connect,
    /// Sending.
    Send,
    /// Receiving.
    Receive,
}

/// Why there is no answer.
#[derive(Debug)]
pub enum RawExchangeError {
    /// Nothing arrived in time.
    Silence,
    /// Some datagrams of the answer arrived in time, but not all.
    Partial,
    /// The UDP port is closed.
    Refused,
    /// There is no TCP connection.
    Unconnected(io::Error),
    /// The server closed the connection before its answer was complete.
    Closed,
    /// The server reset the connection.
    Reset,
    /// The answer over TCP is to another request.
    NotOurs,
    /// The request or the answer over TCP is not a message.
    Malformed(DecodeError),
    /// The operating system failed.
    Socket(SocketStep, io::Error),
}

impl fmt::Display for RawExchangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silence => f.write_str("no answer in time"),
            Self::Partial => f.write_str("only a part of the answer arrived in time"),
            Self::Refused => f.write_str("connection refused"),
            Self::Unconnected(error) => write!(f, "cannot connect: {error}"),
            Self::Closed => f.write_str("the connection was closed without an answer"),
            Self::Reset => f.write_str("the connection was reset without an answer"),
            Self::NotOurs => f.write_str("the answer is to another request"),
            Self::Malformed(error) => write!(f, "the message does not decode: {error}"),
            Self::Socket(step, error) => write!(f, "{step:?}: {error}"),
        }
    }
}

impl std::error::Error for RawExchangeError {}

impl From<DecodeError> for RawExchangeError {
    fn from(error: DecodeError) -> Self {
        Self::Malformed(error)
    }
}

fn socket_error(step: SocketStep) -> impl Fn(io::Error) -> RawExchangeError {
    move |error| RawExchangeError::Socket(step, error)
}

fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// Whether an answer with this id may be to the request with `request_id`.
const fn is_to(request_id: i32, answer_id: i32) -> bool {
    answer_id == request_id || answer_id == UNREAD_REQUEST_ID
}

/// Sends a message, envelope first, in one or more datagrams, repeats them after each of `waits`,
/// and waits for the answer. Answers to other requests, and datagrams that cannot be a part of an
/// answer, are ignored.
///
/// # Errors
/// When there is no whole answer in time, and those of the operating system.
pub fn ask_over_udp(
    server: SocketAddr,
    message: &[u8],
    waits: impl IntoIterator<Item = Duration>,
) -> Result<RawAnswer, RawExchangeError> {
    let (request, data) = Envelope::split(message)?;
    let socket = connected_socket(server)?;
    let mut fragments = Reassembly::new(ReassemblyLimits {
        messages_max: 1,
        messages_per_sender_max: 1,
        bytes_max: MESSAGE_LEN_MAX as usize,
        age_ms_max: UDP_REASSEMBLY_MS.into(),
    });
    let mut buffer = vec![0; BUFFER_LEN];
    for wait in waits {
        for fragment in cut(&request) {
            let datagram = [&fragment.envelope, &data[fragment.range]].concat();
            socket.send(&datagram).map_err(|error| match error.kind() {
                ErrorKind::ConnectionRefused => RawExchangeError::Refused,
                _ => RawExchangeError::Socket(SocketStep::Send, error),
            })?;
        }
        let sent = Instant::now();
        while let Some(left) = wait.checked_sub(sent.elapsed()).filter(|left| !left.is_zero()) {
            socket.set_read_timeout(Some(left)).map_err(socket_error(SocketStep::Receive))?;
            let datagram = match socket.recv(&mut buffer) {
                Ok(len) => &buffer[..len],
                Err(error) if is_late(&error) => break,
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                    return Err(RawExchangeError::Refused);
                }
                Err(error) => return Err(RawExchangeError::Socket(SocketStep::Receive, error)),
            };
            let Ok((envelope, _)) = Envelope::split(datagram) else { continue };
            if !is_to(request.request_id, envelope.request_id) {
                continue;
            }
            let message = match fragments.accept((), datagram, 0) {
                Ok(ReassemblyOutcome::Whole(message)) => message.to_vec(),
                Ok(ReassemblyOutcome::Complete(message)) => message,
                Ok(ReassemblyOutcome::Incomplete) | Err(_) => continue,
            };
            return Ok(RawAnswer { message, took: sent.elapsed(), datagrams_count: cut(&envelope).len() });
        }
    }
    Err(if fragments.is_empty() { RawExchangeError::Silence } else { RawExchangeError::Partial })
}

/// A socket that receives from `server` only.
fn connected_socket(server: SocketAddr) -> Result<UdpSocket, RawExchangeError> {
    let any: SocketAddr = match server {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).map_err(socket_error(SocketStep::Open))?;
    size_receive_buffer(&socket).map_err(socket_error(SocketStep::SizeBuffer))?;
    socket.connect(server).map_err(socket_error(SocketStep::Connect))?;
    Ok(socket)
}

/// Sends a message, envelope first, over a new connection, and waits for the answer. Connecting and
/// the answer may each take as long as `timeout`, however slowly the bytes arrive.
///
/// # Errors
/// When there is no whole answer in time, and those of the operating system.
pub fn ask_over_tcp(
    server: SocketAddr,
    message: &[u8],
    timeout: Duration,
) -> Result<RawAnswer, RawExchangeError> {
    let (request, _) = Envelope::split(message)?;
    let mut stream = TcpStream::connect_timeout(&server, timeout).map_err(|error| match is_late(&error) {
        true => RawExchangeError::Silence,
        false => RawExchangeError::Unconnected(error),
    })?;
    stream.set_write_timeout(Some(timeout)).map_err(socket_error(SocketStep::Send))?;
    let sent = Instant::now();
    stream.write_all(message).map_err(socket_error(SocketStep::Send))?;
    let (mut bytes, mut buffer) = (Vec::new(), vec![0; BUFFER_LEN]);
    loop {
        if let StreamFront::Message(message, _) = split(&bytes, MESSAGE_LEN_MAX)? {
            let (envelope, _) = Envelope::split(message)?;
            if !is_to(request.request_id, envelope.request_id) {
                return Err(RawExchangeError::NotOurs);
            }
            return Ok(RawAnswer { message: message.to_vec(), took: sent.elapsed(), datagrams_count: 0 });
        }
        let left = timeout.checked_sub(sent.elapsed()).filter(|left| !left.is_zero());
        let left = left.ok_or(RawExchangeError::Silence)?;
        stream.set_read_timeout(Some(left)).map_err(socket_error(SocketStep::Receive))?;
        match stream.read(&mut buffer) {
            Ok(0) => return Err(RawExchangeError::Closed),
            Ok(len) => bytes.extend_from_slice(&buffer[..len]),
            Err(error) if is_late(&error) => return Err(RawExchangeError::Silence),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Err(RawExchangeError::Reset),
            Err(error) => return Err(RawExchangeError::Socket(SocketStep::Receive, error)),
        }
    }
}
