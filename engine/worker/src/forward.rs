//! Forwarding of requests that the published set cannot answer: they go to `handle-admin` over a
//! local socket, and its answers are sent to the client as if this process had made them.
//!
//! - Listing handles and homed prefixes, which deployed clients request from the first interface
//!   for queries.
//! - Answers to challenges that `handle-admin` has made.
//! - Reads of non-public values by identities whose keys or groups are at another service.
//! - Derived prefixes at another service, for clients that do not understand a referral.
//!
//! Neither the workers nor the threads that sign wait for forwarding: a few separate threads do,
//! with a time limit. The number of requests is bounded (`permits`), fairly by source. A request
//! beyond the bound is answered that the server is busy, and so is a request that `handle-admin`
//! does not answer. When `handle-admin` hangs, only few requests are tried ([`CircuitBreaker`]).

pub mod config;
pub(crate) mod permits;
pub(crate) mod queue;
pub(crate) mod state;
pub(crate) mod stats;
pub(crate) mod thread;

use crate::slow::queue::SlowJob;
use config::ForwardConfig;
use handle_daemon::breaker::CircuitBreaker;
use handle_daemon::permits::NoPermit;
use permits::{ForwardPermit, ForwardPermits};
use queue::{ForwardItem, ForwardQueue};
use stats::ForwardCounts;
pub(crate) use stats::ForwardStats;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The state that all forwarding threads share.
#[derive(Debug)]
pub(crate) struct Forwarder {
    path: PathBuf,
    /// The number of forwarding threads.
    pub(crate) threads: usize,
    timeout: Duration,
    pub(crate) identities: bool,
    pub(crate) queue: ForwardQueue,
    permits: ForwardPermits,
    breaker: CircuitBreaker,
    counts: ForwardCounts,
}

impl Forwarder {
    /// Creates the forwarder that `config` describes; `None` when nothing is forwarded.
    /// `jobs_count` is the number of jobs of the slow path.
    pub(crate) fn new(config: &ForwardConfig, jobs_count: usize) -> Option<Self> {
        let [timeout, backoff] =
            [config.timeout_ms, config.backoff_ms].map(|ms| Duration::from_millis(ms.into()));
        Some(Self {
            path: config.socket.clone()?,
            threads: config.requests,
            timeout,
            identities: config.identities,
            queue: ForwardQueue::default(),
            permits: ForwardPermits::new(config, jobs_count),
            // Each step of an attempt has the timeout: sending and receiving on the kept connection
            // and, if that has ended, connecting, sending and receiving on a new one.
            breaker: CircuitBreaker::new(1, backoff, 5 * timeout),
            counts: ForwardCounts::default(),
        })
    }

    /// Takes a permit for a request from `source`. A refusal is counted.
    pub(crate) fn enter(&self, source: IpAddr, is_datagram: bool) -> Option<ForwardPermit> {
        let entered = self.permits.enter(source, is_datagram);
        match entered {
            Ok(_) => self.counts.accepted(),
            Err(NoPermit::Full) => self.counts.refused_full(),
            Err(NoPermit::OfHolder) => self.counts.refused_of_source(),
        }
        entered.ok()
    }

    /// Hands a job with a [`ForwardState`](state::ForwardState) to the forwarding threads.
    pub(crate) fn submit(&self, job: Box<SlowJob>) {
        self.queue.submit(ForwardItem::Job(job));
    }

    /// The counters and the current numbers.
    pub(crate) fn stats(&self) -> ForwardStats {
        let (waiting, listings) = (self.permits.count(), self.permits.listings_count());
        self.counts.stats(waiting, listings, self.breaker.is_open())
    }
}
