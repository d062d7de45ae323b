//! UDP sockets of a driver, kept for the next request to the same server.

use handle_proto::limit::FRAGMENTS_MAX;
use socket2::SockRef;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Requests that are sent from one port. A forger has to guess the port as well as the request id,
/// so a port is not kept for long; opening and closing one takes four system calls, where a request
/// takes two.
const REQUESTS_MAX: u32 = 32;
/// How long a port is kept, for the same reason: with rare questions, that many requests take days.
const KEPT_FOR: Duration = Duration::from_secs(5);
/// Most servers for which a socket is kept. Each thread of a driver has this many, and a process
/// usually may have 1024 descriptors.
const KEPT_MAX: usize = 16;

/// Bytes that the kernel charges a socket for one datagram of 512 bytes, which include the memory
/// that holds it: 1,280 over loopback, and 2,304 for a network driver that gives each packet 2 KiB,
/// with the kernel's own record of it.
const DATAGRAM_COST: usize = 2304;
/// Receive buffer of a socket for answers over UDP, in bytes. It holds an answer of the greatest
/// length that arrives in one burst, if `net.core.rmem_max` allows it.
pub const RECEIVE_BUFFER_LEN: usize = FRAGMENTS_MAX * DATAGRAM_COST / 2;

/// Sets the receive buffer of a socket to [`RECEIVE_BUFFER_LEN`], or as much as the kernel allows.
///
/// # Errors
/// Those of the operating system. A smaller buffer is not an error.
pub fn size_receive_buffer(socket: &impl AsFd) -> io::Result<()> {
    // The kernel doubles the given size, to allow for its overhead.
    SockRef::from(socket).set_recv_buffer_size(RECEIVE_BUFFER_LEN)
}

/// A socket that is connected to one server, so that other senders are ignored, and a closed port
/// is reported at once.
#[derive(Debug)]
pub(crate) struct Datagrams {
    socket: UdpSocket,
    server: SocketAddr,
    requests_count: u32,
    since: Instant,
    /// Whether a datagram was received since the last request.
    was_heard: bool,
    timeout: Option<Duration>,
}

impl Datagrams {
    fn open(server: SocketAddr, now: Instant) -> io::Result<Self> {
        let any: IpAddr = match server {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = UdpSocket::bind((any, 0))?;
        size_receive_buffer(&socket)?;
        socket.connect(server)?;
        Ok(Self { socket, server, requests_count: 0, since: now, was_heard: false, timeout: None })
    }

    fn is_young(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) < KEPT_FOR
    }

    /// Sends the datagrams of a request.
    pub(crate) fn send(&mut self, datagrams: &[Vec<u8>]) -> io::Result<()> {
        self.was_heard = false;
        datagrams.iter().try_for_each(|datagram| self.socket.send(datagram).map(drop))
    }

    /// The socket, to wait for it together with others.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Waits for a datagram, at most for `timeout`.
    pub(crate) fn receive(&mut self, buffer: &mut [u8], timeout: Duration) -> io::Result<usize> {
        if self.timeout != Some(timeout) {
            self.socket.set_read_timeout(Some(timeout))?;
            self.timeout = Some(timeout);
        }
        let len = self.socket.recv(buffer)?;
        self.was_heard = true;
        Ok(len)
    }
}

/// Idle sockets.
#[derive(Debug, Default)]
pub(crate) struct Sockets {
    idle: HashMap<SocketAddr, Datagrams>,
}

impl Sockets {
    /// A socket for one request to `server`.
    pub(crate) fn take(&mut self, server: SocketAddr) -> io::Result<Datagrams> {
        self.take_at(server, Instant::now())
    }

    fn take_at(&mut self, server: SocketAddr, now: Instant) -> io::Result<Datagrams> {
        let mut datagrams = match self.idle.remove(&server).filter(|kept| kept.is_young(now)) {
            Some(datagrams) => datagrams,
            None => Datagrams::open(server, now)?,
        };
        datagrams.requests_count += 1;
        Ok(datagrams)
    }

    /// Takes a socket back after the request. It is kept only if the server answered, because late
    /// datagrams could arrive otherwise.
    pub(crate) fn give(&mut self, datagrams: Datagrams) {
        self.give_at(datagrams, Instant::now());
    }

    fn give_at(&mut self, datagrams: Datagrams, now: Instant) {
        let is_good =
            datagrams.was_heard && datagrams.requests_count < REQUESTS_MAX && datagrams.is_young(now);
        if self.idle.len() >= KEPT_MAX {
            self.idle.retain(|_, kept| kept.is_young(now));
        }
        if is_good && self.idle.len() < KEPT_MAX {
            self.idle.insert(datagrams.server, datagrams);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(10);

    fn server() -> (UdpSocket, SocketAddr) {
        let server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = server.local_addr().unwrap();
        (server, address)
    }

    /// Makes one request and returns the port that it was sent from.
    fn ask(sockets: &mut Sockets, server: &UdpSocket, answers: bool) -> u16 {
        ask_at(sockets, server, answers, Instant::now())
    }

    fn ask_at(sockets: &mut Sockets, server: &UdpSocket, answers: bool, now: Instant) -> u16 {
        let mut datagrams = sockets.take_at(server.local_addr().unwrap(), now).unwrap();
        datagrams.send(&[b"asked".to_vec()]).unwrap();
        let (_, from) = server.recv_from(&mut [0; 8]).unwrap();
        if answers {
            server.send_to(b"said", from).unwrap();
            assert_eq!(datagrams.receive(&mut [0; 8], TIMEOUT).unwrap(), 4);
        }
        sockets.give_at(datagrams, now);
        from.port()
    }

    #[test]
    fn the_longest_answer_fits_into_the_receive_buffer() {
        let (server, address) = server();
        let mut datagrams = Datagrams::open(address, Instant::now()).unwrap();
        let allowed: usize =
            std::fs::read_to_string("/proc/sys/net/core/rmem_max").unwrap().trim().parse().unwrap();
        let charged = SockRef::from(&datagrams.socket).recv_buffer_size().unwrap();
        assert_eq!(charged, 2 * RECEIVE_BUFFER_LEN.min(allowed));
        // In one burst, while the client does something else.
        let client = datagrams.socket.local_addr().unwrap();
        for _ in 0..FRAGMENTS_MAX {
            server.send_to(&[7; 512], client).unwrap();
        }
        let fits = FRAGMENTS_MAX.min(charged / DATAGRAM_COST);
        for number in 0..fits {
            assert_eq!(datagrams.receive(&mut [0; 512], TIMEOUT).unwrap(), 512, "{number}");
        }
    }

    #[test]
    fn a_port_is_used_a_limited_number_of_times() {
        let (mut sockets, (server, _)) = (Sockets::default(), server());
        let ports: Vec<u16> = (0..=REQUESTS_MAX).map(|_| ask(&mut sockets, &server, true)).collect();
        let (last, before) = ports.split_last().unwrap();
        assert!(before.iter().all(|port| port == &before[0]), "{ports:?}");
        assert_ne!(last, &before[0]);
    }

    #[test]
    fn a_silent_server_is_asked_from_another_port() {
        let (mut sockets, (server, _)) = (Sockets::default(), server());
        ask(&mut sockets, &server, true);
        ask(&mut sockets, &server, false);
        assert!(sockets.idle.is_empty());
    }

    #[test]
    fn a_port_is_kept_for_a_limited_time() {
        let (mut sockets, (server, _)) = (Sockets::default(), server());
        let port = ask(&mut sockets, &server, true);
        // The old port cannot be bound by another socket as long as this one has it.
        let held = sockets.idle.values().next().unwrap().socket.try_clone().unwrap();
        assert_ne!(ask_at(&mut sockets, &server, true, Instant::now() + KEPT_FOR), port);
        drop(held);
    }

    #[test]
    fn the_oldest_sockets_are_closed_first() {
        let mut sockets = Sockets::default();
        // All of them stay until the end, because otherwise the next one could get the port.
        let servers: Vec<_> = (0..KEPT_MAX).map(|_| server().0).collect();
        for server in &servers {
            ask(&mut sockets, server, true);
        }
        ask_at(&mut sockets, &server().0, true, Instant::now() + KEPT_FOR);
        assert_eq!(sockets.idle.len(), 1);
    }

    #[test]
    fn the_number_of_kept_sockets_is_bounded() {
        let mut sockets = Sockets::default();
        let servers: Vec<_> = (0..=KEPT_MAX).map(|_| server().0).collect();
        for server in &servers {
            ask(&mut sockets, server, true);
        }
        assert_eq!(sockets.idle.len(), KEPT_MAX);
    }
}
