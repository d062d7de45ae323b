//! Starts all parts of the server and stops them.

use crate::config::Config;
use crate::counters::CounterShards;
use crate::inputs::{open_live, read_site};
use crate::live::ServedSet;
use crate::observe;
use crate::query_log::line::QueryLogEntry;
use crate::query_log::{QueryLog, QueryLogWriter};
use crate::settings::LiveSettings;
use crate::slow::{self, SlowPath};
use crate::sockets::WorkerSockets;
use crate::sources::Sources;
use crate::state::{ServerHooks, ServerState};
use crate::verification;
use crate::worker::Worker;
use crate::worker_info::WorkerInfo;
use anyhow::{Context as _, anyhow, ensure};
use handle_daemon::control::ControlSocket;
use handle_daemon::privileges;
use handle_daemon::publication;
use handle_daemon::scrape::ScrapeEndpoint;
use handle_daemon::settings::SettingSection as _;
use handle_daemon::shutdown::Shutdown;
use handle_daemon::socket::{OwnedSocket, owns_directory_of};
use handle_daemon::takeover::{Handover, Predecessor, SocketAnnouncement, SocketKind};
use handle_daemon::threads;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

/// The name of the program.
const PROGRAM: &str = "handled";

/// A running server. Dropping it stops it.
#[derive(Debug)]
pub struct Server {
    shared: Arc<ServerState>,
    addresses: Vec<SocketAddr>,
    http_address: Option<SocketAddr>,
    workers: Vec<JoinHandle<()>>,
    helpers: Vec<JoinHandle<()>>,
}

/// Records that a worker has stopped running, however it ended.
struct WorkerGuard<'s> {
    shared: &'s ServerState,
    at: usize,
}

impl Drop for WorkerGuard<'_> {
    fn drop(&mut self) {
        self.shared.running[self.at].store(false, Ordering::Release);
        self.shared.handover.release(self.at);
        self.shared.unpark();
        if self.shared.is_degraded() {
            tracing::error!(
                worker = self.at,
                "a worker has stopped; the kernel distributes its requests to the other workers"
            );
        }
    }
}

/// Longest duration of an orderly stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

impl Server {
    /// Starts serving. When this function returns, every worker answers.
    ///
    /// # Errors
    /// One sentence with the likely cause: the set, the site record, an address or the control
    /// socket.
    pub fn start(config: &Config) -> anyhow::Result<Self> {
        Self::start_with(config, ServerHooks::default())
    }

    /// Like [`start`](Self::start), with the hooks of a program.
    ///
    /// # Errors
    /// As for `start`. A process that was to be taken over continues to serve.
    pub fn start_with(config: &Config, hooks: ServerHooks) -> anyhow::Result<Self> {
        config.check()?;
        let site = read_site(config)?.relaying(hooks.relay.is_some());
        site.differences().iter().for_each(|difference| tracing::warn!("{difference}"));
        let signer = slow::open_signer(config, &site)?;
        let live = if hooks.is_without_set { ServedSet::empty() } else { open_live(config)? };
        let name = hooks.name.unwrap_or(PROGRAM);
        let cores = usable_cores(config)?;
        let workers_count = if config.workers == 0 { cores.len() } else { config.workers };
        // No slow steps from here on: new sockets queue datagrams until their workers answer.
        let mut predecessor = match &config.control {
            Some(control) if config.take_over => Predecessor::meet(control, name)?,
            _ => None,
        };
        let WorkerSockets { udp: sockets, tcp: listeners, inherited_count } =
            WorkerSockets::open(config, workers_count, predecessor.as_mut())?;
        let scrapes = ScrapeEndpoint::open(config.observe.http, predecessor.as_mut())?;
        if let Some(user) = &config.user {
            privileges::become_user(user)?;
            // Files opened as root must be readable for the user too; otherwise the next reload
            // fails.
            readable(config, &live).with_context(|| format!("user {user} cannot read the set"))?;
        }
        let shutdown = Arc::new(Shutdown::new().context("cannot create the shutdown signal")?);
        let slow = SlowPath::new(config, signer, sockets.len(), &shutdown)?.map(Arc::new);
        let control = match &config.control {
            Some(path) => Some(ControlSocket::bind(path, predecessor.is_some(), name)?),
            None => None,
        };
        let holder = hold_sessions(config, predecessor.is_some())?;
        let (query_log, log_writer) = QueryLog::open(&config.query_log)?.unzip();
        let http_address = scrapes.as_ref().map(ScrapeEndpoint::address).transpose()?;
        let shared = Arc::new(ServerState {
            live,
            shards: CounterShards::new(sockets.len()),
            sources: sockets.iter().map(|_| Sources::new(config.observe.sources_kept)).collect(),
            query_log,
            settings: LiveSettings::new(config.clone(), site),
            slow,
            workers: OnceLock::new(),
            running: (0..sockets.len()).map(|_| AtomicBool::new(true)).collect(),
            started: SystemTime::now(),
            handover: Handover::new(name, |socket| handle_net::leave_port(socket)),
            hooks,
            shutdown,
            waiting: OnceLock::new(),
            share_port: config.share_port,
        });
        let mut server =
            Self { shared, addresses: Vec::new(), http_address, workers: Vec::new(), helpers: Vec::new() };
        let started = server.start_workers(config, sockets.into_iter().zip(listeners), &cores);
        if let Err(error) = started.and_then(|()| Ok(predecessor.map_or(Ok(()), Predecessor::dismiss)?)) {
            // Inherited sockets are still served by the other process, so a failed start must not
            // drain them.
            server.shared.handover.give_up(|at| at < inherited_count);
            return Err(error);
        }
        if let Some(scrapes) = &scrapes {
            let announced = SocketAnnouncement { kind: SocketKind::Http, address: scrapes.address()? };
            server.shared.handover.hold(None, announced, scrapes.descriptor()?);
        }
        server.start_slow_path(holder)?;
        server.start_helpers(control, scrapes, log_writer)?;
        Ok(server)
    }

    fn start_workers(
        &mut self,
        config: &Config,
        sockets: impl Iterator<Item = ((usize, UdpSocket), Vec<TcpListener>)>,
        cores: &[usize],
    ) -> anyhow::Result<()> {
        let (opened, openings) = mpsc::channel();
        // Listeners come after the UDP sockets, whose positions say which ones are inherited.
        let mut listener_handovers = Vec::new();
        for ((at, socket), listeners) in sockets {
            let address = socket.local_addr()?;
            let announced = SocketAnnouncement { kind: SocketKind::Udp, address };
            self.shared.handover.hold(Some(at), announced, socket.try_clone()?.into());
            if !self.addresses.contains(&address) {
                self.addresses.push(address);
            }
            for listener in &listeners {
                listener_handovers.push((
                    at,
                    SocketAnnouncement { kind: SocketKind::Tcp, address },
                    listener.try_clone()?,
                ));
            }
            let (shared, opened) = (Arc::clone(&self.shared), opened.clone());
            let (config, core) = (config.clone(), config.pin.then(|| cores[at % cores.len()]));
            let thread = threads::spawn(format!("worker-{at}"), move || {
                // The datapath is opened on the thread that uses it, because a ring belongs to its
                // thread.
                match Worker::open(&config, &shared, at, socket, listeners, core) {
                    Err(error) => drop(opened.send(Err(error))),
                    Ok((mut worker, info)) => {
                        drop(opened.send(Ok(info)));
                        drop(opened);
                        let running = WorkerGuard { shared: &shared, at };
                        worker.run();
                        drop(running);
                    }
                }
            });
            self.workers.push(thread.context("cannot start a worker thread")?);
        }
        for (at, announced, listener) in listener_handovers {
            self.shared.handover.hold(Some(at), announced, listener.into());
        }
        drop(opened);
        let mut infos = openings.into_iter().collect::<anyhow::Result<Vec<WorkerInfo>>>()?;
        ensure!(infos.len() == self.workers.len(), "a worker thread died while starting");
        infos.sort_by_key(|info| info.at);
        for info in &infos {
            tracing::info!(
                worker = info.at, address = %info.address, core = info.core, reason = info.reason,
                trains_in = info.trains.received, trains_out = info.trains.sent, "worker is ready"
            );
        }
        self.shared.workers.set(infos).map_err(|_| anyhow!("workers are started once"))
    }

    fn start_slow_path(&mut self, holder: Option<OwnedSocket>) -> anyhow::Result<()> {
        if let Some(extension) = &self.shared.hooks.extension {
            self.helpers.extend(extension.start()?);
        }
        if let Some(slow) = &self.shared.slow {
            self.helpers.extend(slow.start(&self.shared)?);
            let holder =
                holder.map(OwnedSocket::move_into_place).transpose().context("cannot share sessions")?;
            let slow = Arc::clone(slow);
            // handle-admin, which may be another user.
            let partner = self.shared.settings.current().config.forward.socket.clone();
            let thread = threads::spawn("sessions", move || slow.keep_sessions(holder, partner.as_deref()));
            self.helpers.push(thread.context("cannot start the thread that keeps sessions")?);
        }
        Ok(())
    }

    fn start_helpers(
        &mut self,
        control: Option<ControlSocket>,
        scrapes: Option<ScrapeEndpoint>,
        log_writer: Option<QueryLogWriter>,
    ) -> anyhow::Result<()> {
        if !self.shared.hooks.is_without_set {
            self.start_set_helpers()?;
        }
        if let Some(mut control) = control {
            if let Err(error) = control.move_into_place() {
                // No other process serves any more, so this error does not end the process.
                tracing::error!("{:#}", anyhow::Error::new(error));
            }
            let shared = Arc::clone(&self.shared);
            let thread = threads::spawn("control", move || control.serve(&shared.shutdown, &shared));
            self.helpers.push(thread.context("cannot start the control thread")?);
        }
        if let Some(writer) = log_writer {
            let shared = Arc::clone(&self.shared);
            let thread = threads::spawn("query-log", move || {
                let format = || shared.settings.current().config.query_log.format;
                writer.run(&shared.shutdown, format, QueryLogEntry::write);
            });
            self.helpers.push(thread.context("cannot start the thread of the query log")?);
        }
        if let Some(scrapes) = scrapes {
            let shared = Arc::clone(&self.shared);
            let thread = threads::spawn("observer", move || observe::serve(scrapes, &shared));
            self.helpers.push(thread.context("cannot start the observer thread")?);
        }
        Ok(())
    }

    /// Starts the threads that follow the published set and verify its layers.
    fn start_set_helpers(&mut self) -> anyhow::Result<()> {
        let shared = Arc::clone(&self.shared);
        let follow = move || publication::follow(&*shared.live, &shared.shutdown);
        let watcher = threads::spawn("watcher", follow);
        self.helpers.push(watcher.context("cannot start the watcher thread")?);
        let live = Arc::clone(&self.shared.live);
        live.ledger.set_rate(self.shared.settings.current().config.verify_bytes_per_s);
        let verifier = threads::spawn("verifier", move || verification::run(&live));
        self.helpers.push(verifier.context("cannot start the thread that verifies layers")?);
        Ok(())
    }

    /// The addresses on which the server answers, with the ports that were actually bound.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The address of `/metrics`, with the port that was actually bound; `None` without a scrape
    /// endpoint.
    #[must_use]
    pub const fn http_address(&self) -> Option<SocketAddr> {
        self.http_address
    }

    /// The state shared with the workers: the set, the counters and the drain switch.
    #[must_use]
    pub fn shared(&self) -> &Arc<ServerState> {
        &self.shared
    }

    /// Whether all workers have stopped, after a drain or a failure.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.workers.iter().all(JoinHandle::is_finished)
    }

    /// Drains and then stops. Workers that do not end within seconds are abandoned.
    ///
    /// # Errors
    /// When a worker was abandoned or panicked.
    pub fn stop(mut self) -> anyhow::Result<()> {
        self.halt()
    }

    fn halt(&mut self) -> anyhow::Result<()> {
        self.shared.drain();
        let deadline = Instant::now() + STOP_TIMEOUT;
        while !self.is_finished() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
        self.shared.shutdown.stop();
        self.shared.live.ledger.stop();
        if let Some(slow) = &self.shared.slow {
            slow.stop();
        }
        if let Some(extension) = &self.shared.hooks.extension {
            extension.stop();
        }
        ensure!(self.is_finished(), "a worker did not stop in time");
        for thread in self.workers.drain(..).chain(self.helpers.drain(..)) {
            thread.join().map_err(|_| anyhow!("a thread ended with a bug; the log says where"))?;
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The result is only available from `stop`.
        let _ = self.halt();
    }
}

/// Binds the socket through which another process shares our sessions, if one is configured.
fn hold_sessions(config: &Config, replace: bool) -> anyhow::Result<Option<OwnedSocket>> {
    let has_sessions = config.sessions.are_enabled() && config.slow.threads > 0;
    let Some(path) = config.sessions.socket.as_ref().filter(|_| has_sessions) else { return Ok(None) };
    // Unless handle-admin has its socket in a directory of this user, it is of another one, which
    // shares the group.
    let own = rustix::process::geteuid().as_raw();
    let has_partner = config.forward.socket.as_ref().is_some_and(|socket| !owns_directory_of(socket, own));
    let holder = OwnedSocket::bind(path, replace).and_then(|holder| match has_partner {
        true => holder.open_to_group(),
        false => Ok(holder),
    });
    holder.map(Some).with_context(|| {
        format!("cannot share sessions at {} (check: ls -ld of its directory)", path.display())
    })
}

/// Checks that this user can read the served files and the sets published later.
fn readable(config: &Config, live: &ServedSet) -> anyhow::Result<()> {
    live.reload()?;
    for entry in &live.current().manifest().layers {
        let path = config.snapshot.join(&entry.file);
        std::fs::File::open(&path)
            .with_context(|| format!("cannot read {} (see: namei -l)", path.display()))?;
    }
    Ok(())
}

/// The cores to which workers may be pinned.
fn usable_cores(config: &Config) -> anyhow::Result<Vec<usize>> {
    if !config.cores.is_empty() {
        return Ok(config.cores.clone());
    }
    handle_net::usable_cores().context("cannot read which cores this process may use")
}
