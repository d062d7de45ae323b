//! Certificates by ACME: ordered from an authority, kept in a directory, and renewed. RFC 8555.
//!
//! - [`config`]: the settings.
//! - [`challenges`]: how this process proves that it answers under a name.
//! - [`order`]: from an order to a certificate. [`client`]: its requests over HTTPS.
//! - [`store`]: the account and the certificate on disk.
//! - [`renewal`]: when the next order is made.
//!
//! One thread makes the orders. It uses a stored certificate as long as possible, so an authority
//! that does not answer delays a renewal and nothing else.

pub mod challenges;
pub mod client;
pub mod config;
pub mod order;
pub mod renewal;
pub mod store;

pub use config::{AcmeChallenge, AcmeConfig};

use crate::failure_series::{FailureSeries, SeriesTexts};
use crate::phase::{self, GatewayPhase};
use crate::server::GatewayState;
use crate::tls::TlsIdentity;
use crate::tls::certificate::TlsCertificate;
use crate::tls::trust::client_config;
use anyhow::Context as _;
use challenges::PendingChallenges;
use client::AcmeHttp;
use handle_daemon::clock::now_unix_s;
use handle_daemon::text::listed;
use instant_acme::ExternalAccountKey;
use order::AcmeError;
use serde_json::{Value, json};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use store::AcmeStore;
use tokio::sync::Notify;

/// Longest sleep, after which the time of day is read again: it may have been changed.
const SLEEP_MAX: Duration = Duration::from_secs(3600);
/// Texts of the log about failed orders.
const TEXTS: SeriesTexts = SeriesTexts {
    failed: "no certificate by ACME; the order is repeated later",
    recovered: "certificates are issued by ACME again",
};

/// State of the certificate by ACME.
pub struct AcmeState {
    config: AcmeConfig,
    http: AcmeHttp,
    external_account: Option<ExternalAccountKey>,
    challenges: PendingChallenges,
    store: AcmeStore,
    failures: FailureSeries,
    progress: Mutex<OrderProgress>,
    /// Wakes the thread that makes orders.
    wake: Notify,
}

/// The orders so far, for operators.
#[derive(Clone, Debug, Default)]
struct OrderProgress {
    /// Failures in a row.
    failures: u32,
    last_error: Option<String>,
    next_unix_s: u64,
    /// Whether an operator has asked for an order.
    is_requested: bool,
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

    fn progress(&self) -> std::sync::MutexGuard<'_, OrderProgress> {
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

    /// A new certificate: from the authority, or one that another process has stored meanwhile.
    async fn attempt(
        &self,
        tls: &TlsIdentity,
        failures: u32,
        is_requested: bool,
    ) -> Result<TlsCertificate, AcmeError> {
        let _lock = self.store.lock()?;
        if !is_requested
            && let Ok(Some(stored)) = self.store.certificate()
            && let Some(certificate) = stored.open(tls.has_http2())
            && renewal::order_due_unix_s(Some((&stored, &certificate)), &self.config) > now_unix_s().into()
        {
            // Another process, which shares the directory, has renewed it.
            return Ok(certificate);
        }
        let limit = Duration::from_secs(self.config.order_s.into());
        let ordered = tokio::time::timeout(limit, order::order_certificate(self, failures)).await;
        self.challenges.clear();
        let stored = ordered.map_err(|_| AcmeError::Late(limit))??;
        let certificate = stored.open(tls.has_http2()).ok_or(AcmeError::Unusable)?;
        if !certificate.facts().is_some_and(|facts| facts.covers(&self.config.domains)) {
            return Err(AcmeError::OtherNames);
        }
        self.store.keep_certificate(&stored)?;
        Ok(certificate)
    }
}

/// Keeps the certificate by ACME of a gateway current until it stops.
pub fn run(state: &Arc<GatewayState>) {
    let Some((tls, acme)) = state.tls.as_ref().and_then(|tls| Some((tls, tls.acme()?))) else { return };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return tracing::error!(%error, "cannot start the runtime for ACME"),
    };
    runtime.block_on(async {
        tokio::select! {
            () = keep_certificate(state, tls, acme) => {}
            () = phase::reached(state.phase(), GatewayPhase::HandedOver) => {}
        }
    });
    // A lookup of a name may still run on a thread of its own.
    runtime.shutdown_background();
}

async fn keep_certificate(state: &GatewayState, tls: &TlsIdentity, acme: &AcmeState) {
    let mut next_unix_s = match acme.store.certificate() {
        Ok(Some(stored)) => match stored.open(tls.has_http2()) {
            Some(certificate) => renewal::order_due_unix_s(Some((&stored, &certificate)), &acme.config),
            None => 0,
        },
        Ok(None) | Err(_) => 0,
    };
    // An order that an operator has asked for is repeated until it succeeds, also where the
    // certificate in use is not due.
    let mut is_requested = false;
    loop {
        sleep_until(acme, next_unix_s).await;
        let failures = {
            let mut progress = acme.progress();
            is_requested |= std::mem::take(&mut progress.is_requested);
            progress.failures
        };
        state.counters.certificate_orders.add();
        next_unix_s = match acme.attempt(tls, failures, is_requested).await {
            Ok(certificate) => {
                is_requested = false;
                acme.failures.note::<AcmeError>(None, Instant::now());
                let expires_unix_s = certificate.facts().map(|facts| facts.expires_unix_s);
                tracing::info!(names = %listed(&acme.config.domains), expires_unix_s, "a certificate by ACME is in use");
                let next_unix_s = renewal::renewal_due_unix_s(certificate.facts(), &acme.config);
                tls.replace(certificate);
                let mut progress = acme.progress();
                (progress.failures, progress.last_error) = (0, None);
                next_unix_s
            }
            Err(error) => {
                let text = error.to_string();
                acme.failures.note(Some(&text), Instant::now());
                let random = u32::from_be_bytes(handle_auth::random());
                let failures = failures.saturating_add(1);
                let pause = renewal::pause(failures, error.is_rate_limit(), &acme.config, random);
                let mut progress = acme.progress();
                (progress.failures, progress.last_error) = (failures, Some(text));
                // Counted last: a reader that sees the count then also sees the error.
                state.counters.certificate_order_failures.add();
                u64::from(now_unix_s()) + pause.as_secs().max(1)
            }
        };
    }
}

/// Sleeps until that time, or until an operator asks for an order.
async fn sleep_until(acme: &AcmeState, next_unix_s: u64) {
    acme.progress().next_unix_s = next_unix_s;
    loop {
        let left = Duration::from_secs(next_unix_s.saturating_sub(now_unix_s().into()));
        if left.is_zero() || acme.progress().is_requested {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(left.min(SLEEP_MAX)) => {}
            () = acme.wake.notified() => {}
        }
    }
}
