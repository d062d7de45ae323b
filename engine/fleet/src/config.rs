//! The settings of object storage.

use crate::location::FleetUrl;
use handle_daemon::settings;
use handle_daemon::settings::SettingRule;
use std::path::PathBuf;
#[cfg(feature = "object-storage")]
use std::time::Duration;

/// The location of sets, which may be empty.
pub const FLEET_URL_RULE: SettingRule<String> = SettingRule {
    words: "`file:///DIRECTORY`, `s3://BUCKET/PATH`, `gs://BUCKET/PATH`, `az://CONTAINER/PATH`",
    check: |url| match url.is_empty() {
        true => Ok(()),
        false => url.parse::<FleetUrl>().map(|_| ()).map_err(|error| format!("is not usable: {error}")),
    },
};

settings! {
    /// Requests to object storage ([fleets.md](../fleets.md#object-storage)).
    pub struct StorageConfig {
        /// Set this when object storage needs credentials or options: file with them, as lines
        /// `NAME=value` with the names of environment variables, such as `AWS_ACCESS_KEY_ID`, which
        /// it overrides.
        restart credentials_file: Option<PathBuf> = None;
        /// Set this when chunks take longer over a slow path: most time for one request, at most
        /// five seconds of it for connecting.
        restart timeout_ms: u64 = 30_000, 100..=600_000;
    } constants {
        /// How often a failed request is repeated before the whole attempt fails, which is made
        /// again after its own pause.
        retries: usize = 2;
    }
}

#[cfg(feature = "object-storage")]
impl StorageConfig {
    pub(crate) const fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }

    pub(crate) const fn connect_timeout(&self) -> Duration {
        Duration::from_millis(if self.timeout_ms < 5000 { self.timeout_ms } else { 5000 })
    }
}
