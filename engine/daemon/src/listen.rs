//! What a process needs of its host to listen: addresses, and open files.

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fmt;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;

/// Reason why the process cannot listen on an address.
#[derive(Debug)]
pub enum ListenError {
    /// `listen` names the address twice.
    Twice(SocketAddr),
    /// The kernel refuses the address.
    Refused(SocketAddr, io::Error),
}

impl fmt::Display for ListenError {
    /// One sentence with the likely cause, and what to check.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (address, error) = match self {
            Self::Twice(address) => return write!(f, "`listen` names {address} twice"),
            Self::Refused(address, error) => (address, error),
        };
        let port = address.port();
        write!(f, "cannot listen on {address}: ")?;
        match error.kind() {
            ErrorKind::AddrInUse => {
                write!(f, "another process uses the port (see: ss -ltunp 'sport = :{port}')")
            }
            ErrorKind::PermissionDenied => f.write_str(
                "not allowed; ports below 1024 need CAP_NET_BIND_SERVICE \
                 (see: sysctl net.ipv4.ip_unprivileged_port_start)",
            ),
            ErrorKind::AddrNotAvailable => {
                f.write_str("this host does not have the address (see: ip address)")
            }
            _ if Errno::from_io_error(error) == Some(Errno::AFNOSUPPORT) => {
                write!(f, "this host has no such protocol (without IPv6: --listen 0.0.0.0:{port})")
            }
            _ => f.write_str("the kernel refuses"),
        }
    }
}

impl std::error::Error for ListenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Twice(_) => None,
            Self::Refused(_, error) => Some(error),
        }
    }
}

/// Refuses a list that names an address twice: the kernel would treat the second socket like one of
/// another process. Ports that the kernel chooses differ.
///
/// # Errors
/// The address that is named twice.
pub fn each_once(listen: &[SocketAddr]) -> Result<(), ListenError> {
    let is_second =
        |(at, address): &(usize, &SocketAddr)| address.port() != 0 && listen[..*at].contains(address);
    match listen.iter().enumerate().find(is_second) {
        Some((_, &address)) => Err(ListenError::Twice(address)),
        None => Ok(()),
    }
}

/// Lets this process open as many files as it is allowed to ask for: each connection is one.
///
/// # Errors
/// Errors of the kernel; the limit then stays unchanged.
pub fn raise_file_limit() -> io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    Ok(setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?)
}
