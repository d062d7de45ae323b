//! The side of the process that holds the table: it answers who asks over a local socket.
//!
//! Only processes of the same user are answered: the socket is for its owner alone, and the kernel says who connects.

use crate::sessions::protocol::{
    ASK_LEN_MAX, LinkReply, LinkRequest, SessionFacts, frame_buffer, receive, send,
};
use crate::sessions::session::Session;
use crate::sessions::table::SessionTable;
use crate::sessions::traffic::LiveSession as _;
use crate::socket::bind_for_owner;
use handle_auth::challenges::IssuedChallenge;
use rustix::net::sockopt::socket_peercred;
use std::collections::HashMap;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Connections at a time; a process has a few.
pub const CONNECTIONS_MAX: usize = 16;
/// How long the listener sleeps where nothing wakes it.
const ACCEPT_PATIENCE: Duration = Duration::from_millis(50);

/// What a table in this process is asked with on behalf of others.
pub trait SharedTable: Send + Sync + 'static {
    /// The table; none where there are to be no sessions.
    fn sessions(&self) -> Option<&SessionTable>;

    /// The time, in the seconds of the table.
    fn now_s(&self) -> u32;

    /// A random number.
    fn random(&self) -> u32;

    /// Whether something other than a session has this number: a challenge.
    fn is_taken(&self, number: i32) -> bool;

    /// Takes the challenge with this number, which nobody gets again.
    fn take_challenge(&self, _id: i32) -> TakenChallenge {
        TakenChallenge::Unknown
    }

    /// Whether it is time to stop.
    fn is_stopped(&self) -> bool;

    /// Sleeps until somebody comes to `listener`, or it may be time to stop.
    fn wait(&self, _listener: BorrowedFd<'_>) {
        std::thread::sleep(ACCEPT_PATIENCE);
    }
}

/// A challenge that was looked for by its number.
#[derive(Clone, Debug)]
pub enum TakenChallenge {
    /// It waited for an answer.
    Waiting(IssuedChallenge),
    /// It was answered, or has had its time.
    Over,
    /// There was none, as far as is known.
    Unknown,
}

/// A bound socket; its file is removed when this is dropped, unless another process has taken its place.
#[derive(Debug)]
pub struct Holder {
    listener: UnixListener,
    path: PathBuf,
    /// Where the file is until this process takes its place.
    private_socket: PathBuf,
    /// Device and number of the file.
    file: (u64, u64),
}

impl Holder {
    /// Binds a socket beside `path`, for its owner only, where nobody looks for it yet: see [`take_place`](Self::take_place).
    /// With `replace` a process may still answer at `path`.
    ///
    /// # Errors
    /// When another process answers there and is not to be replaced, something else has the path, or the directory does
    /// not allow it.
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
        Ok(Self { listener, path: path.to_owned(), private_socket: beside, file: (file.dev(), file.ino()) })
    }

    /// From here on it is this process that is found. Until then the other one is, and stays so if this one ends.
    ///
    /// # Errors
    /// When the directory does not allow it any more.
    pub fn take_place(self) -> io::Result<Self> {
        std::fs::rename(&self.private_socket, &self.path)?;
        Ok(self)
    }

    /// The listening socket, which does not block.
    ///
    /// # Errors
    /// When there are no more descriptors.
    pub fn listener(&self) -> io::Result<UnixListener> {
        self.listener.try_clone()
    }

    /// Answers until it is time to stop.
    pub fn serve(self, asked: &Arc<impl SharedTable>) {
        let connections = Arc::new(HolderConnections::default());
        let mut number = 0;
        while !asked.is_stopped() {
            let socket = match self.listener.accept() {
                Ok((socket, _)) => socket,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    asked.wait(self.listener.as_fd());
                    continue;
                }
                Err(_) => {
                    std::thread::sleep(ACCEPT_PATIENCE);
                    continue;
                }
            };
            if let Err(error) = admit(&socket) {
                tracing::warn!(%error, "somebody who may not asks about sessions");
                continue;
            }
            let Ok(held) = socket.try_clone() else { continue };
            if connections.all().len() >= CONNECTIONS_MAX {
                tracing::warn!("more connections ask about sessions than there are places for");
                continue;
            }
            number += 1;
            connections.all().insert(number, held);
            let (asked, connections) = (Arc::clone(asked), Arc::clone(&connections));
            let thread = std::thread::Builder::new().name("sessions-client".into()).spawn(move || {
                let _ = talk(socket, &*asked);
                connections.all().remove(&number);
            });
            if let Err(error) = thread {
                tracing::warn!(%error, "no thread for a process that asks about sessions");
            }
        }
        for connection in connections.all().values() {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

/// Who is connected, to be hung up on in the end.
#[derive(Default)]
struct HolderConnections(Mutex<HashMap<u64, UnixStream>>);

impl HolderConnections {
    fn all(&self) -> MutexGuard<'_, HashMap<u64, UnixStream>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let is_ours = |file: std::fs::Metadata| (file.dev(), file.ino()) == self.file;
        for path in [&self.path, &self.private_socket] {
            if std::fs::symlink_metadata(path).is_ok_and(is_ours) {
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

/// Lets in who is of our own user.
fn admit(socket: &UnixStream) -> io::Result<()> {
    check_peer(socket)?;
    socket.set_nonblocking(false)
}

/// Checks that the process at the other end is of this user: who connects, and who listens.
///
/// # Errors
/// When it is not, and when the kernel does not tell.
pub fn check_peer(socket: &impl AsFd) -> io::Result<()> {
    let peer = socket_peercred(socket)?;
    if peer.uid == rustix::process::geteuid() {
        return Ok(());
    }
    let who = format!("user {} with process {}", peer.uid.as_raw(), peer.pid.as_raw_nonzero());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, who))
}

/// Answers one process until it goes, or says what is not understood.
fn talk(mut socket: UnixStream, asked: &impl SharedTable) -> io::Result<()> {
    let mut buffer = frame_buffer();
    loop {
        receive(&mut socket, &mut buffer, ASK_LEN_MAX)?;
        let Some(ask) = LinkRequest::decode(&buffer) else {
            tracing::warn!("a process that asks about sessions is not understood: is it of another version?");
            return Ok(());
        };
        let told = answer(asked, ask);
        let expected_len = match &told {
            LinkReply::Challenge(challenge) => ASK_LEN_MAX + challenge.request.len(),
            _ => ASK_LEN_MAX,
        };
        send(&mut socket, &mut buffer, expected_len, |out| told.encode(out))?;
    }
}

/// What is answered.
#[must_use]
pub fn answer(asked: &impl SharedTable, ask: LinkRequest<'_>) -> LinkReply {
    let (Some(sessions), now_s) = (asked.sessions(), asked.now_s()) else { return LinkReply::No };
    let with = |id, then: &dyn Fn(&Session) -> LinkReply| {
        sessions.find(id, now_s).map_or(LinkReply::No, |one| then(&one))
    };
    let yes_or_no = |yes| if yes { LinkReply::Yes } else { LinkReply::No };
    match ask {
        LinkRequest::Find(id) => with(id, &|session| {
            let keys = session.keys();
            let (key, version) = (keys.mac.key().clone(), keys.version);
            LinkReply::Session(SessionFacts { key, version, identity: session.identity() })
        }),
        LinkRequest::Accept { id, counter } => with(id, &|session| yes_or_no(session.accept(counter, now_s))),
        LinkRequest::Next(id) => with(id, &|session| LinkReply::Number(session.next_counter())),
        LinkRequest::Authenticate { id, claimed, index } => {
            with(id, &|session| yes_or_no(session.authenticate(claimed, index, now_s)))
        }
        LinkRequest::Open(new) => {
            let opened = sessions.open(new, || asked.random(), |number| asked.is_taken(number), now_s);
            opened.map_or_else(LinkReply::Refused, |session| LinkReply::Number(session.keys().id))
        }
        LinkRequest::End(id) => yes_or_no(sessions.end(id)),
        LinkRequest::TakeChallenge(id) => match asked.take_challenge(id) {
            TakenChallenge::Waiting(challenge) => LinkReply::Challenge(challenge),
            TakenChallenge::Over => LinkReply::Over,
            TakenChallenge::Unknown => LinkReply::No,
        },
    }
}
