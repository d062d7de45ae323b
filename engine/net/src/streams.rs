//! TCP connections beside the datagrams of a path, on the same thread.
//!
//! - A wait returns events: connections that were opened, bytes that were received, sockets that
//!   became writable. They are passed on as one [`StreamBatch`], and received bytes are not copied
//!   after the kernel wrote them.
//! - Sending never waits. Bytes that the kernel does not accept at once are kept, and the caller
//!   sees their number. Only the caller bounds it.
//! - Closing sends the kept bytes, then ends the sending direction, then waits for the end of the
//!   other side, so that no answer is lost to a reset. The caller bounds the time with
//!   [`StreamConnections::abort`].
//!
//! This module has what both paths share; how they poll the kernel is in `portable/streams.rs` and
//! `uring/streams.rs`.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown, send, shutdown};
use socket2::{Domain, Protocol, Socket, Type};

/// Most events of one batch, so that connections do not delay datagrams for long.
pub(crate) const EVENTS_MAX: usize = 64;
/// After the system has run out of files or memory, the time until the next connection is accepted.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Binds a listening socket for [`Datapath::listen`](crate::StreamPath::listen).
///
/// Accepted connections send without delay (TCP_NODELAY), because the caller writes whole answers.
/// With `reuse_port` the kernel spreads connections over all sockets of the address.
///
/// # Errors
///
/// Errors of the kernel, with their kind kept, as of [`bind`](crate::bind).
pub fn bind_listener(
    address: SocketAddr,
    reuse_port: bool,
    only_v6: bool,
    backlog: i32,
) -> io::Result<TcpListener> {
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    // Connections of an earlier process that are still closing do not block the port.
    socket.set_reuse_address(true)?;
    if reuse_port {
        socket.set_reuse_port(true)?;
    }
    if domain == Domain::IPV6 {
        socket.set_only_v6(only_v6)?;
    }
    socket.set_tcp_nodelay(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(backlog)?;
    Ok(socket.into())
}

/// Closes a listener for all processes that have it: waiting and new connections are refused.
///
/// # Errors
///
/// Errors of the kernel.
pub fn close_listener(listener: &TcpListener) -> io::Result<()> {
    match shutdown(listener, Shutdown::Both) {
        // The socket was not listening any more.
        Ok(()) | Err(Errno::NOTCONN) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The id of a connection of a path. The id of a closed connection never names a later one in its
/// place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamId {
    at: u32,
    generation: u32,
}

impl StreamId {
    /// The id at a place, for tests without sockets.
    #[must_use]
    pub fn new(at: u32, generation: u32) -> Self {
        Self { at, generation }
    }

    /// A small number that no other connection has at the same time.
    #[must_use]
    pub fn at(self) -> usize {
        self.at as usize
    }
}

impl From<StreamId> for usize {
    fn from(id: StreamId) -> Self {
        id.at()
    }
}

/// An event of a connection.
#[derive(Clone, Copy, Debug)]
pub enum StreamEvent<'a> {
    /// A connection was accepted.
    Opened {
        /// The new connection.
        id: StreamId,
        /// The address of the other side.
        peer: SocketAddr,
    },
    /// A connection was closed at once, because there were
    /// [`connections_max`](crate::StreamOptions::connections_max) others.
    Refused,
    /// Bytes were received.
    Received {
        /// The connection.
        id: StreamId,
        /// The bytes, at least one.
        bytes: &'a [u8],
    },
    /// The other side ended its sending. It may still receive.
    Ended {
        /// The connection.
        id: StreamId,
    },
    /// All kept bytes have been sent.
    Sent {
        /// The connection.
        id: StreamId,
    },
    /// The connection is gone: broken, or closed by both sides. Its id is no longer valid.
    Closed {
        /// The id that it had.
        id: StreamId,
    },
}

/// An event as the paths store it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RawEvent {
    Opened { id: StreamId, peer: SocketAddr },
    Refused,
    Received { id: StreamId, at: usize, len: usize },
    Ended { id: StreamId },
    Sent { id: StreamId },
    Closed { id: StreamId },
}

/// Access to received bytes.
pub(crate) trait StreamMemory {
    /// The bytes of a `Received` event of this batch.
    fn bytes(&self, at: usize, len: usize) -> &[u8];
}

impl StreamMemory for Vec<u8> {
    fn bytes(&self, at: usize, len: usize) -> &[u8] {
        &self[at..at + len]
    }
}

/// The events of one wait, in order for each connection.
#[derive(Clone, Copy)]
pub struct StreamInbox<'a> {
    pub(crate) events: &'a [RawEvent],
    pub(crate) memory: &'a dyn StreamMemory,
}

impl<'a> StreamInbox<'a> {
    /// Whether there are no events.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Number of events.
    #[must_use]
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// All events.
    pub fn iter(&self) -> impl Iterator<Item = StreamEvent<'a>> + use<'a> {
        let memory = self.memory;
        self.events.iter().map(move |event| match *event {
            RawEvent::Opened { id, peer } => StreamEvent::Opened { id, peer },
            RawEvent::Refused => StreamEvent::Refused,
            RawEvent::Received { id, at, len } => StreamEvent::Received { id, bytes: memory.bytes(at, len) },
            RawEvent::Ended { id } => StreamEvent::Ended { id },
            RawEvent::Sent { id } => StreamEvent::Sent { id },
            RawEvent::Closed { id } => StreamEvent::Closed { id },
        })
    }
}

impl fmt::Debug for StreamInbox<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.events).finish()
    }
}

/// The events of a wait, and the connections to act on.
#[derive(Debug)]
pub struct StreamBatch<'a> {
    /// The events, valid until the path waits again.
    pub inbox: StreamInbox<'a>,
    /// All connections, including those without events.
    pub connections: &'a mut StreamConnections,
}

/// The error of a path that was opened without streams.
pub(crate) fn no_streams() -> io::Error {
    io::Error::new(
        io::ErrorKind::Unsupported,
        "the datapath was opened without connections; set `streams` in its options",
    )
}

/// The connection is closed or being closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionGone;

impl fmt::Display for ConnectionGone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the connection is gone")
    }
}

impl std::error::Error for ConnectionGone {}

/// The connections of a path.
pub struct StreamConnections {
    slots: Vec<StreamSlot>,
    free: Vec<u32>,
    /// Connections for which the request to the kernel must change.
    changed: Vec<u32>,
    connections_max: usize,
    open_count: usize,
    kept_len: usize,
    /// Whether a place stays taken as long as something is [`watched`](StreamSlot::watched) there.
    outlives: bool,
}

/// A place for connections, one at a time.
pub(crate) struct StreamSlot {
    generation: u32,
    pub(crate) socket: Option<OwnedFd>,
    /// Bytes that the kernel did not accept; those from `sent` on are still to be sent.
    outgoing: Vec<u8>,
    sent: usize,
    closing: ClosePhase,
    /// Whether the caller wants to receive bytes.
    reading: bool,
    /// Whether the other side ended its sending.
    ended: bool,
    is_changed: bool,
    /// The requests of the path to the kernel about the socket; the path defines the bits.
    pub(crate) watched: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClosePhase {
    /// Not being closed.
    No,
    /// To be closed when everything has been sent.
    WhenSent,
    /// To be closed when the other side ends its sending.
    WhenEnded,
    /// Closed, but the place is still watched.
    Gone,
}

/// What a path should watch of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PollInterest {
    pub(crate) input: bool,
    pub(crate) writable: bool,
}

impl StreamConnections {
    pub(crate) fn new(connections_max: usize, outlives: bool) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            changed: Vec::new(),
            connections_max,
            open_count: 0,
            kept_len: 0,
            outlives,
        }
    }

    /// Sets the most connections at a time. If there are more, they stay, but no new ones are
    /// accepted.
    pub fn set_max(&mut self, connections_max: usize) {
        self.connections_max = connections_max;
    }

    /// Number of connections, including those that are being closed.
    #[must_use]
    pub fn len(&self) -> usize {
        self.open_count
    }

    /// Whether there are no connections.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.open_count == 0
    }

    /// Bytes that are kept for sending, over all connections.
    #[must_use]
    pub fn kept_len_all(&self) -> usize {
        self.kept_len
    }

    /// Bytes that are kept for sending.
    #[must_use]
    pub fn kept_len(&self, id: StreamId) -> usize {
        self.slot(id).map_or(0, |slot| slot.outgoing.len() - slot.sent)
    }

    /// Sends `bytes`, keeps what the kernel does not accept, and returns how many bytes are kept.
    ///
    /// # Errors
    ///
    /// When the connection is gone or being closed. A connection that turns out to be broken is
    /// gone with this call, without an event.
    pub fn send(&mut self, id: StreamId, bytes: &[u8]) -> Result<usize, ConnectionGone> {
        let slot = self.slot_mut(id).filter(|slot| slot.closing == ClosePhase::No).ok_or(ConnectionGone)?;
        let mut rest = bytes;
        if slot.outgoing.is_empty() {
            match slot.send_now(bytes) {
                Ok(sent) => rest = &bytes[sent..],
                Err(_) => {
                    self.kill(id.at);
                    return Err(ConnectionGone);
                }
            }
            if rest.is_empty() {
                return Ok(0);
            }
        }
        slot.outgoing.extend_from_slice(rest);
        let kept = slot.outgoing.len() - slot.sent;
        self.kept_len += rest.len();
        self.change(id.at);
        Ok(kept)
    }

    /// Starts or stops receiving from the connection. Bytes that were received before still come as
    /// events.
    pub fn set_reading(&mut self, id: StreamId, reading: bool) {
        if let Some(slot) = self.slot_mut(id)
            && slot.reading != reading
        {
            slot.reading = reading;
            self.change(id.at);
        }
    }

    /// Closes the connection: sends the kept bytes, ends the sending direction, and waits for the
    /// end of the other side. Bytes that are received until then are discarded.
    ///
    /// Returns true if the connection is gone at once; otherwise [`StreamEvent::Closed`] reports
    /// its end.
    pub fn close(&mut self, id: StreamId) -> bool {
        let Some(slot) = self.slot_mut(id) else { return true };
        if slot.closing != ClosePhase::No {
            return false;
        }
        slot.reading = true;
        slot.closing = ClosePhase::WhenSent;
        self.change(id.at);
        self.slots[id.at()].outgoing.is_empty() && self.end_sending(id.at)
    }

    /// Ends the connection at once. Bytes that are kept or in transit are lost.
    pub fn abort(&mut self, id: StreamId) {
        if self.slot(id).is_some() {
            self.kill(id.at);
        }
    }

    fn slot(&self, id: StreamId) -> Option<&StreamSlot> {
        self.slots.get(id.at()).filter(|slot| slot.generation == id.generation && slot.socket.is_some())
    }

    fn slot_mut(&mut self, id: StreamId) -> Option<&mut StreamSlot> {
        self.slots.get_mut(id.at()).filter(|slot| slot.generation == id.generation && slot.socket.is_some())
    }

    /// Notes that the request to the kernel about the connection must change.
    pub(crate) fn change(&mut self, at: u32) {
        let slot = &mut self.slots[at as usize];
        if !slot.is_changed {
            slot.is_changed = true;
            self.changed.push(at);
        }
    }

    /// The next connection for which it must change.
    pub(crate) fn next_changed(&mut self) -> Option<u32> {
        let at = self.changed.pop()?;
        self.slots[at as usize].is_changed = false;
        Some(at)
    }

    pub(crate) fn at_mut(&mut self, at: u32) -> &mut StreamSlot {
        &mut self.slots[at as usize]
    }

    /// Frees the place `at` once nothing is watched there.
    pub(crate) fn release(&mut self, at: u32) {
        let slot = &mut self.slots[at as usize];
        if slot.closing == ClosePhase::Gone && slot.watched == 0 && slot.socket.take().is_some() {
            slot.closing = ClosePhase::No;
            self.open_count -= 1;
            self.free.push(at);
        }
    }

    fn kill(&mut self, at: u32) {
        let slot = &mut self.slots[at as usize];
        self.kept_len -= slot.outgoing.len() - slot.sent;
        // Also frees the memory, which only slow connections need.
        (slot.outgoing, slot.sent) = (Vec::new(), 0);
        slot.generation = slot.generation.wrapping_add(1);
        slot.closing = ClosePhase::Gone;
        if self.outlives {
            // Ends pending requests about the socket.
            if let Some(socket) = &slot.socket {
                let _ = shutdown(socket, Shutdown::Both);
            }
        } else {
            slot.watched = 0;
        }
        self.release(at);
    }

    /// Ends the sending direction of a connection that is being closed and has sent everything.
    /// Returns true if the connection is gone.
    fn end_sending(&mut self, at: u32) -> bool {
        let slot = &mut self.slots[at as usize];
        let Some(socket) = &slot.socket else { return true };
        if slot.ended || shutdown(socket, Shutdown::Write).is_err() {
            self.kill(at);
            return true;
        }
        slot.closing = ClosePhase::WhenEnded;
        self.change(at);
        false
    }

    /// Adds an accepted connection.
    pub(crate) fn opened(&mut self, socket: OwnedFd, peer: Option<SocketAddr>) -> Option<RawEvent> {
        // A connection without a peer address was reset already.
        let peer = peer?;
        if self.open_count >= self.connections_max {
            return Some(RawEvent::Refused);
        }
        let at = self.free.pop().unwrap_or_else(|| {
            self.slots.push(StreamSlot::new());
            u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
        });
        let slot = &mut self.slots[at as usize];
        let generation = slot.generation;
        let is_changed = slot.is_changed;
        *slot = StreamSlot { generation, socket: Some(socket), is_changed, ..StreamSlot::new() };
        self.open_count += 1;
        self.change(at);
        Some(RawEvent::Opened { id: StreamId { at, generation }, peer })
    }

    /// The id at a place, if there is a connection.
    fn id(&self, at: u32) -> Option<StreamId> {
        let slot = &self.slots[at as usize];
        (slot.closing != ClosePhase::Gone && slot.socket.is_some())
            .then_some(StreamId { at, generation: slot.generation })
    }

    /// Handles `len` received bytes of the connection at `at`; they begin at `start`.
    pub(crate) fn received(&self, at: u32, start: usize, len: usize) -> Option<RawEvent> {
        let id = self.id(at)?;
        let is_taken = self.slots[at as usize].closing == ClosePhase::No;
        is_taken.then_some(RawEvent::Received { id, at: start, len })
    }

    /// Handles that the other side of `at` ended its sending.
    pub(crate) fn ended(&mut self, at: u32) -> Option<RawEvent> {
        let id = self.id(at)?;
        let slot = &mut self.slots[at as usize];
        slot.ended = true;
        match slot.closing {
            ClosePhase::No => {
                self.change(at);
                Some(RawEvent::Ended { id })
            }
            ClosePhase::WhenEnded => {
                self.kill(at);
                Some(RawEvent::Closed { id })
            }
            ClosePhase::WhenSent | ClosePhase::Gone => {
                self.change(at);
                None
            }
        }
    }

    /// Handles that the connection at `at` broke.
    pub(crate) fn broke(&mut self, at: u32) -> Option<RawEvent> {
        let id = self.id(at)?;
        self.kill(at);
        Some(RawEvent::Closed { id })
    }

    /// Handles that the connection at `at` became writable.
    pub(crate) fn became_writable(&mut self, at: u32) -> Option<RawEvent> {
        let id = self.id(at)?;
        let slot = &mut self.slots[at as usize];
        if slot.outgoing.is_empty() {
            return None;
        }
        match slot.send_now(&slot.outgoing[slot.sent..]) {
            Err(_) => return self.broke(at),
            Ok(sent) => {
                slot.sent += sent;
                self.kept_len -= sent;
            }
        }
        self.change(at);
        let slot = &mut self.slots[at as usize];
        if slot.sent < slot.outgoing.len() {
            return None;
        }
        (slot.outgoing, slot.sent) = (Vec::new(), 0);
        if slot.closing == ClosePhase::No {
            return Some(RawEvent::Sent { id });
        }
        self.end_sending(at).then_some(RawEvent::Closed { id })
    }
}

impl fmt::Debug for StreamConnections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connections({} open, {} bytes kept)", self.open_count, self.kept_len)
    }
}

impl StreamSlot {
    const fn new() -> Self {
        Self {
            generation: 0,
            socket: None,
            outgoing: Vec::new(),
            sent: 0,
            closing: ClosePhase::No,
            reading: true,
            ended: false,
            is_changed: false,
            watched: 0,
        }
    }

    /// What to watch of it; nothing if there is no connection.
    pub(crate) fn poll_interest(&self) -> PollInterest {
        let is_there = self.socket.is_some() && self.closing != ClosePhase::Gone;
        PollInterest {
            // While the last answers are sent, received bytes are not needed.
            input: is_there && self.reading && !self.ended && self.closing != ClosePhase::WhenSent,
            writable: is_there && !self.outgoing.is_empty(),
        }
    }

    /// Sends as many bytes as the kernel accepts now, and returns their number.
    fn send_now(&self, bytes: &[u8]) -> Result<usize, Errno> {
        let Some(socket) = &self.socket else { return Err(Errno::NOTCONN) };
        loop {
            match send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(sent) => return Ok(sent),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => return Ok(0),
                Err(error) => return Err(error),
            }
        }
    }
}

/// A listening socket, and whether it is watched.
pub(crate) struct Listener {
    /// `None` once it is closed and no request about it is in flight.
    pub(crate) socket: Option<TcpListener>,
    /// Whether the path watches it.
    pub(crate) watched: bool,
    pub(crate) is_closed: bool,
    paused_since: Option<Instant>,
}

impl Listener {
    pub(crate) const fn new(socket: TcpListener) -> Self {
        Self { socket: Some(socket), watched: false, is_closed: false, paused_since: None }
    }

    /// Whether the next accept would fail with `error` too. An error about a single connection
    /// would not repeat.
    pub(crate) const fn is_lasting(error: Errno) -> bool {
        !matches!(
            error,
            Errno::AGAIN | Errno::INTR | Errno::CONNABORTED | Errno::CANCELED | Errno::PERM | Errno::PROTO
        )
    }

    /// Pauses the listener for a while. It is not watched.
    pub(crate) fn pause(&mut self) {
        self.watched = false;
        self.paused_since = Some(Instant::now());
    }

    /// Whether it should be watched and is not.
    pub(crate) fn wants_watch(&mut self) -> bool {
        if self.paused_since.is_some_and(|since| since.elapsed() >= ACCEPT_PAUSE) {
            self.paused_since = None;
        }
        !self.watched && !self.is_closed && self.paused_since.is_none()
    }

    /// Whether it is paused.
    pub(crate) const fn is_paused(&self) -> bool {
        self.paused_since.is_some() && !self.is_closed
    }

    /// Stops accepting.
    pub(crate) fn close(&mut self) {
        self.is_closed = true;
        self.release();
    }

    /// Closes the socket if it is to be closed and is not watched.
    pub(crate) fn release(&mut self) {
        if self.is_closed && !self.watched {
            self.socket = None;
        }
    }
}

/// An address from the kernel. An IPv4 peer of a dual-stack socket is given as IPv4.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) if ip != Ipv4Addr::UNSPECIFIED || address.is_ipv4() => {
            SocketAddr::new(ip.into(), address.port())
        }
        _ => address,
    }
}
