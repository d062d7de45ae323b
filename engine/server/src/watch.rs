//! What a worker does besides answering, to be watched: times, sources, the query log.

use crate::config::Config;
use crate::counters::{Counters, Transport};
use crate::latency::Stopwatch;
use crate::query_log::Tap;
use crate::server::Shared;
use crate::sources::Sampler;
use handle_net::Peer;
use handle_proto::ResponseCode;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// One worker's ends of everything that watches it.
#[derive(Debug)]
pub(crate) struct Watch {
    at: usize,
    /// Which batches are measured.
    stopwatch: Stopwatch,
    /// When the batch was handed over, if it is one that is measured.
    measured_since: Option<Instant>,
    /// Which datagrams have their source noted.
    sampler: Sampler,
    /// Where answers are logged, if they are.
    tap: Option<Tap>,
}

impl Watch {
    pub(crate) fn new(config: &Config, shared: &Shared, at: usize) -> Self {
        let observe = &config.observe;
        Self {
            at,
            stopwatch: Stopwatch::new(observe.latency_every),
            measured_since: None,
            sampler: Sampler::new(observe.sources_every, observe.sources_bits(), at as u64),
            tap: shared.query_log.clone().map(Tap::new),
        }
    }

    /// A batch that is not empty was handed over.
    #[inline]
    pub(crate) fn begin(&mut self, now_unix: Duration) {
        self.measured_since = self.stopwatch.start();
        if let Some(tap) = &mut self.tap {
            tap.begin(Instant::now(), now_unix);
        }
    }

    /// Notes the sources of some of `count` datagrams; `source` says where the one at a position is from.
    #[inline]
    pub(crate) fn sample_sources(
        &mut self,
        shared: &Shared,
        now_unix: Duration,
        count: usize,
        source: impl Fn(usize) -> IpAddr,
    ) {
        self.sampler.sample(&shared.sources[self.at], now_unix.as_secs(), count, source);
    }

    /// An answer with `code` to `request`, a message with its envelope, is on its way.
    #[inline]
    pub(crate) fn answered<'r>(
        &mut self,
        transport: Transport,
        peer: Peer,
        request: impl FnOnce() -> &'r [u8],
        code: ResponseCode,
        counters: &Counters,
    ) {
        if let Some(tap) = &mut self.tap {
            tap.record(transport, peer.remote().ip(), request(), code, counters);
        }
    }

    /// The answers to a batch of `received` datagrams are with the kernel.
    #[inline]
    pub(crate) fn end(&mut self, received: usize, counters: &Counters) {
        if let Some(since) = self.measured_since.take() {
            counters.answer_times.add(since.elapsed(), received as u64);
        }
    }
}
