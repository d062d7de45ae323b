//! The state of the certificate by ACME: what orders share with workers and operators.

use super::challenges::PendingChallenges;
use super::client::AcmeHttp;
use super::config::AcmeConfig;
use super::store::AcmeStore;
use crate::failure_series::{FailureSeries, SeriesTexts};
use crate::tls::certificate::TlsCertificate;
use crate::tls::trust::client_config;
use anyhow::Context as _;
use handle_daemon::clock::now_unix_s;
use instant_acme::ExternalAccountKey;
use serde_json::{Value, json};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// Texts of the log about failed orders.
const TEXTS: SeriesTexts = SeriesTexts {
    failed: "no certificate by ACME; the order is repeated later",
    recovered: "certificates are issued by ACME again",
};

/// State of the certificate by ACME.
pub struct AcmeState {
    pub(super) config: AcmeConfig,
    pub(super) http: AcmeHttp,
    pub(super) external_account: Option<ExternalAccountKey>,
    pub(super) challenges: PendingChallenges,
    pub(super) store: AcmeStore,
    pub(super) failures: FailureSeries,
    pub(super) progress: Mutex<OrderProgress>,
    /// Wakes the thread that makes orders.
    pub(super) wake: Notify,
}

/// The orders so far, for operators.
#[derive(Clone, Debug, Default)]
pub(super) struct OrderProgress {
    /// Failures in a row.
    pub(super) failures: u32,
    pub(super) last_error: Option<String>,
    pub(super) next_unix_s: u64,
    /// Whether an operator has asked for an order.
    pub(super) is_requested: bool,
}

impl fmt::Debug for AcmeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcmeState").field("config", &self.config).finish_non_exhaustive()
    }
}

impl AcmeState {
    /// Opens the files that `config` names, and the state directory, which is created if needed.
    ///
    /// # Errors
    /// One sentence with the file.
    pub fn open(config: &AcmeConfig) -> anyhow::Result<Self> {
        let tls = client_config(config.ca_file.as_deref()).context("`tls.acme.ca_file`")?;
        let external_account = config.external_account().context("cannot read the external account")?;
        let directory = config.state_directory.as_deref().unwrap_or_else(|| ".".as_ref());
        Ok(Self {
            http: AcmeHttp::new(tls, Duration::from_millis(config.request_ms.into()), config.answer_bytes),
            external_account,
            challenges: PendingChallenges::default(),
            store: AcmeStore::open(directory).context("cannot use `tls.acme.state_directory`")?,
            failures: FailureSeries::with_texts(&config.directory, TEXTS),
            progress: Mutex::default(),
            wake: Notify::new(),
            config: config.clone(),
        })
    }

    /// The challenges that wait for the authority.
    #[must_use]
    pub const fn challenges(&self) -> &PendingChallenges {
        &self.challenges
    }

    /// The certificate of an earlier order, if it has not expired.
    ///
    /// # Errors
    /// When the file is there and cannot be read, as when other users may read it. A file with
    /// other content than a certificate is ignored with a warning: it is ordered again.
    pub fn stored_certificate(&self, has_http2: bool) -> anyhow::Result<Option<TlsCertificate>> {
        let stored = self.store.certificate().context("cannot read the certificate by ACME")?;
        let certificate = stored.and_then(|stored| stored.open(has_http2));
        let certificate = certificate.filter(|certificate| {
            certificate.facts().is_some_and(|facts| u64::from(now_unix_s()) < facts.expires_unix_s)
        });
        if certificate.is_none() {
            tracing::warn!(
                directory = self.config.directory,
                "no certificate is stored; TLS handshakes are refused until it is issued by ACME"
            );
        }
        Ok(certificate)
    }

    /// Orders a certificate now, whether or not it is time for it.
    pub fn request(&self) {
        self.progress().is_requested = true;
        self.wake.notify_one();
    }

    pub(super) fn progress(&self) -> MutexGuard<'_, OrderProgress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The orders so far, for the control socket.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let OrderProgress { failures, last_error, next_unix_s, is_requested: _ } = self.progress().clone();
        json!({
            "directory": self.config.directory,
            "failures": failures,
            "last_error": last_error,
            "next_order_unix_s": next_unix_s,
        })
    }
}
