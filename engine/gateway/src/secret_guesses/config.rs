//! Settings of the limits on wrong secret keys.

use handle_daemon::settings;

settings! {
    /// Limits on wrong secret keys, in whatever form they come. Further requests with a secret key
    /// get 429 with `Retry-After`. Sources are as in `[request_rate]`, but none is exempt.
    pub struct SecretGuessesConfig {
        /// Average wrong secret keys per minute from a source; 0 for no limit.
        live per_minute: u32 = 60, 0..=1_000_000;
        /// Wrong secret keys that a source may send at once.
        live burst: u32 = 100, 1..=1_000_000;
        /// Average wrong secret keys per minute from a source for the keys of one handle; 0 for no
        /// limit.
        live per_minute_of_identity: u32 = 6, 0..=1_000_000;
        /// Wrong secret keys that a source may send at once for the keys of one handle.
        live burst_of_identity: u32 = 20, 1..=1_000_000;
        /// Number of sources in the table, and of sources with a handle.
        restart entries: usize = 1 << 16, 1024..=1 << 24;
    }
}
