//! The cache as the server has it: it answers workers, takes what they miss, and adds commands and
//! metrics.

use crate::commands;
use crate::config::Config;
use crate::metrics;
use crate::notices::{self, CacheNotices};
use crate::policy::AuthenticatedRequests;
use crate::questions::{self, QuestionTask};
use crate::saved::SavedEntry;
use crate::saver;
use crate::state::CacheState;
use anyhow::{Context as _, Result};
use handle_daemon::control::CommandHelp;
use handle_daemon::metrics::MetricsText;
use handle_daemon::notice::NoticeKey;
use handle_daemon::notice::listener::listen;
use handle_daemon::settings::reload::{SettingChanges, merged};
use handle_daemon::shutdown::Shutdown;
use handle_daemon::threads;
use handle_resolver::StagedCacheLookup;
use handle_worker::cache::{CopyBuffer, MissingRecord, RequestRelay, ServerCache};
use handle_worker::extension::ProcessExtension;
use serde_json::Value;
use std::net::IpAddr;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// A cache, and the thread that asks others for what it does not have.
#[derive(Debug)]
pub struct CacheService {
    state: Arc<CacheState>,
    /// What the threads need, until they are started.
    startup: Mutex<Option<ThreadStartup>>,
    /// Ends the thread that writes the file of the cache when it is dropped.
    saving: Mutex<Option<Sender<()>>>,
    /// Ends the thread that waits for notices.
    shutdown: Arc<Shutdown>,
    /// The configuration in force, and the one that was read for a reload.
    configs: Mutex<(Config, Option<Config>)>,
}

/// What the threads of a cache need.
#[derive(Debug)]
struct ThreadStartup {
    /// What is demanded of the thread that asks others.
    tasks: UnboundedReceiver<QuestionTask>,
    /// The key of notices, if there are any.
    notice_key: Option<NoticeKey>,
}

impl CacheService {
    /// An empty cache.
    ///
    /// # Errors
    /// When a file of the configuration cannot be used.
    pub fn open(config: &Config) -> Result<Self> {
        let (demands, tasks) = unbounded_channel();
        Ok(Self {
            state: Arc::new(CacheState::open(config, demands)?),
            startup: Mutex::new(Some(ThreadStartup { tasks, notice_key: notices::key(config)? })),
            saving: Mutex::default(),
            shutdown: Arc::new(Shutdown::new().context("cannot create the shutdown signal")?),
            configs: Mutex::new((config.clone(), None)),
        })
    }

    /// Stores an entry of an earlier process. Returns false if it can no longer be shown, a newer
    /// one is known, or it was purged.
    pub fn restore(&self, entry: &SavedEntry<'_>) -> bool {
        self.state.restore(entry)
    }

    /// Offers a configuration that was read again; a [reload](ProcessExtension::reload) applies it.
    pub fn offer(&self, config: Config) {
        self.configs.lock().unwrap_or_else(PoisonError::into_inner).1 = Some(config);
    }

    /// Whether requests that only the responsible service can decide are handed to it.
    #[must_use]
    pub fn relays(&self) -> bool {
        self.state.config.policy.authenticated == AuthenticatedRequests::Forward
    }

    /// Applies the offered configuration as far as that is possible while serving.
    fn apply_offer(&self) -> Option<SettingChanges> {
        let mut configs = self.configs.lock().unwrap_or_else(PoisonError::into_inner);
        let new = configs.1.take()?;
        let (config, changes) = merged(&configs.0, &new).ok()?;
        self.state.set_live(&config);
        configs.0 = config;
        Some(changes)
    }
}

impl ServerCache for CacheService {
    fn prefetch(&self, lookups: &mut [StagedCacheLookup<'_>]) {
        let table = &self.state.table;
        for lookup in &mut *lookups {
            lookup.hash = self.state.hash(lookup.handle);
            table.prefetch(lookup.hash);
        }
        for lookup in &mut *lookups {
            lookup.slot = table.probe(lookup.hash);
        }
        // In a loop of its own: a prefetch waits for the translation of its address, and the
        // shorter the loop, the more translations are under way at once.
        for lookup in lookups {
            table.prefetch_entry(lookup.hash, lookup.slot);
        }
    }

    fn find<'c, 'r: 'c>(
        &self,
        lookups: &mut [StagedCacheLookup<'c>],
        now_unix_s: u32,
        buffer: &CopyBuffer<'r>,
    ) {
        for lookup in lookups.iter_mut().filter(|lookup| lookup.is_wanted) {
            lookup.known = self.state.find(lookup, now_unix_s, buffer);
        }
    }

    fn resolve(&self, missing: MissingRecord) {
        match missing.relayed() {
            Some(_) => self.state.counters.relayed.add(),
            None => self.state.counters.misses.add(),
        }
        self.state.demand(QuestionTask::Missing(missing));
    }
}

impl RequestRelay for CacheService {
    fn has_challenge(&self, source: IpAddr, number: i32) -> bool {
        self.state.relayed.has(source, number)
    }
}

impl ProcessExtension for CacheService {
    fn name(&self) -> &'static str {
        "cache"
    }

    fn start(&self) -> Result<Vec<JoinHandle<()>>> {
        let Some(startup) = self.startup.lock().unwrap_or_else(PoisonError::into_inner).take() else {
            return Ok(vec![]);
        };
        let ThreadStartup { tasks, notice_key } = startup;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let (runtime, state) =
            (runtime.context("cannot start the runtime that asks other services")?, Arc::clone(&self.state));
        let mut threads = vec![spawn("questions", move || questions::run(state, runtime, tasks))?];
        if let Some(file) = self.state.config.cache.file.clone() {
            let (saving, end) = channel();
            *self.saving.lock().unwrap_or_else(PoisonError::into_inner) = Some(saving);
            let state = Arc::clone(&self.state);
            threads.push(spawn("saver", move || saver::run(&state, &file, &end))?);
        }
        if let Some(key) = notice_key {
            let notices = CacheNotices::new(&self.state, &self.shutdown);
            threads.push(spawn("notices", move || listen(&notices, &key))?);
        }
        Ok(threads)
    }

    fn stop(&self) {
        self.state.demand(QuestionTask::End);
        self.shutdown.stop();
        drop(self.saving.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    fn commands(&self) -> Vec<CommandHelp> {
        commands::COMMANDS.to_vec()
    }

    fn run(&self, command: &str) -> Option<Value> {
        commands::run(&self.state, command)
    }

    fn reload(&self, report: &mut Value) {
        if let Some(changes) = self.apply_offer() {
            changes.report(report, "take over instead: hdl control restart");
        }
    }

    fn status(&self) -> Value {
        commands::status(&self.state)
    }

    fn stats(&self) -> Value {
        commands::stats(&self.state)
    }

    fn add_metrics(&self, text: &mut MetricsText) {
        metrics::add(&self.state, text);
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let thread = threads::spawn(name, run);
    thread.with_context(|| format!("cannot start the thread {name}"))
}
