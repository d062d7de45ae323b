//! The side that listens: one accept loop for all kinds.

use crate::config::{LocalConfig, LocalRights};
use crate::connection::LocalConnection;
use crate::frame::{FrameError, FrameHeader};
use crate::kind::LocalKind;
use anyhow::Context as _;
use handle_daemon::sessions::OwnedSocket;
use handle_daemon::threads;
use std::collections::HashMap;
use std::fmt::{self, Display};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::AsyncReadExt as _;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;

/// Time after which a failed `accept` is repeated.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
/// Time in which the header of the first frame has to arrive: a peer sends it at once.
const FIRST_FRAME_TIMEOUT: Duration = Duration::from_secs(5);
/// Time that a connection waits for others of its kind to end. Only those of callers wait, which
/// are short.
const TURN_TIMEOUT: Duration = Duration::from_secs(5);
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
    /// Connections by kind, in the order of [`LocalKind::ALL`].
    connections: [Arc<Semaphore>; LocalKind::ALL.len()],
    /// Connections of each user without a kind. The rights bound the number of users.
    pending: Mutex<HashMap<u32, Arc<Semaphore>>>,
    pending_max: usize,
    logged: Mutex<Option<Instant>>,
}

/// Why a connection is refused.
#[derive(Debug)]
enum ConnectionRefusal {
    /// The user may not use the socket, or the kernel does not name it.
    User,
    /// The user may not use it for this kind.
    Kind(LocalKind),
    /// So many connections of this kind are open.
    Full(LocalKind),
    /// So many connections of this user have no kind yet.
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
        let connections = LocalKind::ALL.map(|kind| Arc::new(Semaphore::new(config.connections(kind))));
        let (pending, logged) = Default::default();
        let pending_max = config.pending_connections;
        Ok(Self { socket, admission: Admission { rights, connections, pending, pending_max, logged } })
    }

    /// Has `serve` answer on each connection until `stopping` is true; `refuse` is called for each
    /// that is refused. Called inside a runtime.
    ///
    /// # Errors
    /// When the runtime cannot watch the socket.
    pub fn serve<F>(
        self,
        mut stopping: watch::Receiver<bool>,
        refuse: impl Fn() + Send + Sync + 'static,
        serve: impl Fn(LocalConnection, watch::Receiver<bool>) -> F + Send + Sync + 'static,
    ) -> io::Result<()>
    where
        F: Future<Output = io::Result<()>> + Send + 'static,
    {
        let Self { socket, admission } = self;
        let listener = UnixListener::from_std(socket.listener()?)?;
        let (admission, serve, refuse) = (Arc::new(admission), Arc::new(serve), Arc::new(refuse));
        tokio::spawn(threads::watch("local", async move {
            loop {
                let accepted = tokio::select! {
                    accepted = listener.accept() => accepted,
                    _ = stopping.wait_for(|&stops| stops) => break,
                };
                let Ok((stream, _)) = accepted else {
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                    continue;
                };
                let user = stream.peer_cred().ok().map(|peer| peer.uid());
                let turn = match admission.begin(user) {
                    Ok(turn) => turn,
                    Err(why) => {
                        refuse();
                        admission.log(user, &why);
                        continue;
                    }
                };
                let (admission, stopping) = (Arc::clone(&admission), stopping.clone());
                let (serve, refuse) = (Arc::clone(&serve), Arc::clone(&refuse));
                tokio::spawn(async move {
                    let (connection, _permit) = match admission.admit(stream, turn).await {
                        Ok(Some(admitted)) => admitted,
                        Ok(None) => return,
                        Err(why) => {
                            refuse();
                            admission.log(user, &why);
                            return;
                        }
                    };
                    let kind = connection.kind().name();
                    if let Err(error) = serve(connection, stopping).await {
                        tracing::debug!(%error, kind, "a connection to `local.socket` ended");
                    }
                });
            }
            drop(socket);
        }));
        Ok(())
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
    /// the peer closes the connection, as one does that only checks whether a process listens.
    async fn admit(
        &self,
        mut stream: UnixStream,
        pending: PendingConnection,
    ) -> Result<Option<(LocalConnection, OwnedSemaphorePermit)>, ConnectionRefusal> {
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
        let at = LocalKind::ALL.iter().position(|&one| one == kind).unwrap_or_default();
        let permits = Arc::clone(&self.connections[at]);
        let permit = match kind {
            LocalKind::Callers => {
                timeout(TURN_TIMEOUT, permits.acquire_owned()).await.ok().and_then(Result::ok)
            }
            _ => permits.try_acquire_owned().ok(),
        };
        drop(pending.permit);
        let permit = permit.ok_or(ConnectionRefusal::Full(kind))?;
        Ok(Some((LocalConnection::new(stream, kind, Some(header)), permit)))
    }

    /// Logs a refusal, now and then: any local user may cause one if the file lets in all users.
    fn log(&self, user: Option<u32>, why: &ConnectionRefusal) {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.is_none_or(|at| at.elapsed() >= LOG_INTERVAL) {
            *logged = Some(Instant::now());
            tracing::warn!(user, %why, "a connection to `local.socket` is refused");
        }
    }
}

#[cfg(test)]
mod tests;
