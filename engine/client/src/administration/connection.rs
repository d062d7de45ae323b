//! A connection that is opened when it is needed, and used again while the server keeps it.

use super::AskError;
use handle_proto::limit::MESSAGE_LEN_MAX;
use handle_proto::wire::stream::{Front, split};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Bytes taken from the socket at once.
const ROOM: usize = 1 << 14;

#[derive(Debug)]
pub(super) struct Connection {
    server: SocketAddr,
    patience: Duration,
    stream: Option<TcpStream>,
    received: Vec<u8>,
}

impl Connection {
    pub(super) const fn new(server: SocketAddr, patience: Duration) -> Self {
        Self { server, patience, stream: None, received: Vec::new() }
    }

    /// Forgets the connection, and what came on it.
    pub(super) fn close(&mut self) {
        self.stream = None;
        self.received.clear();
    }

    /// Whether there is a connection that the server has not left.
    pub(super) fn is_open(&self) -> bool {
        self.received.is_empty() && self.stream.as_ref().is_some_and(is_quiet)
    }

    /// Sees to it that there is a connection: the one that is there if the server has not left it.
    pub(super) fn open(&mut self) -> Result<(), AskError> {
        if !self.is_open() {
            self.close();
        }
        self.stream().map(|_| ())
    }

    /// Sends a whole message, on the connection that is there if the server has not left it.
    pub(super) fn send(&mut self, message: &[u8]) -> Result<(), AskError> {
        if !self.is_open() {
            self.close();
        }
        let is_used = self.stream.is_some();
        match self.try_send(message) {
            // A server that leaves just now has read no whole request, so that it can be sent once more.
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
        self.receive_until(Instant::now() + self.patience)
    }

    pub(super) fn receive_until(&mut self, deadline: Instant) -> Result<Vec<u8>, AskError> {
        let stream = self.stream.as_mut().ok_or_else(|| AskError::Lost(ErrorKind::NotConnected.into()))?;
        let mut room = [0; ROOM];
        loop {
            if let Front::Message(message, after) = split(&self.received, MESSAGE_LEN_MAX)? {
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
