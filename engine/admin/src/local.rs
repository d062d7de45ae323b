//! The local socket: what is served on the connections of each kind.
//!
//! Connecting gives no rights to records. `handled` forwards requests of clients that prove
//! themselves, and so do the callers of `handle-gateway`; who may connect for what is in
//! [`LocalConfig`](handle_local::config::LocalConfig).

use crate::config::Config;
use crate::state::AdminState;
use crate::{bulk, callers, changes, forward, replication};
use handle_daemon::takeover::IdleConnections;
use handle_local::config::{LocalRights, LocalUserError};
use handle_local::connection::LocalConnection;
use handle_local::kind::LocalKind;
use handle_local::socket::{LocalSocket, ResumedConnection, ServedConnections};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tokio::sync::{Semaphore, watch};

/// Who may use the socket, if there is one.
///
/// # Errors
/// When a user of the lists does not exist, or this process cannot tell it from others.
pub(crate) fn rights(config: &Config) -> Result<Option<LocalRights>, LocalUserError> {
    config.local.socket.as_ref().map(|_| config.local.rights()).transpose()
}

/// Serves the connections at `socket` until the server stops, with those that another process has
/// left, each with its caller. Called inside the runtime.
///
/// # Errors
/// When the runtime cannot watch the socket.
pub(crate) fn serve(
    socket: LocalSocket,
    left: Vec<(OwnedFd, Vec<u8>)>,
    state: &Arc<AdminState>,
) -> io::Result<ServedConnections> {
    let resumed =
        left.into_iter().filter_map(|(descriptor, caller)| resume(descriptor, &caller, state)).collect();
    let (counting, state) = (Arc::clone(&state.service), Arc::clone(state));
    let work = Arc::new(Semaphore::new(state.config().forward.requests));
    let idle = Arc::clone(socket.idle());
    let refuse = move || counting.counters.local_refused.add();
    socket.serve(state.stopping(), resumed, refuse, move |connection, stopping| {
        let (state, work, idle) = (Arc::clone(&state), Arc::clone(&work), Arc::clone(&idle));
        async move { answer(connection, &state, &work, &idle, stopping).await }
    })
}

/// Continues with the connection of a caller whom another process has proven.
fn resume(descriptor: OwnedFd, caller: &[u8], state: &Arc<AdminState>) -> Option<ResumedConnection> {
    let caller = state.service.continue_bulk_caller(caller)?;
    let (state, stopping) = (Arc::clone(state), state.stopping());
    let answer = |connection| async move { bulk::carry_out_for(connection, &state, caller, stopping).await };
    ResumedConnection::new(descriptor.into(), LocalKind::Bulk, answer).ok()
}

async fn answer(
    connection: LocalConnection,
    state: &Arc<AdminState>,
    work: &Semaphore,
    idle: &IdleConnections,
    stopping: watch::Receiver<bool>,
) -> io::Result<()> {
    match connection.kind() {
        LocalKind::Forward => forward::answer(connection, &state.service, work, idle, stopping).await,
        LocalKind::Bulk => bulk::carry_out(connection, state, stopping).await,
        LocalKind::Callers => callers::answer(connection, state, stopping).await,
        LocalKind::Relay => replication::relay::answer(connection, &state.service, stopping).await,
        LocalKind::Changes => changes::feed(connection, state, stopping).await,
    }
}
