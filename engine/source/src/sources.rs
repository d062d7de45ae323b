//! All sources of a process.

use crate::RecordSource;
use crate::config::{PullConfig, SourceConfig, SourceKind};
use crate::database::{DatabasePages, DatabaseSource};
use crate::guarded::GuardedSource;
use crate::http::{DspacePages, HttpPages, HttpSource};
use crate::listing::ListedSource;
use crate::program::{ProgramPages, ProgramSource};
use crate::pulled::PulledSource;
use crate::stop::PullStop;
use handle_proto::{Handle, fold};
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::{Mutex, PoisonError};
use tokio::runtime::{Builder, Handle as RuntimeHandle, Runtime};
use tokio::sync::watch;

/// The sources by prefix.
#[derive(Debug)]
pub struct RecordSources {
    sources: Vec<GuardedSource>,
    /// Positions by folded prefix.
    by_prefix: HashMap<Vec<u8>, usize>,
    /// The sources whose records are copied, until their threads have them.
    pulled: Mutex<Vec<PulledSource>>,
    /// The prefixes of these, folded.
    pulled_prefixes: Vec<Vec<u8>>,
    stop: watch::Sender<bool>,
    /// Keeps connections and programs; taken when it is shut down.
    runtime: Option<Runtime>,
}

/// Why a source cannot be opened.
#[derive(Debug)]
pub enum OpenSourceError {
    /// A setting of this source cannot be used, for this reason.
    Setting(String, String),
    /// The threads of the sources cannot be started.
    Runtime(io::Error),
}

impl fmt::Display for OpenSourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Setting(name, why) => write!(f, "the source {name:?}: {why}"),
            Self::Runtime(error) => write!(f, "cannot start the thread of the sources: {error}"),
        }
    }
}

impl std::error::Error for OpenSourceError {}

impl RecordSources {
    /// Opens all sources, of a service that folds local names if `folds`. Programs are started;
    /// nothing else is asked yet.
    ///
    /// # Errors
    /// When a file that a source names cannot be used.
    pub fn open(configs: &[SourceConfig], folds: bool) -> Result<Self, OpenSourceError> {
        let runtime =
            Builder::new_multi_thread().worker_threads(1).thread_name("sources").enable_all().build();
        let runtime = runtime.map_err(OpenSourceError::Runtime)?;
        let (mut sources, mut by_prefix) = (Vec::new(), HashMap::new());
        let (mut pulled, mut pulled_prefixes) = (Vec::new(), Vec::new());
        let stop = watch::Sender::new(false);
        for config in configs {
            let handle = runtime.handle().clone();
            let prefixes = config.prefixes.iter().map(|prefix| fold::folded(prefix.as_bytes()));
            if let Some(pull) = &config.pull {
                let stop = PullStop(stop.subscribe());
                let opened = open_listed(config, pull, folds, stop, handle);
                let opened = opened.map_err(|why| OpenSourceError::Setting(config.name.clone(), why))?;
                pulled.push(PulledSource::new(config, pull, opened, folds));
                pulled_prefixes.extend(prefixes);
                continue;
            }
            let opened: Result<Box<dyn RecordSource>, String> = match config.kind {
                SourceKind::Http | SourceKind::Dspace => {
                    HttpSource::open(config, folds, handle).map(|source| Box::new(source) as _)
                }
                SourceKind::Program => Ok(Box::new(ProgramSource::start(config, folds, handle))),
                SourceKind::Sql | SourceKind::Tables => {
                    DatabaseSource::open(config).map(|source| Box::new(source) as _)
                }
            };
            let opened = opened.map_err(|why| OpenSourceError::Setting(config.name.clone(), why))?;
            by_prefix.extend(prefixes.map(|prefix| (prefix, sources.len())));
            sources.push(GuardedSource::new(config, opened));
        }
        let pulled = Mutex::new(pulled);
        Ok(Self { sources, by_prefix, pulled, pulled_prefixes, stop, runtime: Some(runtime) })
    }

    /// The source that is asked about handles with the prefix of `key`.
    #[must_use]
    pub fn of(&self, key: &[u8]) -> Option<&GuardedSource> {
        let prefix = Handle(key).naming_authority();
        self.by_prefix.get(&fold::folded(prefix)).map(|&at| &self.sources[at])
    }

    /// The prefixes of all sources, folded.
    pub fn prefixes(&self) -> impl Iterator<Item = &[u8]> {
        self.by_prefix.keys().chain(&self.pulled_prefixes).map(Vec::as_slice)
    }

    /// The sources whose records are copied, once. The runtime of these sources is here.
    #[must_use]
    pub fn take_pulled(&self) -> Vec<PulledSource> {
        std::mem::take(&mut *self.pulled.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Ends waiting for sources whose records are copied.
    pub fn stop_pulls(&self) {
        self.stop.send_replace(true);
    }

    /// All sources that are asked, in the order of the configuration.
    pub fn iter(&self) -> impl Iterator<Item = &GuardedSource> {
        self.sources.iter()
    }
}

/// Opens a source whose records are copied.
fn open_listed(
    config: &SourceConfig,
    pull: &PullConfig,
    folds: bool,
    stop: PullStop,
    runtime: RuntimeHandle,
) -> Result<Box<dyn ListedSource>, String> {
    Ok(match config.kind {
        SourceKind::Http => Box::new(HttpPages::open(config, stop, runtime)?),
        SourceKind::Dspace => Box::new(DspacePages::open(config, folds, stop, runtime)?),
        SourceKind::Program => Box::new(ProgramPages::new(config, stop, runtime)),
        SourceKind::Sql | SourceKind::Tables => Box::new(DatabasePages::open(config, pull, folds)?),
    })
}

impl Drop for RecordSources {
    fn drop(&mut self) {
        // The last owner may be a task, which may not wait for the thread to end.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
