//! Local sockets: binding one that only its owner can connect to, and connecting to the process
//! that is expected there.

use crate::user_namespace::is_visible;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::fs::Permissions;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Mode of the file of a socket: connecting requires write permission.
const OWNER_ONLY: u32 = 0o600;
/// Mode of a socket to which the group may connect.
const GROUP_TOO: u32 = 0o660;
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

/// A bound socket. Dropping it removes the file of the socket, unless the file belongs to another
/// process.
#[derive(Debug)]
pub struct OwnedSocket {
    listener: UnixListener,
    path: PathBuf,
    /// Path of the file until this process takes over `path`.
    private_socket: PathBuf,
    /// Device and inode number of the file.
    file: (u64, u64),
    /// Whether the file belongs to this process.
    owns_file: FileOwnership,
}

/// Whether the file of a socket belongs to this process.
#[derive(Clone, Debug)]
pub struct FileOwnership(Arc<AtomicBool>);

impl FileOwnership {
    fn new(owns: bool) -> Self {
        Self(Arc::new(AtomicBool::new(owns)))
    }

    /// From now on the file belongs to this process, because the one that has bound the socket
    /// exits.
    pub fn acquire(&self) {
        self.0.store(true, Ordering::Release);
    }
}

impl OwnedSocket {
    /// Binds a socket for its owner only, under a temporary name beside `path`;
    /// [`move_into_place`](Self::move_into_place) moves it to `path`. With `replace`, another
    /// process may still answer at `path`.
    ///
    /// # Errors
    /// When another process answers at `path` and `replace` is false, the file at `path` is not a
    /// socket, or the directory is not writable.
    pub fn bind(path: &Path, replace: bool) -> io::Result<Self> {
        let taken = |what| Err(io::Error::new(io::ErrorKind::AddrInUse, what));
        match std::fs::symlink_metadata(path) {
            Ok(file) if !file.file_type().is_socket() => {
                return taken("something that is no socket is there");
            }
            Ok(_) if !replace && UnixStream::connect(path).is_ok() => {
                return taken("another process answers there");
            }
            _ => {}
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let beside = path.with_file_name(format!(".{name}.{}", std::process::id()));
        let _ = std::fs::remove_file(&beside);
        let listener = bind_for_owner(&beside)?;
        listener.set_nonblocking(true)?;
        let file = std::fs::symlink_metadata(&beside)?;
        let (path, file) = (path.to_owned(), (file.dev(), file.ino()));
        Ok(Self { listener, path, private_socket: beside, file, owns_file: FileOwnership::new(true) })
    }

    /// Continues with `listener`, which another process has bound, and whose file is at `path`. The
    /// file belongs to that process, which continues if this one fails, until
    /// [`FileOwnership::acquire`].
    ///
    /// # Errors
    /// When the file is not there.
    pub fn adopt(listener: OwnedFd, path: &Path) -> io::Result<Self> {
        let (listener, file) = (UnixListener::from(listener), std::fs::symlink_metadata(path)?);
        listener.set_nonblocking(true)?;
        let (path, private_socket) = (path.to_owned(), path.to_owned());
        let (file, owns_file) = ((file.dev(), file.ino()), FileOwnership::new(false));
        Ok(Self { listener, path, private_socket, file, owns_file })
    }

    /// Closes the socket and leaves its file, because another process continues with it.
    pub fn leave(self) {
        self.owns_file.0.store(false, Ordering::Release);
    }

    /// Whether the file belongs to this process.
    #[must_use]
    pub const fn ownership(&self) -> &FileOwnership {
        &self.owns_file
    }

    /// Moves the socket to its final path, so that clients find this process. Until then they find
    /// the other process, also if this one ends.
    ///
    /// # Errors
    /// When the file cannot be renamed.
    pub fn move_into_place(self) -> io::Result<Self> {
        std::fs::rename(&self.private_socket, &self.path)?;
        Ok(self)
    }

    /// Lets the group of this process connect too. Called before the socket is in its place.
    ///
    /// # Errors
    /// When the mode of the file cannot be changed.
    pub fn open_to_group(self) -> io::Result<Self> {
        std::fs::set_permissions(&self.private_socket, Permissions::from_mode(GROUP_TOO))?;
        Ok(self)
    }

    /// The listening socket, which does not block.
    #[must_use]
    pub const fn listener(&self) -> &UnixListener {
        &self.listener
    }
}

impl Drop for OwnedSocket {
    fn drop(&mut self) {
        if !self.owns_file.0.load(Ordering::Acquire) {
            return;
        }
        let is_ours = |file: std::fs::Metadata| (file.dev(), file.ino()) == self.file;
        for path in [&self.path, &self.private_socket] {
            if std::fs::symlink_metadata(path).is_ok_and(is_ours) {
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

/// Connects to the process that listens at `path`. No step waits longer than `timeout`.
///
/// # Errors
/// Errors of the kernel, and those of [`check_listener`].
pub fn connect(path: &Path, timeout: Duration) -> io::Result<UnixStream> {
    // Non-blocking, because a blocking connect does not end when the other process no longer
    // accepts connections.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    check_listener(&socket, path)?;
    let socket = UnixStream::from(socket);
    socket.set_nonblocking(false)?;
    socket.set_read_timeout(Some(timeout))?;
    socket.set_write_timeout(Some(timeout))?;
    Ok(socket)
}

/// Checks that the process that listens at `path` runs as the user of this process, or as the owner
/// of the directory, who decides in any case what is there. Others who may write to the directory
/// learn nothing.
///
/// # Errors
/// When the user is another one, or the kernel does not report it.
pub fn check_listener(socket: &impl AsFd, path: &Path) -> io::Result<()> {
    let peer = socket_peercred(socket)?;
    if peer.uid == rustix::process::geteuid() || owns_directory_of(path, peer.uid.as_raw()) {
        return Ok(());
    }
    let hint = match is_visible(peer.uid.as_raw()) {
        true => "",
        false => ": this process cannot see which user it is (PrivateUsers=no in its unit)",
    };
    let who = format!(
        "user {} with process {} listens at {}, who is neither this user nor the owner of the directory{hint}",
        peer.uid.as_raw(),
        peer.pid.as_raw_nonzero(),
        path.display()
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, who))
}

/// Whether `user` owns the directory of `path`.
#[must_use]
pub fn owns_directory_of(path: &Path, user: u32) -> bool {
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    let owner = std::fs::metadata(directory.unwrap_or(Path::new(".")));
    // One that is not visible may be any other, and so may the owner.
    owner.is_ok_and(|owner| owner.uid() == user) && is_visible(user)
}

/// Whether the error is a timeout: the other process is running, but does not answer in time.
#[must_use]
pub fn is_too_slow(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

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

    #[test]
    fn the_file_of_an_adopted_socket_stays_until_it_belongs_to_this_process() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let bound = OwnedSocket::bind(&path, false).unwrap().move_into_place().unwrap();
        let adopt = || OwnedSocket::adopt(bound.listener().try_clone().unwrap().into(), &path);
        drop(adopt().unwrap());
        UnixStream::connect(&path).expect("the process that has bound it serves");
        let adopted = adopt().unwrap();
        adopted.ownership().acquire();
        drop(adopted);
        assert!(!path.exists());
        assert_eq!(adopt().map(drop).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_socket_that_is_answered_is_replaced_only_on_request() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let _held = OwnedSocket::bind(&path, false).unwrap().move_into_place().unwrap();
        let refusal = |path, replace| OwnedSocket::bind(path, replace).map(drop).unwrap_err().to_string();
        assert_eq!(refusal(&path, false), "another process answers there");
        let next = OwnedSocket::bind(&path, true).unwrap();
        let inode = || std::fs::metadata(&path).unwrap().ino();
        let held = inode();
        drop(next);
        assert_eq!(inode(), held, "a process that has not taken over leaves the socket alone");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "it leaves no file behind");
        let next = OwnedSocket::bind(&path, true).unwrap().move_into_place().unwrap();
        assert_ne!(inode(), held);
        drop(next);
        assert!(!path.exists());
        let file = directory.path().join("file");
        std::fs::write(&file, b"").unwrap();
        assert_eq!(refusal(&file, true), "something that is no socket is there");
    }
}
