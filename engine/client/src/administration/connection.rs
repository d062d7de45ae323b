//! A connection that is opened on demand, and reused if the server keeps it.
//!
//! Deployed servers close a connection after one answer. Its end arrives a moment after the answer,
//! so a quiet connection need not be one on which the server reads another request.

use super::AskError;
#[cfg(feature = "tls")]
use crate::replication::connection::StreamConnection;
use handle_proto::limit::MESSAGE_LEN_MAX;
use handle_proto::wire::stream::{StreamFront, split};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Bytes read from the socket at once.
const BUFFER_LEN: usize = 1 << 14;

#[derive(Debug)]
pub(super) struct ServerConnection {
    server: SocketAddr,
    timeout: Duration,
    stream: Option<TcpStream>,
    received: Vec<u8>,
    /// Number of answers received on the current connection.
    answers_count: u32,
    /// Whether the last answer said that the server keeps the connection.
    is_kept: bool,
    /// Whether the server has answered again on a connection that it said it would keep.
    has_kept: bool,
    /// Whether the last request was lost on a reused connection before any byte of its answer
    /// arrived.
    was_lost_unheard: bool,
}

impl ServerConnection {
    pub(super) const fn new(server: SocketAddr, timeout: Duration) -> Self {
        Self {
            server,
            timeout,
            stream: None,
            received: Vec::new(),
            answers_count: 0,
            is_kept: false,
            has_kept: false,
            was_lost_unheard: false,
        }
    }

    /// A connection with the same settings to another address of the server.
    pub(super) const fn sibling(&self, server: SocketAddr) -> Self {
        Self::new(server, self.timeout)
    }

    /// The address of the server.
    pub(super) const fn server(&self) -> SocketAddr {
        self.server
    }

    /// Drops the connection and the bytes received on it.
    pub(super) fn close(&mut self) {
        self.stream = None;
        self.received.clear();
        (self.answers_count, self.is_kept) = (0, false);
    }

    /// Records that a whole answer was received. The connection is closed unless the server keeps
    /// it.
    pub(super) fn note_answer(&mut self, is_kept: bool) {
        self.answers_count += 1;
        self.is_kept = is_kept;
        self.has_kept |= is_kept && self.answers_count > 1;
        if !is_kept {
            self.close();
        }
    }

    /// Whether there is a connection for a request: a new one, or one that the server keeps and has
    /// not closed.
    pub(super) fn is_open(&self) -> bool {
        let may_be_used = self.answers_count == 0 || self.is_kept;
        may_be_used && self.received.is_empty() && self.stream.as_ref().is_some_and(is_quiet)
    }

    /// Whether the connection is new, or the server is known to keep its connections.
    pub(super) const fn is_trusted(&self) -> bool {
        self.answers_count == 0 || self.has_kept
    }

    /// Whether the last request was lost on a reused connection before any byte of its answer
    /// arrived.
    pub(super) const fn was_lost_unheard(&self) -> bool {
        self.was_lost_unheard
    }

    /// Ensures that there is a connection. The current one is kept if a request can be sent on it.
    pub(super) fn open(&mut self) -> Result<(), AskError> {
        if !self.is_open() {
            self.close();
        }
        self.stream().map(|_| ())
    }

    /// Sends a whole message, on the current connection if a request can be sent on it.
    pub(super) fn send(&mut self, message: &[u8]) -> Result<(), AskError> {
        self.was_lost_unheard = false;
        if !self.is_open() {
            self.close();
        }
        let is_used = self.stream.is_some();
        match self.try_send(message) {
            // The message was not sent completely, so the server has not read a whole request, and
            // it can be sent once more.
            Err(AskError::Lost(_)) if is_used => {
                self.close();
                self.try_send(message)
            }
            sent => sent,
        }
    }

    /// Sends a message on the current connection, if the kernel takes all of it at once. Returns
    /// whether it did.
    pub(super) fn send_now(&mut self, message: &[u8]) -> bool {
        let is_open = self.is_open();
        let Some(stream) = self.stream.as_mut().filter(|_| is_open) else { return false };
        let sent = stream.set_nonblocking(true).and_then(|()| stream.write(message));
        let is_sent = sent.is_ok_and(|len| len == message.len()) && stream.set_nonblocking(false).is_ok();
        if !is_sent {
            self.close();
        }
        is_sent
    }

    /// Hands over the connection, on which a stream follows the last answer, with the bytes of the
    /// stream that were received already.
    #[cfg(feature = "tls")]
    pub(super) fn take_stream(&mut self) -> Result<StreamConnection, AskError> {
        let stream = self.stream.take().ok_or_else(|| AskError::Lost(ErrorKind::NotConnected.into()))?;
        let received = std::mem::take(&mut self.received);
        self.close();
        StreamConnection::new(stream, self.server.ip(), received, self.timeout).map_err(AskError::Lost)
    }

    fn try_send(&mut self, message: &[u8]) -> Result<(), AskError> {
        self.stream()?.write_all(message).map_err(AskError::Lost)
    }

    fn stream(&mut self) -> Result<&mut TcpStream, AskError> {
        Ok(match &mut self.stream {
            Some(stream) => stream,
            none => {
                let stream =
                    TcpStream::connect_timeout(&self.server, self.timeout).map_err(AskError::Connect)?;
                stream.set_nodelay(true).map_err(AskError::Connect)?;
                stream.set_write_timeout(Some(self.timeout)).map_err(AskError::Connect)?;
                none.insert(stream)
            }
        })
    }

    /// Receives the next message of the server, envelope first.
    pub(super) fn receive(&mut self) -> Result<Vec<u8>, AskError> {
        let received = self.receive_until(Instant::now() + self.timeout);
        if let Err(AskError::Lost(_)) = &received {
            self.was_lost_unheard = self.answers_count > 0 && self.received.is_empty();
        }
        received
    }

    pub(super) fn receive_until(&mut self, deadline: Instant) -> Result<Vec<u8>, AskError> {
        let stream = self.stream.as_mut().ok_or_else(|| AskError::Lost(ErrorKind::NotConnected.into()))?;
        let mut buffer = [0; BUFFER_LEN];
        loop {
            if let StreamFront::Message(message, after) = split(&self.received, MESSAGE_LEN_MAX)? {
                let (message, after) = (message.to_vec(), after.len());
                self.received.drain(..self.received.len() - after);
                return Ok(message);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(AskError::Late);
            }
            stream.set_read_timeout(Some(left)).map_err(AskError::Lost)?;
            match stream.read(&mut buffer) {
                Ok(0) => return Err(AskError::Lost(ErrorKind::UnexpectedEof.into())),
                Ok(len) => self.received.extend_from_slice(&buffer[..len]),
                Err(error) if is_late(&error) => return Err(AskError::Late),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(AskError::Lost(error)),
            }
        }
    }
}

fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// Whether nothing was received: neither the end of the connection, nor unrequested bytes.
fn is_quiet(stream: &TcpStream) -> bool {
    let peeked = stream.set_nonblocking(true).and_then(|()| stream.peek(&mut [0]));
    let is_quiet = peeked.is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
    is_quiet && stream.set_nonblocking(false).is_ok()
}
