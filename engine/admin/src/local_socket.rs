//! A local socket at which another process hands over requests, on a bounded number of connections.

use anyhow::Context as _;
use handle_daemon::sessions::OwnedSocket;
use handle_daemon::threads;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};

/// Time after which a failed `accept` is repeated.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Least time between two lines of the log about refused connections.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// The socket, as its setting describes it.
#[derive(Clone, Debug)]
pub struct LocalSocketConfig {
    /// The setting with its path, for messages.
    pub setting: &'static str,
    /// The process that connects, for messages.
    pub peer: &'static str,
    /// Users whose processes may connect, besides the user of this process.
    pub uids: Vec<u32>,
    /// Connections at a time.
    pub connections: usize,
}

impl LocalSocketConfig {
    /// Mode of the file. The kernel names the user of each connection, so the file lets in all
    /// users if any other than its owner may connect.
    const fn mode(&self) -> u32 {
        if self.uids.is_empty() { 0o600 } else { 0o666 }
    }
}

/// The bound socket. Its file is removed when this is dropped.
#[derive(Debug)]
pub struct LocalSocket {
    socket: OwnedSocket,
    config: LocalSocketConfig,
}

impl LocalSocket {
    /// Binds the socket at `path`.
    ///
    /// # Errors
    /// When another process is listening there, a different kind of file has the path, or the
    /// directory does not allow it.
    pub fn bind(path: &Path, config: LocalSocketConfig) -> anyhow::Result<Self> {
        let bound =
            OwnedSocket::bind(path, false).and_then(OwnedSocket::move_into_place).and_then(|socket| {
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(config.mode()))?;
                Ok(socket)
            });
        let socket = bound.with_context(|| {
            format!(
                "cannot take requests of {} at {} (`{}`; check: ls -ld of its directory)",
                config.peer,
                path.display(),
                config.setting
            )
        })?;
        Ok(Self { socket, config })
    }

    /// Has `serve` answer on each connection until `stopping` is true. `refuse` is called for each
    /// connection of another user, or beyond the number of connections.
    ///
    /// # Errors
    /// When the runtime cannot watch the socket.
    pub fn serve<F>(
        self,
        mut stopping: watch::Receiver<bool>,
        refuse: impl Fn() + Send + 'static,
        serve: impl Fn(UnixStream, watch::Receiver<bool>) -> F + Send + 'static,
    ) -> anyhow::Result<()>
    where
        F: Future<Output = io::Result<()>> + Send + 'static,
    {
        let listener = UnixListener::from_std(self.socket.listener()?)?;
        tokio::spawn(threads::watch(self.config.setting, async move {
            let LocalSocketConfig { setting, peer, .. } = self.config;
            let connections = Arc::new(Semaphore::new(self.config.connections));
            let mut logged: Option<Instant> = None;
            loop {
                let accepted = tokio::select! {
                    accepted = listener.accept() => accepted,
                    _ = stopping.wait_for(|&stops| stops) => break,
                };
                let Ok((stream, _)) = accepted else {
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                    continue;
                };
                let (user, is_allowed) = self.user_of(&stream);
                let permit = Arc::clone(&connections).try_acquire_owned();
                let (true, Ok(permit)) = (is_allowed, permit) else {
                    refuse();
                    // Any local user may cause this if the file lets in all users.
                    if logged.is_none_or(|at| at.elapsed() >= LOG_INTERVAL) {
                        logged = Some(Instant::now());
                        tracing::warn!(user, is_allowed, "a connection to `{setting}` is refused");
                    }
                    continue;
                };
                let served = serve(stream, stopping.clone());
                tokio::spawn(async move {
                    let _permit = permit;
                    if let Err(error) = served.await {
                        tracing::debug!(%error, "a connection of {peer} ended");
                    }
                });
            }
            drop(self);
        }));
        Ok(())
    }

    /// The user of the peer, and whether it may connect.
    fn user_of(&self, stream: &UnixStream) -> (Option<u32>, bool) {
        let user = stream.peer_cred().ok().map(|peer| peer.uid());
        let own = rustix::process::geteuid().as_raw();
        (user, user.is_some_and(|user| user == own || self.config.uids.contains(&user)))
    }
}
