//! Starts the threads of the slow path and of forwarding.

use super::SlowPath;
use super::config::SlowConfig;
use super::work::SlowThread;
use crate::forward::thread::ForwardThread;
use crate::state::ServerState;
use anyhow::{Context as _, bail};
use handle_daemon::priority::stand_back;
use handle_daemon::text::listed;
use handle_daemon::threads;
use std::sync::Arc;
use std::thread::JoinHandle;

impl SlowPath {
    /// Starts the threads of the slow path and of forwarding.
    ///
    /// # Errors
    /// When the kernel refuses a thread, or a configured core is not available to this process.
    pub(crate) fn start(self: &Arc<Self>, shared: &Arc<ServerState>) -> anyhow::Result<Vec<JoinHandle<()>>> {
        let usable = handle_net::usable_cores().context("cannot read which cores this process may use")?;
        if let Some(core) = self.config.cores.iter().find(|core| !usable.contains(core)) {
            bail!("`slow.cores` has {core}: this process may use {usable:?}");
        }
        (0..self.config.threads)
            .map(|at| {
                let (path, shared) = (Arc::clone(self), Arc::clone(shared));
                let thread = threads::spawn(format!("slow-{at}"), move || {
                    let_workers_go_first(&path.config);
                    SlowThread::new(&shared, &path, at).run();
                });
                thread.context("cannot start a thread for the slow path")
            })
            .chain((0..self.forward.as_ref().map_or(0, |forward| forward.threads)).map(|at| {
                let path = Arc::clone(self);
                let thread = threads::spawn(format!("forward-{at}"), move || {
                    let_workers_go_first(&path.config);
                    ForwardThread::new(&path).run();
                });
                thread.context("cannot start a thread that forwards requests")
            }))
            .collect()
    }
}

/// Lowers the priority of this thread below that of the workers. A refusal by the kernel is only
/// logged, because answers stay correct without it.
fn let_workers_go_first(config: &SlowConfig) {
    use rustix::thread::{CpuSet, sched_setaffinity};
    if !config.cores.is_empty() {
        let mut cores = CpuSet::new();
        config.cores.iter().for_each(|&core| cores.set(core));
        if let Err(error) = sched_setaffinity(None, &cores) {
            tracing::warn!(%error, cores = %listed(&config.cores), "cannot pin the slow path to `slow.cores`");
        }
    }
    if let Err(error) = stand_back(config.idle, config.nice) {
        tracing::warn!(error, "cannot lower the priority of the slow path");
    }
}
