//! Settings of the threads for costly work.

use handle_daemon::settings;

settings! {
    /// Work that any client can cause and that takes milliseconds: key exchanges, derived keys, and
    /// signatures outside sessions.
    pub struct CostlyConfig {
        /// Low-priority threads for this work; 0 for one for each two cores, and at least one.
        restart threads: usize = 0, 0..=256;
        /// Requests waiting for these threads or in progress. If 8 or more, one source gets a
        /// quarter, its /24 or /48 a half. One more gets RC 3.
        restart requests: usize = 64, 1..=1 << 12;
    }
}
