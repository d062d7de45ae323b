//! A connection that is opened when it is needed, and used again where the server says that it keeps it.
//!
//! Deployed servers close a connection after one answer. The end of it arrives a moment after the answer, so that a
//! connection on which nothing has arrived since need not be one on which another request is read.

use super::AskError;
use handle_proto::limit::MESSAGE_LEN_MAX;
use handle_proto::wire::stream::{StreamFront, split};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Bytes taken from the socket at once.
const ROOM: usize = 1 << 14;

#[derive(Debug)]
pub(super) struct ServerConnection {
    server: SocketAddr,
    patience: Duration,
    stream: Option<TcpStream>,
    received: Vec<u8>,
    /// Answers that have come on the connection there is.
    answers_count: u32,
    /// Whether the last of them said that the connection stays.
    is_kept: bool,
    /// Whether the server has answered again on a connection that it said would stay.
    has_kept: bool,
    /// Whether the last request was lost on a connection that was used before, with nothing heard of its answer.
    was_lost_unheard: bool,
}

impl ServerConnection {
    pub(super) const fn new(server: SocketAddr, patience: Duration) -> Self {
        Self {
            server,
            patience,
            stream: None,
            received: Vec::new(),
            answers_count: 0,
            is_kept: false,
            has_kept: false,
            was_lost_unheard: false,
        }
    }

    /// The same to another address of the server.
    pub(super) const fn sibling(&self, server: SocketAddr) -> Self {
        Self::new(server, self.patience)
    }

    /// Where the server is.
    pub(super) const fn server(&self) -> SocketAddr {
        self.server
    }

    /// Forgets the connection, and what came on it.
    pub(super) fn close(&mut self) {
        self.stream = None;
        self.received.clear();
        (self.answers_count, self.is_kept) = (0, false);
    }

    /// Notes that a whole answer has come. The connection is closed unless the answer says that it stays.
    pub(super) fn note_answer(&mut self, is_kept: bool) {
        self.answers_count += 1;
        self.is_kept = is_kept;
        self.has_kept |= is_kept && self.answers_count > 1;
        if !is_kept {
            self.close();
        }
    }

    /// Whether there is a connection that a request can go out on: one that is new, or that the server keeps and has
    /// not left.
    pub(super) fn is_open(&self) -> bool {
        let may_be_used = self.answers_count == 0 || self.is_kept;
        may_be_used && self.received.is_empty() && self.stream.as_ref().is_some_and(is_quiet)
    }

    /// Whether the connection is new, or the server has been seen to keep its connections.
    pub(super) const fn is_trusted(&self) -> bool {
        self.answers_count == 0 || self.has_kept
    }

    /// Whether the last request was lost on a connection that was used before, with nothing heard of its answer.
    pub(super) const fn was_lost_unheard(&self) -> bool {
        self.was_lost_unheard
    }

    /// Sees to it that there is a connection: the one that is there if a request can go out on it.
    pub(super) fn open(&mut self) -> Result<(), AskError> {
        if !self.is_open() {
            self.close();
        }
        self.stream().map(|_| ())
    }

    /// Sends a whole message, on the connection that is there if a request can go out on it.
    pub(super) fn send(&mut self, message: &[u8]) -> Result<(), AskError> {
        self.was_lost_unheard = false;
        if !self.is_open() {
            self.close();
        }
        let is_used = self.stream.is_some();
        match self.try_send(message) {
            // Not all of it was taken, so the server has not read a whole request, and it can be sent once more.
            Err(AskError::Lost(_)) if is_used => {
                self.close();
                self.try_send(message)
            }
            sent => sent,
        }
    }

    /// Sends a message on the connection that is there, if it takes the whole of it at once; whether it did.
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

    fn try_send(&mut self, message: &[u8]) -> Result<(), AskError> {
        self.stream()?.write_all(message).map_err(AskError::Lost)
    }

    fn stream(&mut self) -> Result<&mut TcpStream, AskError> {
        Ok(match &mut self.stream {
            Some(stream) => stream,
            none => {
                let stream =
                    TcpStream::connect_timeout(&self.server, self.patience).map_err(AskError::Connect)?;
                stream.set_nodelay(true).map_err(AskError::Connect)?;
                stream.set_write_timeout(Some(self.patience)).map_err(AskError::Connect)?;
                none.insert(stream)
            }
        })
    }

    /// The next message of the server, envelope first.
    pub(super) fn receive(&mut self) -> Result<Vec<u8>, AskError> {
        let received = self.receive_until(Instant::now() + self.patience);
        if let Err(AskError::Lost(_)) = &received {
            self.was_lost_unheard = self.answers_count > 0 && self.received.is_empty();
        }
        received
    }

    pub(super) fn receive_until(&mut self, deadline: Instant) -> Result<Vec<u8>, AskError> {
        let stream = self.stream.as_mut().ok_or_else(|| AskError::Lost(ErrorKind::NotConnected.into()))?;
        let mut room = [0; ROOM];
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
            match stream.read(&mut room) {
                Ok(0) => return Err(AskError::Lost(ErrorKind::UnexpectedEof.into())),
                Ok(len) => self.received.extend_from_slice(&room[..len]),
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

/// Whether nothing has come: neither the end of the connection, nor bytes that nobody asked for.
fn is_quiet(stream: &TcpStream) -> bool {
    let peeked = stream.set_nonblocking(true).and_then(|()| stream.peek(&mut [0]));
    let is_quiet = peeked.is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
    is_quiet && stream.set_nonblocking(false).is_ok()
}
