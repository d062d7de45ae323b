//! Clients with chosen source addresses in 127.0.0.0/8. A datagram from the address of another
//! client is equivalent to a forged one.

use handle_proto::wire::Envelope;
use handle_proto::wire::fragment::cut;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Time limit for an answer.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A socket with the address `ip` that sends to `server`.
///
/// # Panics
/// If no socket can be created.
#[must_use]
pub fn udp_from(ip: impl Into<IpAddr>, server: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind((ip.into(), 0)).expect("an address on loopback");
    socket.connect(server).expect("a server on loopback");
    socket.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
    socket
}

/// A connection from the address `ip` to `server`.
///
/// # Panics
/// If the connection fails.
#[must_use]
pub fn tcp_from(ip: impl Into<IpAddr>, server: SocketAddr) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let socket: OwnedFd = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    bind(&socket, &SocketAddr::new(ip.into(), 0)).expect("an address on loopback");
    connect(&socket, &server).expect("a connection");
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
    stream
}

/// Sends `message` over `socket` and returns the answer, which must fit into one datagram.
///
/// # Panics
/// If there is no answer.
#[must_use]
pub fn ask(socket: &UdpSocket, message: &[u8]) -> Vec<u8> {
    send(socket, message);
    let mut buffer = [0; 2048];
    let len = socket.recv(&mut buffer).expect("an answer");
    buffer[..len].to_vec()
}

/// Sends `message` without waiting for an answer.
///
/// # Panics
/// If the message cannot be sent.
pub fn send(socket: &UdpSocket, message: &[u8]) {
    let (envelope, rest) = Envelope::split(message).expect("an envelope");
    for datagram in cut(&envelope) {
        let bytes = [&datagram.envelope[..], &rest[datagram.range]].concat();
        socket.send(&bytes).expect("a datagram is sent");
    }
}

/// Sends `message` over a connection and returns the answer.
///
/// # Panics
/// If there is no answer.
#[must_use]
pub fn ask_over(stream: &mut TcpStream, message: &[u8]) -> Vec<u8> {
    stream.write_all(message).expect("a message is sent");
    next_answer(stream)
}

/// The next message of a connection.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn next_answer(stream: &mut TcpStream) -> Vec<u8> {
    let mut answer = vec![0; Envelope::LEN];
    stream.read_exact(&mut answer).expect("an answer");
    let (envelope, _) = Envelope::split(&answer).expect("an envelope");
    answer.resize(Envelope::LEN + envelope.message_len as usize, 0);
    stream.read_exact(&mut answer[Envelope::LEN..]).expect("a whole answer");
    answer
}
