//! Settings of the limits on wrong secret keys.

use handle_daemon::secret_guesses::GuessLimits;
use handle_daemon::settings;

settings! {
    /// Limits on wrong secret keys, in whatever form. Further requests with one get 429 with
    /// `Retry-After`. Sources are as in `[request_rate]`, but none is exempt.
    pub struct SecretGuessesConfig {
        /// Set this when many callers behind one address send wrong keys by mistake, or guesses are
        /// limited elsewhere: average wrong keys per minute from a source, and five thirds of them
        /// at once; for one handle, a tenth per minute and a third at once. 0 for no limit.
        live per_minute: u32 = 60, 0..=1_000_000;
    } constants {
        /// Number of sources in the table, and of sources with a handle: more than an attacker with
        /// some networks has.
        entries: usize = 1 << 16;
    }
}

impl SecretGuessesConfig {
    /// The limits of a source, and of a source for the keys of one handle. By default, a program
    /// with an old key may be wrong 100 times until someone notices, and a person 20 times.
    #[must_use]
    pub const fn limits(&self) -> GuessLimits {
        let per_minute = self.per_minute;
        GuessLimits {
            per_minute,
            burst: (5 * per_minute).div_ceil(3),
            per_minute_of_identity: per_minute.div_ceil(10),
            burst_of_identity: per_minute.div_ceil(3),
        }
    }
}
