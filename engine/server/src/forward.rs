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
//! with a time limit. The number of requests is bounded (`places`), fairly by source. A request
//! beyond the bound is answered that the server is busy, and so is a request that `handle-admin`
//! does not answer. When `handle-admin` hangs, only few requests are tried (`breaker`).

pub(crate) mod breaker;
pub mod config;
pub(crate) mod places;
pub(crate) mod queue;
pub(crate) mod stats;
mod thread;

use crate::slow::queue::SlowJob;
use breaker::CircuitBreaker;
use config::ForwardConfig;
use handle_daemon::sessions::forward::ForwardedRequest;
use places::{ForwardPlace, ForwardPlaces, NoPlace};
use queue::{ForwardItem, ForwardQueue};
use stats::ForwardCounts;
pub(crate) use stats::ForwardStats;
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;
pub(crate) use thread::ForwardThread;
use zeroize::Zeroizing;

/// The state that all forwarding threads share.
#[derive(Debug)]
pub(crate) struct Forwarder {
    path: PathBuf,
    /// The number of forwarding threads.
    pub(crate) threads: usize,
    patience: Duration,
    pub(crate) identities: bool,
    pub(crate) queue: ForwardQueue,
    places: ForwardPlaces,
    breaker: CircuitBreaker,
    counts: ForwardCounts,
}

/// The state of a job while it is forwarded.
#[derive(Debug)]
pub(crate) struct ForwardState {
    place: ForwardPlace,
    /// The progress of the request: the frame to send, or the connection of a listing from its
    /// first part on.
    stage: ForwardStage,
    /// The unsigned answer that is used when `handle-admin` gives none.
    busy: Vec<u8>,
    /// Whether `busy` is to be signed.
    signs: bool,
}

#[derive(Debug)]
enum ForwardStage {
    /// This frame is to be sent.
    Request(Zeroizing<Vec<u8>>),
    /// A part of a listing arrived over this connection, and more will follow.
    Listing(UnixStream),
    /// The answer is complete.
    Over,
}

impl ForwardState {
    /// Creates the state of `request` in its `place`. `busy` is the answer when there is no other,
    /// and `signs` says whether it is to be signed.
    pub(crate) fn new(
        place: ForwardPlace,
        request: &ForwardedRequest<'_>,
        busy: Vec<u8>,
        signs: bool,
    ) -> Box<Self> {
        let mut frame = Zeroizing::new(Vec::with_capacity(4 + request.expected_len()));
        frame.extend_from_slice(&[0; 4]);
        request.encode(&mut frame);
        let len = u32::try_from(frame.len() - 4).expect("two messages are below 4 GiB");
        frame[..4].copy_from_slice(&len.to_be_bytes());
        Box::new(Self { place, stage: ForwardStage::Request(frame), busy, signs })
    }

    /// Whether more parts of the answer follow.
    pub(crate) const fn has_more(&self) -> bool {
        matches!(self.stage, ForwardStage::Listing(_))
    }
}

impl Forwarder {
    /// Creates the forwarder that `config` describes; `None` when nothing is forwarded.
    /// `jobs_count` is the number of jobs of the slow path.
    pub(crate) fn new(config: &ForwardConfig, jobs_count: usize) -> Option<Self> {
        Some(Self {
            path: config.socket.clone()?,
            threads: config.requests,
            patience: Duration::from_millis(config.timeout_ms.into()),
            identities: config.identities,
            queue: ForwardQueue::default(),
            places: ForwardPlaces::new(config, jobs_count),
            breaker: CircuitBreaker::new(Duration::from_millis(config.backoff_ms.into())),
            counts: ForwardCounts::default(),
        })
    }

    /// Takes a place for a request from `source`. A refusal is counted.
    pub(crate) fn enter(&self, source: IpAddr, is_datagram: bool) -> Option<ForwardPlace> {
        let entered = self.places.enter(source, is_datagram);
        match entered {
            Ok(_) => self.counts.accepted(),
            Err(NoPlace::Full) => self.counts.refused_full(),
            Err(NoPlace::OfSource) => self.counts.refused_of_source(),
        }
        entered.ok()
    }

    /// Hands a job with a [`ForwardState`] to the forwarding threads.
    pub(crate) fn submit(&self, job: Box<SlowJob>) {
        self.queue.submit(ForwardItem::Job(job));
    }

    /// The counters and the current numbers.
    pub(crate) fn stats(&self) -> ForwardStats {
        let (waiting, listings) = self.places.counts();
        self.counts.stats(waiting, listings, self.breaker.is_open())
    }
}
