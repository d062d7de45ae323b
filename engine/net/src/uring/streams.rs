//! Connections over the ring of a path: one accept request for each listener and one receive
//! request for each connection, which stay active until they end, and separate buffers.
//!
//! - A place is taken until all requests about its socket have ended. So a completion always
//!   belongs to the current connection, or to the last one, at the place that it names.
//! - Sending is a separate system call (`streams.rs`): it carries the answers of a whole receive,
//!   so the ring would gain nothing, and no bytes need to be kept until a completion.
//! - Only receives make the kernel write, and only to the buffers. They are freed when no request
//!   is in flight.

#![expect(unsafe_code, reason = "accepted sockets come as numbers, received bytes as places")]

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use io_uring::types::{CancelBuilder, Fd};
use io_uring::{cqueue, opcode, squeue};
use rustix::io::Errno;
use rustix::net::getpeername;

use super::buffers::Buffers;
use super::ring::Ring;
use crate::options::StreamOptions;
use crate::streams::{
    ACCEPT_PAUSE, EVENTS_MAX, Listener, RawEvent, StreamBatch, StreamConnections, StreamInbox, StreamMemory,
    canonical,
};

/// Marks completions for connections. The low 32 bits are a place.
pub(super) const STREAM: u64 = 1 << 62;
const KIND_MASK: u64 = 0xff << 32;
const RECEIVE: u64 = 1 << 32;
const WRITABLE: u64 = 2 << 32;
const ACCEPT: u64 = 3 << 32;
const CANCEL: u64 = 4 << 32;

/// A number that is no place of a connection.
const NOWHERE: u32 = u32::MAX;

/// Bits of requests in flight for a connection.
const RECEIVING: u8 = 1;
const AWAITING_WRITABLE: u8 = 2;
const CANCELLING: u8 = 4;

/// Requests for connections that may be queued at a time.
pub(super) const SUBMISSIONS_MAX: usize = 64;
/// Completions for connections, besides the buffers, that should not overflow the ring. The kernel
/// keeps further ones.
pub(super) const COMPLETIONS: usize = 256;

/// The group of the buffers in receive requests.
const GROUP: u16 = 1;

pub(super) struct UringStreams {
    connections: StreamConnections,
    listeners: Vec<Listener>,
    events: Vec<RawEvent>,
    completed: VecDeque<CompletedEvent>,
    /// Buffers of the last batch, and buffers whose content is not needed.
    lent: Vec<u16>,
    buffers: Buffers,
    /// Number of requests that have not ended.
    in_flight: usize,
}

enum CompletedEvent {
    Accepted(OwnedFd),
    Other { user_data: u64, result: i32, flags: u32 },
}

impl UringStreams {
    /// Makes room for connections, with buffers registered at `ring`.
    ///
    /// # Safety
    ///
    /// It stays allocated until `ring` has none of its requests in flight and is not submitted
    /// more.
    pub(super) unsafe fn new(ring: &Ring, options: &StreamOptions) -> io::Result<Self> {
        let buffers_count = u16::try_from(options.receive_buffers.next_power_of_two()).unwrap_or(1 << 12);
        let mut buffers = Buffers::for_streams(buffers_count, options.receive_len, GROUP);
        // SAFETY: The caller makes the same promise.
        unsafe { buffers.register(ring) }?;
        Ok(Self {
            connections: StreamConnections::new(options.connections_max, true),
            listeners: Vec::new(),
            events: Vec::with_capacity(EVENTS_MAX),
            completed: VecDeque::with_capacity(COMPLETIONS),
            lent: Vec::with_capacity(buffers_count.into()),
            buffers,
            in_flight: 0,
        })
    }

    pub(super) fn listen(&mut self, socket: TcpListener) {
        self.listeners.push(Listener::new(socket));
    }

    /// Stops accepting.
    pub(super) fn stop_listening(&mut self, ring: &mut Ring) {
        for i in 0..self.listeners.len() {
            if self.listeners[i].watched && !self.listeners[i].is_closed {
                let request = opcode::AsyncCancel::new(STREAM | ACCEPT | i as u64).build();
                self.push(ring, &request.user_data(STREAM | CANCEL | u64::from(NOWHERE)));
            }
            self.listeners[i].close();
        }
    }

    pub(super) fn batch(&mut self) -> StreamBatch<'_> {
        let inbox = StreamInbox { events: &self.events, memory: &self.buffers };
        StreamBatch { inbox, connections: &mut self.connections }
    }

    /// The longest time until the next batch: `timeout`, or less if a listener is paused, because
    /// nothing else wakes the path for it.
    pub(super) fn timeout(&self, timeout: Duration) -> Duration {
        match self.listeners.iter().any(Listener::is_paused) {
            true => timeout.min(ACCEPT_PAUSE),
            false => timeout,
        }
    }

    /// Whether a batch can be made without entering the kernel.
    pub(super) fn is_ready(&self) -> bool {
        !self.completed.is_empty()
    }

    /// Whether no request is in flight.
    pub(super) fn is_quiet(&self) -> bool {
        self.in_flight == 0
    }

    /// Keeps a completion for the next batch.
    pub(super) fn complete(&mut self, user_data: u64, result: i32, flags: u32) {
        if !cqueue::more(flags) {
            self.in_flight -= 1;
        }
        if user_data & KIND_MASK == ACCEPT && result >= 0 {
            // SAFETY: The kernel made the file for this request, and nothing else knows its number.
            self.completed.push_back(CompletedEvent::Accepted(unsafe { OwnedFd::from_raw_fd(result) }));
            if cqueue::more(flags) {
                return;
            }
        }
        self.completed.push_back(CompletedEvent::Other { user_data, result, flags });
    }

    /// Drops the last batch, and queues the requests that connections and listeners need.
    pub(super) fn prepare(&mut self, ring: &mut Ring) {
        self.events.clear();
        if !self.lent.is_empty() {
            for id in self.lent.drain(..) {
                self.buffers.give_back(id);
            }
            self.buffers.publish();
        }
        while let Some(at) = self.connections.next_changed() {
            if !self.watch(ring, at) {
                // The ring is full; the next call of the path reports that.
                self.connections.change(at);
                break;
            }
        }
        for i in 0..self.listeners.len() {
            if self.listeners[i].wants_watch()
                && let Some(socket) = &self.listeners[i].socket
            {
                let fd = Fd(socket.as_raw_fd());
                let request = opcode::AcceptMulti::new(fd).flags(libc::SOCK_CLOEXEC);
                let request = request.build().user_data(STREAM | ACCEPT | i as u64);
                self.listeners[i].watched = self.push(ring, &request);
            }
        }
    }

    /// Queues the missing requests of the connection at `at`, and cancels those that it does not
    /// need. Returns false if it cannot.
    fn watch(&mut self, ring: &mut Ring, at: u32) -> bool {
        let slot = self.connections.at_mut(at);
        let Some(socket) = &slot.socket else { return true };
        let (fd, wanted, watched) = (Fd(socket.as_raw_fd()), slot.poll_interest(), slot.watched);
        let user_data_base = STREAM | u64::from(at);
        let input = if wanted.input && watched & (RECEIVING | CANCELLING) == 0 {
            let request = opcode::RecvMulti::new(fd, GROUP).build();
            Some((RECEIVING, request.user_data(user_data_base | RECEIVE)))
        } else if !wanted.input && watched & (RECEIVING | CANCELLING) == RECEIVING {
            let request = opcode::AsyncCancel::new(user_data_base | RECEIVE).build();
            Some((CANCELLING, request.user_data(user_data_base | CANCEL)))
        } else {
            None
        };
        let writable = (wanted.writable && watched & AWAITING_WRITABLE == 0).then(|| {
            let request = opcode::PollAdd::new(fd, libc::POLLOUT.cast_unsigned().into()).build();
            (AWAITING_WRITABLE, request.user_data(user_data_base | WRITABLE))
        });
        input.into_iter().chain(writable).all(|(bit, request)| {
            let is_queued = self.push(ring, &request);
            self.connections.at_mut(at).watched |= if is_queued { bit } else { 0 };
            is_queued
        })
    }

    /// Queues a request.
    fn push(&mut self, ring: &mut Ring, request: &squeue::Entry) -> bool {
        if ring.submissions().len() >= SUBMISSIONS_MAX {
            // Makes room. If it fails, the next call of the path fails too and reports the reason.
            let _ = ring.submit();
        }
        // SAFETY: The request holds no pointers but that of the buffers, which stay as long as it
        // is in flight, by the promise to `new`. Its file is open until the request has ended,
        // because a place keeps its socket that long.
        let queued = unsafe { ring.submissions().push(request) }.is_ok();
        self.in_flight += usize::from(queued);
        queued
    }

    /// Makes a batch of the completions.
    pub(super) fn make_batch(&mut self) {
        // One completion makes two events at most.
        while self.events.len() < EVENTS_MAX - 1
            && let Some(completed) = self.completed.pop_front()
        {
            match completed {
                CompletedEvent::Accepted(socket) => {
                    let peer = getpeername(&socket).ok().flatten();
                    let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok()).map(canonical);
                    self.events.extend(self.connections.opened(socket, peer));
                }
                CompletedEvent::Other { user_data, result, flags } => {
                    #[expect(clippy::cast_possible_truncation, reason = "the low half is the place")]
                    let at = user_data as u32;
                    match user_data & KIND_MASK {
                        RECEIVE => self.received(at, result, flags),
                        WRITABLE => self
                            .finished(at, AWAITING_WRITABLE, |connections| connections.became_writable(at)),
                        CANCEL if at != NOWHERE => self.finished(at, CANCELLING, |_| None),
                        ACCEPT => self.accept_ended(at, result),
                        _ => {}
                    }
                }
            }
        }
    }

    fn received(&mut self, at: u32, result: i32, flags: u32) {
        if let Some(id) = cqueue::buffer_select(flags) {
            self.lent.push(id);
            if let Ok(len @ 1..) = usize::try_from(result) {
                self.events.extend(self.connections.received(at, id.into(), len));
            }
        }
        if !cqueue::more(flags) {
            self.finished(at, RECEIVING, |connections| match -result {
                0 => connections.ended(at),
                // The buffers ran out, or the path cancelled it. It is queued again as long as it
                // is wanted.
                libc::ENOBUFS | libc::ECANCELED | libc::EAGAIN | libc::EINTR => None,
                error if error > 0 => connections.broke(at),
                _ => None,
            });
        }
    }

    /// Handles the end of a request about a connection.
    fn finished(&mut self, at: u32, bit: u8, act: impl FnOnce(&mut StreamConnections) -> Option<RawEvent>) {
        self.connections.at_mut(at).watched &= !bit;
        let event = act(&mut self.connections);
        self.events.extend(event);
        self.connections.change(at);
        self.connections.release(at);
    }

    fn accept_ended(&mut self, at: u32, result: i32) {
        if let Some(listener) = self.listeners.get_mut(at as usize) {
            listener.watched = false;
            if result < 0 && Listener::is_lasting(Errno::from_raw_os_error(-result)) {
                listener.pause();
            }
            listener.release();
        }
    }

    /// Queues the cancellation of all requests.
    pub(super) fn cancel_all(&mut self, ring: &mut Ring) {
        let request = opcode::AsyncCancel2::new(CancelBuilder::any()).build();
        self.push(ring, &request.user_data(STREAM | CANCEL | u64::from(NOWHERE)));
    }
}

impl StreamMemory for Buffers {
    fn bytes(&self, at: usize, len: usize) -> &[u8] {
        // SAFETY: A buffer that an event of this batch names is in `lent`, and so belongs to the
        // path until `prepare`, which needs exclusive access and drops the events first.
        unsafe { self.filled(at, len) }
    }
}
