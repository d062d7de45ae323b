//! Starts and stops the parts of the process, and fetches at intervals.

use crate::config::Config;
use crate::notices::{FetchReceiver, NoticeInbox};
use crate::state::{FetchHooks, FetchState, FetchedSet};
use anyhow::{Context as _, ensure};
use handle_daemon::clock::now_unix_ms;
use handle_daemon::control::ControlSocket;
use handle_daemon::notice::NoticeKey;
use handle_daemon::notice::listener::listen;
use handle_daemon::privileges::become_user;
use handle_daemon::readiness;
use handle_daemon::scrape::ScrapeEndpoint;
use handle_daemon::shutdown::Shutdown;
use handle_daemon::threads;
use handle_fleet::{FetchError, FetchOutcome, FleetStore, FleetUrl, SetFetcher, location};
use handle_snapshot::set::storage::create_directory;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

/// Opens the source of the sets, without a request.
///
/// # Errors
/// When the settings do not name one that can be used.
pub fn open_source(config: &Config) -> anyhow::Result<Arc<dyn FleetStore>> {
    ensure!(
        !config.url.is_empty(),
        "`url` is not set: name the place of the sets (handle-fetch URL DIRECTORY)"
    );
    ensure!(
        !config.directory.as_os_str().is_empty(),
        "`directory` is not set: name the directory of the set (handle-fetch URL DIRECTORY)"
    );
    let url: FleetUrl = config.url.parse()?;
    Ok(location::open(&url, &config.storage)?)
}

/// A running process. When dropped, it stops.
#[derive(Debug)]
pub struct Fetcher {
    state: Arc<FetchState>,
    http: Option<SocketAddr>,
    threads: Vec<JoinHandle<()>>,
    /// The thread that fetches; with `once`, whether it succeeded.
    work: Option<JoinHandle<Result<(), FetchError>>>,
}

impl Fetcher {
    /// Locks the directory and starts to fetch.
    ///
    /// # Errors
    /// One sentence with the likely cause.
    pub fn start(config: &Config) -> anyhow::Result<Self> {
        Self::start_with(config, FetchHooks::default())
    }

    /// Like [`start`](Self::start), for a program that can reload its configuration.
    ///
    /// # Errors
    /// One sentence with the likely cause.
    pub fn start_with(config: &Config, hooks: FetchHooks) -> anyhow::Result<Self> {
        let scrapes = config.observe.http.map(ScrapeEndpoint::bind).transpose()?;
        if let Some(user) = &config.user {
            become_user(user)?;
        }
        let source = open_source(config)?;
        let accepted = config.accepted_publishers()?;
        let control = config.control.as_deref();
        let control = control.map(|path| ControlSocket::bind(path, false, "handle-fetch")).transpose()?;
        let directory = &config.directory;
        create_directory(directory).with_context(|| format!("cannot create {}", directory.display()))?;
        let fetcher = SetFetcher::open(source, directory, accepted, config.fetch_limits())?;
        let shutdown = Arc::new(Shutdown::new().context("cannot create the shutdown signal")?);
        let counters = Arc::clone(fetcher.counters());
        let state = Arc::new(FetchState::new(config.clone(), hooks, counters, shutdown));
        report_set(&state, &fetcher);
        let http = scrapes.as_ref().map(ScrapeEndpoint::address).transpose()?;
        let mut this = Self { state, http, threads: Vec::new(), work: None };
        if let Some(scrapes) = scrapes {
            let state = Arc::clone(&this.state);
            this.spawn("observer", move || scrapes.serve(&state.shutdown, &state))?;
        }
        if let Some(control) = control {
            let state = Arc::clone(&this.state);
            this.spawn("control", move || control.serve(&state.shutdown, &state))?;
        }
        let inbox = this.listen_for_notices(config)?;
        let state = Arc::clone(&this.state);
        let work = threads::spawn("fetch", move || {
            let ended = run(fetcher, &state, inbox.as_deref());
            state.shutdown.drain();
            ended
        });
        this.work = Some(work.context("cannot start the thread that fetches")?);
        Ok(this)
    }

    /// Starts the thread that waits for notices, if an address is configured.
    fn listen_for_notices(&mut self, config: &Config) -> anyhow::Result<Option<Arc<NoticeInbox>>> {
        let Some(file) = config.notify.key_file.as_deref().filter(|_| !config.notify.address.is_empty())
        else {
            return Ok(None);
        };
        let key = NoticeKey::read(file).context("`notify.key_file`")?;
        let inbox = Arc::new(NoticeInbox::new().context("cannot create the pipe for notices")?);
        let receiver = FetchReceiver { state: Arc::clone(&self.state), inbox: Arc::clone(&inbox) };
        self.spawn("notices", move || listen(&receiver, &key))?;
        Ok(Some(inbox))
    }

    fn spawn(&mut self, name: &str, run: impl FnOnce() + Send + 'static) -> anyhow::Result<()> {
        let thread = threads::spawn(name, run);
        self.threads.push(thread.with_context(|| format!("cannot start the thread {name}"))?);
        Ok(())
    }

    /// The state of the process.
    #[must_use]
    pub const fn state(&self) -> &Arc<FetchState> {
        &self.state
    }

    /// The address of the scrape endpoint.
    #[must_use]
    pub const fn http_address(&self) -> Option<SocketAddr> {
        self.http
    }

    /// Whether fetching has ended: the process was asked to stop, or fetches once.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.work.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Stops, and returns how fetching ended.
    ///
    /// # Errors
    /// Why the only attempt failed, or that fetching has met a bug.
    pub fn stop(mut self) -> anyhow::Result<()> {
        self.state.shutdown.stop();
        match self.work.take().map(JoinHandle::join) {
            Some(Ok(Err(error))) => Err(error.into()),
            Some(Err(_)) => Err(anyhow::anyhow!("fetching has met a bug; it was shown where it happened")),
            Some(Ok(Ok(()))) | None => Ok(()),
        }
    }
}

impl Drop for Fetcher {
    fn drop(&mut self) {
        self.state.shutdown.stop();
        // A panic has already been logged where it happened.
        let _ = self.work.take().map(JoinHandle::join);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Fetches until the process stops, or once.
fn run(mut fetcher: SetFetcher, state: &FetchState, inbox: Option<&NoticeInbox>) -> Result<(), FetchError> {
    let mut is_ready = false;
    // Logged once, not for each attempt.
    let mut logged = None;
    let mut refusals = 0_u32;
    while !state.shutdown.is_draining() {
        let started = Instant::now();
        let config = state.config();
        fetcher.set_limits(config.fetch_limits());
        let fetched = fetcher.fetch(&|| state.shutdown.is_draining());
        report(state, &fetcher, &fetched, &mut logged);
        if config.once {
            return fetched.map(|_| ());
        }
        if !is_ready && fetcher.manifest().is_some() {
            is_ready = true;
            readiness::ready("a set is in the directory");
        }
        refusals = match fetched {
            Err(FetchError::Layer(..)) => refusals.saturating_add(1),
            _ => 0,
        };
        let left = config.interval(refusals).saturating_sub(started.elapsed());
        match inbox.filter(|_| refusals == 0) {
            Some(inbox) => inbox.wait(&state.shutdown, left, fetcher.manifest()),
            None => state.shutdown.poll(&mut [], Some(left)),
        }
    }
    Ok(())
}

/// Logs an attempt, and updates the status.
fn report(
    state: &FetchState,
    fetcher: &SetFetcher,
    fetched: &Result<FetchOutcome, FetchError>,
    logged: &mut Option<String>,
) {
    report_set(state, fetcher);
    match fetched {
        Ok(outcome) => {
            let mut status = state.lock();
            (status.succeeded_unix_ms, status.last_error) = (Some(now_unix_ms()), None);
            let generation = status.set.as_ref().map(|set| set.generation);
            drop(status);
            if *outcome == FetchOutcome::Published {
                tracing::info!(generation, "published a new set");
            } else if logged.is_some() {
                tracing::info!(generation, "fetching works again");
            }
            *logged = None;
        }
        Err(FetchError::Stopped) => {}
        Err(error) => {
            let text = error.to_string();
            if logged.as_ref() != Some(&text) {
                tracing::error!(%error, "cannot fetch; the set in the directory stays");
            }
            *logged = Some(text.clone());
            state.lock().last_error = Some(text);
        }
    }
}

fn report_set(state: &FetchState, fetcher: &SetFetcher) {
    let signed_unix_ms = fetcher.statement().map(|it| it.statement.signed_unix_ms);
    state.lock().set = fetcher.manifest().map(|manifest| FetchedSet {
        epoch: manifest.epoch,
        generation: manifest.generation,
        created_unix_ms: manifest.created_unix_ms,
        handles_count: manifest.handles_count,
        root: manifest.root.to_string(),
        layers_count: manifest.layers.len(),
        len: manifest.layers.iter().map(|layer| layer.len).sum(),
        signed_unix_ms,
    });
}
