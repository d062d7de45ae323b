//! The state of the running process, which its control socket and its scrape endpoint report.

use crate::config::Config;
use crate::connections::AdminConnections;
use crate::disk::DiskWatch;
use crate::health::Health;
use crate::mirror::Mirror;
use crate::publish::{NoticeState, StorePublisher};
use crate::pull::Pulls;
use crate::service::{AdminService, BulkCaller, ChallengeSharing};
use crate::settings::{self, AdminSettings, ReloadTargets};
use handle_daemon::clock::now_unix_ms;
use handle_daemon::shutdown::Shutdown;
use handle_daemon::takeover::{Handover, IdleConnections, TakeoverServer};
use handle_source::RecordSources;
use serde_json::Value;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// The state of the process. The parts below it get only what they need of it.
#[derive(Debug)]
pub struct AdminState {
    /// Answers requests.
    pub service: Arc<AdminService>,
    /// The table of connections.
    pub connections: Arc<AdminConnections>,
    /// The health of the store.
    pub health: Health,
    /// Free space on the disks.
    pub disks: DiskWatch,
    /// Publishes changes to resolvers, if a directory for that is configured.
    pub publisher: Option<StorePublisher>,
    /// Follows primaries, if this is a mirror.
    pub mirror: Option<Mirror>,
    /// Copies sources into the store.
    pub pulls: Pulls,
    /// The machines that wait for notices.
    pub notices: NoticeState,
    /// The settings in force.
    pub settings: AdminSettings,
    /// Held while the store is being moved.
    pub moving: Mutex<()>,
    /// Held while the published set is compared with the primaries.
    pub comparing: Mutex<()>,
    /// The connections to the local socket without a request, if there is a local socket.
    pub(crate) local_idle: Option<Arc<IdleConnections>>,
    /// The connections for bulk changes that another process continues, with their callers.
    left_callers: Mutex<Vec<(OwnedFd, Vec<u8>)>>,
    stop: watch::Sender<bool>,
    /// Whether another process continues.
    is_leaving: AtomicBool,
    shutdown: Arc<Shutdown>,
    started_unix_ms: u64,
}

impl AdminState {
    /// The state of a process that starts now. Draining tells `shutdown` too.
    pub(crate) fn new(
        service: AdminService,
        publisher: Option<StorePublisher>,
        mirror: Option<Mirror>,
        pulls: Pulls,
        settings: AdminSettings,
        shutdown: Arc<Shutdown>,
    ) -> Self {
        let (service, config) = (Arc::new(service), settings.current());
        let stop = watch::Sender::new(false);
        let connections = AdminConnections::new(Arc::clone(&service), &config.tcp, stop.subscribe());
        Self {
            service,
            connections: Arc::new(connections),
            health: Health::new(Duration::from_millis(config.observe.probe_every_ms.into())),
            disks: DiskWatch::default(),
            publisher,
            mirror,
            pulls,
            notices: NoticeState::default(),
            settings,
            moving: Mutex::new(()),
            comparing: Mutex::new(()),
            local_idle: None,
            left_callers: Mutex::default(),
            stop,
            is_leaving: AtomicBool::new(false),
            shutdown,
            started_unix_ms: now_unix_ms(),
        }
    }

    /// The configuration in force.
    #[must_use]
    pub fn config(&self) -> Arc<Config> {
        self.settings.current()
    }

    /// Reads the configuration again, and reports the result.
    pub fn reload(&self) -> Value {
        let (service, connections) = (&*self.service, &*self.connections);
        let publisher = self.publisher.as_ref();
        settings::reload(&self.settings, &ReloadTargets { service, connections, publisher })
    }

    /// Starts draining: the server stops accepting work and comes to an end.
    pub fn drain(&self) {
        // Clients are refused from now on.
        if !self.is_leaving() {
            drop(self.settings.succession().handover.withdraw());
        }
        self.begin_drain();
    }

    /// Whether the server comes to an end because another process continues.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.is_leaving.load(Ordering::Acquire)
    }

    /// Leaves the connection of a caller, between two frames, to the process that continues, if one
    /// does.
    pub(crate) fn leave_caller(&self, connection: OwnedFd, caller: &BulkCaller) {
        if self.is_leaving() {
            self.left_callers
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push((connection, caller.encode()));
        }
    }

    /// Takes the connections that are left.
    pub(crate) fn take_left_callers(&self) -> Vec<(OwnedFd, Vec<u8>)> {
        std::mem::take(&mut self.left_callers.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn begin_drain(&self) {
        self.stop.send_replace(true);
        self.mirror.iter().for_each(Mirror::stop);
        self.service.decision.sources().into_iter().for_each(RecordSources::stop_pulls);
        self.shutdown.drain();
        self.service.proof.sharing().into_iter().for_each(ChallengeSharing::note_draining);
    }

    /// The shutdown of the process, which [`drain`](Self::drain) begins.
    #[must_use]
    pub fn shutdown(&self) -> &Shutdown {
        &self.shutdown
    }

    /// Whether the server has been asked to stop.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        *self.stop.borrow()
    }

    /// Completes when the server has been asked to stop.
    #[must_use]
    pub fn stopping(&self) -> watch::Receiver<bool> {
        self.stop.subscribe()
    }

    /// The start time, in milliseconds since 1970.
    #[must_use]
    pub const fn started_unix_ms(&self) -> u64 {
        self.started_unix_ms
    }
}

impl TakeoverServer for AdminState {
    fn handover(&self) -> &Handover {
        &self.settings.succession().handover
    }

    fn is_draining(&self) -> bool {
        self.is_draining()
    }

    /// Starts draining. Listening sockets and idle connections stay for the process that continues.
    fn drain(&self) {
        self.is_leaving.store(true, Ordering::Release);
        self.connections.idle().collect();
        self.local_idle.iter().for_each(|idle| idle.collect());
        self.begin_drain();
    }
}
