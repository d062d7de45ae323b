//! The settings of certificates by ACME.

use anyhow::Context as _;
use data_encoding::BASE64URL_NOPAD;
use handle_auth::file::open_secret_file;
use handle_daemon::settings;
use handle_daemon::settings::{SettingError, SettingRule, SettingType};
use hyper::Uri;
use instant_acme::ExternalAccountKey;
use rustls::pki_types::DnsName;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use zeroize::Zeroizing;

settings! {
    /// The certificate by ACME (RFC 8555) in place of files: ordered, renewed, and replaced while
    /// serving.
    pub struct AcmeConfig where what_orders_need {
        /// Set this when the certificate comes by ACME: its names.
        restart domains: Vec<String> = Vec::new(), DOMAINS;
        /// Set this when another authority than Let's Encrypt issues it: the URL of its directory.
        restart directory: String =
            "https://acme-v02.api.letsencrypt.org/directory".to_owned(), HTTPS_URL;
        /// Set this when the authority should know addresses of the operator, as
        /// `mailto:admin@example.org`.
        restart contact: Vec<String> = Vec::new(), CONTACTS;
        /// Set this when you have read the terms of service of the authority and agree; required.
        restart terms_agreed: bool = false;
        /// Set this when `domains` is, and then it is required: directory of the account key and of
        /// the certificate with its key. It is created if needed; only its owner may have access to
        /// the files.
        restart state_directory: Option<PathBuf> = None;
        /// Set this when the authority reaches this gateway on one port only: how it checks the
        /// names, over TLS on port 443 (`tls-alpn-01`), over HTTP on port 80 (`http-01`), or both
        /// in turns, TLS first (`any`).
        restart challenge: AcmeChallenge = AcmeChallenge::Any;
        /// Set this when the authority is your own: the authorities that certify it, as PEM; those
        /// of the host if not set.
        restart ca_file: Option<PathBuf> = None;
        /// Set this when the authority made an account outside of ACME: its identifier.
        restart external_account_id: Option<String> = None;
        /// Set this when `external_account_id` is: file with the key of that account, in base64url.
        restart external_account_key: Option<PathBuf> = None;
    }
}

/// How the authority checks the names of an order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AcmeChallenge {
    /// Both ways in turns, until one succeeds.
    #[default]
    Any,
    /// A handshake of TLS. RFC 8737.
    #[serde(rename = "tls-alpn-01")]
    TlsAlpn01,
    /// A request over plain HTTP. RFC 8555 section 8.3.
    #[serde(rename = "http-01")]
    Http01,
}

impl SettingType for AcmeChallenge {
    fn type_name() -> String {
        "`any`, `tls-alpn-01`, `http-01`".to_owned()
    }
}

/// Most names of a certificate, as of the authorities.
const DOMAINS_MAX: usize = 100;

const DOMAINS: SettingRule<Vec<String>> = SettingRule {
    words: "at most 100 DNS names without wildcards",
    check: |domains| {
        let is_name = |name: &String| DnsName::try_from(name.as_str()).is_ok() && !name.ends_with('.');
        match domains.iter().find(|name| !is_name(name)) {
            Some(name) => Err(format!("has {name:?}: not a DNS name without wildcards")),
            None if domains.len() > DOMAINS_MAX => {
                Err(format!("has {} names: it may have {DOMAINS_MAX}", domains.len()))
            }
            None => Ok(()),
        }
    },
};

const HTTPS_URL: SettingRule<String> = SettingRule {
    words: "`https://HOST/PATH`",
    check: |url| match url.parse::<Uri>() {
        Ok(uri) if uri.scheme_str() == Some("https") && uri.host().is_some() => Ok(()),
        _ => Err(format!("is {url:?}: write https://HOST/PATH")),
    },
};

const CONTACTS: SettingRule<Vec<String>> = SettingRule {
    words: "`mailto:` and an address",
    check: |contacts| match contacts.iter().find(|contact| !contact.starts_with("mailto:")) {
        Some(contact) => Err(format!("has {contact:?}: write mailto: and an address")),
        None => Ok(()),
    },
};

fn what_orders_need(acme: &AcmeConfig) -> Result<(), SettingError> {
    let why = match acme {
        _ if acme.external_account_id.is_some() != acme.external_account_key.is_some() => {
            "`tls.acme.external_account_id` and `tls.acme.external_account_key` belong together: set both"
        }
        _ if acme.domains.is_empty() => return Ok(()),
        _ if acme.state_directory.is_none() => {
            "`tls.acme.domains` without `tls.acme.state_directory`: name a directory for keys"
        }
        _ if !acme.terms_agreed => {
            "`tls.acme.terms_agreed` is false: read the terms of service of the authority, and agree to them"
        }
        _ => return Ok(()),
    };
    Err(SettingError::Together(why.to_owned()))
}

impl AcmeConfig {
    /// Whether the certificate comes by ACME.
    #[must_use]
    pub const fn is_configured(&self) -> bool {
        !self.domains.is_empty()
    }

    /// The key that binds a new account to one that was made outside of ACME. RFC 8555 section
    /// 7.3.4.
    ///
    /// # Errors
    /// When its file cannot be read.
    pub fn external_account(&self) -> anyhow::Result<Option<ExternalAccountKey>> {
        let (Some(id), Some(path)) = (&self.external_account_id, &self.external_account_key) else {
            return Ok(None);
        };
        let text = open_secret_file(path)?;
        let digits = text.trim_ascii().strip_suffix(b"=").unwrap_or(text.trim_ascii());
        let key = BASE64URL_NOPAD.decode(digits).ok().map(Zeroizing::new);
        let key = key.with_context(|| format!("{} has no key in base64url", path.display()))?;
        Ok(Some(ExternalAccountKey::new(id.clone(), &key)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_daemon::settings::SettingSection as _;

    #[test]
    fn an_order_needs_names_a_directory_and_agreement() {
        let check = |text: &str| {
            let checked = toml::from_str::<AcmeConfig>(text).unwrap().check();
            checked.map_err(|error| error.to_string())
        };
        let with = |text: &str| {
            check(&format!(
                "domains = [\"a.example\"]\nstate_directory = \"acme\"\nterms_agreed = true\n{text}"
            ))
        };
        assert_eq!(check(""), Ok(()));
        assert_eq!(with("contact = [\"mailto:admin@a.example\"]"), Ok(()));
        for (text, part) in [
            ("domains = [\"a.example\"]", "state_directory"),
            ("domains = [\"a.example\"]\nstate_directory = \"acme\"", "terms_agreed"),
            ("domains = [\"*.a.example\"]", "wildcards"),
            ("domains = [\"192.0.2.1\"]", "not a DNS name"),
            ("domains = [\"a example\"]", "not a DNS name"),
            ("external_account_id = \"x\"", "belong together"),
            ("external_account_key = \"x\"", "belong together"),
        ] {
            assert!(check(text).unwrap_err().contains(part), "{text}");
        }
        assert!(with("directory = \"http://a.example/directory\"").unwrap_err().contains("https://"));
        assert!(with("directory = \"a\"").unwrap_err().contains("https://"));
        assert!(with("contact = [\"admin@a.example\"]").unwrap_err().contains("mailto:"));
        let many = |count| format!("domains = {:?}", vec!["a.example"; count]);
        assert!(check(&many(DOMAINS_MAX + 1)).unwrap_err().contains("it may have 100"));
        assert!(check(&many(DOMAINS_MAX)).unwrap_err().contains("state_directory"));
    }

    #[test]
    fn the_key_of_an_external_account_is_read_from_a_secret_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        let config = AcmeConfig {
            external_account_id: Some("id".to_owned()),
            external_account_key: Some(path.clone()),
            ..AcmeConfig::default()
        };
        assert!(AcmeConfig::default().external_account().unwrap().is_none());
        let error = || config.external_account().err().unwrap().to_string();
        assert!(error().contains("No such file"), "{}", error());
        handle_auth::file::create_secret_file(&path, b"b10lLJs8l1GPIzsLP0s6pMt8O0XVGnfT\n").unwrap();
        assert!(config.external_account().unwrap().is_some());
        std::fs::remove_file(&path).unwrap();
        handle_auth::file::create_secret_file(&path, b"not base64").unwrap();
        assert!(error().contains("no key in base64url"), "{}", error());
    }
}
