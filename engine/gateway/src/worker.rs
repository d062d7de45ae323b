//! A worker: one thread with a runtime and listeners of its own.
//!
//! Connections stay on the worker that accepted them. A worker accepts no more than its share of
//! the connections that are allowed; further ones wait in the kernel.

use crate::connections;
use crate::server::GatewayState;
use anyhow::Context as _;
use handle_daemon::listen::ListenError;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

/// Pause after a failed accept: usually too many open files, which closing connections frees.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// Opens one listener for each worker. They share the port, so that the kernel distributes
/// connections.
///
/// # Errors
/// When another process uses the port, or the kernel refuses the address.
pub fn bind(
    address: SocketAddr,
    workers_count: usize,
    backlog: u32,
) -> Result<Vec<StdListener>, ListenError> {
    let refused = |error| ListenError::Refused(address, error);
    // Without sharing first: another process of this user would otherwise share the port unnoticed.
    let alone = open(address, false, backlog).map_err(refused)?;
    let mut address = address;
    // With port 0 the kernel chooses a port, and the workers share it.
    address.set_port(alone.local_addr().map_err(refused)?.port());
    drop(alone);
    (0..workers_count).map(|_| open(address, true, backlog).map_err(refused)).collect()
}

fn open(address: SocketAddr, shares: bool, backlog: u32) -> io::Result<StdListener> {
    use socket2::{Domain, Socket, Type};
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking().cloexec(), None)?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(shares)?;
    if address.ip().is_unspecified() && address.is_ipv6() {
        // The socket serves IPv4 as well.
        socket.set_only_v6(false)?;
    }
    socket.bind(&address.into())?;
    if shares {
        socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
    }
    Ok(socket.into())
}

/// Runs a worker until the process stops, and then until its connections have ended or `drain_ms`
/// is over.
///
/// # Errors
/// When the runtime cannot be started.
pub fn run(state: &Arc<GatewayState>, listeners: Vec<StdListener>) -> anyhow::Result<()> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let settings = state.settings.current_shared();
    // A thread for each request that waits for the administration service, and some for files.
    builder.enable_all().max_blocking_threads(settings.admin.requests + 8);
    let runtime = builder.build().context("cannot start the runtime of a worker")?;
    let places_count = (settings.limits.connections / state.workers_count).max(1);
    let places = Arc::new(Semaphore::new(places_count));
    runtime.block_on(async {
        let mut accepting = Vec::new();
        for listener in listeners {
            let listener = TcpListener::from_std(listener).context("cannot accept connections")?;
            accepting.push(tokio::spawn(accept(listener, Arc::clone(state), Arc::clone(&places))));
        }
        for task in accepting {
            // A panic has already been logged where it happened.
            let _ = task.await;
        }
        // Connections that are over have given their places back.
        let all = u32::try_from(places_count).unwrap_or(u32::MAX);
        let drain = Duration::from_millis(state.settings.current().limits.drain_ms.into());
        let _ = tokio::time::timeout(drain, places.acquire_many(all)).await;
        Ok(())
    })
}

/// Accepts connections until the process stops.
async fn accept(listener: TcpListener, state: Arc<GatewayState>, places: Arc<Semaphore>) {
    let mut stopping = state.stopping();
    loop {
        let accepted = tokio::select! {
            accepted = next_connection(&listener, &places) => accepted,
            () = until_told_to_stop(&mut stopping) => return,
        };
        let (stream, address, room) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection (open files: ulimit -n)");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        state.counters.connections.add();
        let (state, stopping) = (Arc::clone(&state), stopping.clone());
        tokio::spawn(async move {
            let address = address.ip().to_canonical();
            if let Err(error) = connections::serve(stream, address, Arc::clone(&state), stopping).await {
                state.counters.connections_failed.add();
                tracing::debug!(%error, peer = %address, "a connection has failed");
            }
            drop(room);
        });
    }
}

async fn until_told_to_stop(stopping: &mut watch::Receiver<bool>) {
    // An error means that the process is gone.
    drop(stopping.wait_for(|&stops| stops).await);
}

/// A place among the connections of a worker.
type ConnectionRoom = tokio::sync::OwnedSemaphorePermit;

/// Waits for room, and then for a connection.
async fn next_connection(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> io::Result<(TcpStream, SocketAddr, ConnectionRoom)> {
    let room = Arc::clone(places).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, address) = listener.accept().await?;
    Ok((stream, address, room))
}
