//! Settings of TLS.

use super::client_certificate::ClientCertificatesConfig;
use crate::acme::config::AcmeConfig;
use handle_daemon::settings;
use handle_daemon::settings::SettingError;
use std::path::PathBuf;

settings! {
    /// TLS on the addresses of `listen`, beside plain HTTP.
    pub struct TlsConfig where key_with_certificate {
        /// Set this when TLS is served with a certificate from files: it and those that issued it,
        /// as PEM. Without it and `acme.domains`, only plain HTTP is served.
        restart certificate: Option<PathBuf> = None;
        /// Set this when `certificate` is: its private key, as PEM.
        restart key: Option<PathBuf> = None;
        section acme: AcmeConfig;
        section client_certificates: ClientCertificatesConfig;
    }
}

impl TlsConfig {
    /// Whether there is a certificate, or will be one.
    #[must_use]
    pub fn is_configured(&self) -> bool {
        self.certificate.is_some() || self.acme.is_configured()
    }
}

fn key_with_certificate(tls: &TlsConfig) -> Result<(), SettingError> {
    let why = match (&tls.certificate, &tls.key) {
        (Some(_), None) => "`tls.certificate` without `tls.key`: name its key",
        (None, Some(_)) => "`tls.key` without `tls.certificate`: name it",
        (Some(_), Some(_)) if tls.acme.is_configured() => {
            "`tls.certificate` and `tls.acme.domains`: the certificate comes from files or by ACME"
        }
        _ => return Ok(()),
    };
    Err(SettingError::Together(why.to_owned()))
}
