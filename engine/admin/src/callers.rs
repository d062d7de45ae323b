//! The socket at which `handle-gateway` verifies callers over HTTP.

pub mod config;

use crate::state::AdminState;
use handle_daemon::callers::{CallerRequest, read_frame, write_frame};
use handle_daemon::control::ControlSocket;
use handle_daemon::shutdown::Shutdown;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

/// Timeout for reading a request, and for writing its reply.
const FRAME_TIMEOUT: Duration = Duration::from_secs(5);

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
    client.set_read_timeout(Some(FRAME_TIMEOUT))?;
    client.set_write_timeout(Some(FRAME_TIMEOUT))?;
    let frame = read_frame(client)?;
    let Some(request) = CallerRequest::decode(&frame) else {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a malformed request"));
    };
    let reply = state.service.answer_gateway(request, &state.config().callers.limits());
    write_frame(client, &reply.encode())
}
