//! Requests of `handle-gateway` about callers over HTTP.

pub mod config;

use crate::state::AdminState;
use crate::steps::{run, within};
use handle_local::callers::{CallerRequest, LEN_MAX};
use handle_local::connection::LocalConnection;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Timeout for reading a request, and for writing its reply.
const FRAME_TIMEOUT: Duration = Duration::from_secs(5);

/// Answers the single request of a connection.
///
/// # Errors
/// When the peer closes the connection or is too slow, the server stops before the request, or the
/// request is malformed.
pub async fn answer(
    mut connection: LocalConnection,
    state: &Arc<AdminState>,
    mut stopping: watch::Receiver<bool>,
) -> io::Result<()> {
    let frame = connection.reader.receive_within(LEN_MAX, FRAME_TIMEOUT, &mut stopping).await?;
    let answering = Arc::clone(state);
    let answered = run(&state.service.counters, move || {
        let request = CallerRequest::decode(&frame)?;
        let limits = answering.config().callers.limits();
        Some(answering.service.answer_gateway(request, &limits).encode())
    });
    let reply =
        answered.await?.ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "a malformed request"))?;
    let sent = connection.writer.send(reply.len(), |content| content.extend_from_slice(&reply));
    within(FRAME_TIMEOUT, sent).await
}
