//! Settings of the Handle System.

use handle_client::plan::PRIVATE_NETWORKS;
use handle_daemon::settings;
use handle_daemon::settings::NETWORKS;
use std::path::PathBuf;

settings! {
    /// The Handle System, for handles that the set does not have. Without `root`, `local_info` and
    /// `resolver_site`, answers come from the set only.
    pub struct UpstreamConfig {
        /// The global service: `bootstrap_handles` (JSON) or `root_info` of a deployed client.
        restart root: Option<PathBuf> = None;
        /// Prefixes with a preconfigured service: `local_info.json` or `local_info` of a deployed
        /// client.
        restart local_info: Option<PathBuf> = None;
        /// One site that is asked about every handle: `resolver_site` of a deployed client, or a
        /// site record as JSON.
        restart resolver_site: Option<PathBuf> = None;
        /// Prefixes, without `0.NA/`, whose handles are asked for upstream if the set does not have
        /// them, although the prefix is homed: `handle-admin` has a source of records for them
        /// ([sources.md](../sources.md)).
        live sources: Vec<String> = Vec::new();
        /// Longest duration of one question.
        restart timeout_ms: u32 = 10_000, 1..=120_000;
        /// Questions at a time. Further requests get status 503.
        restart questions: usize = 1024, 1..=1 << 16;
        /// Of these, those of one source: an IPv4 address, or a /64 of IPv6.
        restart questions_per_source <= questions: usize = 256, 1..=1 << 16;
        /// Networks in which no server is asked that a record or a referral names, because the
        /// owner of any prefix chooses these addresses; `[]` in a laboratory or an intranet.
        /// Servers that are configured, and those of the global service, may be in them.
        restart forbidden_networks: Vec<String> = PRIVATE_NETWORKS.map(str::to_owned).to_vec(), NETWORKS;
        /// Requests to servers for one question.
        restart requests: usize = 64, 1..=256;
        /// Bytes of cached answers.
        restart cache_bytes: usize = 256 << 20, 0..=1 << 40;
        /// How long an answer is cached at most, whatever its TTL.
        restart cache_s: u32 = 3600, 0..=172_800;
        /// How long the answer that there is no such handle is cached.
        restart negative_s: u32 = 30, 0..=86_400;
        /// Time for which an expired answer is still served while it is renewed.
        restart stale_while_revalidate_s: u32 = 30, 0..=86_400;
        /// Time for which an expired answer is still served if no server answers. A value with an
        /// absolute time to live is not served after that time.
        restart stale_if_error_s: u32 = 3600, 0..=604_800;
        /// Time for which a failed question is refused; 0 to send it every time.
        restart failure_s: u32 = 5, 0..=300;
        /// Failures in a row of different questions about a prefix after which questions about it
        /// are refused, except for one in each `failure_s`.
        restart failures_per_prefix: u32 = 3, 1..=1000;
        /// Maximum number of remembered failures.
        restart failures: usize = 4096, 1..=1 << 20;
        /// What `Retry-After` says when no server answers.
        live retry_after_s: u32 = 5, 0..=86_400;
    }
}
