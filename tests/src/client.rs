//! A simple client that sends one request at a time over UDP.

use handle_proto::wire::fragment::cut;
use handle_proto::wire::list::{Indexes, Strings};
use handle_proto::wire::query::Query;
use handle_proto::wire::reassembly::{Reassembly, ReassemblyLimits, ReassemblyOutcome};
use handle_proto::wire::{Body, Envelope, Header, Message, MessageBuf, Request, Response};
use handle_proto::{OpCode, OpFlags, ResponseCode};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

/// Time limit for an answer; on loopback it takes microseconds.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A client of one server.
#[derive(Debug)]
pub struct TestClient {
    socket: UdpSocket,
    request_id: i32,
}

/// A received reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedReply {
    /// The response code.
    pub code: ResponseCode,
    /// The handle as returned.
    pub handle: Vec<u8>,
    /// The encoded values, concatenated.
    pub values: Vec<u8>,
    /// Number of values.
    pub values_count: usize,
}

/// A plain request for all public values of `handle`, as a datagram.
#[must_use]
pub fn request(handle: &[u8], request_id: i32) -> Vec<u8> {
    let envelope = Envelope::request(request_id);
    let header = Header::request(OpCode::RESOLUTION, OpFlags::PLAIN_REQUEST, 0);
    let query = Query { handle, indexes: Indexes::EMPTY, types: Strings::EMPTY };
    MessageBuf::request(&envelope, &header, &Request::Resolution(query)).unsigned().expect("a short request")
}

impl TestClient {
    /// A client of `server`.
    ///
    /// # Panics
    /// If no socket can be created.
    #[must_use]
    pub fn new(server: SocketAddr) -> Self {
        let any: SocketAddr = if server.is_ipv4() { ([0; 4], 0).into() } else { ([0u16; 8], 0).into() };
        let socket = UdpSocket::bind(any).expect("a socket");
        socket.connect(server).expect("an address on loopback");
        socket.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
        Self { socket, request_id: 0 }
    }

    /// Requests all public values of a handle; `None` without an answer.
    ///
    /// # Panics
    /// If the answer does not decode.
    pub fn resolve(&mut self, handle: &[u8]) -> Option<ReceivedReply> {
        self.request_id += 1;
        self.socket.send(&request(handle, self.request_id)).ok()?;
        receive(&self.socket, self.request_id).map(|message| ReceivedReply::read(&message))
    }
}

/// Sends a message in its stream form to `server`, and returns the answer in the same form, or
/// `None` without an answer.
///
/// # Panics
/// If no socket can be created, or the answer is invalid.
#[must_use]
pub fn exchange(server: SocketAddr, message: &[u8]) -> Option<Vec<u8>> {
    let TestClient { socket, .. } = TestClient::new(server);
    let (envelope, rest) = Envelope::split(message).expect("an envelope");
    for datagram in cut(&envelope) {
        socket.send(&[&datagram.envelope, &rest[datagram.range]].concat()).ok()?;
    }
    receive(&socket, envelope.request_id)
}

/// Like [`exchange`], over a new TCP connection.
///
/// # Panics
/// If the connection fails, or the answer is invalid.
#[must_use]
pub fn exchange_over_tcp(server: SocketAddr, message: &[u8]) -> Option<Vec<u8>> {
    exchange_on(TcpStream::connect(server).expect("a connection"), message)
}

/// Sends a message on a connection and returns the answer; `None` if the server closes first.
///
/// # Panics
/// If the connection has no timeouts.
#[must_use]
pub fn exchange_on(mut stream: TcpStream, message: &[u8]) -> Option<Vec<u8>> {
    stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
    stream.write_all(message).ok()?;
    let mut answer = vec![0; Envelope::LEN];
    stream.read_exact(&mut answer).ok()?;
    let (envelope, _) = Envelope::split(&answer).expect("an envelope");
    answer.resize(Envelope::LEN + envelope.message_len as usize, 0);
    stream.read_exact(&mut answer[Envelope::LEN..]).ok()?;
    Some(answer)
}

/// The complete answer to a request, with its envelope.
fn receive(socket: &UdpSocket, request_id: i32) -> Option<Vec<u8>> {
    let mut fragments = Reassembly::new(ReassemblyLimits {
        messages_max: 1,
        messages_per_sender_max: 1,
        bytes_max: 1 << 20,
        age_ms_max: u64::MAX,
    });
    let mut buffer = [0; 2048];
    loop {
        let len = socket.recv(&mut buffer).ok()?;
        let (envelope, _) = Envelope::split(&buffer[..len]).expect("an envelope");
        if envelope.request_id != request_id {
            continue;
        }
        match fragments.accept((), &buffer[..len], 0).expect("a fragment that fits") {
            ReassemblyOutcome::Incomplete => {}
            ReassemblyOutcome::Whole(message) => return Some(message.to_vec()),
            ReassemblyOutcome::Complete(message) => return Some(message),
        }
    }
}

impl ReceivedReply {
    fn read(message: &[u8]) -> Self {
        let (envelope, message) = Envelope::split(message).expect("an envelope");
        let message = Message::decode(message).expect("a message");
        let Body::Reply(reply) = message.decode_body(envelope.version).expect("a body") else {
            panic!("a reply");
        };
        match reply.response {
            Response::Answer(answer) => Self {
                code: reply.code,
                handle: answer.handle.to_vec(),
                values: answer.values.as_bytes().to_vec(),
                values_count: answer.values.len(),
            },
            _ => Self { code: reply.code, handle: vec![], values: vec![], values_count: 0 },
        }
    }
}
