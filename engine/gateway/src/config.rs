//! The configuration: a TOML file, overridden by arguments, checked before anything starts.

use crate::administration::config::AdminConfig;
use crate::agency::config::AgenciesConfig;
use crate::answers::AnswerLimits;
use crate::compression::CompressionConfig;
use crate::connections::http2::config::Http2Config;
use crate::connections::stream::ClosingLimits;
use crate::identifiers::{IdentifierTarget, TARGETS};
use crate::proxies::{ProxiesConfig, SchemeHeader};
use crate::proxy::config::{PagesConfig, ProxyConfig};
use crate::rate_limit::RequestRateConfig;
use crate::request_log::RequestLogConfig;
use crate::secret_guesses::config::SecretGuessesConfig;
use crate::sessions::config::SessionsConfig;
use crate::tls::config::TlsConfig;
use crate::upstream::config::UpstreamConfig;
use handle_console::admin_pages::config::AdminPagesConfig;
use handle_console::registration::config::RegistrationConfig;
use handle_daemon::listen::each_once;
use handle_daemon::permits::PermitLimits;
use handle_daemon::publisher_keys::PublishersConfig;
use handle_daemon::scrape::ObserveConfig;
use handle_daemon::settings;
use handle_daemon::settings::SettingError;
use handle_daemon::settings::file::{ConfigurationError, read};
use std::path::{Path, PathBuf};
use std::time::Duration;

settings! {
    /// Configuration of `handle-gateway`.
    pub struct Config of process on port 8000 where settings_agree {
        /// Set this when answers come from a published set: its directory, with the file
        /// `MANIFEST`. Without it, all come from the Handle System (`upstream`).
        restart snapshot: Option<PathBuf> = None;
        /// Set this when the gateway answers for a site: the site record, as JSON. `/api/site`
        /// answers it, and it says which handles the set has.
        restart site: Option<PathBuf> = None;
        /// Set this when the site has several servers, and then it is required: the `serverId` of
        /// this one.
        restart server_id: Option<i32> = None;
        /// Set this when other processes need some of the cores: worker threads; 0 for one on each
        /// core that the process may use.
        restart workers: usize = 0, 0..=1024;
        /// Set this when new processes replace old ones without loss: continue with the sockets of
        /// the `handle-gateway` that listens on `control`, if there is one. Needs `control`.
        restart take_over: bool = false;
        /// Set this when reading each new layer again takes too long: `false` relies on its
        /// publisher to have checked every byte.
        live verify_new_layers: bool = true;
        /// Set this when locations name countries: file in the format of MaxMind (as
        /// GeoLite2-Country). A reload reads it again, and keeps the previous data if it is
        /// damaged.
        live country_database: Option<PathBuf> = None;
        /// Set this when identifiers that are not handles are resolved here, each kind in a table
        /// `[[target]]`: `path` is the start of their paths, `pattern` a regular expression for the
        /// rest. `template` is the URL of a redirect, or `backend` (`http` or `https`) that of a
        /// request, with `{0}` for the rest and `{1}` to `{9}` for its groups. `ca_file` has the
        /// authorities of a back end over TLS, as PEM; those of the host if not set. Limits of a
        /// back end: `timeout_ms` (5000), `bytes_max` (1 MiB), `requests` (64 at a time, a quarter
        /// for one source).
        live target: Vec<IdentifierTarget> = Vec::new(), TARGETS;
        section publishers: PublishersConfig;
        section limits: GatewayLimits;
        section proxy: ProxyConfig;
        section pages: PagesConfig;
        section agencies: AgenciesConfig;
        section caching: CachingConfig;
        section compression: CompressionConfig;
        section upstream: UpstreamConfig;
        section admin: AdminConfig;
        section sessions: SessionsConfig;
        section admin_pages: AdminPagesConfig;
        section registration: RegistrationConfig;
        section tls: TlsConfig;
        section http2: Http2Config;
        section proxies: ProxiesConfig;
        section request_rate: RequestRateConfig;
        section secret_guesses: SecretGuessesConfig;
        section request_log: RequestLogConfig;
        section observe: ObserveConfig;
    } constants {
        /// Bounds of requests about many records, which no operator has a reason to change.
        bulk: BulkLimits = BulkLimits::default();
    }
}

settings! {
    /// Bounds of connections, requests and times.
    pub struct GatewayLimits {
        /// Set this when there are more clients, or less memory: connections at a time. Further
        /// ones wait in the kernel.
        restart connections: usize = 16_384, 1..=1 << 20;
        /// Set this when many clients share an address: connections of one source. Further ones are
        /// closed.
        live connections_per_source <= connections: usize = 1024, 1..=1 << 20;
        /// Set this when longer records or messages are sent: most bytes of the body of a request.
        live body_bytes: usize = 4 << 20, 1024..=1 << 26;
        /// Set this when memory is short, or many long bodies come at a time: bytes of all bodies
        /// that are being received or answered. One source has a quarter, or one body if that is
        /// more. A request that needs more gets status 503.
        live bodies_bytes: usize = 256 << 20, 1 << 20..=1 << 36;
        /// Set this when a proxy in front keeps idle connections open for longer: time for the head
        /// of a request, and between two requests of a connection.
        live header_ms: u32 = 30_000, 1..=HOUR_MS;
        /// Set this when clients with slow connections do not finish: time for the body of a
        /// request, and after which a client is disconnected that takes less than 1 kB per second
        /// of what is sent; over HTTP/2, of any single answer.
        live transfer_ms: u32 = 30_000, 1..=HOUR_MS;
        /// Set this when memory is short, or many clients take long answers slowly: bytes of all
        /// answers not yet taken, with 2 KiB for each and what requests under way take. An answer
        /// that needs more gets status 503. One source has an eighth, which a longer answer gets
        /// for itself.
        live answers_bytes: usize = 64 << 20, 1 << 20..=1 << 36;
        /// Set this when requests need longer to finish at a stop: time for those under way. After
        /// another process has taken over, connections have twelve times as long; idle ones end
        /// after `header_ms`, the others with their next answer.
        live drain_ms: u32 = 5000, 0..=HOUR_MS;
    } constants {
        /// Connections that wait to be accepted, for each worker: those that arrive while it does
        /// something else.
        backlog: u32 = 1024;
        /// Most bytes of the head of a request: as many as nginx accepts by default, for cookies of
        /// other services of the domain.
        header_bytes: usize = 32 << 10;
        /// Time for the rest of a body whose request is answered without it, and for which a
        /// connection that is being closed waits for its client to close it too: some round trips
        /// over any path. Without this time, a client could lose the answer to a request whose
        /// body was refused.
        linger_ms: u32 = 2000;
        /// Most bytes that are discarded in this time: what fills buffers of fast paths.
        linger_bytes: usize = 16 << 20;
    }
}

impl GatewayLimits {
    /// Bounds of the bytes of bodies.
    #[must_use]
    pub const fn bodies(&self) -> PermitLimits {
        let (quarter, one) = (self.bodies_bytes / 4, self.body_bytes);
        // A body of the allowed length is received wherever there is capacity for one.
        let per_source = if quarter < one { one } else { quarter };
        PermitLimits { all: self.bodies_bytes, per_holder: per_source }
    }

    /// Bounds of the bytes of answers, and of their speed.
    #[must_use]
    pub fn answers(&self) -> AnswerLimits {
        // What an answer takes before its length is known is less.
        let per_source = (self.answers_bytes / 8).max(1 << 20);
        let bytes = PermitLimits { all: self.answers_bytes, per_holder: per_source };
        AnswerLimits { bytes, stall: self.transfer_time() }
    }

    /// Time for the body of a request, and for a client to take an answer.
    #[must_use]
    pub fn transfer_time(&self) -> Duration {
        Duration::from_millis(self.transfer_ms.into())
    }

    /// Time for requests under way when the process stops.
    #[must_use]
    pub fn drain_time(&self) -> Duration {
        Duration::from_millis(self.drain_ms.into())
    }

    /// Time for connections after another process has taken over: longer, because their clients
    /// need not notice it.
    #[must_use]
    pub fn takeover_drain_time(&self) -> Duration {
        12 * self.drain_time()
    }

    /// Bounds of what is discarded when a connection is closed.
    #[must_use]
    pub fn closing(&self) -> ClosingLimits {
        ClosingLimits { time: Duration::from_millis(self.linger_ms.into()), bytes: self.linger_bytes }
    }
}

settings! {
    /// Headers for caches at clients and in between.
    pub struct CachingConfig {
        /// Set this when changes must reach clients sooner than their TTL says: most seconds of
        /// `max-age` and `Expires`.
        live seconds_max: u32 = 172_800, 0..=31_536_000;
    } constants {
        /// How long the answer that there is no such handle may be cached: a new handle is seen
        /// after half a minute, and a wrong link costs two questions a minute.
        negative_s: u32 = 30;
    }
}

/// Bounds of requests about many records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BulkLimits {
    /// Maximum number of names in a request to `/api/resolve`.
    pub names: usize,
    /// Maximum number of records in a request to `/api/batch`.
    pub records: usize,
    /// Maximum length of a line of such a request.
    pub line_bytes: usize,
    /// Maximum length of such a body with `Idempotency-Key`, which is kept in memory.
    pub body_bytes: usize,
    /// Bytes of results that wait for a client that sends before it reads. Beyond them, its body is
    /// not read.
    pub result_bytes: usize,
}

impl Default for BulkLimits {
    fn default() -> Self {
        Self {
            // A request for more gains little: connections and heads are paid for by then.
            names: 1000,
            // Those of some minutes. Whoever has more sends several requests, and can go on after
            // the last one that has succeeded.
            records: 100_000,
            // Half of what a request about one record may have (`limits.body_bytes`).
            line_bytes: 2 << 20,
            // Enough for `records` records of 600 bytes.
            body_bytes: 64 << 20,
            // Enough for the results of `records` changes that succeed.
            result_bytes: 16 << 20,
        }
    }
}

impl Config {
    /// Reads the configuration at `path`, for programs that run a gateway in their process.
    ///
    /// # Errors
    /// Those of [`read`].
    pub fn read(path: &Path) -> Result<Self, ConfigurationError> {
        read(path)
    }
}

/// One hour in milliseconds.
const HOUR_MS: u32 = 3_600_000;

fn settings_agree(config: &Config) -> Result<(), SettingError> {
    each_once(&config.listen).map_err(|error| SettingError::Together(error.to_string()))?;
    if config.take_over && config.control.is_none() {
        return Err(SettingError::Together(
            "`take_over` needs `control`: the control socket of the process that serves now".to_owned(),
        ));
    }
    if config.admin.search && config.admin.socket.is_none() {
        return Err(SettingError::Together("`admin.search` needs `admin.socket`".to_owned()));
    }
    if config.proxies.credentials && config.proxies.scheme == SchemeHeader::Off {
        return Err(SettingError::Together("`proxies.credentials` needs `proxies.scheme`".to_owned()));
    }
    if config.admin.is_remote() && config.site.is_none() {
        return Err(SettingError::Together(
            "`admin.address` is on another host: set `site`, whose record has the key of the service"
                .to_owned(),
        ));
    }
    if config.admin.socket.is_some() && (config.admin.address.is_none() || config.admin.is_remote()) {
        return Err(SettingError::Together(
            "`admin.socket` without an `admin.address` on this host: both are those of one handle-admin"
                .to_owned(),
        ));
    }
    certificates_agree(config)?;
    if config.registration.directory.is_some()
        && (config.admin.socket.is_none()
            || !config.tls.is_configured()
            || config.registration.reviewers.is_empty())
    {
        return Err(SettingError::Together(
            "`registration.directory` needs `admin.socket`, TLS (`tls.certificate` or `tls.acme`) and \
             `registration.reviewers`: \
             applicants send personal data, and reviewers sign in"
                .to_owned(),
        ));
    }
    Ok(())
}

/// Checks what connections with client certificates need.
fn certificates_agree(config: &Config) -> Result<(), SettingError> {
    let listen = &config.tls.client_certificates.listen;
    if listen.is_empty() {
        return Ok(());
    }
    let all: Vec<_> = config.listen.iter().chain(listen).copied().collect();
    if let Err(error) = each_once(&all) {
        return Err(SettingError::Together(format!("{error}, with `tls.client_certificates.listen`")));
    }
    if config.admin.socket.is_none() || !config.tls.is_configured() {
        return Err(SettingError::Together(
            "`tls.client_certificates.listen` needs `admin.socket` and TLS (`tls.certificate` or `tls.acme`): \
             handle-admin verifies what clients sign in handshakes"
                .to_owned(),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_daemon::settings::SettingSection as _;

    #[test]
    fn the_default_is_valid_and_survives_toml() {
        let config = Config::default();
        config.check().unwrap();
        assert_eq!(toml::from_str::<Config>(&toml::to_string(&config).unwrap()).unwrap(), config);
        let error = toml::from_str::<Config>("lissten = []").unwrap_err();
        assert!(error.to_string().contains("lissten"));
    }

    #[test]
    fn says_which_settings_contradict_each_other() {
        let says = |text: &str| toml::from_str::<Config>(text).unwrap().check().unwrap_err().to_string();
        assert!(says("admin.address = \"192.0.2.1:2642\"").contains("`site`"));
        assert!(says("admin.socket = \"admin.socket\"").contains("`admin.address`"));
        let both = "site = \"s\"\n[admin]\naddress = \"192.0.2.1:2642\"\nsocket = \"admin.socket\"";
        assert!(says(both).contains("on this host"));
        assert!(says("admin.search = true").contains("`admin.socket`"));
        assert!(says("proxies.credentials = true").contains("`proxies.scheme`"));
        let address = "tls.client_certificates.listen = [\"127.0.0.1:8443\"]\n";
        let needed = "admin.address = \"127.0.0.1:2642\"\nadmin.socket = \"admin.socket\"\n\
                      tls.certificate = \"cert.pem\"\ntls.key = \"key.pem\"\n";
        toml::from_str::<Config>(&format!("{needed}{address}")).unwrap().check().unwrap();
        assert!(says(&format!("listen = [\"127.0.0.1:8443\"]\n{needed}{address}")).contains("twice"));
        for part in ["admin.socket", "tls."] {
            let lines = needed.lines().filter(|line| !line.starts_with(part));
            let without = lines.collect::<Vec<_>>().join("\n");
            assert!(
                says(&format!("{without}\n{address}")).contains("`tls.client_certificates.listen`"),
                "{part}"
            );
        }
        let whole = "registration.directory = \"requests\"\nregistration.reviewers = [\"300:0.NA/10\"]\n\
                     admin.address = \"127.0.0.1:2642\"\nadmin.socket = \"admin.socket\"\n\
                     tls.certificate = \"cert.pem\"\ntls.key = \"key.pem\"\n";
        toml::from_str::<Config>(whole).unwrap().check().unwrap();
        for part in ["registration.reviewers", "admin.socket", "tls."] {
            let lines = whole.lines().filter(|line| !line.starts_with(part));
            let without = lines.collect::<Vec<_>>().join("\n");
            assert!(says(&without).contains("`registration.directory`"), "{part}");
        }
        assert!(says("take_over = true").contains("`take_over` needs `control`"));
        assert!(says("tls.certificate = \"cert.pem\"").contains("`tls.key`"));
        assert!(says("tls.key = \"key.pem\"").contains("`tls.certificate`"));
    }
}
