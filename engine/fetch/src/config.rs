//! The configuration: a TOML file, overridden by arguments, checked before anything starts.

pub use handle_daemon::notice::listener::NotifyConfig;
use handle_daemon::publisher_keys::{PublisherKeyError, read_public};
use handle_daemon::scrape::ObserveConfig;
use handle_daemon::settings;
use handle_fleet::config::FLEET_URL_RULE;
use handle_fleet::{FetchLimits, StorageConfig};
use handle_snapshot::set::statement::AcceptedPublishers;
use std::path::PathBuf;
use std::time::Duration;

/// Maximum time for which layers may be kept, and of the age of a set: a year and a day.
const TIME_S_MAX: u64 = 366 * 86_400;

settings! {
    /// Configuration of `handle-fetch`.
    pub struct Config of process without port {
        /// Set this when the process starts without arguments: where the sets of the publisher are.
        /// Required, here or as the first argument.
        restart url: String = String::new(), FLEET_URL_RULE;
        /// Set this when the process starts without arguments: the directory for the set, which
        /// `handled` and `handle-gateway` serve. Required, here or as the second argument.
        restart directory: PathBuf = PathBuf::new();
        /// Set this when a script or timer fetches: fetch once and exit, with code 0 if the set in
        /// the directory is then current.
        restart once: bool = false;
        /// Set this when changes must arrive sooner without notices, or requests cost money:
        /// interval of asking for a new set.
        live interval_ms: u64 = 1000, 10..=3_600_000;
        /// Set this when sets are signed, and reading new layers twice takes too long: `false`
        /// checks only their digests, not records and index. A publisher can then make a set that
        /// is served with errors.
        live check_records: bool = true;
        /// Set this when processes need longer to open a set that they found: time for which a
        /// layer is kept after the last set that names it.
        live grace_s: u64 = 60, 1..=TIME_S_MAX;
        section notify: NotifyConfig;
        section publishers: PublishersConfig;
        section storage: StorageConfig;
        section observe: ObserveConfig;
    } constants {
        /// Maximum pause after a layer was refused. The pause begins with `interval_ms` and doubles
        /// with each refusal, because each attempt downloads the layer again. A mended layer is
        /// found after a minute.
        refused_ms_max: u64 = 60_000;
        /// Time without a successful attempt after which `/readyz` answers 503: a restart of the
        /// source takes less. The set in the directory is still served.
        failing_s: u64 = 60;
    }
}

settings! {
    /// The publishers whose sets are fetched ([publishing.md](publishing.md#signed-sets)).
    pub struct PublishersConfig {
        /// Set this when only sets of certain publishers may be served: files with their public
        /// keys, native or PEM. If there are any, sets that are not signed, or by others, are
        /// refused.
        restart keys: Vec<PathBuf> = Vec::new();
        /// Set this when monitoring must notice a publisher that stands still: maximum age of its
        /// newest statement; beyond it, the set is stale, and `/readyz` answers 503. 0 for no
        /// limit, as for sets that are not signed.
        live age_max_s: u64 = 0, 0..=TIME_S_MAX;
    }
}

impl Config {
    /// Bounds of fetching.
    #[must_use]
    pub fn fetch_limits(&self) -> FetchLimits {
        FetchLimits {
            checks_records: self.check_records,
            grace: Duration::from_secs(self.grace_s),
            ..FetchLimits::default()
        }
    }

    /// Interval of attempts, after so many attempts in a row in which a layer was refused.
    #[must_use]
    pub fn interval(&self, refusals: u32) -> Duration {
        let doubled = self.interval_ms.saturating_mul(1_u64.checked_shl(refusals).unwrap_or(u64::MAX));
        Duration::from_millis(match refusals {
            0 => self.interval_ms,
            _ => doubled.min(self.refused_ms_max.max(self.interval_ms)),
        })
    }

    /// The publishers whose sets are accepted; `None` if all are.
    ///
    /// # Errors
    /// When a key cannot be read.
    pub fn accepted_publishers(&self) -> Result<Option<AcceptedPublishers>, PublisherKeyError> {
        let keys = read_public(&self.publishers.keys)?;
        Ok((!keys.is_empty()).then(|| {
            AcceptedPublishers::new(Box::new(move |signer, message, signature| {
                keys.iter().any(|key| key.has_signed(&signer.0, message, signature))
            }))
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_after_refused_layers_doubles_up_to_a_limit() {
        let config = Config { interval_ms: 1000, refused_ms_max: 60_000, ..Config::default() };
        let pauses = [0, 1, 2, 5, 6, 64, u32::MAX].map(|refusals| config.interval(refusals).as_millis());
        assert_eq!(pauses, [1000, 2000, 4000, 32_000, 60_000, 60_000, 60_000]);
        let config = Config { interval_ms: 90_000, ..config };
        assert_eq!([0, 1].map(|refusals| config.interval(refusals).as_millis()), [90_000, 90_000]);
    }
}
