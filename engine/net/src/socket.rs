//! The socket under a datapath, and the options of both.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Ipv4PathMtuDiscovery, set_ip_mtu_discover};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::datapath::FlushReport;
use crate::portable;
use crate::streams::StreamOptions;
use crate::waker::Waker;

/// Options to open a datapath with. All sizes are fixed from then on.
#[derive(Clone, Debug)]
pub struct SocketOptions {
    /// The address to bind to. With port 0 the kernel chooses one.
    pub address: SocketAddr,
    /// Whether several sockets may share the address; the kernel spreads peers over them.
    pub reuse_port: bool,
    /// Whether an IPv6 wildcard address excludes IPv4.
    pub only_v6: bool,
    /// Whether IPv4 datagrams are never fragmented: a datagram that is too long for the device is
    /// refused when it is sent, and one that is too long for its path is lost. The datagrams of the
    /// protocol have 512 bytes, with headers 540, and paths with a smaller limit are not in use, as
    /// every host has to accept 576 (RFC 791 section 3.1). The kernel then need not number
    /// datagrams, a twentieth of their cost, and forged messages about the path MTU cannot make it
    /// fragment them.
    pub dont_fragment: bool,
    /// Most received buffers of one batch; a train counts once.
    pub batch_len: usize,
    /// Most datagrams of one batch, including those in trains; a single train may have more.
    pub batch_segments: usize,
    /// Bytes of one receive buffer. A larger datagram or train is truncated.
    ///
    /// Only the pages that are used take memory.
    pub receive_len: usize,
    /// Whether to receive datagrams in trains, if the kernel supports it.
    pub receive_trains: bool,
    /// Whether to send datagrams of one length to one peer in trains, if the kernel supports it.
    pub send_trains: bool,
    /// Most datagrams in the outbox.
    pub outbox_datagrams: usize,
    /// Most bytes in the outbox.
    pub outbox_len: usize,
    /// Bytes of the kernel's receive queue, 0 for the default of the system.
    ///
    /// The kernel silently grants at most `net.core.rmem_max`.
    pub socket_receive_buffer_len: usize,
    /// Bytes of the kernel's send queue, 0 for the default of the system; at most
    /// `net.core.wmem_max`.
    pub socket_send_buffer_len: usize,
    /// Sizes for connections; `None` for a path without connections.
    pub streams: Option<StreamOptions>,
}

impl SocketOptions {
    /// The default options for `address`.
    pub fn new(address: SocketAddr) -> Self {
        Self { address, ..Self::default() }
    }

    /// Disables trains in both directions: each datagram is handled by itself, and the order of
    /// those to one peer is kept.
    #[must_use]
    pub fn one_at_a_time(self) -> Self {
        Self { receive_trains: false, send_trains: false, ..self }
    }

    /// Refuses sizes of zero, and those beyond the range of the paths or the kernel.
    pub(crate) fn check(&self) -> io::Result<()> {
        check_bounds(&[
            ("batch_len", self.batch_len, 1024),
            ("batch_segments", self.batch_segments, 1 << 16),
            ("receive_len", self.receive_len, 1 << 16),
            ("outbox_datagrams", self.outbox_datagrams, 1 << 16),
            ("outbox_len", self.outbox_len, 1 << 30),
        ])?;
        self.streams.as_ref().map_or(Ok(()), StreamOptions::check)
    }
}

/// Refuses a value below 1 or above its bound; the error names it.
pub(crate) fn check_bounds(bounds: &[(&str, usize, usize)]) -> io::Result<()> {
    match bounds.iter().find(|&(_, value, max)| !(1..=*max).contains(value)) {
        None => Ok(()),
        Some((name, value, max)) => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{name} is {value}, but must be 1 to {max}"),
        )),
    }
}

impl Default for SocketOptions {
    /// Any IPv4 address and a port that the kernel chooses; batches of 64, in trains where
    /// possible.
    fn default() -> Self {
        Self {
            address: ([0, 0, 0, 0], 0).into(),
            reuse_port: false,
            only_v6: false,
            dont_fragment: true,
            batch_len: 64,
            batch_segments: 2048,
            receive_len: 65_535,
            receive_trains: true,
            send_trains: true,
            outbox_datagrams: 2048,
            outbox_len: 1 << 20,
            socket_receive_buffer_len: 4 << 20,
            socket_send_buffer_len: 4 << 20,
            streams: None,
        }
    }
}

/// Binds a socket for [`open_on`](crate::open_on), on any thread and with any privileges.
///
/// # Errors
///
/// Errors of the kernel, with their kind kept: `AddrInUse`, `AddrNotAvailable`, `PermissionDenied`.
pub fn bind(options: &SocketOptions) -> io::Result<UdpSocket> {
    let domain = Domain::for_address(options.address);
    let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
    // A socket that shares its port may be given one that another process of this user shares, so a
    // port that the kernel chooses is shared only afterwards.
    if options.reuse_port && options.address.port() != 0 {
        share_port(&socket)?;
    }
    if domain == Domain::IPV6 {
        socket.set_only_v6(options.only_v6)?;
    }
    // An IPv6 socket may send IPv4 too.
    if options.dont_fragment && (domain == Domain::IPV4 || !options.only_v6) {
        // If the system does not support it, datagrams are sent anyway.
        let _ = set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::PROBE);
    }
    if options.socket_receive_buffer_len > 0 {
        socket.set_recv_buffer_size(options.socket_receive_buffer_len)?;
    }
    if options.socket_send_buffer_len > 0 {
        socket.set_send_buffer_size(options.socket_send_buffer_len)?;
    }
    // Before datagrams can arrive, because the kernel records the address when it queues one.
    if options.address.ip().is_unspecified() {
        portable::receive_local_address(&socket, options.address)?;
    }
    // Also before datagrams arrive: those that are already queued cannot become a train.
    if options.receive_trains {
        portable::receive_trains(&socket);
    }
    socket.bind(&options.address.into())?;
    if options.reuse_port && options.address.port() == 0 {
        share_port(&socket)?;
    }
    Ok(socket.into())
}

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
pub(crate) fn wait_for(socket: BorrowedFd<'_>, flags: PollFlags, patience: Duration) -> io::Result<bool> {
    // A time that is too long for the kernel is treated as unlimited.
    let patience = Timespec::try_from(patience).ok();
    match poll(&mut [PollFd::from_borrowed_fd(socket, flags)], patience.as_ref()) {
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
    patience: Duration,
) -> io::Result<ReadySources> {
    let patience = Timespec::try_from(patience).ok();
    // Without streams the waker is in the list twice, and the second entry is not used.
    let (count, streams) = streams.map_or((2, waker.as_fd()), |streams| (3, streams));
    let mut polled = [socket, waker.as_fd(), streams].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    match poll(&mut polled[..count], patience.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let [socket, is_woken, streams] = polled.map(|polled| !polled.revents().is_empty());
    if is_woken {
        waker.reset();
    }
    Ok(ReadySources { socket, streams })
}

/// The remaining time that one flush may wait for room in the send queue.
#[derive(Default)]
pub(crate) struct SendPatience(Option<Instant>);

impl SendPatience {
    /// Waits for room, and returns whether to try again. The clock starts with the first wait.
    pub(crate) fn wait(&mut self, socket: BorrowedFd<'_>) -> bool {
        let now = Instant::now();
        let left = self.0.get_or_insert(now + FlushReport::PATIENCE_MAX).saturating_duration_since(now);
        !left.is_zero() && wait_for(socket, PollFlags::OUT, left).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::sockopt::ip_mtu_discover;

    #[test]
    fn datagrams_are_not_fragmented_by_default() {
        let options = SocketOptions::new(([127, 0, 0, 1], 0).into());
        let discovery = |options: &SocketOptions| ip_mtu_discover(bind(options).unwrap()).unwrap();
        assert_eq!(discovery(&options), Ipv4PathMtuDiscovery::PROBE);
        let system = ip_mtu_discover(UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
        assert_eq!(discovery(&SocketOptions { dont_fragment: false, ..options }), system);
        let both = SocketOptions::new((Ipv6Addr::UNSPECIFIED, 0).into());
        assert_eq!(discovery(&both), Ipv4PathMtuDiscovery::PROBE, "IPv4 over a socket of IPv6");
    }
}
