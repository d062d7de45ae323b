//! Requests over connections: the handle protocol over TCP, the same in HTTP, the JSON API over
//! HTTP, and the redirects of a proxy.
//!
//! Each thread has a pool of connections, with a limit of pending requests and of total requests on
//! each. The worker decides and counts as for datagrams. If no connection has capacity, requests
//! wait, which shows as lag of the schedule.

mod connection;
pub mod http;
mod http2;
pub mod json;
mod link;
pub mod redirect;
mod request;
pub mod tls;

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use handle_net::{FlushReport, Outbox, Peer};
use mio::{Events, Poll, Token};
use serde::Serialize;

use crate::clock::Clock;
use crate::load::idle::{IdleStrategy, TICK_NS, sleep_ns};
use crate::load::transport::{HttpVersion, Streams};
use crate::load::worker::{BURST_MAX, Interval, LoadWorker};
pub(crate) use connection::ConnectionContext;
use connection::{AnswerSink, ConnectionEnd, LoadConnection};

impl Streams {
    /// Number of requests for a connection that begins. Over HTTP/2 it is one until the server has
    /// said how many it allows.
    fn first_capacity(&self) -> usize {
        match self.version {
            HttpVersion::Http1 => self.capacity(0, 0),
            HttpVersion::Http2 => self.capacity(0, 0).min(http2::FIRST_STREAMS_MAX),
        }
    }

    /// Number of further requests for a connection with `taken` so far, of which `waiting` are
    /// pending.
    fn capacity(&self, taken: u32, waiting: usize) -> usize {
        let left = match self.requests {
            0 => usize::MAX,
            requests => requests.saturating_sub(taken) as usize,
        };
        self.pipeline.saturating_sub(waiting).min(left)
    }
}

/// An answer over HTTP, of any version.
#[derive(Debug, Default)]
struct HttpAnswer {
    status: u16,
    /// The target of a redirect.
    location: Option<Vec<u8>>,
    body: Vec<u8>,
}

/// The fate of connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ConnectionCounts {
    /// Connections that were started.
    pub begun: u64,
    /// Connections that were established.
    pub established: u64,
    /// Connections that were never established: refused or timed out.
    pub failed: u64,
    /// Connections that the server closed while a request was pending.
    pub closed_early: u64,
    /// Connections given up because their oldest request was pending for twice the timeout.
    pub given_up: u64,
    /// Connections closed because the received data could not be decoded.
    pub unreadable: u64,
}

impl ConnectionCounts {
    /// Adds the counts of another thread.
    pub const fn add(&mut self, other: &Self) {
        self.begun += other.begun;
        self.established += other.established;
        self.failed += other.failed;
        self.closed_early += other.closed_early;
        self.given_up += other.given_up;
        self.unreadable += other.unreadable;
    }

    const fn count(&mut self, end: ConnectionEnd, was_established: bool) {
        match end {
            ConnectionEnd::Done => {}
            _ if !was_established => self.failed += 1,
            ConnectionEnd::Closed => self.closed_early += 1,
            ConnectionEnd::GivenUp => self.given_up += 1,
            ConnectionEnd::Unreadable => self.unreadable += 1,
        }
    }
}

/// Observations about the connections of a thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct StreamObservations {
    pub(crate) counts: ConnectionCounts,
    /// Answers over HTTP, in time or not, by status.
    pub(crate) statuses: BTreeMap<u16, u64>,
    /// The reason of the first failed connection.
    pub(crate) first_failure: Option<String>,
}

impl StreamObservations {
    /// Adds the observations of another thread.
    pub(crate) fn add(&mut self, other: Self) {
        self.counts.add(&other.counts);
        for (status, count) in other.statuses {
            *self.statuses.entry(status).or_default() += count;
        }
        self.first_failure = self.first_failure.take().or(other.first_failure);
    }
}

/// The connections of one thread.
pub(crate) struct Pool {
    poll: Poll,
    target: SocketAddr,
    /// Source addresses of new connections, used in turn; if empty, the system chooses.
    sources: Vec<IpAddr>,
    streams: Streams,
    context: ConnectionContext,
    slots: Vec<Option<LoadConnection>>,
    outbox: Outbox,
    observations: StreamObservations,
    /// Number of requests that all connections have capacity for.
    capacity: usize,
    /// Where the search for capacity begins.
    next: usize,
    /// Connections with data to write.
    unwritten: Vec<usize>,
    /// The receive buffer.
    input: Box<[u8]>,
}

/// Time between two checks of all connections for requests that wait too long.
const GIVE_UP_EVERY_NS: u64 = 10_000_000;
/// Maximum number of bytes read at a time.
const INPUT_LEN: usize = 16 << 10;
/// Longest wait, which bounds the reaction to a stop.
const TIMEOUT_MAX: Duration = Duration::from_millis(10);

impl Pool {
    /// Creates a pool without connections. Requests have at most `request_len_max` bytes.
    pub(crate) fn open(
        target: SocketAddr,
        sources: Vec<IpAddr>,
        context: ConnectionContext,
        request_len_max: usize,
    ) -> io::Result<Self> {
        let streams = context.streams;
        Ok(Self {
            poll: Poll::new()?,
            target,
            sources,
            streams,
            context,
            slots: (0..streams.connections).map(|_| None).collect(),
            outbox: Outbox::new(BURST_MAX, BURST_MAX * request_len_max),
            observations: StreamObservations::default(),
            capacity: streams.connections * streams.first_capacity(),
            next: 0,
            unwritten: Vec::with_capacity(BURST_MAX),
            input: vec![0; INPUT_LEN].into_boxed_slice(),
        })
    }

    pub(crate) fn observations(&self) -> StreamObservations {
        self.observations.clone()
    }

    /// Number of requests that the connection at `at` has capacity for.
    fn capacity_at(&self, at: usize) -> usize {
        match &self.slots[at] {
            None => self.streams.first_capacity(),
            Some(connection) => connection.capacity(&self.streams),
        }
    }

    /// Applies a change to one connection, and updates the total capacity.
    fn with_slot<T>(&mut self, at: usize, act: impl FnOnce(&mut Self) -> T) -> T {
        let before = self.capacity_at(at);
        let result = act(self);
        self.capacity = self.capacity + self.capacity_at(at) - before;
        result
    }

    /// Sends due requests, as far as there is capacity.
    fn send_due(&mut self, worker: &mut LoadWorker<'_>, clock: Clock) {
        let capacity = self.capacity.min(BURST_MAX);
        let now_ns = clock.now_ns();
        worker.push_some(now_ns, capacity, &mut self.outbox);
        if self.outbox.is_empty() {
            return;
        }
        let mut flushed = FlushReport::default();
        for i in 0..self.outbox.len() {
            match self.send(i, now_ns) {
                Ok(()) => flushed.sent += 1,
                Err(error) => {
                    flushed.failed += 1;
                    flushed.os_error = error.raw_os_error();
                }
            }
        }
        self.outbox.clear();
        while let Some(at) = self.unwritten.pop() {
            self.write(at);
        }
        worker.flushed(clock.now_ns(), flushed);
    }

    /// Gives the message at `i` to the next connection with capacity. A connection that cannot be
    /// started counts as refused by the kernel.
    fn send(&mut self, i: usize, now_ns: u64) -> io::Result<()> {
        let len = self.slots.len();
        let free = (0..len).map(|step| (self.next + step) % len).find(|&at| self.capacity_at(at) > 0);
        let Some(at) = free else { return Err(io::ErrorKind::WouldBlock.into()) };
        self.next = (at + 1) % len;
        self.unwritten.push(at);
        self.with_slot(at, |pool| pool.queue(at, i, now_ns))
    }

    fn queue(&mut self, at: usize, i: usize, now_ns: u64) -> io::Result<()> {
        let connection = match &mut self.slots[at] {
            Some(connection) => connection,
            slot => {
                let number = usize::try_from(self.observations.counts.begun).unwrap_or(0);
                let source = self.sources.get(number % self.sources.len().max(1)).copied();
                let begun = LoadConnection::begin(
                    self.target,
                    source,
                    &self.context,
                    Token(at),
                    self.poll.registry(),
                )?;
                self.observations.counts.begun += 1;
                slot.insert(begun)
            }
        };
        connection.queue(self.outbox.get(i).1, now_ns, &self.context)
    }

    fn write(&mut self, at: usize) {
        if let Some(connection) = &mut self.slots[at]
            && let Err(end) = connection.write()
        {
            self.close(at, end);
        }
    }

    fn close(&mut self, at: usize, end: ConnectionEnd) {
        self.with_slot(at, |pool| {
            if let Some(mut connection) = pool.slots[at].take() {
                let observations = &mut pool.observations;
                observations.counts.count(end, connection.is_established());
                let failure = connection.take_failure();
                observations.first_failure = observations.first_failure.take().or(failure);
            }
        });
    }

    /// Reads from the connection at `at`, and passes each answer to the worker.
    fn turn(&mut self, at: usize, now_ns: u64, worker: &mut LoadWorker<'_>) {
        let target = Peer::to(self.target);
        let mut take = |answer: &[u8]| worker.receive(now_ns, target, answer, true);
        if let Err(end) = self.with_slot(at, |pool| pool.read(at, &mut take)) {
            self.close(at, end);
        }
    }

    fn read(&mut self, at: usize, take: &mut dyn FnMut(&[u8])) -> Result<(), ConnectionEnd> {
        let Some(connection) = &mut self.slots[at] else { return Ok(()) };
        let was_established = connection.is_established();
        let mut sink = AnswerSink { take, statuses: &mut self.observations.statuses };
        let turned = connection.turn(&self.context, &mut self.input, &mut sink);
        self.observations.counts.established += u64::from(!was_established && connection.is_established());
        turned
    }

    /// Gives up connections whose oldest request was sent before `sent_before_ns`.
    fn give_up(&mut self, sent_before_ns: u64) {
        for at in 0..self.slots.len() {
            let oldest_ns = self.slots[at].as_ref().and_then(LoadConnection::oldest_ns);
            if oldest_ns.is_some_and(|sent_ns| sent_ns < sent_before_ns) {
                self.close(at, ConnectionEnd::GivenUp);
            }
        }
    }
}

/// Sends due requests and receives answers until the worker is done. Calls `tick` once a second,
/// with the number of the second and the time.
///
/// # Errors
///
/// If the kernel cannot report connection events any more.
pub(crate) fn drive(
    worker: &mut LoadWorker<'_>,
    pool: &mut Pool,
    timeout_ns: u64,
    clock: Clock,
    idle: IdleStrategy,
    stop: &AtomicBool,
    mut tick: impl FnMut(u64, u64, Interval),
) -> io::Result<()> {
    let mut events = Events::with_capacity(1024);
    let (mut second, mut give_up_ns) = (0, 0);
    clock.wait_for_start();
    loop {
        if stop.load(Ordering::Relaxed) {
            worker.stop();
        }
        pool.send_due(worker, clock);
        let now_ns = clock.now_ns();
        let has_capacity = pool.capacity > 0;
        let due_ns = worker.next_due_ns(now_ns).filter(|_| has_capacity);
        let until_ns = due_ns.map_or(u64::MAX, |due_ns| due_ns.saturating_sub(now_ns));
        // The kernel rounds the wait up to whole milliseconds, which would be late.
        let timeout = Duration::from_millis(sleep_ns(idle, until_ns) / 1_000_000).min(TIMEOUT_MAX);
        match pool.poll.poll(&mut events, Some(timeout)) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
        let now_ns = clock.now_ns();
        for event in &events {
            let at = event.token().0;
            if event.is_writable() {
                pool.write(at);
            }
            pool.turn(at, now_ns, worker);
        }
        if now_ns >= give_up_ns {
            pool.give_up(now_ns.saturating_sub(2 * timeout_ns));
            give_up_ns = now_ns + GIVE_UP_EVERY_NS;
        }
        worker.advance(now_ns);
        let is_done = worker.is_done(now_ns);
        if now_ns >= (second + 1) * TICK_NS || is_done {
            tick(second, now_ns, worker.tick());
            second = now_ns / TICK_NS;
        }
        if is_done {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::transport::Protocol;

    #[test]
    fn a_connection_has_capacity_up_to_its_limits() {
        let streams = |requests| Streams { pipeline: 4, requests, ..Streams::pooled(Protocol::Tcp) };
        assert_eq!(
            (streams(0).capacity(0, 0), streams(0).capacity(100, 3), streams(0).capacity(100, 4)),
            (4, 1, 0)
        );
        assert_eq!(
            (streams(1).capacity(0, 0), streams(1).capacity(1, 0), streams(6).capacity(4, 1)),
            (1, 0, 2)
        );
        let http2 = Streams { version: HttpVersion::Http2, ..streams(0) };
        assert_eq!((streams(0).first_capacity(), http2.first_capacity()), (4, 1));
    }
}
