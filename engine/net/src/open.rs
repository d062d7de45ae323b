//! Binds sockets, and opens datapaths on them: the probe that chooses one, and reports the reason.

use std::error::Error;
use std::fmt;
use std::io;
use std::net::UdpSocket;
use std::rc::Rc;
use std::str::FromStr;

use rustix::net::sockopt::{Ipv4PathMtuDiscovery, set_ip_mtu_discover};
use socket2::{Domain, Protocol, Socket, Type};

use crate::datapath::Datapath;
use crate::options::SocketOptions;
use crate::portable::{self, PortablePath};
use crate::socket::share_port;
use crate::uring::UringPath;
use crate::waker::Waker;

/// Which datapath to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DatapathChoice {
    /// `io_uring` if it works, otherwise the portable datapath.
    #[default]
    Auto,
    /// `io_uring`, or an error that names what is missing.
    Uring,
    /// `recvmmsg` and `sendmmsg`.
    Portable,
}

impl DatapathChoice {
    const ALL: [Self; 3] = [Self::Auto, Self::Uring, Self::Portable];
}

impl fmt::Display for DatapathChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Auto => "auto",
            Self::Uring => "uring",
            Self::Portable => "portable",
        })
    }
}

impl FromStr for DatapathChoice {
    type Err = UnknownChoice;

    fn from_str(name: &str) -> Result<Self, UnknownChoice> {
        Self::ALL.into_iter().find(|choice| choice.to_string() == name).ok_or(UnknownChoice)
    }
}

/// The text is not the name of a [`DatapathChoice`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownChoice;

impl fmt::Display for UnknownChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected auto, uring or portable")
    }
}

impl Error for UnknownChoice {}

/// An open datapath, and the reason why it was chosen.
pub struct OpenedDatapath {
    /// The path.
    pub path: Box<dyn Datapath>,
    /// One sentence for the log.
    pub reason: String,
}

impl fmt::Debug for OpenedDatapath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Opened({:?})", self.reason)
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

/// Binds a socket and opens a datapath on it, for the calling thread.
///
/// # Errors
///
/// Errors of [`bind`](crate::bind) and [`open_on`].
pub fn open(choice: DatapathChoice, options: &SocketOptions) -> io::Result<OpenedDatapath> {
    options.check()?;
    open_on(bind(options)?, choice, options)
}

/// Opens a datapath on a bound socket, for the calling thread.
///
/// The parts of `options` about the address and the socket are not used.
///
/// # Errors
///
/// `InvalidInput` for invalid sizes; those of the kernel. With [`DatapathChoice::Uring`] also when
/// `io_uring` does not work on this system.
pub fn open_on(
    socket: UdpSocket,
    choice: DatapathChoice,
    options: &SocketOptions,
) -> io::Result<OpenedDatapath> {
    options.check()?;
    // The path bounds waits itself, and `io_uring` does not wait at all on a non-blocking socket.
    socket.set_nonblocking(false)?;
    let socket = Rc::new(socket);
    let waker = Waker::new()?;
    let error = match choice {
        DatapathChoice::Portable => None,
        DatapathChoice::Auto | DatapathChoice::Uring => {
            match UringPath::open(Rc::clone(&socket), waker.clone(), options) {
                Ok(path) => {
                    let reason = "io_uring: kernel supports multishot receive and buffer rings".to_owned();
                    return Ok(OpenedDatapath { path: Box::new(path), reason });
                }
                Err(error) if choice == DatapathChoice::Uring => return Err(error),
                Err(error) => Some(error),
            }
        }
    };
    let reason = match error {
        None => "portable: requested".to_owned(),
        Some(error) => format!("portable: {error}"),
    };
    Ok(OpenedDatapath { path: Box::new(PortablePath::open(socket, waker, options)?), reason })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::sockopt::ip_mtu_discover;
    use std::net::Ipv6Addr;

    #[test]
    fn choices_parse_as_printed() {
        for choice in DatapathChoice::ALL {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        for name in ["", "Auto", "io_uring", "auto "] {
            assert_eq!(name.parse::<DatapathChoice>(), Err(UnknownChoice), "{name}");
        }
    }

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
