//! The path over `io_uring`: one receive request that keeps filling buffers, and a batch of send
//! requests for each flush.
//!
//! - The kernel works for us only while we are in it, so one call of `flush` both sends the answers and
//!   receives the next batch, and under load `wait` makes no system call at all.
//! - Sends do not wait in the kernel, and a flush returns when each of them is complete: only then is
//!   the outbox ours again.
//! - When the path is dropped, the receive is cancelled first and its buffers are freed after. Should it
//!   not end, they are leaked: better lost than written to.

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
use crate::datapath::{Datapath, DatapathKind, FlushReport, TrainSupport};
use crate::outbox::Outbox;
use crate::portable::{ControlBuffer, KernelDrops, Messages, Slab, knows_trains, prepare_control};
use crate::socket::{SendPatience, SocketOptions, is_transient};
use crate::streams::{StreamBatch, no_streams};
use crate::trains::TrainPlan;
use crate::waker::Waker;

/// Longest wait where the waker is not watched.
const UNWATCHED_PATIENCE: Duration = Duration::from_millis(10);
/// Marks the completions of the receive. Those of sends are marked with the index of the message.
const RECEIVE: u64 = u64::MAX;
const CANCEL: u64 = u64::MAX - 1;
const WAKE: u64 = u64::MAX - 2;

/// Fewer buffers than this would often run out within one turn.
const BUFFERS_MIN: usize = 64;

/// A [`Datapath`] for Linux 6.1 and later.
pub(crate) struct UringPath {
    // Views into buffers that are ours until `give_back`. Their lifetime is not really `'static`: they
    // leave only as `Batch<'_>`, which borrows the path.
    received: Vec<Datagram<'static>>,
    /// The buffers of `received`, and of what could not be read.
    lent: Vec<u16>,
    /// Completed receives, not yet handed over: buffer and length.
    ready: VecDeque<(u16, usize)>,
    batch_segments: usize,
    receives_trains: bool,
    plan: TrainPlan,
    /// Number of the train that the first message says.
    first: usize,
    /// The receive request is in flight, or queued for submission.
    receiving: bool,
    /// The request that watches `waker` is in flight, or queued.
    watching: bool,
    /// The waker was used since the last wait.
    woken: bool,
    /// No receive is queued any more.
    stopped: bool,
    /// How many sends are in flight or queued.
    sending: usize,
    /// Sends that found the queue of the socket full, by index of the message.
    blocked: Vec<usize>,
    /// Why the path is of no more use, as an error number.
    failure: Option<i32>,
    ring: Ring,
    memory: ManuallyDrop<RingMemory>,
    streams: ManuallyDrop<Option<UringStreams>>,
    socket: Rc<UdpSocket>,
    family: AddressFamily,
    drops: KernelDrops,
    waker: Waker,
}

/// What the kernel holds pointers into.
struct RingMemory {
    outbox: Outbox,
    outgoing: Messages,
    incoming: Slab<libc::msghdr>,
    buffers: Buffers,
}

impl UringPath {
    /// Opens the path, and has seen the kernel accept its receive.
    pub(crate) fn open(socket: Rc<UdpSocket>, waker: Waker, options: &SocketOptions) -> io::Result<Self> {
        let address = socket.local_addr()?;
        let ControlBuffer { len: control_len, receives_trains } =
            prepare_control(&*socket, address, options)?;
        let SocketOptions { batch_len, receive_len, outbox_datagrams, outbox_len, .. } = *options;
        // One batch is with the caller while the next one arrives.
        let buffers_count = (2 * batch_len).next_power_of_two().clamp(BUFFERS_MIN, Buffers::COUNT_MAX);
        let outgoing = Messages::for_sending(outbox_datagrams);
        let sends_max = outgoing.len();
        let completions = options.streams.as_ref().map_or(0, |_| streams::COMPLETIONS);
        #[expect(clippy::cast_possible_truncation, reason = "at most COUNT_MAX and SENDS_MAX")]
        let ring = Ring::open(
            socket.as_fd(),
            // Besides the sends, the receive or its cancellation, and the watch on the waker.
            (sends_max + 3 + streams::SUBMISSIONS_MAX) as u32,
            // Room for all that can complete before it is looked at, so that nothing overflows.
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
            // SAFETY: As with the other buffers.
            path.streams = ManuallyDrop::new(Some(unsafe { UringStreams::new(&path.ring, options) }?));
        }
        // SAFETY: `drop` frees the buffers only when the receive has ended, and nothing is submitted after.
        unsafe { path.memory.buffers.register(&path.ring) }?;
        path.receive();
        path.watch();
        path.turn(Some(Duration::ZERO), &mut FlushReport::default())?;
        match path.failure {
            None => Ok(path),
            Some(error) => Err(explain("multishot receive")(io::Error::from_raw_os_error(error))),
        }
    }

    /// Queues the receive, if there is none. It ends when an error or an empty datagram comes along, or
    /// buffers run out.
    fn receive(&mut self) {
        if self.receiving || self.stopped {
            return;
        }
        let message = self.memory.incoming.at(0).cast_const();
        let request = opcode::RecvMsgMulti::new(SOCKET, message, GROUP).build().user_data(RECEIVE);
        // SAFETY: The message and the buffers are in `memory`, which `drop` frees only when the receive
        // has ended.
        let queued = unsafe { self.ring.submissions().push(&request) };
        // It is full only after a failed call, and whoever sees that failure does not come here.
        self.receiving = queued.is_ok();
    }

    /// Queues the watch on the waker, if there is none.
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
    /// Sending with an address in the request, or asking only for completions that are failures, was
    /// measured to save less than 1 % each. So there is one way to send, and what is in flight is counted.
    fn send(&mut self, i: usize) {
        let request = opcode::SendMsg::new(SOCKET, self.memory.outgoing.header(i))
            // Complete at once, if need be by saying that it would block.
            .flags(libc::MSG_DONTWAIT.cast_unsigned())
            .build()
            .user_data(i as u64);
        // SAFETY: The message and what it points to are in `memory`. They are not changed and not freed
        // before the send is complete: `flush` waits for that, and a path on which it could not is not
        // used again and leaks them.
        let queued = unsafe { self.ring.submissions().push(&request) };
        assert!(queued.is_ok(), "the ring has room for all messages");
        self.sending += 1;
    }

    /// Enters the kernel, then looks at what is complete.
    fn turn(&mut self, patience: Option<Duration>, flushed: &mut FlushReport) -> io::Result<()> {
        if let Err(error) = self.ring.enter(patience) {
            self.failure = Some(error.raw_os_error().unwrap_or(libc::EIO));
            return Err(error);
        }
        self.complete(flushed);
        Ok(())
    }

    /// Looks at what is complete. Does not enter the kernel.
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
                what if what & streams::STREAM != 0 => {
                    if let Some(streams) = self.streams.as_mut() {
                        streams.complete(what, result, flags);
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

    /// Gives the kernel the buffers of the last batch, whose borrow of the path is over.
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

    /// Waits until all queued sends are complete; those that would block are sent again for a while.
    fn finish_sends(&mut self, patience: &mut SendPatience, flushed: &mut FlushReport) -> io::Result<()> {
        loop {
            while self.sending > 0 {
                self.turn(None, flushed)?;
            }
            if self.blocked.is_empty() {
                return Ok(());
            }
            if !patience.wait(self.socket.as_fd()) {
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

    /// Ends the receive, and with `all` what connections have, and returns whether nothing of it is in flight
    /// any more.
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
        // It takes one turn; a signal may end some early.
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

impl Datapath for UringPath {
    fn kind(&self) -> DatapathKind {
        DatapathKind::Uring
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    fn wait(&mut self, patience: Duration) -> io::Result<Batch<'_>> {
        self.give_back();
        self.complete(&mut FlushReport::default());
        let (mut is_awake, mut patience) = (self.woken, patience);
        if let Some(streams) = self.streams.as_mut() {
            streams.prepare(&mut self.ring);
            patience = streams.patience(patience);
            is_awake |= streams.is_ready();
        }
        if self.ready.is_empty() {
            self.check()?;
            self.receive();
            self.watch();
            if !self.watching {
                // The ring is full: what cannot be waited for is looked for.
                patience = patience.min(UNWATCHED_PATIENCE);
            }
            let patience = if is_awake { Duration::ZERO } else { patience };
            self.turn(Some(patience), &mut FlushReport::default())?;
        }
        self.woken = false;
        if let Some(streams) = self.streams.as_mut() {
            streams.take();
        }
        let mut segments = 0;
        while self.received.len() < self.received.capacity()
            && let Some(&(id, len)) = self.ready.front()
        {
            // SAFETY: The completion made the buffer ours, and it is given back only after `received`
            // has been cleared.
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
        let (mut flushed, mut patience) = (FlushReport::default(), SendPatience::default());
        // The same turn may then receive.
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
                self.finish_sends(&mut patience, &mut flushed)?;
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
        // What it took from the socket before it ended is complete, and so in `ready`.
        if self.quiesce(false) { Ok(()) } else { Err(io::Error::other("the receive does not end")) }
    }

    fn kernel_drops(&self) -> u64 {
        self.drops.since_opened(&self.socket)
    }

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

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn trains(&self) -> TrainSupport {
        TrainSupport { received: self.receives_trains, sent: self.plan.sends_trains() }
    }
}

impl Drop for UringPath {
    fn drop(&mut self) {
        let quiet = self.quiesce(true);
        debug_assert!(quiet || self.failure.is_some(), "the receive did not end");
        // A ring is taken apart later, by the kernel, and would keep the socket open until then: where
        // others share the port, datagrams would go on to it and be lost.
        let _ = self.ring.submitter().unregister_files();
        if quiet {
            // SAFETY: It is not used after this. Nothing is in flight, so the kernel does not use it
            // either, and nothing is submitted any more.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
            // SAFETY: The same.
            unsafe { ManuallyDrop::drop(&mut self.streams) };
        }
    }
}
