//! A worker: one thread with a runtime and listeners of its own.
//!
//! Connections stay on the worker that accepted them. A worker accepts no more than its share of
//! the connections that are allowed; further ones wait in the kernel.

use crate::config::Config;
use crate::connections;
use crate::phase::{self, GatewayPhase};
use crate::server::GatewayState;
use anyhow::Context as _;
use handle_daemon::listen::ListenError;
use handle_daemon::takeover::{Predecessor, SocketKind};
use handle_daemon::threads;
use socket2::{Domain, SockRef, Socket, Type};
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Pause after a failed accept: usually too many open files, which closing connections frees.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// Time in which `handle-admin` is told of the sessions that end with the last connections. Those
/// that it is not told of end by themselves.
const END_PATIENCE: Duration = Duration::from_secs(1);

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
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking().cloexec(), None)?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(shares)?;
    if address.ip().is_unspecified() && address.is_ipv6() {
        // The socket serves IPv4 as well.
        socket.set_only_v6(false)?;
    }
    socket.bind(&address.into())?;
    if shares {
        listen(&socket, backlog)?;
    }
    Ok(socket.into())
}

fn listen(socket: &Socket, backlog: u32) -> io::Result<()> {
    socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX))
}

/// Which connections a listener accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenerKind {
    /// Those to an address of `listen`.
    Plain,
    /// Those to an address of `tls.client_certificates.listen`.
    Certificates,
}

/// A listener of a worker.
#[derive(Debug)]
pub struct WorkerListener {
    socket: StdListener,
    kind: ListenerKind,
}

/// The listeners of all workers.
#[derive(Debug)]
pub struct WorkerListeners {
    /// The listeners of each worker. Workers may share a socket.
    workers: Vec<Vec<WorkerListener>>,
    /// Each socket once: the worker and the position of its listener.
    distinct: Vec<(usize, usize)>,
    addresses: Vec<(ListenerKind, SocketAddr)>,
}

impl WorkerListeners {
    /// Opens the addresses of `config` for so many workers: with the sockets of another process if
    /// it has some for an address.
    ///
    /// All sockets of an address are taken, and no others are bound beside them: a listener that is
    /// closed resets the connections in its queue, also if the start of this process fails.
    ///
    /// # Errors
    /// When another process uses the port, or the kernel refuses the address.
    pub fn open(
        config: &Config,
        workers_count: usize,
        mut from: Option<&mut Predecessor>,
    ) -> Result<Self, ListenError> {
        let workers = (0..workers_count).map(|_| Vec::new()).collect();
        let mut opened = Self { workers, distinct: Vec::new(), addresses: Vec::new() };
        let plain = config.listen.iter().map(|address| (ListenerKind::Plain, *address));
        let certificates = config.tls.client_certificates.listen.iter();
        let certificates = certificates.map(|address| (ListenerKind::Certificates, *address));
        for (kind, address) in plain.chain(certificates) {
            let taken = from.as_deref_mut().into_iter().flat_map(|from| {
                std::iter::from_fn(|| from.take(SocketKind::Tcp, address)).collect::<Vec<_>>()
            });
            let mut sockets: Vec<StdListener> = taken.map(StdListener::from).collect();
            for socket in &sockets {
                // The other process may have had another setting.
                listen(&SockRef::from(socket), config.limits.backlog)
                    .map_err(|error| ListenError::Refused(address, error))?;
            }
            if sockets.is_empty() {
                sockets = bind(address, workers_count, config.limits.backlog)?;
            }
            opened.distribute(sockets, kind).map_err(|error| ListenError::Refused(address, error))?;
        }
        Ok(opened)
    }

    /// Gives the sockets of an address to the workers: several to each, or one to several.
    fn distribute(&mut self, sockets: Vec<StdListener>, kind: ListenerKind) -> io::Result<()> {
        let workers_count = self.workers.len();
        let address = sockets.first().map(StdListener::local_addr).transpose()?;
        self.addresses.extend(address.map(|address| (kind, address)));
        for at in sockets.len()..workers_count {
            let socket = sockets[at % sockets.len()].try_clone()?;
            self.workers[at].push(WorkerListener { socket, kind });
        }
        for (at, socket) in sockets.into_iter().enumerate() {
            let worker = at % workers_count;
            self.distinct.push((worker, self.workers[worker].len()));
            self.workers[worker].push(WorkerListener { socket, kind });
        }
        Ok(())
    }

    /// Each socket once, with a worker that has it.
    pub fn distinct(&self) -> impl Iterator<Item = (usize, &StdListener)> {
        self.distinct.iter().map(|&(worker, at)| (worker, &self.workers[worker][at].socket))
    }

    /// The addresses of a kind, with the ports that the kernel chose.
    #[must_use]
    pub fn addresses(&self, kind: ListenerKind) -> Vec<SocketAddr> {
        self.addresses.iter().filter(|(of, _)| *of == kind).map(|(_, address)| *address).collect()
    }

    /// The listeners of each worker.
    #[must_use]
    pub fn into_workers(self) -> Vec<Vec<WorkerListener>> {
        self.workers
    }
}

/// A worker that is ready to run.
#[derive(Debug)]
pub struct Worker {
    runtime: Runtime,
    listeners: Vec<(TcpListener, ListenerKind)>,
    places_count: usize,
}

impl Worker {
    /// A worker for connections to `listeners`.
    ///
    /// # Errors
    /// When its runtime cannot be built.
    pub fn new(state: &GatewayState, listeners: Vec<WorkerListener>) -> anyhow::Result<Self> {
        let settings = state.settings.current_shared();
        let mut builder = tokio::runtime::Builder::new_current_thread();
        // A thread for each request that waits for the administration service, and some for files.
        builder.enable_all().max_blocking_threads(settings.admin.requests + 8);
        let runtime = builder.build().context("cannot start the runtime of a worker")?;
        let listeners = {
            let _context = runtime.enter();
            let of_runtime = |WorkerListener { socket, kind }| Ok((TcpListener::from_std(socket)?, kind));
            let listeners: io::Result<_> = listeners.into_iter().map(of_runtime).collect();
            listeners.context("cannot accept connections")?
        };
        let places_count = (settings.limits.connections / state.workers_count).max(1);
        Ok(Self { runtime, listeners, places_count })
    }

    /// Runs the worker until the process drains, and then until its connections have ended or the
    /// time for that is over.
    pub fn run(self, state: &Arc<GatewayState>) {
        let Self { runtime, listeners, places_count } = self;
        let places = Arc::new(Semaphore::new(places_count));
        let has_ended = runtime.block_on(async {
            phase::reached(state.phase(), GatewayPhase::Serving).await;
            let accept = |(listener, kind)| {
                let accept = accept(listener, kind, Arc::clone(state), Arc::clone(&places));
                tokio::spawn(threads::watch("accept", accept))
            };
            let accepting: Vec<_> = listeners.into_iter().map(accept).collect();
            for task in accepting {
                // A panic has already been logged where it happened.
                let _ = task.await;
            }
            // Connections that are over have given their places back.
            let all = u32::try_from(places_count).unwrap_or(u32::MAX);
            tokio::select! {
                _ = places.acquire_many(all) => {}
                () = state.drain_time_over() => {}
            }
            // The last connections may have been those of sessions.
            let callers = state.admin.as_ref().and_then(|admin| admin.callers());
            match callers {
                Some(callers) => timeout(END_PATIENCE, callers.end_all()).await.is_ok(),
                None => true,
            }
        });
        if !has_ended {
            // Dropping it would wait for `handle-admin`, which does not answer.
            runtime.shutdown_background();
        }
    }
}

/// Accepts connections until the process drains.
async fn accept(listener: TcpListener, kind: ListenerKind, state: Arc<GatewayState>, places: Arc<Semaphore>) {
    let mut draining = pin!(phase::reached(state.phase(), GatewayPhase::HandedOver));
    loop {
        // Once another process accepts connections, this one leaves even those that wait to it.
        let accepted = tokio::select! {
            biased;
            () = &mut draining => return,
            accepted = next_connection(&listener, &places) => accepted,
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
        let state = Arc::clone(&state);
        tokio::spawn(async move {
            let address = address.ip().to_canonical();
            if let Err(error) = connections::serve(stream, address, kind, Arc::clone(&state)).await {
                state.counters.connections_failed.add();
                tracing::debug!(%error, peer = %address, "a connection has failed");
            }
            drop(room);
        });
    }
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
