//! A worker: one thread with a runtime and listeners of its own.
//!
//! Connections stay on the worker that accepted them. A worker accepts no more than its share of
//! the connections that are allowed; further ones wait in the kernel.

use crate::connections;
use crate::listeners::{ListenerKind, WorkerListener};
use crate::phase::{self, GatewayPhase};
use crate::state::GatewayState;
use anyhow::Context as _;
use handle_daemon::threads;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Pause after a failed accept: usually too many open files, which closing connections frees.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// Time in which `handle-admin` is notified of the sessions that end with the last connections.
/// Those that it is not reported of end by themselves.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// A worker that is ready to run.
#[derive(Debug)]
pub struct Worker {
    runtime: Runtime,
    listeners: Vec<(TcpListener, ListenerKind)>,
    permits_count: usize,
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
        let permits_count = (settings.limits.connections / state.process.workers_count).max(1);
        Ok(Self { runtime, listeners, permits_count })
    }

    /// Runs the worker until the process drains, and then until its connections have ended or the
    /// time for that is over.
    pub fn run(self, state: &Arc<GatewayState>) {
        let Self { runtime, listeners, permits_count } = self;
        let permits = Arc::new(Semaphore::new(permits_count));
        let has_ended = runtime.block_on(async {
            phase::reached(state.phase(), GatewayPhase::Serving).await;
            let accept = |(listener, kind)| {
                let accept = accept(listener, kind, Arc::clone(state), Arc::clone(&permits));
                tokio::spawn(threads::watch("accept", accept))
            };
            let accepting: Vec<_> = listeners.into_iter().map(accept).collect();
            for task in accepting {
                // A panic has already been logged where it happened.
                let _ = task.await;
            }
            // Connections that are over have given their permits back.
            let all = u32::try_from(permits_count).unwrap_or(u32::MAX);
            tokio::select! {
                _ = permits.acquire_many(all) => {}
                () = state.drain_time_over() => {}
            }
            // The last connections may have been those of sessions.
            let callers = state.writing.admin.as_ref().and_then(|admin| admin.callers());
            match callers {
                Some(callers) => timeout(END_TIMEOUT, callers.end_all()).await.is_ok(),
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
async fn accept(
    listener: TcpListener,
    kind: ListenerKind,
    state: Arc<GatewayState>,
    permits: Arc<Semaphore>,
) {
    let mut draining = pin!(phase::reached(state.phase(), GatewayPhase::HandedOver));
    loop {
        // Once another process accepts connections, this one leaves even those that wait to it.
        let accepted = tokio::select! {
            biased;
            () = &mut draining => return,
            accepted = next_connection(&listener, &permits) => accepted,
        };
        let (stream, address, permit) = match accepted {
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
            drop(permit);
        });
    }
}

/// A permit among the connections of a worker.
type ConnectionPermit = tokio::sync::OwnedSemaphorePermit;

/// Waits for a permit, and then for a connection.
async fn next_connection(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
) -> io::Result<(TcpStream, SocketAddr, ConnectionPermit)> {
    let permit = Arc::clone(permits).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, address) = listener.accept().await?;
    Ok((stream, address, permit))
}
