//! Starts all parts of the process and stops them.

use crate::acme;
use crate::administration::AdministrationService;
use crate::config::Config;
use crate::counters::GatewayCounters;
use crate::places::{BodyBytes, SourcePlaces};
use crate::proxy::rules::ProxyRules;
use crate::rate_limit::RequestRates;
use crate::record::service_facts;
use crate::registration::Registrations;
use crate::request_log::{RequestLog, RequestLogEntry};
use crate::sessions::HttpSessions;
use crate::set::MappedSet;
use crate::settings::{GatewayHooks, GatewaySettings};
use crate::tls::TlsIdentity;
use crate::upstream::Upstream;
use crate::worker;
use anyhow::{Context as _, anyhow, ensure};
use arc_swap::ArcSwap;
use handle_daemon::clock::now_unix_ms;
use handle_daemon::control::ControlSocket;
use handle_daemon::privileges::become_user;
use handle_daemon::publication;
use handle_daemon::scrape::ScrapeEndpoint;
use handle_daemon::settings::SettingSection as _;
use handle_daemon::shutdown::Shutdown;
use handle_daemon::site::SiteRecord;
use handle_resolver::ServiceFacts;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// State shared by all parts.
#[derive(Debug)]
pub struct GatewayState {
    /// The set that is mapped here.
    pub set: Option<MappedSet>,
    /// The site record.
    pub site: Option<SiteRecord>,
    /// The Handle System.
    pub upstream: Option<Upstream>,
    /// The rules of the proxy.
    pub rules: ArcSwap<ProxyRules>,
    /// The settings in force.
    pub settings: GatewaySettings,
    /// Counters.
    pub counters: GatewayCounters,
    /// Open connections by source.
    pub connections: Arc<SourcePlaces>,
    /// Bodies of requests that are being received or answered.
    pub bodies: BodyBytes,
    /// The administration service.
    pub admin: Option<AdministrationService>,
    /// Sessions of callers.
    pub sessions: HttpSessions,
    /// Requests for prefixes.
    pub registrations: Option<Registrations>,
    /// The certificate of this process.
    pub tls: Option<TlsIdentity>,
    /// Rates of requests by source.
    pub rates: RequestRates,
    /// The log of requests.
    pub request_log: RequestLog,
    /// Number of workers.
    pub workers_count: usize,
    running: AtomicUsize,
    is_draining: AtomicBool,
    stop: watch::Sender<bool>,
    shutdown: Arc<Shutdown>,
    started_unix_ms: u64,
}

impl GatewayState {
    /// What the resolver needs to know about this server.
    #[must_use]
    pub fn service(&self) -> ServiceFacts<'_> {
        service_facts(self.site.as_ref())
    }

    /// Stops accepting connections, and ends those whose requests are answered.
    pub fn drain(&self) {
        // First, because who is woken by the other looks at it.
        self.is_draining.store(true, Ordering::Release);
        self.stop.send_replace(true);
        self.shutdown.drain();
    }

    /// Whether the process has been told to stop.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Acquire)
    }

    /// Becomes true when the process has been told to stop.
    #[must_use]
    pub fn stopping(&self) -> watch::Receiver<bool> {
        self.stop.subscribe()
    }

    /// Number of workers that are running.
    #[must_use]
    pub fn running(&self) -> usize {
        self.running.load(Ordering::Acquire)
    }

    /// The expiry of the TLS certificate in use, in seconds since 1970; 0 without a certificate.
    #[must_use]
    pub fn certificate_expires_unix_s(&self) -> u64 {
        let facts = self.tls.as_ref().and_then(TlsIdentity::facts);
        facts.map_or(0, |facts| facts.expires_unix_s)
    }

    /// The start time, in milliseconds since 1970.
    #[must_use]
    pub const fn started_unix_ms(&self) -> u64 {
        self.started_unix_ms
    }
}

/// A running gateway. Dropping it stops it.
#[derive(Debug)]
pub struct Gateway {
    state: Arc<GatewayState>,
    addresses: Vec<SocketAddr>,
    http: Option<SocketAddr>,
    workers: Vec<JoinHandle<()>>,
    helpers: Vec<JoinHandle<()>>,
}

/// Everything that a configuration names and that needs no port.
#[derive(Debug)]
pub struct GatewaySources {
    /// The set.
    pub set: Option<MappedSet>,
    /// The site record.
    pub site: Option<SiteRecord>,
    /// The Handle System.
    pub upstream: Option<Upstream>,
    /// The administration service.
    pub admin: Option<AdministrationService>,
    /// The certificate.
    pub tls: Option<TlsIdentity>,
    /// The rules of the proxy.
    pub rules: ProxyRules,
}

impl GatewaySources {
    /// Opens everything that `config` names.
    ///
    /// # Errors
    /// One sentence with the likely cause.
    pub fn open(config: &Config) -> anyhow::Result<Self> {
        ensure!(
            config.snapshot.is_some() || config.upstream.is_configured(),
            "nothing to answer from: set `snapshot` or pass --snapshot DIRECTORY, or set `upstream.root`"
        );
        let open =
            |directory: &PathBuf| MappedSet::open(directory, config.verify_new_layers, &config.publishers);
        let set = config.snapshot.as_ref().map(open).transpose()?;
        let read = |path: &PathBuf| SiteRecord::read(path, config.server_id);
        let site = config.site.as_ref().map(read).transpose()?;
        let admin = AdministrationService::open(&config.admin, site.as_ref())?;
        let tls = TlsIdentity::open(&config.tls, config.http2.enabled)?;
        let rules = ProxyRules::open(config)?;
        Ok(Self { set, site, upstream: Upstream::open(&config.upstream)?, admin, tls, rules })
    }
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
        let mut listeners: Vec<Vec<TcpListener>> = (0..workers_count).map(|_| Vec::new()).collect();
        let mut addresses = Vec::new();
        for &address in &config.listen {
            let bound = worker::bind(address, workers_count, config.limits.backlog)?;
            addresses.extend(bound.first().map(TcpListener::local_addr).transpose()?);
            listeners.iter_mut().zip(bound).for_each(|(of_worker, listener)| of_worker.push(listener));
        }
        let scrapes = config.observe.http.map(ScrapeEndpoint::bind).transpose()?;
        if let Some(user) = &config.user {
            become_user(user)?;
        }
        let GatewaySources { set, site, upstream, admin, tls, rules } = GatewaySources::open(config)?;
        // Not among the sources, because only one process may use it.
        let registrations = Registrations::open(&config.registration)?;
        let bind_control = |path| ControlSocket::bind(path, false, "handle-gateway");
        let control = config.control.as_deref().map(bind_control).transpose()?;
        let http = scrapes.as_ref().map(ScrapeEndpoint::address).transpose()?;
        let state = Arc::new(GatewayState {
            set,
            site,
            upstream,
            rules: ArcSwap::from_pointee(rules),
            counters: GatewayCounters::default(),
            connections: Arc::new(SourcePlaces::default()),
            bodies: BodyBytes::default(),
            admin,
            sessions: HttpSessions::default(),
            registrations,
            tls,
            settings: GatewaySettings::new(config.clone(), hooks),
            rates: RequestRates::new(config.request_rate.sources),
            request_log: RequestLog::new(&config.request_log),
            workers_count,
            running: AtomicUsize::new(0),
            is_draining: AtomicBool::new(false),
            stop: watch::Sender::new(false),
            shutdown: Arc::new(Shutdown::new().context("cannot create the shutdown signal")?),
            started_unix_ms: now_unix_ms(),
        });
        let mut gateway = Self { state, addresses, http, workers: Vec::new(), helpers: Vec::new() };
        for (at, listeners) in listeners.into_iter().enumerate() {
            gateway.start_worker(at, listeners)?;
        }
        gateway.start_helpers(control, scrapes)?;
        Ok(gateway)
    }

    fn start_worker(&mut self, at: usize, listeners: Vec<TcpListener>) -> anyhow::Result<()> {
        /// Counts a worker for as long as it runs.
        struct RunningWorker(Arc<GatewayState>);
        impl Drop for RunningWorker {
            fn drop(&mut self) {
                self.0.running.fetch_sub(1, Ordering::AcqRel);
            }
        }
        self.state.running.fetch_add(1, Ordering::AcqRel);
        let running = RunningWorker(Arc::clone(&self.state));
        let thread = std::thread::Builder::new().name(format!("worker-{at}")).spawn(move || {
            if let Err(error) = worker::run(&running.0, listeners) {
                tracing::error!(worker = at, "a worker has stopped: {error:#}");
            }
        });
        self.workers.push(thread.context("cannot start a worker thread")?);
        Ok(())
    }

    fn start_helpers(
        &mut self,
        control: Option<ControlSocket>,
        scrapes: Option<ScrapeEndpoint>,
    ) -> anyhow::Result<()> {
        if self.state.set.is_some() {
            let state = Arc::clone(&self.state);
            self.start_helper("watcher", move || {
                if let Some(set) = &state.set {
                    publication::follow(set, &state.shutdown);
                }
            })?;
        }
        // Opened here, so that the process does not start if the file cannot be written.
        let writer = self.state.request_log.writer()?;
        let state = Arc::clone(&self.state);
        self.start_helper("request-log", move || {
            let format = || state.settings.current().request_log.format;
            writer.run(&state.shutdown, format, RequestLogEntry::write);
        })?;
        if self.state.tls.as_ref().is_some_and(|tls| tls.acme().is_some()) {
            let state = Arc::clone(&self.state);
            self.start_helper("acme", move || acme::run(&state))?;
        }
        if let Some(control) = control {
            let state = Arc::clone(&self.state);
            self.start_helper("control", move || control.serve(&state.shutdown, &state))?;
        }
        if let Some(scrapes) = scrapes {
            let state = Arc::clone(&self.state);
            self.start_helper("observer", move || scrapes.serve(&state.shutdown, &state))?;
        }
        Ok(())
    }

    fn start_helper(&mut self, name: &str, run: impl FnOnce() + Send + 'static) -> anyhow::Result<()> {
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run);
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

    /// Whether the gateway should end: it was told to stop, or all workers have ended.
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
        self.state.drain();
        let drain_ms = self.state.settings.current().limits.drain_ms;
        let deadline = Instant::now() + Duration::from_millis(drain_ms.into()) + STOP_PATIENCE;
        let is_over = |workers: &[JoinHandle<()>]| workers.iter().all(JoinHandle::is_finished);
        while !is_over(&self.workers) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
        self.state.shutdown.stop();
        ensure!(is_over(&self.workers), "a worker did not stop in time");
        for thread in self.workers.drain(..).chain(self.helpers.drain(..)) {
            thread.join().map_err(|_| anyhow!("a thread ended with a bug; the log says where"))?;
        }
        Ok(())
    }
}

/// Time that workers get to end after their connections.
const STOP_PATIENCE: Duration = Duration::from_secs(2);

impl Drop for Gateway {
    fn drop(&mut self) {
        // The result is only available from `stop`.
        let _ = self.halt();
    }
}
