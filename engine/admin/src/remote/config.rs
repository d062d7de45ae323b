//! Settings of questions to other services.

use handle_daemon::settings;
use handle_daemon::settings::SettingError;
use std::path::PathBuf;
use std::time::Duration;

settings! {
    /// Other services, asked about identities and groups whose handles are not here
    /// ([remote-services.md](remote-services.md)).
    pub struct RemoteConfig where knows_a_service {
        /// Set this when administrators have their handles at other services: ask these. Otherwise
        /// such identities and groups have no permissions.
        restart enabled: bool = false;
        /// Set this when `enabled` is: the global service, as `bootstrap_handles` (JSON) or
        /// `root_info` of a deployed client.
        restart root: Option<PathBuf> = None;
        /// Set this when prefixes have a preconfigured service: `local_info.json` or `local_info`
        /// of a deployed client.
        restart local_info: Option<PathBuf> = None;
        /// Set this when other services do not sign, and are trusted anyway: `false` accepts
        /// answers without a chain of trust from the global service.
        restart certified: bool = true;
        /// Set this when other services are slow, or requests should wait for less: most time for
        /// one query. A request waits for at most about three times as long.
        restart timeout_ms: u32 = 5000, 1..=120_000;
        /// Set this when more identities are elsewhere, or memory is short: bytes of cached
        /// answers.
        restart cache_bytes: usize = 16 << 20, 0..=1 << 34;
        /// Set this when a value revoked elsewhere must count here for less, or may for longer:
        /// most time that an answer is cached, whatever its TTL. A key that has authenticated a
        /// session counts until that ends.
        restart cache_s: u32 = 300, 0..=172_800;
    } constants {
        /// Requests that wait for other services at a time, each of which keeps a thread. One
        /// source gets a quarter, its /24 or /48 a half. One more is refused.
        requests: usize = 16;
        /// Records queried from other services for one request: groups in groups, with their keys.
        queries_per_request: usize = 16;
        /// After a query without an answer, time for which no query about the same handle is sent,
        /// separately for its values and for verdicts: requests for it would wait in vain.
        backoff_ms: u32 = 5000;
        /// Handles remembered for this time, more than requests can wait for within it.
        backoff_handles: usize = 1024;
    }
}

impl RemoteConfig {
    /// About the most time that a request waits for other services; zero if none are asked.
    pub(crate) fn wait_max(&self) -> Duration {
        match self.enabled {
            true => 3 * Duration::from_millis(self.timeout_ms.into()),
            false => Duration::ZERO,
        }
    }
}

fn knows_a_service(config: &RemoteConfig) -> Result<(), SettingError> {
    if !config.enabled || config.root.is_some() || config.local_info.is_some() {
        return Ok(());
    }
    Err(SettingError::Together(
        "`remote.enabled` without `remote.root`: name the file of the global service (bootstrap_handles)"
            .to_owned(),
    ))
}
