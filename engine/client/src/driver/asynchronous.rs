//! A driver with sockets of tokio: any number of concurrent questions on one runtime.

use super::{ResolvedQuestion, answer_timeout, is_shared, lookup, now};
use crate::exchange::{AttemptError, Transmit};
use crate::flight::FlightRole;
use crate::lookup::{Client, Lookup, LookupError, LookupOptions};
use crate::refresh::{RefreshError, RenewalGuard};
use crate::{LookupAnswer, Question};
use handle_proto::data::site::InterfaceProtocol;
use socket2::SockRef;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::{Instant, timeout, timeout_at};

/// Most bytes of one datagram, or of one read from a connection. Each question has its own buffer
/// of this size.
const BUFFER_LEN: usize = 1 << 14;

/// Resolves questions with sockets of tokio. Clones share a [`Client`]; each question is a separate
/// future.
///
/// Dropping a future abandons its question; other callers who wait for the same answer then ask
/// themselves.
#[derive(Clone, Debug)]
pub struct AsyncDriver {
    client: Arc<Client>,
}

impl AsyncDriver {
    /// A driver for lookups of `client`.
    #[must_use]
    pub const fn new(client: Arc<Client>) -> Self {
        Self { client }
    }

    /// Resolves a question as [`BlockingDriver::resolve`](super::BlockingDriver::resolve) does,
    /// without blocking a thread. If a renewal of the global service is due, a separate task makes
    /// it.
    pub async fn resolve(&self, question: &Question, options: &LookupOptions) -> ResolvedQuestion {
        let resolved = self.resolve_alone(question, options).await;
        if let Some(renewing) = RenewalGuard::begin(&self.client, now()) {
            let driver = self.clone();
            tokio::spawn(async move { driver.renew(renewing).await });
        }
        resolved
    }

    async fn resolve_alone(&self, question: &Question, options: &LookupOptions) -> ResolvedQuestion {
        if !is_shared(question, options) {
            return self.ask(question, options).await;
        }
        let deadline = Instant::now() + Duration::from_millis(self.client.limits.timeout_ms);
        loop {
            if let Some(answer) = self.client.cache.get(question, now()) {
                return ResolvedQuestion::from_flight(Ok(answer), question);
            }
            let flight = match self.client.flights.join(question) {
                FlightRole::Lead(lead) => {
                    let resolved = self.ask(question, options).await;
                    lead.land(resolved.outcome.clone());
                    return resolved;
                }
                FlightRole::Follow(flight) => flight,
            };
            match timeout_at(deadline, poll_fn(|context| flight.poll(context))).await {
                Ok(Some(outcome)) => return ResolvedQuestion::from_flight(outcome, question),
                // The leader is gone without an outcome, so another caller has to ask.
                Ok(None) => {}
                Err(_) => return self.ask(question, options).await,
            }
        }
    }

    /// Renews the records of the global service if that is due.
    ///
    /// # Errors
    /// When the records stay as they are, or the new ones could not be written.
    pub async fn renew_if_due(&self) -> Option<Result<(), RefreshError>> {
        let renewing = RenewalGuard::begin(&self.client, now())?;
        Some(self.renew(renewing).await)
    }

    async fn renew(&self, mut renewing: RenewalGuard) -> Result<(), RefreshError> {
        while let Some(question) = renewing.poll_question() {
            let outcome = self.resolve_alone(&question, &RenewalGuard::options()).await.outcome;
            renewing.handle_answer(question, outcome.ok());
        }
        renewing.finish()
    }

    /// Ends the sessions of all drivers of this client, as
    /// [`BlockingDriver::end_sessions`](super::BlockingDriver::end_sessions) does, on a thread for
    /// blocking work.
    pub async fn end_sessions(&self) {
        let mut driver = super::BlockingDriver::new(Arc::clone(&self.client));
        // Without a thread for it, the sessions expire.
        let _ = tokio::task::spawn_blocking(move || driver.end_sessions()).await;
    }

    async fn ask(&self, question: &Question, options: &LookupOptions) -> ResolvedQuestion {
        let mut lookup = lookup(&self.client, question, options);
        let outcome = self.drive(&mut lookup).await;
        ResolvedQuestion::of(outcome, &lookup)
    }

    /// Moves the bytes of a lookup until it has an outcome.
    ///
    /// # Errors
    /// Those of the lookup.
    pub async fn drive(&self, lookup: &mut Lookup) -> Result<LookupAnswer, LookupError> {
        let mut sockets = Sockets { exchanges: vec![], naming: None, buffer: vec![0; BUFFER_LEN] };
        loop {
            if let Some(outcome) = lookup.take_outcome() {
                return outcome;
            }
            sockets.exchanges.retain(|way| lookup.is_under_way(way.number));
            if let Some((number, name)) = lookup.poll_name() {
                sockets.naming = Some((number, Box::pin(addresses_of(name))));
            } else if let Some((number, transmit)) = lookup.poll_transmit(now()) {
                if let Err(error) = sockets.send(number, &transmit) {
                    lookup.handle_failure(now(), number, error);
                }
            } else {
                if let Ok((number, event)) =
                    timeout(answer_timeout(lookup), poll_fn(|context| sockets.poll(context))).await
                {
                    sockets.deliver(lookup, number, event);
                }
                lookup.handle_timeout(now());
            }
        }
    }
}

async fn addresses_of(name: String) -> Vec<IpAddr> {
    let found = tokio::net::lookup_host((name.as_str(), 0_u16)).await;
    found.map(|found| found.map(|at| at.ip()).collect()).unwrap_or_default()
}

type BoxedFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The sockets of a lookup.
struct Sockets {
    exchanges: Vec<AsyncExchangeSocket>,
    naming: Option<(u64, BoxedFuture<Vec<IpAddr>>)>,
    /// The bytes received last are at its start.
    buffer: Vec<u8>,
}

/// The socket of an exchange.
struct AsyncExchangeSocket {
    number: u64,
    socket: Socket,
    /// Bytes to send over a connection.
    outgoing: Vec<u8>,
}

enum Socket {
    Datagrams(UdpSocket),
    Connecting(BoxedFuture<io::Result<TcpStream>>),
    Connection(TcpStream),
}

/// An event on a socket.
enum Event {
    Named(Vec<IpAddr>),
    Connected,
    /// A datagram of this many bytes in the buffer.
    Datagram(usize),
    /// This many bytes from a connection.
    Bytes(usize),
    Failed(AttemptError),
}

impl Sockets {
    /// Sends outgoing bytes, over the socket of their exchange or a new one.
    fn send(&mut self, number: u64, transmit: &Transmit) -> Result<(), AttemptError> {
        let known = self.exchanges.iter().position(|way| way.number == number);
        let way = match known {
            Some(at) => &mut self.exchanges[at],
            None => {
                let is_udp = transmit.target.protocol == InterfaceProtocol::UDP;
                let socket = open(transmit.target.address, is_udp).map_err(|_| AttemptError::Unreachable)?;
                self.exchanges.push(AsyncExchangeSocket { number, socket, outgoing: vec![] });
                self.exchanges.last_mut().expect("pushed just now")
            }
        };
        for bytes in &transmit.datagrams {
            match &way.socket {
                // Not by `try_send`, which sends nothing over a new socket before the runtime has
                // polled it: the first datagram of every question would be lost.
                Socket::Datagrams(socket) => match SockRef::from(socket).send(bytes) {
                    Ok(_) => {}
                    // Equivalent to a loss on the network.
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(_) => return Err(AttemptError::Unreachable),
                },
                Socket::Connecting(_) | Socket::Connection(_) => way.outgoing.extend_from_slice(bytes),
            }
        }
        Ok(())
    }

    /// Waits for the next event on any socket.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<(u64, Event)> {
        if let Some((number, naming)) = &mut self.naming
            && let Poll::Ready(addresses) = naming.as_mut().poll(context)
        {
            let number = *number;
            self.naming = None;
            return Poll::Ready((number, Event::Named(addresses)));
        }
        for way in &mut self.exchanges {
            if let Poll::Ready(event) = way.poll(context, &mut self.buffer) {
                return Poll::Ready((way.number, event));
            }
        }
        Poll::Pending
    }

    fn deliver(&self, lookup: &mut Lookup, number: u64, event: Event) {
        match event {
            Event::Named(addresses) => lookup.handle_addresses(now(), number, &addresses),
            Event::Connected => lookup.handle_connected(number),
            Event::Datagram(len) => lookup.handle_datagram(now(), number, &self.buffer[..len]),
            Event::Bytes(len) => lookup.handle_stream(now(), number, &self.buffer[..len]),
            Event::Failed(error) => lookup.handle_failure(now(), number, error),
        }
    }
}

/// Opens a socket to `address`, connected or connecting: a new port for each exchange, as with
/// blocking sockets.
fn open(address: SocketAddr, is_udp: bool) -> io::Result<Socket> {
    if !is_udp {
        return Ok(Socket::Connecting(Box::pin(async move {
            let stream = TcpStream::connect(address).await?;
            let _ = stream.set_nodelay(true);
            Ok(stream)
        })));
    }
    let socket = super::socket(address, socket2::Type::DGRAM)?;
    crate::sockets::size_receive_buffer(&socket)?;
    Ok(Socket::Datagrams(UdpSocket::from_std(socket.into())?))
}

impl AsyncExchangeSocket {
    fn poll(&mut self, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<Event> {
        match &mut self.socket {
            Socket::Connecting(connecting) => match ready!(connecting.as_mut().poll(context)) {
                Ok(stream) => {
                    self.socket = Socket::Connection(stream);
                    Poll::Ready(Event::Connected)
                }
                Err(_) => Poll::Ready(Event::Failed(AttemptError::Unreachable)),
            },
            Socket::Datagrams(socket) => {
                let mut space = ReadBuf::new(buffer);
                Poll::Ready(match ready!(socket.poll_recv(context, &mut space)) {
                    Ok(()) => Event::Datagram(space.filled().len()),
                    Err(_) => Event::Failed(AttemptError::Unreachable),
                })
            }
            Socket::Connection(stream) => {
                while !self.outgoing.is_empty() {
                    match Pin::new(&mut *stream).poll_write(context, &self.outgoing) {
                        Poll::Ready(Ok(len)) => drop(self.outgoing.drain(..len)),
                        Poll::Ready(Err(_)) => return Poll::Ready(Event::Failed(AttemptError::Ended)),
                        Poll::Pending => break,
                    }
                }
                let mut space = ReadBuf::new(buffer);
                let received = ready!(Pin::new(stream).poll_read(context, &mut space));
                Poll::Ready(match (received, space.filled().len()) {
                    (Ok(()), len @ 1..) => Event::Bytes(len),
                    _ => Event::Failed(AttemptError::Ended),
                })
            }
        }
    }
}
