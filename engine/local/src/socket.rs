//! The side that listens: one accept loop for all kinds.

use crate::config::{LocalConfig, LocalRights};
use crate::connection::LocalConnection;
use crate::frame::{self, FrameError, FrameHeader};
use crate::kind::LocalKind;
use crate::refusal::LocalRefusal;
use anyhow::Context as _;
use handle_daemon::socket::{FileOwnership, OwnedSocket};
use handle_daemon::takeover::IdleConnections;
use handle_daemon::threads;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendFlags, send};
use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt::{self, Display};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::pin::{Pin, pin};
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
    idle: Arc<IdleConnections>,
    /// Connections that another process has accepted.
    accepted: Vec<OwnedFd>,
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

/// A connection that another process has served before, and what serves it further.
pub struct ResumedConnection {
    kind: LocalKind,
    user: Option<u32>,
    answer: Pin<Box<dyn Future<Output = io::Result<()>> + Send>>,
}

impl ResumedConnection {
    /// A connection of `kind`, which `answer` serves further. Called inside a runtime.
    ///
    /// # Errors
    /// When the runtime cannot watch the stream.
    pub fn new<F>(
        stream: std::os::unix::net::UnixStream,
        kind: LocalKind,
        answer: impl FnOnce(LocalConnection) -> F,
    ) -> io::Result<Self>
    where
        F: Future<Output = io::Result<()>> + Send + 'static,
    {
        let stream = UnixStream::from_std(stream)?;
        let user = stream.peer_cred().ok().map(|peer| peer.uid());
        let answer = Box::pin(answer(LocalConnection::new(stream, kind, None)));
        Ok(Self { kind, user, answer })
    }
}

/// The connections that are served.
#[derive(Debug)]
pub struct ServedConnections {
    /// Nothing is sent: each connection has the other end, and so has the accept loop.
    ended: mpsc::Receiver<Infallible>,
    file: FileOwnership,
}

impl ServedConnections {
    /// From now on the file of the socket belongs to this process: no other one continues.
    pub fn own_file(&self) {
        self.file.acquire();
    }

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
        let bound = OwnedSocket::bind(path, false).and_then(OwnedSocket::move_into_place);
        Self::on(bound, path, config, rights)
    }

    /// Continues with the socket at `path` and the connections of another process. If the file of
    /// the socket is gone, it is bound again. The file of that process stays if this one fails
    /// ([`ServedConnections::own_file`]).
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    pub fn adopt(
        listener: OwnedFd,
        accepted: Vec<OwnedFd>,
        path: &Path,
        config: &LocalConfig,
        rights: LocalRights,
    ) -> anyhow::Result<Self> {
        let bind = |_| OwnedSocket::bind(path, false).and_then(OwnedSocket::move_into_place);
        let adopted = OwnedSocket::adopt(listener, path).or_else(bind);
        Ok(Self { accepted, ..Self::on(adopted, path, config, rights)? })
    }

    fn on(
        bound: io::Result<OwnedSocket>,
        path: &Path,
        config: &LocalConfig,
        rights: LocalRights,
    ) -> anyhow::Result<Self> {
        let bound = bound.and_then(|socket| {
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
        let admission = Admission { rights, kinds, pending, pending_max, logged };
        Ok(Self { socket, admission, idle: Arc::default(), accepted: Vec::new() })
    }

    /// The connections without a request, for a process that continues with them.
    #[must_use]
    pub const fn idle(&self) -> &Arc<IdleConnections> {
        &self.idle
    }

    /// Another descriptor of the listening socket.
    ///
    /// # Errors
    /// When the process has no free file descriptors.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        self.socket.listener().try_clone().map(OwnedFd::from)
    }

    /// Has `serve` answer on each connection until `stopping` is true; `refuse` is called for each
    /// that is refused. Called inside a runtime. When `stopping` is true, connections that are not
    /// served yet are closed, or left to another process that continues with them. `resumed` are
    /// connections that another process has served before.
    ///
    /// # Errors
    /// When the runtime cannot watch the socket.
    pub fn serve<F>(
        self,
        mut stopping: watch::Receiver<bool>,
        resumed: Vec<ResumedConnection>,
        refuse: impl Fn() + Send + Sync + 'static,
        serve: impl Fn(LocalConnection, watch::Receiver<bool>) -> F + Send + Sync + 'static,
    ) -> io::Result<ServedConnections>
    where
        F: Future<Output = io::Result<()>> + Send + 'static,
    {
        let Self { socket, admission, idle, accepted } = self;
        let file = socket.ownership().clone();
        let listener = UnixListener::from_std(socket.listener().try_clone()?)?;
        let mut inherited = Vec::with_capacity(accepted.len());
        for stream in accepted {
            inherited.push(UnixStream::from_std(stream.into())?);
        }
        let (served, ended) = mpsc::channel(1);
        for resumed in resumed {
            let permit = match admission.resume(resumed.user, resumed.kind) {
                Ok(permit) => permit,
                Err(why) => {
                    refuse();
                    tracing::warn!(user = resumed.user, %why, "a connection of another process is closed");
                    continue;
                }
            };
            let served = served.clone();
            tokio::spawn(async move {
                let _held = (served, permit);
                if let Err(error) = resumed.answer.await {
                    tracing::debug!(%error, "a connection of another process ended");
                }
            });
        }
        let accepting = AcceptLoop {
            admission,
            serve,
            refuse,
            stopping: stopping.clone(),
            idle: Arc::clone(&idle),
            served,
        };
        let accepting = Arc::new(accepting);
        tokio::spawn(threads::watch("local", async move {
            inherited.into_iter().for_each(|stream| accepting.begin(stream, false));
            loop {
                let stream = tokio::select! {
                    accepted = listener.accept() => accepted,
                    _ = stopping.wait_for(|&stops| stops) => break,
                };
                match stream {
                    Ok((stream, _)) => accepting.begin(stream, true),
                    Err(_) => tokio::time::sleep(ACCEPT_AGAIN).await,
                }
            }
            match idle.collects() {
                true => socket.leave(),
                false => drop(socket),
            }
        }));
        Ok(ServedConnections { ended, file })
    }
}

/// What accepted connections have in common.
struct AcceptLoop<S, R> {
    admission: Admission,
    serve: S,
    refuse: R,
    stopping: watch::Receiver<bool>,
    idle: Arc<IdleConnections>,
    /// Each connection has a clone.
    served: mpsc::Sender<Infallible>,
}

impl<S, R, F> AcceptLoop<S, R>
where
    S: Fn(LocalConnection, watch::Receiver<bool>) -> F + Send + Sync + 'static,
    R: Fn() + Send + Sync + 'static,
    F: Future<Output = io::Result<()>> + Send + 'static,
{
    /// Begins to serve a connection. If it is not new, another process may have served it before.
    fn begin(self: &Arc<Self>, stream: UnixStream, is_new: bool) {
        let user = stream.peer_cred().ok().map(|peer| peer.uid());
        match self.admission.begin(user) {
            Ok(pending) => {
                let accepting = Arc::clone(self);
                tokio::spawn(async move { accepting.answer(stream, pending, is_new).await });
            }
            Err(why) => {
                (self.refuse)();
                self.admission.refuse(&stream, user, &why);
            }
        }
    }

    async fn answer(&self, mut stream: UnixStream, pending: PendingConnection, is_new: bool) {
        let (_served, mut stopping, user) = (self.served.clone(), self.stopping.clone(), pending.user);
        let begun = tokio::select! {
            begun = timeout(FIRST_FRAME_TIMEOUT, stream.readable()) => begun.is_ok(),
            _ = stopping.wait_for(|&stops| stops) => {
                // Nothing of its first frame has been received.
                if let Ok(stream) = stream.into_std() {
                    self.idle.keep(stream);
                }
                return;
            }
        };
        let admitted = match begun {
            // Its peer connects again with its next request.
            false if !is_new => return,
            false => Err(ConnectionRefusal::Silent),
            true => tokio::select! {
                admitted = self.admission.admit(&mut stream, pending) => admitted,
                _ = stopping.wait_for(|&stops| stops), if !self.idle.collects() => return,
            },
        };
        let (header, _permit) = match admitted {
            Ok(Some(admitted)) => admitted,
            Ok(None) => return,
            Err(why) => {
                (self.refuse)();
                self.admission.refuse(&stream, Some(user), &why);
                return;
            }
        };
        let connection = LocalConnection::new(stream, header.kind, Some(header));
        if let Err(error) = (self.serve)(connection, stopping).await {
            let kind = header.kind.name();
            tracing::debug!(%error, kind, "a connection to `local.socket` ended");
        }
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

    /// Admits a connection of `user` that another process has admitted. The settings of that
    /// process may have been different.
    fn resume(&self, user: Option<u32>, kind: LocalKind) -> Result<OwnedSemaphorePermit, ConnectionRefusal> {
        let user = user.filter(|&user| self.rights.know(user)).ok_or(ConnectionRefusal::User)?;
        if !self.rights.allow(user, kind) {
            return Err(ConnectionRefusal::Kind(kind));
        }
        let connections = Arc::clone(&self.permits(kind).connections);
        connections.try_acquire_owned().map_err(|_| ConnectionRefusal::Full(kind))
    }

    fn permits(&self, kind: LocalKind) -> &KindPermits {
        let at = LocalKind::ALL.iter().position(|&one| one == kind).unwrap_or_default();
        &self.kinds[at]
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
        let KindPermits { connections, waiting } = self.permits(kind);
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
