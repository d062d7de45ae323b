//! The side of the process that holds the table: it answers requests over a local socket.
//!
//! Processes of the same user are answered, and those of the user that owns the directory of the
//! local socket of `handle-admin`, which takes over requests from this process. The kernel reports
//! the user of each peer.

use crate::protocol::{ASK_LEN_MAX, LinkReply, LinkRequest, SessionFacts, frame_buffer, receive, send};
use crate::session::Session;
use crate::table::SessionTable;
use crate::traffic::LiveSession as _;
use handle_auth::challenges::IssuedChallenge;
use handle_daemon::socket::{OwnedSocket, owns_directory_of};
use handle_daemon::threads::lock;
use rustix::net::sockopt::socket_peercred;
use std::collections::HashMap;
use std::fmt::Display;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Maximum number of concurrent connections; each process opens a few.
pub const CONNECTIONS_MAX: usize = 16;
/// Time the listener sleeps when nothing wakes it.
const ACCEPT_TIMEOUT: Duration = Duration::from_millis(50);
/// Least time between two lines of the log about connections that are not answered. Any local user
/// can cause one.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// Access to the table of this process for the requests of other processes.
pub trait SharedTable: Send + Sync + 'static {
    /// The table; `None` when sessions are disabled.
    fn sessions(&self) -> Option<&SessionTable>;

    /// The current time, in seconds by the clock of the table.
    fn now_s(&self) -> u32;

    /// A random number.
    fn random(&self) -> u32;

    /// Whether a challenge has this number.
    fn is_taken(&self, number: i32) -> bool;

    /// Takes the challenge with this number. A challenge can be taken only once.
    fn take_challenge(&self, _id: i32) -> TakenChallenge {
        TakenChallenge::Unknown
    }

    /// Whether the holder should stop.
    fn is_stopped(&self) -> bool;

    /// Sleeps until a connection arrives at `listener`, or the holder may have to stop.
    fn wait(&self, _listener: BorrowedFd<'_>) {
        std::thread::sleep(ACCEPT_TIMEOUT);
    }
}

/// Result of taking a challenge by its number.
#[derive(Clone, Debug)]
pub enum TakenChallenge {
    /// The challenge was waiting for an answer.
    Waiting(IssuedChallenge),
    /// The challenge has been answered or has expired.
    Over,
    /// No such challenge is known.
    Unknown,
}

/// Accepts connections at `socket` and answers requests until `table` is stopped. Answers the user
/// of this process, and the one that owns the directory of `partner`.
pub fn serve(socket: &OwnedSocket, table: &Arc<impl SharedTable>, partner: Option<&Path>) {
    let listener = socket.listener();
    let connections = Arc::new(SocketConnections::default());
    let mut refusals = RefusalLog::default();
    while !table.is_stopped() {
        let socket = match listener.accept() {
            Ok((socket, _)) => socket,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                table.wait(listener.as_fd());
                continue;
            }
            Err(_) => {
                std::thread::sleep(ACCEPT_TIMEOUT);
                continue;
            }
        };
        if let Err(error) = admit(&socket, partner) {
            refusals.log(format_args!("of another user: {error}"));
            continue;
        }
        let Ok(held) = socket.try_clone() else { continue };
        let Some(listed) = ListedConnection::add(&connections, held) else {
            refusals.log("there are too many");
            continue;
        };
        let table = Arc::clone(table);
        let thread = std::thread::Builder::new().name("sessions-client".into()).spawn(move || {
            let _listed = listed;
            let _ = talk(socket, &*table);
        });
        if let Err(error) = thread {
            refusals.log(format_args!("cannot start a thread: {error}"));
        }
    }
    for connection in connections.all().by_number.values() {
        let _ = connection.shutdown(Shutdown::Both);
    }
}

/// The open connections, which are shut down when the holder stops.
#[derive(Default)]
struct SocketConnections(Mutex<ConnectionList>);

#[derive(Default)]
struct ConnectionList {
    by_number: HashMap<u64, UnixStream>,
    last_number: u64,
}

impl SocketConnections {
    fn all(&self) -> MutexGuard<'_, ConnectionList> {
        lock(&self.0)
    }
}

/// A connection in the list, until this is dropped: when its thread ends, or does not start. The
/// peer would not see the end of a connection that stays in the list.
struct ListedConnection {
    connections: Arc<SocketConnections>,
    number: u64,
}

impl ListedConnection {
    /// Adds a connection; `None` when there are too many.
    fn add(connections: &Arc<SocketConnections>, connection: UnixStream) -> Option<Self> {
        let mut all = connections.all();
        if all.by_number.len() >= CONNECTIONS_MAX {
            return None;
        }
        all.last_number += 1;
        let number = all.last_number;
        all.by_number.insert(number, connection);
        Some(Self { connections: Arc::clone(connections), number })
    }
}

impl Drop for ListedConnection {
    fn drop(&mut self) {
        self.connections.all().by_number.remove(&self.number);
    }
}

/// The lines of the log about connections that are not answered.
#[derive(Default)]
struct RefusalLog {
    logged: Option<Instant>,
}

impl RefusalLog {
    fn log(&mut self, why: impl Display) {
        if self.is_due(Instant::now()) {
            tracing::warn!(%why, "a connection to the socket of sessions is refused");
        }
    }

    /// Whether a line is due at `now`, which is then the time of the last one.
    fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self.logged.is_none_or(|at| now.saturating_duration_since(at) >= LOG_INTERVAL);
        if is_due {
            self.logged = Some(now);
        }
        is_due
    }
}

/// Admits a peer of the same user, or of the owner of the directory of `partner`.
fn admit(socket: &UnixStream, partner: Option<&Path>) -> io::Result<()> {
    check_peer(socket, partner)?;
    socket.set_nonblocking(false)
}

/// Checks the user of the process at the other end. Whoever owns the directory of `partner` decides
/// who listens there, and so gets the requests that this process forwards.
fn check_peer(socket: &impl AsFd, partner: Option<&Path>) -> io::Result<()> {
    let peer = socket_peercred(socket)?;
    let is_partner = || partner.is_some_and(|path| owns_directory_of(path, peer.uid.as_raw()));
    if peer.uid == rustix::process::geteuid() || is_partner() {
        return Ok(());
    }
    let who = format!("user {} with process {}", peer.uid.as_raw(), peer.pid.as_raw_nonzero());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, who))
}

/// Answers one process until it disconnects or sends an invalid frame.
fn talk(mut socket: UnixStream, table: &impl SharedTable) -> io::Result<()> {
    let mut buffer = frame_buffer();
    loop {
        receive(&mut socket, &mut buffer, ASK_LEN_MAX)?;
        let Some(ask) = LinkRequest::decode(&buffer) else {
            tracing::warn!(
                "cannot parse a message on the socket of sessions: is the other process of another version?"
            );
            return Ok(());
        };
        let reply = answer(table, ask);
        let expected_len = match &reply {
            LinkReply::Challenge(challenge) => ASK_LEN_MAX + challenge.request.len(),
            _ => ASK_LEN_MAX,
        };
        send(&mut socket, &mut buffer, expected_len, |out| reply.encode(out))?;
    }
}

/// The reply to `ask`.
#[must_use]
pub fn answer(table: &impl SharedTable, ask: LinkRequest<'_>) -> LinkReply {
    let (Some(sessions), now_s) = (table.sessions(), table.now_s()) else { return LinkReply::No };
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
        LinkRequest::Accept { id, counter } => {
            with(id, &|session| yes_or_no(session.accept(counter, now_s).is_ok()))
        }
        LinkRequest::Next(id) => with(id, &|session| LinkReply::Number(session.next_counter())),
        LinkRequest::Authenticate { id, claimed, index } => {
            with(id, &|session| yes_or_no(session.authenticate(claimed, index, now_s)))
        }
        LinkRequest::Open(new) => {
            let opened = sessions.open(new, || table.random(), |number| table.is_taken(number), now_s);
            opened.map_or_else(LinkReply::Refused, |session| LinkReply::Number(session.keys().id))
        }
        LinkRequest::End(id) => yes_or_no(sessions.end(id)),
        LinkRequest::TakeChallenge(id) => match table.take_challenge(id) {
            TakenChallenge::Waiting(challenge) => LinkReply::Challenge(challenge),
            TakenChallenge::Over => LinkReply::Over,
            TakenChallenge::Unknown => LinkReply::No,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    #[test]
    fn a_connection_without_a_thread_ends_and_makes_way_for_others() {
        let connections = Arc::new(SocketConnections::default());
        let add = || {
            let (here, there) = UnixStream::pair().unwrap();
            ListedConnection::add(&connections, here).map(|listed| (listed, there))
        };
        let mut all: Vec<_> = (0..CONNECTIONS_MAX).map(|_| add().unwrap()).collect();
        assert!(add().is_none(), "too many");
        let (listed, mut there) = all.swap_remove(3);
        drop(listed);
        assert_eq!(there.read(&mut [0]).unwrap(), 0, "the peer sees the end");
        assert!(add().is_some());
    }

    #[test]
    fn refusals_are_logged_once_a_second() {
        let (mut log, start) = (RefusalLog::default(), Instant::now());
        let due = [0, 1, 999, 1000, 1500, 2000].map(|ms| log.is_due(start + Duration::from_millis(ms)));
        assert_eq!(due, [true, false, false, true, false, true]);
    }
}
