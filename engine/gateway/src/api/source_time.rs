//! Processor time of requests that may cost more than plain ones, by source.
//!
//! Every factor of such a request is bounded, and their product is what it costs: names, indexes
//! and types, times the values of a record. Sources pay for it in turns.

use crate::state::GatewayState;
use handle_console::parameters::Parameters;
use handle_daemon::source_rates::{RetryAfter, SourceRate};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Time after which other connections of the worker get their turn.
pub(super) const TURN: Duration = Duration::from_micros(100);
/// Turns that the requests of one source may take: a fifth of the time of one core, with 100 ms at
/// once. A request beyond it goes on later. Other connections of the worker then wait for a fifth
/// of a turn on average.
const SOURCE_RATE: SourceRate =
    SourceRate { interval_ns: 500_000, burst: 1000, ipv4_bits: 32, ipv6_bits: 64 };
/// Time after which a request of a source beyond its rate asks again whether it may go on.
pub(super) const RATE_PAUSE: Duration = Duration::from_millis(5);
/// The longest pause: many requests of a source may wait.
const RATE_PAUSE_MAX: Duration = Duration::from_millis(200);
/// Indexes and types that a plain request may name. Twice as many take less than 10 microseconds
/// more with a record of 2,000 values.
const PLAIN_SELECTION: usize = 16;

/// Takes a turn of `source`.
///
/// # Errors
/// When it has none left for now.
pub(super) fn take_turn(state: &GatewayState, source: IpAddr) -> Result<(), RetryAfter> {
    state.bulk_time.admit_at_rate(source, Instant::now(), SOURCE_RATE)
}

/// The time that a request for a record takes from its source.
pub(super) struct ReadTime {
    source: IpAddr,
    begun: Instant,
}

impl ReadTime {
    /// Waits for the turn of a request that names many indexes and types; `None` for others.
    pub(super) async fn begin(
        state: &GatewayState,
        source: IpAddr,
        parameters: &Parameters<'_>,
    ) -> Option<Self> {
        let named = parameters.iter().filter(|(name, _)| matches!(*name, "index" | "type"));
        if named.take(PLAIN_SELECTION + 1).count() <= PLAIN_SELECTION {
            return None;
        }
        let mut pause = RATE_PAUSE;
        while take_turn(state, source).is_err() {
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(RATE_PAUSE_MAX);
        }
        Some(Self { source, begun: Instant::now() })
    }

    /// Leaves out a wait for another service.
    pub(super) fn go_on(&mut self) {
        self.begun = Instant::now();
    }

    /// Takes what the request has used beyond its turn.
    pub(super) fn end(self, state: &GatewayState) {
        let turns = self.begun.elapsed().as_micros() / TURN.as_micros();
        let turns = u32::try_from(turns).unwrap_or(u32::MAX);
        state.bulk_time.charge_at_rate(self.source, Instant::now(), SOURCE_RATE, turns);
    }
}
