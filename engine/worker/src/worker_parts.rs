//! The parts of a worker that requests over UDP and TCP use alike.

use crate::clock::WorkerClock;
use crate::counters::Counters;
use crate::rate_limit::RateLimit;
use crate::sessions::sealer::SessionSealer;
use crate::slow::shard::SlowShard;
use crate::telemetry::WorkerTelemetry;
use handle_net::Datapath;
use std::io;

/// The parts of a worker that requests over UDP and TCP use alike.
pub(crate) struct WorkerParts {
    pub(crate) slow: SlowShard,
    /// Answers in sessions; `None` without sessions.
    pub(crate) sealer: Option<SessionSealer>,
    /// Limits on replies over UDP; `None` when disabled.
    pub(crate) rate_limit: Option<Box<RateLimit>>,
    pub(crate) telemetry: WorkerTelemetry,
    pub(crate) clock: WorkerClock,
}

impl WorkerParts {
    /// Sets whether limits tell answers apart by the handles of their requests: copies of cached
    /// values have no address of their own.
    pub(crate) fn identify_answers(&mut self, by_request: bool) {
        if let Some(rate_limit) = &mut self.rate_limit {
            rate_limit.identify_by_request(by_request);
        }
    }

    /// Reads the clock for everything that happens until the next call.
    pub(crate) fn read_clock(&mut self) {
        self.clock.read();
        if let Some(rate_limit) = &mut self.rate_limit {
            rate_limit.set_time(self.clock.now());
        }
        if let Some(sealer) = &mut self.sealer {
            sealer.set_time(self.clock.now());
        }
        self.telemetry.set_time(&self.clock);
    }
}

/// Sends what is in the outbox, and counts it.
///
/// # Errors
/// Errors of the datapath, after which it is unusable.
pub(crate) fn flush(path: &mut dyn Datapath, counters: &Counters) -> io::Result<()> {
    let flushed = path.flush()?;
    counters.datagrams_sent.add(flushed.sent.into());
    counters.trains_sent.add(flushed.trains.into());
    if flushed.trains_refused > 0 {
        if counters.trains_refused.get() == 0 {
            tracing::warn!("the kernel or a device refuses answers in trains; they are sent one by one");
        }
        counters.trains_refused.add(flushed.trains_refused.into());
    }
    if flushed.failed > 0 || flushed.would_block > 0 {
        counters.dropped_send_refused.add(flushed.failed.into());
        counters.dropped_send_full.add(flushed.would_block.into());
    }
    Ok(())
}
