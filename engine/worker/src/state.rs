//! The state that all threads of the server share.

use crate::cache::{RequestRelay, ServerCache};
use crate::config::Config;
use crate::counters::CounterShards;
use crate::extension::ProcessExtension;
use crate::live::ServedSet;
use crate::query_log::QueryLog;
use crate::settings::LiveSettings;
use crate::slow::SlowPath;
use crate::sources::Sources;
use crate::worker_info::WorkerInfo;
use handle_daemon::log::SetLog;
use handle_daemon::program::ReadConfig;
use handle_daemon::shutdown::Shutdown;
use handle_daemon::takeover::{Handover, SuccessorProgram, TakeoverServer};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::{Duration, SystemTime};

/// State shared by the workers, the watcher and the control socket.
#[derive(Debug)]
pub struct ServerState {
    /// The served set.
    pub live: Arc<ServedSet>,
    /// Counters for every datagram, one shard for each worker.
    pub shards: CounterShards,
    /// Tables of the busiest source networks, one for each worker.
    pub(crate) sources: Box<[Sources]>,
    pub(crate) query_log: Option<Arc<QueryLog>>,
    /// The settings in force.
    pub(crate) settings: LiveSettings,
    /// The slow path; `None` when it has no threads.
    pub slow: Option<Arc<SlowPath>>,
    pub(crate) workers: OnceLock<Vec<WorkerInfo>>,
    /// For each worker, whether it is still running.
    pub(crate) running: Box<[AtomicBool]>,
    pub(crate) started: SystemTime,
    /// The sockets of the workers, which a successor process can take over.
    pub(crate) handover: Handover,
    pub(crate) hooks: ServerHooks,
    pub(crate) shutdown: Arc<Shutdown>,
    /// The thread that waits for the server to drain or a worker to end.
    pub(crate) waiting: OnceLock<Thread>,
    pub(crate) share_port: bool,
}

impl ServerState {
    /// Makes the workers answer what has arrived and then stop.
    pub fn drain(&self) {
        if self.share_port && !self.is_draining() {
            // Processes that share the port answer what arrives from now on.
            self.handover.give_up(|_| false);
        }
        self.shutdown.drain();
        self.wake_workers();
        self.unpark();
    }

    /// Wakes the workers, so that they check for changes and count a turn.
    pub(crate) fn wake_workers(&self) {
        self.live.wakers().wake();
    }

    /// Wakes the thread in [`wait`](Self::wait).
    pub(crate) fn unpark(&self) {
        if let Some(waiting) = self.waiting.get() {
            waiting.unpark();
        }
    }

    /// Sleeps until the server drains, a worker ends or `timeout` has passed; may return early.
    /// Only one thread may wait.
    pub fn wait(&self, timeout: Option<Duration>) {
        self.waiting.get_or_init(std::thread::current);
        if self.is_draining() || self.has_ended() {
            return;
        }
        match timeout {
            Some(timeout) => std::thread::park_timeout(timeout),
            None => std::thread::park(),
        }
    }

    /// Whether the server is draining.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.shutdown.is_draining()
    }

    /// Whether every worker has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.running.iter().all(|running| !running.load(Ordering::Acquire))
    }

    /// Whether this process drains because another process has taken over.
    #[must_use]
    pub fn is_handed_over(&self) -> bool {
        self.handover.is_done()
    }

    /// Whether a worker has ended without a stop being requested. The other workers continue.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        !self.is_draining() && self.running.iter().any(|running| !running.load(Ordering::Relaxed))
    }
}

impl TakeoverServer for ServerState {
    fn handover(&self) -> &Handover {
        &self.handover
    }

    fn is_draining(&self) -> bool {
        self.is_draining()
    }

    fn drain(&self) {
        self.drain();
    }
}

/// Hooks that only the program provides, as opposed to tests and other embedders.
#[derive(Default)]
pub struct ServerHooks {
    /// The command line of this program, for a restart by takeover.
    pub program: Option<SuccessorProgram>,
    /// Reads the configuration for a reload; without it only the published set is reloaded.
    pub read_config: Option<ReadConfig<Config>>,
    /// Sets the log level on a reload.
    pub set_log: Option<SetLog>,
    /// The name of the program, if it is not `handled`.
    pub name: Option<&'static str>,
    /// The records of other services that a caching server answers from.
    pub cache: Option<Arc<dyn ServerCache>>,
    /// The challenges of services to which the cache hands requests.
    pub relay: Option<Arc<dyn RequestRelay>>,
    /// Threads, commands, status and metrics beside those of `handled`.
    pub extension: Option<Arc<dyn ProcessExtension>>,
    /// Whether there is no published set to answer from.
    pub is_without_set: bool,
}

impl fmt::Debug for ServerHooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { program, cache, .. } = self;
        f.debug_struct("Hooks").field("program", program).field("cache", cache).finish_non_exhaustive()
    }
}
