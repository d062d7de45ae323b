//! The datapath over `io_uring`: one receive request that keeps filling buffers, and a batch of
//! send requests for each flush.
//!
//! - The kernel works for the ring only while the thread is in a system call on it, so one call of
//!   `flush` both sends the answers and receives the next batch, and under load `wait` makes no
//!   system call at all.
//! - Sends do not wait in the kernel, and a flush returns when all of them are complete. Only then
//!   may the outbox change again.
//! - When the path is dropped, the receive is cancelled first and its buffers are freed after. If
//!   it does not end, the buffers are leaked, so that the kernel never writes to freed memory.

#![expect(unsafe_code, reason = "requests to the kernel hold pointers")]

mod buffers;
mod ring;
mod streams;

use std::collections::VecDeque;
use std::io;
use std::mem::ManuallyDrop;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::rc::Rc;
use std::time::Duration;

use io_uring::types::Fd;
use io_uring::{cqueue, opcode};

use self::buffers::{Buffers, GROUP};
use self::ring::{Ring, SOCKET, explain};
use self::streams::UringStreams;
use crate::batch::{Batch, Datagram, Inbox};
use crate::control::AddressFamily;
use crate::datapath::{DatagramPath, DatapathKind, StreamPath, TrainSupport};
use crate::flush_report::FlushReport;
use crate::options::SocketOptions;
use crate::outbox::Outbox;
use crate::portable::{ControlBuffer, KernelDrops, Messages, Slab, knows_trains, prepare_control};
use crate::socket::{SendTimeout, is_transient};
use crate::streams::{StreamBatch, no_streams};
use crate::trains::TrainPlan;
use crate::waker::Waker;

/// Longest wait while the waker is not watched.
const UNWATCHED_TIMEOUT: Duration = Duration::from_millis(10);
/// Marks completions of the receive. Completions of sends have the index of the message.
const RECEIVE: u64 = u64::MAX;
const CANCEL: u64 = u64::MAX - 1;
const WAKE: u64 = u64::MAX - 2;

/// Fewest buffers. Fewer would often run out between two system calls.
const BUFFERS_MIN: usize = 64;

/// A [`Datapath`](crate::Datapath) for Linux 6.1 and later.
pub(crate) struct UringPath {
    // Views into buffers that belong to the path until `give_back`. Their lifetime is not really
    // `'static`: they leave only as `Batch<'_>`, which borrows the path.
    received: Vec<Datagram<'static>>,
    /// The buffers of `received`, and those that could not be decoded.
    lent: Vec<u16>,
    /// Completed receives that were not returned yet: buffer and length.
    ready: VecDeque<(u16, usize)>,
    batch_segments: usize,
    receives_trains: bool,
    plan: TrainPlan,
    /// Number of the train in the first message.
    first: usize,
    /// Whether the receive request is in flight, or queued for submission.
    receiving: bool,
    /// Whether the request that watches `waker` is in flight, or queued.
    watching: bool,
    /// Whether the waker was used since the last wait.
    woken: bool,
    /// Whether receiving was stopped.
    stopped: bool,
    /// Number of sends in flight or queued.
    sending: usize,
    /// Sends that found the queue of the socket full, by index of the message.
    blocked: Vec<usize>,
    /// The error number that made the path unusable.
    failure: Option<i32>,
    ring: Ring,
    memory: ManuallyDrop<RingMemory>,
    streams: ManuallyDrop<Option<UringStreams>>,
    socket: Rc<UdpSocket>,
    family: AddressFamily,
    drops: KernelDrops,
    waker: Waker,
}

/// The memory that the kernel holds pointers into.
struct RingMemory {
    outbox: Outbox,
    outgoing: Messages,
    incoming: Slab<libc::msghdr>,
    buffers: Buffers,
}

impl UringPath {
    /// Opens the path. When it returns, the kernel has accepted the receive.
    pub(crate) fn open(socket: Rc<UdpSocket>, waker: Waker, options: &SocketOptions) -> io::Result<Self> {
        let address = socket.local_addr()?;
        let ControlBuffer { len: control_len, receives_trains } =
            prepare_control(&*socket, address, options)?;
        let SocketOptions { batch_len, receive_len, outbox_datagrams, outbox_len, .. } = *options;
        // The caller has one batch while the next one arrives.
        let buffers_count = (2 * batch_len).next_power_of_two().clamp(BUFFERS_MIN, Buffers::COUNT_MAX);
        let outgoing = Messages::for_sending(outbox_datagrams);
        let sends_max = outgoing.len();
        let completions = options.streams.as_ref().map_or(0, |_| streams::COMPLETIONS);
        #[expect(clippy::cast_possible_truncation, reason = "at most COUNT_MAX and SENDS_MAX")]
        let ring = Ring::open(
            socket.as_fd(),
            // Besides the sends: the receive or its cancellation, and the watch on the waker.
            (sends_max + 3 + streams::SUBMISSIONS_MAX) as u32,
            // Capacity for all completions between two reads of the ring, so that it does not
            // overflow.
            (sends_max + buffers_count + completions) as u32 + 4,
        )?;
        #[expect(clippy::cast_possible_truncation, reason = "at most COUNT_MAX")]
        let buffers = Buffers::new(buffers_count as u16, receive_len, control_len);
        let mut path = Self {
            received: Vec::with_capacity(batch_len),
            lent: Vec::with_capacity(buffers_count),
            ready: VecDeque::with_capacity(buffers_count),
            batch_segments: options.batch_segments,
            receives_trains,
            plan: TrainPlan::new(outbox_datagrams, options.send_trains && knows_trains(&*socket)),
            first: 0,
            receiving: false,
            watching: false,
            woken: false,
            stopped: false,
            sending: 0,
            blocked: Vec::with_capacity(sends_max),
            failure: None,
            ring,
            memory: ManuallyDrop::new(RingMemory {
                outbox: Outbox::new(outbox_datagrams, outbox_len),
                outgoing,
                incoming: buffers.message(),
                buffers,
            }),
            streams: ManuallyDrop::new(None),
            drops: KernelDrops::new(&socket),
            socket,
            family: AddressFamily::of(address),
            waker,
        };
        if let Some(options) = &options.streams {
            // SAFETY: As for the other buffers.
            path.streams = ManuallyDrop::new(Some(unsafe { UringStreams::new(&path.ring, options) }?));
        }
        // SAFETY: `drop` frees the buffers only when the receive has ended, and nothing is
        // submitted after.
        unsafe { path.memory.buffers.register(&path.ring) }?;
        path.receive();
        path.watch();
        path.turn(Some(Duration::ZERO), &mut FlushReport::default())?;
        match path.failure {
            None => Ok(path),
            Some(error) => Err(explain("multishot receive")(io::Error::from_raw_os_error(error))),
        }
    }

    /// Queues the receive, if none is in flight. A receive ends after an error or an empty
    /// datagram, or when the buffers run out.
    fn receive(&mut self) {
        if self.receiving || self.stopped {
            return;
        }
        let message = self.memory.incoming.at(0).cast_const();
        let request = opcode::RecvMsgMulti::new(SOCKET, message, GROUP).build().user_data(RECEIVE);
        // SAFETY: The message and the buffers are in `memory`, which `drop` frees only when the
        // receive has ended.
        let queued = unsafe { self.ring.submissions().push(&request) };
        // The queue is full only after a failed call, whose error the caller gets before coming
        // here.
        self.receiving = queued.is_ok();
    }

    /// Queues the watch on the waker, if none is in flight.
    fn watch(&mut self) {
        if self.watching {
            return;
        }
        let flags = libc::POLLIN.cast_unsigned().into();
        let request = opcode::PollAdd::new(Fd(self.waker.as_fd().as_raw_fd()), flags).multi(true);
        // SAFETY: It holds no pointer.
        let queued = unsafe { self.ring.submissions().push(&request.build().user_data(WAKE)) };
        self.watching = queued.is_ok();
    }

    /// Queues the send of the message at `i`.
    ///
    /// Putting the address into the request, or requesting completions for failures only, saves
    /// less than 1 % each. So there is one way to send, and sends in flight are counted.
    fn send(&mut self, i: usize) {
        let request = opcode::SendMsg::new(SOCKET, self.memory.outgoing.header(i))
            // The send completes at once, if necessary with "would block".
            .flags(libc::MSG_DONTWAIT.cast_unsigned())
            .build()
            .user_data(i as u64);
        // SAFETY: The message and what it points to are in `memory`. They are not changed and not
        // freed before the send is complete: `flush` waits for that, and a path on which it could
        // not wait is not used again and leaks them.
        let queued = unsafe { self.ring.submissions().push(&request) };
        assert!(queued.is_ok(), "the ring has room for all messages");
        self.sending += 1;
    }

    /// Enters the kernel, then handles completions.
    fn turn(&mut self, timeout: Option<Duration>, flushed: &mut FlushReport) -> io::Result<()> {
        if let Err(error) = self.ring.enter(timeout) {
            self.failure = Some(error.raw_os_error().unwrap_or(libc::EIO));
            return Err(error);
        }
        self.complete(flushed);
        Ok(())
    }

    /// Handles completions, without entering the kernel.
    fn complete(&mut self, flushed: &mut FlushReport) {
        for completion in self.ring.completions() {
            let (result, flags) = (completion.result(), completion.flags());
            match completion.user_data() {
                RECEIVE => {
                    self.receiving = cqueue::more(flags);
                    match (cqueue::buffer_select(flags), usize::try_from(result)) {
                        (Some(id), Ok(len)) => self.ready.push_back((id, len)),
                        (Some(id), Err(_)) => self.lent.push(id),
                        (None, Ok(_)) => {}
                        (None, Err(_)) if is_transient(&io::Error::from_raw_os_error(-result)) => {}
                        (None, Err(_)) if self.stopped && result == -libc::ECANCELED => {}
                        (None, Err(_)) => self.failure = Some(-result),
                    }
                }
                WAKE => {
                    self.watching = cqueue::more(flags);
                    self.woken = true;
                }
                CANCEL => {}
                user_data if user_data & streams::STREAM != 0 => {
                    if let Some(streams) = self.streams.as_mut() {
                        streams.complete(user_data, result, flags);
                    }
                }
                i => {
                    self.sending -= 1;
                    #[expect(clippy::cast_possible_truncation, reason = "less than SENDS_MAX")]
                    let i = i as usize;
                    match -result {
                        libc::EAGAIN => self.blocked.push(i),
                        error if error > 0 => self.plan.refused(self.first + i, error, flushed),
                        _ => self.plan.sent(self.first + i, flushed),
                    }
                }
            }
        }
    }

    /// Gives the buffers of the last batch back to the kernel. The borrow of the path is over.
    fn give_back(&mut self) {
        self.received.clear();
        if !self.lent.is_empty() {
            for id in self.lent.drain(..) {
                self.memory.buffers.give_back(id);
            }
            self.memory.buffers.publish();
        }
    }

    fn check(&self) -> io::Result<()> {
        self.failure.map_or(Ok(()), |error| Err(io::Error::from_raw_os_error(error)))
    }

    /// Waits until all queued sends are complete. Those that would block are repeated for a while.
    fn finish_sends(&mut self, timeout: &mut SendTimeout, flushed: &mut FlushReport) -> io::Result<()> {
        loop {
            while self.sending > 0 {
                self.turn(None, flushed)?;
            }
            if self.blocked.is_empty() {
                return Ok(());
            }
            if !timeout.wait(self.socket.as_fd()) {
                for i in self.blocked.drain(..) {
                    self.plan.blocked(self.first + i, flushed);
                }
                return Ok(());
            }
            for at in 0..self.blocked.len() {
                self.send(self.blocked[at]);
            }
            self.blocked.clear();
        }
    }

    /// Ends the receive, and with `all` the requests of connections. Returns whether none of them
    /// is in flight any more.
    fn quiesce(&mut self, all: bool) -> bool {
        let mut unseen = FlushReport::default();
        let cancel = opcode::AsyncCancel::new(RECEIVE).build().user_data(CANCEL);
        // SAFETY: It holds no pointer.
        let queued = unsafe { self.ring.submissions().push(&cancel) };
        if let Some(streams) = self.streams.as_mut()
            && all
        {
            streams.cancel_all(&mut self.ring);
        }
        // One turn is enough, but a signal may end some early.
        for _ in 0..100 {
            if self.is_quiet(all) || queued.is_err() {
                break;
            }
            if self.turn(Some(Duration::from_millis(10)), &mut unseen).is_err() {
                break;
            }
        }
        self.is_quiet(all)
    }

    fn is_quiet(&self, all: bool) -> bool {
        let has_streams = all && self.streams.as_ref().is_some_and(|streams| !streams.is_quiet());
        !self.receiving && self.sending == 0 && !has_streams
    }
}

impl DatagramPath for UringPath {
    fn kind(&self) -> DatapathKind {
        DatapathKind::Uring
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<Batch<'_>> {
        self.give_back();
        self.complete(&mut FlushReport::default());
        let (mut is_awake, mut timeout) = (self.woken, timeout);
        if let Some(streams) = self.streams.as_mut() {
            streams.prepare(&mut self.ring);
            timeout = streams.timeout(timeout);
            is_awake |= streams.is_ready();
        }
        if self.ready.is_empty() {
            self.check()?;
            self.receive();
            self.watch();
            if !self.watching {
                // The ring is full, so the wake cannot be waited for and is polled instead.
                timeout = timeout.min(UNWATCHED_TIMEOUT);
            }
            let timeout = if is_awake { Duration::ZERO } else { timeout };
            self.turn(Some(timeout), &mut FlushReport::default())?;
        }
        self.woken = false;
        if let Some(streams) = self.streams.as_mut() {
            streams.make_batch();
        }
        let mut segments = 0;
        while self.received.len() < self.received.capacity()
            && let Some(&(id, len)) = self.ready.front()
        {
            // SAFETY: The completion gave the buffer to the path, and it is given back only after
            // `received` has been cleared.
            let datagram = unsafe { self.memory.buffers.datagram(id, len) };
            segments += datagram.as_ref().map_or(0, Datagram::segments_count);
            if segments > self.batch_segments && !self.received.is_empty() {
                break;
            }
            self.ready.pop_front();
            self.lent.push(id);
            self.received.extend(datagram);
        }
        Ok(Batch { inbox: Inbox::new(&self.received), outbox: &mut self.memory.outbox })
    }

    fn outbox(&mut self) -> &mut Outbox {
        &mut self.memory.outbox
    }

    fn flush(&mut self) -> io::Result<FlushReport> {
        self.check()?;
        let (mut flushed, mut timeout) = (FlushReport::default(), SendTimeout::default());
        // Before the turn, so that it can receive into them.
        self.give_back();
        self.receive();
        self.plan.make(&self.memory.outbox);
        loop {
            self.first = 0;
            while self.first < self.plan.trains().len() {
                let RingMemory { outbox, outgoing, .. } = &mut *self.memory;
                let count = outgoing.load(self.family, outbox, &self.plan, self.first);
                for i in 0..count {
                    self.send(i);
                }
                self.finish_sends(&mut timeout, &mut flushed)?;
                self.first += count;
            }
            if !self.plan.retry(&self.memory.outbox) {
                break;
            }
        }
        self.memory.outbox.clear();
        Ok(flushed)
    }

    fn stop_receiving(&mut self) -> io::Result<()> {
        self.check()?;
        self.stopped = true;
        // Datagrams that the receive took from the socket are complete, and so in `ready`.
        if self.quiesce(false) {
            Ok(())
        } else {
            Err(io::Error::other("cannot stop receiving: the receive request does not end"))
        }
    }

    fn kernel_drops(&self) -> u64 {
        self.drops.since_opened(&self.socket)
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn trains(&self) -> TrainSupport {
        TrainSupport { received: self.receives_trains, sent: self.plan.sends_trains() }
    }
}

impl StreamPath for UringPath {
    fn listen(&mut self, listener: TcpListener) -> io::Result<()> {
        self.streams.as_mut().ok_or_else(no_streams)?.listen(listener);
        Ok(())
    }

    fn stop_listening(&mut self) {
        if let Some(streams) = self.streams.as_mut() {
            streams.stop_listening(&mut self.ring);
        }
    }

    fn streams(&mut self) -> Option<StreamBatch<'_>> {
        self.streams.as_mut().map(UringStreams::batch)
    }
}

impl Drop for UringPath {
    fn drop(&mut self) {
        let quiet = self.quiesce(true);
        debug_assert!(quiet || self.failure.is_some(), "the receive did not end");
        // The kernel frees a ring later, and would keep the socket open until then. If other
        // sockets share the port, datagrams would still go to this one and be lost.
        let _ = self.ring.submitter().unregister_files();
        if quiet {
            // SAFETY: It is not used after this. Nothing is in flight, so the kernel does not use
            // it either, and nothing is submitted any more.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
            // SAFETY: As above.
            unsafe { ManuallyDrop::drop(&mut self.streams) };
        }
    }
}
