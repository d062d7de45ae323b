//! The buffers that a multishot receive fills, and the ring that passes them to the kernel.
//!
//! A buffer belongs to the kernel from `give_back` on, and to the path from the completion that
//! names it on. Its content is then, in this order: lengths and flags, the sender, control
//! messages, the payload.

#![expect(unsafe_code, reason = "the kernel reads the ring and writes the buffers")]

use std::io;
use std::ptr;
use std::slice;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::BufRingEntry;

use super::ring::{Ring, explain};
use crate::batch::Datagram;
use crate::control::{self, NAME_LEN, field};
use crate::portable::Slab;

/// The group of the buffers in receive requests. A ring has only these.
pub(super) const GROUP: u16 = 0;

/// `struct io_uring_recvmsg_out`: four numbers of 32 bits.
const LENGTHS_LEN: usize = 16;

/// Each buffer begins at a cache line.
const ALIGN: usize = 64;

/// Memory for the ring, aligned to a page, also on systems with large pages.
#[derive(Clone)]
#[repr(C, align(65536))]
struct Page([u8; 65536]);

pub(super) struct Buffers {
    /// The kernel reads the entries, and the tail, which is in an unused part of the first entry.
    ring: Slab<Page>,
    bytes: Slab<u8>,
    /// Number of buffers, a power of two.
    count: u16,
    group: u16,
    /// Bytes of a buffer, and distance between two.
    len: usize,
    stride: usize,
    control_len: usize,
    tail: u16,
}

impl Buffers {
    pub(super) const COUNT_MAX: usize = 4096;

    /// `count` buffers for payloads of `receive_len` bytes, none of which the kernel has yet.
    ///
    /// # Panics
    ///
    /// Unless `count` is a power of two, at most `COUNT_MAX`.
    pub(super) fn new(count: u16, receive_len: usize, control_len: usize) -> Self {
        let len = LENGTHS_LEN + NAME_LEN + control_len + receive_len;
        Self { control_len, ..Self::for_streams(count, len, GROUP) }
    }

    /// `count` buffers of `len` bytes for received bytes alone, none of which the kernel has yet.
    ///
    /// # Panics
    ///
    /// Unless `count` is a power of two, at most `COUNT_MAX`.
    pub(super) fn for_streams(count: u16, len: usize, group: u16) -> Self {
        const { assert!(Self::COUNT_MAX * size_of::<BufRingEntry>() <= size_of::<Page>()) };
        assert!(count.is_power_of_two() && usize::from(count) <= Self::COUNT_MAX);
        // Not a power of two, so that the starts of buffers, which are used most, do not compete
        // for the same cache lines.
        let stride = (len.div_ceil(ALIGN) | 1) * ALIGN;
        Self {
            ring: Slab::from(vec![Page([0; 65536])]),
            bytes: Slab::from(vec![0; stride * usize::from(count)]),
            count,
            group,
            len,
            stride,
            control_len: 0,
            tail: 0,
        }
    }

    /// Registers the ring with the kernel, and gives it all buffers.
    ///
    /// # Safety
    ///
    /// `self` stays allocated until `ring` has no receive in flight and is not submitted another.
    pub(super) unsafe fn register(&mut self, ring: &Ring) -> io::Result<()> {
        let at = self.ring.at(0).expose_provenance() as u64;
        // SAFETY: There is capacity for `COUNT_MAX` entries, so for `count`, on one aligned page.
        // The kernel uses the ring only for receives, and by the promise of the caller `self`
        // outlives those.
        let result = unsafe { ring.submitter().register_buf_ring_with_flags(at, self.count, self.group, 0) };
        result.map_err(explain("IORING_REGISTER_PBUF_RING"))?;
        for id in 0..self.count {
            self.give_back(id);
        }
        self.publish();
        Ok(())
    }

    /// Gives the buffer `id` to the kernel, with the next [`publish`](Self::publish).
    ///
    /// There must be no view into it: the path drops all datagrams that
    /// [`datagram`](Self::datagram) returned before it gives back any buffer.
    pub(super) fn give_back(&mut self, id: u16) {
        let at = usize::from(self.tail & (self.count - 1));
        let buffer = self.bytes.range(usize::from(id) * self.stride, self.len);
        // SAFETY: `at` is less than `count`, and there is capacity for `count` entries.
        let entry = unsafe { self.ring.at(0).cast::<BufRingEntry>().add(at) };
        // SAFETY: Allocated, aligned and initialised. The kernel does not read entries beyond the
        // tail, and this entry is not before it, because there are no more than `count` buffers.
        let entry = unsafe { &mut *entry };
        entry.set_addr(buffer.expose_provenance() as u64);
        #[expect(clippy::cast_possible_truncation, reason = "a buffer has little more than 64 KiB")]
        entry.set_len(self.len as u32);
        entry.set_bid(id);
        self.tail = self.tail.wrapping_add(1);
    }

    /// Makes the returned buffers visible to the kernel.
    pub(super) fn publish(&mut self) {
        let first: *const BufRingEntry = self.ring.at(0).cast_const().cast();
        // SAFETY: It is the first entry of the ring, initialised with zeros.
        let tail = unsafe { BufRingEntry::tail(first) }.cast_mut();
        // SAFETY: Aligned, since the first entry is. Only this thread writes it, and the kernel
        // reads it atomically as well.
        let tail = unsafe { AtomicU16::from_ptr(tail) };
        // `Release` orders the entries before the tail that covers them.
        tail.store(self.tail, Ordering::Release);
    }

    /// The header of the receive request: the buffer for address and control messages.
    pub(super) fn message(&self) -> Slab<libc::msghdr> {
        // SAFETY: All fields are integers and pointers, for which zero is a value.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_name = ptr::null_mut();
        #[expect(clippy::cast_possible_truncation, reason = "32")]
        {
            message.msg_namelen = NAME_LEN as libc::socklen_t;
        }
        message.msg_controllen = self.control_len as _;
        Slab::from(vec![message])
    }

    /// The first `len` bytes of the buffer `id`, which holds received bytes alone.
    ///
    /// # Safety
    ///
    /// The buffer belongs to the path, and stays so for the borrow.
    pub(super) unsafe fn filled(&self, id: usize, len: usize) -> &[u8] {
        let start = self.bytes.range(id * self.stride, len.min(self.len));
        // SAFETY: The range is in `bytes`, initialised since it was made, and unmoved as long as
        // `self`. The buffer belongs to the path, so nothing writes to it.
        unsafe { slice::from_raw_parts(start, len.min(self.len)) }
    }

    /// Decodes the completion of `len` bytes in the buffer `id`. `None` if they are invalid.
    ///
    /// The lifetime is not really `'static`: the view is valid until the buffer is given back, and
    /// the path lends it no longer.
    ///
    /// # Safety
    ///
    /// The buffer belongs to the path.
    pub(super) unsafe fn datagram(&self, id: u16, len: usize) -> Option<Datagram<'static>> {
        let start = self.bytes.range(usize::from(id) * self.stride, len.min(self.len));
        // SAFETY: The range is in `bytes`, initialised since it was made, and unmoved as long as
        // `self`. The buffer belongs to the path, so nothing writes to it until it is given back.
        let buffer: &'static [u8] = unsafe { slice::from_raw_parts(start, len.min(self.len)) };
        parse(buffer, self.control_len)
    }
}

/// Decodes a filled buffer.
fn parse(buffer: &[u8], control_capacity: usize) -> Option<Datagram<'_>> {
    let [name_len, control_len, _payload_len, flags] =
        [0, 4, 8, 12].map(|at| field(buffer, at).map(u32::from_ne_bytes));
    let (name, rest) = buffer.get(LENGTHS_LEN..)?.split_at_checked(NAME_LEN)?;
    let (control, bytes) = rest.split_at_checked(control_capacity)?;
    let name = &name[..NAME_LEN.min(name_len? as usize)];
    let control = &control[..control_capacity.min(control_len? as usize)];
    let (peer, segment_len) = control::decode(name, control)?;
    let truncated = flags? & libc::MSG_TRUNC.cast_unsigned() != 0;
    Some(Datagram { bytes, peer, segment_len: segment_len.unwrap_or(bytes.len()), truncated })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Peer;
    use crate::control::AddressFamily;

    #[test]
    fn refuses_every_truncation_before_the_payload() {
        let peer = Peer::to(([192, 0, 2, 1], 9).into());
        let mut name = [0; NAME_LEN];
        let name_len = control::encode_name(&peer, AddressFamily::V4, &mut name);
        let lengths = [name_len, 0, 3, 0].map(u32::to_ne_bytes).concat();
        let buffer = [&lengths[..], &name, &[0; 40], b"abc"].concat();
        let whole = parse(&buffer, 40).unwrap();
        assert_eq!((whole.bytes, whole.peer, whole.truncated), (&b"abc"[..], peer, false));
        for len in 0..LENGTHS_LEN + NAME_LEN + 40 {
            assert!(parse(&buffer[..len], 40).is_none(), "cut to {len}");
        }
        for at in 0..4 {
            let mut buffer = buffer.clone();
            buffer[4 * at..4 * at + 4].fill(0xff);
            assert_eq!(parse(&buffer, 40).unwrap().bytes, b"abc", "number {at} is false");
        }
    }
}
