//! The datapath over `recvmmsg` and `sendmmsg`, and the message headers that both datapaths pass to
//! the kernel.
//!
//! Headers, addresses and buffers are allocated once, and the pointers between them are set once.
//! Only the fields that the kernel overwrites are set again, and only in headers that it used.

#![expect(unsafe_code, reason = "message headers are made of pointers, and libc's calls take them")]

mod streams;

use std::io;
use std::mem;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::rc::Rc;
use std::slice;
use std::time::Duration;

use crate::batch::{Batch, Datagram, Inbox};
use crate::control::{self, ADDRESS_LEN, AddressFamily, CONTROL_LEN, NAME_LEN, SEGMENT_LEN};
use crate::datapath::{DatagramPath, DatapathKind, StreamPath, TrainSupport};
use crate::flush_report::FlushReport;
use crate::options::SocketOptions;
use crate::outbox::Outbox;
use crate::socket::{SendTimeout, is_transient, wait_for_input};
use crate::streams::{StreamBatch, no_streams};
use crate::trains::{SEGMENTS_MAX, Train, TrainPlan};
use crate::waker::Waker;

use self::streams::PortableStreams;

/// Most sends of one system call. More would not be cheaper for each, and would take more memory.
pub(crate) const SENDS_MAX: usize = 256;

/// Most pieces of memory in the sends of one system call. A train of adjacent answers is one piece;
/// a train of answers from all over the outbox has as many pieces as segments.
const PARTS_MAX: usize = 2048;
const _: () = assert!(PARTS_MAX >= SEGMENTS_MAX as usize);

/// Most single datagrams that are received together. In a larger batch more answers to one peer can
/// leave in trains; if all datagrams come one by one, that gains nothing, and reused buffers stay
/// in the cache.
const SINGLES_MAX: usize = 64;

/// Under constant load, the number of datagrams between two polls of the connections: microseconds
/// each. Trains count once.
const DATAGRAMS_UNTIL_STREAMS: usize = 64;

const NAME_CAPACITY: libc::socklen_t = 32;
const _: () = assert!(NAME_CAPACITY as usize == NAME_LEN);

/// A [`Datapath`](crate::Datapath) that works on every Linux kernel.
pub(crate) struct PortablePath {
    // Views into `buffers`, valid from one wait to the next. Their lifetime is not really
    // `'static`: they leave only as `Batch<'_>`, which borrows the path.
    received: Vec<Datagram<'static>>,
    outbox: Outbox,
    plan: TrainPlan,
    incoming: Messages,
    /// Position in `received` of the first datagram that was not returned yet.
    next: usize,
    outgoing: Messages,
    buffers: Slab<u8>,
    receive_len: usize,
    batch_segments: usize,
    receives_trains: bool,
    socket: Rc<UdpSocket>,
    family: AddressFamily,
    drops: KernelDrops,
    waker: Waker,
    /// Whether receiving was stopped.
    stopped: bool,
    streams: Option<PortableStreams>,
    /// Datagrams until the connections are polled, while there are always datagrams.
    datagrams_until_streams: usize,
}

impl PortablePath {
    pub(crate) fn open(socket: Rc<UdpSocket>, waker: Waker, options: &SocketOptions) -> io::Result<Self> {
        let address = socket.local_addr()?;
        let ControlBuffer { len: control_len, receives_trains } =
            prepare_control(&*socket, address, options)?;
        let SocketOptions { batch_len, receive_len, outbox_datagrams, outbox_len, .. } = *options;
        let stride = stride(receive_len);
        let buffers = Slab::from(vec![0; batch_len * stride]);
        let mut incoming = Messages::new(batch_len, batch_len);
        for i in 0..batch_len {
            incoming.receive_into(i, buffers.range(i * stride, receive_len), receive_len, control_len);
        }
        Ok(Self {
            received: Vec::with_capacity(batch_len),
            outbox: Outbox::new(outbox_datagrams, outbox_len),
            plan: TrainPlan::new(outbox_datagrams, options.send_trains && knows_trains(&*socket)),
            incoming,
            next: 0,
            outgoing: Messages::for_sending(outbox_datagrams),
            buffers,
            receive_len,
            batch_segments: options.batch_segments,
            receives_trains,
            drops: KernelDrops::new(&socket),
            socket,
            family: AddressFamily::of(address),
            waker,
            stopped: false,
            streams: options.streams.as_ref().map(PortableStreams::new).transpose()?,
            datagrams_until_streams: DATAGRAMS_UNTIL_STREAMS,
        })
    }

    /// Receives the datagrams that are ready, without waiting.
    fn receive(&mut self) -> io::Result<()> {
        self.received.clear();
        if self.stopped {
            return Ok(());
        }
        self.next = 0;
        match self.incoming.receive(self.socket.as_fd()) {
            Ok(_) => Ok(()),
            Err(error) if is_transient(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Fills the inbox with received datagrams, up to the size of a batch.
    fn hand_over(&mut self) {
        self.received.clear();
        let mut segments = 0;
        while self.next < self.incoming.received_count() {
            let i = self.next;
            let (message, name, control) = self.incoming.received(i);
            let Some((peer, segment_len)) = control::decode(name, control) else {
                self.next += 1;
                continue;
            };
            let len = (message.msg_len as usize).min(self.receive_len);
            let start = self.buffers.range(i * stride(self.receive_len), len);
            // SAFETY: The range is in `buffers`, initialised since it was made, and stays allocated
            // and unmoved as long as `self`. Nothing writes to it before the next call of
            // `receive`, which needs `&mut self`; until then the view leaves only in a borrow of
            // `self`.
            let bytes = unsafe { slice::from_raw_parts(start, len) };
            let truncated = message.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
            let datagram = Datagram { bytes, peer, segment_len: segment_len.unwrap_or(len), truncated };
            segments += datagram.segments_count();
            if segments > self.batch_segments && !self.received.is_empty() {
                return;
            }
            self.received.push(datagram);
            self.next += 1;
        }
    }
}

impl PortablePath {
    /// Begins a batch of events of connections. The kernel is polled if an event is likely, or if
    /// datagrams have kept connections waiting. Returns whether there are events.
    fn take_streams(&mut self) -> io::Result<bool> {
        let Some(streams) = self.streams.as_mut() else { return Ok(false) };
        let had_events = streams.has_events();
        streams.prepare()?;
        self.datagrams_until_streams = self.datagrams_until_streams.saturating_sub(self.received.len());
        if had_events || self.datagrams_until_streams == 0 {
            self.datagrams_until_streams = DATAGRAMS_UNTIL_STREAMS;
            streams.poll()?;
        }
        Ok(streams.has_events())
    }
}

/// Distance between two receive buffers: not a power of two, so that their starts, which are used
/// most, do not compete for the same cache lines.
fn stride(receive_len: usize) -> usize {
    receive_len.next_multiple_of(64) + 3 * 64
}

impl DatagramPath for PortablePath {
    fn kind(&self) -> DatapathKind {
        DatapathKind::Portable
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<Batch<'_>> {
        self.hand_over();
        if self.received.is_empty() {
            // Under load a datagram is always ready, and this is the only call.
            self.receive()?;
            self.hand_over();
        }
        let had_streams = self.take_streams()?;
        if self.received.is_empty() && !had_streams && !timeout.is_zero() {
            let streams = self.streams.as_ref().map(AsFd::as_fd);
            // When receiving was stopped, the waker takes the place of the socket, and is polled
            // twice.
            let socket = if self.stopped { self.waker.as_fd() } else { self.socket.as_fd() };
            let timeout = self.streams.as_ref().map_or(timeout, |streams| streams.timeout(timeout));
            let ready = wait_for_input(socket, &self.waker, streams, timeout)?;
            if ready.socket {
                self.receive()?;
                self.hand_over();
            }
            if let Some(streams) = self.streams.as_mut()
                && ready.streams
            {
                streams.poll()?;
            }
        }
        Ok(Batch { inbox: Inbox::new(&self.received), outbox: &mut self.outbox })
    }

    fn outbox(&mut self) -> &mut Outbox {
        &mut self.outbox
    }

    fn flush(&mut self) -> io::Result<FlushReport> {
        let mut flushed = FlushReport::default();
        let mut timeout = SendTimeout::default();
        self.plan.make(&self.outbox);
        loop {
            let mut first = 0;
            while first < self.plan.trains().len() {
                let count = self.outgoing.load(self.family, &self.outbox, &self.plan, first);
                let mut done = 0;
                while done < count {
                    match self.outgoing.send(self.socket.as_fd(), done, count) {
                        Ok(sent) => {
                            for _ in 0..sent {
                                self.plan.sent(first + done, &mut flushed);
                                done += 1;
                            }
                        }
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                            if !timeout.wait(self.socket.as_fd()) {
                                self.plan.blocked(first + done, &mut flushed);
                                done += 1;
                            }
                        }
                        // The kernel stops at the first message that it refuses; those behind it
                        // are sent next.
                        Err(error) => {
                            let error = error.raw_os_error().unwrap_or_default();
                            self.plan.refused(first + done, error, &mut flushed);
                            done += 1;
                        }
                    }
                }
                first += count;
            }
            if !self.plan.retry(&self.outbox) {
                break;
            }
        }
        self.outbox.clear();
        Ok(flushed)
    }

    fn stop_receiving(&mut self) -> io::Result<()> {
        self.stopped = true;
        Ok(())
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

impl StreamPath for PortablePath {
    fn listen(&mut self, listener: TcpListener) -> io::Result<()> {
        self.streams.as_mut().ok_or_else(no_streams)?.listen(listener);
        Ok(())
    }

    fn stop_listening(&mut self) {
        if let Some(streams) = self.streams.as_mut() {
            streams.stop_listening();
        }
    }

    fn streams(&mut self) -> Option<StreamBatch<'_>> {
        self.streams.as_mut().map(PortableStreams::batch)
    }
}

/// Message headers, each with an address, capacity for control messages, and pieces of memory.
///
/// The kernel uses them, and the memory that they point to, only in calls that the owner makes with
/// `&mut self`.
pub(crate) struct Messages {
    names: Slab<[u8; NAME_LEN]>,
    controls: Slab<[u8; CONTROL_LEN]>,
    parts: Slab<libc::iovec>,
    headers: Slab<libc::mmsghdr>,
    /// Number of headers, from the start, that the kernel wrote in the last receive.
    used: usize,
    control_len: usize,
}

/// The most messages and pieces of memory that one system call sends.
fn sizes(datagrams_max: usize) -> (usize, usize) {
    (datagrams_max.min(SENDS_MAX), datagrams_max.clamp(SEGMENTS_MAX as usize, PARTS_MAX))
}

impl Messages {
    /// Messages to send an outbox of `datagrams_max` datagrams with.
    pub(crate) fn for_sending(datagrams_max: usize) -> Self {
        let (count, parts_count) = sizes(datagrams_max);
        Self::new(count, parts_count)
    }

    /// `count` messages that share `parts_count` pieces of memory; at first each message has the
    /// piece of its number.
    fn new(count: usize, parts_count: usize) -> Self {
        assert!(count <= parts_count);
        // SAFETY: All fields are integers and pointers, for which zero is a value.
        let header: libc::mmsghdr = unsafe { mem::zeroed() };
        let empty = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
        let mut messages = Self {
            names: Slab::from(vec![[0; NAME_LEN]; count]),
            controls: Slab::from(vec![[0; CONTROL_LEN]; count]),
            parts: Slab::from(vec![empty; parts_count]),
            headers: Slab::from(vec![header; count]),
            used: 0,
            control_len: 0,
        };
        for i in 0..count {
            let (name, part, control) = (messages.names.at(i), messages.parts.at(i), messages.controls.at(i));
            let header = &mut messages.headers.get_mut(i).msg_hdr;
            header.msg_name = name.cast();
            header.msg_iov = part;
            header.msg_iovlen = 1;
            header.msg_control = control.cast();
        }
        messages
    }

    pub(crate) fn len(&self) -> usize {
        self.headers.len
    }

    /// The header at `i`, for a system call.
    pub(crate) fn header(&self, i: usize) -> *const libc::msghdr {
        // `mmsghdr` begins with the `msghdr`.
        const { assert!(mem::offset_of!(libc::mmsghdr, msg_hdr) == 0) };
        self.headers.at(i).cast_const().cast()
    }

    /// Fills the messages with the trains of `plan` from `first` on, as many as there is capacity
    /// for, and returns their number. The messages hold no borrow of `outbox`: before it changes,
    /// they must be sent or filled again.
    pub(crate) fn load(
        &mut self,
        family: AddressFamily,
        outbox: &Outbox,
        plan: &TrainPlan,
        first: usize,
    ) -> usize {
        let mut parts_used = 0;
        let mut count = 0;
        for train in plan.trains()[first..].iter().take(self.len()) {
            let parts_left = self.parts.len - parts_used;
            if train.count as usize > parts_left {
                break;
            }
            parts_used += self.load_train(count, parts_used, family, outbox, plan, train);
            count += 1;
        }
        count
    }

    /// Fills the message at `i` with `train`, with pieces from `parts_at` on; returns their number.
    #[inline]
    fn load_train(
        &mut self,
        i: usize,
        parts_at: usize,
        family: AddressFamily,
        outbox: &Outbox,
        plan: &TrainPlan,
        train: &Train,
    ) -> usize {
        let mut parts_count = 0;
        // The end of the last piece, which is extended if the next datagram begins there.
        let mut end = u32::MAX;
        for at in plan.slots(train) {
            let slot = outbox.slots()[at];
            let bytes = outbox.slot_bytes(slot);
            if slot.start == end {
                self.parts.get_mut(parts_at + parts_count - 1).iov_len += bytes.len();
            } else {
                *self.parts.get_mut(parts_at + parts_count) =
                    libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
                parts_count += 1;
            }
            end = slot.start + slot.len;
        }
        let peer = outbox.peer(train.to);
        let name_len = control::encode_name(peer, family, self.names.get_mut(i));
        let control_len = control::encode(peer, family, train.segment_len(), self.controls.get_mut(i));
        let parts = self.parts.range(parts_at, parts_count);
        let header = &mut self.headers.get_mut(i).msg_hdr;
        header.msg_namelen = name_len;
        header.msg_controllen = control_len as _;
        header.msg_iov = parts;
        header.msg_iovlen = parts_count as _;
        parts_count
    }

    /// Makes the message at `i` receive `len` bytes to `start`.
    fn receive_into(&mut self, i: usize, start: *mut u8, len: usize, control_len: usize) {
        *self.parts.get_mut(i) = libc::iovec { iov_base: start.cast(), iov_len: len };
        self.control_len = control_len;
        self.used = self.used.max(i + 1);
    }

    /// Sends the messages from `done` to `count`; returns how many were sent before the kernel
    /// refused one.
    fn send(&mut self, socket: BorrowedFd<'_>, done: usize, count: usize) -> io::Result<u32> {
        let left = u32::try_from(count - done).unwrap_or(u32::MAX);
        let first = self.headers.range(done, count - done);
        // SAFETY: `left` headers at `first` are valid, and so is what they point to: names, parts
        // and controls belong to `self`, which nothing else uses during the call, and the bytes to
        // the outbox, which is unchanged since `load`. The kernel writes only `msg_len`.
        let sent = unsafe { libc::sendmmsg(socket.as_raw_fd(), first, left, libc::MSG_DONTWAIT) };
        u32::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    /// Receives the messages that are ready, and returns their number: at most as many as there are
    /// headers if they come in trains, otherwise at most `SINGLES_MAX`.
    fn receive(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        for i in 0..mem::take(&mut self.used) {
            let header = &mut self.headers.get_mut(i).msg_hdr;
            header.msg_namelen = NAME_CAPACITY;
            header.msg_controllen = self.control_len as _;
            header.msg_flags = 0;
        }
        while self.used < self.len() {
            let step = (self.len() - self.used).min(SINGLES_MAX);
            match self.receive_step(socket, step) {
                Ok(count) => {
                    self.used += count;
                    if count < step || !self.is_train(self.used - 1) {
                        break;
                    }
                }
                Err(error) if self.used == 0 => return Err(error),
                // Messages were received, so the error of a later call (nothing more is ready) does
                // not matter.
                Err(_) => break,
            }
        }
        Ok(self.used)
    }

    /// Receives at most `step` messages behind those in use, in one call.
    fn receive_step(&mut self, socket: BorrowedFd<'_>, step: usize) -> io::Result<usize> {
        let count = u32::try_from(step).unwrap_or(u32::MAX);
        let first = self.headers.range(self.used, step);
        // SAFETY: `count` headers at `first` are valid, and so is what they point to, for the
        // lengths in them: names, parts and controls belong to `self` and the bytes to the receive
        // buffers, all allocated once and not referred to during the call. There is no timeout to
        // read.
        let received = unsafe {
            libc::recvmmsg(socket.as_raw_fd(), first, count, libc::MSG_DONTWAIT as _, ptr::null_mut())
        };
        usize::try_from(received).map_err(|_| io::Error::last_os_error())
    }

    /// Whether the received message at `i` is a train.
    fn is_train(&self, i: usize) -> bool {
        let (_, name, control) = self.received(i);
        control::decode(name, control).is_some_and(|(_, segment_len)| segment_len.is_some())
    }

    /// Number of messages of the last receive.
    fn received_count(&self) -> usize {
        self.used
    }

    /// The header, address and control messages of the received message at `i`.
    fn received(&self, i: usize) -> (&libc::mmsghdr, &[u8], &[u8]) {
        let header = self.headers.get(i);
        let name = &self.names.get(i)[..NAME_LEN.min(header.msg_hdr.msg_namelen as usize)];
        #[allow(clippy::unnecessary_cast, reason = "C libraries differ in its type")]
        let control_len = header.msg_hdr.msg_controllen as usize;
        let control = &self.controls.get(i)[..CONTROL_LEN.min(control_len)];
        (header, name, control)
    }
}

/// An array that never moves, for the kernel to point into.
///
/// It is accessed through raw pointers only, so that moving its owner, or a reference to one item,
/// does not affect pointers to the others.
pub(crate) struct Slab<T> {
    start: NonNull<T>,
    len: usize,
}

impl<T> From<Vec<T>> for Slab<T> {
    fn from(items: Vec<T>) -> Self {
        let items = NonNull::from(Box::leak(items.into_boxed_slice()));
        Self { start: items.cast(), len: items.len() }
    }
}

impl<T> Slab<T> {
    pub(crate) fn at(&self, i: usize) -> *mut T {
        self.range(i, 1)
    }

    /// The start of `len` items from `at` on.
    pub(crate) fn range(&self, at: usize, len: usize) -> *mut T {
        assert!(at <= self.len && len <= self.len - at, "{len} items at {at} of {}", self.len);
        // SAFETY: At most `len` items past the start of an allocation of `len` items.
        unsafe { self.start.as_ptr().add(at) }
    }

    /// The item at `i`. The owner must know that the kernel is not writing to it.
    fn get(&self, i: usize) -> &T {
        // SAFETY: In bounds by `at`, initialised by `from`, and `&self` keeps others from changing
        // it.
        unsafe { &*self.at(i) }
    }

    /// The item at `i`. The owner must know that the kernel is not using it.
    fn get_mut(&mut self, i: usize) -> &mut T {
        // SAFETY: In bounds by `at`, initialised by `from`, and `&mut self` keeps others away.
        unsafe { &mut *self.at(i) }
    }
}

impl<T> Drop for Slab<T> {
    fn drop(&mut self) {
        let items = ptr::slice_from_raw_parts_mut(self.start.as_ptr(), self.len);
        // SAFETY: `From` leaked it from a box of this length, and it is freed once.
        drop(unsafe { Box::from_raw(items) });
    }
}

/// The bytes for control messages of a socket.
pub(crate) struct ControlBuffer {
    /// Bytes that those of a received message need.
    pub(crate) len: usize,
    pub(crate) receives_trains: bool,
}

/// Enables the control messages that `options` and the `address` of the socket need.
pub(crate) fn prepare_control(
    socket: &impl AsFd,
    address: SocketAddr,
    options: &SocketOptions,
) -> io::Result<ControlBuffer> {
    let receives_trains = options.receive_trains && receive_trains(socket);
    if !options.receive_trains {
        // The process that made the socket may have enabled them.
        let _ = set_option(socket, libc::SOL_UDP, libc::UDP_GRO, 0);
    }
    let segment_len = if receives_trains { SEGMENT_LEN } else { 0 };
    Ok(ControlBuffer { len: receive_local_address(socket, address)? + segment_len, receives_trains })
}

/// Enables reporting the address that each datagram was sent to, if the socket has several.
///
/// Returns the bytes that the control messages need. A socket that is bound to one address needs
/// none, and saves their cost.
pub(crate) fn receive_local_address(socket: &impl AsFd, address: SocketAddr) -> io::Result<usize> {
    if !address.ip().is_unspecified() {
        return Ok(0);
    }
    match AddressFamily::of(address) {
        AddressFamily::V4 => set_option(socket, libc::IPPROTO_IP, libc::IP_PKTINFO, 1)?,
        // With it, IPv4 datagrams of a dual-stack socket report their address too, in mapped form.
        AddressFamily::V6 => set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1)?,
    }
    Ok(ADDRESS_LEN)
}

/// Enables trains, and returns whether the kernel supports them.
pub(crate) fn receive_trains(socket: &impl AsFd) -> bool {
    set_option(socket, libc::SOL_UDP, libc::UDP_GRO, 1).is_ok()
}

/// Whether the kernel can send trains. A kernel that cannot would send each train as one datagram.
pub(crate) fn knows_trains(socket: &impl AsFd) -> bool {
    // A segment length of 0, which is the default, is for sends that give none.
    set_option(socket, libc::SOL_UDP, libc::UDP_SEGMENT, 0).is_ok()
}

/// Sets a numeric option of the socket.
fn set_option(
    socket: &impl AsFd,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let (fd, value) = (socket.as_fd().as_raw_fd(), (&raw const value).cast());
    // SAFETY: The kernel reads 4 bytes from `value`, which are those of the argument.
    match unsafe { libc::setsockopt(fd, level, option, value, 4) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The kernel's count of datagrams that it dropped because the queue of a socket was full.
///
/// `SO_RXQ_OVFL` reports the same counter, but only with the next datagram that fits, and at the
/// cost of a control message for each.
pub(crate) struct KernelDrops {
    at_open: u32,
}

impl KernelDrops {
    /// From `asm-generic/socket.h`; libc lacks it.
    const SO_MEMINFO: libc::c_int = 55;

    pub(crate) fn new(socket: &UdpSocket) -> Self {
        Self { at_open: Self::count(socket).unwrap_or(0) }
    }

    pub(crate) fn since_opened(&self, socket: &UdpSocket) -> u64 {
        Self::count(socket).map_or(0, |count| u64::from(count.wrapping_sub(self.at_open)))
    }

    fn count(socket: &UdpSocket) -> Option<u32> {
        let mut counts = [0u32; 9];
        const { assert!(libc::SK_MEMINFO_DROPS == 8) };
        let mut len: libc::socklen_t = 9 * 4;
        let (fd, value) = (socket.as_raw_fd(), counts.as_mut_ptr().cast());
        // SAFETY: The kernel writes at most `len` bytes to `value`, which are those of `counts`,
        // and the number of written bytes to `len`.
        let result = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, Self::SO_MEMINFO, value, &raw mut len) };
        (result == 0 && len == 9 * 4).then_some(counts[8])
    }
}

#[cfg(test)]
#[path = "../../../tests/src/needs.rs"]
#[expect(unreachable_pub, reason = "shared with the tests of the whole tree")]
mod needs;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DatapathChoice, OpenedDatapath, Peer, bind, open_on};

    /// A datapath on whose socket the kernel accepts datagrams and refuses trains: the socket sends
    /// without checksums, which segments need.
    fn refusing(choice: DatapathChoice) -> io::Result<OpenedDatapath> {
        let options = SocketOptions::new(([127, 0, 0, 1], 0).into());
        let socket = bind(&options)?;
        set_option(&socket, libc::SOL_SOCKET, libc::SO_NO_CHECK, 1)?;
        open_on(socket, choice, &options)
    }

    fn refused_trains_are_sent_one_by_one(choice: DatapathChoice) {
        let opened = refusing(choice);
        if choice == DatapathChoice::Uring && !needs::has(needs::TestNeed::IoUring, opened.is_ok()) {
            return;
        }
        let OpenedDatapath { mut path, .. } = opened.unwrap();
        assert!(path.trains().sent);
        let client = UdpSocket::bind(("127.0.0.1", 0)).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let peer = Peer::to(client.local_addr().unwrap());
        let invalid_peer = Peer::to(([127, 0, 0, 1], 0).into());
        let mut send = |peers: &[Peer]| {
            for len in [30, 20, 30, 10, 30] {
                for &peer in peers {
                    path.outbox().push(peer, len, |buffer| buffer.len()).unwrap();
                }
            }
            path.flush().unwrap()
        };
        let receive = || {
            let mut lens = [(); 5].map(|()| client.recv(&mut [0; 99]).unwrap());
            lens.sort_unstable();
            assert_eq!(lens, [10, 20, 30, 30, 30]);
        };
        // Trains are not at fault if the peer is invalid.
        let flushed = send(&[invalid_peer]);
        assert_eq!((flushed.sent, flushed.failed, flushed.trains), (0, 5, 0));
        let refused = flushed.trains_refused;
        assert!(
            refused > 0 && send(&[invalid_peer]).trains_refused == refused,
            "trains are suspended after a refused datagram"
        );

        let flushed = send(&[peer, invalid_peer]);
        assert_eq!((flushed.sent, flushed.failed, flushed.trains), (5, 5, 0));
        assert!(flushed.trains_refused > refused);
        receive();
        // From now on trains are suspended.
        let mut flushes = 0;
        while send(&[peer]).trains_refused == 0 {
            receive();
            flushes += 1;
            assert!(flushes < 1000, "trains are not tried again");
        }
        receive();
        assert!(flushes >= 10, "{flushes}");
    }

    #[test]
    fn refused_trains_are_sent_one_by_one_portable() {
        refused_trains_are_sent_one_by_one(DatapathChoice::Portable);
    }

    #[test]
    fn refused_trains_are_sent_one_by_one_uring() {
        refused_trains_are_sent_one_by_one(DatapathChoice::Uring);
    }
}
