//! TLS: the certificate and key of this process, from files that are read again on a reload.

use anyhow::{Context as _, ensure};
use arc_swap::ArcSwap;
use handle_daemon::settings;
use handle_daemon::settings::SettingError;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;

settings! {
    /// TLS on the addresses of `listen`, beside plain HTTP.
    pub struct TlsConfig where key_with_certificate {
        /// The certificate and those that it was issued by, as PEM. Without it only plain HTTP is
        /// served.
        restart certificate: Option<PathBuf> = None;
        /// Its private key, as PEM. Only its owner may have access to the file.
        restart key: Option<PathBuf> = None;
    }
}

fn key_with_certificate(tls: &TlsConfig) -> Result<(), SettingError> {
    let why = match (&tls.certificate, &tls.key) {
        (Some(_), None) => "`tls.certificate` without `tls.key`: name its key",
        (None, Some(_)) => "`tls.key` without `tls.certificate`: name it",
        _ => return Ok(()),
    };
    Err(SettingError::Together(why.to_owned()))
}

/// The certificate in use, replaced without interrupting connections.
pub struct TlsIdentity {
    config: TlsConfig,
    has_http2: bool,
    server: ArcSwap<ServerConfig>,
}

impl fmt::Debug for TlsIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsIdentity").field("config", &self.config).finish_non_exhaustive()
    }
}

impl TlsIdentity {
    /// Reads the files that `config` names; `None` if it names none. With `has_http2`, HTTP/2 is
    /// offered to clients.
    ///
    /// # Errors
    /// One sentence with the file.
    pub fn open(config: &TlsConfig, has_http2: bool) -> anyhow::Result<Option<Self>> {
        if config.certificate.is_none() {
            return Ok(None);
        }
        let server = ArcSwap::from(read(config, has_http2)?);
        Ok(Some(Self { config: config.clone(), has_http2, server }))
    }

    /// Reads the files again, for new connections.
    ///
    /// # Errors
    /// One sentence with the file; the old certificate stays in use.
    pub fn reload(&self) -> anyhow::Result<()> {
        self.server.store(read(&self.config, self.has_http2)?);
        Ok(())
    }

    /// What accepts a connection.
    #[must_use]
    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.server.load_full())
    }
}

fn read(config: &TlsConfig, has_http2: bool) -> anyhow::Result<Arc<ServerConfig>> {
    let (certificate, key) =
        (config.certificate.clone().unwrap_or_default(), config.key.clone().unwrap_or_default());
    let shown = certificate.display();
    let certificates = CertificateDer::pem_file_iter(&certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .with_context(|| format!("cannot read the certificate {shown} (`tls.certificate`)"))?;
    ensure!(!certificates.is_empty(), "{shown} has no certificate (`tls.certificate`): expected PEM");
    let bytes =
        handle_auth::file::open_secret_file(&key).context("cannot read the key of the certificate")?;
    let key_der = PrivateKeyDer::from_pem_slice(&bytes)
        .with_context(|| format!("{} has no private key as PEM (`tls.key`)", key.display()))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut server = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .context("cannot set up TLS")?
        .with_no_client_auth()
        .with_single_cert(certificates, key_der)
        .with_context(|| format!("{} is not the key of {shown}", key.display()))?;
    // In the order of our preference. Clients that offer neither speak HTTP/1.1.
    let protocols = [(has_http2, &b"h2"[..]), (true, b"http/1.1")].into_iter();
    server.alpn_protocols =
        protocols.filter(|(is_spoken, _)| *is_spoken).map(|(_, it)| it.to_vec()).collect();
    Ok(Arc::new(server))
}
