//! The socket at which `handle-gateway` verifies callers over HTTP.

use crate::caller_sessions::CallerSessionLimits;
use crate::state::AdminState;
use handle_daemon::callers::{CallerRequest, read_frame, write_frame};
use handle_daemon::control::ControlSocket;
use handle_daemon::settings;
use handle_daemon::settings::DAY_MS;
use handle_daemon::shutdown::Shutdown;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

settings! {
    /// Callers over HTTP ([gateway.md](../gateway.md#sessions)).
    pub struct CallersConfig {
        /// UNIX socket at which `handle-gateway`, running as the same user, verifies callers; none
        /// if not set.
        restart socket: Option<PathBuf> = None;
        /// Maximum number of connections to this socket; others wait. Each request uses one.
        restart connections: usize = 64, 1..=1024;
        /// Sessions of callers. One more displaces the oldest of the identity with most sessions.
        live sessions: usize = 16_384, 1..=1 << 20;
        /// Of these, those of one identity. A new one displaces its oldest.
        live sessions_per_identity <= sessions: usize = 64, 1..=1 << 20;
        /// Time for which a nonce is valid.
        live nonce_ms: u32 = 300_000, 1000..=3_600_000;
        /// Time without use after which a session ends.
        live idle_ms: u32 = 3_600_000, 1000..=DAY_MS;
        /// Time after which a session ends in any case.
        live session_ms: u32 = DAY_MS, 1000..=DAY_MS;
        /// Time after which the key of a session is looked up again if another service has the
        /// identity, for which `remote.cache_s` counts too. A key in the own store is looked up
        /// whenever the session is used.
        live recheck_ms: u32 = 30_000, 1000..=DAY_MS;
    }
}

impl CallersConfig {
    /// Bounds of the table of sessions.
    #[must_use]
    pub const fn limits(&self) -> CallerSessionLimits {
        CallerSessionLimits {
            nonce_ms: self.nonce_ms as u64,
            sessions: self.sessions,
            per_identity: self.sessions_per_identity,
            idle_ms: self.idle_ms as u64,
            age_ms: self.session_ms as u64,
            recheck_ms: self.recheck_ms as u64,
        }
    }
}

/// Timeout for reading a request, and for writing its reply.
const FRAME_PATIENCE: Duration = Duration::from_secs(5);

/// Serves the socket until `shutdown` has stopped.
pub fn serve(socket: ControlSocket, shutdown: &Shutdown, state: Arc<AdminState>) {
    let connections = state.config().callers.connections;
    socket.serve_with(shutdown, connections, move |client| {
        if let Err(error) = talk(&client, &state) {
            tracing::debug!(%error, "a connection of handle-gateway went away");
        }
    });
}

/// Answers the single request of a connection.
fn talk(client: &UnixStream, state: &AdminState) -> io::Result<()> {
    client.set_read_timeout(Some(FRAME_PATIENCE))?;
    client.set_write_timeout(Some(FRAME_PATIENCE))?;
    let frame = read_frame(client)?;
    let Some(request) = CallerRequest::decode(&frame) else {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a malformed request"));
    };
    let reply = state.service.answer_gateway(request, &state.config().callers.limits());
    write_frame(client, &reply.encode())
}
