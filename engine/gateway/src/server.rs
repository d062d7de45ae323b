//! Starts all parts of the process and stops them.

use crate::acme;
use crate::config::Config;
use crate::counters::GatewayCounters;
use crate::inputs::GatewaySources;
use crate::listeners::{ListenerKind, WorkerListener, WorkerListeners};
use crate::phase::{CurrentPhase, GatewayPhase};
use crate::request_log::{RequestLog, RequestLogEntry};
use crate::sessions::HttpSessions;
use crate::settings::{GatewayHooks, GatewaySettings};
use crate::state::{DrainTimes, GatewayState, ProcessState, ReadingState, WritingState};
use crate::worker::Worker;
use anyhow::{Context as _, anyhow, ensure};
use arc_swap::ArcSwap;
use handle_console::registration::Registrations;
use handle_daemon::clock::now_unix_ms;
use handle_daemon::control::ControlSocket;
use handle_daemon::permits::SourcePermits;
use handle_daemon::privileges::become_user;
use handle_daemon::publication;
use handle_daemon::scrape::ScrapeEndpoint;
use handle_daemon::secret_guesses::SecretGuesses;
use handle_daemon::settings::SettingSection as _;
use handle_daemon::shutdown::Shutdown;
use handle_daemon::source_rates::SourceRates;
use handle_daemon::takeover::{Handover, Predecessor, SocketAnnouncement, SocketKind};
use handle_daemon::threads;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The name of the program.
const PROGRAM: &str = "handle-gateway";

/// Sources of requests for many names whose processor time is counted.
const BULK_SOURCES: usize = 4096;

/// A running gateway. Dropping it stops it.
#[derive(Debug)]
pub struct Gateway {
    state: Arc<GatewayState>,
    addresses: Vec<SocketAddr>,
    http: Option<SocketAddr>,
    workers: Vec<JoinHandle<()>>,
    helpers: Vec<JoinHandle<()>>,
}

impl Gateway {
    /// Starts to serve. When this function returns, every worker accepts connections.
    ///
    /// # Errors
    /// One sentence with the likely cause: the set, the site record, an address or the control
    /// socket.
    pub fn start(config: &Config) -> anyhow::Result<Self> {
        Self::start_with(config, GatewayHooks::default())
    }

    /// Like [`start`](Self::start), for a program that can reload its configuration.
    ///
    /// # Errors
    /// As for `start`.
    pub fn start_with(config: &Config, hooks: GatewayHooks) -> anyhow::Result<Self> {
        config.check()?;
        let workers_count = match config.workers {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            count => count,
        };
        let mut predecessor = match &config.control {
            Some(control) if config.take_over => Predecessor::meet(control, PROGRAM)?,
            _ => None,
        };
        let listeners = WorkerListeners::open(config, workers_count, predecessor.as_mut())?;
        let scrapes = ScrapeEndpoint::open(config.observe.http, predecessor.as_mut())?;
        if let Some(user) = &config.user {
            become_user(user)?;
        }
        let GatewaySources { set, site, upstream, admin, tls, rules } = GatewaySources::open(config)?;
        // Not among the sources, because only one process may use it.
        let registrations = Registrations::open(&config.registration, predecessor.is_some())?;
        let bind_control = |path| ControlSocket::bind(path, predecessor.is_some(), PROGRAM);
        let control = config.control.as_deref().map(bind_control).transpose()?;
        let http = scrapes.as_ref().map(ScrapeEndpoint::address).transpose()?;
        let state = Arc::new(GatewayState {
            reading: ReadingState { set, site, upstream, rules: ArcSwap::from_pointee(rules) },
            writing: WritingState {
                admin,
                sessions: HttpSessions::default(),
                registrations,
                results: SourcePermits::default(),
                certificate_addresses: listeners.addresses(ListenerKind::Certificates),
            },
            process: ProcessState {
                workers_count,
                handover: Handover::new(PROGRAM, |_| Ok(())),
                running: AtomicUsize::new(0),
                phase: CurrentPhase::default(),
                shutdown: Arc::new(Shutdown::new().context("cannot create the shutdown signal")?),
                started_unix_ms: now_unix_ms(),
            },
            counters: GatewayCounters::default(),
            connections: SourcePermits::default(),
            readers: SourcePermits::default(),
            bodies: SourcePermits::default(),
            answers: SourcePermits::default(),
            tls,
            settings: GatewaySettings::new(config.clone(), hooks),
            rates: SourceRates::new(config.request_rate.sources),
            bulk_time: SourceRates::new(BULK_SOURCES),
            secret_guesses: SecretGuesses::new(config.secret_guesses.entries),
            request_log: RequestLog::new(&config.request_log),
        });
        let addresses = listeners.addresses(ListenerKind::Plain);
        let mut gateway = Self { state, addresses, http, workers: Vec::new(), helpers: Vec::new() };
        gateway.hold(&listeners, scrapes.as_ref())?;
        for (at, listeners) in listeners.into_workers().into_iter().enumerate() {
            gateway.start_worker(at, listeners)?;
        }
        gateway.start_helpers(scrapes)?;
        if let Some(predecessor) = predecessor {
            // Until this succeeds, the old process serves, and this one has accepted no connection.
            predecessor.dismiss()?;
            gateway.take_registrations();
        }
        gateway.state.process.phase.advance(GatewayPhase::Serving);
        gateway.start_control(control)?;
        Ok(gateway)
    }

    /// Takes the directory of requests for prefixes, which the old process gives up: at once, or
    /// when a reviewer who is deciding has done so.
    fn take_registrations(&mut self) {
        let Some(registrations) = &self.state.writing.registrations else { return };
        if registrations.try_lock() {
            return;
        }
        tracing::info!("waiting for the old process to complete a decision about a request for a prefix");
        let state = Arc::clone(&self.state);
        let wait = move || {
            if let Some(registrations) = &state.writing.registrations {
                registrations.wait_for_lock(&state.process.shutdown);
            }
        };
        if let Err(error) = self.start_helper("registrations", wait) {
            tracing::error!("requests for prefixes are not stored: {error:#}");
        }
    }

    /// Registers the listeners for a process that takes over.
    fn hold(&self, listeners: &WorkerListeners, scrapes: Option<&ScrapeEndpoint>) -> anyhow::Result<()> {
        for (worker, listener) in listeners.distinct() {
            let announced = SocketAnnouncement { kind: SocketKind::Tcp, address: listener.local_addr()? };
            self.state.process.handover.hold(Some(worker), announced, listener.try_clone()?.into());
        }
        if let Some(scrapes) = scrapes {
            let announced = SocketAnnouncement { kind: SocketKind::Http, address: scrapes.address()? };
            self.state.process.handover.hold(None, announced, scrapes.descriptor()?);
        }
        Ok(())
    }

    fn start_control(&mut self, control: Option<ControlSocket>) -> anyhow::Result<()> {
        let Some(mut control) = control else { return Ok(()) };
        if let Err(error) = control.move_into_place() {
            // No other process serves any more, so this error does not end the process.
            tracing::error!("{:#}", anyhow::Error::new(error));
        }
        let state = Arc::clone(&self.state);
        self.start_helper("control", move || control.serve(&state.process.shutdown, &state))
    }

    fn start_worker(&mut self, at: usize, listeners: Vec<WorkerListener>) -> anyhow::Result<()> {
        /// Counts a worker for as long as it runs.
        struct RunningWorker(Arc<GatewayState>, usize);
        impl Drop for RunningWorker {
            fn drop(&mut self) {
                self.0.process.handover.release(self.1);
                self.0.process.running.fetch_sub(1, Ordering::AcqRel);
            }
        }
        let worker = Worker::new(&self.state, listeners)?;
        self.state.process.running.fetch_add(1, Ordering::AcqRel);
        let running = RunningWorker(Arc::clone(&self.state), at);
        let thread = threads::spawn(format!("worker-{at}"), move || worker.run(&running.0));
        self.workers.push(thread.context("cannot start a worker thread")?);
        Ok(())
    }

    fn start_helpers(&mut self, scrapes: Option<ScrapeEndpoint>) -> anyhow::Result<()> {
        if self.state.reading.set.is_some() {
            let state = Arc::clone(&self.state);
            self.start_helper("watcher", move || {
                if let Some(set) = &state.reading.set {
                    publication::follow(set, &state.process.shutdown);
                }
            })?;
        }
        // Opened here, so that the process does not start if the file cannot be written.
        let writer = self.state.request_log.writer()?;
        let state = Arc::clone(&self.state);
        self.start_helper("request-log", move || {
            let format = || state.settings.current().request_log.format;
            writer.run(&state.process.shutdown, format, RequestLogEntry::write);
        })?;
        if self.state.tls.as_ref().is_some_and(|tls| tls.acme().is_some()) {
            let state = Arc::clone(&self.state);
            self.start_helper("acme", move || acme::run(&state))?;
        }
        if let Some(scrapes) = scrapes {
            let state = Arc::clone(&self.state);
            self.start_helper("observer", move || scrapes.serve(&state.process.shutdown, &state))?;
        }
        Ok(())
    }

    fn start_helper(&mut self, name: &str, run: impl FnOnce() + Send + 'static) -> anyhow::Result<()> {
        let thread = threads::spawn(name, run);
        self.helpers.push(thread.with_context(|| format!("cannot start the thread {name}"))?);
        Ok(())
    }

    /// The addresses on which it answers, with the ports that were actually bound.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The address of the scrape endpoint.
    #[must_use]
    pub const fn http_address(&self) -> Option<SocketAddr> {
        self.http
    }

    /// State shared by all parts.
    #[must_use]
    pub const fn state(&self) -> &Arc<GatewayState> {
        &self.state
    }

    /// Whether the gateway should end: it was asked to stop, or all workers have ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.state.is_draining() || self.state.running() == 0
    }

    /// Drains and then stops. Workers that do not end in time are abandoned.
    ///
    /// # Errors
    /// When a worker was abandoned or panicked.
    pub fn stop(mut self) -> anyhow::Result<()> {
        self.halt()
    }

    fn halt(&mut self) -> anyhow::Result<()> {
        if !self.state.is_draining() {
            self.state.drain();
        }
        let DrainTimes { stopped, handed_over } = self.state.drain_times();
        let drain_time = if self.state.is_handed_over() { handed_over + stopped } else { stopped };
        let deadline = Instant::now() + drain_time + STOP_TIMEOUT;
        let is_over = |workers: &[JoinHandle<()>]| workers.iter().all(JoinHandle::is_finished);
        while !is_over(&self.workers) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
        self.state.process.shutdown.stop();
        ensure!(is_over(&self.workers), "a worker did not stop in time");
        for thread in self.workers.drain(..).chain(self.helpers.drain(..)) {
            thread.join().map_err(|_| anyhow!("a thread ended with a bug; the log says where"))?;
        }
        Ok(())
    }
}

/// Time that workers get to end after their connections.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

impl Drop for Gateway {
    fn drop(&mut self) {
        // The result is only available from `stop`.
        let _ = self.halt();
    }
}
