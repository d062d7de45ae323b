//! Settings of questions to other services.

use handle_daemon::settings;
use handle_daemon::settings::SettingError;
use std::path::PathBuf;

settings! {
    /// Other services, which are asked about identities and groups whose handles are not here
    /// ([remote-services.md](remote-services.md)).
    pub struct RemoteConfig where knows_a_service {
        /// Query other services about identities. Otherwise identities and groups whose handles are
        /// at another service have no permissions.
        restart enabled: bool = false;
        /// The global service: `bootstrap_handles` (JSON) or `root_info` of a deployed client.
        restart root: Option<PathBuf> = None;
        /// Prefixes with a preconfigured service: `local_info.json` or `local_info` of a deployed
        /// client.
        restart local_info: Option<PathBuf> = None;
        /// Accept signed answers only, with a chain of trust from the global service.
        restart certified: bool = true;
        /// Requests that wait for other services at a time. If 8 or more, one source gets a
        /// quarter, its /24 or /48 a half. One more is refused.
        restart requests: usize = 16, 1..=1024;
        /// Records queried from other services for one request.
        restart queries_per_request: usize = 16, 1..=256;
        /// Most time for one query. A request that has waited this long sends no further query, so
        /// it waits for at most about three times this value.
        restart timeout_ms: u32 = 5000, 1..=120_000;
        /// Bytes of cached answers.
        restart cache_bytes: usize = 16 << 20, 0..=1 << 34;
        /// Most time for which an answer is cached, whatever its TTL. A value revoked elsewhere
        /// counts here for up to this time; a key that has authenticated a session counts until the
        /// session ends.
        restart cache_s: u32 = 300, 0..=172_800;
        /// After a query without an answer, time for which no query about the same handle is sent,
        /// separately for its values and for verdicts; 0 to query each time.
        restart backoff_ms: u32 = 5000, 0..=3_600_000;
        /// Handles remembered for `remote.backoff_ms`.
        restart backoff_handles: usize = 1024, 0..=1 << 20;
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
