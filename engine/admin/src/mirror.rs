//! A mirror: follows the servers of one or several primaries, and keeps their records in the store.
//!
//! - [`primary`]: the servers, their keys, and the identity of this mirror.
//! - [`worker`]: a thread for each server, which requests transactions and, if necessary, all
//!   records.
//! - [`notices`]: wakes a worker as soon as its primary has published changes.
//! - [`apply`]: the order of the items, and commits.
//! - `batch`: the changes that share one commit.
//! - [`position`]: what is here, in the same commits as the records.
//! - [`scope`]: which records are taken from which server.
//! - [`promote`]: the mirror becomes the primary; `promote_stopped` is the command for it.
//! - [`homed`]: whether the homed prefixes here are those of the primary.
//! - [`compare`]: whether the published set has the records of the primaries.
//! - [`status`]: progress, errors, metrics.
//! - [`config`], [`error`]: settings and errors.
//!
//! A record that does not come from a primary stays only until the next dump: changes of clients
//! are refused, and the text names the primary.

pub mod apply;
mod batch;
pub mod compare;
pub mod config;
pub mod error;
pub mod homed;
pub mod notices;
pub mod position;
pub mod primary;
pub mod promote;
pub mod promote_stopped;
pub mod scope;
pub mod status;
#[cfg(test)]
mod tests;
pub mod worker;

pub use config::{MirrorConfig, MirrorPrimary};

use crate::lease::{LeaseStatus, ProcessLease, this_process};
use anyhow::{Context as _, bail};
use apply::BatchLimits;
use handle_daemon::event::EventDescriptor;
use handle_daemon::site::SiteRecord;
use handle_store::{Store, StoreError};
use notices::NoticeListener;
use position::MirrorPosition;
use primary::{PrimaryServer, RequestLimits, describe_all, open_all};
use status::{MirrorSourceState, SourceStatus};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use worker::{MirrorWorker, WorkerLimits};

/// The mirror part of a process.
#[derive(Debug)]
pub struct Mirror {
    servers: Vec<Arc<PrimaryServer>>,
    states: Vec<Arc<MirrorSourceState>>,
    /// The workers until they are started.
    workers: Mutex<Vec<MirrorWorker>>,
    /// What waits for notices, until it is started.
    listeners: Mutex<Vec<NoticeListener>>,
    /// Where changes are made.
    primaries: String,
    is_following: bool,
    /// Which of several processes over one database follows. Dropped after the workers.
    lease: Option<ProcessLease>,
}

impl Mirror {
    /// Opens the mirror; `None` if no primary is configured. Positions with primaries that are not
    /// configured any more are dropped. Of several processes over one database, another one follows
    /// once this one has not answered for `lease`.
    ///
    /// # Errors
    /// When a file cannot be used, or the site record calls this a primary site.
    pub fn open(
        config: &MirrorConfig,
        lease: Duration,
        store: &Arc<Store>,
        own: &SiteRecord,
    ) -> anyhow::Result<Option<Self>> {
        let servers: Vec<_> = open_all(config, own)?.into_iter().map(Arc::new).collect();
        drop_positions(store, &servers)?;
        if servers.is_empty() {
            return Ok(None);
        }
        let limits = WorkerLimits {
            batch: BatchLimits {
                items: config.batch_items(),
                bytes: config.batch_bytes(),
                dump_bytes: config.dump_bytes,
            },
            request: RequestLimits::new(config),
            busy_interval: Duration::from_millis(config.busy_interval_ms.into()),
            retry_max: Duration::from_millis(config.retry_ms_max.into()),
        };
        let primaries = describe_all(&servers);
        let lease = open_lease(lease, store)?;
        let lease_state = lease.as_ref().map(|lease| Arc::clone(&lease.state));
        let (mut states, mut workers, mut listeners) = (Vec::new(), Vec::new(), Vec::new());
        for server in &servers {
            let state = Arc::new(MirrorSourceState::new(&server.name));
            states.push(Arc::clone(&state));
            let notify = server.notify.clone();
            let mut worker = MirrorWorker::open(
                Arc::clone(server),
                store,
                limits,
                Arc::clone(&state),
                lease_state.clone(),
            )?;
            if let Some((config, key)) = notify.filter(|_| worker.is_followed()) {
                let noticed = Arc::new(EventDescriptor::new().context("cannot create the event of notices")?);
                worker.wait_for(Arc::clone(&noticed));
                listeners.push(NoticeListener { config, key, noticed, state });
            }
            workers.push(worker);
        }
        let is_following = workers.iter().any(MirrorWorker::is_followed);
        workers.retain(MirrorWorker::is_followed);
        if is_following && own.is_primary() {
            bail!(
                "`mirror.primary` is set, and the site record calls this a primary site. If it is to follow its \
                 primary, set `primarySite` to false in the site record, since changes are made at the primary. If it \
                 was to be promoted, `handle-admin promote --config` makes it the primary"
            );
        }
        if !is_following {
            tracing::warn!("this mirror has been promoted: remove `mirror.primary` from the configuration");
        }
        let (workers, listeners) = (Mutex::new(workers), Mutex::new(listeners));
        Ok(Some(Self { servers, states, workers, listeners, primaries, is_following, lease }))
    }

    /// The work of each thread, once.
    #[must_use]
    pub fn take_workers(&self) -> Vec<MirrorWorker> {
        std::mem::take(&mut *self.workers.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What waits for notices, each in a thread, once.
    #[must_use]
    pub fn take_listeners(&self) -> Vec<NoticeListener> {
        std::mem::take(&mut *self.listeners.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The servers of all primaries.
    #[must_use]
    pub fn servers(&self) -> &[Arc<PrimaryServer>] {
        &self.servers
    }

    /// Where changes are made, if not here.
    #[must_use]
    pub fn primaries(&self) -> Option<&str> {
        self.is_following.then_some(&*self.primaries)
    }

    /// The progress with each server of each primary.
    #[must_use]
    pub fn status(&self) -> Vec<SourceStatus> {
        self.states.iter().map(|state| state.status()).collect()
    }

    /// Which of several processes over one database follows; `None` if there is only this one.
    #[must_use]
    pub fn lease(&self) -> Option<LeaseStatus> {
        self.lease.as_ref().map(|lease| lease.state.status())
    }

    /// Ends all streams, and lets another process follow.
    pub fn stop(&self) {
        self.states.iter().for_each(|state| state.control.stop());
        if let Some(lease) = &self.lease {
            lease.stop();
        }
    }
}

/// Begins to wait for the lease of the process that follows, if several may do so.
fn open_lease(length: Duration, store: &Store) -> anyhow::Result<Option<ProcessLease>> {
    let holder = this_process();
    let host = holder.host.clone();
    let lease = store.mirror_lease(holder, length);
    let start = |lease| ProcessLease::start("mirror", lease, host, length, || {});
    lease.map(start).transpose().context("cannot start the thread that keeps the lease of the mirror")
}

/// Drops the positions with other primaries, so that an interrupted dump of one of them does not
/// keep the records from being published.
fn drop_positions(store: &Store, servers: &[Arc<PrimaryServer>]) -> Result<(), StoreError> {
    let names: Vec<String> = servers.iter().map(|server| server.name.clone()).collect();
    store.change(move |transaction| {
        for (name, stored) in transaction.mirror_positions()? {
            let position = MirrorPosition::decode(&stored)?;
            if position.dump.is_some() && !names.contains(&name) {
                tracing::warn!(
                    primary = name,
                    "an interrupted dump of a primary is given up, so some records may be old"
                );
            }
        }
        transaction.keep_mirror_positions(&names)
    })
}
