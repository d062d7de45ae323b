//! Starts and stops the parts of the process.

use crate::audit::Audit;
use crate::config::Config;
use crate::connections::{AdminConnections, serve};
use crate::costly::CostlyWork;
use crate::disk::DiskWatch;
use crate::forward::ForwardSocket;
use crate::health::Health;
use crate::operation::OperationRules;
use crate::publish::{PublishError, StorePublisher};
use crate::referral::ReferralResolver;
use crate::remote::RemoteServices;
use crate::service::reply::ReplySealer;
use crate::service::{ActiveRules, AdminService};
use crate::settings::{AdminHooks, AdminSettings};
use crate::store::Store;
use anyhow::Context as _;
use handle_auth::PrivateKey;
use handle_auth::challenges::Challenges;
use handle_auth::source::SourceList;
use handle_daemon::clock::now_unix_ms;
use handle_daemon::control::ControlSocket;
use handle_daemon::listen::ListenError;
use handle_daemon::privileges::become_user;
use handle_daemon::scrape::ScrapeEndpoint;
use handle_daemon::server_key;
use handle_daemon::sessions::SessionEndpoint;
use handle_daemon::shutdown::Shutdown;
use handle_daemon::site::{ListenerService, SiteRecord, differences};
use handle_snapshot::LoadMode;
use handle_snapshot::set::{PublishedSet, SetError, SetErrorKind};
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::sync::watch;

/// Time that connections get to finish when the server stops.
const GOODBYE_PATIENCE: Duration = Duration::from_secs(10);
/// Interval at which expired sessions are removed; expired sessions cannot be used before their
/// removal either.
const SESSIONS_EXPIRE: Duration = Duration::from_secs(60);
/// Interval at which free disk space is checked.
const DISKS_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which the transaction log is searched for old entries.
const PRUNE_INTERVAL: Duration = Duration::from_secs(600);
/// Maximum number of transactions that one commit drops from the log.
const PRUNE_COUNT: usize = 10_000;

/// A running server.
#[derive(Debug)]
pub struct Server {
    /// The first field, so that these threads end before the state they report on is dropped.
    helpers: HelperThreads,
    shared: Arc<AdminState>,
    runtime: Runtime,
    addresses: Vec<SocketAddr>,
    http: Option<SocketAddr>,
}

/// State shared by all parts.
#[derive(Debug)]
pub struct AdminState {
    /// Answers requests.
    pub service: Arc<AdminService>,
    /// The table of connections.
    pub connections: AdminConnections,
    /// The health of the store.
    pub health: Health,
    /// Free space on the disks.
    pub disks: DiskWatch,
    /// Publishes changes to resolvers, if a directory for that is configured.
    pub publisher: Option<StorePublisher>,
    /// The settings in force.
    pub settings: AdminSettings,
    stop: watch::Sender<bool>,
    shutdown: Arc<Shutdown>,
    started_unix_ms: u64,
}

impl AdminState {
    /// The configuration in force.
    #[must_use]
    pub fn config(&self) -> Arc<Config> {
        self.settings.current()
    }

    /// Starts draining: the server stops accepting work and comes to an end.
    pub fn drain(&self) {
        self.stop.send_replace(true);
        self.shutdown.drain();
    }

    /// Whether the server has been told to stop.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        *self.stop.borrow()
    }

    /// Completes when the server has been told to stop.
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

/// Reads the site record and the server key, and checks that they belong together.
///
/// # Errors
/// One sentence with the likely cause.
pub fn read_identity(config: &Config) -> anyhow::Result<(SiteRecord, Option<PrivateKey>)> {
    let site = SiteRecord::read(&config.site, config.server_id)?;
    let key = config.server_key.as_ref().map(server_key::read).transpose()?;
    if let (Some(key), Some(server)) = (&key, site.server()) {
        server_key::check_site(key, server.public_key)?;
    }
    Ok((site, key))
}

/// How `listen` differs from what the site record tells clients, in one sentence each.
#[must_use]
pub fn site_differences(config: &Config, site: &SiteRecord) -> Vec<String> {
    let differences = |server| differences(&server, &config.listen, ListenerService::Administration);
    site.server().map(differences).unwrap_or_default()
}

/// The rules by which requests are decided, from the configuration.
pub(crate) fn in_force(config: &Config, site: Arc<SiteRecord>) -> anyhow::Result<ActiveRules> {
    let rules = OperationRules {
        site,
        administrators: config.administrators()?,
        anonymous_full_access: config.anonymous_full_access,
        lists_handles: config.list_handles,
        bounds: config.bounds(),
    };
    Ok(ActiveRules { rules, effort: config.effort() })
}

impl Server {
    /// Binds the ports, switches to the configured user, opens the store and starts to answer.
    ///
    /// # Errors
    /// One sentence with the likely cause, and what to check.
    pub fn start(config: &Config) -> anyhow::Result<Self> {
        Self::start_with(config, AdminHooks::default())
    }

    /// Like [`start`](Self::start), for a program that can reload its configuration.
    ///
    /// # Errors
    /// One sentence with the likely cause, and what to check.
    pub fn start_with(config: &Config, hooks: AdminHooks) -> anyhow::Result<Self> {
        let listeners: Vec<TcpListener> = config
            .listen
            .iter()
            .map(|&address| connections_listener(address, config.tcp.backlog))
            .collect::<anyhow::Result<_>>()?;
        let scrapes = config.observe.http.map(ScrapeEndpoint::bind).transpose()?;
        if let Some(user) = &config.user {
            become_user(user)?;
        }
        let bind_control = |path| ControlSocket::bind(path, false, "handle-admin");
        let control = config.control.as_deref().map(bind_control).transpose()?;
        let (site, key) = read_identity(config)?;
        for difference in site_differences(config, &site) {
            tracing::warn!("{difference}");
        }
        let store = Arc::new(Store::open(&config.store)?);
        let publish = &config.publish;
        let publishing = match &publish.directory {
            Some(directory) => Some(
                StorePublisher::start(store.clone(), publish)
                    .map_err(|error| explain_set(directory, error))?,
            ),
            None => None,
        };
        let remote = RemoteServices::open(&config.elsewhere)?;
        let forward = config.forward.socket.as_deref().map(ForwardSocket::bind).transpose()?;
        let referrals = open_referrals(config)?;
        let in_force = in_force(config, Arc::new(site))?;
        if config.anonymous_full_access {
            tracing::warn!("`anonymous_full_access` is on: every client has full access");
        }
        let audit = Audit::open(config.audit.as_deref(), config.audit_files(), config.audit_bounds())?;
        let challenges = Challenges::new(config.challenge_limits());
        let exempt = SourceList::parse(&config.limits.exempt_sources).unwrap_or_default();
        let costly = CostlyWork::start(&config.costly, exempt)?;
        let service = AdminService::new(store, in_force, ReplySealer::new(key), challenges, audit)
            .with_costly(costly)
            .with_sessions(SessionEndpoint::new(&config.sessions))
            .with_remote(remote)
            .with_referrals(referrals);
        let mut helpers = HelperThreads::new()?;
        let shared = Arc::new(AdminState {
            service: Arc::new(service),
            connections: AdminConnections::new(&config.tcp),
            health: Health::new(Duration::from_millis(config.observe.probe_every_ms.into())),
            disks: DiskWatch::default(),
            publisher: publishing,
            settings: AdminSettings::new(config.clone(), hooks),
            stop: watch::Sender::new(false),
            shutdown: Arc::clone(&helpers.shutdown),
            started_unix_ms: now_unix_ms(),
        });
        let addresses = listeners.iter().map(TcpListener::local_addr).collect::<Result<_, _>>()?;
        let http_address = scrapes.as_ref().map(ScrapeEndpoint::address).transpose()?;
        let runtime = runtime(config)?;
        {
            let _inside = runtime.enter();
            for listener in listeners {
                let listener = tokio::net::TcpListener::from_std(listener)?;
                runtime.spawn(serve(listener, Arc::clone(&shared)));
            }
            if let Some(forward) = forward {
                forward.serve(&shared)?;
            }
            runtime.spawn(look_after_disks(Arc::clone(&shared)));
            if config.store.log_days > 0 {
                runtime.spawn(prune(Arc::clone(&shared)));
            }
            if config.sessions.enabled {
                runtime.spawn(expire_sessions(Arc::clone(&shared)));
            }
        }
        if let Some(scrapes) = scrapes {
            let (shutdown, shared) = (Arc::clone(&helpers.shutdown), Arc::clone(&shared));
            helpers.start("observer", move || scrapes.serve(&shutdown, &shared))?;
        }
        if let Some(control) = control {
            let (shutdown, shared) = (Arc::clone(&helpers.shutdown), Arc::clone(&shared));
            helpers.start("control", move || control.serve(&shutdown, &shared))?;
        }
        Ok(Self { helpers, shared, runtime, addresses, http: http_address })
    }

    /// The addresses on which the server answers.
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
    pub const fn shared(&self) -> &Arc<AdminState> {
        &self.shared
    }

    /// Whether the server should end: it was told to stop, or a part has failed.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.shared.is_draining() || self.failure().is_some()
    }

    /// The failure because of which the server should end, if there is one.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        if let Some(why) = self.shared.service.store.failure() {
            return Some(format!("the store has failed: {why}"));
        }
        let has_bug = self.shared.publisher.as_ref().is_some_and(StorePublisher::is_finished);
        has_bug.then(|| "publishing has met a bug; it was shown where it happened".to_owned())
    }

    /// Answers the requests being processed, and ends.
    pub fn stop(self) {
        self.shared.drain();
        self.runtime.block_on(self.shared.connections.none_left(GOODBYE_PATIENCE));
        drop(self.helpers);
        self.runtime.shutdown_timeout(GOODBYE_PATIENCE);
        self.shared.service.audit.summarise();
        self.shared.service.costly().into_iter().for_each(CostlyWork::close);
        if let Some(publishing) = &self.shared.publisher {
            publishing.stop();
        }
    }
}

/// The threads of the control socket and the scrape endpoint. Dropping it stops them.
#[derive(Debug)]
struct HelperThreads {
    shutdown: Arc<Shutdown>,
    threads: Vec<JoinHandle<()>>,
}

impl HelperThreads {
    fn new() -> anyhow::Result<Self> {
        let shutdown = Shutdown::new().context("cannot create the shutdown signal")?;
        Ok(Self { shutdown: Arc::new(shutdown), threads: Vec::new() })
    }

    fn start(&mut self, name: &str, run: impl FnOnce() + Send + 'static) -> anyhow::Result<()> {
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run);
        self.threads.push(thread.with_context(|| format!("cannot start the thread {name}"))?);
        Ok(())
    }
}

impl Drop for HelperThreads {
    fn drop(&mut self) {
        self.shutdown.stop();
        for thread in self.threads.drain(..) {
            // A panic has already been logged where it happened.
            let _ = thread.join();
        }
    }
}

/// Opens the resolver for clients that do not understand referrals, if it is enabled. The files for
/// asking other services are used only if other services are asked about identities.
fn open_referrals(config: &Config) -> anyhow::Result<Option<ReferralResolver>> {
    if config.forward.socket.is_none() || !config.forward.resolve_for_old {
        return Ok(None);
    }
    match ReferralResolver::open(&config.elsewhere, config.forward.resolutions) {
        Err(error) if !config.elsewhere.enabled => {
            tracing::warn!("old clients get referrals instead of resolved values: {error:#}");
            Ok(None)
        }
        opened => opened.map(Some),
    }
}

fn runtime(config: &Config) -> anyhow::Result<Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.enable_all().thread_name("admin");
    if config.threads > 0 {
        builder.worker_threads(config.threads);
    }
    // One thread for each request being processed, and a few for health and control.
    builder.max_blocking_threads(config.tcp.requests + config.forward.requests + 8);
    builder.build().context("cannot start the threads that answer")
}

fn connections_listener(address: SocketAddr, backlog: u32) -> anyhow::Result<TcpListener> {
    Ok(crate::connections::listen(address, backlog).map_err(|error| ListenError::Refused(address, error))?)
}

/// Checks that publishing can continue from the set in `directory`, if there is one.
///
/// # Errors
/// One sentence with the likely cause, and what to do.
pub fn check_set(directory: &Path) -> anyhow::Result<()> {
    match PublishedSet::open(directory, LoadMode::Map) {
        Err(error) if !matches!(error.kind, SetErrorKind::NotPublished) => {
            Err(explain_set(directory, error.into()))
        }
        Ok(_) | Err(_) => Ok(()),
    }
}

/// The error for a set in `directory` from which publishing cannot continue, with a remedy.
fn explain_set(directory: &Path, error: PublishError) -> anyhow::Error {
    let set = directory.display();
    let hint = match &error {
        PublishError::Set(SetError { kind: SetErrorKind::Locked, .. }) => {
            " (is handle-admin running already?)".to_owned()
        }
        PublishError::Set(SetError { kind: SetErrorKind::Io { error, .. }, .. })
        | PublishError::Io(error) => match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => format!(" (is there room: df -h {set})"),
            ErrorKind::PermissionDenied => format!(" (who may write there: ls -ld {set})"),
            ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::AlreadyExists => {
                format!(" (what is there: ls -la {set})")
            }
            _ => String::new(),
        },
        // Everything published comes from the store, so the set can be rebuilt. With any other
        // error, the set may be the only good copy.
        PublishError::Set(SetError {
            kind:
                SetErrorKind::Manifest(_)
                | SetErrorKind::Open(_)
                | SetErrorKind::OtherFile { .. }
                | SetErrorKind::Mixed
                | SetErrorKind::Fault(_),
            ..
        }) => format!(" (without {set}/MANIFEST, it is built again from the store: move that away)"),
        _ => String::new(),
    };
    anyhow::Error::new(error).context(format!("cannot publish to {set}{hint}"))
}

/// Removes expired sessions.
async fn expire_sessions(shared: Arc<AdminState>) {
    let mut stopping = shared.stopping();
    while tokio::time::timeout(SESSIONS_EXPIRE, stopping.wait_for(|&stops| stops)).await.is_err() {
        shared.service.sessions().into_iter().for_each(SessionEndpoint::expire);
    }
}

/// Periodically checks free disk space, and reports the lines that the audit log left out.
async fn look_after_disks(shared: Arc<AdminState>) {
    let mut stopping = shared.stopping();
    loop {
        let looked = Arc::clone(&shared);
        let looked = tokio::task::spawn_blocking(move || {
            let audit = &looked.service.audit;
            let rooms = looked.disks.look(&looked.config());
            audit.set_disk_low(rooms.iter().any(|room| room.of == "audit" && room.is_low));
            audit.summarise_if_due();
        });
        if looked.await.is_err() {
            return;
        }
        if tokio::time::timeout(DISKS_INTERVAL, stopping.wait_for(|&stops| stops)).await.is_ok() {
            return;
        }
    }
}

/// Periodically drops old transactions from the log.
async fn prune(shared: Arc<AdminState>) {
    let kept_ms = u64::from(shared.config().store.log_days) * 86_400_000;
    let mut stopping = shared.stopping();
    loop {
        let service = Arc::clone(&shared.service);
        let before = now_unix_ms().saturating_sub(kept_ms);
        let pruned = tokio::task::spawn_blocking(move || service.store.prune_log(before, PRUNE_COUNT)).await;
        let has_more = match pruned {
            Ok(Ok(count)) => count == PRUNE_COUNT,
            Ok(Err(error)) => {
                tracing::warn!(%error, "cannot remove old transactions from the log");
                false
            }
            Err(_) => return,
        };
        let pause = if has_more { Duration::from_millis(100) } else { PRUNE_INTERVAL };
        if tokio::time::timeout(pause, stopping.wait_for(|&stops| stops)).await.is_ok() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::StoreError;

    /// If it is the store that has failed, moving the set away would lose the good copy.
    #[test]
    fn a_set_is_given_up_only_where_it_is_damaged() {
        let set = |why| PublishError::Set(SetError { path: "/set/MANIFEST".into(), kind: why });
        let io = |kind: ErrorKind| set(SetErrorKind::Io { doing: "write", error: kind.into() });
        let full = || std::io::Error::from(ErrorKind::StorageFull);
        for (error, hint) in [
            (
                set(SetErrorKind::Mixed),
                "(without /set/MANIFEST, it is built again from the store: move that away)",
            ),
            (set(SetErrorKind::OtherFile { what: "length" }), "move that away)"),
            (set(SetErrorKind::Locked), "(is handle-admin running already?)"),
            (io(ErrorKind::StorageFull), "(is there room: df -h /set)"),
            (PublishError::Io(full()), "(is there room: df -h /set)"),
            (io(ErrorKind::PermissionDenied), "(who may write there: ls -ld /set)"),
            (io(ErrorKind::NotFound), "(what is there: ls -la /set)"),
            (io(ErrorKind::ReadOnlyFilesystem), ""),
            (PublishError::Io(std::io::Error::from_raw_os_error(24)), ""),
            (PublishError::Store(StoreError::Failed), ""),
            (PublishError::Store(full().into()), ""),
            (PublishError::Refused("too early"), ""),
            (PublishError::Stopped, ""),
        ] {
            let said = format!("{error:?}");
            let shown = explain_set(Path::new("/set"), error).to_string();
            let fits =
                if hint.is_empty() { shown == "cannot publish to /set" } else { shown.ends_with(hint) };
            assert!(fits, "{said}: {shown}");
        }
    }
}
