//! The settings of the engine, and what they say about how to connect.

use super::super::StoreError;
use super::error::ServerError;
use handle_auth::file::open_secret_file;
use handle_daemon::settings;
use handle_daemon::settings::SettingRule;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres_rustls::MakeRustlsConnect;

/// The rule for the URL of a database, which has no password in it; it may be empty.
pub const DATABASE_URL: SettingRule<String> = SettingRule {
    words: "postgresql://USER@HOST/DATABASE",
    check: |url| match url.is_empty() {
        true => Ok(()),
        false => parse(url).map(drop),
    },
};

settings! {
    /// A PostgreSQL database that has the store, in place of a file
    /// ([store.md](../store.md#in-postgresql)).
    pub struct PostgresConfig {
        /// Set this when the store is in a database: its URL, as of `psql`:
        /// `postgresql://USER@HOST/DATABASE`, or `postgresql:///DATABASE?host=/run/postgresql` for
        /// a local socket; empty for a store in `store.file`. Servers on other machines are asked
        /// over TLS, unless it has `sslmode=disable`.
        restart url: String = String::new(), DATABASE_URL;
        /// Set this when the server asks for a password: file with it; the environment variable
        /// `PGPASSWORD` if not set.
        restart password_file: Option<PathBuf> = None;
        /// Set this when the server has a certificate of your own authority: file with the
        /// authorities (PEM); those that the host trusts if not set.
        restart ca_file: Option<PathBuf> = None;
        /// Set this when the server allows fewer connections, or requests wait for one: connections
        /// for reading. A request needs one, a mirror or publication one for as long as it reads.
        restart connections: usize = 16, 2..=1000;
        /// Set this when sessions set up at `handle-admin` should be known to the `handled` at
        /// `sessions.socket`: `false` keeps them there, or in this process without such a socket.
        /// Otherwise they are in the database, and known to every `handle-admin` over it with the
        /// same server key.
        restart sessions: bool = true;
    } constants {
        /// Time for an answer of the server, and for a free connection. What takes longer is a
        /// server that is gone.
        timeout_ms: u32 = 30_000;
        /// Time between two looks for transactions of other processes: as short as changes take to
        /// be published, for twenty small queries per second.
        poll_ms: u32 = 50;
    }
}

/// Parses a URL; the error is the rest of a sentence that begins with the name of the setting.
fn parse(url: &str) -> Result<Config, String> {
    let config: Config = url.parse().map_err(|error: tokio_postgres::Error| {
        let why = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
        format!("is not the URL of a database ({why}): write postgresql://USER@HOST/DATABASE")
    })?;
    if config.get_password().is_some() {
        return Err("has a password: put it into `password_file` or PGPASSWORD".to_owned());
    }
    if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
        return Err("names no host: write postgresql://USER@HOST/DATABASE".to_owned());
    }
    Ok(config)
}

/// How to connect to a database.
pub(super) struct DatabaseAddress {
    pub(super) config: Config,
    pub(super) tls: MakeRustlsConnect,
    /// Hosts and database, for messages.
    pub(super) server: Arc<str>,
    /// Time for an answer.
    pub(super) timeout: Duration,
}

impl std::fmt::Debug for DatabaseAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.server)
    }
}

impl DatabaseAddress {
    pub(super) fn new(settings: &PostgresConfig) -> Result<Self, StoreError> {
        let refused = |doing: &str, why: String| {
            StoreError::Server(ServerError::new(Arc::from(&*settings.url), doing, why).into())
        };
        let mut config =
            parse(&settings.url).map_err(|why| refused("read the settings of", format!("`url` {why}")))?;
        let password = match &settings.password_file {
            Some(path) => {
                let secret = open_secret_file(path)
                    .map_err(|error| refused("read the password of", error.to_string()))?;
                Some(secret.trim_ascii_end().to_vec())
            }
            None => std::env::var("PGPASSWORD").ok().map(String::into_bytes),
        };
        if let Some(password) = password {
            config.password(password);
        }
        let timeout = Duration::from_millis(settings.timeout_ms.into());
        config.application_name("handle").connect_timeout(timeout).tcp_user_timeout(timeout);
        if !settings.url.contains("sslmode=") {
            let is_local = config.get_hosts().iter().all(is_local);
            config.ssl_mode(if is_local { SslMode::Disable } else { SslMode::Require });
        }
        let tls = tls(&config, settings.ca_file.as_deref()).map_err(|why| refused("set up TLS to", why))?;
        Ok(Self { server: name(&config).into(), config, tls, timeout })
    }

    /// The same address, with a shorter time for an answer.
    pub(super) fn with_timeout(&self, timeout: Duration) -> Self {
        let timeout = self.timeout.min(timeout);
        let mut config = self.config.clone();
        config.connect_timeout(timeout).tcp_user_timeout(timeout);
        Self { server: Arc::clone(&self.server), config, tls: self.tls.clone(), timeout }
    }
}

/// Whether a host is this machine, so that no third party can listen.
fn is_local(host: &Host) -> bool {
    match host {
        Host::Tcp(name) => {
            name == "localhost" || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
        }
        Host::Unix(_) => true,
    }
}

fn name(config: &Config) -> String {
    let hosts = config.get_hosts().iter().enumerate().map(|(at, host)| {
        let port = config.get_ports().get(at).or(config.get_ports().first()).copied().unwrap_or(5432);
        match host {
            Host::Tcp(name) => format!("{name}:{port}"),
            Host::Unix(path) => format!("{}:{port}", path.display()),
        }
    });
    let database = config.get_dbname().or(config.get_user()).unwrap_or_default();
    format!("{database} at {}", hosts.collect::<Vec<_>>().join(","))
}

/// A client of TLS that verifies the certificate and the name of the server.
fn tls(config: &Config, ca_file: Option<&Path>) -> Result<MakeRustlsConnect, String> {
    let roots = match (ca_file, config.get_ssl_mode()) {
        (None, SslMode::Disable) => RootCertStore::empty(),
        _ => trusted_roots(ca_file).map_err(|why| format!("`ca_file`: {why}"))?,
    };
    Ok(MakeRustlsConnect::new(client_trusting(roots)?))
}

/// A client of TLS that trusts `roots`.
///
/// # Errors
/// When TLS cannot be set up.
pub fn client_trusting(roots: RootCertStore) -> Result<ClientConfig, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| error.to_string())?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

/// The authorities in `ca_file` (PEM), or those that the host trusts.
///
/// # Errors
/// When the file cannot be read, or has something else.
pub fn trusted_roots(ca_file: Option<&Path>) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    let Some(path) = ca_file else {
        // Some hosts have certificates in forms that rustls does not know.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        return Ok(roots);
    };
    for certificate in CertificateDer::pem_file_iter(path).map_err(|error| error.to_string())? {
        let certificate = certificate.map_err(|error| error.to_string())?;
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    Ok(roots)
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_daemon::settings::SettingSection as _;

    fn with_url(url: &str) -> PostgresConfig {
        PostgresConfig { url: url.to_owned(), ..PostgresConfig::default() }
    }

    #[test]
    fn urls_with_passwords_and_other_texts_are_refused() {
        for (url, part) in [
            ("postgresql://u:secret@h/d", "has a password"),
            ("host=h user=u password=secret", "has a password"),
            ("postgresql://u@/d", "names no host"),
            ("/var/lib/store.redb", "is not the URL"),
            ("postgresql://u@h:port/d", "is not the URL"),
        ] {
            let error = with_url(url).check_within("store.postgres").unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("store.postgres.url"), "{url}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
        for url in ["", "postgresql://u@h/d", "postgresql:///d?host=/run/postgresql&user=u"] {
            with_url(url).check_within("store.postgres").unwrap();
        }
    }

    #[test]
    fn servers_elsewhere_are_asked_over_tls() {
        let mode = |url: &str| DatabaseAddress::new(&with_url(url)).unwrap().config.get_ssl_mode();
        for url in ["postgresql://u@localhost/d", "postgresql://u@[::1]/d", "postgresql://u@127.0.0.1/d"] {
            assert_eq!(mode(url), SslMode::Disable, "{url}");
        }
        assert_eq!(mode("postgresql:///d?host=/run/postgresql&user=u"), SslMode::Disable);
        assert_eq!(mode("postgresql://u@192.0.2.1/d"), SslMode::Require);
        assert_eq!(mode("postgresql://u@db.example/d"), SslMode::Require);
        assert_eq!(mode("postgresql://u@db.example/d?sslmode=disable"), SslMode::Disable);
    }
}
