//! Settings of the Handle System.

use handle_client::plan::PRIVATE_NETWORKS;
use handle_daemon::permits::PermitLimits;
use handle_daemon::settings;
use handle_daemon::settings::NETWORKS;
use std::path::PathBuf;

settings! {
    /// The Handle System, for handles that the set does not have. Without `root`, `local_info` and
    /// `resolver_site`, answers come from the set only.
    pub struct UpstreamConfig {
        /// Set this when all handles of the Handle System are answered: the global service, as
        /// `bootstrap_handles` (JSON) or `root_info` of a deployed client.
        restart root: Option<PathBuf> = None;
        /// Set this when prefixes have a service that the global one does not name:
        /// `local_info.json` or `local_info` of a deployed client.
        restart local_info: Option<PathBuf> = None;
        /// Set this when one site is asked about every handle, as a `handle-cache` near by:
        /// `resolver_site` of a deployed client, or a site record as JSON.
        restart resolver_site: Option<PathBuf> = None;
        /// Set this when `handle-admin` has a source of records ([sources.md](../sources.md)): its
        /// prefixes, without `0.NA/`, whose handles are asked for upstream if the set lacks them,
        /// although the prefix is homed.
        live sources: Vec<String> = Vec::new();
        /// Set this when services are slower, or clients wait for less: longest duration of one
        /// question.
        restart timeout_ms: u32 = 10_000, 1..=120_000;
        /// Set this when more clients wait for slow services: questions at a time, a quarter of
        /// them for one source, a 32nd for one request to `/api/resolve`. Further requests get
        /// status 503.
        restart questions: usize = 1024, 1..=1 << 16;
        /// Set this when services are in a laboratory or intranet: networks in which no server is
        /// asked that a record or referral names, because the owner of any prefix chooses these
        /// addresses; `[]` for none. Configured servers, and those of the global service, may be in
        /// them.
        restart forbidden_networks: Vec<String> = PRIVATE_NETWORKS.map(str::to_owned).to_vec(), NETWORKS;
        /// Set this when memory is short, or evicted answers are asked for again: bytes of cached
        /// answers.
        restart cache_bytes: usize = 256 << 20, 0..=1 << 40;
        /// Set this when changes at other services must be seen sooner: how long an answer is
        /// cached at most, whatever its TTL.
        restart cache_s: u32 = 3600, 0..=172_800;
        /// Set this when records should stay readable for longer, or not at all, while no server
        /// answers: time for which an expired answer is still served then. For a 120th of it, it is
        /// also served while it is renewed, so that clients do not wait. A value with an absolute
        /// TTL is never served after its time.
        restart stale_if_error_s: u32 = 3600, 0..=604_800;
    } constants {
        /// Requests to servers for one question: referrals and retries of every deployed service
        /// need fewer, and a loop ends.
        requests: usize = 64;
        /// How long the answer that there is no such handle is cached: a new handle is seen after
        /// half a minute.
        negative_s: u32 = 30;
        /// Time for which a failed question is refused, so that a service without an answer costs
        /// one question in this time.
        failure_s: u32 = 5;
        /// Failures in a row of different questions about a prefix after which questions about it
        /// are refused, except for one in each `failure_s`: fewer would let one broken record
        /// block its prefix.
        failures_per_prefix: u32 = 3;
        /// Maximum number of remembered failures: four times the questions at a time. Beyond it,
        /// one is forgotten, and its question is asked again.
        failures: usize = 4096;
        /// What `Retry-After` says when no server answers: `failure_s`, before which no server is
        /// asked again.
        retry_after_s: u32 = 5;
    }
}

impl UpstreamConfig {
    /// Questions at a time, of all sources and of one.
    #[must_use]
    pub const fn question_limits(&self) -> PermitLimits {
        PermitLimits { all: self.questions, per_holder: self.questions.div_ceil(4) }
    }

    /// Questions at a time of one request about many names.
    #[must_use]
    pub const fn questions_per_request(&self) -> usize {
        self.questions.div_ceil(32)
    }

    /// Time for which an expired answer is still served while it is renewed.
    #[must_use]
    pub const fn stale_while_revalidate_s(&self) -> u32 {
        self.stale_if_error_s / 120
    }
}
