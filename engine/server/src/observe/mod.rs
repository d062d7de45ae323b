//! What the outside may see: `/metrics`, `/healthz` and `/readyz` on an HTTP address of their own.
//!
//! - One thread serves all connections, a bounded number of them, each for a bounded time.
//! - Workers are not asked: their counters are read, and a worker that does not turn when it is woken is seen by its
//!   count.
//! - [`http`] is the protocol, [`health`] what is alive, `metrics` the text.
//!
//! The names of all metrics: `docs/operations/metrics.md`.

mod connection;
pub mod health;
mod metrics;
mod process;
pub mod settings;

use crate::server::ServerState;
use crate::shutdown::Shutdown;
use anyhow::Context as _;
use connection::{HttpConnection, HttpStep};
pub use handle_daemon::http;
use handle_daemon::listen::explain_refusal;
use health::Heartbeat;
use http::{BadRequest, HttpRequest, HttpResponse, HttpStatus};
use metrics::Metrics;
use prometheus_client::registry::Registry;
use rustix::event::{PollFd, PollFlags};
use settings::ObserveParameters;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often connections are looked at, of which some may have had their time.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// A bound HTTP address.
#[derive(Debug)]
pub struct Observer {
    listener: TcpListener,
}

/// What responses are made of.
#[derive(Debug)]
struct ObserverState {
    shared: Arc<ServerState>,
    heartbeat: Mutex<Heartbeat>,
    /// Requests, by status in the order of [`HttpStatus::ALL`].
    http_requests: [AtomicU64; HttpStatus::ALL.len()],
    http_abandoned: AtomicU64,
}

impl Observer {
    /// Binds `address`.
    ///
    /// # Errors
    /// When the kernel does not allow it.
    pub fn bind(address: SocketAddr) -> anyhow::Result<Self> {
        let bound = TcpListener::bind(address).map_err(|error| explain_refusal(address, error));
        Self::on(bound.context("metrics and health (`observe.http`)")?)
    }

    /// Goes on with a listener that is bound already.
    ///
    /// # Errors
    /// Those of the kernel.
    pub(crate) fn on(listener: TcpListener) -> anyhow::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self { listener })
    }

    /// Another descriptor of the listener.
    pub(crate) fn descriptor(&self) -> std::io::Result<OwnedFd> {
        self.listener.as_fd().try_clone_to_owned()
    }

    /// The address, with the port that was really taken.
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until the server stops.
    pub fn serve(self, shared: &Arc<ServerState>) {
        let state = Arc::new(ObserverState {
            shared: Arc::clone(shared),
            heartbeat: Mutex::new(Heartbeat::new(&shared.shards)),
            http_requests: std::array::from_fn(|_| AtomicU64::new(0)),
            http_abandoned: AtomicU64::new(0),
        });
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Metrics(Arc::clone(&state))));
        let mut connections: Vec<HttpConnection> = Vec::new();
        // After a hand-over those who are connected get their answers; each has its deadline.
        while !shared.is_stopped() || shared.is_handed_over() && !connections.is_empty() {
            // Who has taken over answers for the service.
            let in_force = shared.settings.current();
            let ObserveParameters { http_connections, http_header_bytes, http_patience_ms, .. } =
                in_force.config.observe;
            let listens = !shared.is_handed_over() && connections.len() < http_connections;
            let patience = (!connections.is_empty()).then_some(LOOK_INTERVAL);
            let (listens, ready) = self.wait(&connections, listens, (&shared.shutdown, patience));
            let now = Instant::now();
            if listens || ready.contains(&true) {
                health::look(&mut state.heartbeat(), shared, now);
            }
            if listens {
                let deadline = now + Duration::from_millis(http_patience_ms.into());
                self.accept(&mut connections, http_connections, deadline);
            }
            let mut at = 0;
            connections.retain_mut(|connection| {
                // Those that were just accepted have often sent their request already.
                let is_ready = ready.get(at).copied().unwrap_or(true) || connection.is_late(now);
                at += 1;
                if !is_ready {
                    return true;
                }
                let step =
                    connection.step(now, http_header_bytes, |request| state.respond(request, &registry));
                if step == HttpStep::Abandoned {
                    state.http_abandoned.fetch_add(1, Ordering::Relaxed);
                }
                step == HttpStep::Open
            });
        }
    }

    /// Answers paths with `respond` until `is_over`, which is asked some times a second: while there is no server yet.
    pub(crate) fn serve_until(
        self,
        config: &ObserveParameters,
        mut is_over: impl FnMut() -> bool,
        respond: impl Fn(&str) -> HttpResponse,
    ) {
        let Ok(never) = Shutdown::new() else {
            // Nobody is answered for want of a descriptor.
            while !is_over() {
                std::thread::sleep(LOOK_INTERVAL);
            }
            return;
        };
        let mut connections: Vec<HttpConnection> = Vec::new();
        while !is_over() {
            let listens = connections.len() < config.http_connections;
            let (listens, _) = self.wait(&connections, listens, (&never, Some(LOOK_INTERVAL)));
            let now = Instant::now();
            if listens {
                let deadline = now + Duration::from_millis(config.http_patience_ms.into());
                self.accept(&mut connections, config.http_connections, deadline);
            }
            connections.retain_mut(|connection| {
                let answer = |request: Result<HttpRequest<'_>, BadRequest>| match request {
                    Ok(request) => respond(request.path),
                    Err(bad) => HttpResponse::text(bad.status(), bad.status().text()),
                };
                connection.step(now, config.http_header_bytes, answer) == HttpStep::Open
            });
        }
    }

    /// Waits for something to do: whether somebody wants to connect, and which connections are ready.
    fn wait(
        &self,
        connections: &[HttpConnection],
        listens: bool,
        (shutdown, patience): (&Shutdown, Option<Duration>),
    ) -> (bool, Vec<bool>) {
        let mut fds: Vec<PollFd<'_>> =
            connections.iter().map(|one| PollFd::new(one.stream(), one.waits_for())).collect();
        if listens {
            fds.push(PollFd::new(&self.listener, PollFlags::IN));
        }
        shutdown.poll(&mut fds, patience);
        let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let listens = fds.len() > connections.len() && is_ready(&fds[connections.len()]);
        (listens, fds[..connections.len()].iter().map(is_ready).collect())
    }

    /// Accepts who waits, as long as there is room.
    fn accept(&self, connections: &mut Vec<HttpConnection>, connections_max: usize, deadline: Instant) {
        while connections.len() < connections_max {
            match self.listener.accept() {
                Ok((stream, _)) => connections.extend(HttpConnection::new(stream, deadline)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => {
                    // Out of file descriptors, perhaps: not to be asked again at once.
                    std::thread::sleep(Duration::from_millis(10));
                    return;
                }
            }
        }
    }
}

impl ObserverState {
    fn heartbeat(&self) -> MutexGuard<'_, Heartbeat> {
        self.heartbeat.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long a worker may not turn.
    fn stalled_after(&self) -> Duration {
        Duration::from_millis(self.shared.settings.current().config.observe.stalled_after_ms.into())
    }

    fn respond(&self, request: Result<HttpRequest<'_>, BadRequest>, registry: &Registry) -> HttpResponse {
        let response = match request {
            Ok(request) => self.answer(request.path, registry),
            Err(bad) => HttpResponse::text(bad.status(), bad.status().text()),
        };
        self.http_requests[response.status as usize].fetch_add(1, Ordering::Relaxed);
        response
    }

    fn answer(&self, path: &str, registry: &Registry) -> HttpResponse {
        let health =
            |ask: fn(&ServerState, &Heartbeat, Instant, Duration) -> health::HealthProblems| match ask(
                &self.shared,
                &self.heartbeat(),
                Instant::now(),
                self.stalled_after(),
            ) {
                ills if ills.is_empty() => HttpResponse::text(HttpStatus::Ok, "ok"),
                ills => HttpResponse::text(HttpStatus::Unavailable, ills.join("\n")),
            };
        match path {
            "/healthz" => health(health::liveness),
            "/readyz" => health(health::readiness),
            "/metrics" => {
                let mut body = String::new();
                match prometheus_client::encoding::text::encode(&mut body, registry) {
                    Ok(()) => {
                        HttpResponse { status: HttpStatus::Ok, content_type: metrics::CONTENT_TYPE, body }
                    }
                    Err(error) => HttpResponse::text(HttpStatus::Unavailable, error.to_string()),
                }
            }
            _ => HttpResponse::text(HttpStatus::NotFound, "there are /metrics, /healthz and /readyz"),
        }
    }
}

#[cfg(test)]
mod tests;
