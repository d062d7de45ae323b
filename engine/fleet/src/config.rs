//! The settings of object storage.

use crate::location::FleetUrl;
use handle_daemon::settings;
use handle_daemon::settings::SettingRule;
use std::path::PathBuf;
#[cfg(feature = "object-storage")]
use std::time::Duration;

/// The place of sets, which may be empty.
pub const PLACE: SettingRule<String> = SettingRule {
    words: "`file:///DIRECTORY`, `s3://BUCKET/PATH`, `gs://BUCKET/PATH`, `az://CONTAINER/PATH`",
    check: |url| match url.is_empty() {
        true => Ok(()),
        false => url.parse::<FleetUrl>().map(|_| ()).map_err(|error| format!("is not usable: {error}")),
    },
};

settings! {
    /// Requests to object storage ([fleets.md](../fleets.md#object-storage)).
    pub struct StorageConfig {
        /// File with credentials and options of object storage, as `NAME=value` lines with the
        /// names of environment variables, such as `AWS_ACCESS_KEY_ID`. They take precedence over
        /// the environment. Only its owner may have access to it.
        restart credentials_file: Option<PathBuf> = None;
        /// Most time for one request.
        restart timeout_ms: u64 = 30_000, 100..=600_000;
        /// Most time for connecting.
        restart connect_timeout_ms <= timeout_ms: u64 = 5000, 100..=600_000;
        /// How often a failed request is repeated before the whole attempt fails.
        restart retries: usize = 2, 0..=16;
    }
}

#[cfg(feature = "object-storage")]
impl StorageConfig {
    pub(crate) const fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }

    pub(crate) const fn connect_timeout(&self) -> Duration {
        Duration::from_millis(self.connect_timeout_ms)
    }
}
