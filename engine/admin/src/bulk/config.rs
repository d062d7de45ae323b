//! Settings of changes of many records at once.

use handle_daemon::settings;

settings! {
    /// Changes of many records at once, handed over by `handle-gateway`
    /// ([administration.md](../administration.md#many-changes-at-once)).
    pub struct BulkConfig {
        /// Set this when more changes of repeatable requests must be remembered, or memory is
        /// short: results that are kept. Beyond it, or after a day, the oldest requests are
        /// forgotten. There are at most a 200th as many requests. One identity has a quarter of
        /// both.
        restart results: usize = 2_000_000, 1..=1 << 40;
    } constants {
        /// Changes in one commit. More make a single change wait longer for its turn, and take
        /// little less time together.
        commit_changes: usize = 256;
        /// Timeout of a connection without requests, and for its peer to read results: longer than
        /// a client of the gateway may pause in the body of a request.
        idle_ms: u32 = 120_000;
        /// How long a repeatable request is remembered: clients repeat within hours.
        keys_s: u32 = 86_400;
    }
}

impl BulkConfig {
    /// Repeatable requests that are remembered: a 200th of the results.
    #[must_use]
    pub const fn keys(&self) -> usize {
        self.results.div_ceil(200)
    }

    /// Of these, those of one identity: a quarter.
    #[must_use]
    pub const fn keys_per_identity(&self) -> usize {
        self.keys().div_ceil(4)
    }

    /// Results that are kept of one identity: a quarter.
    #[must_use]
    pub const fn results_per_identity(&self) -> usize {
        self.results.div_ceil(4)
    }
}
