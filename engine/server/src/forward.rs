//! Requests that are not for the published set: forwarded to `handle-admin` over a local socket, whose answers go back
//! as if they were ours.
//!
//! - Listing handles and homed prefixes, which deployed clients ask the first interface for queries to do.
//! - Answers to challenges that `handle-admin` has made.
//! - Reads of what is not public by identities whose keys or groups are at another service.
//! - Derived prefixes at another service, for clients that do not understand a referral.
//!
//! Workers never wait for any of it, and neither do the threads that sign: a few threads of its own do, within a bound.
//! The number of requests is bounded (`places`), fairly by source; one more is answered that the server is busy, and so
//! is one that `handle-admin` does not answer. When it hangs, little is tried (`breaker`).

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
use stats::{ForwardCounts, ForwardStats};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;
pub(crate) use thread::ForwardThread;
use zeroize::Zeroizing;

/// What all forwarding threads share.
#[derive(Debug)]
pub(crate) struct Forwarder {
    path: PathBuf,
    /// How many threads there are.
    pub(crate) threads: usize,
    patience: Duration,
    pub(crate) identities: bool,
    pub(crate) queue: ForwardQueue,
    places: ForwardPlaces,
    breaker: CircuitBreaker,
    counts: ForwardCounts,
}

/// What a job has while it is forwarded.
#[derive(Debug)]
pub(crate) struct ForwardState {
    place: ForwardPlace,
    /// What is sent to `handle-admin`; its connection from the first part of a listing on.
    stage: ForwardStage,
    /// The answer where there is no other, unsigned.
    busy: Vec<u8>,
    /// Whether that is to be signed.
    signs: bool,
}

#[derive(Debug)]
enum ForwardStage {
    /// Nothing is sent yet: this frame is to be.
    Request(Zeroizing<Vec<u8>>),
    /// A part of a listing has come over this connection, and others will.
    Listing(UnixStream),
    /// Nothing more will come.
    Over,
}

impl ForwardState {
    /// `request` in its `place`. `busy` is its answer where there is no other, to be signed if `signs` says so.
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

    /// Whether the answer goes on behind what has come.
    pub(crate) const fn has_more(&self) -> bool {
        matches!(self.stage, ForwardStage::Listing(_))
    }
}

impl Forwarder {
    /// What `config` asks for; `None` where nothing is forwarded. `jobs_count` is the number of jobs of the slow path.
    pub(crate) fn new(config: &ForwardConfig, jobs_count: usize) -> Option<Self> {
        Some(Self {
            path: config.socket.clone()?,
            threads: config.requests,
            patience: Duration::from_millis(config.patience_ms.into()),
            identities: config.identities,
            queue: ForwardQueue::default(),
            places: ForwardPlaces::new(config, jobs_count),
            breaker: CircuitBreaker::new(Duration::from_millis(config.rest_ms.into())),
            counts: ForwardCounts::default(),
        })
    }

    /// A place for a request from `source`; counted where there is none.
    pub(crate) fn enter(&self, source: IpAddr, is_datagram: bool) -> Option<ForwardPlace> {
        let entered = self.places.enter(source, is_datagram);
        match entered {
            Ok(_) => self.counts.accepted(),
            Err(NoPlace::Full) => self.counts.refused_full(),
            Err(NoPlace::OfSource) => self.counts.refused_of_source(),
        }
        entered.ok()
    }

    /// Hands over a job with a [`ForwardState`].
    pub(crate) fn submit(&self, job: Box<SlowJob>) {
        self.queue.submit(ForwardItem::Job(job));
    }

    /// What was counted.
    pub(crate) fn stats(&self) -> ForwardStats {
        let (waiting, listings) = self.places.counts();
        self.counts.stats(waiting, listings, self.breaker.is_resting())
    }
}
