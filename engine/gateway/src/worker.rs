//! A worker: one thread with a runtime and listeners of its own.
//!
//! Connections stay on the worker that accepted them. A worker accepts no more than its share of
//! the connections that are allowed; further ones wait in the kernel.

use crate::config::GatewayLimits;
use crate::connections::ClientStream;
use crate::places::PlaceLimits;
use crate::route::{self, HttpPeer};
use crate::server::GatewayState;
use crate::tls::FIRST_BYTE;
use anyhow::Context as _;
use handle_daemon::listen::ListenError;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
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
        // The number in all is that of the rooms.
        let per_source = state.settings.current().limits.connections_per_source;
        let limits = PlaceLimits { places: usize::MAX, per_source };
        let Some(place) = state.connections.take(address.ip(), limits) else {
            state.counters.connections_refused.add();
            continue;
        };
        let (state, stopping) = (Arc::clone(&state), stopping.clone());
        tokio::spawn(async move {
            serve(stream, address, state, stopping).await;
            drop((place, room));
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

/// Counts a bug if it is dropped by a panic.
struct BugGuard<'s>(&'s GatewayState);

impl Drop for BugGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.counters.bugs.add();
        }
    }
}

/// Serves the requests of one connection, over TLS if its first byte says so.
async fn serve(
    stream: TcpStream,
    address: SocketAddr,
    state: Arc<GatewayState>,
    stopping: watch::Receiver<bool>,
) {
    let settings = state.settings.current_shared();
    let limits = &settings.limits;
    // Without it, small answers wait for the client's acknowledgements.
    let _ = stream.set_nodelay(true);
    let patience = Duration::from_millis(limits.header_ms.into());
    let address = address.ip().to_canonical();
    let acceptor = match &state.tls {
        Some(tls) => {
            let mut first = [0];
            match tokio::time::timeout(patience, stream.peek(&mut first)).await {
                Ok(Ok(_)) => (first == [FIRST_BYTE]).then(|| tls.acceptor()),
                _ => return state.counters.connections_failed.add(),
            }
        }
        None => None,
    };
    let stream = ClientStream::new(stream, Duration::from_millis(limits.write_ms.into()));
    let served = match acceptor {
        None => serve_requests(stream, HttpPeer { address, is_tls: false }, &state, limits, stopping).await,
        Some(acceptor) => match tokio::time::timeout(patience, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => {
                let peer = HttpPeer { address, is_tls: true };
                serve_requests(stream, peer, &state, limits, stopping).await
            }
            _ => return state.counters.connections_failed.add(),
        },
    };
    if let Err(error) = served {
        state.counters.connections_failed.add();
        tracing::debug!(%error, peer = %address, "a connection has failed");
    }
}

/// Serves the requests of a connection that is ready for them.
async fn serve_requests<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    peer: HttpPeer,
    state: &Arc<GatewayState>,
    limits: &GatewayLimits,
    mut stopping: watch::Receiver<bool>,
) -> hyper::Result<()> {
    let answering = Arc::clone(state);
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let state = Arc::clone(&answering);
        async move {
            let _guard = BugGuard(&state);
            Ok::<_, Infallible>(route::answer(&state, peer, request).await)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_millis(limits.header_ms.into()))
        .max_header_size(limits.header_bytes)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    tokio::select! {
        biased;
        served = connection.as_mut() => served,
        () = until_told_to_stop(&mut stopping) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    }
}
