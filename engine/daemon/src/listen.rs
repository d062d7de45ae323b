//! What a process needs of its host to listen: addresses, and open files.

use anyhow::ensure;
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;

/// Refuses a list that names an address twice: to the kernel the second would be another process's. Ports that the
/// kernel chooses differ.
///
/// # Errors
/// Names the setting and the address.
pub fn each_once(listen: &[SocketAddr]) -> anyhow::Result<()> {
    for (at, address) in listen.iter().enumerate() {
        ensure!(address.port() == 0 || !listen[..at].contains(address), "`listen` names {address} twice");
    }
    Ok(())
}

/// Why `address` cannot be listened on: one sentence with the likely cause, and what to check.
#[must_use]
pub fn explain_refusal(address: SocketAddr, error: io::Error) -> anyhow::Error {
    let port = address.port();
    let why = match error.kind() {
        ErrorKind::AddrInUse => format!("another process has the port (see: ss -ltunp 'sport = :{port}')"),
        ErrorKind::PermissionDenied => {
            "not allowed; ports below 1024 need CAP_NET_BIND_SERVICE (see: sysctl net.ipv4.ip_unprivileged_port_start)".to_owned()
        }
        ErrorKind::AddrNotAvailable => "this host does not have the address (see: ip address)".to_owned(),
        _ if Errno::from_io_error(&error) == Some(Errno::AFNOSUPPORT) => {
            format!("this host has no such protocol (without IPv6: --listen 0.0.0.0:{port})")
        }
        _ => "the kernel refuses".to_owned(),
    };
    anyhow::Error::new(error).context(format!("cannot listen on {address}: {why}"))
}

/// Lets this process open as many files as it is allowed to ask for: each connection is one.
///
/// # Errors
/// Those of the kernel; the limit then stays as it is.
pub fn raise_file_limit() -> io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    Ok(setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?)
}
