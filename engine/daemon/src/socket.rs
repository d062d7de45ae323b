//! Local sockets that only their owner can connect to.

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::Path;

/// Mode of the file of a socket: connecting requires write permission.
const OWNER_ONLY: u32 = 0o600;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// Binds a listening socket at `path` to which only this user can connect, whatever the umask.
///
/// The umask belongs to the whole process, so other threads would notice a change of it. Instead
/// the mode of the socket is set before it is bound, and Linux gives that mode, less the umask, to
/// the file it creates; and the socket listens only after the mode of the file has been checked. So
/// another user can never connect.
///
/// # Errors
/// Those of the system: the path is taken, too long, or its directory is not there or not writable.
pub fn bind_for_owner(path: &Path) -> io::Result<UnixListener> {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::fs::fchmod(&socket, rustix::fs::Mode::from_raw_mode(OWNER_ONLY))?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    if std::fs::symlink_metadata(path)?.permissions().mode() & 0o777 != OWNER_ONLY {
        // The umask removes rights of the owner, or the system ignores the mode of the socket.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(OWNER_ONLY))?;
    }
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(UnixListener::from(socket))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;

    #[test]
    fn only_the_owner_can_connect() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = bind_for_owner(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, OWNER_ONLY);
        UnixStream::connect(&path).unwrap().write_all(b"x").unwrap();
        listener.accept().unwrap();
        assert_eq!(bind_for_owner(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert!(bind_for_owner(&directory.path().join("x".repeat(200))).is_err(), "too long");
    }
}
