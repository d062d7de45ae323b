//! The state that all parts of the process share.

use crate::administration::AdministrationService;
use crate::answers::LOOKED_LEN;
use crate::counters::GatewayCounters;
use crate::phase::{self, CurrentPhase, GatewayPhase, PhaseReceiver};
use crate::proxy::rules::ProxyRules;
use crate::request_log::RequestLog;
use crate::sessions::HttpSessions;
use crate::set::MappedSet;
use crate::settings::GatewaySettings;
use crate::tls::TlsIdentity;
use crate::upstream::Upstream;
use arc_swap::ArcSwap;
use handle_console::registration::Registrations;
use handle_daemon::permits::SourcePermits;
use handle_daemon::secret_guesses::SecretGuesses;
use handle_daemon::shutdown::Shutdown;
use handle_daemon::site::SiteRecord;
use handle_daemon::source_rates::SourceRates;
use handle_daemon::takeover::{Handover, TakeoverServer};
use handle_proto::limit::FRAGMENTS_MAX;
use handle_resolver::ServiceFacts;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// State shared by all parts.
#[derive(Debug)]
pub struct GatewayState {
    /// What reads need.
    pub reading: ReadingState,
    /// What changes need.
    pub writing: WritingState,
    /// What starting and stopping need.
    pub process: ProcessState,
    /// The settings in force.
    pub settings: GatewaySettings,
    /// Counters.
    pub counters: GatewayCounters,
    /// Open connections by source.
    pub connections: SourcePermits,
    /// Bodies with many changes that are being read.
    pub readers: SourcePermits,
    /// Bodies of requests that are being received or answered.
    pub bodies: SourcePermits,
    /// Answers that their clients have not taken, and requests under way.
    pub answers: SourcePermits,
    /// The certificate of this process.
    pub tls: Option<TlsIdentity>,
    /// Rates of requests by source.
    pub rates: SourceRates,
    /// Processor time of requests for many names, by source.
    pub bulk_time: SourceRates,
    /// Wrong secret keys by source.
    pub secret_guesses: SecretGuesses,
    /// The log of requests.
    pub request_log: RequestLog,
}

/// What answers are made from.
#[derive(Debug)]
pub struct ReadingState {
    /// The set that is mapped here.
    pub set: Option<MappedSet>,
    /// The site record.
    pub site: Option<SiteRecord>,
    /// The Handle System.
    pub upstream: Option<Upstream>,
    /// The rules of the proxy.
    pub rules: ArcSwap<ProxyRules>,
}

/// How changes reach `handle-admin`, and who makes them.
#[derive(Debug)]
pub struct WritingState {
    /// The administration service.
    pub admin: Option<AdministrationService>,
    /// Sessions of callers.
    pub sessions: HttpSessions,
    /// Requests for prefixes.
    pub registrations: Option<Registrations>,
    /// Results of changes that their callers have not taken.
    pub results: SourcePermits,
    /// The addresses at which clients may show certificates.
    pub certificate_addresses: Vec<SocketAddr>,
}

/// The process: its workers, its phase, and its listeners.
#[derive(Debug)]
pub struct ProcessState {
    /// Number of workers.
    pub workers_count: usize,
    /// The listeners, which a successor process can take over.
    pub(crate) handover: Handover,
    pub(crate) running: AtomicUsize,
    pub(crate) phase: CurrentPhase,
    pub(crate) shutdown: Arc<Shutdown>,
    pub(crate) started_unix_ms: u64,
}

impl ReadingState {
    /// What the resolver needs to know about this server.
    #[must_use]
    pub fn service(&self) -> ServiceFacts<'_> {
        service_facts(self.site.as_ref())
    }
}

/// Time for connections to finish.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DrainTimes {
    /// When the process is asked to stop.
    pub(crate) stopped: Duration,
    /// After a takeover.
    pub(crate) handed_over: Duration,
}

impl GatewayState {
    /// Stops accepting connections, and ends those whose requests are answered.
    pub fn drain(&self) {
        self.process.phase.advance(GatewayPhase::Stopping);
        self.process.shutdown.drain();
    }

    /// Whether there is capacity for an answer of `len` bytes or more to `source`; making a short
    /// one costs less than the look.
    #[must_use]
    pub fn has_capacity_for(&self, source: IpAddr, len: usize) -> bool {
        let limits = || self.settings.current().limits.answers().bytes;
        len < LOOKED_LEN || self.answers.has_capacity(source, len, limits())
    }

    /// Whether the process accepts no more connections.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.has_reached(GatewayPhase::HandedOver)
    }

    /// Whether this process drains because another process has taken over.
    #[must_use]
    pub fn is_handed_over(&self) -> bool {
        self.process.handover.is_done()
    }

    /// Time for connections to finish.
    pub(crate) fn drain_times(&self) -> DrainTimes {
        let limits = &self.settings.current().limits;
        DrainTimes { stopped: limits.drain_time(), handed_over: limits.takeover_drain_time() }
    }

    /// Waits, while the process drains, for as long as connections may take to finish. A process
    /// that is asked to stop after a takeover waits as when it is told so before.
    pub async fn drain_time_over(&self) {
        let DrainTimes { stopped, handed_over } = self.drain_times();
        let stopping = phase::reached(self.phase(), GatewayPhase::Stopping);
        if tokio::time::timeout(handed_over, stopping).await.is_ok() {
            tokio::time::sleep(stopped).await;
        }
    }

    /// Whether the process has reached `phase`.
    #[must_use]
    pub fn has_reached(&self, phase: GatewayPhase) -> bool {
        self.process.phase.has_reached(phase)
    }

    /// Notifies a task which phase the process has reached.
    #[must_use]
    pub fn phase(&self) -> PhaseReceiver {
        self.process.phase.subscribe()
    }

    /// Number of workers that are running.
    #[must_use]
    pub fn running(&self) -> usize {
        self.process.running.load(Ordering::Acquire)
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
        self.process.started_unix_ms
    }
}

impl TakeoverServer for GatewayState {
    fn handover(&self) -> &Handover {
        &self.process.handover
    }

    fn is_draining(&self) -> bool {
        self.is_draining()
    }

    fn drain(&self) {
        if let Some(registrations) = &self.writing.registrations {
            registrations.store.unlock();
        }
        self.process.phase.advance(GatewayPhase::HandedOver);
        self.process.shutdown.drain();
    }
}

/// The facts of this server, from its site record.
#[must_use]
pub(crate) fn service_facts(site: Option<&SiteRecord>) -> ServiceFacts<'_> {
    let alone = ServiceFacts { answer_datagrams_max: FRAGMENTS_MAX, ..ServiceFacts::ALONE };
    match site {
        Some(site) => ServiceFacts {
            site: site.as_bytes(),
            site_serial: site.view().serial,
            primary: site.is_primary(),
            hash_option: site.hash_option(),
            servers_count: site.servers_count(),
            server_at: site.server_at(),
            ..alone
        },
        None => alone,
    }
}
