//! The state of the running process, which its control socket and its scrape endpoint report.

use crate::config::Config;
use crate::connections::AdminConnections;
use crate::disk::DiskWatch;
use crate::health::Health;
use crate::mirror::Mirror;
use crate::publish::{NoticeState, StorePublisher};
use crate::pull::Pulls;
use crate::service::{AdminService, ChallengeSharing};
use crate::settings::{self, AdminSettings, ReloadTargets};
use handle_daemon::clock::now_unix_ms;
use handle_daemon::shutdown::Shutdown;
use handle_source::RecordSources;
use serde_json::Value;
use std::sync::{Arc, Mutex};
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
    stop: watch::Sender<bool>,
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
            stop,
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
