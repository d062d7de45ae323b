//! Starts and stops the parts of the process, and leaves them to another process.

use crate::audit::{Audit, AuditTarget};
use crate::config::Config;
use crate::connections;
use crate::costly::CostlyWork;
use crate::index::keep_index;
use crate::local;
use crate::maintenance::{check_disks, expire_sessions, prune_log};
use crate::mirror::Mirror;
use crate::mirror::primary::open_all;
use crate::mirror::promote::complete_promotion;
use crate::publish::{self, StorePublisher, explain_set};
use crate::pull::Pulls;
use crate::referral::ReferralResolver;
use crate::remote::RemoteServices;
use crate::replication::{Replication, tls};
use crate::service::reply::ReplySealer;
use crate::service::{AdminService, Authenticator, ChallengeSharing, DecisionContext, SharedSessionRows};
use crate::settings::{AdminHooks, AdminSettings, active_rules};
use crate::state::AdminState;
use crate::succession::{Continuation, LeftServer, PROGRAM, PortSource};
use anyhow::Context as _;
use handle_auth::PrivateKey;
use handle_auth::challenges::Challenges;
use handle_auth::source::SourceList;
use handle_daemon::control::ControlSocket;
use handle_daemon::listen::ListenError;
use handle_daemon::notice::NoticeKey;
use handle_daemon::privileges::become_user;
use handle_daemon::scrape::ScrapeEndpoint;
use handle_daemon::server_key;
use handle_daemon::shutdown::Shutdown;
use handle_daemon::site::{ListenerService, SiteRecord, differences};
use handle_daemon::takeover::{Predecessor, SocketAnnouncement, SocketKind};
use handle_daemon::threads;
use handle_local::config::LocalRights;
use handle_local::socket::{LocalSocket, ServedConnections};
use handle_proto::Handle;
use handle_session::{SessionEndpoint, SessionRows};
use handle_source::{RecordSources, SourceKind};
use handle_store::{Store, StoreRecords as _};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// Time that connections get to finish when the server stops: requests that have arrived get their
/// answers.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for threads whose connections are closed already, when another process continues.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);
/// Time for the last request to give the store back, unless other services are asked.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Most time for other services to answer the last request: the new process waits for a minute.
const REMOTE_TIMEOUT_MAX: Duration = Duration::from_secs(30);
/// Interval at which a process that has to serve again tries to.
const AGAIN_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which the process looks whether a part has failed.
const FAILURE_INTERVAL: Duration = Duration::from_secs(1);
const CLOSE_LOOK_INTERVAL: Duration = Duration::from_millis(2);

/// A running server.
#[derive(Debug)]
pub struct Server {
    /// The first field, so that these threads end before the state they report on is dropped.
    helpers: HelperThreads,
    shared: Arc<AdminState>,
    runtime: Runtime,
    /// The connections to `local.socket`.
    local: Option<ServedConnections>,
    /// `local.socket` itself, for a process that continues.
    local_listener: Option<OwnedFd>,
    addresses: Vec<SocketAddr>,
    http: Option<SocketAddr>,
    notify: Option<SocketAddr>,
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
        let mut predecessor = match &config.control {
            Some(control) if config.take_over => Predecessor::meet(control, PROGRAM)?,
            _ => None,
        };
        let source = predecessor.as_mut().map_or(PortSource::Bound, PortSource::Predecessor);
        let ports = BoundPorts::take(config, source)?;
        let prepared = PreparedStart::new(config, ports, predecessor.is_some())?;
        let Some(mut predecessor) = predecessor else {
            let opened = open_service(config)?;
            return prepared.serve(config, hooks, opened, Continuation::default())?.listen();
        };
        // What can be wrong is found while the other process serves.
        check_before_inheriting(config)?;
        let inherited = predecessor.inherit()?.map(Continuation::from_inheritance).unwrap_or_default();
        let opened = open_left(config, &inherited)?;
        let started = prepared.serve(config, hooks, opened, inherited)?;
        predecessor.dismiss()?;
        started.listen()
    }

    /// Starts again in this process, with what another server of it has left. While a file that it
    /// needs cannot be used, clients wait, and it is tried again until `is_stopping`.
    ///
    /// # Errors
    /// As for `start`.
    pub fn start_again(
        config: &Config,
        hooks: AdminHooks,
        left: LeftServer,
        is_stopping: impl Fn() -> bool,
    ) -> anyhow::Result<Self> {
        let ports = BoundPorts::take(config, PortSource::Left(hooks.succession.handover.withdraw().into()))?;
        let mut continuation = Continuation::from_inheritance(left.inheritance);
        let prepared = PreparedStart::new(config, ports, false)?;
        let opened = open_again(config, &continuation, is_stopping)?;
        if opened.service.store.last_id() != left.last_transaction {
            // The other process has served, and used some of these proofs.
            continuation.proofs.clear();
        }
        prepared.serve(config, hooks, opened, continuation)?.listen()
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

    /// The address at which machines wait for notices.
    #[must_use]
    pub const fn notify_address(&self) -> Option<SocketAddr> {
        self.notify
    }

    /// The state of the process.
    #[must_use]
    pub const fn shared(&self) -> &Arc<AdminState> {
        &self.shared
    }

    /// Whether the server should end: it was asked to stop, or a part has failed.
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

    /// Waits until the server should end.
    pub fn wait_until_finished(&self) {
        while !self.is_finished() {
            self.shared.shutdown().poll(&mut [], Some(FAILURE_INTERVAL));
        }
    }

    /// Answers the requests being processed, and ends.
    pub fn stop(self) {
        self.shared.drain();
        let _ = self.end(false);
    }

    /// Answers the requests that have been read, and closes the store, for a process that
    /// continues.
    #[must_use]
    pub fn leave(mut self) -> LeftServer {
        let config = self.shared.config();
        let local = config.local.socket.clone().zip(self.local_listener.take());
        let shared = self.end(true);
        let last_transaction = shared.service.store.last_id();
        let continuation = Continuation {
            local,
            local_connections: shared.local_idle.iter().flat_map(|idle| idle.drain()).collect(),
            connections: shared.connections.idle().drain(),
            callers: shared.take_left_callers(),
            proofs: shared.service.proof.proofs(),
            ..Continuation::of(&config.store)
        };
        drop(shared);
        let since = Instant::now();
        let mut is_closed = Store::is_free(&config.store);
        let timeout = CLOSE_TIMEOUT.max(config.remote.wait_max().min(REMOTE_TIMEOUT_MAX));
        while !is_closed && since.elapsed() < timeout {
            std::thread::sleep(CLOSE_LOOK_INTERVAL);
            is_closed = Store::is_free(&config.store);
        }
        LeftServer { inheritance: continuation.into_inheritance(), last_transaction, is_closed }
    }

    /// Ends all threads. If another process continues, it publishes the remaining changes.
    fn end(mut self, is_continued: bool) -> Arc<AdminState> {
        self.runtime.block_on(async {
            let timeout = GOODBYE_TIMEOUT;
            tokio::join!(self.shared.connections.none_left(timeout), end_local(self.local.as_mut(), timeout));
        });
        drop(self.helpers);
        self.runtime.shutdown_timeout(if is_continued { LEAVE_TIMEOUT } else { GOODBYE_TIMEOUT });
        self.shared.service.audit.summarise();
        self.shared.service.proof.costly().into_iter().for_each(CostlyWork::close);
        if let Some(publishing) = &self.shared.publisher {
            match is_continued {
                true => publishing.leave(),
                false => publishing.stop(),
            }
        }
        self.shared
    }
}

/// A server that has its ports, and no store yet.
struct PreparedStart {
    ports: BoundPorts,
    rights: Option<LocalRights>,
    control: Option<ControlSocket>,
}

impl PreparedStart {
    /// Switches to the configured user and binds the control socket, beside that of another process
    /// if it `takes_over`.
    fn new(config: &Config, ports: BoundPorts, takes_over: bool) -> anyhow::Result<Self> {
        if let Some(user) = &config.user {
            become_user(user)?;
        }
        let rights = local::rights(config)?;
        let control = config.control.as_deref();
        let control = control.map(|path| ControlSocket::bind(path, takes_over, PROGRAM)).transpose()?;
        Ok(Self { ports, rights, control })
    }

    /// Starts to answer, with what another server has left.
    fn serve(
        self,
        config: &Config,
        hooks: AdminHooks,
        opened: OpenedService,
        continuation: Continuation,
    ) -> anyhow::Result<StartedServer> {
        let Self { mut ports, rights, control } = self;
        let OpenedService { service, publisher, mirror, pulls, notice_key } = opened;
        let mut continuation = continuation.for_store(&config.store);
        if !continuation.proofs.is_empty() && !service.proof.continue_with(&continuation.proofs) {
            tracing::warn!("callers have to authenticate again: the old process is of another version");
        }
        let socket = bind_local(config, rights, &mut continuation)?;
        let local_listener = socket.as_ref().map(LocalSocket::descriptor).transpose()?;
        let helpers = HelperThreads::new()?;
        hold(&hooks, &ports)?;
        let settings = AdminSettings::new(config.clone(), hooks);
        let shutdown = Arc::clone(&helpers.shutdown);
        let mut state = AdminState::new(service, publisher, mirror, pulls, settings, shutdown);
        state.local_idle = socket.as_ref().map(|socket| Arc::clone(socket.idle()));
        let shared = Arc::new(state);
        let notices = ports.notices.take();
        let notify = notices.as_ref().map(TcpListener::local_addr).transpose()?;
        let BoundPorts { listeners, scrapes, .. } = ports;
        let addresses = listeners.iter().map(TcpListener::local_addr).collect::<Result<_, _>>()?;
        let http = scrapes.as_ref().map(ScrapeEndpoint::address).transpose()?;
        let runtime = runtime(config)?;
        let local = {
            let _inside = runtime.enter();
            serve_notices(&shared, notices, notice_key)?;
            connections::adopt(continuation.connections, &shared.connections);
            start_tasks(&shared, listeners, socket, continuation.callers)?
        };
        let server = Server { helpers, shared, runtime, local, local_listener, addresses, http, notify };
        Ok(StartedServer { server, scrapes, control })
    }
}

/// A server that answers clients, without the threads that serve its operators.
struct StartedServer {
    server: Server,
    scrapes: Option<ScrapeEndpoint>,
    control: Option<ControlSocket>,
}

impl StartedServer {
    /// Starts the other threads.
    fn listen(self) -> anyhow::Result<Server> {
        let Self { mut server, scrapes, control } = self;
        server.local.iter().for_each(ServedConnections::own_file);
        let Server { helpers, shared, .. } = &mut server;
        if let Some(scrapes) = scrapes {
            let (shutdown, state) = (Arc::clone(&helpers.shutdown), Arc::clone(shared));
            helpers.start("observer", move || scrapes.serve(&shutdown, &state))?;
        }
        if let Some(mut control) = control {
            if let Err(error) = control.move_into_place() {
                // No other process serves any more, so this error does not end the process.
                tracing::error!("{:#}", anyhow::Error::new(error));
            }
            let (shutdown, state) = (Arc::clone(&helpers.shutdown), Arc::clone(shared));
            helpers.start("control", move || control.serve(&shutdown, &state))?;
        }
        if shared.service.proof.sharing().is_some() {
            let (shutdown, state) = (Arc::clone(&helpers.shutdown), Arc::clone(shared));
            helpers.start("challenges", move || share_challenges(&state, &shutdown))?;
        }
        for worker in shared.mirror.iter().flat_map(Mirror::take_workers) {
            let shutdown = Arc::clone(&helpers.shutdown);
            helpers.start("mirror", move || worker.run(&shutdown))?;
        }
        for listener in shared.mirror.iter().flat_map(Mirror::take_listeners) {
            let shutdown = Arc::clone(&helpers.shutdown);
            helpers.start("notices", move || listener.run(&shutdown))?;
        }
        for worker in shared.pulls.take_workers() {
            let (shutdown, state) = (Arc::clone(&helpers.shutdown), Arc::clone(shared));
            helpers.start("pull", move || worker.run(&state, &shutdown))?;
        }
        Ok(server)
    }
}

/// Checks what can be checked while another process has the store.
fn check_before_inheriting(config: &Config) -> anyhow::Result<()> {
    let (site, _) = read_identity(config)?;
    open_all(&config.mirror, &site)?;
    RemoteServices::open(&config.remote, SourceList::default())?;
    open_referrals(config, SourceList::default())?;
    drop(AuditTarget::open(config.audit.as_deref(), config.audit_files())?);
    publish::check_files(&config.publish)?;
    read_notice_key(config)?;
    // Programs would be started beside those of the other process.
    let sources = config.sources.iter().filter(|source| source.kind != SourceKind::Program);
    RecordSources::open(&sources.cloned().collect::<Vec<_>>(), true)?;
    Ok(())
}

/// Opens the store with everything that answering requests needs, with what another process has
/// left. Its store is not compared again.
fn open_left(config: &Config, left: &Continuation) -> anyhow::Result<OpenedService> {
    let mut opening = config.clone();
    opening.store.verify_at_start &= !left.is_of(&config.store);
    open_service(&opening)
}

/// Like [`open_left`], until that succeeds: the cause may be a file that an operator mends.
fn open_again(
    config: &Config,
    left: &Continuation,
    is_stopping: impl Fn() -> bool,
) -> anyhow::Result<OpenedService> {
    let mut logged = String::new();
    loop {
        let error = match open_left(config, left) {
            Err(error) if !is_stopping() => format!("{error:#}"),
            opened => return opened,
        };
        // Logged once, not for each attempt.
        if error != logged {
            tracing::error!(%error, "cannot serve again; clients wait until that is mended");
            logged = error;
        }
        std::thread::sleep(AGAIN_INTERVAL);
    }
}

/// Reads the key for notices, if machines may wait for them.
fn read_notice_key(config: &Config) -> anyhow::Result<Option<NoticeKey>> {
    let notify = &config.publish.notify;
    let file = notify.key_file.as_ref().filter(|_| notify.listen.is_some());
    file.map(|file| NoticeKey::read(file).context("`publish.notify.key_file`")).transpose()
}

/// Registers the ports for a process that takes over.
fn hold(hooks: &AdminHooks, ports: &BoundPorts) -> anyhow::Result<()> {
    let handover = &hooks.succession.handover;
    for listener in ports.listeners.iter().chain(&ports.notices) {
        let announced = SocketAnnouncement { kind: SocketKind::Tcp, address: listener.local_addr()? };
        handover.hold(None, announced, listener.try_clone()?.into());
    }
    if let Some(scrapes) = &ports.scrapes {
        let announced = SocketAnnouncement { kind: SocketKind::Http, address: scrapes.address()? };
        handover.hold(None, announced, scrapes.descriptor()?);
    }
    Ok(())
}

/// Binds the local socket, if it is configured, or continues with that of another process.
fn bind_local(
    config: &Config,
    rights: Option<LocalRights>,
    continuation: &mut Continuation,
) -> anyhow::Result<Option<LocalSocket>> {
    let (Some(path), Some(rights)) = (&config.local.socket, rights) else { return Ok(None) };
    let accepted = std::mem::take(&mut continuation.local_connections);
    let socket = match continuation.local.take() {
        Some((left, listener)) if left == *path => {
            LocalSocket::adopt(listener, accepted, path, &config.local, rights)
        }
        _ => LocalSocket::bind(path, &config.local, rights),
    };
    socket.map(Some)
}

/// Waits until the requests at the local socket have their answers.
async fn end_local(served: Option<&mut ServedConnections>, timeout: Duration) {
    if let Some(served) = served
        && !served.none_left(timeout).await
    {
        tracing::warn!("connections to `local.socket` are closed");
    }
}

/// The ports, which are bound before the process gives up its privileges.
struct BoundPorts {
    listeners: Vec<TcpListener>,
    scrapes: Option<ScrapeEndpoint>,
    notices: Option<TcpListener>,
}

impl BoundPorts {
    /// Takes the ports from `source`, and binds those that it does not have.
    fn take(config: &Config, mut source: PortSource<'_>) -> anyhow::Result<Self> {
        let mut listener = |&address| match source.take(SocketKind::Tcp, address) {
            Some(listener) => Ok(TcpListener::from(listener)),
            None => connections::listen(address, config.tcp.backlog)
                .map_err(|error| ListenError::Refused(address, error)),
        };
        let listeners = config.listen.iter().map(&mut listener).collect::<Result<_, _>>()?;
        let notices = config.publish.notify.listen.as_ref().map(&mut listener).transpose()?;
        let scrapes = |address| match source.take(SocketKind::Http, address) {
            Some(listener) => ScrapeEndpoint::on(listener.into()).map_err(anyhow::Error::from),
            None => ScrapeEndpoint::bind(address).map_err(anyhow::Error::from),
        };
        Ok(Self { listeners, scrapes: config.observe.http.map(scrapes).transpose()?, notices })
    }
}

/// What answering requests needs.
struct OpenedService {
    service: AdminService,
    publisher: Option<StorePublisher>,
    mirror: Option<Mirror>,
    pulls: Pulls,
    notice_key: Option<NoticeKey>,
}

/// Opens the store with everything that answering requests needs, and starts to publish.
fn open_service(config: &Config) -> anyhow::Result<OpenedService> {
    let (mut site, key) = read_identity(config)?;
    let notice_key = read_notice_key(config)?;
    let store = Arc::new(Store::open(&config.store)?);
    if complete_promotion(&store, &config.site)? {
        tracing::warn!("an interrupted promotion of this mirror has been completed: it is the primary");
        site = SiteRecord::read(&config.site, config.server_id)?;
    }
    for difference in site_differences(config, &site) {
        tracing::warn!("{difference}");
    }
    let mirror = Mirror::open(&config.mirror, config.publish.mirror_lease(), &store, &site)?;
    let primaries = mirror.as_ref().and_then(Mirror::primaries).map(str::to_owned);
    let start_publisher = |directory| {
        let started = StorePublisher::start(Arc::clone(&store), &config.publish);
        started.map_err(|error| explain_set(directory, error))
    };
    let publisher = config.publish.directory.as_deref().map(start_publisher).transpose()?;
    let exempt = SourceList::parse(&config.limits.exempt_sources).unwrap_or_default();
    let remote = RemoteServices::open(&config.remote, exempt.clone())?;
    let sources = open_sources(config, &store, mirror.is_some())?;
    let pulls = Pulls::open(&store, sources.as_ref())?;
    let referrals = open_referrals(config, exempt.clone())?;
    let rules = active_rules(config, Arc::new(site), primaries)?;
    if config.anonymous_full_access {
        tracing::warn!("`anonymous_full_access` is on: every client has full access");
    }
    let audit = Audit::open(config.audit.as_deref(), config.audit_files(), config.audit_bounds())?;
    let challenges = Challenges::new(config.challenge_limits());
    let costly = CostlyWork::start(&config.costly, exempt)?;
    let sessions = open_sessions(config, &store)?;
    let sharing = open_sharing(config, &store)?;
    let proof = Authenticator::new(challenges, sharing, sessions, Some(Arc::clone(&costly)), store.folds());
    let decision = DecisionContext::new(rules, remote, sources, referrals);
    let sealer = ReplySealer::new(key, Some(costly));
    let replication = open_replication(config, &sealer)?;
    let service = AdminService::new(store, sealer, audit, proof, decision, replication);
    Ok(OpenedService { service, publisher, mirror, pulls, notice_key })
}

/// Opens the sources of records, and homes their prefixes. A mirror has the homed prefixes of its
/// primary.
fn open_sources(config: &Config, store: &Store, is_mirror: bool) -> anyhow::Result<Option<RecordSources>> {
    if config.sources.is_empty() {
        return Ok(None);
    }
    let sources = RecordSources::open(&config.sources, store.folds())?;
    for prefix in sources.prefixes() {
        let name = Handle(prefix);
        match is_mirror {
            true if !store.snapshot()?.is_homed(prefix)? => {
                tracing::warn!(prefix = %name, "the prefix of a source of records is not homed at the primary");
            }
            false if store.home(prefix)? => {
                tracing::info!(prefix = %name, "homed the prefix of a source of records");
            }
            _ => {}
        }
    }
    Ok(Some(sources))
}

/// Opens and seals messages in sessions. The sessions are shared with other processes over the same
/// database, which have the same server key, if they are kept there.
fn open_sessions(config: &Config, store: &Store) -> anyhow::Result<Option<SessionEndpoint>> {
    let endpoint = SessionEndpoint::new(&config.sessions);
    let stored = store.stored_sessions().filter(|_| config.store.postgres.sessions);
    let (Some(stored), Some(key)) = (stored, &config.server_key) else { return Ok(endpoint) };
    let record = server_key::read_record(key)?;
    let rows = SharedSessionRows::new(stored, record.as_bytes());
    let rows = rows.map(|rows| Arc::new(rows) as Arc<dyn SessionRows>);
    Ok(endpoint.map(|endpoint| endpoint.sharing(rows)))
}

/// Shares challenges with other processes over the same database, which have the same server key.
fn open_sharing(config: &Config, store: &Store) -> anyhow::Result<Option<ChallengeSharing>> {
    let (Some(rows), Some(key)) = (store.shared_challenges(), &config.server_key) else {
        return Ok(None);
    };
    let record = server_key::read_record(key)?;
    Ok(ChallengeSharing::new(rows, record.as_bytes()))
}

/// Sets up streams for mirrors with the server key.
fn open_replication(config: &Config, sealer: &ReplySealer) -> anyhow::Result<Option<Arc<Replication>>> {
    let (true, Some(key), Some(key_config)) =
        (config.replication.enabled, sealer.shared_key(), &config.server_key)
    else {
        return Ok(None);
    };
    let record = server_key::read_record(key_config)?;
    let tls = tls::server_config(&record.view())
        .inspect_err(|why| tracing::info!(%why, "streams for mirrors are signed, not encrypted"))
        .ok();
    Ok(Some(Arc::new(Replication::new(&config.replication, key, tls))))
}

/// Starts the tasks that accept requests, and the periodic ones. Called inside the runtime.
fn start_tasks(
    state: &Arc<AdminState>,
    listeners: Vec<TcpListener>,
    socket: Option<LocalSocket>,
    left: Vec<(OwnedFd, Vec<u8>)>,
) -> anyhow::Result<Option<ServedConnections>> {
    let config = state.config();
    for listener in listeners {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let accept = connections::serve(listener, Arc::clone(&state.connections));
        tokio::spawn(threads::watch("accept", accept));
    }
    let served = socket.map(|socket| local::serve(socket, left, state)).transpose()?;
    tokio::spawn(threads::watch("disks", check_disks(Arc::clone(state))));
    tokio::spawn(threads::watch("prune", prune_log(Arc::clone(state))));
    tokio::spawn(threads::watch("index", keep_index(Arc::clone(state))));
    if config.sessions.are_enabled() {
        tokio::spawn(threads::watch("sessions", expire_sessions(Arc::clone(state))));
    }
    Ok(served)
}

/// Shares challenges until the process stops.
fn share_challenges(state: &AdminState, shutdown: &Shutdown) {
    let lasts = || Duration::from_millis(state.config().limits.challenge_ms.into());
    if let Some(sharing) = state.service.proof.sharing() {
        sharing.run(&state.service.proof, lasts, shutdown);
    }
}

/// Starts the task that notifies machines of new sets. Called inside the runtime.
fn serve_notices(
    state: &Arc<AdminState>,
    listener: Option<TcpListener>,
    key: Option<NoticeKey>,
) -> anyhow::Result<()> {
    let (Some(listener), Some(key), Some(publisher)) = (listener, key, &state.publisher) else {
        return Ok(());
    };
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let serve = publish::serve_notices(listener, key, publisher.notices(), Arc::clone(state));
    tokio::spawn(threads::watch("notices", serve));
    Ok(())
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
        let thread = threads::spawn(name, run);
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
fn open_referrals(config: &Config, exempt: SourceList) -> anyhow::Result<Option<ReferralResolver>> {
    if config.local.socket.is_none() || !config.forward.resolve_for_old {
        return Ok(None);
    }
    match ReferralResolver::open(&config.remote, config.forward.resolutions, exempt) {
        Err(error) if !config.remote.enabled => {
            tracing::warn!("old clients get referrals instead of resolved values: {error:#}");
            Ok(None)
        }
        opened => opened.map(Some),
    }
}

fn runtime(config: &Config) -> anyhow::Result<Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.enable_all().thread_name("admin");
    builder.on_thread_start(|| threads::enter("admin")).on_thread_stop(threads::leave);
    if config.threads > 0 {
        builder.worker_threads(config.threads);
    }
    // One thread for each request being processed, and a few for health and control.
    let requests = config.replication.streams
        + config.local.relay_connections
        + config.tcp.requests
        + config.forward.requests
        + config.local.bulk_connections
        + config.local.callers_connections
        + config.local.changes_connections;
    builder.max_blocking_threads(requests + 8);
    builder.build().context("cannot start the threads that answer")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_process_that_cannot_serve_again_tries_until_it_is_stopped() {
        let directory = tempfile::tempdir().unwrap();
        let config = Config { site: directory.path().join("siteinfo.json"), ..Config::default() };
        let asked = std::cell::Cell::new(0);
        let is_stopping = || asked.replace(asked.get() + 1) == 1;
        let error = open_again(&config, &Continuation::default(), is_stopping).map(drop).unwrap_err();
        assert_eq!(asked.get(), 2);
        assert!(format!("{error:#}").contains("siteinfo.json"), "{error:#}");
    }

    #[test]
    fn a_process_continues_with_its_local_socket_after_another_has_failed_or_removed_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("admin.socket");
        let mut config = Config::default();
        config.local.socket = Some(path.clone());
        let bind = |left: Option<OwnedFd>| {
            let local = left.map(|listener| (path.clone(), listener));
            let mut continuation = Continuation { local, ..Continuation::default() };
            let rights = local::rights(&config).unwrap();
            bind_local(&config, rights, &mut continuation).unwrap().unwrap()
        };
        let first = bind(None);
        let left = || Some(first.descriptor().unwrap());
        // A new process that fails when it has the socket.
        drop(bind(left()));
        UnixStream::connect(&path).expect("the socket is as it was");
        drop(bind(left()));
        UnixStream::connect(&path).expect("the socket is as it was");
        std::fs::remove_file(&path).unwrap();
        let again = bind(left());
        UnixStream::connect(&path).expect("the socket is bound again");
        drop(again);
    }
}
