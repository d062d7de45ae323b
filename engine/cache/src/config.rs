//! The configuration: a TOML file, overridden by arguments, checked before anything starts.

use crate::entry::TtlLimits;
use crate::policy::{AuthenticatedRequests, PolicyConfig};
use crate::table::CachedRecordTable;
use handle_client::plan::PRIVATE_NETWORKS;
use handle_daemon::listen::each_once;
use handle_daemon::notice::listener::NotifyConfig;
use handle_daemon::server_key::ServerKeyConfig;
use handle_daemon::settings;
use handle_daemon::settings::file::{ConfigurationError, read};
use handle_daemon::settings::{NETWORKS, SettingError, SettingRule};
use handle_proto::limit::{PORT, TTL_MAX_S};
use handle_session::config::SessionsConfig;
use handle_worker::config::{Config as ServerConfig, ServerLimits};
use handle_worker::observe::settings::ObserveParameters;
use handle_worker::query_log::QueryLogSettings;
use handle_worker::rate_limit::RateLimitConfig;
use handle_worker::slow::config::SlowConfig;
use handle_worker::tcp::settings::TcpSettings;
use handle_worker::worker_settings;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

/// Servers by their addresses.
const SERVERS: SettingRule<Vec<String>> = SettingRule {
    words: "addresses, each with a port or without (2641)",
    check: |servers| match servers.iter().find(|server| address_of(server).is_none()) {
        None => Ok(()),
        Some(wrong) => Err(format!("has `{wrong}`, which is not an address with or without a port")),
    },
};

worker_settings! {
    /// Configuration of `handle-cache`.
    pub struct Config where settings_agree {
        /// Set this when a published set is on this machine: its directory. Handles of its homed
        /// prefixes are answered from it, as by `handled`, and never resolved.
        restart snapshot: Option<PathBuf> = None;
        section cache: CacheConfig;
        section upstream: ResolutionConfig;
        section policy: PolicyConfig;
        section notify: NotifyConfig;
        section waiting: WaitingConfig;
        section limits: ServerLimits;
        section observe: ObserveParameters;
        section tcp: TcpSettings;
        section server_key: Option<ServerKeyConfig>;
        section sessions: SessionsConfig;
        section rate_limit: RateLimitConfig;
        section query_log: QueryLogSettings;
    }
}

settings! {
    /// The cache: its size, and how long answers are used.
    pub struct CacheConfig {
        /// Set this when memory is short, or more records are asked for than fit: memory for cached
        /// records.
        restart bytes: usize = 256 << 20, CachedRecordTable::BYTES_MIN..=1 << 40;
        /// Set this when a restart should not empty the cache: the file that keeps it, which only
        /// its owner can read.
        restart file: Option<PathBuf> = None;
        /// Set this when a crash must lose less of the cache, or writing it disturbs the disk:
        /// seconds between writes of this file, besides that at the end of the process; 0 for only
        /// then.
        live save_every_s: u32 = 300, 0..=86_400;
        /// Set this when changes must be seen earlier than their owners ask for: most time that a
        /// record is kept, and greatest TTL in answers.
        live ttl_s_max: u32 = TTL_MAX_S.cast_unsigned(), 1..=TTL_MAX_S.cast_unsigned();
        /// Set this when new handles must be found at once, or many are asked for that do not
        /// exist: time for which it is kept that a handle does not exist, or has no public values;
        /// 0 for not at all.
        live negative_s: u32 = 30, 0..=86_400;
        /// Set this when an old record is worse than none, or outages last longer: time after its
        /// end for which a record is shown if no server answers; 0 for not at all. A value with an
        /// absolute TTL is never shown after its time.
        live stale_s: u32 = 3600, 0..=604_800;
    } constants {
        /// Longest record that is kept, in bytes of its handle and public values. One in this
        /// length takes the memory of hundreds of usual ones.
        record_bytes_max: usize = 1 << 16;
        /// Time for which a record is kept at least, even if the TTL of a value is shorter: owners
        /// decide. A value with a TTL of 0 is never kept.
        ttl_s_min: u32 = 0;
        /// A record that is asked for in the last tenth of its time is renewed, if it has been
        /// asked for at least twice before, so that nobody waits for a record in use.
        renew_early: bool = true;
        /// If there is a record after its end, time to wait for a newer one before it is shown:
        /// less than the timeouts of deployed clients.
        stale_after_ms: u32 = 1800;
        /// TTL of the values of such a record, in answers, so that a newer one is asked for soon.
        stale_ttl_s: u32 = 30;
    }
}

settings! {
    /// Where records come from. Without `servers`, `root`, `local_info` and `resolver_site`, the
    /// global service is read from `bootstrap_handles` or `root_info` in the directory `.handle` of
    /// the user.
    pub struct ResolutionConfig {
        /// Set this when certain servers are asked about every handle: their addresses, in the
        /// order in which they are asked.
        restart servers: Vec<String> = Vec::new(), SERVERS;
        /// Set this when the global service is not that of the Handle System, or its file is
        /// elsewhere: `bootstrap_handles` (JSON) or `root_info` of a deployed client.
        restart root: Option<PathBuf> = None;
        /// Set this when prefixes have a service outside the Handle System: `local_info.json` or
        /// `local_info` of a deployed client.
        restart local_info: Option<PathBuf> = None;
        /// Set this when one site is asked about every handle: `resolver_site` of a deployed
        /// client, or a site record as JSON.
        restart resolver_site: Option<PathBuf> = None;
        /// Set this when the way to the servers is not trusted: only answers signed by the server
        /// that was asked are used. Keys come from the sites of services; servers named by address
        /// have none.
        restart certified: bool = false;
        /// Set this when services are in a laboratory or intranet: networks in which no server is
        /// asked that a record or referral names, because the owner of any prefix chooses these
        /// addresses; `[]` for none. Configured servers, and those of the global service, may be in
        /// them.
        restart forbidden_networks: Vec<String> = PRIVATE_NETWORKS.map(str::to_owned).to_vec(), NETWORKS;
        /// Set this when questions wait, or servers complain: questions at a time. One source and
        /// one prefix may each have an eighth, renewals in the background a quarter, and sources in
        /// `waiting.exempt_sources` all.
        restart questions: usize = 1024, 1..=1 << 16;
    } constants {
        /// Longest duration of one question, from its turn on. Then the client is told that no
        /// server has answered: before deployed clients give up.
        timeout_ms: u32 = 4500;
        /// Of `questions`, one source and one prefix may each take one of so many equal parts, and
        /// of `relays` one source, rounded up; 1 for no limit.
        shares: usize = 8;
        /// Longest time that a question waits for its turn. Then the client is asked to ask again
        /// later.
        turn_ms: u32 = 2000;
        /// Time for which a failed question is not asked again; 0 to ask it every time.
        failure_ms: u32 = 1000;
        /// Failures in a row of different questions about a prefix after which questions about it
        /// are refused, except for one in each `failure_ms`.
        failures_per_prefix: u32 = 3;
        /// Requests at a time that are handed to responsible services (`policy.authenticated`),
        /// each in a thread.
        relays: usize = 32;
        /// Maximum number of remembered failures: a megabyte of them.
        failures: usize = 16_384;
        /// Requests to servers for one question, which a chain of referrals needs.
        requests: usize = 64;
        /// Memory for the records that lead to services: some ten thousand of them.
        service_bytes: usize = 16 << 20;
    }
}

/// Renewals in the background may have one in this many of all questions.
const RENEWALS_SHARE: usize = 4;

settings! {
    /// Requests that wait for a record, a signature or a challenge.
    pub struct WaitingConfig {
        /// Set this when gateways or other caching servers ask for many clients: sources without
        /// the limits by source, also of wrong secret keys.
        restart exempt_sources: Vec<String> = Vec::new(), NETWORKS;
        /// Set this when one thread cannot make all signed answers and those of new records:
        /// threads that answer waiting requests once their record is there.
        restart threads: usize = 1, 1..=256;
    } constants {
        /// Such requests at a time: those of a few seconds. If 8 or more, one source gets a
        /// quarter, its /24 or /48 a half, and UDP three quarters. One more gets RC 2 over UDP,
        /// which makes deployed clients use TCP, and RC 3 over TCP.
        requests: usize = 8192;
        /// Nice value of these threads: that of the workers, because misses are what a cache is
        /// for.
        nice: u8 = 0;
    }
}

impl ResolutionConfig {
    /// Renewals in the background at a time. Others are not begun.
    #[must_use]
    pub const fn renewals(&self) -> usize {
        self.questions.div_ceil(RENEWALS_SHARE)
    }
}

/// The address of a server, with the registered port unless it has one.
pub(crate) fn address_of(server: &str) -> Option<SocketAddr> {
    let with_default = || Some((server.parse::<IpAddr>().ok()?, PORT).into());
    server.parse().ok().or_else(with_default)
}

fn settings_agree(config: &Config) -> Result<(), SettingError> {
    let upstream = &config.upstream;
    if !upstream.servers.is_empty() && upstream.resolver_site.is_some() {
        return Err(SettingError::Together(
            "`upstream.servers` and `upstream.resolver_site` both name who is asked about every handle"
                .to_owned(),
        ));
    }
    keys_are_known(config)?;
    let is_forwarding = config.policy.authenticated == AuthenticatedRequests::Forward;
    if is_forwarding && (!upstream.servers.is_empty() || upstream.resolver_site.is_some()) {
        return Err(SettingError::Together(
            "`policy.authenticated` is `forward`, which needs the responsible services: set `upstream.root` or \
             `upstream.local_info` instead of `upstream.servers` and `upstream.resolver_site`"
                .to_owned(),
        ));
    }
    if !config.policy.notified.is_empty() && config.notify.address.is_empty() {
        return Err(SettingError::Together(
            "`policy.notified` needs `notify.address`: the `handle-admin` that announces sets".to_owned(),
        ));
    }
    if config.take_over && config.control.is_none() {
        return Err(SettingError::Together(
            "`take_over` needs `control`: the control socket of the process that serves now".to_owned(),
        ));
    }
    if config.share_port {
        return Ok(());
    }
    each_once(&config.listen).map_err(|error| SettingError::Together(error.to_string()))
}

/// A signature can be checked only if the site record of the server is known.
fn keys_are_known(config: &Config) -> Result<(), SettingError> {
    let (upstream, policy) = (&config.upstream, &config.policy);
    let wrong = match () {
        () if !upstream.certified && policy.certified.is_empty() => return Ok(()),
        () if !upstream.servers.is_empty() => "`upstream.servers` names".to_owned(),
        () => match policy.forward_without_key(upstream.certified) {
            Some(rule) => format!("the rule `{rule}` of `policy.forward` names"),
            None => return Ok(()),
        },
    };
    Err(SettingError::Together(format!(
        "{wrong} servers by their addresses, so that the keys are unknown that `certified` needs: use \
         `upstream.resolver_site` or `upstream.local_info` instead"
    )))
}

impl CacheConfig {
    /// How long entries are kept.
    #[must_use]
    pub const fn ttl_limits(&self) -> TtlLimits {
        TtlLimits { min_s: self.ttl_s_min, max_s: self.ttl_s_max, negative_s: self.negative_s }
    }
}

impl Config {
    /// Reads the configuration at `path`, for programs that run a caching server in their process.
    ///
    /// # Errors
    /// Those of [`read`].
    pub fn read(path: &Path) -> Result<Self, ConfigurationError> {
        read(path)
    }

    /// The configuration of the server that answers from the cache.
    #[must_use]
    pub fn server(&self) -> ServerConfig {
        let config = self.clone();
        ServerConfig {
            shared: config.shared,
            listen: config.listen,
            control: config.control,
            user: config.user,
            allow_root: config.allow_root,
            log: config.log,
            snapshot: config.snapshot.unwrap_or_default(),
            site: config.site,
            server_id: config.server_id,
            workers: config.workers,
            cores: config.cores,
            pin: config.pin,
            datapath: config.datapath,
            trains: config.trains,
            share_port: config.share_port,
            take_over: config.take_over,
            wait_for_set: false,
            limits: config.limits,
            observe: config.observe,
            tcp: config.tcp,
            server_key: config.server_key,
            sessions: config.sessions,
            rate_limit: config.rate_limit,
            query_log: config.query_log,
            slow: SlowConfig {
                threads: config.waiting.threads,
                idle: false,
                nice: config.waiting.nice,
                queue_requests: config.waiting.requests,
                exempt_sources: config.waiting.exempt_sources,
                ..SlowConfig::default()
            },
            ..ServerConfig::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_daemon::settings::SettingSection as _;

    #[test]
    fn servers_are_addresses_with_or_without_a_port() {
        let mut config = Config::default();
        config.upstream.servers =
            ["192.0.2.1", "192.0.2.1:2222", "2001:db8::1", "[2001:db8::1]:1"].map(str::to_owned).to_vec();
        config.check().unwrap();
        let addresses = config.upstream.servers.iter().filter_map(|server| address_of(server));
        let ports: Vec<u16> = addresses.map(|address| address.port()).collect();
        assert_eq!(ports, [2641, 2222, 2641, 1]);
        config.upstream.servers.push("hdl.example".to_owned());
        assert!(config.check().unwrap_err().to_string().contains("`hdl.example`"));
        let both = "[upstream]\nservers = [\"192.0.2.1\"]\nresolver_site = \"site.json\"";
        let config: Config = toml::from_str(both).unwrap();
        assert!(config.check().unwrap_err().to_string().contains("upstream.resolver_site"));
    }

    #[test]
    fn signatures_are_asked_of_servers_whose_keys_are_known() {
        let check = |text: &str| toml::from_str::<Config>(text).unwrap().check();
        let forward = "forward = [\"10.1=192.0.2.1\"]";
        for (text, is_good) in [
            ("[upstream]\ncertified = true", true),
            ("[upstream]\ncertified = true\nservers = [\"192.0.2.1\"]", false),
            (&format!("[upstream]\ncertified = true\n[policy]\n{forward}"), false),
            (&format!("[policy]\n{forward}\ncertified = [\"10.2\"]"), true),
            (&format!("[policy]\n{forward}\ncertified = [\"10.1\"]"), false),
            ("[policy]\ncertified = [\"10.1\"]\n[upstream]\nservers = [\"192.0.2.1\"]", false),
        ] {
            assert_eq!(check(text).is_ok(), is_good, "{text}");
        }
    }

    #[test]
    fn what_a_cache_is_configured_with_is_a_server_that_starts() {
        let config = Config { workers: 3, snapshot: Some("/srv/set".into()), ..Config::default() };
        let server = config.server();
        server.check().unwrap();
        assert_eq!((server.workers, server.slow.queue_requests), (3, 8192));
        assert_eq!(server.snapshot, PathBuf::from("/srv/set"));
        assert_eq!(server.listen[0].port(), 2641);
    }
}
