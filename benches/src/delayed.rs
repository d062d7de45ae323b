//! A server that is far away, simulated on loopback: it answers every question about a handle with
//! one record, after a delay.

use handle_proto::wire::query::QueryAnswer;
use handle_proto::wire::{Body, Envelope, Message, MessageBuf, Reply, Request, Response};
use handle_proto::{ResponseCode, Value, Values};
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Pause when there is nothing to receive and nothing is due.
const PAUSE: Duration = Duration::from_micros(100);
/// Most datagrams received between two looks at what is due.
const RECEIVE_MAX: usize = 64;

/// A server that answers late.
#[derive(Debug)]
pub struct DelayedServer {
    socket: UdpSocket,
    delay: Duration,
    waiting: VecDeque<(Instant, SocketAddr, Vec<u8>)>,
}

impl DelayedServer {
    /// Opens a server on loopback.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn open(delay: Duration) -> anyhow::Result<Self> {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 4 << 20)?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, delay, waiting: VecDeque::new() })
    }

    /// Returns its address.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Serves until `stop` is set.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn serve(mut self, stop: &AtomicBool) -> anyhow::Result<()> {
        while !stop.load(Ordering::Relaxed) {
            if !self.receive()? & !self.send_due()? {
                std::thread::sleep(PAUSE);
            }
        }
        Ok(())
    }

    /// Takes the requests that have come. Returns whether there were any.
    fn receive(&mut self) -> anyhow::Result<bool> {
        let mut buffer = [0; 1500];
        for count in 0..RECEIVE_MAX {
            match self.socket.recv_from(&mut buffer) {
                Ok((len, from)) => {
                    if let Some(answer) = answer(&buffer[..len]) {
                        self.waiting.push_back((Instant::now() + self.delay, from, answer));
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(count > 0),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    /// Sends the answers that are due. Returns whether there were any.
    fn send_due(&mut self) -> anyhow::Result<bool> {
        let now = Instant::now();
        let mut has_sent = false;
        while self.waiting.front().is_some_and(|(due, ..)| *due <= now) {
            if let Some((_, to, answer)) = self.waiting.pop_front() {
                // An asker that has gone does not matter.
                let _ = self.socket.send_to(&answer, to);
            }
            has_sent = true;
        }
        Ok(has_sent)
    }
}

/// Returns the answer to a request; `None` if it is not a question about a handle.
fn answer(request: &[u8]) -> Option<Vec<u8>> {
    let (envelope, rest) = Envelope::split(request).ok()?;
    let message = Message::decode(rest).ok()?;
    let Ok(Body::Request(Request::Resolution(query))) = message.decode_body(envelope.version) else {
        return None;
    };
    let values = [
        Value::new(1, b"URL", b"https://publisher.example/articles/of/a/handle"),
        Value::new(3, b"JOURNAL", b"A journal with a name of the usual length"),
        Value::new(100, b"HS_ADMIN", &[0; 30]),
    ];
    let mut storage = Vec::new();
    let values = Values::build(values, &mut storage);
    let response = Response::Answer(QueryAnswer { handle: query.handle, values });
    let reply = Reply { code: ResponseCode::SUCCESS, digest: None, response };
    MessageBuf::reply(&envelope, &message.header, &reply).unsigned().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::requests::{RequestKind, request};

    #[test]
    fn answers_come_after_the_delay() {
        let server = DelayedServer::open(Duration::from_millis(50)).unwrap();
        let address = server.address().unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let serving = scope.spawn(|| server.serve(&stop));
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            let (begun, mut buffer) = (Instant::now(), [0; 1500]);
            socket.send_to(b"noise", address).unwrap();
            socket.send_to(&request(b"10.1/a", RequestKind::Plain, 7), address).unwrap();
            let len = socket.recv(&mut buffer).unwrap();
            assert!(begun.elapsed() >= Duration::from_millis(50));
            assert!(crate::flood::is_success(&buffer[..len]));
            stop.store(true, Ordering::Relaxed);
            serving.join().unwrap().unwrap();
        });
    }
}
