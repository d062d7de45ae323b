//! The configuration: a TOML file, overridden by arguments, checked before anything starts.

use handle_daemon::publisher_keys::{PublisherKeyError, read_public};
use handle_daemon::scrape::ScrapeLimits;
use handle_daemon::settings;
use handle_daemon::settings::SettingRule;
use handle_fleet::{FetchLimits, FleetUrl, StorageConfig};
use handle_snapshot::set::statement::AcceptedPublishers;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Maximum time for which layers may be kept, and of the age of a set: a year and a day.
const TIME_S_MAX: u64 = 366 * 86_400;

/// The place of sets, which may be empty: the arguments then have it.
const PLACE: SettingRule<String> = SettingRule {
    words: "`file:///DIRECTORY`, `s3://BUCKET/PATH`, `gs://BUCKET/PATH`, `az://CONTAINER/PATH`",
    check: |url| match url.is_empty() {
        true => Ok(()),
        false => url.parse::<FleetUrl>().map(|_| ()).map_err(|error| format!("is not usable: {error}")),
    },
};

settings! {
    /// Configuration of `handle-fetch`.
    pub struct Config of process without port {
        /// Where the sets of the publisher are. Required, here or as the first argument.
        restart url: String = String::new(), PLACE;
        /// Directory of the set, which `handled` and `handle-gateway` serve. Required, here or as
        /// the second argument.
        restart directory: PathBuf = PathBuf::new();
        /// Fetch once, and exit: with code 0 if the set in the directory is then current.
        restart once: bool = false;
        /// Interval at which the source is asked for a new set.
        live interval_ms: u64 = 1000, 10..=3_600_000;
        /// Chunks of layers that are requested at a time. Each takes memory for its bytes.
        live requests: usize = 4, 1..=32;
        /// Bytes of a chunk.
        live chunk_len: u64 = 2 << 20, 64 << 10..=16 << 20;
        /// Check every record and the index of new layers, besides their digests. Without it, a
        /// publisher can make a set that is served with errors; a signed set proves its publisher.
        live check_records: bool = true;
        /// Time for which a layer is kept after the last set that names it.
        live grace_s: u64 = 60, 1..=TIME_S_MAX;
        section publishers: PublishersConfig;
        section storage: StorageConfig;
        section limits: FetchProcessLimits;
        section observe: ObserveConfig;
    }
}

settings! {
    /// The publishers whose sets are fetched ([publishing.md](publishing.md#signed-sets)).
    pub struct PublishersConfig {
        /// Files with the public keys of the publishers, native or PEM. If there are any, sets that
        /// are not signed, or signed by others, are refused.
        restart keys: Vec<PathBuf> = Vec::new();
        /// Maximum age of the newest statement of the publisher. Beyond it, the set is stale, and
        /// `/readyz` answers 503. 0 for no limit. The age of a set that is not signed is not known,
        /// and there is no limit.
        live age_max_s: u64 = 0, 0..=TIME_S_MAX;
    }
}

settings! {
    /// Limits of the process.
    pub struct FetchProcessLimits {
        /// Most bytes of a line on the control socket.
        live control_line_bytes: usize = 4096, 64..=1 << 20;
        /// Time without a successful attempt after which `/readyz` answers 503. The set in the
        /// directory is still served.
        live failing_s: u64 = 60, 1..=86_400;
    }
}

settings! {
    /// `/metrics`, `/healthz` and `/readyz` ([fetch-metrics.md](fetch-metrics.md)).
    pub struct ObserveConfig {
        /// Address of the endpoint; none if not set. It has neither encryption nor authentication,
        /// so it belongs on loopback or a private network.
        restart http: Option<SocketAddr> = None;
        /// Connections of scrapers at a time; further ones wait in the kernel.
        live http_connections: usize = 16, 1..=1024;
        /// Most bytes of the head of a scraper's request.
        live http_header_bytes: usize = 4096, 128..=1 << 16;
        /// Longest duration of a connection of a scraper.
        live http_timeout_ms: u32 = 5000, 10..=600_000;
    }
}

impl ObserveConfig {
    /// Bounds of the endpoint.
    #[must_use]
    pub fn scrape_limits(&self) -> ScrapeLimits {
        ScrapeLimits {
            connections: self.http_connections,
            header_len_max: self.http_header_bytes,
            patience: Duration::from_millis(self.http_timeout_ms.into()),
        }
    }
}

impl Config {
    /// Bounds of fetching.
    #[must_use]
    pub const fn fetch_limits(&self) -> FetchLimits {
        FetchLimits {
            requests: self.requests,
            chunk_len: self.chunk_len,
            checks_records: self.check_records,
            grace: Duration::from_secs(self.grace_s),
        }
    }

    /// Interval of attempts.
    #[must_use]
    pub const fn interval(&self) -> Duration {
        Duration::from_millis(self.interval_ms)
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
