//! The state of the running process, which its control socket and its scrape endpoint report.

use crate::config::Config;
use handle_daemon::clock::now_unix_ms;
use handle_daemon::log::SetLog;
use handle_daemon::program::ReadConfig;
use handle_daemon::readiness;
use handle_daemon::settings::SettingSection as _;
use handle_daemon::settings::reload::{SettingChanges, merged, report_failed_reload};
use handle_daemon::shutdown::Shutdown;
use handle_fleet::FetchCounters;
use handle_snapshot::set::statement::ahead_ms;
use serde_json::{Value, json};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// Functions that only the program can provide.
#[derive(Default)]
pub struct FetchHooks {
    /// Reads the configuration for a reload; without it, reloading is not possible.
    pub read_config: Option<ReadConfig<Config>>,
    /// Changes the log settings at a reload.
    pub set_log: Option<SetLog>,
}

impl fmt::Debug for FetchHooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FetchHooks").finish_non_exhaustive()
    }
}

/// The set in the directory, and the last attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FetchStatus {
    /// The set, if there is one.
    pub set: Option<FetchedSet>,
    /// The end of the last successful attempt, Unix milliseconds.
    pub succeeded_unix_ms: Option<u64>,
    /// Why the last attempt failed; `None` if it succeeded.
    pub last_error: Option<String>,
}

/// The connection for notices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NoticeStatus {
    /// Whether there is one.
    pub connected: bool,
    /// Why the last one ended, or could not be made.
    pub last_error: Option<String>,
}

/// A set in the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchedSet {
    /// Its epoch.
    pub epoch: u64,
    /// Its generation.
    pub generation: u64,
    /// When it was published, Unix milliseconds.
    pub created_unix_ms: u64,
    /// Number of its handles.
    pub handles_count: u64,
    /// Root of the tree over its records.
    pub root: String,
    /// Number of its layers.
    pub layers_count: usize,
    /// Bytes of its layers.
    pub len: u64,
    /// The time of the newest statement about it, Unix milliseconds, if it is signed.
    pub signed_unix_ms: Option<u64>,
}

/// The state of the process.
#[derive(Debug)]
pub struct FetchState {
    config: RwLock<Arc<Config>>,
    hooks: FetchHooks,
    /// Held while a new configuration is read and applied.
    reloading: Mutex<()>,
    status: Mutex<FetchStatus>,
    notices: Mutex<NoticeStatus>,
    /// The counters.
    pub counters: Arc<FetchCounters>,
    /// Ends the threads.
    pub shutdown: Arc<Shutdown>,
    /// Start time, Unix milliseconds.
    pub started_unix_ms: u64,
}

impl FetchState {
    /// The state of a process that starts now.
    #[must_use]
    pub fn new(
        config: Config,
        hooks: FetchHooks,
        counters: Arc<FetchCounters>,
        shutdown: Arc<Shutdown>,
    ) -> Self {
        Self {
            config: RwLock::new(Arc::new(config)),
            hooks,
            reloading: Mutex::default(),
            status: Mutex::default(),
            notices: Mutex::default(),
            counters,
            shutdown,
            started_unix_ms: now_unix_ms(),
        }
    }

    /// The configuration in force.
    #[must_use]
    pub fn config(&self) -> Arc<Config> {
        Arc::clone(&self.config.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The set in the directory, and the last attempt.
    #[must_use]
    pub fn status(&self) -> FetchStatus {
        self.lock().clone()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, FetchStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection for notices; `None` if none is configured.
    #[must_use]
    pub fn notices(&self) -> Option<NoticeStatus> {
        (!self.config().notify.address.is_empty()).then(|| self.lock_notices().clone())
    }

    pub(crate) fn lock_notices(&self) -> MutexGuard<'_, NoticeStatus> {
        self.notices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the newest statement about the set is too old: its age in seconds.
    #[must_use]
    pub fn stale_age_s(&self, now_unix_ms: u64) -> Option<u64> {
        let age_max_s = self.config().publishers.age_max_s;
        let signed = self.lock().set.as_ref()?.signed_unix_ms?;
        let age_ms = now_unix_ms.saturating_sub(signed);
        // If the clock was set back far, the age is not known.
        let is_old = age_ms > age_max_s.saturating_mul(1000) || ahead_ms(signed, now_unix_ms) > 0;
        (age_max_s > 0 && is_old).then_some(age_ms / 1000)
    }

    /// Begins to stop.
    pub fn drain(&self) {
        self.shutdown.drain();
    }

    /// Reads the configuration again, and reports the result.
    pub fn reload(&self) -> Value {
        let _reloading = self.reloading.lock().unwrap_or_else(PoisonError::into_inner);
        readiness::reloading(|| match self.apply_changes() {
            Ok(changes) => {
                let mut answer = json!({ "ok": true });
                changes.report(&mut answer, "restart instead");
                answer
            }
            Err(error) => report_failed_reload(&error),
        })
    }

    fn apply_changes(&self) -> anyhow::Result<SettingChanges> {
        let read = self.hooks.read_config.as_ref();
        let new = read.ok_or_else(|| anyhow::anyhow!("this process has no configuration to read again"))?()?;
        new.check()?;
        let old = self.config();
        let (config, changes) = merged(&*old, &new)?;
        config.check()?;
        if let Some(set_log) = self.hooks.set_log.as_ref().filter(|_| config.log != old.log) {
            set_log(&config.log)?;
        }
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
        Ok(changes)
    }
}
