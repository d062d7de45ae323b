//! Settings of the threads for costly work.

use handle_daemon::settings;

settings! {
    /// Work that any client can cause and that takes milliseconds: key exchanges, derived keys, and
    /// signatures outside sessions.
    pub struct CostlyConfig {
        /// Set this when key exchanges and signatures should take fewer cores, or more:
        /// low-priority threads for this work; 0 for one for each two cores, at least one.
        restart threads: usize = 0, 0..=256;
    } constants {
        /// Requests waiting for these threads or in progress. One source gets a quarter, its /24 or
        /// /48 a half. One more gets RC 3. Each takes some milliseconds, so the last of them waits
        /// for less than a second.
        requests: usize = 64;
    }
}
