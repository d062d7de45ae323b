//! The side that listens: one accept loop for all kinds.

use crate::config::{LocalConfig, LocalRights};
use crate::connection::LocalConnection;
use crate::frame::{self, FrameError, FrameHeader};
use crate::kind::LocalKind;
use crate::refusal::LocalRefusal;
use anyhow::Context as _;
use handle_daemon::socket::OwnedSocket;
use handle_daemon::threads;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendFlags, send};
use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt::{self, Display};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::AsyncReadExt as _;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::timeout;

/// Time after which a failed `accept` is repeated.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
/// Time in which the header of the first frame has to arrive: a peer sends it at once.
const FIRST_FRAME_TIMEOUT: Duration = Duration::from_secs(5);
/// Time that a connection waits for others of its kind to end: as long as the work of one of them
/// may take.
const TURN_TIMEOUT: Duration = Duration::from_secs(30);
/// Interval at which a connection that waits looks whether its peer has closed it.
const CLOSED_INTERVAL: Duration = Duration::from_millis(250);
/// Least time between two lines of the log about refused connections.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// The bound socket. Its file is removed when this is dropped.
#[derive(Debug)]
pub struct LocalSocket {
    socket: OwnedSocket,
    admission: Admission,
}

/// Who may connect, and how often at a time.
#[derive(Debug)]
struct Admission {
    rights: LocalRights,
    /// By kind, in the order of [`LocalKind::ALL`].
    kinds: [KindPermits; LocalKind::ALL.len()],
    /// Connections of each user without a kind. The rights bound the number of users.
    pending: Mutex<HashMap<u32, Arc<Semaphore>>>,
    pending_max: usize,
    logged: Mutex<Option<Instant>>,
}

/// The permits of one kind.
#[derive(Debug)]
struct KindPermits {
    /// Of the connections that are served.
    connections: Arc<Semaphore>,
    /// Of those that wait for one of these.
    waiting: Semaphore,
}

/// The connections that are served.
#[derive(Debug)]
pub struct ServedConnections {
    /// Nothing is sent: each connection has the other end, and so has the accept loop.
    ended: mpsc::Receiver<Infallible>,
}

impl ServedConnections {
    /// Waits until the socket has stopped and no connection is served, for at most `limit`. Returns
    /// whether that is so.
    pub async fn none_left(&mut self, limit: Duration) -> bool {
        timeout(limit, self.ended.recv()).await.is_ok()
    }
}

/// Why a connection is refused.
#[derive(Debug)]
enum ConnectionRefusal {
    /// The user may not use the socket, or the kernel does not name it.
    User,
    /// The user may not use it for this kind.
    Kind(LocalKind),
    /// Too many connections of this kind are open.
    Full(LocalKind),
    /// Too many connections of this user have no kind yet.
    Pending,
    /// The first frame has another version or kind.
    Frame(FrameError),
    /// No first frame arrived.
    Silent,
}

impl Display for ConnectionRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User => f.write_str("its user is not in `local`"),
            Self::Kind(kind) => write!(f, "its user may not use the kind {}", kind.name()),
            Self::Full(kind) => write!(f, "too many connections of the kind {}", kind.name()),
            Self::Pending => f.write_str("too many connections of its user without a first frame"),
            Self::Frame(error) => error.fmt(f),
            Self::Silent => f.write_str("its first frame did not arrive"),
        }
    }
}

impl ConnectionRefusal {
    /// The refusal that is sent to the peer.
    const fn as_sent(&self) -> LocalRefusal {
        match self {
            Self::User => LocalRefusal::User,
            Self::Kind(_) => LocalRefusal::Kind,
            Self::Full(_) | Self::Pending => LocalRefusal::Busy,
            Self::Frame(_) => LocalRefusal::Frame,
            Self::Silent => LocalRefusal::Late,
        }
    }
}

impl LocalSocket {
    /// Binds the socket at `path` for the users with `rights`.
    ///
    /// # Errors
    /// When another process is listening there, a different kind of file has the path, or the
    /// directory does not allow it.
    pub fn bind(path: &Path, config: &LocalConfig, rights: LocalRights) -> anyhow::Result<Self> {
        let bound =
            OwnedSocket::bind(path, false).and_then(OwnedSocket::move_into_place).and_then(|socket| {
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(rights.mode()))?;
                Ok(socket)
            });
        let socket = bound.with_context(|| {
            format!("cannot bind {} (`local.socket`; check: ls -ld of its directory)", path.display())
        })?;
        let kinds = LocalKind::ALL.map(|kind| KindPermits {
            connections: Arc::new(Semaphore::new(config.connections(kind))),
            waiting: Semaphore::new(config.waiting(kind)),
        });
        let (pending, logged) = Default::default();
        let pending_max = config.pending_connections;
        Ok(Self { socket, admission: Admission { rights, kinds, pending, pending_max, logged } })
    }

    /// Has `serve` answer on each connection until `stopping` is true; `refuse` is called for each
    /// that is refused. Called inside a runtime. When `stopping` is true, connections that are not
    /// served yet are closed.
    ///
    /// # Errors
    /// When the runtime cannot watch the socket.
    pub fn serve<F>(
        self,
        mut stopping: watch::Receiver<bool>,
        refuse: impl Fn() + Send + Sync + 'static,
        serve: impl Fn(LocalConnection, watch::Receiver<bool>) -> F + Send + Sync + 'static,
    ) -> io::Result<ServedConnections>
    where
        F: Future<Output = io::Result<()>> + Send + 'static,
    {
        let Self { socket, admission } = self;
        let listener = UnixListener::from_std(socket.listener().try_clone()?)?;
        let (admission, serve, refuse) = (Arc::new(admission), Arc::new(serve), Arc::new(refuse));
        let (served, ended) = mpsc::channel(1);
        tokio::spawn(threads::watch("local", async move {
            loop {
                let accepted = tokio::select! {
                    accepted = listener.accept() => accepted,
                    _ = stopping.wait_for(|&stops| stops) => break,
                };
                let Ok((mut stream, _)) = accepted else {
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                    continue;
                };
                let user = stream.peer_cred().ok().map(|peer| peer.uid());
                let pending = match admission.begin(user) {
                    Ok(pending) => pending,
                    Err(why) => {
                        refuse();
                        admission.refuse(&stream, user, &why);
                        continue;
                    }
                };
                let (admission, mut stopping) = (Arc::clone(&admission), stopping.clone());
                let (serve, refuse, served) = (Arc::clone(&serve), Arc::clone(&refuse), served.clone());
                tokio::spawn(async move {
                    let _served = served;
                    let admitted = tokio::select! {
                        admitted = admission.admit(&mut stream, pending) => admitted,
                        _ = stopping.wait_for(|&stops| stops) => return,
                    };
                    let (header, _permit) = match admitted {
                        Ok(Some(admitted)) => admitted,
                        Ok(None) => return,
                        Err(why) => {
                            refuse();
                            admission.refuse(&stream, user, &why);
                            return;
                        }
                    };
                    let connection = LocalConnection::new(stream, header.kind, Some(header));
                    if let Err(error) = serve(connection, stopping).await {
                        let kind = header.kind.name();
                        tracing::debug!(%error, kind, "a connection to `local.socket` ended");
                    }
                });
            }
            drop(socket);
        }));
        Ok(ServedConnections { ended })
    }
}

/// A connection without a kind: its user, and its permit among those of the user.
struct PendingConnection {
    user: u32,
    permit: OwnedSemaphorePermit,
}

impl Admission {
    /// Begins with a connection of `user`.
    fn begin(&self, user: Option<u32>) -> Result<PendingConnection, ConnectionRefusal> {
        let user = user.filter(|&user| self.rights.know(user)).ok_or(ConnectionRefusal::User)?;
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let permits = pending.entry(user).or_insert_with(|| Arc::new(Semaphore::new(self.pending_max)));
        let permit = Arc::clone(permits).try_acquire_owned().map_err(|_| ConnectionRefusal::Pending)?;
        Ok(PendingConnection { user, permit })
    }

    /// Receives the first header, and finds a permit among the connections of its kind. `None` if
    /// the peer closes the connection, as one does that only looks whether somebody listens.
    async fn admit(
        &self,
        stream: &mut UnixStream,
        pending: PendingConnection,
    ) -> Result<Option<(FrameHeader, OwnedSemaphorePermit)>, ConnectionRefusal> {
        let mut header = [0; FrameHeader::LEN];
        match timeout(FIRST_FRAME_TIMEOUT, stream.read_exact(&mut header)).await {
            Ok(Ok(_)) => {}
            Ok(Err(_)) => return Ok(None),
            Err(_) => return Err(ConnectionRefusal::Silent),
        }
        let header = FrameHeader::decode(&header).map_err(ConnectionRefusal::Frame)?;
        let kind = header.kind;
        if !self.rights.allow(pending.user, kind) {
            return Err(ConnectionRefusal::Kind(kind));
        }
        header.check(kind, kind.request_len_max()).map_err(ConnectionRefusal::Frame)?;
        // Others of the user connect while this one waits.
        drop(pending.permit);
        Ok(self.turn(stream, kind).await?.map(|permit| (header, permit)))
    }

    /// A permit among the connections of `kind`, for which those of some kinds wait. `None` if the
    /// peer closes the connection, so that its request is not carried out.
    async fn turn(
        &self,
        stream: &UnixStream,
        kind: LocalKind,
    ) -> Result<Option<OwnedSemaphorePermit>, ConnectionRefusal> {
        let full = || ConnectionRefusal::Full(kind);
        let at = LocalKind::ALL.iter().position(|&one| one == kind).unwrap_or_default();
        let KindPermits { connections, waiting } = &self.kinds[at];
        if let Ok(permit) = Arc::clone(connections).try_acquire_owned() {
            return Ok(Some(permit));
        }
        let _waiting = waiting.try_acquire().map_err(|_| full())?;
        let mut turn = pin!(Arc::clone(connections).acquire_owned());
        let until = Instant::now() + TURN_TIMEOUT;
        while !is_closed(stream) {
            if let Ok(permit) = timeout(CLOSED_INTERVAL, &mut turn).await {
                return Ok(permit.ok().filter(|_| !is_closed(stream)));
            }
            if Instant::now() >= until {
                return Err(full());
            }
        }
        Ok(None)
    }

    /// Sends the peer the reason of the refusal, and logs at most one refusal per second, because
    /// any local user can cause one if the mode of the file is 0666.
    fn refuse(&self, stream: &UnixStream, user: Option<u32>, why: &ConnectionRefusal) {
        // The buffer of a fresh connection has capacity for a header.
        let _ = send(stream, &frame::refuse(why.as_sent()), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.is_none_or(|at| at.elapsed() >= LOG_INTERVAL) {
            *logged = Some(Instant::now());
            tracing::warn!(user, %why, "a connection to `local.socket` is refused");
        }
    }
}

/// Whether the peer has closed its end.
fn is_closed(stream: &UnixStream) -> bool {
    let mut stream = [PollFd::new(stream, PollFlags::empty())];
    let polled = poll(&mut stream, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    polled.is_ok() && stream[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

#[cfg(test)]
mod tests;
