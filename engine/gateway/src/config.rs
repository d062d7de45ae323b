//! The configuration: a TOML file, overridden by flags, checked before anything starts.

use crate::administration::AdminConfig;
use crate::tls::TlsConfig;
use crate::upstream::UpstreamConfig;
use anyhow::ensure;
use handle_daemon::listen::each_once;
use handle_daemon::scrape::ScrapeLimits;
use handle_daemon::{log, text};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Configuration of `handle-gateway`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// A file with the site record and server number that several processes read. They apply as if
    /// they were set here.
    pub shared: Option<PathBuf>,
    /// Directory of the published set: the one with the file `MANIFEST`. Without it, every answer
    /// comes from the Handle System.
    pub snapshot: Option<PathBuf>,
    /// The site record as JSON: what `/api/site` answers, and which handles the set has.
    pub site: Option<PathBuf>,
    /// The `serverId` of this server in the site record; required if the site has several servers.
    pub server_id: Option<i32>,
    /// Addresses to answer on, over HTTP. `[::]` accepts IPv4 as well.
    pub listen: Vec<SocketAddr>,
    /// Worker threads; 0 for one on each core that this process may use.
    pub workers: usize,
    /// UNIX socket for `status`, `stats`, `reload` and `drain`; none when empty.
    pub control: Option<PathBuf>,
    /// The user to become once ports are bound, when started as root: a name, or `uid:gid`.
    pub user: Option<String>,
    /// Allow running as root without `user`.
    pub allow_root: bool,
    /// Log level: error, warn, info, debug or trace, optionally by module.
    pub log: String,
    /// Verify every byte of new layers before they go live, as their publisher has done.
    pub verify_new_layers: bool,
    /// What clients may take: connections, bytes, time.
    pub limits: GatewayLimits,
    /// How answers may be cached.
    pub caching: CachingConfig,
    /// The Handle System, for handles that the set does not have.
    pub upstream: UpstreamConfig,
    /// The administration service, for changes and for what is not public.
    pub admin: AdminConfig,
    /// TLS on the addresses of `listen`, beside plain HTTP.
    pub tls: TlsConfig,
    /// The handle protocol over HTTP.
    pub native: NativeConfig,
    /// Scrape endpoint.
    pub observe: ObserveConfig,
}

/// Bounds of connections, requests and times.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct GatewayLimits {
    /// Connections that wait to be accepted, for each worker.
    pub backlog: u32,
    /// Maximum number of connections. Further ones wait in the kernel.
    pub connections: usize,
    /// Maximum number of connections of one source: an IPv4 address, or a /64 of IPv6.
    pub connections_per_source: usize,
    /// Maximum bytes of the head of a request.
    pub header_bytes: usize,
    /// Maximum bytes of the body of a request.
    pub body_bytes: usize,
    /// Time for the head of a request, and between two requests of a connection, in milliseconds.
    pub header_ms: u32,
    /// Time for the body of a request, in milliseconds.
    pub body_ms: u32,
    /// Time in which a client that does not read receives nothing, in milliseconds.
    pub write_ms: u32,
    /// Time for requests under way to finish when the process stops, in milliseconds.
    pub drain_ms: u32,
    /// Maximum bytes of a line on the control socket.
    pub control_line_bytes: usize,
}

impl Default for GatewayLimits {
    fn default() -> Self {
        Self {
            backlog: 1024,
            connections: 16_384,
            connections_per_source: 1024,
            header_bytes: 32 << 10,
            body_bytes: 4 << 20,
            header_ms: 30_000,
            body_ms: 30_000,
            write_ms: 30_000,
            drain_ms: 5000,
            control_line_bytes: 4096,
        }
    }
}

/// Headers that let clients and proxies between them cache answers.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct CachingConfig {
    /// Whether answers have `Cache-Control` and `ETag`, and `If-None-Match` is honoured.
    pub headers: bool,
    /// Maximum seconds of `max-age` and `Expires`, whatever the TTL of the values.
    pub seconds_max: u32,
    /// Seconds for which the answer that there is no such handle may be cached.
    pub negative_s: u32,
}

impl Default for CachingConfig {
    fn default() -> Self {
        Self { headers: true, seconds_max: 172_800, negative_s: 30 }
    }
}

/// Messages of the handle protocol in bodies of POST.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct NativeConfig {
    /// Whether they are answered.
    pub enabled: bool,
}

impl Default for NativeConfig {
    fn default() -> Self {
        Self { enabled: true }
    }
}

/// `/metrics`, `/healthz` and `/readyz`, on an address of their own.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ObserveConfig {
    /// Address of the endpoint; none when empty. It has neither encryption nor authentication, so
    /// it belongs on loopback or a private network.
    pub http: Option<SocketAddr>,
    /// Maximum concurrent connections of scrapers; further ones wait in the kernel.
    pub http_connections: usize,
    /// Maximum bytes of the head of a scraper's request.
    pub http_header_bytes: usize,
    /// Longest duration of one connection of a scraper, in milliseconds.
    pub http_patience_ms: u32,
}

impl Default for ObserveConfig {
    fn default() -> Self {
        Self { http: None, http_connections: 16, http_header_bytes: 4096, http_patience_ms: 5000 }
    }
}

impl ObserveConfig {
    /// Bounds of the endpoint.
    #[must_use]
    pub fn scrape_limits(&self) -> ScrapeLimits {
        ScrapeLimits {
            connections: self.http_connections,
            header_len_max: self.http_header_bytes,
            patience: Duration::from_millis(self.http_patience_ms.into()),
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            shared: None,
            snapshot: None,
            site: None,
            server_id: None,
            listen: vec![SocketAddr::from(([0u16; 8], 8000))],
            workers: 0,
            control: None,
            user: None,
            allow_root: false,
            log: "info".to_owned(),
            verify_new_layers: true,
            limits: GatewayLimits::default(),
            caching: CachingConfig::default(),
            upstream: UpstreamConfig::default(),
            admin: AdminConfig::default(),
            tls: TlsConfig::default(),
            native: NativeConfig::default(),
            observe: ObserveConfig::default(),
        }
    }
}

/// Longest configurable wait: one hour.
const WAIT_MS_MAX: usize = 3_600_000;

impl Config {
    /// Reads the file at `path`. Relative paths in it are resolved against its directory.
    ///
    /// # Errors
    /// When the file cannot be read or parsed.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let (mut config, directory): (Self, _) = text::configuration(path)?;
        config.shared = config.shared.map(|shared| directory.join(shared));
        config.snapshot = config.snapshot.map(|set| directory.join(set));
        config.site = config.site.map(|site| directory.join(site));
        config.control = config.control.map(|control| directory.join(control));
        config.upstream = config.upstream.relative_to(directory);
        config.tls = config.tls.relative_to(directory);
        Ok(config)
    }

    /// Checks everything that can be checked without opening anything.
    ///
    /// # Errors
    /// Names the setting and its allowed values.
    pub fn check(&self) -> anyhow::Result<()> {
        log::check(&self.log)?;
        ensure!(
            self.snapshot.is_some() || self.upstream.is_configured(),
            "nothing to answer from: set `snapshot` or pass --snapshot DIRECTORY, or set `upstream.root`"
        );
        ensure!(!self.listen.is_empty(), "`listen` is empty: name at least one address, as \"[::]:8000\"");
        each_once(&self.listen)?;
        self.upstream.check()?;
        self.admin.check(self.site.is_some())?;
        self.tls.check()?;
        let (limits, observe) = (&self.limits, &self.observe);
        let bounds = [
            ("workers", self.workers, 0, 1024),
            ("limits.backlog", limits.backlog as usize, 1, 1 << 16),
            ("limits.connections", limits.connections, 1, 1 << 20),
            ("limits.connections_per_source", limits.connections_per_source, 1, limits.connections),
            ("limits.header_bytes", limits.header_bytes, 8192, 1 << 20),
            ("limits.body_bytes", limits.body_bytes, 1024, 1 << 26),
            ("limits.header_ms", limits.header_ms as usize, 1, WAIT_MS_MAX),
            ("limits.body_ms", limits.body_ms as usize, 1, WAIT_MS_MAX),
            ("limits.write_ms", limits.write_ms as usize, 1, WAIT_MS_MAX),
            ("limits.drain_ms", limits.drain_ms as usize, 0, WAIT_MS_MAX),
            ("limits.control_line_bytes", limits.control_line_bytes, 64, 1 << 20),
            ("caching.seconds_max", self.caching.seconds_max as usize, 0, 31_536_000),
            ("caching.negative_s", self.caching.negative_s as usize, 0, 86_400),
            ("observe.http_connections", observe.http_connections, 1, 1024),
            ("observe.http_header_bytes", observe.http_header_bytes, 128, 1 << 16),
            ("observe.http_patience_ms", observe.http_patience_ms as usize, 10, 600_000),
        ];
        for (name, value, least, most) in bounds {
            ensure!(
                (least..=most).contains(&value),
                "`{name}` is {value}: it must be from {least} to {most}"
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_set() -> Config {
        Config { snapshot: Some("set".into()), ..Config::default() }
    }

    #[test]
    fn the_default_with_a_set_is_valid_and_survives_toml() {
        with_set().check().unwrap();
        let text = toml::to_string(&with_set()).unwrap();
        let again: Config = toml::from_str(&text).unwrap();
        assert_eq!(toml::to_string(&again).unwrap(), text);
        let error = toml::from_str::<Config>("lissten = []").unwrap_err();
        assert!(error.to_string().contains("lissten"));
    }

    #[test]
    fn errors_name_the_setting() {
        let says = |change: fn(&mut Config)| {
            let mut config = with_set();
            change(&mut config);
            config.check().err().map(|error| format!("{error:#}")).unwrap_or_default()
        };
        assert!(says(|it| it.snapshot = None).contains("--snapshot"));
        assert!(says(|it| it.listen.clear()).contains("`listen`"));
        assert!(says(|it| it.log = "loud".to_owned()).contains("`log`"));
        assert_eq!(says(|it| it.limits.header_bytes = 8192), "");
        assert!(says(|it| it.limits.header_bytes = 8191).contains("limits.header_bytes"));
        assert_eq!(says(|it| it.limits.connections_per_source = it.limits.connections), "");
        assert!(
            says(|it| it.limits.connections_per_source = it.limits.connections + 1).contains("per_source")
        );
        assert!(says(|it| it.limits.body_bytes = 1023).contains("limits.body_bytes"));
        assert!(says(|it| it.observe.http_connections = 0).contains("observe.http_connections"));
        assert!(says(|it| it.admin.requests = 0).contains("admin.requests"));
        assert!(says(|it| it.admin.address = Some(([192, 0, 2, 1], 2642).into())).contains("`site`"));
        assert!(says(|it| it.tls.certificate = Some("cert.pem".into())).contains("`tls.key`"));
    }
}
