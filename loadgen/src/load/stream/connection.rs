//! A connection: queues and writes requests, reads and splits answers.

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr};

use handle_proto::limit::MESSAGE_LEN_MAX;
use handle_proto::wire::Envelope;
use handle_proto::wire::envelope::EnvelopeFlags;
use mio::net::TcpStream;
use mio::{Interest, Registry, Token};

use super::{Protocol, Streams, http, json};

/// Maximum length of an answer, framing included. JSON takes a few times the room of its values.
const INPUT_LEN_MAX: usize = 8 * MESSAGE_LEN_MAX as usize;

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionEnd {
    /// No request was pending.
    Done,
    /// The server or the network closed it while a request was pending.
    Closed,
    /// The oldest request was pending for too long.
    GivenUp,
    /// The received bytes cannot be split into answers.
    Unreadable,
}

/// What all connections share.
pub(crate) struct ConnectionContext {
    protocol: Protocol,
    host: String,
    keeps: bool,
    with_values: bool,
}

impl ConnectionContext {
    pub(crate) const fn new(host: String, streams: Streams, with_values: bool) -> Self {
        Self { protocol: streams.protocol, host, keeps: streams.keeps(), with_values }
    }
}

/// A pending request.
struct WaitingRequest {
    sent_ns: u64,
    request_id: i32,
}

/// A connection. It is registered for as long as it lives.
pub(crate) struct LoadConnection {
    stream: TcpStream,
    established: bool,
    output: Vec<u8>,
    written: usize,
    input: Vec<u8>,
    /// In the order they were sent, which over HTTP is the order of answers.
    waiting: VecDeque<WaitingRequest>,
    /// Number of requests so far.
    taken: u32,
}

impl LoadConnection {
    pub(crate) fn begin(
        target: SocketAddr,
        source: Option<IpAddr>,
        token: Token,
        registry: &Registry,
    ) -> io::Result<Self> {
        let mut stream = connect(target, source)?;
        // Otherwise the kernel delays a request until the one before is acknowledged.
        stream.set_nodelay(true)?;
        registry.register(&mut stream, token, Interest::READABLE | Interest::WRITABLE)?;
        Ok(Self {
            stream,
            established: false,
            output: Vec::new(),
            written: 0,
            input: Vec::new(),
            waiting: VecDeque::new(),
            taken: 0,
        })
    }

    pub(crate) const fn is_established(&self) -> bool {
        self.established
    }

    /// Number of requests that it can take now.
    pub(crate) fn room(&self, streams: &Streams) -> usize {
        streams.room(self.taken, self.waiting.len())
    }

    /// The send time of the oldest pending request.
    pub(crate) fn oldest_ns(&self) -> Option<u64> {
        self.waiting.front().map(|waiting| waiting.sent_ns)
    }

    /// Queues a request; [`write`](Self::write) sends it.
    pub(crate) fn queue(&mut self, message: &[u8], now_ns: u64, context: &ConnectionContext) {
        let request_id = id_of(message);
        match context.protocol {
            Protocol::Tcp => self.output.extend_from_slice(message),
            Protocol::Http => http::write_post(message, &context.host, context.keeps, &mut self.output),
            Protocol::Json => json::write_get(message, &context.host, context.keeps, &mut self.output),
        }
        self.waiting.push_back(WaitingRequest { sent_ns: now_ns, request_id });
        self.taken = self.taken.saturating_add(1);
    }

    /// Writes as much as the kernel accepts.
    pub(crate) fn write(&mut self) -> Result<(), ConnectionEnd> {
        while self.written < self.output.len() {
            match self.stream.write(&self.output[self.written..]) {
                Ok(0) => return Err(ConnectionEnd::Closed),
                Ok(len) => self.written += len,
                Err(error) if is_not_now(&error) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Err(ConnectionEnd::Closed),
            }
        }
        self.output.clear();
        self.written = 0;
        Ok(())
    }

    /// Reads received bytes through `room`, and passes each answer to `take` as a whole message
    /// with its envelope.
    pub(crate) fn turn(
        &mut self,
        streams: &Streams,
        context: &ConnectionContext,
        room: &mut [u8],
        mut take: impl FnMut(&[u8]),
    ) -> Result<(), ConnectionEnd> {
        let is_over = self.read(room)?;
        let mut is_last = false;
        while !self.input.is_empty() {
            let cut = match context.protocol {
                Protocol::Tcp => cut_message(&mut self.input, is_over),
                Protocol::Http | Protocol::Json => self.cut_http(context, is_over),
            };
            match cut {
                CutOutcome::Partial => break,
                CutOutcome::Answer { bytes, used, closes } => {
                    self.input.drain(..used);
                    is_last |= closes;
                    let request_id = id_of(&bytes);
                    // Over TCP, answers may arrive in any order.
                    let position = self.waiting.iter().position(|waiting| waiting.request_id == request_id);
                    if let Some(position) = position {
                        self.waiting.remove(position);
                    }
                    take(&bytes);
                }
                CutOutcome::Unreadable => return Err(ConnectionEnd::Unreadable),
            }
        }
        let is_spent = streams.requests > 0 && self.taken >= streams.requests;
        match self.waiting.is_empty() {
            true if is_over || is_last || is_spent => Err(ConnectionEnd::Done),
            false if is_over || is_last => Err(ConnectionEnd::Closed),
            _ => Ok(()),
        }
    }

    /// Reads until there is no more data; returns whether the peer has closed the connection.
    fn read(&mut self, room: &mut [u8]) -> Result<bool, ConnectionEnd> {
        loop {
            match self.stream.read(room) {
                Ok(0) => return Ok(true),
                Ok(len) => {
                    self.established = true;
                    self.input.extend_from_slice(&room[..len]);
                    if self.input.len() > INPUT_LEN_MAX {
                        return Err(ConnectionEnd::Unreadable);
                    }
                }
                Err(error) if is_not_now(&error) => {
                    self.established = self.established || self.stream.peer_addr().is_ok();
                    return Ok(false);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) if self.waiting.is_empty() => return Err(ConnectionEnd::Done),
                Err(_) => return Err(ConnectionEnd::Closed),
            }
        }
    }

    fn cut_http(&mut self, context: &ConnectionContext, is_over: bool) -> CutOutcome {
        let (body, status, used, closes) = match http::parse(&self.input, is_over) {
            http::ParsedAnswer::Partial => return CutOutcome::Partial,
            http::ParsedAnswer::Broken => return CutOutcome::Unreadable,
            http::ParsedAnswer::Whole { body, status, used, closes } => (body, status, used, closes),
        };
        let Some(request_id) = self.waiting.front().map(|waiting| waiting.request_id) else {
            // An unsolicited answer, as some servers send before they close an idle connection.
            return CutOutcome::Unreadable;
        };
        let bytes = match context.protocol {
            Protocol::Json => json::message(&body, request_id, context.with_values),
            _ if status == 200 => message_in(body),
            _ => None,
        };
        CutOutcome::Answer { bytes: bytes.unwrap_or_else(|| unreadable(request_id)), used, closes }
    }
}

fn connect(target: SocketAddr, source: Option<IpAddr>) -> io::Result<TcpStream> {
    let Some(source) = source else { return TcpStream::connect(target) };
    let socket = socket2::Socket::new(socket2::Domain::for_address(target), socket2::Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SocketAddr::new(source, 0).into())?;
    match socket.connect(&target.into()) {
        Err(error) if error.raw_os_error() != Some(EINPROGRESS) => Err(error),
        _ => Ok(TcpStream::from_std(socket.into())),
    }
}

/// The error number of Linux for a connection in progress.
const EINPROGRESS: i32 = 115;

/// The id of a message; 0, which no request has, if it is too short for one.
fn id_of(message: &[u8]) -> i32 {
    message.first_chunk().map_or(0, |head| Envelope::from_bytes(head).request_id)
}

fn is_not_now(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::NotConnected)
}

enum CutOutcome {
    Partial,
    /// How many bytes of the input it used, and whether the server closes after it.
    Answer {
        bytes: Vec<u8>,
        used: usize,
        closes: bool,
    },
    Unreadable,
}

/// Cuts off the first message. A message whose end is missing at the end of the stream counts as
/// truncated.
fn cut_message(input: &mut [u8], is_over: bool) -> CutOutcome {
    // Also one whose length exceeds the limit.
    let Some((head, rest)) = input.split_first_chunk() else {
        return if is_over { CutOutcome::Unreadable } else { CutOutcome::Partial };
    };
    let envelope = Envelope::from_bytes(head);
    let (len, is_whole) = (envelope.message_len as usize, rest.len() >= envelope.message_len as usize);
    if !is_whole && !is_over && envelope.message_len <= MESSAGE_LEN_MAX {
        return CutOutcome::Partial;
    }
    let used = input.len().min(Envelope::LEN.saturating_add(len));
    // Deployed servers echo this bit, which has a meaning over UDP only.
    input[2] &= !EnvelopeFlags::TRUNCATED.0;
    CutOutcome::Answer { bytes: input[..used].to_vec(), used, closes: !is_whole }
}

/// The message in the body of an HTTP answer, which may follow a line end.
fn message_in(mut body: Vec<u8>) -> Option<Vec<u8>> {
    if body.first().is_some_and(|byte| matches!(byte, b'\r' | b'\n')) {
        body.remove(0);
    }
    Envelope::split(&body).ok()?;
    body[2] &= !EnvelopeFlags::TRUNCATED.0;
    Some(body)
}

/// An undecodable answer to `request_id`, for bytes that are not a message.
fn unreadable(request_id: i32) -> Vec<u8> {
    let envelope = Envelope { message_len: 1, ..Envelope::request(request_id) };
    [&envelope.to_bytes()[..], &[0]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(id: i32, len: u32) -> Vec<u8> {
        let envelope =
            Envelope { message_len: len, flags: EnvelopeFlags::TRUNCATED, ..Envelope::request(id) };
        [&envelope.to_bytes()[..], &vec![7; len as usize]].concat()
    }

    #[test]
    fn requests_are_not_kept_back() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (poll, target) = (mio::Poll::new().unwrap(), listener.local_addr().unwrap());
        for source in [None, Some([127, 0, 0, 5].into())] {
            let connection = LoadConnection::begin(target, source, Token(0), poll.registry()).unwrap();
            assert!(connection.stream.nodelay().unwrap());
            assert_eq!(listener.accept().unwrap().1.ip(), source.unwrap_or(target.ip()));
        }
    }

    #[test]
    fn messages_are_cut_wherever_the_bytes_end() {
        let whole = [message(1, 30), message(2, 0)].concat();
        for len in 0..50 {
            assert!(matches!(cut_message(&mut whole[..len].to_vec(), false), CutOutcome::Partial), "{len}");
        }
        let CutOutcome::Answer { bytes, used, closes } = cut_message(&mut whole.clone(), false) else {
            panic!("whole")
        };
        assert_eq!((bytes.len(), used, closes, bytes[2] & 0x20), (50, 50, false, 0));
    }

    #[test]
    fn what_ends_within_a_message_is_given_as_far_as_it_goes() {
        let mut part = message(1, 30);
        part.truncate(40);
        let CutOutcome::Answer { used, closes, .. } = cut_message(&mut part, true) else {
            panic!("all there is")
        };
        assert_eq!((used, closes), (40, true));
        let mut huge = message(1, 0);
        huge[16] = 0x7f;
        let CutOutcome::Answer { closes, .. } = cut_message(&mut huge, false) else {
            panic!("never waits for it")
        };
        assert!(closes);
    }

    #[test]
    fn http_bodies_hold_messages() {
        assert_eq!(message_in([b"\n".to_vec(), message(1, 3)].concat()).unwrap().len(), 23);
        assert_eq!(message_in(b"<html>".to_vec()), None);
        let (envelope, rest) = (unreadable(5), 1);
        assert_eq!(envelope.len(), Envelope::LEN + rest);
    }
}
