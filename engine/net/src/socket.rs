//! The socket under a datapath: its port, and waits for it.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use socket2::SockRef;

use crate::flush_report::FlushReport;
use crate::waker::Waker;

/// Lets other sockets of this user that share their port be bound to the address of `socket` as
/// well: the kernel spreads peers over all of them.
///
/// # Errors
///
/// Errors of the kernel.
pub fn share_port(socket: impl AsFd) -> io::Result<()> {
    SockRef::from(&socket).set_reuse_port(true)
}

/// Takes `socket` out of the sockets that share its port: the kernel gives new datagrams to the
/// others, and queued datagrams can still be received and answered. If it is the only socket of the
/// port, new datagrams are refused.
///
/// The socket is connected to itself, because the kernel skips connected sockets when it spreads
/// peers.
///
/// # Errors
///
/// Errors of the kernel. Nothing has changed then.
pub fn leave_port(socket: impl AsFd) -> io::Result<()> {
    let socket = SockRef::from(&socket);
    let Some(mut own) = socket.local_addr()?.as_socket() else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a socket of an IP address"));
    };
    if own.ip().is_unspecified() {
        own.set_ip(if own.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() });
    }
    socket.connect(&own.into())
}

/// Whether `error` concerns a single datagram or moment, and not the socket.
pub(crate) fn is_transient(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, HostUnreachable, Interrupted, NetworkDown, NetworkUnreachable};
    match error.kind() {
        io::ErrorKind::WouldBlock | Interrupted | ConnectionRefused | HostUnreachable => true,
        NetworkDown | NetworkUnreachable | io::ErrorKind::OutOfMemory => true,
        _ => Errno::from_io_error(error) == Some(Errno::NOBUFS),
    }
}

/// Waits until `socket` is ready for `flags`, and returns whether it is. A signal ends the wait
/// early.
pub(crate) fn wait_for(socket: BorrowedFd<'_>, flags: PollFlags, timeout: Duration) -> io::Result<bool> {
    // A time that is too long for the kernel is treated as unlimited.
    let timeout = Timespec::try_from(timeout).ok();
    match poll(&mut [PollFd::from_borrowed_fd(socket, flags)], timeout.as_ref()) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The sources that have input.
pub(crate) struct ReadySources {
    pub(crate) socket: bool,
    pub(crate) streams: bool,
}

/// Waits until `socket` or `streams` has input or `waker` is used.
///
/// The socket is polled in each wait and not watched between waits (as by `epoll`): watching would
/// cost something for each received datagram, also when no thread waits.
pub(crate) fn wait_for_input(
    socket: BorrowedFd<'_>,
    waker: &Waker,
    streams: Option<BorrowedFd<'_>>,
    timeout: Duration,
) -> io::Result<ReadySources> {
    let timeout = Timespec::try_from(timeout).ok();
    // Without streams the waker is in the list twice, and the second entry is not used.
    let (count, streams) = streams.map_or((2, waker.as_fd()), |streams| (3, streams));
    let mut polled = [socket, waker.as_fd(), streams].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    match poll(&mut polled[..count], timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let [socket, is_woken, streams] = polled.map(|polled| !polled.revents().is_empty());
    if is_woken {
        waker.reset();
    }
    Ok(ReadySources { socket, streams })
}

/// The remaining time that one flush may wait for capacity in the send queue.
#[derive(Default)]
pub(crate) struct SendTimeout(Option<Instant>);

impl SendTimeout {
    /// Waits for capacity, and returns whether to try again. The clock starts with the first wait.
    pub(crate) fn wait(&mut self, socket: BorrowedFd<'_>) -> bool {
        let now = Instant::now();
        let left = self.0.get_or_insert(now + FlushReport::TIMEOUT_MAX).saturating_duration_since(now);
        !left.is_zero() && wait_for(socket, PollFlags::OUT, left).is_ok()
    }
}
